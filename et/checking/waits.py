"""Who waits for whom across NPUs: nodes of all traces in one graph, where collectives and messages join them.

A vertex is a node of an NPU, or what all members of a collective wait for: it comes after the node of every member,
and what comes after one of these nodes comes after it. A receive comes after its send. NPUs wait for each other for
ever if and only if this graph has a cycle.

First every trace stands for all NPUs that run it, and groups that one node can mean count as one. That graph is as
large as the traces are, and where it has no cycle, that of all NPUs has none. Of what is on its cycles the second graph
is made, with the nodes of each NPU.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components

from et.checking.communicators import UNKNOWN
from et.checking.looked import WHOLE
from et.order import occurrence, parent_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from et.checking.communicators import Communicators
    from et.checking.looked import CheckedTrace, MessageNodes
    from et.checking.sources import Sources

Int64 = NDArray[np.int64]

_NONE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Waits:
    """What a trace says: n nodes, e dependencies, c collectives, and its messages.

    Attributes:
        nodes: n.
        parent, child: int64[e], rows.
        row: int64[c], of collectives whose members are known.
        group: int64[c], row of `communicator`.
        seq: int64[c], how many of the group come before.
        communicator: int64[groups, users], the group of each user; UNKNOWN = -1.
        messages: its sends and receives.
    """

    nodes: int
    parent: Int64
    child: Int64
    row: Int64
    group: Int64
    seq: Int64
    communicator: Int64
    messages: MessageNodes


class WaitingNode(NamedTuple):
    """A node of an NPU."""

    npu: int
    trace: int
    row: int


class _Graph(NamedTuple):
    """Edges, and what the vertices are: nodes first, then collectives.

    Attributes:
        before, after: int64[edges], vertices.
        nodes: how many vertices are nodes.
        vertices: how many there are.
    """

    before: Int64
    after: Int64
    nodes: int
    vertices: int


def waits_of(looked: CheckedTrace, communicators: Communicators, users: Int64) -> Waits:
    """What is kept of a trace."""
    table, colls = looked.table, looked.collectives
    numbers = [communicators.of(table, group, users) for group in range(len(table.group_names))]
    known = np.array([bool(np.any(of_users != UNKNOWN)) for of_users in numbers], bool)
    at = np.flatnonzero((colls.dims == WHOLE) & known[colls.group])
    group = colls.group[at].astype(np.int64)
    return Waits(
        nodes=len(table),
        parent=table.dep.astype(np.int64),
        child=parent_rows(table),
        row=colls.row[at].astype(np.int64),
        group=group,
        seq=occurrence(group).astype(np.int64),
        communicator=np.stack(numbers) if numbers else np.zeros((0, len(users)), np.int64),
        messages=looked.messages,
    )


def deadlocks(sources: Sources, waits: Sequence[Waits | None], most_edges: int) -> list[list[WaitingNode]] | None:
    """A shortest way around through one node of each set of nodes that wait for each other; each waits for the next.

    Args:
        sources: the traces.
        waits: of each; None = it cannot be read.
        most_edges: of the second graph.

    Returns:
        Empty if there is no cycle; None if the second graph would be larger.
    """
    first = _of_traces(sources, waits)
    component = _on_cycles(first)
    if np.all(component == _NONE):
        return []
    second = _OfNpus(sources, waits, component)
    if second.size > most_edges:
        return None
    graph = second.graph()
    component = _on_cycles(graph)
    sets, starts = np.unique(component[::-1], return_index=True)  # collectives before nodes
    return [
        second.places(_cycle(graph, component, graph.vertices - 1 - int(start)))
        for number, start in zip(sets.tolist(), starts.tolist(), strict=True)
        if number != _NONE
    ]


def _of_traces(sources: Sources, waits: Sequence[Waits | None]) -> _Graph:
    """The graph in which a trace stands for all its users."""
    base = np.cumsum([0, *(one.nodes if one else 0 for one in waits)])
    nodes = int(base[-1])
    hub = _hubs_of_traces(waits)
    many = 1 + max((int(some.max(initial=-1)) for some in hub), default=-1)
    before, after = [], []
    for trace, one in enumerate(waits):
        if one is None:
            continue
        out = base[trace] + np.arange(one.nodes)
        out[one.row] = nodes + hub[trace]
        before += [out[one.parent], base[trace] + one.row]
        after += [base[trace] + one.child, nodes + hub[trace]]
    for source, target, sent, received in _messages(sources, waits):
        before.append(base[source] + sent)
        after.append(base[target] + received)
    return _Graph(_joined(before), _joined(after), nodes, nodes + many)


def _hubs_of_traces(waits: Sequence[Waits | None]) -> list[Int64]:
    """For each trace int64[c]: the number of what its collectives are, where groups that a node can mean are one."""
    rows = _joined([np.full(one.communicator.size, trace) for trace, one in enumerate(waits) if one])
    groups = _joined([np.repeat(np.arange(len(one.communicator)), one.communicator.shape[1]) for one in waits if one])
    numbers = _joined([one.communicator.ravel() for one in waits if one])
    width = int(groups.max(initial=0)) + 1
    of_trace, place = np.unique(rows * width + groups, return_inverse=True)
    known = numbers != UNKNOWN
    size = len(of_trace) + int(numbers.max(initial=0)) + 1
    joins = csr_matrix((np.ones(known.sum(), np.int8), (place[known], len(of_trace) + numbers[known])), (size, size))
    label = connected_components(joins, directed=False)[1]
    keys = []
    for trace, one in enumerate(waits):
        if one is not None:
            own = label[np.searchsorted(of_trace, trace * width + one.group)] if len(one.group) else one.group
            keys.append(np.stack([own, one.seq], axis=1))
    found = np.unique(np.concatenate([np.zeros((0, 2), np.int64), *keys]), axis=0, return_inverse=True)[1].reshape(-1)
    ends = np.cumsum([len(one.row) if one else 0 for one in waits])
    return np.split(found, ends[:-1])


def _messages(sources: Sources, waits: Sequence[Waits | None]) -> Iterator[tuple[int, int, Int64, Int64]]:
    """Sender's and receiver's trace, rows of sends and of the receives that take them; each pair of traces once."""
    told: set[tuple[int, int, int, int]] = set()
    for _, trace, peer, other, back in _talks(sources, waits):
        if (trace, peer, other, back) not in told:
            told.add((trace, peer, other, back))
            yield (trace, other, *_pairs(waits, trace, peer, other, back))


def _talks(sources: Sources, waits: Sequence[Waits | None]) -> Iterator[tuple[tuple[int, int], int, int, int, int]]:
    """NPUs that send and receive, the sender's trace, how it writes the receiver; and the other way around."""
    trace_of = np.full(sources.npus, _NONE)
    shift_of = np.zeros(sources.npus, np.int64)
    for trace, users in enumerate(sources.users):
        trace_of[users], shift_of[users] = trace, sources.shifts(trace)
    for trace, one in enumerate(waits):
        if one is None:
            continue
        m = one.messages
        for peer in np.unique(m.peer[m.is_send & (m.peer >= 0)]).tolist():
            for npu in sources.users[trace].tolist():
                target = peer + int(shift_of[npu])
                other = int(trace_of[target]) if 0 <= target < sources.npus else _NONE
                if other != _NONE and waits[other] is not None:
                    yield (npu, target), trace, peer, other, npu - int(shift_of[target])


