"""Paths of packets, whatever the routing: the links of one path, and the lengths of many."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Int64
from nadi.topologies.graph import Graph, TopologyError

Choose = Callable[[Sequence[int]], int]


def route(graph: Graph, src: int, dst: int, choose: Choose = min) -> list[int]:
    """Return the links from NPU src to another NPU, dst, in order.

    Raises TopologyError: src or dst is no NPU, or they are equal.

    Args:
        graph: The network, whose routing has a path between the two NPUs.
        src: The number of the sending NPU.
        dst: The number of the receiving NPU.
        choose: A function that picks one link among equal-cost links, which it gets in ascending order.
    """
    for npu in (src, dst):
        if not 0 <= npu < graph.npus:
            raise TopologyError.at(graph.name, f"no npu {npu}", f"0 to {graph.npus - 1}")
    if src == dst:
        raise TopologyError.at(graph.name, f"route from npu {src} to itself", "two different NPUs")
    links: list[int] = []
    node = src
    while node != dst:
        if len(links) > graph.nodes:
            raise AssertionError(f"{graph.name}: packets from npu {src} to npu {dst} go in circles")
        links.append(choose(next_links(graph, node, dst)))
        node = int(graph.link_dst[links[-1]])
    return links


def next_links(graph: Graph, node: int, dst: int) -> list[int]:
    """Return the equal-cost links on which a packet at `node` may proceed towards NPU dst, ascending.

    Args:
        graph: The network in which packets travel.
        node: The number of the NPU or switch that has the packet.
        dst: The number of the NPU to which the packet travels.
    """
    return graph.routing.next_links(graph, node, dst)


def path_links(graph: Graph, src: npt.ArrayLike, dst: npt.ArrayLike) -> Int64:
    """Return int64[p]: number of links of the paths from NPUs src to NPUs dst, int[p] each; 0 from one to itself.

    Args:
        graph: The network in which packets travel.
        src: int[p], the NPUs at which the paths begin.
        dst: int[p], the NPUs at which the paths end.
    """
    begin, end = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    return np.where(begin == end, 0, graph.routing.path_links(begin, end))
