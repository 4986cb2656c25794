"""Maps of a fabric: the layout of its nodes, the plot of a partition, and the section in the report of a run."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.inputs.arrays import Float64, Int64, Mask, numpy_column
from nadi.insight.runs import Run
from nadi.partition import Partition, TrafficWeights
from nadi.pdes.fidelity import REFERENCE
from nadi.reports import pages
from nadi.reports.text.network import busiest_links, limits_table
from nadi.terminal import in_page
from nadi.topologies import NVSWITCH, Graph, TopologyError, tier_of_node

MAX_MARKS = 4000  # Number of marks above which nodes are merged
MAX_LINES = 40_000  # Number of lines that are drawn


class Marks(NamedTuple):
    """m marks, each for one or several nodes of a part, and the lines between them."""

    of_node: Int64  # int64[nodes], mark of each node
    part: Int64  # int64[m], part of each mark
    x: Float64  # float64[m], coordinate to the right
    y: Float64  # float64[m], coordinate upwards
    is_switch: Mask  # bool[m], whether the mark's nodes are switches
    nodes: Int64  # int64[m], number of nodes per mark
    first: Int64  # int64[m], first node of each mark
    line: Int64  # int64[2, lines], marks at the ends of each line; cut lines first, then lines with most packets
    cut_lines: int  # Number of lines that are cut
    of_link: Int64  # int64[links], line of each link; -1 = not drawn


def lay_out(graph: Graph, part_of_node: NDArray[np.integer], load_of_link: NDArray[np.integer]) -> Marks:
    """Place the nodes; in large fabrics the nodes of a server, of a switch, or more nodes of a part share one mark.

    Args:
        graph: The fabric (`Graph`).
        part_of_node: int[nodes], the part of each node; nodes of different parts never share a mark.
        load_of_link: int[links], load that ranks lines if there are too many; lines between parts rank first.
    """
    # An NVSwitch is drawn below its NPUs
    tier = np.where(graph.node_kind == NVSWITCH, -1, tier_of_node(graph))
    x, y = _grid(graph) if graph.routing.npus_forward else _tree(graph, tier)
    of_node = _merged(graph, part_of_node, tier)
    nodes = np.bincount(of_node)
    first = np.unique(of_node, return_index=True)[1]
    part = part_of_node[first].astype(np.int64)
    ends = np.stack([of_node[graph.link_src], of_node[graph.link_dst]])
    # both directions of a cable are one line
    ends = np.sort(ends, axis=0)
    between = np.flatnonzero(ends[0] != ends[1])
    # links between the same two marks are one line, too
    key, number = np.unique(ends[0, between] * len(nodes) + ends[1, between], return_inverse=True)
    packets = np.bincount(number.reshape(-1), load_of_link[between], minlength=len(key))
    line = np.stack(np.divmod(key, len(nodes)))
    is_cut = part[line[0]] != part[line[1]]
    # cut lines first, then by load: they are what the picture is about
    order = np.lexsort((-packets, ~is_cut))[:MAX_LINES]
    place = np.full(len(key), -1)
    place[order] = np.arange(len(order))
    of_link = np.full(graph.links, -1)
    of_link[between] = place[number.reshape(-1)]
    mean_x, mean_y = (np.bincount(of_node, coordinates) / nodes for coordinates in (x, y))
    cut_lines = int(is_cut[order].sum())
    is_switch = first >= graph.npus
    return Marks(of_node, part, mean_x, mean_y, is_switch, nodes, first, line[:, order], cut_lines, of_link)


def _merged(graph: Graph, part_of_node: NDArray[np.integer], tier_of_node: Int64) -> Int64:
    """Return int64[nodes]: marks, at most MAX_MARKS plus a few per part and tier."""
    own = np.arange(graph.nodes)
    if graph.nodes <= MAX_MARKS:
        return own
    group = own.copy()
    if len(np.unique(graph.host)) < graph.npus:
        group[: graph.npus] = graph.host
    else:
        up = np.flatnonzero((graph.link_src < graph.npus) & (graph.link_dst >= graph.npus))[::-1]
        group[graph.link_src[up]] = graph.link_dst[up]  # the first switch is written last
    kinds = np.stack([tier_of_node, part_of_node, group])
    marks = np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1)
    if marks.max() < MAX_MARKS:
        return _by_first_node(marks)
    share = -(-graph.nodes // MAX_MARKS)
    order = np.lexsort((own, part_of_node, tier_of_node))
    place = np.empty(graph.nodes, np.int64)
    begins = np.flatnonzero(
        (np.diff(tier_of_node[order], prepend=-2) != 0) | (np.diff(part_of_node[order], prepend=-1) != 0)
    )
    for begin, end in pairwise([*begins.tolist(), graph.nodes]):
        place[order[begin:end]] = np.arange(end - begin) // share
    return _by_first_node(
        np.unique(np.stack([tier_of_node, part_of_node, place]), axis=1, return_inverse=True)[1].reshape(-1)
    )


def _by_first_node(marks: Int64) -> Int64:
    """Return the marks, renumbered by their first node."""
    first = np.unique(marks, return_index=True)[1]
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[marks]


def _tree(graph: Graph, tier_of_node: Int64) -> tuple[Float64, Float64]:
    """Return x, y, float64[nodes]: tiers above each other, each over the full width, in the order of the tier below."""
    x = np.zeros(graph.nodes)
    x[: graph.npus] = (np.arange(graph.npus) + 0.5) / graph.npus
    for level in [-1, *range(1, int(tier_of_node.max()) + 1)]:
        here = np.flatnonzero(tier_of_node == level)
        below = tier_of_node[graph.link_src] == (0 if level < 0 else level - 1)
        src, dst = graph.link_src[below], graph.link_dst[below]
        middle = np.bincount(dst, x[src], minlength=graph.nodes) / np.maximum(
            np.bincount(dst, minlength=graph.nodes), 1
        )
        x[here[np.lexsort((here, np.round(middle[here], 9)))]] = (np.arange(len(here)) + 0.5) / max(len(here), 1)
    return x, tier_of_node.astype(np.float64)


def _grid(graph: Graph) -> tuple[Float64, Float64]:
    """Return x, y: a circle for one dimension; else a grid, with the third and further dimensions as grids of grids."""
    npu = np.arange(graph.npus)
    x, y = np.zeros(graph.nodes), np.zeros(graph.nodes)
    if len(graph.dims) == 1:
        angle = 2 * np.pi * npu / graph.npus
        x[: graph.npus], y[: graph.npus] = np.sin(angle), np.cos(angle)
    else:
        stride, step = 1, [1.0, 1.0]
        for d, size in enumerate(graph.dims):
            place = (x, y)[d % 2]
            place[: graph.npus] += npu // stride % size * step[d % 2]
            stride, step[d % 2] = stride * size, step[d % 2] * (size + 1)
    up = np.flatnonzero((graph.link_src < graph.npus) & (graph.link_dst >= graph.npus))
    src, dst = graph.link_src[up], graph.link_dst[up]
    count = np.maximum(np.bincount(dst, minlength=graph.nodes), 1)[graph.npus :]
    for place, aside in ((x, 0.3), (y, 0.4)):
        place[graph.npus :] = np.bincount(dst, place[src], minlength=graph.nodes)[graph.npus :] / count + aside
    return x, y


def fabric_kind(name: str) -> str:
    """Return a fabric's name for a heading: without its parameters, if there are many."""
    return name.partition(":")[0] if name.count(",") > 1 else name