def _pairs(waits: Sequence[Waits | None], trace: int, peer: int, other: int, back: int) -> tuple[Int64, Int64]:
    """Rows of sends to a peer, as written, and of the receives that take them."""
    keys, rows = [], []
    for number, whom, is_send in ((trace, peer, True), (other, back, False)):
        one = waits[number]
        assert one is not None  # noqa: S101 - for mypy: those that talk are there
        m = one.messages
        at = np.flatnonzero((m.peer == whom) & (m.is_send == is_send))
        keys.append(m.tag[at] << 32 | m.seq[at])
        rows.append(m.row[at].astype(np.int64))
    _, sent, received = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    return rows[0][sent], rows[1][received]


class _OfNpus:
    """The graph with nodes of each NPU, of those vertices of the first graph that are on cycles there."""

    def __init__(self, sources: Sources, waits: Sequence[Waits | None], component: Int64) -> None:
        self._sources, self._waits = sources, waits
        base = np.cumsum([0, *(one.nodes if one else 0 for one in waits)])
        hub = _hubs_of_traces(waits)
        nodes = int(base[-1])
        self._rows = [np.flatnonzero(component[base[t] : base[t + 1]] != _NONE) for t in range(len(waits))]
        self._deps, self._members = [], []
        for trace, one in enumerate(waits):
            own = component[base[trace] : base[trace + 1]]
            if one is None:
                self._deps.append(np.zeros(0, bool))
                self._members.append(np.zeros(0, bool))
                continue
            of_hub = component[nodes + hub[trace]]
            out = own.copy()
            out[one.row] = of_hub
            self._deps.append((out[one.parent] != _NONE) & (out[one.parent] == own[one.child]))
            self._members.append((of_hub != _NONE) & (of_hub == own[one.row]))
        self._first = np.cumsum([0, *(len(u) * len(r) for u, r in zip(sources.users, self._rows, strict=True))])
        many = [len(users) for users in sources.users]
        self.size = sum(n * int(d.sum() + m.sum()) for n, d, m in zip(many, self._deps, self._members, strict=True))

    def graph(self) -> _Graph:
        """The graph."""
        nodes = int(self._first[-1])
        before, after, keys, places = [], [], [], []
        for trace, one in enumerate(self._waits):
            if one is None:
                continue
            which = np.full(one.nodes, _NONE)
            which[one.row] = np.arange(len(one.row))
            parent, child = one.parent[self._deps[trace]], one.child[self._deps[trace]]
            for user in range(len(self._sources.users[trace])):
                is_coll = which[parent] != _NONE
                before.append(np.where(is_coll, _NONE, self._vertex(trace, user, parent)))
                after.append(self._vertex(trace, user, child))
                keys.append(self._key(one, user, which[parent[is_coll]]))
                places.append((len(before) - 1, np.flatnonzero(is_coll), True))
                member = np.flatnonzero(self._members[trace])
                before.append(self._vertex(trace, user, one.row[member]))
                after.append(np.full(len(member), _NONE))
                keys.append(self._key(one, user, member))
                places.append((len(before) - 1, np.arange(len(member)), False))
        hubs, place = np.unique(_joined(keys), return_inverse=True)
        at = 0
        for number, where, is_before in places:
            (before if is_before else after)[number][where] = nodes + place[at : at + len(where)]
            at += len(where)
        for (npu, target), trace, peer, other, back in _talks(self._sources, self._waits):
            sent, received = _pairs(self._waits, trace, peer, other, back)
            ends = (
                self._vertex(trace, int(np.searchsorted(self._sources.users[trace], npu)), sent),
                self._vertex(other, int(np.searchsorted(self._sources.users[other], target)), received),
            )
            there = (ends[0] != _NONE) & (ends[1] != _NONE)
            before.append(ends[0][there])
            after.append(ends[1][there])
        sources, targets = _joined(before), _joined(after)
        return _Graph(sources, targets, nodes, nodes + len(hubs))

    def _vertex(self, trace: int, user: int, rows: Int64) -> Int64:
        """Vertices of rows of a user; -1 where they are on no cycle."""
        own = self._rows[trace]
        place = np.searchsorted(own, rows).clip(max=max(len(own) - 1, 0))
        there = own[place] == rows if len(own) else np.zeros(len(rows), bool)
        return np.where(there, self._first[trace] + user * len(own) + place, _NONE)

    @staticmethod
    def _key(one: Waits, user: int, which: Int64) -> Int64:
        """What names the collectives of a user on all NPUs."""
        return one.communicator[one.group[which], user] << 32 | one.seq[which]

    def places(self, cycle: Sequence[int]) -> list[WaitingNode]:
        """Nodes of vertices of which each waits for the next, the first NPU's first; with own nodes of collectives."""
        nodes = int(self._first[-1])
        found: list[WaitingNode] = []
        for at, vertex in enumerate(cycle):
            if vertex < nodes:
                found.append(self._place(vertex))
                continue
            waiting = self._place(cycle[at - 1])
            member = self._place(cycle[(at + 1) % len(cycle)])
            own = self._parent_in(waiting, member)
            if own != member:
                found.append(own)
        first = found.index(min(found))
        return found[first:] + found[:first]

    def _place(self, vertex: int) -> WaitingNode:
        trace = int(np.searchsorted(self._first, vertex, side="right")) - 1
        user, row = divmod(vertex - int(self._first[trace]), len(self._rows[trace]))
        return WaitingNode(int(self._sources.users[trace][user]), trace, int(self._rows[trace][row]))

    def _parent_in(self, waiting: WaitingNode, member: WaitingNode) -> WaitingNode:
        """The parent of a node that is the same collective as another NPU's node."""
        keys = []
        for place in (waiting, member):
            one = self._waits[place.trace]
            assert one is not None  # noqa: S101 - for mypy: places are of traces that are there
            user = int(np.searchsorted(self._sources.users[place.trace], place.npu))
            keys.append((one, self._key(one, user, np.arange(len(one.row)))))
        (one, own), (others, of_member) = keys
        wanted = of_member[np.flatnonzero(others.row == member.row)[0]]
        rows = one.row[own == wanted]
        parents = one.parent[one.child == waiting.row]
        return WaitingNode(waiting.npu, waiting.trace, int(np.intersect1d(rows, parents)[0]))


