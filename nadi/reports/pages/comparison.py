"""Pages of `nadi compare`: runs beside each other, and a run beside measured times."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from nadi.inputs.arrays import Int64, arrow_numbers
from nadi.inputs.units import PS_PER_US
from nadi.insight.accuracy import joint_operations
from nadi.insight.comparison import by_load
from nadi.insight.measured import TIMED_KINDS, TimedNodes
from nadi.reports.pages.charts import Plotly, bar_chart, series_style
from nadi.reports.pages.page import (
    Fact,
    Facts,
    Heading,
    Page,
    PageSection,
    Paragraph,
    Part,
    Plot,
    Table,
    explanations,
    from_terminal,
)
from nadi.reports.pages.report_times import CATEGORY_COLOURS
from nadi.reports.text import accuracy as text
from nadi.reports.text import comparison as tables
from nadi.terminal import FittedTable, buffer_text, in_page, size_text, time_text, time_unit

MAX_ROWS = 300  # Number of collectives in the table
_MAX_BARS = 25  # Number of groups of collectives in the chart


def comparison_page(document: dict[str, Any]) -> Page:
    """Return the page of a document of nadi.insight.comparison."""
    names = _names(document)
    lead = f"{len(names)} runs; {names[0]} is the baseline. Click an underlined term for its explanation."
    overview: list[Part] = [Paragraph(note, is_warning=True) for note in document["notes"]]
    meanings = (f"{tables.label(row['name'])}: {row['meaning']}" for row in document["figures"])
    overview.append(_table(document, tables.runs_table(document)))
    overview.append(_table(document, tables.metrics_table(document), "; ".join(meanings) + "."))
    more = [table for table in (tables.jobs_table(document), tables.losses_table(document)) if table.rows]
    overview += [_table(document, table) for table in more]
    settings = tables.settings_table(document)
    difference = _table(document, settings) if settings.rows else Paragraph("All settings are the same.")
    of_times = "Mean over all NPUs of a run; the categories add up to the run."
    of_collectives = "By group, kind and size, sorted by the change of the time."
    sections = [
        PageSection("figures", "Results", "The metrics of the runs, and their differences.", overview),
        PageSection("settings", "Settings", "Settings that differ between the runs.", [difference]),
        PageSection("times", "Time by category", of_times, _times(document)),
        PageSection("collectives", "Collectives", of_collectives, _collectives(document)),
        PageSection("links", "Links", "Utilisation of tiers and single links.", _links(document)),
    ]
    bars = (bar for run in document["runs"] for bar in run["error_bars"])
    return Page(" / ".join(names), lead, sections).with_error_bars(bars)


def _times(document: dict[str, Any]) -> list[Part]:
    """Return chart and table of the time by category, none if the runs have no categories."""
    rows, names = document["times"]["rows"], _names(document)
    if not rows:
        return []
    unit = time_unit(run["finish_time_ps"] for run in document["runs"])
    times = {row["what"]: [time / unit.ps for time in row["time_ps"]] for row in rows}
    drawn = bar_chart(
        names, times, [CATEGORY_COLOURS.get(name, CATEGORY_COLOURS["communication"]) for name in times], unit.name
    )
    moved = max(rows, key=lambda row: max(abs(change) for change in row["change_ps"]))
    description = f"The largest change is in {moved['what']}."
    known = explanations()
    note = " ".join(f"{name}: {known[name]}" for name in times if name in known)
    plot = Plot(f"time of the runs by category ({unit.name})", drawn, description, 150 + 40 * len(names))
    return [plot, _table(document, tables.times_table(document), note)]


def _collectives(document: dict[str, Any]) -> list[Part]:
    """Return a chart and tables of collectives, none if there are none."""
    rows, names = document["collectives"], _names(document)
    if not rows:
        return []
    drawn = [row for row in rows if any(row["time_ps"])][:_MAX_BARS]
    labels = [f"{row['group'] or 'all'} {row['kind']} {buffer_text(row['size_bytes'])}" for row in drawn]
    unit = time_unit(time for row in drawn for time in row["time_ps"] if time)
    times = [[(row["time_ps"][run] or 0) / unit.ps for row in drawn] for run in range(len(names))]
    description = f"The {len(drawn):,} groups of collectives with the largest change, of {len(rows):,}."
    title, height = f"summed time of collectives ({unit.name})", 160 + 18 * len(drawn) * len(names)
    note = "Sums over all sizes, so that runs with other plans are comparable."
    return [
        _table(document, tables.groups_table(document), note),
        Plot(title, _bars(document, labels, times, unit.name), description, height),
        _collectives_table(document),
    ]


def _collectives_table(document: dict[str, Any]) -> Table:
    """Return the table of collectives by group, kind and size, with six columns per run."""
    rows, names = document["collectives"], _names(document)
    headings = [Heading("group", "Name in the traces; the groups of a family share it.", is_text=True)]
    headings += [Heading("kind", is_text=True), Heading("members"), Heading("size")]
    for name in names:
        headings += [
            Heading(f"{name}: count", f"Number of collectives in {name}; the columns to the right are of that run."),
            *(Heading("median"), Heading("waiting"), Heading("ratio")),
            Heading("change", f"Change of the summed time from {names[0]}."),
            Heading("algorithm", is_text=True),
        ]
    cells = [_collective_cells(row, len(names)) for row in rows[:MAX_ROWS]]
    more = len(rows) - len(cells)
    note = f"and {more:,} more with smaller changes; --json has all" if more else ""
    return Table("collectives", headings, cells, note)


def _collective_cells(collective: dict[str, Any], num_runs: int) -> list[str]:
    """Return the cells of a row of the table of collectives."""
    cells = [
        collective["group"] or "all",
        collective["kind"],
        f"{collective['members']:,}",
        buffer_text(collective["size_bytes"]),
    ]
    for run in range(num_runs):
        count, ratio = collective["count"][run], collective["ratio"][run]
        if count is None:
            cells += ["-"] * 6
            continue
        times = [time_text(collective[name][run]) for name in ("median_ps", "wait_ps")]
        change = tables.change_text(collective["change"][run])
        cells += [f"{count:,}", *times, "-" if ratio is None else f"{ratio:.3f}", change, collective["algorithm"][run]]
    return cells


def _links(document: dict[str, Any]) -> list[Part]:
    """Return a chart of tiers, and tables of tiers and links."""
    tiers = by_load([row for row in document["tiers"] if any(row["tx_bytes"])])
    if not tiers:
        return []
    busy = [[row["max_utilisation"][run] or 0 for row in tiers] for run in range(len(document["runs"]))]
    plot = _bars(document, [row["tier"] for row in tiers], busy, "share of the run")
    plot.update_xaxes(tickformat=".0%")
    description = "All tiers have equal utilisation in all runs."
    if len(set(tiers[0]["max_utilisation"])) > 1:
        description = f"{tiers[0]['tier']} has the largest change."
    parts: list[Part] = [
        Plot("busiest link by tier", plot, description, 160 + 20 * len(tiers) * len(document["runs"])),
        _table(document, tables.tiers_table(document)),
    ]
    links = tables.links_table(document)
    matched = f"{document['links']['matched']:,} links have the same ends in all runs."
    return [*parts, _table(document, links, matched) if links.rows else Paragraph(matched)]


def _bars(document: dict[str, Any], labels: list[str], values: list[list[float]], unit: str) -> Plotly:
    """Return bars with a series per run beside each other; values: values by run and label."""
    names = _names(document)
    colours = [series_style(number).colour for number in range(len(names))]
    return bar_chart(labels, dict(zip(names, values, strict=True)), colours, unit, "group")


def _table(document: dict[str, Any], table: FittedTable, note: str = "") -> Table:
    """Return a table of the terminal as a table of a page; names of runs are column headings."""
    first, *_ = names = _names(document)
    return from_terminal(
        table, note, {name: f"Value of {name}." for name in names} | {f"to {first}": f"Change from {first}."}
    )


def _names(document: dict[str, Any]) -> list[str]:
    return [run["name"] for run in document["runs"]]


DOCUMENT, PAGE = ACCURACY_FILES = "measured.json", "measured.html"
MAX_POINTS = 5000  # Number of points per kind in the chart
_MAX_BINS = 60  # Number of bins in the histogram of errors
_WHY = {
    "error": "Error of the simulated time, relative to the measured time.",
    "compute": "Sum of the times of compute nodes.",
}


def write_measured(folder: Path, nodes: TimedNodes, accuracy: dict[str, Any]) -> None:
    """Write FILES into a folder (see `staging.staged`).

    Args:
        folder: Folder to write to.
        nodes: Nodes with measured and simulated times.
        accuracy: The accuracy report as a document.
    """
    folder.mkdir(exist_ok=True)
    (folder / DOCUMENT).write_text(json.dumps(accuracy, indent=2) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(accuracy_page(nodes, accuracy).html(), encoding="utf-8")


def accuracy_page(nodes: TimedNodes, accuracy: dict[str, Any]) -> Page:
    """Return the page of an accuracy report and the nodes behind it."""
    table = text.overview(accuracy)
    facts = [Fact(name, value) for name, value in table.rows]
    makers = (
        text.kinds_table,
        text.sizes_table,
        text.groups_table,
        text.pairs_table,
        text.ranks_table,
        text.worst_table,
    )
    printed = [make(accuracy) for make in makers]
    shown: list[Part] = [from_terminal(table, why=_WHY) for table in printed if table.rows]
    of_points = "A point is a node, or a collective or message. Below: the number of nodes by error."
    parts: list[Part] = [Facts(facts), *map(Paragraph, table.notes)]
    parts.append(Plot("simulated against measured time", accuracy_figure(nodes), of_points, 1000))
    lead = "Errors are those of the simulated times, relative to the measured ones."
    sections = [
        PageSection("overview", "Overview", "Transfers of communication and times of other nodes.", parts),
        PageSection("tables", "Tables", lead, shown),
    ]
    return Page(table.title, lead, sections)


def accuracy_figure(nodes: TimedNodes) -> Plotly:
    """Return simulated against measured times, a series per kind, above a histogram of the errors.

    Args:
        nodes: Nodes with measured and simulated times.
    """
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    titles = "simulated against measured time (for communication, the transfer)", "errors"
    drawn = make_subplots(rows=2, cols=1, vertical_spacing=0.12, row_heights=[0.7, 0.3], subplot_titles=titles)
    shortest, longest = np.inf, 0.0
    for number, (kind, measured, simulated, texts) in enumerate(series(nodes)):
        look = {"name": in_page(kind), "marker": {"color": series_style(number).colour}, "legendgroup": kind}
        x, y = measured / PS_PER_US, simulated / PS_PER_US
        drawn.add_trace(go.Scattergl(x=x, y=y, text=texts, mode="markers", **look), row=1, col=1)
        errors = 100 * (simulated / measured - 1)
        drawn.add_trace(go.Histogram(x=errors, nbinsx=_MAX_BINS, showlegend=False, **look), row=2, col=1)
        # both axes are logarithmic
        positive = np.concatenate([measured, simulated[simulated > 0]]) / PS_PER_US
        shortest, longest = min(shortest, positive.min()), max(longest, positive.max())
    line, ends = {"color": "#888888", "dash": "dash"}, [shortest, longest]
    drawn.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=line, name="equal"), row=1, col=1)
    drawn.update_xaxes(type="log", title_text="measured (µs)", row=1, col=1)
    drawn.update_yaxes(type="log", title_text="simulated (µs)", row=1, col=1)
    drawn.update_xaxes(title_text="error (%)", row=2, col=1)
    drawn.update_yaxes(title_text="nodes", row=2, col=1)
    drawn.update_layout(barmode="stack", margin={"t": 30, "b": 50, "l": 10, "r": 10})
    return drawn


def series(nodes: TimedNodes) -> list[tuple[str, Int64, Int64, list[str]]]:
    """Return kind, measured and simulated picoseconds and labels of each series; of many nodes the worst."""
    found = []
    collectives, messages = joint_operations(nodes, nodes.collective), joint_operations(nodes, nodes.message)
    kinds = np.asarray(nodes.collectives["kind"], dtype=str)[collectives.number]
    of_kind = [(kind, collectives, np.flatnonzero(kinds == kind)) for kind in np.unique(kinds).tolist()]
    for kind, joint, places in [*of_kind, ("message", messages, np.arange(len(messages.number)))]:
        rows = _furthest(joint.measured_ps, joint.simulated_ps, places)
        found.append((kind, joint.measured_ps[rows], joint.simulated_ps[rows], _labels(nodes, joint.first[rows])))
    for number, kind in enumerate(TIMED_KINDS):
        rows = np.flatnonzero((nodes.kind == number) & (nodes.collective < 0) & (nodes.message < 0))
        rows = _furthest(nodes.measured_ps, nodes.simulated_ps, rows)
        found.append((kind, nodes.measured_ps[rows], nodes.simulated_ps[rows], _labels(nodes, rows)))
    return [each for each in found if len(each[1])]


def _furthest(measured_ps: Int64, simulated_ps: Int64, rows: Int64) -> Int64:
    """Return at most MAX_POINTS of the rows, those with the largest errors."""
    if len(rows) <= MAX_POINTS:
        return rows
    errors_ps = np.abs(simulated_ps[rows] - measured_ps[rows])
    return np.sort(rows[np.argsort(-errors_ps, kind="stable")[:MAX_POINTS]])


def _labels(nodes: TimedNodes, rows: Int64) -> list[str]:
    """Return NPU, name and size of each node."""
    names, sizes, npus = (
        nodes.name.take(arrow_numbers(rows)).to_pylist(),
        nodes.size_bytes[rows].tolist(),
        nodes.npu[rows].tolist(),
    )
    return [
        in_page(f"NPU {npu}: {name}" + (f", {size_text(size)}" if size > 0 else ""))
        for npu, name, size in zip(npus, names, sizes, strict=True)
    ]
