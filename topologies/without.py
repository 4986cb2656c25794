"""Routing around links that are down: tables of the remaining fabric, with the same nodes and links."""

from collections.abc import Collection

import numpy as np

from topologies.errors import TopologyError
from topologies.graph import UNREACHABLE, Graph, Int32, TableRouting
from topologies.table_routing import PortSets, all_hops, next_sets


def routing_without(graph: Graph, links: Collection[int]) -> TableRouting:
    """Return shortest paths without some links. Homes and their columns stay, so all tables have the same shape.

    Packets without a path are sent as in the complete fabric's tables, so that they reach a link that is down and are
    lost there, never in loops: such paths follow all others in `hops`, in the order of the complete fabric's hops. An
    NPU loses the homes to which all its links are down, unless these are all of its homes.

    Args:
        graph: Graph of the complete fabric.
        links: Numbers of links that are down; the reverse of each must be among them.

    Raises:
        TopologyError: The fabric has dimension routing, which has only one path; or a detour is too long.
    """
    original = graph.routing
    if not isinstance(original, TableRouting):
        raise TopologyError(f"{graph.name} is routed by dimensions, which have no way around a link that is down")
    up = np.ones(graph.links, bool)
    up[list(links)] = False
    between = np.flatnonzero(up & (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
    between = between[np.argsort(graph.link_src[between], kind="stable")]
    src, dst = graph.link_src[between] - graph.npus, graph.link_dst[between] - graph.npus
    sets = PortSets()
    sets.add(np.diff(original.set_ptr), original.set_link.astype(np.intp))
    hops = all_hops(graph.nodes - graph.npus, original.home_node - graph.npus, src, dst)
    next_set = next_sets(hops, src, dst, between, sets)
    cut = (hops == UNREACHABLE) & (original.hops < UNREACHABLE)
    if cut.any():
        last = UNREACHABLE - 1
        behind = last - int(original.hops[original.hops < UNREACHABLE].max())
        if int(hops[hops < UNREACHABLE].max()) >= behind:
            raise TopologyError(f"a detour of more than {behind} links between switches; expected a shorter one")
        hops[cut] = original.hops[cut] + behind
        next_set[cut] = original.next_set[cut]
    home, attach_set = _attached(original, up, sets)
    set_ptr, set_link = sets.arrays()
    return TableRouting(original.home_node, home, attach_set, original.row, hops, next_set, set_ptr, set_link)


def _attached(original: TableRouting, up: np.ndarray, sets: PortSets) -> tuple[Int32, Int32]:
    """Return fields home and attach_set without links that are down."""
    home, attach_set = original.home.copy(), original.attach_set.copy()
    set_of_link = np.repeat(np.arange(len(original.set_ptr) - 1), np.diff(original.set_ptr))
    touched = np.unique(set_of_link[~up[original.set_link]])
    for npu in np.flatnonzero(np.isin(original.attach_set, touched).any(axis=1)).tolist():
        slots = [slot for slot in range(home.shape[1]) if home[npu, slot] >= 0]
        left = {slot: _members(original, int(attach_set[npu, slot]), up) for slot in slots}
        if not any(len(members) for members in left.values()):
            continue
        for slot, members in left.items():
            if len(members):
                attach_set[npu, slot] = sets.add(np.array([len(members)]), members)
            else:
                home[npu, slot] = attach_set[npu, slot] = -1
    return home, attach_set


def _members(original: TableRouting, number: int, up: np.ndarray) -> np.ndarray:
    """Return the links of a port set that are up."""
    members = original.set_link[original.set_ptr[number] : original.set_ptr[number + 1]].astype(np.intp)
    return members[up[members]]