def _joined(arrays: Sequence[Int64]) -> Int64:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _matrix(graph: _Graph, keep: NDArray[np.bool_] | slice = slice(None)) -> csr_matrix:
    before, after = graph.before[keep], graph.after[keep]
    return csr_matrix((np.ones(len(before), np.int8), (after, before)), (graph.vertices, graph.vertices))


def _on_cycles(graph: _Graph) -> Int64:
    """int64[vertices]: the number of the set of vertices that wait for each other, -1 = a vertex is on no cycle."""
    label = connected_components(_matrix(graph), directed=True, connection="strong")[1].astype(np.int64)
    alone = np.bincount(label, minlength=1)[label] == 1
    itself = np.zeros(graph.vertices, bool)
    itself[graph.before[graph.before == graph.after]] = True
    return np.where(alone & ~itself, _NONE, label)


def _cycle(graph: _Graph, component: Int64, start: int) -> list[int]:
    """A shortest way from a vertex back to it, each waiting for the next, within its set."""
    inside = (component[graph.before] == component[start]) & (component[graph.after] == component[start])
    order, waiting = breadth_first_order(_matrix(graph, inside), start, directed=True, return_predecessors=True)
    last_ones = graph.after[inside & (graph.before == start)]
    place = np.full(graph.vertices, len(order))
    place[order] = np.arange(len(order))
    path = [int(last_ones[np.argmin(place[last_ones])])]
    while path[-1] != start:
        path.append(int(waiting[path[-1]]))
    return path[::-1]
