"""Facts about a network for users."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Int64
from nadi.topologies.graph import NVSWITCH, Graph


def describe(graph: Graph) -> dict[str, object]:
    """Return facts about a network as JSON values.

    Keys: name, npus, dims, hosts, pods, routing ("table" or the dimensions), switches (by the word of their names),
    nodes, cables (without `passing_links`), links, rates_bps (cables by rate), min_delay_ps, max_delay_ps,
    diameter_hops (links of the longest shortest path between NPUs; measured from 1,024 of them if more differ in their
    switches), ecmp_width (maximum number of links among which a switch, or an NPU that carries transit, chooses),
    routing_bytes, bisection_bps, bisection_is_exact (False: an estimate), and for table routing tiers (cables and rate
    of each direction between NPUs and switches and from tier to tier) and oversubscription. `bisection_bps` is the rate
    of one direction over the cut of NPUs into two halves: under dimension routing over the smallest cut through the
    middle of a dimension; what the builder says, as of dragonflies, slim flies, HyperX and twisted tori; else half the
    rate of the narrowest tier outside servers, which is exact for fat trees and leaf-spine networks of full leaves.
    `oversubscription` maps each kind of switch that has links to a higher tier, by the word of its names, to the
    largest ratio of a switch's rate from below to its rate upwards.

    Args:
        graph: The network to describe.
    """
    routing = graph.routing
    is_npu = np.arange(graph.nodes) < graph.npus
    is_cable = ~passing_links(graph.link_src, graph.link_dst, is_npu, graph.node_kind == NVSWITCH)[::2]
    rates, cables_of_rate = np.unique(graph.link_rate_bps[::2][is_cable], return_counts=True)
    facts: dict[str, object] = {
        "name": graph.name,
        "npus": graph.npus,
        "dims": list(graph.dims),
        "hosts": len(np.unique(graph.host)),
        "pods": len(np.unique(graph.pod[graph.pod >= 0])),
        "routing": routing.stack or "table",
        "switches": dict(Counter(map(graph.node_word, range(graph.npus, graph.nodes)))),
        "nodes": graph.nodes,
        "cables": int(is_cable.sum()),
        "links": graph.links,
        "rates_bps": {str(rate): int(count) for rate, count in zip(rates, cables_of_rate, strict=True)},
        "min_delay_ps": int(graph.link_delay_ps.min(initial=2**62)) if graph.links else 0,
        "max_delay_ps": int(graph.link_delay_ps.max(initial=0)),
        "diameter_hops": routing.diameter(graph.npus),
        "ecmp_width": routing.ecmp_width(),
        "routing_bytes": sum(each.nbytes for each in vars(routing).values() if isinstance(each, np.ndarray)),
    }
    exact_bps = routing.bisection_bps(graph)
    if exact_bps is not None:
        return facts | {"bisection_bps": exact_bps, "bisection_is_exact": True}
    tiers = list(_tiers(graph))
    outside = [int(str(tier["rate_bps"])) for tier in tiers if not tier["in_server"]]
    bisection_bps, is_exact = graph.bisection or (min(outside, default=0) // 2, _is_tree_of_full_leaves(graph))
    bisection = {"bisection_bps": bisection_bps, "bisection_is_exact": is_exact}
    return facts | bisection | {"tiers": tiers, "oversubscription": _oversubscription(graph)}


def _is_tree_of_full_leaves(graph: Graph) -> bool:
    """Return whether all cables lead from one tier to the next, and leaves have equally many NPUs."""
    tier = tier_of_node(graph)
    is_flat = tier[graph.link_src] == tier[graph.link_dst]
    to_npu = (graph.link_dst < graph.npus) & (graph.node_kind[graph.link_src] != NVSWITCH)
    npus_of_leaf = np.bincount(graph.link_src[to_npu], minlength=graph.nodes)[graph.npus :]
    return not is_flat.any() and len(set(npus_of_leaf[npus_of_leaf > 0].tolist())) <= 1


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
        word = graph.node_word(int(switch))
        ratios[word] = max(ratios.get(word, 0.0), float(from_below_bps[switch] / upwards_bps[switch]))
    return ratios


def passing_links(
    src: npt.NDArray[np.integer],
    dst: npt.NDArray[np.integer],
    is_npu: npt.NDArray[np.bool_],
    is_nvswitch: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Return bool[links]: whether a link stands for what a server passes on between its NVSwitch and a switch.

    Where a GPU of the server has a NIC at that switch, packets take that NIC and its cable: there is no other one.

    Args:
        src: int[links], the sending node of each link.
        dst: int[links], the receiving node of each link.
        is_npu: bool[nodes], whether each node is an NPU.
        is_nvswitch: bool[nodes], whether each node is an NVSwitch.
    """
    key = np.where(is_nvswitch[src], src, dst).astype(np.int64) * len(is_npu) + np.where(is_nvswitch[src], dst, src)
    found = is_nvswitch[src] ^ is_nvswitch[dst]
    found &= ~is_npu[src] & ~is_npu[dst]
    if not found.any():
        return found
    own, nic = (np.flatnonzero(is_npu[src] & ~is_npu[dst] & (is_nvswitch[dst] == inside)) for inside in (True, False))
    own = own[np.argsort(src[own], kind="stable")]
    # of each NIC's switch and each NVSwitch of its NPU, a key
    first, last = (np.searchsorted(src[own], src[nic], side) for side in ("left", "right"))
    counts = last - first
    place = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
    shared = dst[own[place]].astype(np.int64) * len(is_npu) + np.repeat(dst[nic], counts)
    return found & np.isin(key, shared)


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
