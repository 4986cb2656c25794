"""A picture of a partition: nodes coloured by part, links between parts highlighted. Needs plotly, an extra."""

import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.errors import ConfigError, OutputError
from nadi.pages.series import style
from nadi.terminal.printing import in_page
from partition import Partition, Weights
from topologies import NVSWITCH, DimensionRouting, Graph

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

MOST_MARKS = 4000
MOST_LINES = 40_000
_FORMATS = (".html", ".png")
_FAINT_LINES = 1500  # the more lines, the fainter each
_NPU, _SWITCH = "circle", "square"


class Marks(NamedTuple):
    """What is drawn: m marks, each a node or several of one part, and lines between them.

    Attributes:
        of_node: int64[nodes], the mark of each node.
        part: int64[m].
        x, y: float64[m].
        is_switch: bool[m].
        nodes: int64[m], how many.
        first: int64[m], first node.
        line: int64[2, lines], marks at their ends; cut lines first, then those with most packets.
        cut_lines: how many of them are cut.
    """

    of_node: Int64
    part: Int64
    x: Float64
    y: Float64
    is_switch: NDArray[np.bool_]
    nodes: Int64
    first: Int64
    line: Int64
    cut_lines: int


def check_plot(path: Path) -> None:
    """Find out early that a plot cannot be made.

    Raises:
        ConfigError: another ending than .html or .png, or no plotly.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path}: found {path.suffix or 'no ending'!r}; expected a file .html or .png")
    if importlib.util.find_spec("plotly") is None:
        raise ConfigError(f"--plot {path}: plotly is not installed; expected pip install 'nadi[plot]'")


def write_plot(path: Path, graph: Graph, found: Partition, weights: Weights) -> None:
    """Draw a partition into a file; HTML stands alone.

    Raises:
        ConfigError: as `check_plot`; or PNG without kaleido and a browser.
        OutputError: the file cannot be written.
    """
    check_plot(path)
    drawn = figure(graph, found, weights)
    try:
        if path.suffix.lower() == ".html":
            drawn.write_html(path, include_plotlyjs=True)
        else:
            drawn.write_image(path, width=1600, height=900)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the plot to") from None
    except (ImportError, RuntimeError, ValueError) as error:  # whatever kaleido lacks
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--plot {path}: {reason}; expected pip install kaleido and a browser, or .html") from None


def figure(graph: Graph, found: Partition, weights: Weights) -> Any:  # noqa: ANN401 - plotly has no types
    """The picture as a plotly Figure."""
    from plotly import graph_objects as go

    marks = lay_out(graph, found, weights)
    events = np.bincount(marks.of_node, weights.node, minlength=len(marks.part))
    drawn = go.Figure()
    for name, lines, colour, width in (
        ("link inside a part", marks.line[:, marks.cut_lines :], "150,150,150", 0.6),
        ("cut link", marks.line[:, : marks.cut_lines], "220,30,30", 1.2),
    ):
        x, y = (_with_gaps(place[lines]) for place in (marks.x, marks.y))
        strength = min(0.6, max(0.05, _FAINT_LINES / (lines.shape[1] + 1)))
        thin = {"color": f"rgba({colour},{strength:.2f})", "width": width}
        drawn.add_trace(go.Scattergl(x=x, y=y, mode="lines", line=thin, hoverinfo="skip", name=name))
    for part in range(found.parts):
        here, look = np.flatnonzero(marks.part == part), style(part)
        drawn.add_trace(
            go.Scatter(
                x=marks.x[here],
                y=marks.y[here],
                mode="markers",
                name=f"part {part}",
                text=[
                    in_page(f"{_name(graph, marks, m)}, part {part}, {events[m]:,.0f} events") for m in here.tolist()
                ],
                hoverinfo="text",
                marker={
                    "color": look.colour,
                    "opacity": 1,
                    "size": np.where(marks.is_switch[here], 9, 6),
                    "symbol": np.where(marks.is_switch[here], _SWITCH + look.mark, _NPU + look.mark),
                },
            )
        )
    axis = {"visible": False}
    title = in_page(_title(graph, found, weights, marks))
    drawn.update_layout(title=title, xaxis=axis, yaxis=axis, plot_bgcolor="white")
    return drawn


def lay_out(graph: Graph, found: Partition, weights: Weights) -> Marks:
    """Place nodes; of large fabrics a server, or the NPUs of a switch, or more nodes of a part, are one mark."""
    tier = _tiers(graph)
    x, y = _grid(graph) if isinstance(graph.routing, DimensionRouting) else _tree(graph, tier)
    of_node = _merged(graph, found, tier)
    nodes = np.bincount(of_node)
    first = np.unique(of_node, return_index=True)[1]
    part = found.owner[first].astype(np.int64)
    ends = np.stack([of_node[graph.link_src], of_node[graph.link_dst]])
    ends = np.sort(ends, axis=0)
    between = np.flatnonzero(ends[0] != ends[1])
    key, number = np.unique(ends[0, between] * len(nodes) + ends[1, between], return_inverse=True)
    packets = np.bincount(number.reshape(-1), weights.link[between], minlength=len(key))
    line = np.stack(np.divmod(key, len(nodes)))
    is_cut = part[line[0]] != part[line[1]]
    order = np.lexsort((-packets, ~is_cut))[:MOST_LINES]
    return Marks(
        of_node,
        part,
        np.bincount(of_node, x) / nodes,
        np.bincount(of_node, y) / nodes,
        first >= graph.npus,
        nodes,
        first,
        line[:, order],
        int(is_cut[order].sum()),
    )


def _merged(graph: Graph, found: Partition, tier: Int64) -> Int64:
    """int64[nodes]: marks, at most MOST_MARKS and a few for each part and tier."""
    own = np.arange(graph.nodes)
    if graph.nodes <= MOST_MARKS:
        return own
    group = own.copy()
    if len(np.unique(graph.host)) < graph.npus:
        group[: graph.npus] = graph.host
    else:
        up = np.flatnonzero((graph.link_src < graph.npus) & (graph.link_dst >= graph.npus))[::-1]
        group[graph.link_src[up]] = graph.link_dst[up]  # the first switch is written last
    kinds = np.stack([tier, found.owner, group])
    marks = np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1)
    if marks.max() < MOST_MARKS:
        return _by_first_node(marks)
    share = -(-graph.nodes // MOST_MARKS)
    order = np.lexsort((own, found.owner, tier))
    place = np.empty(graph.nodes, np.int64)
    begins = np.flatnonzero((np.diff(tier[order], prepend=-2) != 0) | (np.diff(found.owner[order], prepend=-1) != 0))
    for begin, end in pairwise([*begins.tolist(), graph.nodes]):
        place[order[begin:end]] = np.arange(end - begin) // share
    return _by_first_node(np.unique(np.stack([tier, found.owner, place]), axis=1, return_inverse=True)[1].reshape(-1))


def _by_first_node(marks: Int64) -> Int64:
    """The same marks, numbered by their first node."""
    first = np.unique(marks, return_index=True)[1]
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[marks]


def _tiers(graph: Graph) -> Int64:
    """int64[nodes]: links to the nearest NPU; -1 for an NVSwitch, which is drawn below its NPUs."""
    tier = np.where(np.arange(graph.nodes) < graph.npus, 0, graph.nodes)
    while True:
        nearer = tier.copy()
        np.minimum.at(nearer, graph.link_dst, tier[graph.link_src] + 1)
        if np.array_equal(nearer, tier):
            return np.where(graph.node_kind == NVSWITCH, -1, tier)
        tier = nearer


def _tree(graph: Graph, tier: Int64) -> tuple[Float64, Float64]:
    """Tiers above each other, each spread over the width in the order of what is below; x, y float64[nodes]."""
    x = np.zeros(graph.nodes)
    x[: graph.npus] = (np.arange(graph.npus) + 0.5) / graph.npus
    for level in [-1, *range(1, int(tier.max()) + 1)]:
        here = np.flatnonzero(tier == level)
        below = tier[graph.link_src] == (0 if level < 0 else level - 1)
        src, dst = graph.link_src[below], graph.link_dst[below]
        middle = np.bincount(dst, x[src], minlength=graph.nodes) / np.maximum(
            np.bincount(dst, minlength=graph.nodes), 1
        )
        x[here[np.lexsort((here, np.round(middle[here], 9)))]] = (np.arange(len(here)) + 0.5) / max(len(here), 1)
    return x, tier.astype(np.float64)


def _grid(graph: Graph) -> tuple[Float64, Float64]:
    """One dimension around a circle; more as a grid, with the third and further ones as grids of grids."""
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


def _with_gaps(places: Float64) -> list[float | None]:
    """Lines as plotly wants them: both ends, and a gap; places: float64[2, lines]."""
    gap = np.full(places.shape[1], np.nan)
    return [None if np.isnan(place) else place for place in np.stack([*places, gap], axis=1).reshape(-1).tolist()]


def _name(graph: Graph, marks: Marks, mark: int) -> str:
    name = graph.node_name(int(marks.first[mark]))
    return name if marks.nodes[mark] == 1 else f"{name} and {marks.nodes[mark] - 1} more"


def _title(graph: Graph, found: Partition, weights: Weights, marks: Marks) -> str:
    cut = found.owner[graph.link_src] != found.owner[graph.link_dst]
    share = weights.link[cut].sum() / max(int(weights.link.sum()), 1)
    left_out = ", the busiest links only" if marks.line.shape[1] == MOST_LINES else ""
    return f"{graph.name}: {found.parts} parts by {found.method}, {share:.1%} of the packets cross{left_out}"
