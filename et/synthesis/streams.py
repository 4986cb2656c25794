"""The traces of all roles as one stream of events, in an order in which they can happen.

A stream goes along one role as far as it can, then to the next. A collective of several roles is one event of all of
them; a send comes before its receive. So whatever such a stream says, traces made of it match and cannot deadlock: each
event waits only for events before it.
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
_OF_TYPE = {
    NodeType.COMP_NODE: COMPUTE,
    NodeType.MEM_LOAD_NODE: LOAD,
    NodeType.MEM_STORE_NODE: STORE,
    NodeType.COMM_SEND_NODE: SEND,
    NodeType.COMM_RECV_NODE: RECEIVE,
}


class Operation(NamedTuple):
    """What an event is.

    Attributes:
        kind: one of those above.
        roles_away: of sends and receives, to which role, counted round.
        comm_type: of collectives.
        slot: of collectives, whose they are.
    """

    kind: str
    roles_away: int = 0
    comm_type: int = -1
    slot: str = ""


def is_time(operation: Operation) -> bool:
    """Whether its value is microseconds."""
    return operation.kind in {COMPUTE, HOST}


class StreamEvent(NamedTuple):
    """A node of one role, or a collective of several.

    Attributes:
        role: in whose turn it happens.
        operation: what it is.
        value: microseconds of compute and host nodes, bytes of all others.
        parents: how many of the role's events before it each parent is, 1 = the one just before; ascending.
    """

    role: int
    operation: Operation
    value: int
    parents: tuple[int, ...]


class Stream(NamedTuple):
    """Events in order, and who takes part in what."""

    layout: SetLayout
    events: list[StreamEvent]


def away(roles: int, distance: int) -> int:
    """A distance between roles, counted round: 2 of 3 roles is -1."""
    distance %= roles
    return distance - roles if distance > roles // 2 else distance


def stream_of(traces: TraceSetFields) -> Stream:
    """The stream of a trace set.

    Raises:
        TraceError: its layout is none; messages go to other places than the same one of another role; sends and
            receives or collectives do not match, or wait for each other.
    """
    named = layout_of(traces)
    walk = _Walk(traces, named)
    walk.go()
    return Stream(named.layout, walk.events)


class _Walk:
    """Goes over all rows of all roles as they become ready."""

    def __init__(self, traces: TraceSetFields, named: NamedLayout) -> None:
        self._traces = traces
        self._named = named
        self._tables = list(traces.traces)
        self._roles = len(self._tables)
        self._children = [tuple(part.tolist() for part in children(table)) for table in self._tables]
        self._waits = [np.diff(table.dep_ptr).tolist() for table in self._tables]
        self._place: list[dict[int, int]] = [{} for _ in self._tables]
        self._ready: list[list[int]] = [[] for _ in self._tables]
        self._receive_of: dict[tuple[int, int], tuple[int, int]] = {}
        self._meeting: dict[tuple[int, int], tuple[object, int]] = {}
        self._arrived: dict[object, list[tuple[int, int]]] = defaultdict(list)
        self.events: list[StreamEvent] = []
        self._match_messages()
        self._match_collectives()

    def go(self) -> None:
        """Make all events."""
        for role, waits in enumerate(self._waits):
            self._ready[role] = [row for row, parents in enumerate(waits) if parents == 0]
        role = idle = 0
        while idle < self._roles:
            idle = 0 if self._ready[role] else idle + 1
            while self._ready[role]:
                self._happen(role, heapq.heappop(self._ready[role]))
            role = (role + 1) % self._roles
        if any(any(waits) for waits in self._waits) or any(self._arrived.values()):
            raise TraceError(
                f"{path_of(self._traces)}: nodes of different traces wait for each other, expected an order"
            )

    def _happen(self, role: int, row: int) -> None:
        members = [(role, row)]
        if (role, row) in self._meeting:
            key, many = self._meeting[role, row]
            self._arrived[key].append((role, row))
            if len(self._arrived[key]) < many:
                return
            members = self._arrived.pop(key)
        operation = self._operation(role, row)
        if operation is not None:
            self.events.append(
                StreamEvent(role, operation, self._value(role, row, operation), self._parents(role, row))
            )
        for own_role, own_row in members:
            if operation is not None:
                self._place[own_role][own_row] = len(self._place[own_role])
            child_ptr, child = self._children[own_role]
            for other in child[child_ptr[own_row] : child_ptr[own_row + 1]]:
                self._one_less(own_role, other)
            if (own_role, own_row) in self._receive_of:
                self._one_less(*self._receive_of[own_role, own_row])

    def _one_less(self, role: int, row: int) -> None:
        self._waits[role][row] -= 1
        if self._waits[role][row] == 0:
            heapq.heappush(self._ready[role], row)

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
        kind = _OF_TYPE[node_type]
        return Operation(kind, away(self._roles, self._peer(role, row) - role) if kind in {SEND, RECEIVE} else 0)

    def _value(self, role: int, row: int, operation: Operation) -> int:
        table = self._tables[role]
        if operation.kind in {COMPUTE, HOST}:
            return int(table.duration_micros[row])
        return max(int((table.tensor_size if operation.kind in {LOAD, STORE} else table.comm_size)[row]), 0)

    def _parents(self, role: int, row: int) -> tuple[int, ...]:
        table, place = self._tables[role], self._place[role]
        rows = table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()
        return tuple(sorted(len(place) - place[parent] for parent in rows if parent in place))

    def _peer(self, role: int, row: int) -> int:
        """The role of the other end."""
        table = self._tables[role]
        is_send = table.type[row] == NodeType.COMM_SEND_NODE
        example = int(self._traces.example_npu[role])
        peer = int((table.comm_dst if is_send else table.comm_src)[row])
        own = self._named.places.get(example)
        other = self._named.places.get(peer)
        if own is None or other is None or other[1] != own[1] or other[0] == own[0]:
            raise TraceError(
                f"{table.path}: node {table.node_id[row]}: NPU {peer}, expected the like NPU of another trace"
            )
        return other[0]

    def _match_messages(self) -> None:
        """A receive waits for its send, too."""
        waiting: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        ends = (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
        for end in ends:
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
                        raise TraceError(f"{table.path}: node {table.node_id[row]}: a receive that nobody sends to")
        if any(waiting.values()):
            role, row = next(left[0] for left in waiting.values() if left)
            table = self._tables[role]
            raise TraceError(f"{table.path}: node {table.node_id[row]}: a send that nobody receives")

    def _match_collectives(self) -> None:
        """Members of several roles are there before such a collective happens."""
        for role, table in enumerate(self._tables):
            many: dict[int, int] = defaultdict(int)
            order = topological_order(table)
            for row in order[table.comm_type[order] >= 0].tolist():
                group = int(table.group[row])
                slot = self._named.slots[role, table.group_names[group]]
                family = self._named.layout.family(role, slot)
                if family is not None and len(family.roles) > 1:
                    self._meeting[role, row] = ((slot, family.roles, many[group]), len(family.roles))
                many[group] += 1


def nodes_of(stream: Stream) -> int:
    """Nodes of the traces of a stream, one for each role that takes part in an event."""
    return sum(len(taking_part(stream.layout, event)) for event in stream.events)


def taking_part(layout: SetLayout, event: StreamEvent) -> tuple[int, ...]:
    """Roles that have a node for an event."""
    if event.operation.kind != COLLECTIVE:
        return (event.role,)
    family = layout.family(event.role, event.operation.slot)
    return (event.role,) if family is None else family.roles


def values_of(table: TraceTable) -> list[list[int]]:
    """The sizes of a trace's messages in order, and the times of its compute nodes."""
    sizes, micros = table.comm_size[table.comm_size > 0], table.duration_micros[table.duration_micros > 0]
    return [sizes.tolist(), micros.tolist()]
