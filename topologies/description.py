"""Facts about a network for users."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Int64
from nadi.topologies.dimension_routing import dimensions_of, format_dimensions
from nadi.topologies.graph import NVSWITCH, RING, SINGLE, UNREACHABLE, DimensionRouting, Graph, TableRouting

_ROWS = 64  # source rows per block, which bounds the memory of the diameter
_MAX_SOURCES = 1024  # NPUs from which the diameter is measured


def describe(graph: Graph) -> dict[str, object]:
    """Return facts about a network as JSON values.

    Keys: name, npus, dims, hosts, pods, routing ("table" or the dimensions), switches (by the word of their names),
    nodes, cables, links, rates_bps (cables by rate), min_delay_ps, max_delay_ps, diameter_hops (links of the longest
    shortest path between NPUs; measured from 1,024 of them if more differ in their switches), ecmp_width (maximum
    number of links among which a switch, or an NPU that carries transit, chooses), routing_bytes, bisection_bps, and
    for table routing tiers (cables and rate of each direction between NPUs and switches and from tier to tier) and
    oversubscription. `bisection_bps` is the rate of one direction over the cut of NPUs into two halves: under dimension
    routing over the smallest cut through the middle of a dimension, else half the rate of the narrowest tier outside
    servers, which is exact for fat trees and leaf-spine networks of full leaves and an estimate for other graphs.
    `oversubscription` maps each kind of switch that has links to a higher tier, by the word of its names, to the
    largest ratio of a switch's rate from below to its rate upwards.

    Args:
        graph: The network to describe.
    """
    routing = graph.routing
    rates, cables_of_rate = np.unique(graph.link_rate_bps[::2], return_counts=True)
    facts: dict[str, object] = {
        "name": graph.name,
        "npus": graph.npus,
        "dims": list(graph.dims),
        "hosts": len(np.unique(graph.host)),
        "pods": len(np.unique(graph.pod[graph.pod >= 0])),
        "routing": "table" if isinstance(routing, TableRouting) else format_dimensions(dimensions_of(routing)),
        "switches": dict(Counter(name.rpartition(" ")[0] or name for name in graph.switch_names)),
        "nodes": graph.nodes,
        "cables": graph.links // 2,
        "links": graph.links,
        "rates_bps": {str(rate): int(count) for rate, count in zip(rates, cables_of_rate, strict=True)},
        "min_delay_ps": int(graph.link_delay_ps.min(initial=2**62)) if graph.links else 0,
        "max_delay_ps": int(graph.link_delay_ps.max(initial=0)),
        "diameter_hops": _diameter(graph),
        "ecmp_width": _ecmp_width(graph),
        "routing_bytes": sum(array.nbytes for array in vars(routing).values()),
    }
    if isinstance(routing, DimensionRouting):
        return facts | {"bisection_bps": _dimension_bisection(graph, routing)}
    tiers = list(_tiers(graph))
    outside = [int(str(tier["rate_bps"])) for tier in tiers if not tier["in_server"]]
    bisection_bps = min(outside, default=0) // 2
    return facts | {"bisection_bps": bisection_bps, "tiers": tiers, "oversubscription": _oversubscription(graph)}


def _diameter(graph: Graph) -> int:
    """Return the number of links of the longest shortest path between NPUs (measured from at most _MAX_SOURCES)."""
    routing = graph.routing
    if isinstance(routing, DimensionRouting):
        links_of_kind = {"FullyConnected": 1, "Switch": 2}  # between the two farthest members
        return sum(links_of_kind.get(d.kind, d.size // 2) for d in dimensions_of(routing))
    if graph.npus == 1:
        return 0
    # NPUs with the same homes have the same distances: 10^5 NPUs of a fat tree are some thousand rows
    to_npu = np.unique(routing.home, axis=0)
    from_npu = to_npu[np.linspace(0, len(to_npu) - 1, min(len(to_npu), _MAX_SOURCES)).astype(int)]
    # a last row and column for unused homes (-1), from which nothing is near
    between = np.pad(routing.hops[routing.row[routing.home_node]], (0, 1), constant_values=UNREACHABLE)
    farthest = 0
    for begin in range(0, len(from_npu), _ROWS):
        hops = between[from_npu[begin : begin + _ROWS]].min(axis=1)
        farthest = max(farthest, int(np.min([hops[:, home] for home in to_npu.T], axis=0).max()))
    return farthest + 2


def _ecmp_width(graph: Graph) -> int:
    """Return the maximum number of equal-cost links among which a node of the network chooses."""
    routing = graph.routing
    sizes = np.diff(routing.set_ptr)
    if isinstance(routing, TableRouting):
        return int(sizes[routing.next_set[routing.next_set >= 0]].max(initial=1))
    even = (routing.sizes % 2 == 0) & (routing.sizes > 2)
    first = routing.offset[(routing.mode == RING) & even]
    # at half of an even ring both directions are equally long, and a node chooses among the links of both
    both = sizes[routing.sets[first]] + sizes[routing.sets[first + 1]]
    return int(max(sizes.max(initial=1), both.max(initial=1)))


def _dimension_bisection(graph: Graph, routing: DimensionRouting) -> int:
    """Return the minimum rate in bit/s of one direction from the lower to the upper half of a dimension."""
    cuts = []
    for d, size in enumerate(routing.sizes):
        lower = routing.digit[:, d] < size // 2
        if routing.mode[0, d] == SINGLE:
            # half of the NPUs of each switch are below the cut: what they can send is the sum of their links to it
            leaving = (routing.digit[graph.link_dst, d] == -1) & (routing.digit[graph.link_src, d] >= 0)
            cuts.append(int(graph.link_rate_bps[leaving & lower[graph.link_src]].sum()))
        else:
            # a node with digit -1 is a switch of dimension d itself; switches of other dimensions have a digit and no
            # links in d
            here = (routing.digit[:, d] >= 0)[graph.link_src] & (routing.digit[:, d] >= 0)[graph.link_dst]
            cuts.append(int(graph.link_rate_bps[here & lower[graph.link_src] & ~lower[graph.link_dst]].sum()))
    return min(cuts)


def _tiers(graph: Graph) -> Iterator[dict[str, object]]:
    """Yield the cables between NPUs and switches, then between switches of tier t and t + 1 (t links above an NPU)."""
    tier = tier_of_node(graph)
    up = np.flatnonzero(tier[graph.link_src] < tier[graph.link_dst])
    group = np.stack([tier[graph.link_src[up]], graph.node_kind[graph.link_dst[up]] == NVSWITCH], axis=1)
    for below, to_nvswitches in np.unique(group, axis=0):
        links = up[(group == (below, to_nvswitches)).all(axis=1)]
        yield {
            "tier": int(below),
            "to_nvswitches": bool(to_nvswitches),
            "in_server": bool(to_nvswitches and len(np.unique(graph.host)) > 1),
            "cables": len(links),
            "rate_bps": int(graph.link_rate_bps[links].sum()),
        }


def _oversubscription(graph: Graph) -> dict[str, float]:
    """Return the largest ratio of a switch's rates from below and upwards, by the first word of switches' names."""
    tier = tier_of_node(graph)
    # links within a tier, such as those of a forwarding server, are neither up nor down
    rising = tier[graph.link_src] < tier[graph.link_dst]
    from_below_bps = np.bincount(graph.link_dst[rising], graph.link_rate_bps[rising], minlength=graph.nodes)
    upwards_bps = np.bincount(graph.link_src[rising], graph.link_rate_bps[rising], minlength=graph.nodes)
    ratios: dict[str, float] = {}
    for switch in np.flatnonzero((from_below_bps > 0) & (upwards_bps > 0) & (np.arange(graph.nodes) >= graph.npus)):
        name = graph.node_name(int(switch))
        word = name.rpartition(" ")[0] or name
        ratios[word] = max(ratios.get(word, 0.0), float(from_below_bps[switch] / upwards_bps[switch]))
    return ratios


def links_to_npus(src: npt.NDArray[np.integer], dst: npt.NDArray[np.integer], is_npu: npt.NDArray[np.bool_]) -> Int64:
    """Return int64[nodes]: number of links between a node and the nearest NPU; 0 also if no NPU is connected to it.

    Args:
        src: int[links], the sending node of each link.
        dst: int[links], the receiving node of each link.
        is_npu: bool[nodes], whether each node is an NPU.
    """
    tier = np.where(is_npu, 0, -1)
    # breadth first, all nodes of a tier at once
    level = 0
    while True:
        reached = np.zeros(len(tier), np.bool_)
        reached[dst[tier[src] == level]] = True
        reached &= tier < 0
        if not reached.any():
            return np.maximum(tier, 0)
        level += 1
        tier[reached] = level


def tier_of_node(graph: Graph) -> Int64:
    """Return int64[nodes]: minimum number of links to an NPU.

    Args:
        graph: The network whose nodes are ranked.
    """
    return links_to_npus(graph.link_src, graph.link_dst, np.arange(graph.nodes) < graph.npus)
