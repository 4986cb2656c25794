"""The files of `nadi compare --measured`: a JSON document, and a page of measured and simulated times."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.inputs.arrow import arrow_numbers
from nadi.inputs.units import PS_PER_US
from nadi.insight.accuracy import joint_operations
from nadi.insight.measured import TIMED_KINDS, TimedNodes
from nadi.reports.pages.charts import Plotly, style
from nadi.reports.pages.page import Fact, Facts, Page, PageSection, Paragraph, Part, Plot, from_terminal
from nadi.reports.text import measured as tables
from nadi.terminal import in_page, size_text

DOCUMENT, PAGE = FILES = "measured.json", "measured.html"
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
    (folder / PAGE).write_text(page(nodes, accuracy).html(), encoding="utf-8")


def page(nodes: TimedNodes, accuracy: dict[str, Any]) -> Page:
    """Return the page of an accuracy report and the nodes behind it."""
    overview = tables.overview(accuracy)
    facts = [Fact(name, value) for name, value in overview.rows]
    printed = [tables.kinds_table(accuracy), tables.sizes_table(accuracy), tables.groups_table(accuracy)]
    printed += [tables.pairs_table(accuracy), tables.ranks_table(accuracy), tables.worst_table(accuracy)]
    shown: list[Part] = [from_terminal(table, why=_WHY) for table in printed if table.rows]
    of_points = "A point is a node, or a collective or message. Below: the number of nodes by error."
    parts: list[Part] = [Facts(facts), *map(Paragraph, overview.notes)]
    parts.append(Plot("simulated against measured time", figure(nodes), of_points, 1000))
    lead = "Errors are those of the simulated times, relative to the measured ones."
    sections = [
        PageSection("overview", "Overview", "Transfers of communication and times of other nodes.", parts),
        PageSection("tables", "Tables", lead, shown),
    ]
    return Page(overview.title, lead, sections)


def figure(nodes: TimedNodes) -> Plotly:
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
        look = {"name": in_page(kind), "marker": {"color": style(number).colour}, "legendgroup": kind}
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
