"""A sweep of `nadi collective`: its fastest algorithms, JSON document, Parquet table, and page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi import __version__
from nadi.inputs.arrays import arrow_numbers
from nadi.inputs.units import PS_PER_US
from nadi.insight.node_times import bus_factor
from nadi.reports.pages.charts import SeriesStyle, series_style
from nadi.reports.pages.page import Heading, Page, PageSection, Paragraph, Part, Plot, Table, from_terminal
from nadi.simulation import schemas
from nadi.studies.collectives.measuring import SkippedAlgorithm, SweepRow, skipped_text
from nadi.terminal import AnyColumn, FittedTable, TimeUnit, in_page, in_unit, name_column, size_text, time_unit
from nadi.validation import ErrorBar

_MAX_TICKS = 16  # maximum number of labelled sizes on an axis
_GB_S_PER_B_PS = 1e3  # gigabytes per second in one byte per picosecond
PAGE = "collective.html"
FILES = (schemas.SWEEP.file, PAGE)
FASTEST = "fastest"


class Band(NamedTuple):
    """Consecutive sizes with the same fastest algorithm."""

    algorithm: str  # name of the fastest algorithm
    from_bytes: int  # smallest size in bytes
    to_bytes: int  # largest size in bytes
    # minimum over the sizes of the second-best time divided by the best; None without a second algorithm
    least_lead: float | None
    most_lead: float | None  # maximum of the same ratio


def winners(rows: Sequence[SweepRow]) -> list[Band]:
    """Return the bands from the smallest size to the largest; a tie keeps the winner of the size before.

    Args:
        rows: The measured rows, of any order.
    """
    rows_by_size: dict[int, list[SweepRow]] = {}
    for row in rows:
        rows_by_size.setdefault(row.bytes, []).append(row)
    bands: list[Band] = []
    for size, timed in sorted(rows_by_size.items()):
        last = bands[-1].algorithm if bands else ""
        # at equal times the winner of the size before comes first (False before True): bands then do not alternate
        by_time = sorted((row.time_ps, row.algorithm != last, row.algorithm) for row in timed)
        first_ps, _, algorithm = by_time[0]
        lead = None
        if len(by_time) > 1:
            lead = by_time[1][0] / first_ps if first_ps > 0 else 1.0
        if algorithm != last:
            bands.append(Band(algorithm, size, size, lead, lead))
            continue
        leads = [each for each in (bands[-1].least_lead, bands[-1].most_lead, lead) if each is not None]
        minimum, maximum = min(leads, default=None), max(leads, default=None)
        bands[-1] = bands[-1]._replace(to_bytes=size, least_lead=minimum, most_lead=maximum)
    return bands


@dataclass(frozen=True)
class CollectiveSweep:
    """One collective on one fabric, with all sizes and algorithms."""

    kind: str  # kind of the collective, one of workload.KINDS or "all-to-all-v"
    topology: str  # name of the fabric
    npus: int  # number of NPUs, all of which are members
    keys: Mapping[str, Mapping[str, Any]]  # values of [network] and [system], settled, for JSON
    seed: int  # seed of hashed path choices
    rows: list[SweepRow]  # rows, ordered by algorithm and size
    left_out: list[SkippedAlgorithm]  # algorithms of "all" that cannot perform the collective
    error_bars: Sequence[ErrorBar] = ()  # how far the times of each algorithm may be trusted
    matrix: str = ""  # source of an all-to-all-v's bytes: "zipf:1.2" or a file; "" for other kinds
    simulates: bool = True  # whether rows are simulated, not closed forms alone
    overload: str = ""  # why links may carry more than they can, as the network's model declares it; "" = they cannot

    def winners(self) -> list[Band]:
        """Return the fastest algorithm by size."""
        return winners(self.rows)

    def document(self) -> dict[str, Any]:
        """Return the document that --json prints; `ratio` is null if the closed form is 0."""
        return {
            "kind": self.kind,
            "topology": self.topology,
            "npus": self.npus,
            "seed": self.seed,
            "matrix": self.matrix,
            **self.keys,
            "error_bars": [bar.document() for bar in self.error_bars],
            "rows": [row._asdict() | {"ratio": row.ratio if row.closed_form_ps > 0 else None} for row in self.rows],
            "winners": [band._asdict() for band in self.winners()],
            "left_out": [skipped._asdict() for skipped in self.left_out],
        }


def sweep_page(sweep: CollectiveSweep) -> Page:
    """Return the page of a sweep; that of a barrier, which has no sizes, has no charts."""
    lead = "Every algorithm at every size on an idle fabric, with the closed form of its steps."
    fastest = from_terminal(winners_table(sweep))
    colours = [styles(sweep)[row[0]].colour for row in fastest.rows]
    parts: list[Part] = [replace(fastest, colours=colours)]
    if sweep.left_out:
        parts.append(Paragraph(f"Skipped: {skipped_text(sweep.left_out)}"))
    if any(row.bytes > 0 for row in sweep.rows):
        caption = "Top: bus bandwidth; bottom: time. Dashed lines are closed forms; bands show the fastest algorithm."
        parts.append(Plot("bus bandwidth and time over size", sweep_figure(sweep), caption, 1000))
    network = {key: value for key, value in sweep.keys["network"].items() if value not in (None, {})}
    settings = {"seed": sweep.seed} | ({"matrix": sweep.matrix} if sweep.matrix else {})
    values = [[key, str(value)] for key, value in (network | settings).items()]
    rows = [from_terminal(sweep_table(sweep))]
    headings = [Heading("key", "Key of [network], or of the sweep.", is_text=True), Heading("value", is_text=True)]
    sections = [
        PageSection("fastest", "Fastest", "Fastest algorithm by size.", parts),
        PageSection("rows", "All rows", "Times and bandwidths as nccl-tests counts them.", rows),
        PageSection("settings", "Settings", "Network settings of the runs.", [Table("[network]", headings, values)]),
    ]
    page = Page(f"{sweep.kind} of {sweep.npus} NPUs on {sweep.topology}", lead, sections)
    return page.with_error_bars(bar.document() for bar in sweep.error_bars)


def sweep_figure(sweep: CollectiveSweep) -> Any:  # noqa: ANN401 - plotly has no types
    """Return a plotly Figure of bus bandwidth and time over size, with closed forms dashed and bands of the fastest.

    Args:
        sweep: The rows of the command, with the fabric and settings.
    """
    from plotly.subplots import make_subplots

    chart = make_subplots(rows=2, cols=1, vertical_spacing=0.08, subplot_titles=("bus bandwidth", "time"))
    factor = bus_factor(sweep.kind, sweep.npus)
    for algorithm, series in styles(sweep).items():
        rows = sorted((row for row in sweep.rows if row.algorithm == algorithm), key=lambda row: row.bytes)
        sizes = [row.bytes for row in rows]
        closed = [row for row in rows if row.closed_form_ps > 0]
        closed_GB_s = [row.bytes / row.closed_form_ps * _GB_S_PER_B_PS * factor for row in closed]  # noqa: N806 - bytes
        closed_us = [row.closed_form_ps / PS_PER_US for row in closed]
        for panel, measured, expected in (
            (1, [row.busbw_Bps / 1e9 for row in rows], closed_GB_s),
            (2, [row.time_ps / PS_PER_US for row in rows], closed_us),
        ):
            shown = {"legendgroup": algorithm, "showlegend": panel == 1, "row": panel, "col": 1}
            look = {"mode": "lines+markers", **series.line_and_marker()}
            chart.add_scatter(x=sizes, y=measured, name=in_page(algorithm), **look, **shown)
            look = {"mode": "lines", "line": {"color": series.colour, "dash": series.expected_dash}}
            name = f"{in_page(algorithm)}, closed form"
            chart.add_scatter(x=[row.bytes for row in closed], y=expected, name=name, **look, **shown)
    for left, right, algorithm in band_edges(sweep):
        band = {"fillcolor": styles(sweep)[algorithm].colour, "opacity": 0.08, "line_width": 0, "layer": "below"}
        chart.add_vrect(x0=left, x1=right, row="all", col=1, **band)
    sizes = sorted({row.bytes for row in sweep.rows if row.bytes > 0})
    # 20 sizes with at most 16 ticks: every second one is labelled
    sizes = sizes[:: -(-len(sizes) // _MAX_TICKS)]
    ticks = {"tickvals": sizes, "ticktext": [size_text(size) for size in sizes]}
    chart.update_xaxes(type="log", title_text="size", **ticks, row=2, col=1)
    chart.update_xaxes(type="log", **ticks, row=1, col=1)
    chart.update_yaxes(title_text="GB/s", rangemode="tozero", row=1, col=1)
    chart.update_yaxes(title_text="µs", type="log", row=2, col=1)
    chart.update_layout(hovermode="x unified", margin={"t": 40, "b": 50, "l": 10, "r": 10})
    return chart


def band_edges(sweep: CollectiveSweep) -> list[tuple[float, float, str]]:
    """Return left end, right end and algorithm of each band; neighbours meet at the geometric mean of their sizes.

    Args:
        sweep: The rows of the command, with the fabric and settings.
    """
    bands = sweep.winners()
    # half-way on an axis with a logarithmic scale
    edges = [(before.to_bytes * after.from_bytes) ** 0.5 for before, after in pairwise(bands)]
    lefts, rights = [float(bands[0].from_bytes), *edges], [*edges, float(bands[-1].to_bytes)]
    return [(left, right, band.algorithm) for left, right, band in zip(lefts, rights, bands, strict=True)]


def styles(sweep: CollectiveSweep) -> dict[str, SeriesStyle]:
    """Return the style of each algorithm, in the order of the rows.

    Args:
        sweep: The rows of the command, with the fabric and settings.
    """
    names = dict.fromkeys(row.algorithm for row in sweep.rows)
    return {name: series_style(number) for number, name in enumerate(names)}


def write_sweep(folder: Path, sweep: CollectiveSweep) -> None:
    """Write FILES into a folder (see nadi.reports.staging).

    Args:
        sweep: The rows of the command, with the fabric and settings.
        folder: The results folder.
    """
    folder.mkdir(exist_ok=True)
    _write_table(folder / schemas.SWEEP.file, sweep)
    (folder / PAGE).write_text(sweep_page(sweep).html(), encoding="utf-8")


def _write_table(path: Path, sweep: CollectiveSweep) -> None:
    """Write one row per algorithm and size; the file's metadata hold the settings of network and system."""
    import pyarrow.parquet as pq

    names = [row.algorithm.partition(":") for row in sweep.rows]
    bands = sweep.winners()
    fastest = [
        any(row.algorithm == band.algorithm and band.from_bytes <= row.bytes <= band.to_bytes for band in bands)
        for row in sweep.rows
    ]
    ratio = np.array([row.ratio for row in sweep.rows], np.float64)
    columns = {
        "topology": [sweep.topology] * len(names),
        "npus": [sweep.npus] * len(names),
        **{name: [getattr(row, name) for row in sweep.rows] for name in SweepRow._fields},
        "algorithm": [name for name, _, _ in names],
        "parameters": [parameters for _, _, parameters in names],
        "ratio": arrow_numbers(ratio, np.isnan(ratio)),
        "fastest": fastest,
    }
    settings = {
        "version": __version__,
        "seed": sweep.seed,
        "matrix": sweep.matrix,
        **sweep.keys,
    }
    pq.write_table(schemas.SWEEP.table(columns, {"nadi": json.dumps(settings)}), path)


