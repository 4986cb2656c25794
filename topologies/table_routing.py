"""Routing by tables: shortest paths over the switches, per first switch of the destination.

`next_links` is the reference in plain Python: the kernels of the engine follow the same rules; tests and closed forms
use it. Tables come from a breadth-first search over the switches, for all homes at once. `without` makes the tables of
the fabric that remains when links are down, with the same nodes and links.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Float64, Int8, Int32, Int64
from nadi.topologies.graph import NVSWITCH, UNREACHABLE, Graph, Routing, TopologyError
from nadi.topologies.table_loads import table_loads

_ROWS = 64  # source rows per block, which bounds the memory of the diameter
_MAX_SOURCES = 1024  # NPUs from which the diameter is measured
# maximum size of a group of which all distances count; of larger ones, those to the next member and from the first do
_MAX_ALL_DISTANCES = 32
_MAX_COMPARED = 1 << 24  # maximum number of comparisons per block in `_pattern`, which bounds its memory


@dataclass(frozen=True, eq=False)
class TableRouting(Routing):
    """Shortest paths over the switches, per *home* (a switch that has NPUs); NPUs never carry transit."""

    # A packet at a switch proceeds towards the nearest of its destination's homes; if several are equally near, the
    # links of all their port sets are equivalent. `next_links` is the reference.

    home_node: Int32  # int32[homes], node of each home, ascending
    home: Int32  # int32[npus, H], home columns of each NPU, ascending; -1 = unused
    attach_set: Int32  # int32[npus, H], port set of the links from that home to the NPU; -1 = unused
    row: Int32  # int32[nodes], row of each switch; -1 for NPUs
    hops: Int8  # int8[rows, homes], links from switch to home; 0 at home, `UNREACHABLE` if there is no path
    next_set: Int32  # int32[rows, homes], port set of all links on shortest paths; -1 at home or unreachable
    set_ptr: Int32  # int32[sets + 1], see `set_link`
    set_link: Int32  # int32[], set s holds the links set_link[set_ptr[s]:set_ptr[s + 1]], ascending
    cut_hops: int = UNREACHABLE  # entries of `hops` from which on links that are down leave no path

    goes_around: ClassVar[bool] = True

    @property
    def homes_per_npu(self) -> int:  # type: ignore[override]
        """Maximum number of first switches of an NPU."""
        return int(self.home.shape[1])

    def next_links(self, graph: Graph, node: int, dst: int) -> list[int]:
        """Return the links as described in `Routing`.

        An NPU takes the outgoing links with the smallest 1 + hops from the neighbouring switch to the nearest home of
        dst, only those to an NVSwitch if that is a home of dst; a switch takes the attach set if it is a home of dst,
        else the next sets of all nearest homes.

        Args:
            graph: The network in which packets travel.
            node: The number of the NPU or switch that has the packet.
            dst: The number of the NPU to which the packet travels.
        """
        return _from_npu(graph, self, node, dst) if node < graph.npus else _from_switch(self, node, dst)

    def path_links(self, src: Int64, dst: Int64) -> Int64:
        """Return int64[p]: number of links of the shortest path between any switches of both NPUs, and to them.

        Args:
            src: int64[p], the NPUs at which the paths begin.
            dst: int64[p], the NPUs at which the paths end.
        """
        # an NPU has few homes (NICs), so that the loop is short and each round handles all pairs
        nearest = np.full(len(src), np.iinfo(np.int64).max)
        for out in range(self.home.shape[1]):
            for into in range(self.home.shape[1]):
                here, there = self.home[src, out], self.home[dst, into]
                known = (here >= 0) & (there >= 0)
                row = self.row[self.home_node[here[known]]]
                # 2: the links from the source to its switch, and from the last switch to the destination
                nearest[known] = np.minimum(nearest[known], 2 + self.hops[row, there[known]].astype(np.int64))
        return nearest

    def longest_links(self) -> int:
        """Return the number of links of the longest path, links to NPUs included."""
        return int(self.hops[self.hops < UNREACHABLE].max(initial=0)) + 2

    def diameter(self, npus: int) -> int:
        """Return the number of links of the longest shortest path between NPUs, from at most _MAX_SOURCES of them.

        Args:
            npus: The number of NPUs, which are the first nodes.
        """
        if npus == 1:
            return 0
        # NPUs with the same homes have the same distances: 10^5 NPUs of a fat tree are some thousand rows
        to_npu = np.unique(self.home, axis=0)
        from_npu = to_npu[np.linspace(0, len(to_npu) - 1, min(len(to_npu), _MAX_SOURCES)).astype(int)]
        # a last row and column for unused homes (-1), from which nothing is near
        between = np.pad(self.hops[self.row[self.home_node]], (0, 1), constant_values=UNREACHABLE)
        farthest = 0
        for begin in range(0, len(from_npu), _ROWS):
            hops = between[from_npu[begin : begin + _ROWS]].min(axis=1)
            farthest = max(farthest, int(np.min([hops[:, home] for home in to_npu.T], axis=0).max()))
        return farthest + 2

    def ecmp_width(self) -> int:
        """Return the maximum number of equal-cost links among which a switch chooses."""
        return int(np.diff(self.set_ptr)[self.next_set[self.next_set >= 0]].max(initial=1))

    def loads(self, graph: Graph, src: Int64, dst: Int64, packets: Float64) -> Float64:
        """Return float64[links]: packets of each link, shared among the links that `next_links` allows.

        Args:
            graph: The network.
            src: int64[p], the sending NPU of each pair.
            dst: int64[p], the receiving NPU of each pair, another than `src`.
            packets: float64[p], packets of each pair.
        """
        return table_loads(graph, self, src, dst, packets)

    def certain_loads(
        self, graph: Graph, src: Int64, dst: Int64, amounts: Float64
    ) -> list[tuple[npt.NDArray[np.integer], Int64, Float64]]:
        """Return the sums of pairs at the ports that they must take: out of NPUs, and into them.

        Args:
            graph: The network.
            src: int64[p], the sending NPU of each pair.
            dst: int64[p], the receiving NPU of each pair.
            amounts: float64[k, p], k amounts of each pair; sums are float64[k, sets].
        """
        homes = self.homes_per_npu
        here, there = self.home[src], self.home[dst]
        row = self.row[self.home_node[here]]
        # int64[pairs, homes of src, homes of dst]; `first` and `last` are the only column by which shortest paths leave
        # and arrive. Pairs with a choice (-1) count at no port, which keeps a bound a bound.
        hops = self.hops[row[:, :, None], there[:, None, :]].astype(np.int64)
        hops[(here < 0)[:, :, None] | (there < 0)[:, None, :]] = np.iinfo(np.int64).max
        nearest = hops == hops.min(axis=(1, 2), keepdims=True)
        found: list[tuple[npt.NDArray[np.integer], Int64, Float64]] = []
        for ends, column, npu_end, switch_end in (
            (src, _only(nearest.any(axis=2)), graph.link_src, graph.link_dst),
            (dst, _only(nearest.any(axis=1)), graph.link_dst, graph.link_src),
        ):
            known = np.flatnonzero(column >= 0)
            sums = _summed(ends[known] * homes + column[known], amounts[:, known], graph.npus * homes)
            links = np.flatnonzero((npu_end < graph.npus) & (switch_end >= graph.npus))
            home = self.home_node[self.home[npu_end[links]]] == switch_end[links][:, None]
            place = (home & (self.home[npu_end[links]] >= 0)).argmax(axis=1)
            found.append((links, npu_end[links].astype(np.int64) * homes + place, sums))
        return found

    def group_places(self, graph: Graph) -> Callable[[Int64], list[Int64]]:
        """Return a function that describes which members share switches and their neighbours, and all distances.

        Args:
            graph: The network.
        """
        switches_of_npus = _switches_of_npus(graph)

        def places(groups: Int64) -> list[Int64]:
            parts = [_pattern(columns[groups]) for columns in switches_of_npus]
            homes = self.home[groups].astype(np.int64)  # g, n, H
            rows = self.row[self.home_node[np.maximum(homes, 0)]].astype(np.int64)
            if groups.shape[1] <= _MAX_ALL_DISTANCES:
                # int8[g, n, n, H]: from the k-th switch of each member to the k-th switch of every member
                hops = self.hops[rows[:, :, None], homes[:, None]]
            else:
                to_next = self.hops[rows, np.roll(homes, -1, axis=1)]
                from_first = self.hops[rows, np.repeat(homes[:, :1], groups.shape[1], axis=1)]
                hops = np.concatenate([to_next, from_first], axis=1)
            return [*parts, hops.reshape(len(groups), -1).astype(np.int64)]

        return places

    def without(self, graph: Graph, links: Collection[int]) -> "TableRouting":
        """Return shortest paths of the complete fabric without the given links and their reverse links.

        Homes and their columns stay, so all tables have the same shape. Packets without a path are sent as in the
        complete fabric's tables, so that they reach a link that is down and are lost there, never in loops: such paths
        follow all others in `hops`, in the order of the complete fabric's hops. An NPU loses the homes to which all its
        links are down, unless these are all of its homes. Raises TopologyError: a detour is too long.

        Args:
            graph: The complete network.
            links: Numbers of the links that are down.
        """
        up = np.ones(graph.links, bool)
        up[list(links)] = False
        between = np.flatnonzero(up & (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
        between = between[np.argsort(graph.link_src[between], kind="stable")]
        src, dst = graph.link_src[between] - graph.npus, graph.link_dst[between] - graph.npus
        # the old sets keep their numbers, so that rows of the old tables stay valid where a path is lost
        sets = PortSets()
        sets.add(np.diff(self.set_ptr), self.set_link.astype(np.intp))
        length = _lengths(graph.link_src[between], graph.link_dst[between], graph.group)
        distance = all_distances(graph.nodes - graph.npus, self.home_node - graph.npus, src, dst, length)
        next_set = next_sets(distance, src, dst, length, between, sets, graph.link_order)
        hops = _links_of_distance(distance, length)
        # pairs that the failure separates
        cut = (hops == UNREACHABLE) & (self.hops < UNREACHABLE)
        behind = UNREACHABLE
        if cut.any():
            behind = 1 + int(hops[hops < UNREACHABLE].max())  # above the hops of every path that is left
            if behind + int(self.hops[cut].max()) >= UNREACHABLE:
                raise TopologyError(f"a detour of {behind - 1} links between switches; expected a shorter one")
            hops[cut] = self.hops[cut] + behind
            next_set[cut] = self.next_set[cut]
        home, attach_set = _attached_without(self, up, sets)
        set_ptr, set_link = sets.arrays()
        return TableRouting(self.home_node, home, attach_set, self.row, hops, next_set, set_ptr, set_link, behind)

    def side_by_side(self, graph: Graph, npu: int, links: npt.NDArray[np.integer]) -> list[npt.NDArray[np.integer]]:
        """Return links of an NPU to ordinary switches, int[n], by those that are equally near to some other NPU.

        Args:
            graph: The network.
            npu: The number of the NPU.
            links: int[n], its links to ordinary switches.
        """
        if len(links) < 2:
            return [links]
        sets, counts, of_npu = self._home_sets
        others = sets[(np.arange(len(sets)) != of_npu[npu]) | (counts > 1)]
        far = np.full((len(links), 1), UNREACHABLE, np.int8)  # from home -1, which is none
        hops = np.append(self.hops[self.row[graph.link_dst[links]]], far, axis=1)[:, others].min(axis=2)
        is_nearest = (hops == hops.min(axis=0)) & (hops < UNREACHABLE)
        group = np.arange(len(links))
        for first in range(len(links)):
            beside = (is_nearest & is_nearest[first]).any(axis=1)
            if beside.any():
                # whole groups join: if 0 is beside 1, and 1 beside 2, all three share what the NPU sends
                group[np.isin(group, group[beside])] = group[beside].min()
        return [links[group == number] for number in np.unique(group)]

    @cached_property
    def _home_sets(self) -> tuple[Int32, Int64, Int64]:
        """The distinct homes of NPUs, int32[sets, homes], the NPUs of each, int64[sets], and the set of each NPU."""
        sets, of_npu, counts = np.unique(self.home, axis=0, return_inverse=True, return_counts=True)
        return sets, counts.astype(np.int64), of_npu.reshape(-1).astype(np.int64)

    def reaches(self, src: Int64, dst: Int64) -> npt.NDArray[np.bool_]:
        """Return bool[p]: whether a path leads from an NPU to another; none leads to the memory of another host.

        Args:
            src: int64[p], the first NPU of each pair.
            dst: int64[p], the other NPU of each pair.
        """
        # [p, H] homes of both NPUs, -1 unused; [p, H, H] hops between each two of them
        own, other = self.home[src], self.home[dst]
        row = self.row[self.home_node[own]]
        hops = self.hops[row[:, :, None], other[:, None, :]]
        is_used = (own >= 0)[:, :, None] & (other >= 0)[:, None, :]
        return np.asarray((is_used & (hops < UNREACHABLE)).any(axis=(1, 2)))

    def has_choice(self) -> bool:
        """Return whether some packet has several equal links, or an NPU several first switches."""
        return not (self.home.shape[1] == 1 and (np.diff(self.set_ptr) <= 1).all())

    def choosing_nodes(self, nodes: int) -> Int64:
        """Return int64[nodes]: 1 for nodes that may have several equal links to some NPU.

        Args:
            nodes: The number of nodes of the network.
        """
        # any node may have a choice, unless the tables of a switch show that it has none
        found = np.ones(nodes, np.int64)
        # the last entry is for sets of -1, which are none
        is_several = np.asarray(np.diff(self.set_ptr, append=self.set_ptr[-1]) > 1)
        switches = np.flatnonzero(self.row >= 0)
        found[switches] = np.asarray(is_several[self.next_set].any(axis=1))[self.row[switches]]
        found[self.home_node[self.home[is_several[self.attach_set]]]] = 1
        return found

    def leaves(self, graph: Graph) -> Int64:
        """Return int64[nodes], equal numbers for an NPU and its only first switch; others are alone.

        Args:
            graph: The network.
        """
        leaf = np.arange(graph.nodes)
        # an NPU with one first switch forms a set with it; one with several NICs is a set of its own
        alone = (self.home >= 0).sum(axis=1) == 1
        leaf[: graph.npus] = np.where(alone, self.home_node[self.home[:, 0]], leaf[: graph.npus])
        return leaf

    def classes_of(self, npus: Int64) -> Int64:
        """Return int64[n]: equal numbers for NPUs behind the same first switches.

        Args:
            npus: int64[n], numbers of NPUs.
        """
        return np.unique(self.home[npus], axis=0, return_inverse=True)[1].reshape(-1)

    def meets_at(self, src: Int64, dst: Int64, is_kind: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return bool[p]: whether one first switch of a kind joins both NPUs of a pair.

        Args:
            src: int64[p], the first NPU of each pair.
            dst: int64[p], the other NPU of each pair.
            is_kind: bool[nodes], whether each node is of that kind.
        """
        is_home_of_kind = np.logical_and(is_kind[self.home_node[self.home]], self.home >= 0)
        shares = np.zeros(len(src), np.bool_)
        # an NPU may have several homes: each one of the sender is compared with all of the receiver
        for column in range(self.home.shape[1]):
            meets = (self.home[src, column][:, None] == self.home[dst]).any(axis=1)
            shares |= meets & is_home_of_kind[src, column]
        return shares

    def used_links(self, graph: Graph, most: int) -> npt.NDArray[np.bool_] | None:
        """Return bool[links, homes]: whether shortest paths to a home take a link between switches; None = too many.

        Args:
            graph: The network.
            most: The maximum number of entries.
        """
        if graph.links * len(self.home_node) > most:
            return None
        used = np.zeros((graph.links, len(self.home_node)), np.bool_)
        row, home = np.nonzero(self.next_set >= 0)
        sets = self.next_set[row, home]
        sizes = np.diff(self.set_ptr)[sets]
        begins = np.cumsum(sizes) - sizes
        at = np.arange(sizes.sum()) + np.repeat(self.set_ptr[sets] - begins, sizes)
        used[self.set_link[at], np.repeat(home, sizes)] = True
        return used

    def first_legs(self, graph: Graph, destinations: int) -> npt.NDArray[np.bool_]:
        """Return bool[nodes, homes] as described in `Routing`.

        An NPU of several first switches sends to the one that is nearest to any home of the destination.

        Args:
            graph: The network.
            destinations: The number of homes.
        """
        if self.homes_per_npu == 1:
            return super().first_legs(graph, destinations)
        begins = np.zeros((graph.nodes, destinations), np.bool_)
        sets, counts, _ = self._home_sets
        # int16[homes + 1, homes + 1]: hops from home to home, and above all hops from and to home -1, which is none
        between = self.hops[self.row[self.home_node]].astype(np.int16)
        between = np.pad(between, ((0, 1), (0, 1)), constant_values=UNREACHABLE + 1)
        for number, own in enumerate(sets):
            others = sets[(np.arange(len(sets)) != number) | (counts > 1)]
            # [own homes, other sets, homes of these]
            hops = between[own[:, None, None], others]
            first, of_set, last = np.nonzero((hops == hops.min(axis=(0, 2), keepdims=True)) & (hops < UNREACHABLE))
            begins[self.home_node[own[first]], others[of_set, last]] = True
        return begins

    def common_switch(self, npus: Int64) -> tuple[int, Int64]:
        """Return the switch nearest to all NPUs, -1 = none, and int64[n], the first switch of each on its path.

        Args:
            npus: int64[n], numbers of NPUs.
        """
        homes = self.home[npus]
        # homes: int[n, H], the switches to which member m's NICs lead, as columns of the tables; -1 = fewer than H
        distinct, of_member = np.unique(homes, axis=0, return_inverse=True)
        # members with the same homes have the same distances: take each set of homes once, with their number
        distance = np.where(distinct >= 0, self.hops[:, distinct], UNREACHABLE)  # [rows, distinct, H]
        nearest = distance.min(axis=2).astype(np.int64)
        count = np.bincount(of_member.reshape(-1), minlength=len(distinct))
        farthest = nearest.max(axis=1)
        if farthest.min(initial=UNREACHABLE) >= UNREACHABLE:
            return -1, np.zeros(0, np.int64)
        # Among switches with the smallest largest distance, the smallest sum of distances wins
        # nearest: int64[rows, distinct], hops from each switch to each set of homes; times `count`, to all members
        total = np.where(farthest == farthest.min(), nearest @ count, np.iinfo(np.int64).max)
        best = np.flatnonzero(total == total.min())
        # Groups whose first members differ spread over equally good switches
        row = int(best[int(npus[0]) % len(best)])
        # The home of each member that is nearest to the root
        column = distinct[np.arange(len(distinct)), distance[row].argmin(axis=1)]
        homes = self.home_node[column[of_member.reshape(-1)]].astype(np.int64)
        return int(np.flatnonzero(self.row == row)[0]), homes

    def links_to_switch(self, node: int, home: int) -> Int32:
        """Return the links on which a switch sends towards another that has NPUs, int32[n].

        Args:
            node: The number of the switch.
            home: The number of the other switch.
        """
        ports = self.next_set[self.row[node], np.searchsorted(self.home_node, home)]
        return self.set_link[self.set_ptr[ports] : self.set_ptr[ports + 1]]


