"""Deadlocks of lossless networks: links whose packets wait for each other in a circle.

Where switches drop nothing, a packet on one link may wait for room behind the next link of its path. If such waits can
form a circle, the network can stop for ever (Dally and Seitz, "Deadlock-Free Message Routing in Multiprocessor
Interconnection Networks", IEEE Trans. Computers C-36, 1987): routing is free of deadlocks if its channel dependency
graph has no cycle. A channel is a link and a class of packets with room of its own (a virtual channel, a priority).
"""

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.topologies.graph import Graph

MAX_ENTRIES = 1 << 25  # links times destinations up to which a check takes a few seconds
_MAX_PAIRS = 1 << 16  # nodes times NPUs, for networks whose NPUs forward packets, of which each path is followed


def dependency_cycle(graph: Graph, *, detours: bool = False, classes: int = 1) -> list[int] | None:
    """Return links whose packets may wait for each other in a circle, in order; None = none, or too large to check.

    The class of a packet begins at 0 and is one more, up to the last class, after each link between two groups of
    switches and after the last link of a detour. A detour is decided at the first switch, or once on the way to the
    link between groups (rules valiant and par).

    Args:
        graph: The network.
        detours: Whether packets go over other groups or switches first (pdes/network/detours).
        classes: The number of classes of packets, each with room of its own at every link.
    """
    used = _used_links(graph)
    if used is None:
        return None
    packets = _Packets(graph, used, classes)
    begin, end = packets.dependencies(packets.first_legs(detours=detours))
    if detours:
        more = packets.dependencies(packets.second_legs())
        begin, end = (np.concatenate(both) for both in zip((begin, end), more, packets.turns(), strict=True))
    cycle = _cycle(begin, end, graph.links * classes)
    return None if cycle is None else [channel // classes for channel in cycle]


def circle_text(graph: Graph, links: list[int]) -> str:
    """Return a circle of links as its nodes: "leaf 0 -> spine 1 -> leaf 2 -> leaf 0".

    Args:
        graph: The network.
        links: The links, each of which begins where the one before ends.
    """
    nodes = [int(graph.link_src[link]) for link in links]
    return " -> ".join(graph.node_name(node) for node in [*nodes, nodes[0]])


def _used_links(graph: Graph) -> NDArray[np.bool_] | None:
    """Return bool[links, destinations]: whether paths to a destination take a link; None if that is too large."""
    routing = graph.routing
    if not routing.npus_forward:
        return routing.used_links(graph, MAX_ENTRIES)
    if graph.nodes * graph.npus > _MAX_PAIRS:
        return None
    used = np.zeros((graph.links, graph.npus), np.bool_)
    for dst in range(graph.npus):
        ahead, seen = [npu for npu in range(graph.npus) if npu != dst], {dst}
        while ahead:
            node = ahead.pop()
            if node not in seen:
                seen.add(node)
                links = routing.next_links(graph, node, dst)
                used[links, dst] = True
                ahead += graph.link_dst[links].tolist()
    return used


class _Packets:
    """Where packets of each class may be, by destination: bool[classes, nodes or links, destinations]."""

    def __init__(self, graph: Graph, used: NDArray[np.bool_], classes: int) -> None:
        self._graph, self._used, self._classes = graph, used, classes
        group = graph.group
        self._group = group if (group >= 0).any() else np.arange(graph.nodes)
        here, there = group[graph.link_src], group[graph.link_dst]
        self._is_global = (here >= 0) & (there >= 0) & (here != there)
        self._into = np.argsort(graph.link_dst, kind="stable")
        self._first = np.searchsorted(graph.link_dst[self._into], np.arange(graph.nodes + 1))
        # classes of packets that end a detour at a node
        self._turned = np.zeros((classes, graph.nodes), np.bool_)

    def first_legs(self, *, detours: bool) -> NDArray[np.bool_]:
        """Return bool[classes, links, destinations] of packets from NPUs: to their destination, or a detour's home."""
        begins = np.zeros((self._classes, self._graph.nodes, self._used.shape[1]), np.bool_)
        sources = np.unique(self._graph.link_dst[self._graph.link_src < self._graph.npus])
        begins[0, sources] = True
        begins[0, : self._graph.npus] = True
        return self._spread(begins, ends=detours)

    def second_legs(self) -> NDArray[np.bool_]:
        """Return bool[classes, links, destinations] of packets from the ends of detours on; after `first_legs`."""
        begins = np.repeat(self._turned[:, :, None], self._used.shape[1], axis=2)
        return self._spread(begins, ends=False)

    def _spread(self, at_node: NDArray[np.bool_], *, ends: bool) -> NDArray[np.bool_]:
        """Return where packets come that begin at nodes; ends: whether they end at the homes of detours."""
        src, dst = self._graph.link_src, self._graph.link_dst
        homes = np.unique(src[dst < self._graph.npus])
        self._on_last = np.zeros((self._classes, *self._used.shape), np.bool_)
        while True:
            on_link = self._used & at_node[:, src]
            if ends:
                # a packet that enters the group of its home from another one has ended its detour
                entered = self._is_global[:, None] & (self._group[dst][:, None] == self._group[homes])
                entered |= dst[:, None] == homes
                self._on_last = on_link & entered
            moved = on_link & ~self._on_last
            following = at_node.copy()
            for k in range(self._classes):
                for is_raised in (False, True):
                    links = np.flatnonzero(self._is_global == is_raised)
                    np.logical_or.at(following[min(k + is_raised, self._classes - 1)], dst[links], moved[k, links])
            if (following == at_node).all():
                break
            at_node = following
        if ends:
            self._ends = self._on_last
            for k in range(self._classes):
                self._turned[min(k + 1, self._classes - 1), dst[np.nonzero(self._on_last[k])[0]]] = True
        return on_link

    def dependencies(self, on_link: NDArray[np.bool_]) -> tuple[Int64, Int64]:
        """Return int64[d] twice: channels, and channels behind which their packets wait, of packets on links."""
        last = self._on_last
        pairs = []
        for node in range(self._graph.nodes):
            into = self._into[self._first[node] : self._first[node + 1]]
            out = self._graph.out_links(node).astype(np.int64)
            for k in range(self._classes):
                for is_raised in (False, True):
                    a = into[self._is_global[into] == is_raised]
                    after = min(k + is_raised, self._classes - 1)
                    stays = (on_link[k, a] & ~last[k, a]).astype(np.float32)
                    # a float product of bits: sums of up to 2^24 ones are exact
                    which, onto = np.nonzero(stays @ on_link[after, out].astype(np.float32).T)
                    pairs.append(np.stack([a[which] * self._classes + k, out[onto] * self._classes + after]))
        found = np.concatenate(pairs, axis=1)
        return found[0], found[1]

    def turns(self) -> tuple[Int64, Int64]:
        """Return the channels that end a detour, and all that may follow them there; after both legs."""
        pairs = []
        leads = np.asarray(self._used.any(axis=1))
        for k in range(self._classes):
            after = min(k + 1, self._classes - 1)
            for link in np.unique(np.nonzero(self._ends[k])[0]).tolist():
                out = self._graph.out_links(int(self._graph.link_dst[link])).astype(np.int64)
                out = out[leads[out] & (out != link ^ 1)]
                pairs.append(np.stack([np.full(len(out), link * self._classes + k), out * self._classes + after]))
        found = np.concatenate(pairs, axis=1)
        return found[0], found[1]


def _cycle(begin: Int64, end: Int64, nodes: int) -> list[int] | None:
    """Return the nodes of a cycle of a directed graph with edges from begin to end, int64[edges]; None without one."""
    left = np.ones(nodes, np.bool_)
    # what nothing leads to is in no cycle, so it goes, until nothing more does
    while True:
        kept = left[begin] & left[end]
        begin, end = begin[kept], end[kept]
        still = np.zeros(nodes, np.bool_)
        still[end] = True
        still &= left
        if (still == left).all():
            break
        left = still
    if not left.any():
        return None
    before: dict[int, int] = {}
    for a, b in zip(begin.tolist(), end.tolist(), strict=True):
        before.setdefault(b, a)
    node = int(np.flatnonzero(left)[0])
    place: dict[int, int] = {}
    walk: list[int] = []
    while node not in place:
        place[node] = len(walk)
        walk.append(node)
        node = before[node]
    return walk[place[node] :][::-1]
