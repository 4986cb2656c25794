"""Packets of each link under TableRouting: all that is at a switch for the same place moves on together.

The place is the NPU's first switch, or the NPU itself where it has several. What is farthest from its place moves
first, so that every pair of switch and place is left once, with all that ever gets there.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from topologies.graph import NVSWITCH, UNREACHABLE, Graph, TableRouting

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

_MOST_ENTRIES = 1 << 21  # (switch, place, link) at once
_MOST_DENSE = 1 << 23


def table_loads(graph: Graph, routing: TableRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """float64[links]: packets of each link, shared equally among the links that `next_links` allows.

    Args:
        graph: the fabric.
        routing: its routing.
        src: int64[p], NPUs.
        dst: int64[p], other NPUs.
        packets: float64[p].
    """
    return _Fluid(graph, routing).loads(src, dst, packets)


def has_way(routing: TableRouting, src: Int64, dst: Int64) -> NDArray[np.bool_]:
    """bool[p]: whether a path leads from one NPU to another; none does to the memory of another host.

    Args:
        routing: of the fabric.
        src: int64[p], NPUs.
        dst: int64[p], other NPUs.
    """
    own, other = routing.home[src], routing.home[dst]
    row = routing.row[routing.home_node[own]]
    hops = routing.hops[row[:, :, None], other[:, None, :]]
    is_used = (own >= 0)[:, :, None] & (other >= 0)[:, None, :]
    return np.asarray((is_used & (hops < UNREACHABLE)).any(axis=(1, 2)))


class _Fluid:
    """The fabric, the places, and the loads so far."""

    def __init__(self, graph: Graph, routing: TableRouting) -> None:
        self._graph, self._routing = graph, routing
        self._load = np.zeros(graph.links)
        homes, several = len(routing.home_node), (routing.home >= 0).sum(axis=1) > 1
        self._place_of = np.where(several, homes + np.cumsum(several) - 1, routing.home[:, 0]).astype(np.int64)
        self._npu_of = np.concatenate([np.full(homes, -1), np.flatnonzero(several)])
        first = np.full((homes, routing.home.shape[1]), -1, np.int32)
        first[:, 0] = np.arange(homes)
        self._homes_of = np.concatenate([first, routing.home[several]])

    def loads(self, src: Int64, dst: Int64, packets: Float64) -> Float64:
        last_set = self._routing.attach_set[dst, 0]
        alone = self._npu_of[self._place_of[dst]] < 0
        self._load_sets(last_set[alone], packets[alone])
        state, amount = self._summed(src * len(self._npu_of) + self._place_of[dst], packets)
        state, amount = self._leave_npus(state, amount)
        while len(state):
            row, place = np.divmod(state, len(self._npu_of))
            distance = self._distance(row, place)
            now = distance == distance.max()
            if distance.max() == 0:
                self._arrive(row, place, amount)
                break
            moved = self._move(row[now], place[now], amount[now])
            state, amount = np.concatenate([state[~now], moved[0]]), np.concatenate([amount[~now], moved[1]])
            state, amount = self._summed(state, amount)
        return self._load

    def _distance(self, row: Int64, place: Int64) -> Int64:
        """int64[]: links from a switch to the nearest home of a place."""
        return self._hops(row, place).min(axis=1)

    def _hops(self, row: Int64, place: Int64) -> Int64:
        """int64[, H]: links from a switch to each home of a place."""
        home = self._homes_of[place]
        return np.where(home < 0, UNREACHABLE, self._routing.hops[row[:, None], home]).astype(np.int64)

    def _leave_npus(self, state: Int64, amount: Float64) -> tuple[Int64, Float64]:
        """From (NPU, place) over the NPU's links that `next_links` allows, to (switch, place)."""
        if not len(state):
            return state, amount
        npu, place = np.divmod(state, len(self._npu_of))
        order = np.argsort(self._graph.link_src, kind="stable")
        ptr = np.searchsorted(self._graph.link_src[order], np.arange(self._graph.npus + 1))
        entry, at = _spans(ptr[npu], ptr[npu + 1])
        link = order[at]
        row = self._routing.row[self._graph.link_dst[link]].astype(np.int64)
        distance = self._distance(row, place[entry])
        nearest = np.minimum.reduceat(distance, np.flatnonzero(np.diff(entry, prepend=-1)))
        use = distance == nearest[entry]
        inside = use & (distance == 0) & (self._graph.node_kind[self._graph.link_dst[link]] == NVSWITCH)
        use &= inside | ~(np.bincount(entry, inside, len(state)) > 0)[entry]
        return self._split(link[use], entry[use], place, amount)

    def _move(self, row: Int64, place: Int64, amount: Float64) -> tuple[Int64, Float64]:
        """One link on from switches that are equally far from their places."""
        states, amounts = [], []
        for block in self._blocks(row):
            hops = self._hops(row[block], place[block])
            entry, column = np.nonzero(hops == hops.min(axis=1)[:, None])
            home = self._homes_of[place[block][entry], column]
            port_set = self._routing.next_set[row[block][entry], home]
            which, at = _spans(self._routing.set_ptr[port_set], self._routing.set_ptr[port_set + 1])
            entry, link = entry[which], self._routing.set_link[at].astype(np.int64)
            if self._homes_of.shape[1] > 1:  # two homes may lie behind the same link
                both = np.unique(entry * self._graph.links + link)
                entry, link = np.divmod(both, self._graph.links)
            state, moved = self._split(link, entry, place[block], amount[block])
            states.append(state)
            amounts.append(moved)
        return np.concatenate(states), np.concatenate(amounts)

    def _blocks(self, row: Int64) -> Iterator[slice]:
        """Slices with not too many links to go on."""
        degree = np.bincount(self._graph.link_src, minlength=self._graph.nodes)[self._graph.npus :]
        ends = np.cumsum(degree[row])
        cuts = np.searchsorted(ends, np.arange(_MOST_ENTRIES, int(ends[-1]), _MOST_ENTRIES))
        bounds = np.unique(np.concatenate([[0], cuts, [len(row)]])).tolist()
        yield from map(slice, bounds[:-1], bounds[1:])

    def _split(self, link: Int64, entry: Int64, place: Int64, amount: Float64) -> tuple[Int64, Float64]:
        """Share each entry's amount among its links; what comes out at their ends."""
        share = (amount / np.maximum(np.bincount(entry, minlength=len(amount)), 1))[entry]
        self._load += np.bincount(link, share, minlength=len(self._load))
        row = self._routing.row[self._graph.link_dst[link]].astype(np.int64)
        return self._summed(row * len(self._npu_of) + place[entry], share)

    def _arrive(self, row: Int64, place: Int64, amount: Float64) -> None:
        """From a home to the NPU, where the place is an NPU; else it is counted already."""
        at_npu = np.flatnonzero(self._npu_of[place] >= 0)
        column = np.argmin(self._hops(row[at_npu], place[at_npu]), axis=1)
        self._load_sets(self._routing.attach_set[self._npu_of[place[at_npu]], column], amount[at_npu])

    def _load_sets(self, port_set: NDArray[np.integer], amount: Float64) -> None:
        ptr = self._routing.set_ptr
        entry, at = _spans(ptr[port_set], ptr[port_set + 1])
        share = (amount / np.diff(ptr)[port_set])[entry]
        self._load += np.bincount(self._routing.set_link[at], share, minlength=len(self._load))

    def _summed(self, state: Int64, amount: Float64) -> tuple[Int64, Float64]:
        """Each state once."""
        space = max(self._graph.npus, len(self._routing.hops)) * len(self._npu_of)
        if space <= _MOST_DENSE:
            dense = np.asarray(np.bincount(state, amount), np.float64)
            found = np.flatnonzero(dense).astype(np.int64)
            return found, dense[found]
        found, number = np.unique(state, return_inverse=True)
        return found, np.asarray(np.bincount(number.reshape(-1), amount), np.float64)


def _spans(begin: NDArray[np.integer], end: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """All numbers of ranges [begin, end), one range after another: row of the range int64[], number int64[]."""
    sizes = (end - begin).astype(np.int64)
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(len(row)) + (begin - np.cumsum(sizes) + sizes)[row]
