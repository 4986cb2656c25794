"""The page of a sweep of `nadi collective`: bus bandwidth and time over size, and who wins where. Needs plotly."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from inputs.units import PS_PER_US
from nadi.insight.analysis.node_times import bus_factor
from nadi.reports.pages.page import Heading, Page, PageSection, Paragraph, Part, Plot, Table
from nadi.reports.pages.series import SeriesStyle, style
from nadi.studies.collectives.microbench import listed
from nadi.studies.collectives.sweep import CollectiveSweep
from nadi.studies.collectives.text import sweep_table, winners_table
from nadi.terminal.printing import in_page
from nadi.terminal.readable import size_text
from nadi.terminal.tables import FittedTable

_MOST_TICKS = 16
_B_PS_PER_GB_S = 1e3
"""Bytes per picosecond to gigabytes per second."""


def render(sweep: CollectiveSweep) -> str:
    """The page as HTML that stands alone; of a barrier, which has no sizes, without pictures."""
    lead = "Every algorithm at every size on an idle fabric, beside the closed form of its steps."
    sections = [
        PageSection("fastest", "Fastest", "Which algorithm takes least, from size to size.", _fastest(sweep)),
        PageSection("rows", "All rows", "Times and bandwidths as nccl-tests counts them.", [_rows(sweep)]),
        PageSection("settings", "Settings", "With which network it was run.", [_settings(sweep)]),
    ]
    return Page(f"{sweep.kind} of {sweep.npus} NPUs on {sweep.topology}", lead, sections).html()


def _fastest(sweep: CollectiveSweep) -> list[Part]:
    made: list[Part] = [_table(winners_table(sweep), "fastest", styles(sweep))]
    if sweep.left_out:
        made.append(Paragraph(f"Left out: {listed(sweep.left_out)}"))
    if _has_sizes(sweep):
        says = "Above bus bandwidth, below time; dashed lines are closed forms, a band behind is the winner's colour."
        made.append(Plot("bus bandwidth and time over size", figure(sweep), says, 1000))
    return made


def _rows(sweep: CollectiveSweep) -> Table:
    return _table(sweep_table(sweep), "all rows, by size", {})


def _table(fitted: FittedTable, caption: str, looks: Mapping[str, SeriesStyle]) -> Table:
    """A table of the terminal as one of a page; looks: by what stands in the first column."""
    headings = [Heading(column.heading, is_text=column.form != "number") for column in fitted.columns]
    colours = [looks[row[0]].colour for row in fitted.rows] if looks else []
    return Table(caption, headings, fitted.rows, colours=colours)


def _settings(sweep: CollectiveSweep) -> Table:
    network = {key: value for key, value in sweep.network.model_dump(mode="json").items() if value not in (None, {})}
    more = {"seed": sweep.seed} | ({"matrix": sweep.matrix} if sweep.matrix else {})
    rows = [[key, str(value)] for key, value in (network | more).items()]
    headings = [Heading("key", "A key of [network], or of the sweep.", is_text=True), Heading("value", is_text=True)]
    return Table("[network]", headings, rows)


def figure(sweep: CollectiveSweep) -> Any:  # noqa: ANN401 - plotly has no types
    """Bus bandwidth, and below it time, over size as a plotly Figure; closed forms dashed, winners' bands behind."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    drawn = make_subplots(rows=2, cols=1, vertical_spacing=0.08, subplot_titles=("bus bandwidth", "time"))
    factor = bus_factor(sweep.kind, sweep.npus)
    for algorithm, look in styles(sweep).items():
        own = sorted((row for row in sweep.rows if row.algorithm == algorithm), key=lambda row: row.bytes)
        sizes = [row.bytes for row in own]
        closed = [row for row in own if row.closed_form_ps > 0]
        closed_GB_s = [row.bytes / row.closed_form_ps * _B_PS_PER_GB_S * factor for row in closed]  # noqa: N806 - bytes
        closed_us = [row.closed_form_ps / PS_PER_US for row in closed]
        for place, measured, expected in (
            (1, [row.busbw_Bps / 1e9 for row in own], closed_GB_s),
            (2, [row.time_ps / PS_PER_US for row in own], closed_us),
        ):
            shown = {"legendgroup": algorithm, "showlegend": place == 1}
            line = go.Scatter(
                x=sizes,
                y=measured,
                name=in_page(algorithm),
                mode="lines+markers",
                line={"color": look.colour, "dash": look.dash},
                marker={"symbol": f"circle{look.mark}"},
                **shown,
            )
            dashed = go.Scatter(
                x=[row.bytes for row in closed],
                y=expected,
                name=f"{in_page(algorithm)}, closed form",
                mode="lines",
                line={"color": look.colour, "dash": look.expected_dash},
                **shown,
            )
            drawn.add_trace(line, row=place, col=1)
            drawn.add_trace(dashed, row=place, col=1)
    for left, right, algorithm in band_edges(sweep):
        band = {"fillcolor": styles(sweep)[algorithm].colour, "opacity": 0.08, "line_width": 0, "layer": "below"}
        drawn.add_vrect(x0=left, x1=right, row="all", col=1, **band)
    sizes = sorted({row.bytes for row in sweep.rows if row.bytes > 0})
    sizes = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    ticks = {"tickvals": sizes, "ticktext": [size_text(size) for size in sizes]}
    drawn.update_xaxes(type="log", title_text="size", **ticks, row=2, col=1)
    drawn.update_xaxes(type="log", **ticks, row=1, col=1)
    drawn.update_yaxes(title_text="GB/s", rangemode="tozero", row=1, col=1)
    drawn.update_yaxes(title_text="µs", type="log", row=2, col=1)
    drawn.update_layout(hovermode="x unified", margin={"t": 40, "b": 50, "l": 10, "r": 10})
    return drawn


def band_edges(sweep: CollectiveSweep) -> list[tuple[float, float, str]]:
    """From where to where each winner's band is drawn: neighbours meet halfway between their sizes, on a log axis."""
    bands = sweep.winners()
    meet = [(before.to_bytes * after.from_bytes) ** 0.5 for before, after in pairwise(bands)]
    lefts, rights = [float(bands[0].from_bytes), *meet], [*meet, float(bands[-1].to_bytes)]
    return [(left, right, band.algorithm) for left, right, band in zip(lefts, rights, bands, strict=True)]


def styles(sweep: CollectiveSweep) -> dict[str, SeriesStyle]:
    """How each algorithm looks, in the order of the rows."""
    names = dict.fromkeys(row.algorithm for row in sweep.rows)
    return {name: style(number) for number, name in enumerate(names)}


def _has_sizes(sweep: CollectiveSweep) -> bool:
    return any(row.bytes > 0 for row in sweep.rows)
