"""The traces of a set as one sequence of events per role, in an order that can happen.

A walk over all roles makes the sequences: it follows one role as far as possible, then the next. A receive happens
after its send, and a collective of several roles happens when all of them have reached it.
"""

import heapq
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from et.errors import TraceError
from et.order import children, topological_order
from et.schema import NodeType
from et.synthesis.layout import NamedLayout, SetLayout, TraceSetFields, layout_of, path_of
from et.table import TraceTable

COMPUTE, HOST, LOAD, STORE, SEND, RECEIVE, COLLECTIVE = (
    "compute",
    "host",
    "load",
    "store",
    "send",
    "receive",
    "collective",
)
_KIND_OF_TYPE = {
    NodeType.COMP_NODE: COMPUTE,
    NodeType.MEM_LOAD_NODE: LOAD,
    NodeType.MEM_STORE_NODE: STORE,
    NodeType.COMM_SEND_NODE: SEND,
    NodeType.COMM_RECV_NODE: RECEIVE,
}


class Operation(NamedTuple):
    """The operation of an event."""

    kind: str  # one of the kinds above
    roles_away: int = 0  # distance in roles to the other end of a send or receive, modulo the number of roles
    comm_type: int = -1  # type of a collective (`CollectiveCommType`), -1 for other operations
    slot: str = ""  # slot of a collective's group (`et.synthesis.layout.Family`)


Parent = tuple[Operation, int]
"""An earlier event of the same role: its operation, and the number of events with that operation since."""


class StreamEvent(NamedTuple):
    """A node of one role."""

    operation: Operation  # operation of the node
    value: int  # microseconds of compute and host nodes, bytes of all others
    parents: tuple[Parent, ...]  # parents of the node, the nearest first


class Stream(NamedTuple):
    """A layout, and the events of each role in order."""

    layout: SetLayout
    roles: list[list[StreamEvent]]


def is_message(operation: Operation) -> bool:
    """Return whether an operation is a send or a receive."""
    return operation.kind in {SEND, RECEIVE}


def signed_distance(roles: int, distance: int) -> int:
    """Return a distance between roles as the shorter way round: 2 of 3 roles is -1."""
    distance %= roles
    return distance - roles if distance > roles // 2 else distance


def stream_of(traces: TraceSetFields) -> Stream:
    """Return the stream of a trace set."""
    named = layout_of(traces)
    return Stream(named.layout, _Walk(traces, named).events())