def _from_npu(graph: Graph, routing: TableRouting, npu: int, dst: int) -> list[int]:
    """Return the links on which NPU `npu` may send a packet to NPU `dst`, ascending; see `next_links`."""
    links_out = graph.out_links(npu)
    neighbours = graph.link_dst[links_out].tolist()
    to_switch = {switch: _hops_to(routing, switch, dst) for switch in set(neighbours)}  # parallel links count once
    hops = {link: to_switch[switch] for link, switch in zip(links_out.tolist(), neighbours, strict=True)}
    nearest = min(hops.values())
    links = [link for link, distance in hops.items() if distance == nearest]
    inside = [link for link in links if graph.node_kind[graph.link_dst[link]] == NVSWITCH] if nearest == 0 else []
    return inside or links


def _hops_to(routing: TableRouting, switch: int, dst: int) -> int:
    """Return the number of links from a switch to the nearest home of dst."""
    hops = routing.hops[routing.row[switch]]
    # lists and `item`, since arrays of a few numbers are slow to walk
    return min((hops.item(home) for home in routing.home[dst].tolist() if home >= 0), default=UNREACHABLE)


def _from_switch(routing: TableRouting, switch: int, dst: int) -> list[int]:
    """Return the links on which a switch may send a packet to NPU `dst`, ascending; see `next_links`."""
    row, nearest = routing.row[switch], _hops_to(routing, switch, dst)
    links: set[int] = set()
    for home, attach_set in zip(routing.home[dst].tolist(), routing.attach_set[dst].tolist(), strict=True):
        if home >= 0 and routing.hops[row, home] == nearest:
            links.update(_links_of(routing, attach_set if nearest == 0 else routing.next_set[row, home]))
    return sorted(links)


