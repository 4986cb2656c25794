"""The section on the fabric: a picture with links coloured by their load, and the busiest links."""

import numpy as np

from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.inputs.arrow import numpy_column
from nadi.insight.runs import Run
from nadi.pdes.fidelity import REFERENCE
from nadi.reports.pages.charts import Plotly, figure
from nadi.reports.pages.page import PageSection, Paragraph, Part, Plot, Table, from_terminal
from nadi.reports.pages.places import MAX_LINES, Marks, fabric_kind, lay_out, mark_name, with_gaps
from nadi.reports.text.run import busiest_links, limits_table
from nadi.terminal import in_page
from nadi.topologies import Graph, TopologyError

MAX_ROWS = 20
MAX_NAMED = 48
MAX_DRAWN_SHARP = 4000  # Number of lines above which plotly draws by WebGL instead of SVG, which every browser supports
_LOADS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.01)  # Limits of the intervals of utilisation that share a colour
# Colours of links by load, one per interval of _LOADS; far apart in hue and lightness
_COLOURS = ("#8496a2", "#4a90c4", "#2ca089", "#b49000", "#e46a30", "#d6202a")
# Explanation for runs with pauses, in which waiting times do not measure the queue
_BUFFER_WHY = "Maximum number of bytes of its port in a shared buffer; NPUs have no shared buffer."
_LIMITED_WHY = "Mean time for which the link limited a flow, less the time for which it did not."


def section(run: Run) -> PageSection:
    """Return the section about the fabric: a picture and the busiest links.

    Args:
        run: Finished run that the page shows.
    """
    title, lead = "Fabric", "Load of the links. A link is busy while it sends; both directions count separately."
    if not run.network.has_links:
        why = f"Closed forms do not model links: with fidelity = {REFERENCE} this section shows the fabric"
        return PageSection("fabric", title, lead, [Paragraph(f"{why} and its load.")])
    parts: list[Part] = []
    try:
        parts.append(_plot(run, run.graph))
    except (ConfigError, TopologyError) as error:
        parts.append(Paragraph(f"The fabric cannot be drawn: {error}", is_warning=True))
    return PageSection("fabric", title, lead, [*parts, _table(run), *_limits(run)])


def _plot(run: Run, graph: Graph) -> Plot:
    """Return a picture of the fabric with the load of its links."""
    load = numpy_column(run.links["utilisation"], np.float64)
    marks = lay_out(graph, np.zeros(graph.nodes, np.int64), (load * 10**6).astype(np.int64))
    lines = marks.line.shape[1]
    of_line = np.zeros(lines)
    drawn_links = marks.of_link >= 0
    # several cables may share a line: the busiest one counts
    np.maximum.at(of_line, marks.of_link[drawn_links], load[drawn_links])
    drawn = figure()
    unused = np.flatnonzero(of_line == 0)
    if len(unused):
        _lines(drawn, marks, unused, "rgba(128,140,155,0.25)", "unused")
    # in none of the intervals, since these lines are drawn
    of_line[unused] = -1.0
    for low, high, colour in zip(_LOADS, _LOADS[1:], _COLOURS, strict=False):
        here = np.flatnonzero((of_line >= low) & (of_line < high))
        if len(here):
            _lines(drawn, marks, here, colour, f"{low:.0%} to {min(high, 1):.0%} busy")
    load_of_line = np.maximum(of_line, 0)
    chosen = np.argsort(-load_of_line, kind="stable")[:2000]
    ends = marks.line[:, chosen]
    names = [
        in_page(f"{mark_name(graph, marks, a)} — {mark_name(graph, marks, b)}: {load:.1%} busy")
        for a, b, load in zip(*ends.tolist(), load_of_line[chosen].tolist(), strict=True)
    ]
    x, y = (place[ends].mean(axis=0) for place in (marks.x, marks.y))
    drawn.add_scatter(
        x=x, y=y, mode="markers", marker={"opacity": 0, "size": 10}, text=names, hoverinfo="text", showlegend=False
    )
    _marks(drawn, graph, marks)
    drawn.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
    shown = f"{len(marks.part):,} marks" if len(marks.part) < graph.nodes else f"{graph.nodes:,} nodes"
    description = f"{shown} and {lines:,} lines; a line has the colour of the busier direction of its busiest cable."
    if lines == MAX_LINES:
        description += " Only the busiest lines are drawn."
    return Plot(f"{fabric_kind(graph.name)}, links by load", drawn, description, 560)


def _lines(figure: Plotly, marks: Marks, line_numbers: Int64, colour: str, name: str) -> None:
    """Add lines, int64[k] of those of `marks`, to a figure as a series of this name and colour."""
    x, y = (with_gaps(place[marks.line[:, line_numbers]]) for place in (marks.x, marks.y))
    look = {"color": colour, "width": 2.2 if len(line_numbers) < 400 else 1}
    add = figure.add_scatter if marks.line.shape[1] <= MAX_DRAWN_SHARP else figure.add_scattergl
    add(x=x, y=y, mode="lines", line=look, hoverinfo="skip", name=name)


def _marks(figure: Plotly, graph: Graph, marks: Marks) -> None:
    """Add the marks of NPUs and switches to a figure."""
    for is_switch, name, symbol, size in ((False, "NPU", "circle", 7), (True, "switch", "square", 11)):
        here = np.flatnonzero(marks.is_switch == is_switch)
        if not len(here):
            continue
        figure.add_scatter(
            x=marks.x[here],
            y=marks.y[here],
            mode="markers+text" if len(marks.part) <= MAX_NAMED else "markers",
            marker={"color": "#5a6675" if is_switch else "#7f93ab", "symbol": symbol, "size": size},
            # beside a switch there are no links; those to other tiers are above and below it
            text=[f"  {in_page(mark_name(graph, marks, mark))}" for mark in here.tolist()],
            textposition="middle right" if is_switch else "bottom center",
            textfont={"size": 10},
            cliponaxis=False,
            hoverinfo="text",
            name=name,
        )


def _table(run: Run) -> Table:
    """Return the table of the busiest links."""
    links, names = run.links, (run.links["src"].to_pylist(), run.links["dst"].to_pylist())
    numbers = {name: numpy_column(links[name]) for name in links.column_names if name not in {"src", "dst"}}
    table = busiest_links(numbers, lambda link: f"{names[0][link]} → {names[1][link]}", MAX_ROWS)
    why = {"longest queue": _BUFFER_WHY} if numbers["buffered_bytes"].any() else {}
    return from_terminal(table, f"All {len(links):,} are in links.parquet.", why)


def _limits(run: Run) -> list[Table]:
    """Return the table of the links that limited flows; [] if no link did."""
    if run.limits is None:
        return []
    ends = run.links["src"].to_pylist(), run.links["dst"].to_pylist()
    group_names = dict(zip(*(run.collectives[name].to_pylist() for name in ("group", "group_name")), strict=True))
    limits = {name: numpy_column(run.limits[name]) for name in run.limits.column_names}
    table = limits_table(limits, group_names, lambda link: f"{ends[0][link]} → {ends[1][link]}", MAX_ROWS)
    return [from_terminal(table, why={"mean time": _LIMITED_WHY})]
