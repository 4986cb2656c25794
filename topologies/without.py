"""Routing around links that are down: the tables of the fabric that is left, with the same nodes and links."""

from collections.abc import Collection

import numpy as np

from topologies.errors import TopologyError
from topologies.graph import UNREACHABLE, Graph, Int32, TableRouting
from topologies.table_routing import PortSets, all_hops, next_sets


def routing_without(graph: Graph, links: Collection[int]) -> TableRouting:
    """Shortest paths without some links. Homes and their columns stay, so all tables have the same shape.

    What cannot be reached any more is sent where the whole fabric's tables would send it, so that it comes to a link
    that is down and is lost there, never in circles: such paths stand behind all others in `hops`, in the order of the
    whole fabric's hops. An NPU leaves the homes to which all its links are down, unless that is all of its homes.

    Args:
        graph: the whole fabric.
        links: numbers of links that are down; the reverse of each must be among them.

    Raises:
        TopologyError: the fabric is routed by dimensions, which go one way only; or a detour is too long.
    """
    whole = graph.routing
    if not isinstance(whole, TableRouting):
        raise TopologyError(f"{graph.name} is routed by dimensions, which have no way around a link that is down")
    up = np.ones(graph.links, bool)
    up[list(links)] = False
    between = np.flatnonzero(up & (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
    between = between[np.argsort(graph.link_src[between], kind="stable")]
    src, dst = graph.link_src[between] - graph.npus, graph.link_dst[between] - graph.npus
    sets = PortSets()
    sets.add(np.diff(whole.set_ptr), whole.set_link.astype(np.intp))
    hops = all_hops(graph.nodes - graph.npus, whole.home_node - graph.npus, src, dst)
    next_set = next_sets(hops, src, dst, between, sets)
    cut = (hops == UNREACHABLE) & (whole.hops < UNREACHABLE)
    if cut.any():
        last = UNREACHABLE - 1
        behind = last - int(whole.hops[whole.hops < UNREACHABLE].max())
        if int(hops[hops < UNREACHABLE].max()) >= behind:
            raise TopologyError(f"a detour of more than {behind} links between switches; expected a shorter one")
        hops[cut] = whole.hops[cut] + behind
        next_set[cut] = whole.next_set[cut]
    home, attach_set = _attached(whole, up, sets)
    set_ptr, set_link = sets.arrays()
    return TableRouting(whole.home_node, home, attach_set, whole.row, hops, next_set, set_ptr, set_link)


def _attached(whole: TableRouting, up: np.ndarray, sets: PortSets) -> tuple[Int32, Int32]:
    """Fields home and attach_set without what is down."""
    home, attach_set = whole.home.copy(), whole.attach_set.copy()
    set_of_link = np.repeat(np.arange(len(whole.set_ptr) - 1), np.diff(whole.set_ptr))
    touched = np.unique(set_of_link[~up[whole.set_link]])
    for npu in np.flatnonzero(np.isin(whole.attach_set, touched).any(axis=1)).tolist():
        slots = [slot for slot in range(home.shape[1]) if home[npu, slot] >= 0]
        left = {slot: _members(whole, int(attach_set[npu, slot]), up) for slot in slots}
        if not any(len(members) for members in left.values()):
            continue
        for slot, members in left.items():
            if len(members):
                attach_set[npu, slot] = sets.add(np.array([len(members)]), members)
            else:
                home[npu, slot] = attach_set[npu, slot] = -1
    return home, attach_set


def _members(whole: TableRouting, number: int, up: np.ndarray) -> np.ndarray:
    """Links of a port set that are up."""
    members = whole.set_link[whole.set_ptr[number] : whole.set_ptr[number + 1]].astype(np.intp)
    return members[up[members]]
