"""Packets of each link under routing by tables, spread over equal links like a fluid."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int64
from nadi.topologies.graph import NVSWITCH, UNREACHABLE, Graph

if TYPE_CHECKING:
    from nadi.topologies.table_routing import TableRouting

#
# The target is the NPU's first switch, or the NPU itself if it has several. The packets farthest from their targets
# move first, so that every pair of switch and target is processed once, with all packets that ever get there.


_MAX_ENTRIES = 1 << 21  # (switch, target, link) triples per block, to bound memory
_MAX_DENSE = 1 << 23  # size of a table up to which sums use an array over all states


def table_loads(graph: Graph, routing: "TableRouting", src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[links]: packets of each link, shared among the links that `next_links` allows.

    Args:
        graph: The fabric (`Graph`).
        routing: Routing of the fabric by tables.
        src: int64[p], the sending NPU of each pair.
        dst: int64[p], the receiving NPU of each pair, another than `src`.
        packets: float64[p], packets of each pair.
    """
    return _Fluid(graph, routing).loads(src, dst, packets)


class _Fluid:
    """Flow of packets through a fabric: its targets, and the loads of links so far."""

    def __init__(self, graph: Graph, routing: "TableRouting") -> None:
        """Begin without packets; a target is a home node of packets' destination, or an NPU with several of them."""
        self._graph, self._routing = graph, routing
        self._load = np.zeros(graph.links)
        # Example: 4 homes and an NPU 7 with two homes: targets 0 to 3 are the homes, target 4 is NPU 7 (_npu_of[4] =
        # 7), and _homes_of[4] has both of its homes
        homes, several = len(routing.home_node), (routing.home >= 0).sum(axis=1) > 1
        self._target_of = np.where(several, homes + np.cumsum(several) - 1, routing.home[:, 0]).astype(np.int64)
        self._npu_of = np.concatenate([np.full(homes, -1), np.flatnonzero(several)])
        first = np.full((homes, routing.home.shape[1]), -1, np.int32)
        first[:, 0] = np.arange(homes)
        self._homes_of = np.concatenate([first, routing.home[several]])

    def loads(self, src: Int64, dst: Int64, packets: Float64) -> Float64:
        """Return float64[links], packets of each link; src, dst, packets: [p], NPUs and packets of each pair."""
        last_set = self._routing.attach_set[dst, 0]
        single = self._npu_of[self._target_of[dst]] < 0
        # the last link, to an NPU with one home, is the same on each path: it is counted at once, and packets need only
        # reach it
        self._load_sets(last_set[single], packets[single])
        # a state is place x targets + target, as one number: equal ones are merged by their sum
        state, amount = self._summed(src * len(self._npu_of) + self._target_of[dst], packets)
        state, amount = self._leave_npus(state, amount)
        while len(state):
            row, target = np.divmod(state, len(self._npu_of))
            distance = self._distance(row, target)
            # farthest first, so that each state moves once, with all packets that reach it
            now = distance == distance.max()
            if distance.max() == 0:
                self._arrive(row, target, amount)
                break
            moved = self._move(row[now], target[now], amount[now])
            state, amount = np.concatenate([state[~now], moved[0]]), np.concatenate([amount[~now], moved[1]])
            state, amount = self._summed(state, amount)
        return self._load

    def _distance(self, row: Int64, target: Int64) -> Int64:
        """Return int64[]: links from a switch to the nearest home of a target."""
        return self._hops(row, target).min(axis=1)

    def _hops(self, rows: Int64, targets: Int64) -> Int64:
        """Return int64[n, H]: links from each switch, a row of the tables, to each home of its target."""
        home = self._homes_of[targets]
        return np.where(home < 0, UNREACHABLE, self._routing.hops[rows[:, None], home]).astype(np.int64)

    def _leave_npus(self, states: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Move packets from (NPU, target) over the NPU's links that `next_links` allows, to (switch, target)."""
        # states: int64[n], node x targets + target. Returns such states and their packets.
        if not len(states):
            return states, packets
        npu, target = np.divmod(states, len(self._npu_of))
        # links by their source: the links of NPU n are order[ptr[n]:ptr[n + 1]]
        order = np.argsort(self._graph.link_src, kind="stable")
        ptr = np.searchsorted(self._graph.link_src[order], np.arange(self._graph.npus + 1))
        entry, at = _spans(ptr[npu], ptr[npu + 1])
        link = order[at]
        row = self._routing.row[self._graph.link_dst[link]].astype(np.int64)
        distance = self._distance(row, target[entry])
        # `entry` ascends, so each state's links are consecutive: reduceat takes the minimum of each stretch
        nearest = np.minimum.reduceat(distance, np.flatnonzero(np.diff(entry, prepend=-1)))
        use = distance == nearest[entry]
        inside = use & (distance == 0) & (self._graph.node_kind[self._graph.link_dst[link]] == NVSWITCH)
        # a link to the destination's own NVSwitch excludes all others, where an entry has one
        use &= inside | ~(np.bincount(entry, inside, len(states)) > 0)[entry]
        return self._split(link[use], entry[use], target, packets)

    def _move(self, rows: Int64, targets: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Move packets by one link from switches, rows of the tables equally far from their targets; return states."""
        states, amounts = [], []
        for block in self._blocks(rows):
            hops = self._hops(rows[block], targets[block])
            # pairs of a state and one of its nearest homes; packets may go to any of these
            entry, column = np.nonzero(hops == hops.min(axis=1)[:, None])
            home = self._homes_of[targets[block][entry], column]
            port_set = self._routing.next_set[rows[block][entry], home]
            # all links of all port sets, one after another, with the pair that each belongs to
            which, at = _spans(self._routing.set_ptr[port_set], self._routing.set_ptr[port_set + 1])
            entry, link = entry[which], self._routing.set_link[at].astype(np.int64)
            if self._homes_of.shape[1] > 1:  # two homes may lie behind the same link
                both = np.unique(entry * self._graph.links + link)
                entry, link = np.divmod(both, self._graph.links)
            state, moved = self._split(link, entry, targets[block], packets[block])
            states.append(state)
            amounts.append(moved)
        return np.concatenate(states), np.concatenate(amounts)

    def _blocks(self, rows: Int64) -> Iterator[slice]:
        """Yield slices of switches, rows of the tables, whose packets have at most about _MAX_ENTRIES links."""
        degree = np.bincount(self._graph.link_src, minlength=self._graph.nodes)[self._graph.npus :]
        ends = np.cumsum(degree[rows])
        # ends of blocks: where the running sum of links passes a multiple of _MAX_ENTRIES
        cuts = np.searchsorted(ends, np.arange(_MAX_ENTRIES, int(ends[-1]), _MAX_ENTRIES))
        bounds = np.unique(np.concatenate([[0], cuts, [len(rows)]])).tolist()
        yield from map(slice, bounds[:-1], bounds[1:])

    def _split(self, links: Int64, entry_of_link: Int64, targets: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Share each entry's packets among its links; return states (switch, target) at the ends, and packets."""
        weight = self._graph.port_shares[links]
        # max 1: an entry without a link loses its packets, and divides by nothing
        total = np.maximum(np.bincount(entry_of_link, weight, len(packets)), 1)
        share = weight * (packets / total)[entry_of_link]
        self._load += np.bincount(links, share, minlength=len(self._load))
        row = self._routing.row[self._graph.link_dst[links]].astype(np.int64)
        return self._summed(row * len(self._npu_of) + targets[entry_of_link], share)

    def _arrive(self, rows: Int64, targets: Int64, packets: Float64) -> None:
        """Move packets from homes, rows of the tables, to targets that are NPUs; others are counted already."""
        at_npu = np.flatnonzero(self._npu_of[targets] >= 0)
        # of several homes of the NPU, that at which the packets are: 0 hops
        column = np.argmin(self._hops(rows[at_npu], targets[at_npu]), axis=1)
        self._load_sets(self._routing.attach_set[self._npu_of[targets[at_npu]], column], packets[at_npu])

    def _load_sets(self, port_sets: NDArray[np.integer], packets: Float64) -> None:
        """Add packets to the links of port sets, shared equally within each set."""
        ptr = self._routing.set_ptr
        entry, at = _spans(ptr[port_sets], ptr[port_sets + 1])
        share = (packets / np.diff(ptr)[port_sets])[entry]
        self._load += np.bincount(self._routing.set_link[at], share, minlength=len(self._load))

    def _summed(self, state: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Return each distinct state once, and the sum of its packets, amount."""
        space = max(self._graph.npus, len(self._routing.hops)) * len(self._npu_of)
        if space <= _MAX_DENSE:
            # with a small space, an array over all states is faster than sorting them
            dense = np.asarray(np.bincount(state, packets), np.float64)
            states = np.flatnonzero(dense).astype(np.int64)
            return states, dense[states]
        states, number = np.unique(state, return_inverse=True)
        return states, np.asarray(np.bincount(number.reshape(-1), packets), np.float64)


def _spans(begins: NDArray[np.integer], ends: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Return all numbers of ranges [begins[i], ends[i]), one after another: int64[], the range i, and the number."""
    # Example: begins 2, 7 and ends 4, 8: sizes 2, 1; row = 0 0 1; numbers = 0 1 2 + (2 - 0) (2 - 0) (7 - 2) = 2 3 7
    sizes = (ends - begins).astype(np.int64)
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(len(row)) + (begins - np.cumsum(sizes) + sizes)[row]
