"""Check for NPUs that wait for each other in a cycle, through collectives of several groups and messages.

The nodes of all traces are one graph, connected by collectives and messages. A vertex is a node of an NPU, or a
collective of a whole group: the collective comes after the node of every member, and what comes after one of these
nodes comes after it. A receive comes after its send. A cycle means a deadlock.

The first graph has one copy of each trace for all NPUs that run it, and merges groups that one node can mean. It is as
large as the traces, and if it has no cycle, the graph of all NPUs has no cycle either. The second graph has the nodes
of each NPU, but only vertices that are on cycles of the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components

from nadi.et.checking import UNKNOWN, WHOLE, Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import ERROR, NOTE, Example, Finding
from nadi.et.checking.matching import MessageNodes
from nadi.et.checks.collectives import collective
from nadi.et.order import cycle_text, occurrence, parent_rows
from nadi.et.schema import NodeType
from nadi.inputs.arrays import Int64, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nadi.et.checking import CheckedTrace, Communicators, Sources

LOOKS_FOR = "NPUs that wait for each other for ever, over collectives, messages and dependencies, with the cycle"

_MAX_EDGES = 8_000_000
_MAX_EXAMPLES = 20


class TraceCheck(Check):
    """Stores the dependencies of all traces, up to _MAX_EDGES, because a cycle may pass through any of them."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._waits: dict[int, Waits] = {}  # dependencies of each trace
        self._edges = 0  # number of nodes and dependencies so far

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Store the dependencies of a trace, to search for cycles at the end.

        Args:
            checked: The trace to check.
        """
        if not self.sources.is_complete or self.sources.npus < 2:
            return ()
        self._edges += len(checked.table) + len(checked.table.dep)
        if self._edges > _MAX_EDGES:
            # Too large to search: a part of the traces would show no cycle through the others
            self._waits.clear()
        else:
            users = self.sources.users[checked.trace]
            self._waits[checked.trace] = waits_of(checked, self.context.communicators, users)
        return ()

    def end(self) -> Iterable[Finding]:
        """Return one cycle per set of NPUs that wait for each other."""
        found = None
        if self._edges <= _MAX_EDGES:
            users = enumerate(self.sources.users)
            # A trace that cannot be read waits for nothing, as far as is known
            waits = [self._waits.get(trace) or unknown_waits(own) for trace, own in users]
            found = deadlocks(self.sources, waits, _MAX_EDGES)
        if found is None:
            text = f"more than {_MAX_EDGES:,} nodes and dependencies"
            yield Finding(NOTE, "deadlocks of several NPUs were not searched", 1, (Example("", None, text),))
        elif found:
            examples = tuple(self._example(places) for places in found[:_MAX_EXAMPLES])
            yield Finding(ERROR, "NPUs wait for each other for ever", len(found), examples)

    def _example(self, cycle_nodes: list[WaitingNode]) -> Example:
        """Return the example of a cycle of nodes, where each node waits for the next."""
        texts = [self._place_text(place) for place in cycle_nodes]
        first = cycle_nodes[0]
        checked = self.context.reopened(first.trace)
        cycle = cycle_text(texts, f"NPU {first.npu} node {checked.node(first.row)}")
        return Example(checked.table.path, checked.node(first.row), f"each waits for the next: {cycle}")

    def _place_text(self, waiting_node: WaitingNode) -> str:
        """Return NPU, node and name or collective of a node that waits, as text."""
        checked = self.context.reopened(waiting_node.trace)
        table, row = checked.table, waiting_node.row
        what = str(table.names[row])
        if table.type[row] == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
            group = table.group_names[table.group[row]]
            what = f'{collective(int(table.comm_type[row]), int(table.comm_size[row]))}, group "{group}"'
        elif table.type[row] == NodeType.COMM_SEND_NODE:
            what = f"send to NPU {self._peer(checked, waiting_node, int(table.comm_dst[row]))}"
        elif table.type[row] == NodeType.COMM_RECV_NODE:
            what = f"receive from NPU {self._peer(checked, waiting_node, int(table.comm_src[row]))}"
        return f"NPU {waiting_node.npu} node {checked.node(row)} ({what})"

    def _peer(self, checked: CheckedTrace, place: WaitingNode, written: int) -> int:
        users, shifts = self.sources.users[checked.trace], self.sources.shifts(checked.trace)
        # Peers in a trace are those of its example NPU
        return written + int(shifts[users == place.npu][0])


_NONE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Waits:
    """Dependencies of a trace: n nodes, e dependencies, c collectives, and its messages."""

    nodes: int  # number of nodes n
    # int64[e], rows of each dependency
    parent: Int64
    child: Int64
    row: Int64  # int64[c], row of each collective whose members are known
    group: Int64  # int64[c], row of `communicator`
    seq: Int64  # int64[c], number of earlier collectives of the group
    communicator: Int64  # int64[groups, users], the group of each user; UNKNOWN = -1
    messages: MessageNodes  # sends and receives of the trace


class WaitingNode(NamedTuple):
    """A node of an NPU."""

    npu: int  # number of the NPU
    trace: int  # trace of the NPU
    row: int  # row of the node in the trace


class _Graph(NamedTuple):
    """Edges between vertices, which are nodes first, then collectives."""

    # int64[edges], vertices of each edge
    before: Int64
    after: Int64
    nodes: int  # number of vertices that are nodes
    vertices: int  # number of all vertices


def waits_of(checked: CheckedTrace, communicators: Communicators, users: Int64) -> Waits:
    """Return the dependencies of a trace: on parents, collectives and messages.

    Args:
        checked: The trace to check.
        communicators: The groups so far, to which those of the trace are added.
        users: The NPUs that run the trace, int64[], ascending.
    """
    table, colls = checked.table, checked.collectives
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
        messages=checked.messages,
    )


def unknown_waits(users: Int64) -> Waits:
    """Return the dependencies of a trace that cannot be read: no dependencies.

    Args:
        users: The NPUs that run the trace, int64[], ascending.
    """
    nothing = np.zeros(0, np.int64)
    row = nothing.astype(np.int32)
    messages = MessageNodes(row, row > 0, row, row, row, row, nothing)
    return Waits(0, nothing, nothing, nothing, nothing, nothing, np.zeros((0, len(users)), np.int64), messages)


def deadlocks(sources: Sources, waits: Sequence[Waits], max_edges: int) -> list[list[WaitingNode]] | None:
    """Return a shortest cycle for each set of nodes that wait for each other; each node of a cycle waits for the next.

    The result is None if the graph with the nodes of each NPU would be too large.

    Args:
        sources: The traces to check, the NPUs that run them, and their groups.
        waits: The dependencies of each trace.
        max_edges: The maximum number of edges of the graph with the nodes of each NPU.
    """
    component = _on_cycles(_graph_of_traces(sources, waits))
    if np.all(component == _NONE):
        return []
    # A cycle of NPUs is one of traces, too: only its nodes need a copy per NPU
    second = _NpuGraph(sources, waits, component)
    if second.size > max_edges:
        return None
    graph = second.graph()
    component = _on_cycles(graph)
    sets, starts = np.unique(component[::-1], return_index=True)  # collectives before nodes
    return [
        second.places(_cycle(graph, component, graph.vertices - 1 - int(start)))
        for number, start in zip(sets.tolist(), starts.tolist(), strict=True)
        if number != _NONE
    ]


def _graph_of_traces(sources: Sources, waits: Sequence[Waits]) -> _Graph:
    """Return the graph with one copy of each trace for all its users."""
    base = np.cumsum([0, *(own.nodes for own in waits)])
    nodes = int(base[-1])
    hub = _hubs_of_traces(waits)
    collectives = 1 + max((int(numbers.max(initial=-1)) for numbers in hub), default=-1)
    before, after = [], []
    for begin, own, own_hub in zip(base.tolist(), waits, hub, strict=False):
        out = begin + np.arange(own.nodes)
        # What follows a collective's node follows the collective of all members
        out[own.row] = nodes + own_hub
        before += [out[own.parent], begin + own.row]
        after += [begin + own.child, nodes + own_hub]
    # Users of a trace repeat the same pairs of traces
    talks = {(trace, peer, other, back) for _, trace, peer, other, back in _talks(sources, waits)}
    for trace, peer, other, back in sorted(talks):
        sent, received = _pairs(waits, trace, peer, other, back)
        before.append(base[trace] + sent)
        after.append(base[other] + received)
    return _Graph(_joined(before), _joined(after), nodes, nodes + collectives)


def _hubs_of_traces(waits: Sequence[Waits]) -> list[Int64]:
    """Return int64[c] per trace, the vertex number of each collective; groups that one node can mean are merged."""
    communicators = [own.communicator for own in waits]
    rows = _joined([np.full(numbers.size, trace) for trace, numbers in enumerate(communicators)])
    groups = _joined([np.repeat(np.arange(len(numbers)), numbers.shape[1]) for numbers in communicators])
    numbers = _joined([numbers.ravel() for numbers in communicators])
    # A trace and its group as one number
    width = int(groups.max(initial=0)) + 1
    of_trace, place = np.unique(rows * width + groups, return_inverse=True)
    known = numbers != UNKNOWN
    size = len(of_trace) + int(numbers.max(initial=0)) + 1
    # A bipartite graph of (trace, group) and communicators: its components are the merged groups
    joins = csr_matrix((np.ones(known.sum(), np.int8), (place[known], len(of_trace) + numbers[known])), (size, size))
    label = connected_components(joins, directed=False)[1]
    keys = [
        np.stack([label[np.searchsorted(of_trace, trace * width + own.group)], own.seq], axis=1)
        for trace, own in enumerate(waits)
    ]
    hubs = np.unique(np.concatenate([np.zeros((0, 2), np.int64), *keys]), axis=0, return_inverse=True)[1].reshape(-1)
    return np.split(hubs, np.cumsum([len(own.row) for own in waits])[:-1])


def _talks(sources: Sources, waits: Sequence[Waits]) -> Iterator[tuple[tuple[int, int], int, int, int, int]]:
    """Yield (sender, receiver) NPUs, the sender's trace and peer as written, and the receiver's trace and peer."""
    trace_of = np.full(sources.npus, _NONE)
    shift_of = np.zeros(sources.npus, np.int64)
    for trace, users in enumerate(sources.users):
        trace_of[users], shift_of[users] = trace, sources.shifts(trace)
    for trace, own in enumerate(waits):
        messages = own.messages
        for peer in np.unique(messages.peer[messages.is_send & (messages.peer >= 0)]).tolist():
            for npu in sources.users[trace].tolist():
                # Peers in a trace are those of its example NPU; each user shifts them
                target = peer + int(shift_of[npu])
                if 0 <= target < sources.npus and trace_of[target] != _NONE:
                    yield (npu, target), trace, peer, int(trace_of[target]), npu - int(shift_of[target])


def _pairs(waits: Sequence[Waits], trace: int, peer: int, other_trace: int, other_peer: int) -> tuple[Int64, Int64]:
    """Return rows of sends of `trace` to `peer` and of matching receives of `other_trace` from `other_peer`."""
    keys, rows = [], []
    for number, end, is_send in ((trace, peer, True), (other_trace, other_peer, False)):
        messages = waits[number].messages
        at = messages.with_peer(end, is_send=is_send)
        # A message and its receive have the same tag and number
        keys.append(messages.tag[at].astype(np.int64) << 32 | messages.seq[at])
        rows.append(messages.row[at].astype(np.int64))
    _, sent, received = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    return rows[0][sent], rows[1][received]


class _NpuGraph:
    """The graph with nodes of each NPU (user: its index among those of a trace), restricted to the first's cycles."""

    def __init__(self, sources: Sources, waits: Sequence[Waits], component: Int64) -> None:
        self._sources, self._waits = sources, waits
        base = np.cumsum([0, *(own.nodes for own in waits)]).tolist()
        self._rows, self._deps, self._members = [], [], []
        for begin, end, own, hub in zip(base, base[1:], waits, _hubs_of_traces(waits), strict=False):
            of_node, of_hub = component[begin:end], component[base[-1] + hub]
            out = of_node.copy()
            out[own.row] = of_hub
            self._rows.append(np.flatnonzero(of_node != _NONE))
            # An edge is on a cycle only if both ends are in one component; edges between two components close none
            self._deps.append((out[own.parent] != _NONE) & (out[own.parent] == of_node[own.child]))
            self._members.append((of_hub != _NONE) & (of_hub == of_node[own.row]))
        users = [len(own) for own in sources.users]
        self._first = np.cumsum([0, *(count * len(rows) for count, rows in zip(users, self._rows, strict=True))])
        edges = [int(d.sum() + m.sum()) for d, m in zip(self._deps, self._members, strict=True)]
        self.size = sum(count * n for count, n in zip(users, edges, strict=True))

    def graph(self) -> _Graph:
        """Return the dependencies between NPUs' nodes and between nodes and collectives, as edges between vertices."""
        nodes = int(self._first[-1])
        before, after, keys, places = [], [], [], []
        for trace, trace_waits in enumerate(self._waits):
            # The collective of each node
            which = np.full(trace_waits.nodes, _NONE)
            which[trace_waits.row] = np.arange(len(trace_waits.row))
            parent, child = trace_waits.parent[self._deps[trace]], trace_waits.child[self._deps[trace]]
            for user in range(len(self._sources.users[trace])):
                is_coll = which[parent] != _NONE
                # The vertices of collectives are known only when all keys are: they are filled in below
                before.append(np.where(is_coll, _NONE, self._vertex(trace, user, parent)))
                after.append(self._vertex(trace, user, child))
                keys.append(self._key(trace_waits, user, which[parent[is_coll]]))
                places.append((len(before) - 1, np.flatnonzero(is_coll), True))
                member = np.flatnonzero(self._members[trace])
                before.append(self._vertex(trace, user, trace_waits.row[member]))
                after.append(np.full(len(member), _NONE))
                keys.append(self._key(trace_waits, user, member))
                places.append((len(before) - 1, np.arange(len(member)), False))
        # Equal keys of different NPUs are one collective, which has one vertex
        hubs, place = np.unique(_joined(keys), return_inverse=True)
        at = 0
        for number, rows, is_before in places:
            (before if is_before else after)[number][rows] = nodes + place[at : at + len(rows)]
            at += len(rows)
        for (npu, target), trace, peer, other, back in _talks(self._sources, self._waits):
            sent, received = _pairs(self._waits, trace, peer, other, back)
            ends = (
                self._vertex(trace, int(np.searchsorted(self._sources.users[trace], npu)), sent),
                self._vertex(other, int(np.searchsorted(self._sources.users[other], target)), received),
            )
            there = (ends[0] != _NONE) & (ends[1] != _NONE)
            before.append(ends[0][there])
            after.append(ends[1][there])
        return _Graph(_joined(before), _joined(after), nodes, nodes + len(hubs))

    def _vertex(self, trace: int, user: int, rows: Int64) -> Int64:
        """Return the vertices of a user's rows; -1 for rows on no cycle."""
        own = self._rows[trace]
        # Only rows on cycles of traces have vertices, in ascending order
        place = np.searchsorted(own, rows).clip(max=max(len(own) - 1, 0))
        there = own[place] == rows if len(own) else np.zeros(len(rows), bool)
        return np.where(there, self._first[trace] + user * len(own) + place, _NONE)

    @staticmethod
    def _key(trace_waits: Waits, user: int, which: Int64) -> Int64:
        """Return keys that identify the collectives of a user on all NPUs."""
        return trace_waits.communicator[trace_waits.group[which], user] << 32 | trace_waits.seq[which]

    def places(self, cycle_vertices: Sequence[int]) -> list[WaitingNode]:
        """Return the nodes of a cycle from the first NPU on; each node waits for the next.

        A collective is the node of each member that takes part in the cycle.

        Args:
            cycle_vertices: The vertices of the cycle.
        """
        nodes = int(self._first[-1])
        found: list[WaitingNode] = []
        for at, vertex in enumerate(cycle_vertices):
            if vertex < nodes:
                found.append(self._place(vertex))
                continue
            waiting = self._place(cycle_vertices[at - 1])
            member = self._place(cycle_vertices[(at + 1) % len(cycle_vertices)])
            # The cycle enters a collective at one member and leaves it at another: both belong to the text
            own = self._parent_in(waiting, member)
            if own != member:
                found.append(own)
        first = found.index(min(found))
        return found[first:] + found[:first]

    def _place(self, vertex: int) -> WaitingNode:
        """Return NPU, trace and row of a vertex that is a node."""
        trace = int(np.searchsorted(self._first, vertex, side="right")) - 1
        user, row = divmod(vertex - int(self._first[trace]), len(self._rows[trace]))
        return WaitingNode(int(self._sources.users[trace][user]), trace, int(self._rows[trace][row]))

    def _parent_in(self, waiting: WaitingNode, member: WaitingNode) -> WaitingNode:
        """Return the parent of a node that is the same collective as another NPU's node."""
        keys = []
        for place in (waiting, member):
            trace_waits = self._waits[place.trace]
            user = int(np.searchsorted(self._sources.users[place.trace], place.npu))
            keys.append((trace_waits, self._key(trace_waits, user, np.arange(len(trace_waits.row)))))
        (trace_waits, own), (others, of_member) = keys
        key = of_member[np.flatnonzero(others.row == member.row)[0]]
        rows = trace_waits.row[own == key]
        parents = trace_waits.parent[trace_waits.child == waiting.row]
        return WaitingNode(waiting.npu, waiting.trace, int(np.intersect1d(rows, parents)[0]))


