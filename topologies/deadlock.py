"""Deadlocks of lossless networks: links whose packets wait for each other in a circle.

Where switches drop nothing, a packet on one link may wait for room behind the next link of its path. If such waits can
form a circle, the network can stop for ever (Dally and Seitz, "Deadlock-Free Message Routing in Multiprocessor
Interconnection Networks", IEEE Trans. Computers C-36, 1987): routing is free of deadlocks if its channel dependency
graph has no cycle. A channel is a link and a class of packets with room of its own (a virtual channel, a priority).
"""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.topologies.graph import Graph
from nadi.topologies.source_routes import SourceRoutes

MAX_ENTRIES = 1 << 25  # links times destinations up to which a check takes a few seconds
_MAX_PAIRS = 1 << 16  # nodes times NPUs, for networks whose NPUs forward packets, of which each path is followed


def dependency_cycle(
    graph: Graph,
    *,
    detours: bool = False,
    changes: int = 0,
    raises_detours: bool = False,
    classes: int = 1,
    down: Collection[int] = (),
) -> list[int] | None:
    """Return links whose packets may wait for each other in a circle, in order; None = none, or too large to check.

    Packets of pairs with source routes take these, too, if the network has some. The class of a packet begins at 0 and
    is one more, up to the last class, after each link that rises (`Routing.rising_links`), where a detour ends, and
    where a switch behind the first one changes the path.

    Args:
        graph: The network.
        detours: Whether packets go over other groups or switches first (pdes/network/detours).
        changes: The most times that switches of the source's group behind the first one change a packet's path, or
            without groups one next to the source's. All but the first change are from shortest paths to a detour.
        raises_detours: Whether the first switch raises the class of packets that it sends on a detour.
        classes: The number of classes of packets, each with room of its own at every link.
        down: Links that are down, which lose their packets.
    """
    used = _used_links(graph, MAX_ENTRIES // classes)
    if used is None:
        return None
    used[list(down)] = False
    packets = _Packets(graph, used, classes)
    found = [packets.dependencies(packets.first_legs(detours=detours, are_raised=raises_detours))]
    if changes:
        found += packets.changes(changes)
    if detours:
        found += [packets.dependencies(packets.second_legs()), packets.turns()]
    if graph.source_routes is not None:
        found += packets.listed(graph.source_routes.without(down))
    begin, end = (np.concatenate(of_all) for of_all in zip(*found, strict=True))
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


def _used_links(graph: Graph, most: int) -> NDArray[np.bool_] | None:
    """Return bool[links, destinations]: whether paths to a destination take a link; None if that is too large."""
    routing = graph.routing
    if not routing.npus_forward:
        return routing.used_links(graph, most)
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
        self._rises = graph.routing.rising_links(graph)
        self._homes = np.unique(graph.link_src[graph.link_dst < graph.npus])
        self._into = np.argsort(graph.link_dst, kind="stable")
        self._first = np.searchsorted(graph.link_dst[self._into], np.arange(graph.nodes + 1))
        # classes of links that end a detour, and of packets at nodes whose last path begins there
        self._ends = np.zeros((classes, graph.links), np.bool_)
        self._turned = np.zeros((classes, graph.nodes), np.bool_)

    def first_legs(self, *, detours: bool, are_raised: bool) -> NDArray[np.bool_]:
        """Return bool[classes, links, destinations] of packets from NPUs: to their destination, or a detour's home.

        detours: whether some take detours; are_raised: whether these begin in the second class.
        """
        begins = np.zeros((self._classes, self._graph.nodes, self._used.shape[1]), np.bool_)
        begins[0] = self._graph.routing.first_legs(self._graph, self._used.shape[1])
        if detours:
            # from any first switch to any home of a detour
            begins[min(int(are_raised), self._classes - 1), begins[0].any(axis=1)] = True
        on_link = self._spread(begins, ends=detours)
        self._still_first = (on_link[0] & ~self._on_last[0]).any(axis=1)
        return on_link

    def changes(self, count: int) -> list[tuple[Int64, Int64]]:
        """Return waits of packets whose path switches near the first one change, `count` times; after `first_legs`.

        They go straight to their destination from there, or over a home of a group to which the switch has a link.
        """
        found = []
        src, dst, npus = self._graph.link_src, self._graph.link_dst, self._graph.npus
        here, there = self._group[src], self._group[dst]
        is_alone: NDArray[np.bool_] = np.bincount(self._group[npus:] + 1)[here + 1] == 1
        is_near = (here == there) | (is_alone & np.isin(src, self._homes))
        came = np.flatnonzero(is_near & (src >= npus) & (dst >= npus) & self._still_first)
        for before in range(count):
            klass, after = min(before, self._classes - 1), min(before + 1, self._classes - 1)
            begins = np.zeros((self._classes, self._graph.nodes, self._used.shape[1]), np.bool_)
            for node in np.unique(dst[came]).tolist():
                ahead = self._group[dst[self._graph.out_links(node)]]
                begins[after, node] = np.isin(self._group[self._homes], ahead[ahead != self._group[node]])
            self._turned[after, dst[came]] = True
            waits = self._onward(came, klass)
            found += [self.dependencies(self._spread(begins, ends=True)), waits]
            # a shortest path goes on within the group before it is changed to a detour
            onto = np.unique(waits[1] // self._classes)
            came = onto[(here == there)[onto] & (dst >= npus)[onto]]
        return found

    def second_legs(self) -> NDArray[np.bool_]:
        """Return bool[classes, links, destinations] of packets on their last path; after `first_legs`, `changes`."""
        begins = np.repeat(self._turned[:, :, None], self._used.shape[1], axis=2)
        return self._spread(begins, ends=False)

    def _spread(self, at_node: NDArray[np.bool_], *, ends: bool) -> NDArray[np.bool_]:
        """Return where packets come that begin at nodes; ends: whether they end at the homes of detours."""
        src, dst = self._graph.link_src, self._graph.link_dst
        is_last = np.zeros_like(self._used)
        if ends:
            # a packet that enters the group of its home from another one has ended its detour
            is_last = dst[:, None] == self._homes
            enters = self._group[src] != self._group[dst]
            is_last |= enters[:, None] & (self._group[dst][:, None] == self._group[self._homes])
        while True:
            on_link = self._used & at_node[:, src]
            moved = on_link & ~is_last
            following = at_node.copy()
            for k in range(self._classes):
                for is_raised in (False, True):
                    links = np.flatnonzero(self._rises == is_raised)
                    np.logical_or.at(following[min(k + is_raised, self._classes - 1)], dst[links], moved[k, links])
            if (following == at_node).all():
                break
            at_node = following
        self._on_last = on_link & is_last
        ended = np.asarray(self._on_last.any(axis=2))
        self._ends |= ended
        for k in range(self._classes):
            self._turned[min(k + 1, self._classes - 1), dst[ended[k]]] = True
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
                    a = into[self._rises[into] == is_raised]
                    after = min(k + is_raised, self._classes - 1)
                    stays = (on_link[k, a] & ~last[k, a]).astype(np.float32)
                    # a float product of bits: sums of up to 2^24 ones are exact
                    which, onto = np.nonzero(stays @ on_link[after, out].astype(np.float32).T)
                    pairs.append(np.stack([a[which] * self._classes + k, out[onto] * self._classes + after]))
        found = np.concatenate(pairs, axis=1)
        return found[0], found[1]

    def turns(self) -> tuple[Int64, Int64]:
        """Return the channels that end a detour, and all that may follow them there; after all legs."""
        found = [self._onward(np.flatnonzero(ends), k) for k, ends in enumerate(self._ends)]
        begin, end = (np.concatenate(of_all) for of_all in zip(*found, strict=True))
        return begin, end

    def listed(self, routes: SourceRoutes) -> list[tuple[Int64, Int64]]:
        """Return waits of packets on source routes, and of those that come to one by the tables."""
        graph, last = self._graph, self._classes - 1
        pairs = [np.zeros((2, 0), np.int64)]

        def add(a: Int64, b: Int64, klass: int) -> None:
            for link in a.tolist():
                after = min(klass + int(self._rises[link]), last)
                pairs.append(np.stack([np.full(len(b), link * self._classes + klass), b * self._classes + after]))

        links = [each.astype(np.int64) for each in np.split(routes.set_link, routes.set_ptr[1:-1])]
        ends = np.diff(routes.hop_ptr)
        place, klass = routes.hop_ptr[:-1][ends > 1], np.zeros(int((ends > 1).sum()), np.int64)
        end = routes.hop_ptr[1:][ends > 1]
        while len(place):
            hops = np.stack([routes.hop_set[place], routes.hop_set[place + 1], klass])
            for a, b, k in np.unique(hops, axis=1).T.tolist():
                add(links[a], links[b], k)
            klass = np.minimum(klass + self._rises[routes.set_link[routes.set_ptr[hops[0]]]], last)
            place, klass, end = (each[place + 2 < end] for each in (place + 1, klass, end))
        for came, node, port_set in _joining(graph, routes):
            for k in range(self._classes):
                add(came[graph.link_dst[came] == node], links[port_set], k)
        found = np.concatenate(pairs, axis=1)
        return [(found[0], found[1])]

    def _onward(self, links: Int64, klass: int) -> tuple[Int64, Int64]:
        """Return the channels of links, and all that may follow them in the next class."""
        leads = np.asarray(self._used.any(axis=1))
        after = min(klass + 1, self._classes - 1)
        pairs = [np.zeros((2, 0), np.int64)]
        for link in links.tolist():
            out = self._graph.out_links(int(self._graph.link_dst[link])).astype(np.int64)
            out = out[leads[out] & (out != link ^ 1)]
            pairs.append(np.stack([np.full(len(out), link * self._classes + klass), out * self._classes + after]))
        found = np.concatenate(pairs, axis=1)
        return found[0], found[1]


def _joining(graph: Graph, routes: SourceRoutes) -> Iterator[tuple[Int64, int, int]]:
    """Yield links of the tables, a switch behind some of them, and the port set by which a source route goes on there.

    A packet comes to a source route on its way where none begins at its first switch, as on another plane.
    """
    if graph.routing.homes_per_npu == 1:
        return
    path, switch = routes.hops(graph.link_src)
    pairs, pair = np.unique(np.stack([routes.src, routes.dst]), axis=1, return_inverse=True)
    for number, (src, dst) in enumerate(pairs.T.tolist()):
        own = pair.reshape(-1)[path] == number
        begins = set(switch[routes.hop_ptr[:-1][pair.reshape(-1) == number]].tolist())
        ahead = [int(graph.link_dst[link]) for link in graph.routing.next_links(graph, src, dst)]
        ahead, came = [node for node in ahead if node not in begins], set[int]()
        while ahead:
            node = ahead.pop()
            new = set(graph.routing.next_links(graph, node, dst)) - came if node != dst else set[int]()
            came |= new
            ahead += graph.link_dst[list(new)].tolist()
        for node, port_set in set(zip(switch[own].tolist(), routes.hop_set[own].tolist(), strict=True)):
            yield np.array(sorted(came), np.int64), node, port_set


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