def sweep_table(sweep: CollectiveSweep) -> FittedTable:
    """Return the table of rows by size; several algorithms are sorted by time, with their factor over the fastest.

    Args:
        sweep: The rows of the command, with the fabric and settings.
    """
    rows_by_size: dict[int, list[SweepRow]] = {}
    for row in sweep.rows:
        rows_by_size.setdefault(row.bytes, []).append(row)
    several = len({row.algorithm for row in sweep.rows}) > 1
    has_variants = any(row.variant for row in sweep.rows)
    runs = sweep.simulates
    columns: list[AnyColumn] = ["size", name_column("algorithm"), "time" if runs else "closed form"]
    columns += ["vs fastest"] * several + [name_column("variant", 6)] * has_variants
    columns += [("algbw GB/s", 5), ("busbw GB/s", 1)]
    columns += [("closed form", 4), ("ratio", 2)] if runs else []
    columns += [("bound", 3)]
    table = FittedTable(f"{sweep.kind} of {sweep.npus} NPUs on {sweep.topology}", *columns)
    bands = sweep.winners()
    for size, rows in rows_by_size.items():
        unit = time_unit(row.time_ps for row in rows)
        fastest = next(band.algorithm for band in bands if band.from_bytes <= size <= band.to_bytes)
        # at equal times the winner of the size's band comes first, so that table and bands agree
        by_time = sorted(rows, key=lambda row: (row.time_ps, row.algorithm != fastest)) if several else rows
        for place, row in enumerate(by_time):
            factor = f"{row.time_ps / by_time[0].time_ps:.3f}" if by_time[0].time_ps else "-"
            about = "" if row.closed_form_played else "~"
            time = _time(row.time_ps, unit)
            cells = [size_text(size) if place == 0 else "", row.algorithm, time if runs else about + time]
            cells += [factor if place else FASTEST] * several + [row.variant or "-"] * has_variants
            cells += [f"{rate_Bps / 1e9:.3f}" for rate_Bps in (row.algbw_Bps, row.busbw_Bps)]
            ratio = f"{about}{row.ratio:.4f}" if row.closed_form_ps > 0 else "-"
            cells += [about + _time(row.closed_form_ps, unit), ratio] if runs else []
            cells += [_time(row.bound_ps, unit)]
            table.add_row(*cells, bold=several and place == 0)
        if several:
            table.end_group()
    models = sorted({row.model for row in sweep.rows if ", " in row.model})
    if models:
        table.notes.append(f"times are of {' and of '.join(models)}")
    busiest = max((row.busiest_link for row in sweep.rows), default=0.0)
    if busiest > 1 and sweep.overload:
        table.notes.append(f"links carry up to {busiest:.0%} of their capacity: {sweep.overload}")
    table.notes.extend(bar.text() for bar in sweep.error_bars)
    return table


def winners_table(sweep: CollectiveSweep) -> FittedTable:
    """Return the table of bands: consecutive sizes with the same fastest algorithm.

    Args:
        sweep: The rows of the command, with the fabric and settings.
    """
    columns = name_column("algorithm"), "from size", "to size", ("speed-up over the next", 1)
    table = FittedTable("fastest", *columns)
    for band in sweep.winners():
        lead = f"{band.least_lead:.2f} to {band.most_lead:.2f}" if band.least_lead is not None else "-"
        table.add_row(band.algorithm, size_text(band.from_bytes), size_text(band.to_bytes), lead)
    return table


def _time(time_ps: float, unit: TimeUnit) -> str:
    """Return a time in ps as text in a unit."""
    return f"{in_unit(time_ps, unit)} {unit.name}"