def _joined(arrays: Sequence[Int64]) -> Int64:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _matrix(graph: _Graph, keep: Mask | slice = slice(None)) -> csr_matrix:
    before, after = graph.before[keep], graph.after[keep]
    return csr_matrix((np.ones(len(before), np.int8), (after, before)), (graph.vertices, graph.vertices))


def _on_cycles(graph: _Graph) -> Int64:
    """Return int64[vertices], the number of each vertex's set of mutually waiting vertices, -1 = on no cycle."""
    label = connected_components(_matrix(graph), directed=True, connection="strong")[1].astype(np.int64)
    # A component of one vertex is no cycle, unless the vertex waits for itself
    alone = np.bincount(label, minlength=1)[label] == 1
    itself = np.zeros(graph.vertices, bool)
    itself[graph.before[graph.before == graph.after]] = True
    return np.where(alone & ~itself, _NONE, label)


def _cycle(graph: _Graph, set_of_vertex: Int64, start: int) -> list[int]:
    """Return a shortest cycle through vertex `start` within its set, each vertex waiting for the next."""
    inside = (set_of_vertex[graph.before] == set_of_vertex[start]) & (
        set_of_vertex[graph.after] == set_of_vertex[start]
    )
    order, waiting = breadth_first_order(_matrix(graph, inside), start, directed=True, return_predecessors=True)
    # The vertices that wait for `start`: the nearest one closes the shortest cycle
    last_ones = graph.after[inside & (graph.before == start)]
    place = np.full(graph.vertices, len(order))
    place[order] = np.arange(len(order))
    path = [int(last_ones[np.argmin(place[last_ones])])]
    while path[-1] != start:
        path.append(int(waiting[path[-1]]))
    return path[::-1]