def with_gaps(ends: Float64) -> list[float | None]:
    """Return lines for plotly: both ends and a gap each; places: float64[2, lines]."""
    gap = np.full(ends.shape[1], np.nan)
    return [None if np.isnan(place) else place for place in np.stack([*ends, gap], axis=1).reshape(-1).tolist()]


def mark_name(graph: Graph, marks: Marks, mark: int) -> str:
    """Return the name of a mark's first node, and the number of its other nodes.

    Args:
        graph: The fabric (`Graph`).
        marks: Marks of the picture (`lay_out`).
        mark: Index of the mark.
    """
    name = graph.node_name(int(marks.first[mark]))
    return name if marks.nodes[mark] == 1 else f"{name} and {marks.nodes[mark] - 1} more"


_FORMATS = (".html", ".png")
_FAINT_LINES = 1500  # number of lines above which lines are drawn fainter
_NPU, _SWITCH = "circle", "square"


def check_plot(path: Path) -> None:
    """Check before the work whether a plot can be written: as .html or .png.

    Args:
        path: File to write.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path}: found {path.suffix or 'no ending'!r}; expected a file .html or .png")


def write_plot(path: Path, graph: Graph, partition: Partition, weights: TrafficWeights) -> None:
    """Write a picture of a partition; an HTML file needs no other files.

    Args:
        path: File to write.
        graph: The fabric (`Graph`).
        partition: Division of the fabric to draw.
        weights: Expected work of nodes and links.
    """
    check_plot(path)
    drawn = partition_figure(graph, partition, weights)
    try:
        if path.suffix.lower() == ".html":
            inputs.write_whole(path, _page(graph, partition, weights, drawn).html())
        else:
            inputs.write_whole(path, drawn.to_image(path.suffix[1:], width=1600, height=900))
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the plot to") from None
    except (ImportError, RuntimeError, ValueError) as error:  # whatever kaleido lacks
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--plot {path}: {reason}; expected pip install kaleido and a browser, or .html") from None


def partition_figure(graph: Graph, partition: Partition, weights: TrafficWeights) -> pages.Plotly:
    """Return the picture of a partition.

    Args:
        graph: The fabric (`Graph`).
        partition: Division of the fabric to draw.
        weights: Expected work of nodes and links.
    """
    marks = lay_out(graph, partition.owner, weights.link)
    events = np.bincount(marks.of_node, weights.node, minlength=len(marks.part))
    drawn = pages.empty_figure()
    for name, lines, colour, width in (
        ("link inside a part", marks.line[:, marks.cut_lines :], "150,150,150", 0.6),
        ("cut link", marks.line[:, : marks.cut_lines], "220,30,30", 1.2),
    ):
        x, y = (with_gaps(place[lines]) for place in (marks.x, marks.y))
        # many lines must be faint, or they cover everything
        strength = min(0.6, max(0.05, _FAINT_LINES / (lines.shape[1] + 1)))
        thin = {"color": f"rgba({colour},{strength:.2f})", "width": width}
        drawn.add_scattergl(x=x, y=y, mode="lines", line=thin, hoverinfo="skip", name=name)
    for part in range(partition.parts):
        own, look = np.flatnonzero(marks.part == part), pages.series_style(part)
        is_switch = marks.is_switch[own]
        symbols = np.where(is_switch, _SWITCH + look.mark, _NPU + look.mark)
        labels = (f"{mark_name(graph, marks, m)}, part {part}, {events[m]:,.0f} events" for m in own.tolist())
        drawn.add_scatter(
            x=marks.x[own],
            y=marks.y[own],
            mode="markers",
            name=f"part {part}",
            text=[in_page(label) for label in labels],
            hoverinfo="text",
            marker={"color": look.colour, "opacity": 1, "size": np.where(is_switch, 9, 6), "symbol": symbols},
        )
    left_out = ", the busiest links only" if marks.line.shape[1] == MAX_LINES else ""
    title = f"{_title(graph, partition)}, {_cut(graph, partition, weights)[1]:.1%} of the packets cross{left_out}"
    axis = {"visible": False}
    drawn.update_layout(title=in_page(title), xaxis=axis, yaxis=axis, plot_bgcolor="white", margin={"t": 100})
    return drawn


def _page(graph: Graph, partition: Partition, weights: TrafficWeights, picture: pages.Plotly) -> pages.Page:
    """Return the page with the picture of a partition."""
    links, share = _cut(graph, partition, weights)
    description = f"{links:,} of {graph.links:,} directions of cables are cut, which {share:.1%} of the packets cross."
    picture.update_layout(title=None, margin={"t": 10})
    lead = (
        "Each colour is a part, which one worker owns. Links between parts are red: packets on them cost an exchange."
    )
    plot = pages.Plot("the fabric by part", picture, description, 720)
    section = pages.PageSection("partition", "Parts", lead, [plot])
    return pages.Page(_title(graph, partition), "A partition of the fabric.", [section])


def _title(graph: Graph, found: Partition) -> str:
    return f"{graph.name}: {found.parts} parts by {found.method}"


def _cut(graph: Graph, partition: Partition, weights: TrafficWeights) -> tuple[int, float]:
    """Return the number of links between parts, and the share of all packets that cross them."""
    cut = partition.owner[graph.link_src] != partition.owner[graph.link_dst]
    return int(cut.sum()), weights.link[cut].sum() / max(int(weights.link.sum()), 1)


MAX_ROWS = 20
MAX_NAMED = 48
MAX_DRAWN_SHARP = 4000  # Number of lines above which plotly draws by WebGL instead of SVG, which every browser supports
_LOADS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.01)  # Limits of the intervals of utilisation that share a colour
# Colours of links by load, one per interval of _LOADS; far apart in hue and lightness
_COLOURS = ("#8496a2", "#4a90c4", "#2ca089", "#b49000", "#e46a30", "#d6202a")
# Explanation for runs with pauses, in which waiting times do not measure the queue
_BUFFER_WHY = "Maximum number of bytes of its port in a shared buffer; NPUs have no shared buffer."
_LIMITED_WHY = "Mean time for which the link limited a flow, less the time for which it did not."


def fabric_section(run: Run) -> pages.PageSection:
    """Return the section about the fabric: a picture and the busiest links.

    Args:
        run: Finished run that the page shows.
    """
    title, lead = "Fabric", "Load of the links. A link is busy while it sends; both directions count separately."
    if not run.network.has_links:
        why = f"Closed forms do not model links: with fidelity = {REFERENCE} this section shows the fabric"
        return pages.PageSection("fabric", title, lead, [pages.Paragraph(f"{why} and its load.")])
    parts: list[pages.Part] = []
    try:
        parts.append(_fabric_plot(run, run.graph))
    except (ConfigError, TopologyError) as error:
        parts.append(pages.Paragraph(f"The fabric cannot be drawn: {error}", is_warning=True))
    return pages.PageSection("fabric", title, lead, [*parts, _table(run), *_limits(run)])


def _fabric_plot(run: Run, graph: Graph) -> pages.Plot:
    """Return a picture of the fabric with the load of its links."""
    load = numpy_column(run.links["utilisation"], np.float64)
    marks = lay_out(graph, np.zeros(graph.nodes, np.int64), (load * 10**6).astype(np.int64))
    lines = marks.line.shape[1]
    of_line = np.zeros(lines)
    drawn_links = marks.of_link >= 0
    # several cables may share a line: the busiest one counts
    np.maximum.at(of_line, marks.of_link[drawn_links], load[drawn_links])
    drawn = pages.empty_figure()
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
    return pages.Plot(f"{fabric_kind(graph.name)}, links by load", drawn, description, 560)


def _lines(figure: pages.Plotly, marks: Marks, line_numbers: Int64, colour: str, name: str) -> None:
    """Add lines, int64[k] of those of `marks`, to a figure as a series of this name and colour."""
    x, y = (with_gaps(place[marks.line[:, line_numbers]]) for place in (marks.x, marks.y))
    look = {"color": colour, "width": 2.2 if len(line_numbers) < 400 else 1}
    add = figure.add_scatter if marks.line.shape[1] <= MAX_DRAWN_SHARP else figure.add_scattergl
    add(x=x, y=y, mode="lines", line=look, hoverinfo="skip", name=name)


def _marks(figure: pages.Plotly, graph: Graph, marks: Marks) -> None:
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


def _table(run: Run) -> pages.Table:
    """Return the table of the busiest links."""
    links, names = run.links, (run.links["src"].to_pylist(), run.links["dst"].to_pylist())
    numbers = {name: numpy_column(links[name]) for name in links.column_names if name not in {"src", "dst"}}
    table = busiest_links(numbers, lambda link: f"{names[0][link]} → {names[1][link]}", MAX_ROWS)
    why = {"longest queue": _BUFFER_WHY} if numbers["buffered_bytes"].any() else {}
    return pages.from_terminal(table, f"All {len(links):,} are in links.parquet.", why)


def _limits(run: Run) -> list[pages.Table]:
    """Return the table of the links that limited flows; [] if no link did."""
    if run.limits is None:
        return []
    ends = run.links["src"].to_pylist(), run.links["dst"].to_pylist()
    group_names = dict(zip(*(run.collectives[name].to_pylist() for name in ("group", "group_name")), strict=True))
    limits = {name: numpy_column(run.limits[name]) for name in run.limits.column_names}
    table = limits_table(limits, group_names, lambda link: f"{ends[0][link]} → {ends[1][link]}", MAX_ROWS)
    return [pages.from_terminal(table, why={"mean time": _LIMITED_WHY})]
