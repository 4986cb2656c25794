"""The reference for routing: the links that a packet may take, in plain Python, and the lengths of many paths.

The kernels of the engine follow the same rules; tests and closed forms use these functions.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nadi.topologies.errors import TopologyError
from nadi.topologies.graph import (
    NONE,
    NVSWITCH,
    RING,
    SINGLE,
    TABLE,
    UNREACHABLE,
    DimensionRouting,
    Graph,
    Int64,
    TableRouting,
)

Choose = Callable[[Sequence[int]], int]


def route(graph: Graph, src: int, dst: int, choose: Choose = min) -> list[int]:
    """Return the links from NPU src to another NPU, dst, in order; choose: picks one of several equal-cost links.

    The links to choose from are in ascending order. Raises TopologyError: src or dst is no NPU, or they are equal.
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

    Under TableRouting, an NPU takes the outgoing links with the smallest 1 + hops from the neighbouring switch to the
    nearest home of dst, only those to an NVSwitch if that is a home of dst; a switch takes the attach set if it is a
    home of dst, else the next sets of all nearest homes.
    Under DimensionRouting, the first dimension in which the digits differ decides.
    """
    if isinstance(graph.routing, DimensionRouting):
        return _by_dimension(graph.routing, node, dst)
    if node < graph.npus:
        return _from_npu(graph, graph.routing, node, dst)
    return _from_switch(graph.routing, node, dst)


def _from_npu(graph: Graph, routing: TableRouting, npu: int, dst: int) -> list[int]:
    """Return the links on which NPU `npu` may send a packet to NPU `dst`, ascending; see `next_links`."""
    hops = {int(link): _hops_to(routing, int(graph.link_dst[link]), dst) for link in graph.out_links(npu)}
    nearest = min(hops.values())
    links = [link for link, distance in hops.items() if distance == nearest]
    inside = [link for link in links if graph.node_kind[graph.link_dst[link]] == NVSWITCH] if nearest == 0 else []
    return inside or links


def _hops_to(routing: TableRouting, switch: int, dst: int) -> int:
    """Return the number of links from a switch to the nearest home of dst."""
    row = routing.row[switch]
    return min((int(routing.hops[row, home]) for home in routing.home[dst] if home >= 0), default=UNREACHABLE)


def _from_switch(routing: TableRouting, switch: int, dst: int) -> list[int]:
    """Return the links on which a switch may send a packet to NPU `dst`, ascending; see `next_links`."""
    row, nearest = routing.row[switch], _hops_to(routing, switch, dst)
    links: set[int] = set()
    for home, attach_set in zip(routing.home[dst], routing.attach_set[dst], strict=True):
        if home >= 0 and routing.hops[row, home] == nearest:
            links.update(_links_of(routing, attach_set if nearest == 0 else routing.next_set[row, home]))
    return sorted(links)


def _by_dimension(routing: DimensionRouting, node: int, dst: int) -> list[int]:
    """Return the links on which a node may send a packet to NPU `dst` under dimension routing; see `next_links`."""
    dimension = next(d for d in range(len(routing.sizes)) if routing.digit[node, d] != routing.digit[dst, d])
    mode, offset = routing.mode[node, dimension], routing.offset[node, dimension]
    if mode == NONE:
        raise AssertionError(f"node {node} cannot correct dimension {dimension} on the way to npu {dst}")
    if mode == RING:
        size = int(routing.sizes[dimension])
        ahead = int(routing.digit[dst, dimension] - routing.digit[node, dimension]) % size
        ways = [offset] * (2 * ahead <= size) + [offset + 1] * (2 * ahead >= size)
        return sorted({link for way in ways for link in _links_of(routing, routing.sets[way])})
    if mode == TABLE:
        offset += routing.digit[dst, dimension]
    return _links_of(routing, routing.sets[offset])


def _links_of(routing: TableRouting | DimensionRouting, port_set: int) -> list[int]:
    return [int(link) for link in routing.set_link[routing.set_ptr[port_set] : routing.set_ptr[port_set + 1]]]


def path_links(graph: Graph, src: npt.ArrayLike, dst: npt.ArrayLike) -> Int64:
    """Return int64[p]: number of links of the paths from NPUs src to NPUs dst, int[p] each; 0 from one to itself."""
    begin, end = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    if isinstance(graph.routing, DimensionRouting):
        links = _links_by_dimension(graph.routing, begin, end)
    else:
        links = _links_by_table(graph.routing, begin, end)
    return np.where(begin == end, 0, links)


def _links_by_table(routing: TableRouting, src: Int64, dst: Int64) -> Int64:
    """Return int64[p]: number of links of the shortest path between any switches of NPUs src and dst, and to them."""
    nearest = np.full(len(src), np.iinfo(np.int64).max)
    for out in range(routing.home.shape[1]):
        for into in range(routing.home.shape[1]):
            here, there = routing.home[src, out], routing.home[dst, into]
            known = (here >= 0) & (there >= 0)
            row = routing.row[routing.home_node[here[known]]]
            nearest[known] = np.minimum(nearest[known], 2 + routing.hops[row, there[known]].astype(np.int64))
    return nearest


def _links_by_dimension(routing: DimensionRouting, src: Int64, dst: Int64) -> Int64:
    """Return int64[p]: number of links from NPUs src to dst over all dimensions: around rings, one, or up and down."""
    links = np.zeros(len(src), np.int64)
    for d, size in enumerate(routing.sizes.tolist()):
        ahead = (routing.digit[dst, d].astype(np.int64) - routing.digit[src, d]) % size
        mode = routing.mode[0, d]
        across = np.minimum(ahead, size - ahead) if mode == RING else np.where(mode == SINGLE, 2, 1) * (ahead > 0)
        links += across
    return links
