"""Layout of a fabric: tiers above each other, rings as circles, tori as grids; nodes of large fabrics are merged."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int64, Mask
from nadi.topologies import NVSWITCH, DimensionRouting, Graph, tier_of_node

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
    x, y = _grid(graph) if isinstance(graph.routing, DimensionRouting) else _tree(graph, tier)
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