class _Walk:
    """A walk over all rows of all roles, in order of readiness."""

    def __init__(self, traces: TraceSetFields, named: NamedLayout) -> None:
        self._traces = traces
        self._named = named
        self._tables = list(traces.traces)
        self._children = [tuple(part.tolist() for part in children(table)) for table in self._tables]
        self._waits = [np.diff(table.dep_ptr).tolist() for table in self._tables]
        self._ready: list[list[int]] = [[] for _ in self._tables]
        self._receive_of: dict[tuple[int, int], tuple[int, int]] = {}
        self._collective_of: dict[tuple[int, int], tuple[object, int]] = {}
        self._arrived: dict[object, list[tuple[int, int]]] = defaultdict(list)
        self._order: list[list[int]] = [[] for _ in self._tables]
        self._match_messages()
        self._match_collectives()

    def events(self) -> list[list[StreamEvent]]:
        """Walk, and return the events of each role."""
        roles = len(self._tables)
        for role, waits in enumerate(self._waits):
            self._ready[role] = [row for row, parents in enumerate(waits) if parents == 0]
        role = idle = 0
        while idle < roles:
            idle = 0 if self._ready[role] else idle + 1
            while self._ready[role]:
                self._arrive(role, heapq.heappop(self._ready[role]))
            role = (role + 1) % roles
        if any(any(waits) for waits in self._waits) or any(self._arrived.values()):
            raise TraceError(
                f"{path_of(self._traces)}: nodes of different traces wait for each other, expected an order"
            )
        return [self._events_of(role) for role in range(roles)]

    def _arrive(self, role: int, row: int) -> None:
        """Let a node happen, or wait for the other roles of its collective."""
        members = [(role, row)]
        if (role, row) in self._collective_of:
            key, roles = self._collective_of[role, row]
            self._arrived[key].append((role, row))
            if len(self._arrived[key]) < roles:
                return
            members = self._arrived.pop(key)
        for own_role, own_row in members:
            self._order[own_role].append(own_row)
            child_ptr, child = self._children[own_role]
            for other in child[child_ptr[own_row] : child_ptr[own_row + 1]]:
                self._finish_parent(own_role, other)
            if (own_role, own_row) in self._receive_of:
                self._finish_parent(*self._receive_of[own_role, own_row])

    def _finish_parent(self, role: int, row: int) -> None:
        self._waits[role][row] -= 1
        if self._waits[role][row] == 0:
            heapq.heappush(self._ready[role], row)

    def _events_of(self, role: int) -> list[StreamEvent]:
        table = self._tables[role]
        number_of: dict[int, tuple[Operation, int]] = {}
        happened: dict[Operation, int] = defaultdict(int)
        events = []
        for row in self._order[role]:
            operation = self._operation(role, row)
            if operation is None:
                continue
            parents = []
            for parent in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist():
                if parent in number_of:
                    other, number = number_of[parent]
                    parents.append((happened[other] - number - 1, other))
            events.append(
                StreamEvent(
                    operation, _value(table, row, operation), tuple((other, back) for back, other in sorted(parents))
                )
            )
            number_of[row] = operation, happened[operation]
            happened[operation] += 1
        return events

    def _operation(self, role: int, row: int) -> Operation | None:
        table = self._tables[role]
        node_type = NodeType(table.type[row])
        if node_type == NodeType.METADATA_NODE:
            return None
        if node_type == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
            slot = self._named.slots[role, table.group_names[table.group[row]]]
            return Operation(COLLECTIVE, comm_type=int(table.comm_type[row]), slot=slot)
        if node_type == NodeType.COMM_COLL_NODE or (node_type == NodeType.COMP_NODE and table.is_cpu_op[row]):
            return Operation(HOST)
        operation = Operation(_KIND_OF_TYPE[node_type])
        if not is_message(operation):
            return operation
        return operation._replace(roles_away=signed_distance(len(self._tables), self._peer(role, row) - role))

    def _peer(self, role: int, row: int) -> int:
        """Return the role of the other end."""
        table = self._tables[role]
        is_send = table.type[row] == NodeType.COMM_SEND_NODE
        peer = int((table.comm_dst if is_send else table.comm_src)[row])
        own = self._named.places.get(int(self._traces.example_npu[role]))
        other = self._named.places.get(peer)
        if own is None or other is None or other[1] != own[1] or other[0] == own[0]:
            raise TraceError(
                f"{table.path}: node {table.node_id[row]}: NPU {peer}, expected the corresponding NPU of another trace"
            )
        return other[0]

    def _match_messages(self) -> None:
        """Make each receive wait for its send."""
        waiting: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for end in (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE):
            for role, table in enumerate(self._tables):
                order = topological_order(table)
                for row in order[table.type[order] == end].tolist():
                    peer, tag = self._peer(role, row), max(int(table.comm_tag[row]), 0)
                    if end == NodeType.COMM_SEND_NODE:
                        waiting[role, peer, tag].append((role, row))
                    elif waiting[peer, role, tag]:
                        self._receive_of[waiting[peer, role, tag].pop(0)] = (role, row)
                        self._waits[role][row] += 1
                    else:
                        raise TraceError(f"{table.path}: node {table.node_id[row]}: a receive without a send")
        if any(waiting.values()):
            role, row = next(sends[0] for sends in waiting.values() if sends)
            table = self._tables[role]
            raise TraceError(f"{table.path}: node {table.node_id[row]}: a send without a receive")

    def _match_collectives(self) -> None:
        """Give a collective of several roles one key in all of them."""
        for role, table in enumerate(self._tables):
            calls: dict[int, int] = defaultdict(int)
            order = topological_order(table)
            for row in order[table.comm_type[order] >= 0].tolist():
                group = int(table.group[row])
                slot = self._named.slots[role, table.group_names[group]]
                roles = self._named.layout.roles_of(role, slot)
                if len(roles) > 1:
                    self._collective_of[role, row] = ((slot, roles, calls[group]), len(roles))
                calls[group] += 1


def _value(table: TraceTable, row: int, operation: Operation) -> int:
    if operation.kind in {COMPUTE, HOST}:
        return int(table.duration_micros[row])
    return max(int((table.tensor_size if operation.kind in {LOAD, STORE} else table.comm_size)[row]), 0)
