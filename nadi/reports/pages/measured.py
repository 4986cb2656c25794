"""The page of `nadi compare --measured`: measured and simulated times, errors and ranks. Needs plotly."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inputs import shown as as_shown
from inputs.units import PS_PER_US
from nadi.insight.measured.accuracy import joint_operations
from nadi.insight.measured.timed_nodes import KINDS, TimedNodes
from nadi.reports.pages.series import style
from nadi.reports.text import measured as tables
from nadi.terminal.printing import in_page
from nadi.terminal.readable import size_text

MAX_POINTS = 5000
"""Number of points per kind in the chart."""
_MAX_BINS = 60
"""Number of bins in the histogram of errors."""


def render(nodes: TimedNodes, found: dict[str, Any]) -> str:
    """Return the page as HTML without external files.

    Args:
        nodes: Measured and simulated nodes.
        found: Document of nadi.insight.measured.accuracy.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nadi.reports", "templates/measured"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = [tables.kinds_table(found), tables.sizes_table(found), tables.groups_table(found)]
    shown += [tables.pairs_table(found), tables.ranks_table(found), tables.worst_table(found)]
    return environment.get_template("page.html.j2").render(
        overview=tables.overview(found),
        picture=figure(nodes).to_html(full_html=False, include_plotlyjs=True),
        tables=[table for table in shown if table.rows],
    )


def _plain(value: object) -> object:
    return as_shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def figure(nodes: TimedNodes) -> Any:  # noqa: ANN401 - plotly has no types
    """Return simulated against measured times, a series per kind, above a histogram of the errors."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    titles = "simulated against measured time (for communication, the transfer)", "errors"
    drawn = make_subplots(rows=2, cols=1, vertical_spacing=0.12, row_heights=[0.7, 0.3], subplot_titles=titles)
    shortest, longest = np.inf, 0.0
    for number, (kind, measured, simulated, texts) in enumerate(series(nodes)):
        look = {"color": style(number).colour}
        points = go.Scattergl(
            x=measured / PS_PER_US,
            y=simulated / PS_PER_US,
            text=texts,
            name=in_page(kind),
            mode="markers",
            marker=look,
            legendgroup=kind,
        )
        errors = go.Histogram(
            x=100 * (simulated / measured - 1),
            nbinsx=_MAX_BINS,
            name=in_page(kind),
            marker=look,
            legendgroup=kind,
            showlegend=False,
        )
        drawn.add_trace(points, row=1, col=1)
        drawn.add_trace(errors, row=2, col=1)
        positive = np.concatenate([measured, simulated[simulated > 0]]) / PS_PER_US
        shortest, longest = min(shortest, positive.min()), max(longest, positive.max())
    line = {"color": "#888888", "dash": "dash"}
    drawn.add_trace(
        go.Scatter(x=[shortest, longest], y=[shortest, longest], mode="lines", line=line, name="equal"), row=1, col=1
    )
    drawn.update_xaxes(type="log", title_text="measured (µs)", row=1, col=1)
    drawn.update_yaxes(type="log", title_text="simulated (µs)", row=1, col=1)
    drawn.update_xaxes(title_text="error (%)", row=2, col=1)
    drawn.update_yaxes(title_text="nodes", row=2, col=1)
    drawn.update_layout(height=1000, plot_bgcolor="white", barmode="stack")
    return drawn


def series(nodes: TimedNodes) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64], list[str]]]:
    """Return kind, measured and simulated picoseconds and labels of each series; of many nodes the worst."""
    found = []
    collectives, messages = joint_operations(nodes, nodes.collective), joint_operations(nodes, nodes.message)
    kinds = np.asarray(nodes.collectives["kind"], dtype=str)[collectives.number]
    of_kind = [(kind, collectives, np.flatnonzero(kinds == kind)) for kind in np.unique(kinds).tolist()]
    for kind, joint, places in [*of_kind, ("message", messages, np.arange(len(messages.number)))]:
        which = _furthest(joint.measured_ps, joint.simulated_ps, places)
        if len(which):
            labels = _labels(nodes, joint.first[which])
            found.append((kind, joint.measured_ps[which], joint.simulated_ps[which], labels))
    for number, kind in enumerate(KINDS):
        rows = np.flatnonzero((nodes.kind == number) & (nodes.collective < 0) & (nodes.message < 0))
        rows = _furthest(nodes.measured_ps, nodes.simulated_ps, rows)
        if len(rows):
            found.append((kind, nodes.measured_ps[rows], nodes.simulated_ps[rows], _labels(nodes, rows)))
    return found


def _furthest(measured: NDArray[np.int64], simulated: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at longest MAX_POINTS of the rows, those with the largest errors."""
    if len(rows) <= MAX_POINTS:
        return rows
    far = np.abs(simulated[rows] - measured[rows])
    return np.sort(rows[np.argsort(-far, kind="stable")[:MAX_POINTS]])


def _labels(nodes: TimedNodes, rows: NDArray[np.int64]) -> list[str]:
    names = nodes.name.take(rows).to_pylist()
    sizes = nodes.size_bytes[rows].tolist()
    npus = nodes.npu[rows].tolist()
    return [
        in_page(f"NPU {npu}: {name}" + (f", {size_text(size)}" if size > 0 else ""))
        for npu, name, size in zip(npus, names, sizes, strict=True)
    ]
