"""The reference for routing: the links that a packet may take, in plain Python.

The kernels of the engine follow the same rules; tests and closed forms use these functions.
"""

from collections.abc import Callable, Sequence

from topologies.errors import TopologyError
from topologies.graph import NONE, NVSWITCH, RING, UNREACHABLE, DimensionRouting, Graph, TableRouting
from topologies.graph import TABLE as TABLE_MODE

Choose = Callable[[Sequence[int]], int]


def route(graph: Graph, src: int, dst: int, choose: Choose = min) -> list[int]:
    """Return the links from NPU src to NPU dst, in order.

    Args:
        graph: Graph of the network.
        src: NPU that sends.
        dst: NPU that receives, another one.
        choose: Function that picks one of several equal-cost links, given in ascending order.

    Raises:
        TopologyError: src or dst is no NPU, or they are equal.
    """
    for npu in (src, dst):
        if not 0 <= npu < graph.npus:
            raise TopologyError(f"{graph.name}: no npu {npu}; expected 0 to {graph.npus - 1}")
    if src == dst:
        raise TopologyError(f"{graph.name}: route from npu {src} to itself; expected two different NPUs")
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


def _from_npu(graph: Graph, routing: TableRouting, node: int, dst: int) -> list[int]:
    hops = {int(link): _hops_to(routing, int(graph.link_dst[link]), dst) for link in graph.out_links(node)}
    nearest = min(hops.values())
    links = [link for link, distance in hops.items() if distance == nearest]
    inside = [link for link in links if graph.node_kind[graph.link_dst[link]] == NVSWITCH] if nearest == 0 else []
    return inside or links


def _hops_to(routing: TableRouting, switch: int, dst: int) -> int:
    """Return the number of links from a switch to the nearest home of dst."""
    row = routing.row[switch]
    return min((int(routing.hops[row, home]) for home in routing.home[dst] if home >= 0), default=UNREACHABLE)


def _from_switch(routing: TableRouting, switch: int, dst: int) -> list[int]:
    row, nearest = routing.row[switch], _hops_to(routing, switch, dst)
    links: set[int] = set()
    for home, attach_set in zip(routing.home[dst], routing.attach_set[dst], strict=True):
        if home >= 0 and routing.hops[row, home] == nearest:
            links.update(_links_of(routing, attach_set if nearest == 0 else routing.next_set[row, home]))
    return sorted(links)


def _by_dimension(routing: DimensionRouting, node: int, dst: int) -> list[int]:
    dimension = next(d for d in range(len(routing.sizes)) if routing.digit[node, d] != routing.digit[dst, d])
    mode, offset = routing.mode[node, dimension], routing.offset[node, dimension]
    if mode == NONE:
        raise AssertionError(f"node {node} cannot correct dimension {dimension} on the way to npu {dst}")
    if mode == RING:
        size = int(routing.sizes[dimension])
        ahead = int(routing.digit[dst, dimension] - routing.digit[node, dimension]) % size
        ways = [offset] * (2 * ahead <= size) + [offset + 1] * (2 * ahead >= size)
        return sorted({link for way in ways for link in _links_of(routing, routing.sets[way])})
    if mode == TABLE_MODE:
        offset += routing.digit[dst, dimension]
    return _links_of(routing, routing.sets[offset])


def _links_of(routing: TableRouting | DimensionRouting, port_set: int) -> list[int]:
    return [int(link) for link in routing.set_link[routing.set_ptr[port_set] : routing.set_ptr[port_set + 1]]]