def _links_of(routing: TableRouting, port_set: int) -> list[int]:
    links: list[int] = routing.set_link[routing.set_ptr[port_set] : routing.set_ptr[port_set + 1]].tolist()
    return links


def _only(is_possible: npt.NDArray[np.bool_]) -> Int64:
    """Return int64[p], the column of the only True in each row of bool[p, columns]; -1 = several are True."""
    return np.where(is_possible.sum(axis=1) == 1, is_possible.argmax(axis=1), -1)


def _summed(set_of_pair: Int64, amounts: Float64, num_sets: int) -> Float64:
    """Return float64[k, num_sets], the sums of float64[k, pairs] by set."""
    return np.stack([np.bincount(set_of_pair, values, minlength=num_sets) for values in amounts])


def _switches_of_npus(graph: Graph) -> list[Int64]:
    """Return int64[npus, ports] arrays: the switch at each port, and numbers of that switch's neighbourhoods."""
    from_npu = np.flatnonzero(graph.link_src < graph.npus)
    owner = graph.link_src[from_npu].astype(np.int64)
    order = np.lexsort((from_npu, owner))
    owner, link = owner[order], from_npu[order]
    counts = np.bincount(owner, minlength=graph.npus)
    # index of each port on its NPU
    place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    switch = np.full((graph.npus, int(counts.max(initial=1))), -1, np.int64)
    switch[owner, place] = graph.link_dst[link]
    around = (np.where(switch >= 0, number[np.maximum(switch, 0)], -1) for number in _neighbour_sets(graph))
    return [switch, *around]


