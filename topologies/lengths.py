"""Numbers of links between NPUs, for many pairs at once."""

import numpy as np
import numpy.typing as npt

from topologies.graph import RING, SINGLE, DimensionRouting, Graph, Int64, TableRouting


def path_links(graph: Graph, src: npt.ArrayLike, dst: npt.ArrayLike) -> Int64:
    """Return int64[p]: links of the paths from NPUs src to NPUs dst, int[p] each; 0 from an NPU to itself."""
    begin, end = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    if isinstance(graph.routing, DimensionRouting):
        links = _by_dimension(graph.routing, begin, end)
    else:
        links = _by_table(graph.routing, begin, end)
    return np.where(begin == end, 0, links)


def _by_table(routing: TableRouting, src: Int64, dst: Int64) -> Int64:
    """Return the links of the shortest path between any of their first switches, plus the link to each."""
    nearest = np.full(len(src), np.iinfo(np.int64).max)
    for out in range(routing.home.shape[1]):
        for into in range(routing.home.shape[1]):
            here, there = routing.home[src, out], routing.home[dst, into]
            known = (here >= 0) & (there >= 0)
            row = routing.row[routing.home_node[here[known]]]
            nearest[known] = np.minimum(nearest[known], 2 + routing.hops[row, there[known]].astype(np.int64))
    return nearest


def _by_dimension(routing: DimensionRouting, src: Int64, dst: Int64) -> Int64:
    """Return the links over all dimensions: the shorter way around, one link, or up to a switch and down."""
    links = np.zeros(len(src), np.int64)
    for d, size in enumerate(routing.sizes.tolist()):
        ahead = (routing.digit[dst, d].astype(np.int64) - routing.digit[src, d]) % size
        mode = routing.mode[0, d]
        across = np.minimum(ahead, size - ahead) if mode == RING else np.where(mode == SINGLE, 2, 1) * (ahead > 0)
        links += across
    return links