def _neighbour_sets(graph: Graph) -> list[Int64]:
    """Return int64[nodes], twice: numbers of the set of switches one link, and two links, away from each switch."""
    is_switch = np.arange(graph.nodes) >= graph.npus
    between = is_switch[graph.link_src] & is_switch[graph.link_dst]
    pairs = np.unique(np.stack([graph.link_src[between], graph.link_dst[between]], axis=1), axis=0)
    near: dict[int, set[int]] = {switch: set() for switch in range(graph.npus, graph.nodes)}
    for a, b in pairs.tolist():
        near[a].add(b)
    # switches two links away tell apart pods whose leaves look alike
    far = {a: set().union(*(near[b] for b in ends)) for a, ends in near.items()}
    columns = []
    for sets in (near, far):
        number: dict[frozenset[int], int] = {}
        column = np.full(graph.nodes, -1, np.int64)
        for switch, ends in sets.items():
            column[switch] = number.setdefault(frozenset(ends), len(number))
        columns.append(column)
    return columns


def _pattern(columns: Int64) -> Int64:
    """Return int64[g, n * ports], the index of the first equal entry of the group; columns: int64[g, n, ports]."""
    flat = columns.reshape(len(columns), -1)
    width = flat.shape[1]
    # comparing all pairs takes too much memory, so sort each row instead
    if width * width > _MAX_COMPARED // 64:
        return np.stack([_first_equal(row) for row in flat])
    pattern = np.empty_like(flat)
    step = max(1, _MAX_COMPARED // (width * width))
    for first in range(0, len(flat), step):
        block = flat[first : first + step]
        # argmax of the comparison is the first entry that is equal
        pattern[first : first + step] = (block[:, :, None] == block[:, None, :]).argmax(axis=2)
    return pattern


def _first_equal(row: Int64) -> Int64:
    """Return int64[n], the index of the first equal entry of int64[n]."""
    _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


_MAX_ENTRIES = 2**29
_MAX_HOPS = UNREACHABLE - 2
_BEHIND_ALL = np.iinfo(np.int8).max  # above all places of `Graph.link_order`


# Length of a link between groups, in links within groups: a path takes as few links between groups as it can, and then
# as few others. More than the links within groups of any path: a dragonfly's has two.
GLOBAL_LENGTH = 16


def build_table_routing(
    npus: int,
    nodes: int,
    link_src: Int32,
    link_dst: Int32,
    group: Int32 | None = None,
    link_order: Int8 | None = None,
    *,
    refuses_long: bool = True,
) -> TableRouting:
    """Return shortest paths by hop count, with all equal-cost links; a set includes parallel links.

    With groups, the shortest paths are among those with the fewest links between groups: in a dragonfly, a path over a
    third group may have fewer links in all, but takes twice the capacity between groups (Kim et al., ISCA 2008).
    NPUs are the nodes 0 .. npus-1 and carry no transit. With each link, its reverse is included. Raises TopologyError:
    two NPUs are linked directly, a path is too long, or the tables would not fit in memory.

    Args:
        npus: The number of NPUs.
        nodes: The number of NPUs and switches.
        link_src: int32[links], the sending node of each link.
        link_dst: int32[links], the receiving node of each link.
        group: int32[nodes], the group of each switch, -1 = none; None = no switch has one.
        link_order: int8[links], `Graph.link_order`.
        refuses_long: Whether a path that is too long for the tables is an error; if not, its ends have none.
    """
    _refuse_direct_links(npus, link_src, link_dst)
    # row of the table of each node: switch `npus + i` has row i, NPUs have none
    row = np.arange(-npus, nodes - npus, dtype=np.int32)
    row[:npus] = -1
    # the search goes link by link in order of the sending switch, so that its links are one run of the array
    between = np.flatnonzero((link_src >= npus) & (link_dst >= npus))
    between = between[np.argsort(link_src[between], kind="stable")]
    src, dst = link_src[between] - npus, link_dst[between] - npus

    # only switches with NPUs are destinations of the search: a column for every switch would square the table
    down = np.flatnonzero(link_dst < npus)
    home_node, attach_home = np.unique(link_src[down], return_inverse=True)
    rows = nodes - npus
    if rows * len(home_node) > _MAX_ENTRIES:
        raise TopologyError(
            f"a routing table of {rows} switches by {len(home_node)} first switches is too large; "
            f"expected at most {_MAX_ENTRIES} entries"
        )
    length = _lengths(link_src[between], link_dst[between], group)
    distance = all_distances(rows, home_node - npus, src, dst, length, refuses_long=refuses_long)
    sets = PortSets()
    home, attach_set = _attach(npus, link_dst[down], attach_home, down, sets)
    next_set = next_sets(distance, src, dst, length, between, sets, link_order)
    hops = _links_of_distance(distance, length)
    set_ptr, set_link = sets.arrays()
    return TableRouting(home_node.astype(np.int32), home, attach_set, row, hops, next_set, set_ptr, set_link)


def refuse_parts(name: str, npus: int, routing: Routing) -> None:
    """Raise TopologyError if no path connects some two NPUs of a network that is routed by tables.

    Args:
        name: The name of the network, with which the error begins.
        npus: The number of NPUs, which are the first nodes.
        routing: The routing of the network.
    """
    pair = unreachable_pair(npus, routing) if isinstance(routing, TableRouting) else None
    if pair:
        raise TopologyError(
            f"{name}: no path of switches from npu {pair[0]} to npu {pair[1]}; "
            "expected a connected network, as NPUs carry no transit"
        )


def unreachable_pair(npus: int, routing: TableRouting) -> tuple[int, int] | None:
    """Return the first two NPUs that no path of switches connects, or None.

    Args:
        npus: The number of NPUs, which are the first nodes.
        routing: The tables of the network.
    """
    if npus == 1:
        return None
    # one column per connected part: all homes of a part have the same first home that they reach
    joined_homes = routing.hops[routing.row[routing.home_node]] < UNREACHABLE
    # the last entry answers for unused homes, whose number is -1
    component = np.append(joined_homes.argmax(axis=1), -1)
    of_npu = np.sort(component[routing.home], axis=1)
    # NPUs in the same parts are alike, so that pairs of kinds replace pairs of NPUs, of which there may be 10^11
    kinds, first = np.unique(of_npu, axis=0, return_index=True)
    if any(c >= 0 and (kinds == c).any(axis=1).all() for c in kinds[0]):
        return None
    for kind, npu in zip(kinds, first, strict=True):
        joined = np.isin(kinds, kind[kind >= 0]).any(axis=1)
        if not joined.all():
            a, b = sorted((int(npu), int(first[np.argmin(joined)])))
            return a, b
    return None


def _refuse_direct_links(npus: int, link_src: Int32, link_dst: Int32) -> None:
    """Raise TopologyError if a link, from int32[links] to int32[links], joins two NPUs."""
    direct = np.flatnonzero((link_src < npus) & (link_dst < npus))
    if len(direct):
        a, b = link_src[direct[0]], link_dst[direct[0]]
        raise TopologyError(
            f"npu {a} and npu {b} are linked directly; expected a switch between them, as NPUs carry no transit "
            "(only ring, fully-connected, torus and stack link NPUs directly)"
        )


def _lengths(src: Int32, dst: Int32, group: Int32 | None) -> Int64:
    """Return int64[links]: GLOBAL_LENGTH for links between switches of two groups, 1 for others."""
    if group is None:
        return np.ones(len(src), np.int64)
    is_global = (group[src] >= 0) & (group[dst] >= 0) & (group[src] != group[dst])
    return np.where(is_global, GLOBAL_LENGTH, 1)


def _links_of_distance(distance: Int8, length: Int64) -> Int8:
    """Return int8[switches, homes]: numbers of links from distances; length: int64[links] of links between switches."""
    if length.max(initial=1) == 1:
        return distance
    links = distance // GLOBAL_LENGTH + distance % GLOBAL_LENGTH
    return np.where(distance == UNREACHABLE, UNREACHABLE, links).astype(np.int8)


def all_distances(
    switches: int, home_row: Int32, src: Int32, dst: Int32, length: Int64, *, refuses_long: bool = True
) -> Int8:
    """Return int8[switches, homes]: distances from every switch to every home.

    The homes that reach a switch are a row
    of bits, so that one level of all searches is one pass over the links.

    Args:
        switches: The number of switches.
        home_row: int32[homes], the switches that have NPUs, counted from the first switch.
        src: int32[links], the sending switch of each link between switches, ascending.
        dst: int32[links], the receiving switch of each link.
        length: int64[links], the length of each link, 1 or GLOBAL_LENGTH.
        refuses_long: Whether to raise TopologyError for a path longer than int8 can say; if not, it is UNREACHABLE.
    """
    homes = len(home_row)
    bits = np.zeros((switches, -(-homes // 64) * 8), np.uint8)
    columns = np.arange(homes)
    # bit 7 of a byte is its first column, as np.unpackbits reads them; searches take eight bytes at once
    np.bitwise_or.at(bits, (home_row, columns // 8), (128 >> (columns % 8)).astype(np.uint8))
    seen = bits.view(np.uint64)
    distance = np.full((switches, homes), UNREACHABLE, np.int8)
    distance[home_row, columns] = 0
    if not len(src):
        return distance
    # links by length; begin of each switch's run of links, for reduceat, which combines a run at once
    kinds = [(int(kind), src[length == kind], dst[length == kind]) for kind in np.unique(length)]
    runs = [(kind, a[first := np.flatnonzero(np.diff(a, prepend=-1))], b, first) for kind, a, b in kinds]
    # what each of the last levels reached first: a longer link leads on from an earlier one
    frontiers = {0: seen.copy()}
    last = 0
    for level in range(1, UNREACHABLE + 1):
        reached = np.zeros_like(seen)
        for kind, owner, ends, first in runs:
            if level - kind in frontiers:
                reached[owner] |= np.bitwise_or.reduceat(frontiers[level - kind][ends], first, axis=0)
        frontier = reached & ~seen
        frontiers.pop(level - runs[-1][0], None)
        if frontier.any():
            last = level
            frontiers[level] = frontier
        elif level - last >= runs[-1][0]:
            return distance
        else:
            continue
        if level > _MAX_HOPS:
            break
        # one assignment per level writes all pairs at that distance; a queue per home would be a Python loop
        seen |= frontier
        distance[np.unpackbits(frontier.view(np.uint8), axis=1, count=homes).view(bool)] = level
    if not refuses_long:
        return distance
    raise TopologyError(f"a path of more than {_MAX_HOPS} links between switches; expected a shorter one")


class PortSets:
    """A list of port sets under construction; sets are numbered in the order of their addition."""

    def __init__(self) -> None:
        """Begin without sets."""
        self.count = 0
        self._sizes: list[npt.NDArray[np.intp]] = []
        self._links: list[npt.NDArray[np.intp]] = []

    def add(self, sizes: npt.NDArray[np.intp], links: npt.NDArray[np.intp]) -> int:
        """Add sets of `sizes` links each, whose links are concatenated; return the number of the first set.

        Args:
            sizes: int[sets], the number of links of each set.
            links: int[], the links of all sets, concatenated.
        """
        first = self.count
        self.count += len(sizes)
        self._sizes.append(sizes)
        self._links.append(links)
        return first

    def arrays(self) -> tuple[Int32, Int32]:
        """Return set_ptr and set_link."""
        set_ptr = np.zeros(self.count + 1, np.int32)
        np.cumsum(np.concatenate(self._sizes), out=set_ptr[1:])
        return set_ptr, np.concatenate(self._links).astype(np.int32)


def _attach(
    npus: int, npu: Int32, column: npt.NDArray[np.intp], link: npt.NDArray[np.intp], sets: PortSets
) -> tuple[Int32, Int32]:
    """Return fields home and attach_set, int32[npus, H] each, and add to `sets` the port sets from homes to NPUs."""
    # npu, column, link: NPU, column of the home and number of each link from a home to an NPU.
    # by NPU, then home, then link: parallel links to one home become one set, in ascending order
    order = np.lexsort((link, column, npu))
    key = np.stack([npu[order], column[order]])
    first = np.flatnonzero((np.diff(key, axis=1, prepend=-1) != 0).any(axis=0))
    number = sets.add(np.diff(first, append=len(order)), link[order])
    owner, home_column = key[:, first]
    # place among the homes of the same NPU, since `owner` is sorted
    slot = np.arange(len(first)) - np.searchsorted(owner, owner)
    width = int(slot.max(initial=0)) + 1
    home = np.full((npus, width), -1, np.int32)
    attach_set = np.full((npus, width), -1, np.int32)
    home[owner, slot] = home_column
    attach_set[owner, slot] = number + np.arange(len(first))
    return home, attach_set


def next_sets(
    distance: Int8,
    src: Int32,
    dst: Int32,
    length: Int64,
    link: npt.NDArray[np.intp],
    sets: PortSets,
    link_order: Int8 | None = None,
) -> Int32:
    """Return int32[switches, homes]: the set of links that lead nearer to the home; a switch's equal sets are one.

    Args:
        distance: int8[switches, homes], distance from each switch to each home.
        src: int32[links], the sending switch of each link between switches, ascending.
        dst: int32[links], the receiving switch of each link.
        length: int64[links], the length of each link.
        link: int[links], the number of each of these links in the network.
        sets: The list to which the new port sets are added.
        link_order: int8[links of the network], `Graph.link_order`: of links that lead nearer, the first count.
    """
    next_set = np.full(distance.shape, -1, np.int32)
    bounds = np.searchsorted(src, np.arange(len(distance) + 1))
    for row, low, high in zip(range(len(distance)), bounds[:-1], bounds[1:], strict=True):
        if low == high:
            continue
        # only homes that the switch reaches: those of its plane, if several planes have nothing in common
        reached = np.flatnonzero(distance[row] < UNREACHABLE)
        # bool[links of the switch, reached homes]: whether the link's end is nearer to the home by the link's length.
        # int16, as UNREACHABLE less a length may be a distance.
        after = distance[np.ix_(dst[low:high], reached)] + length[low:high, None].astype(np.int16)
        nearer = after == distance[row, reached]
        if link_order is not None:
            place = np.where(nearer, link_order[link[low:high], None], _BEHIND_ALL)
            nearer &= place == place.min(axis=0)
        # homes behind the same links share one set: a leaf of a fat tree has two, whatever the number of homes
        patterns, pattern_of = _distinct_columns(nearer)
        sizes = patterns.sum(axis=0)
        used = np.flatnonzero(sizes)
        # patterns: bool[links of the switch, sets]. The stable sort by set keeps a set's links in ascending order.
        port, member = np.nonzero(patterns[:, used])
        number = np.full(len(sizes), -1, np.int32)
        number[used] = np.arange(len(used)) + sets.add(
            sizes[used], link[low:high][port[np.argsort(member, kind="stable")]]
        )
        next_set[row, reached] = number[pattern_of]
    return next_set


def _distinct_columns(bits: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], Int64]:
    """Return the distinct columns of a matrix of bits, and the index of each column among them."""
    # columns as words of 64 bits: np.unique compares a word at a time, and sorts a single one without a record type
    packed = np.packbits(bits, axis=0).T
    padded = np.zeros((packed.shape[0], -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    words = padded.view(np.uint64)
    if words.shape[1] == 1:
        _, first, inverse = np.unique(words[:, 0], return_index=True, return_inverse=True)
    else:
        _, first, inverse = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return bits[:, first], inverse.reshape(-1)


def _attached_without(original: TableRouting, is_up: np.ndarray, sets: PortSets) -> tuple[Int32, Int32]:
    """Return fields home and attach_set of the original routing without links that are down."""
    home, attach_set = original.home.copy(), original.attach_set.copy()
    set_of_link = np.repeat(np.arange(len(original.set_ptr) - 1), np.diff(original.set_ptr))
    # few NPUs have a link that is down, so that a loop over them is short
    touched = np.unique(set_of_link[~is_up[original.set_link]])
    for npu in np.flatnonzero(np.isin(original.attach_set, touched).any(axis=1)).tolist():
        slots = [slot for slot in range(home.shape[1]) if home[npu, slot] >= 0]
        left = {slot: _links_up(original, int(attach_set[npu, slot]), is_up) for slot in slots}
        if not any(len(members) for members in left.values()):
            continue
        for slot, members in left.items():
            if len(members):
                attach_set[npu, slot] = sets.add(np.array([len(members)]), members)
            else:
                home[npu, slot] = attach_set[npu, slot] = -1
    return home, attach_set


def _links_up(original: TableRouting, set_number: int, is_up: np.ndarray) -> np.ndarray:
    """Return the links of a port set that are up (True in is_up, bool[links])."""
    members = original.set_link[original.set_ptr[set_number] : original.set_ptr[set_number + 1]].astype(np.intp)
    return members[is_up[members]]
