"""The traces of a set as one sequence of events per role of a group, and traces of such sequences.

A walk over all roles makes the sequences: it follows one role as far as possible, then the next. A receive happens
after its send, and a collective of several roles happens when all of them have reached it.
"""

import dataclasses
import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nadi.et.blocks import Block, TraceColumns
from nadi.et.errors import TraceError
from nadi.et.order import children, topological_order
from nadi.et.reader import collective_name
from nadi.et.schema import ALL_NPUS, CollectiveCommType, NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int32

# Members of groups: roles, NPUs of each role, and families of groups as products of roles and strides.
#
# A *role* is the part of all NPUs with one distinct trace, usually a pipeline stage; all roles have equally many NPUs,
# and NPU i of a role is its i-th in ascending order. A family of groups is a set of roles times an arithmetic
# progression of NPUs within each of them: tensor parallelism is ((r,), 1, 8), data parallelism ((r,), 8, 4), first and
# last stage ((0, 3), 1, 1).

Groups = tuple[tuple[int, ...], ...]


class TraceSetFields(Protocol):
    """A trace set, by the fields that are read here; see docs/reference/interfaces.md."""

    @property
    def traces(self) -> Sequence[TraceTable]:
        """Distinct traces."""

    @property
    def trace_of_npu(self) -> Int32:
        """Trace of each NPU."""

    @property
    def example_npu(self) -> Int32:
        """NPU from which each trace counts its peers."""

    @property
    def families(self) -> Mapping[str, Groups]:
        """Groups by name."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of groups, as one role sees it."""

    roles: tuple[int, ...]  # roles of its members, ascending
    stride: int  # distance between members of one role, in NPUs
    size: int  # number of members in each role
    slot: str  # name in streams: scope, shape, and an index among the families with both


@dataclasses.dataclass(frozen=True)
class SetLayout:
    """Roles (NPUs that run one trace, such as a pipeline stage) and the families of groups of each."""

    roles: int  # number of roles
    width: int  # number of NPUs per role
    families: tuple[Family, ...]  # families of all roles; a role is in at most one family per slot

    def roles_of(self, role: int, slot: str) -> tuple[int, ...]:
        """Return the roles that take part in a collective of a role's slot.

        Args:
            role: A role, from 0.
            slot: The slot of a family that the role is in, or "" for operations that are no collectives.
        """
        return next((each.roles for each in self.families if each.slot == slot and role in each.roles), (role,))

    def scaled(self, npus: int) -> "SetLayout":
        """Return the layout for another number of NPUs: groups that reach to the last NPU of a role grow or shrink.

        Raise TraceError if the groups do not divide the NPUs of a role.

        Args:
            npus: The number of NPUs of all roles.
        """
        width, rest = divmod(npus, self.roles)
        families = [
            dataclasses.replace(each, size=max(width // each.stride, 1)) if _is_outer(each, self.width) else each
            for each in self.families
        ]
        # The NPUs of a role in one group of each family that does not grow: the unit of growth
        block = max([1, *(each.stride * (1 if _is_outer(each, self.width) else each.size) for each in families)])
        if rest or width < 1 or width % block:
            multiple = f"{self.roles * block}: {self.roles} stages of {block}"
            raise TraceError(f"{npus} ranks: expected a multiple of {multiple}")
        return SetLayout(self.roles, width, tuple(families))

    def groups(self, family: Family) -> Groups:
        """Return the groups of a family as NPUs, role after role.

        Args:
            family: A family of this layout.
        """
        found = []
        # For width 8, stride 2 and size 2: places 0 2, 1 3, 4 6 and 5 7
        for begin in range(0, self.width, family.stride * family.size):
            for first in range(begin, begin + family.stride):
                places = range(first, first + family.stride * family.size, family.stride)
                found.append(tuple(role * self.width + place for role in family.roles for place in places))
        return tuple(found)

    def family_names(self) -> dict[str, str]:
        """Return the name of each slot's groups in new traces: "g1", "g2" and so on."""
        slots = dict.fromkeys(family.slot for family in self.families)
        return {slot: f"g{number}" for number, slot in enumerate(slots, 1)}

    def families_by_name(self) -> dict[str, Groups]:
        """Return the groups of each name."""
        by_name: dict[str, Groups] = dict.fromkeys(self.family_names().values(), ())
        for family in self.families:
            name, groups = self.family_names()[family.slot], self.groups(family)
            if not set(groups) <= set(by_name[name]):
                by_name[name] += groups
        return by_name


class NamedLayout(NamedTuple):
    """A layout and the names that led to it."""

    layout: SetLayout  # layout of a trace set
    slots: dict[tuple[int, str], str]  # slot by role and name of the group
    places: dict[int, tuple[int, int]]  # role and index within the role by NPU


def layout_of(traces: TraceSetFields) -> NamedLayout:
    """Return the layout of a trace set.

    Args:
        traces: A trace set whose traces have equally many NPUs each.
    """
    roles = len(traces.traces)
    users = [np.flatnonzero(traces.trace_of_npu == role).tolist() for role in range(roles)]
    width = len(users[0]) if users else 0
    if not width or any(len(own) != width for own in users):
        path = traces.traces[0].path if roles else "trace set"
        raise TraceError(f"{path}: traces of different numbers of NPUs, expected as many for each")
    places = {npu: (role, i) for role, own in enumerate(users) for i, npu in enumerate(own)}
    families: dict[tuple[tuple[int, ...], str], Family] = {}
    slots: dict[tuple[int, str], str] = {}
    names_of_shape: dict[str, list[str]] = {}
    for role, table in enumerate(traces.traces):
        for row in np.unique(table.group[table.comm_type >= 0]).tolist():
            name = table.group_names[row]
            member_roles, stride, size = _product(traces, name, places, role)
            shape = _shape(len(member_roles), roles, stride, size, width)
            # Groups of one shape differ in the order of their first use
            names = names_of_shape.setdefault(shape, [])
            if name not in names:
                names.append(name)
            slot = slots[role, name] = f"{shape} {names.index(name)}"
            families[member_roles, slot] = Family(member_roles, stride, size, slot)
    return NamedLayout(SetLayout(roles, width, tuple(families.values())), slots, places)


def _product(
    traces: TraceSetFields, name: str, place_of_npu: Mapping[int, tuple[int, int]], role: int
) -> tuple[tuple[int, ...], int, int]:
    """Return roles, stride and size of groups that a role means by a name; place_of_npu: (role, index in the role)."""
    width = len(place_of_npu) // len(traces.traces)
    if name == ALL_NPUS:
        return tuple(range(len(traces.traces))), 1, width
    if name not in traces.families:
        raise TraceError(f'{traces.traces[role].path}: group "{name}", expected a family of the trace set')
    groups = [
        sorted(place_of_npu[npu] for npu in group)
        for group in traces.families[name]
        if any(place_of_npu.get(npu, (-1, 0))[0] == role for npu in group)
    ]
    first = min(groups)
    member_roles = tuple(sorted({place[0] for place in first}))
    # The places of one group's members in one role determine stride and size, as a comparison with all groups confirms
    own = [i for r, i in first if r == member_roles[0]]
    stride = own[1] - own[0] if len(own) > 1 else 1
    expected = SetLayout(len(traces.traces), width, ()).groups(Family(member_roles, stride, len(own), ""))
    as_numbers = {tuple(r * width + i for r, i in group) for group in groups}
    if as_numbers != set(expected):
        raise TraceError(f'{traces.traces[role].path}: family "{name}", expected groups of every n-th NPU of a role')
    return member_roles, stride, len(own)


def _shape(num_member_roles: int, num_roles: int, stride: int, size: int, role_width: int) -> str:
    """Return scope and shape of a family, which families of different sets share."""
    scope = "own" if num_member_roles == 1 else "all" if num_member_roles == num_roles else "some"
    if size == 1:
        return f"{scope}, one each"
    if size == role_width:
        return f"{scope}, whole"
    if stride == 1:
        return f"{scope}, inner"
    return f"{scope}, {'outer' if stride * size == role_width else 'middle'}"


def _is_outer(family: Family, width: int) -> bool:
    """Return whether its groups reach to the last NPU of a role."""
    return family.size > 1 and family.stride * family.size == width


COMPUTE, HOST, LOAD, STORE = "compute", "host", "load", "store"
SEND, RECEIVE, COLLECTIVE = "send", "receive", "collective"
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
    slot: str = ""  # slot of a collective's group (`et.synthesis.streams.Family`)


Parent = tuple[Operation, int]  # earlier event of the same role: its operation, and the number of such events since


class StreamEvent(NamedTuple):
    """A node of one role."""

    operation: Operation  # operation of the node
    value: int  # microseconds of compute and host nodes, bytes of all others
    parents: tuple[Parent, ...]  # parents of the node, the nearest first


class Stream(NamedTuple):
    """A layout, and the events of each role in order."""

    layout: SetLayout  # roles and groups
    roles: list[list[StreamEvent]]  # events of each role, in an order that can happen


def is_message(operation: Operation) -> bool:
    """Return whether an operation is a send or a receive.

    Args:
        operation: The operation of an event.
    """
    return operation.kind in {SEND, RECEIVE}


def signed_distance(num_roles: int, distance: int) -> int:
    """Return a distance between roles as the shorter way round: 2 of 3 roles is -1.

    Args:
        num_roles: The number of roles, which form a ring.
        distance: The number of roles from one role to another, of any sign.
    """
    distance %= num_roles
    return distance - num_roles if distance > num_roles // 2 else distance


def stream_of(traces: TraceSetFields) -> Stream:
    """Return the stream of a trace set.

    Args:
        traces: A trace set whose messages and collectives are complete.
    """
    named = layout_of(traces)
    return Stream(named.layout, _Walk(traces, named).events())


class _Walk:
    """A walk over all rows of all roles, in order of readiness; `role` is the number of a trace."""

    def __init__(self, traces: TraceSetFields, named: NamedLayout) -> None:
        self._traces = traces
        self._named = named
        self._tables = list(traces.traces)
        self._children = [tuple(part.tolist() for part in children(table)) for table in self._tables]
        self._waits = [np.diff(table.dep_ptr).tolist() for table in self._tables]  # parents that have not happened
        self._ready: list[list[int]] = [[] for _ in self._tables]  # heap of rows that can happen, for each role
        self._receive_of: dict[tuple[int, int], tuple[int, int]] = {}  # (role, row) of the receive of each send
        self._collective_of: dict[tuple[int, int], tuple[object, int]] = {}  # key, and number of roles, of (role, row)
        # (role, row) that wait for other roles, by key
        self._arrived: dict[object, list[tuple[int, int]]] = defaultdict(list)
        self._order: list[list[int]] = [[] for _ in self._tables]  # rows of each role in the order that is found
        self._operations = [self._operations_of(role) for role in range(len(self._tables))]
        self._match_messages()
        self._match_collectives()

    def events(self) -> list[list[StreamEvent]]:
        """Walk, and return the events of each role."""
        roles = len(self._tables)
        for role, waits in enumerate(self._waits):
            self._ready[role] = [row for row, parents in enumerate(waits) if parents == 0]
        role = idle = 0
        # Stop when no role has had a ready node in a whole round
        while idle < roles:
            idle = 0 if self._ready[role] else idle + 1
            while self._ready[role]:
                self._arrive(role, heapq.heappop(self._ready[role]))
            role = (role + 1) % roles
        if any(any(waits) for waits in self._waits) or any(self._arrived.values()):
            path = self._tables[0].path
            raise TraceError(f"{path}: nodes of different traces wait for each other, expected an order")
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
        """Let a row wait for one parent less; it is ready after the last one."""
        self._waits[role][row] -= 1
        if self._waits[role][row] == 0:
            heapq.heappush(self._ready[role], row)

    def _events_of(self, role: int) -> list[StreamEvent]:
        """Return the operations of a role in order, with values and parents as (operation, number of them back)."""
        table = self._tables[role]
        number_of: dict[int, tuple[Operation, int]] = {}
        happened: dict[Operation, int] = defaultdict(int)
        events = []
        for row in self._order[role]:
            operation = self._operations[role][row]
            if operation is None:
                continue
            parents = []
            for parent in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist():
                if parent in number_of:
                    other, number = number_of[parent]
                    # The parent is the last, 0, or an earlier one of its kind: with 5 sends so far, number 3 is 1 back
                    parents.append((happened[other] - number - 1, other))
            sizes = table.tensor_size if operation.kind in {LOAD, STORE} else table.comm_size
            values = table.duration_micros if operation.kind in {COMPUTE, HOST} else sizes
            nearest_first = tuple((other, back) for back, other in sorted(parents))
            events.append(StreamEvent(operation, max(int(values[row]), 0), nearest_first))
            number_of[row] = operation, happened[operation]
            happened[operation] += 1
        return events

    def _operations_of(self, role: int) -> list[Operation | None]:
        """Return the operation of each row of a role; None for METADATA nodes."""
        table = self._tables[role]
        operations: list[Operation | None] = []
        for row, node_type in enumerate(table.type.tolist()):
            is_host = bool(table.is_cpu_op[row]) and node_type == NodeType.COMP_NODE
            if node_type == NodeType.METADATA_NODE:
                operations.append(None)
            elif is_host or (node_type == NodeType.COMM_COLL_NODE and table.comm_type[row] < 0):
                operations.append(Operation(HOST))
            elif node_type == NodeType.COMM_COLL_NODE:
                slot = self._named.slots[role, table.group_names[table.group[row]]]
                operations.append(Operation(COLLECTIVE, comm_type=int(table.comm_type[row]), slot=slot))
            elif node_type in {NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE}:
                # Distances repeat among roles, as all stages but the last send to the next one
                distance = signed_distance(len(self._tables), self._peer(role, row) - role)
                operations.append(Operation(_KIND_OF_TYPE[NodeType(node_type)], distance))
            else:
                operations.append(Operation(_KIND_OF_TYPE[NodeType(node_type)]))
        return operations

    def _peer(self, role: int, row: int) -> int:
        """Return the role of the other end."""
        table = self._tables[role]
        is_send = table.type[row] == NodeType.COMM_SEND_NODE
        peer = int((table.comm_dst if is_send else table.comm_src)[row])
        own = self._named.places.get(int(self._traces.example_npu[role]))
        other = self._named.places.get(peer)
        if own is None or other is None or other[1] != own[1] or other[0] == own[0]:
            place = f"{table.path}: node {table.node_id[row]}"
            raise TraceError(f"{place}: NPU {peer}, expected the corresponding NPU of another trace")
        return other[0]

    def _match_messages(self) -> None:
        """Make each receive wait for its send: the n-th of a pair of roles and a tag."""
        ends: dict[str, dict[object, list[tuple[int, int]]]] = {SEND: defaultdict(list), RECEIVE: defaultdict(list)}
        for role, table in enumerate(self._tables):
            for row in topological_order(table).tolist():
                operation = self._operations[role][row]
                if operation is not None and is_message(operation):
                    peer, tag = (role + operation.roles_away) % len(self._tables), max(int(table.comm_tag[row]), 0)
                    channel: object = (role, peer, tag) if operation.kind == SEND else (peer, role, tag)
                    ends[operation.kind][channel].append((role, row))
        # Lists of unequal lengths: the first that is too many is named in the error
        for kind, other in ((RECEIVE, SEND), (SEND, RECEIVE)):
            for channel, own in ends[kind].items():
                if len(own) > len(ends[other][channel]):
                    role, row = own[len(ends[other][channel])]
                    place = f"{self._tables[role].path}: node {self._tables[role].node_id[row]}"
                    raise TraceError(f"{place}: a {kind} without a {other}")
        for channel, sends in ends[SEND].items():
            for send, (role, row) in zip(sends, ends[RECEIVE][channel], strict=True):
                self._receive_of[send] = (role, row)
                self._waits[role][row] += 1

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
                    # The n-th call of a group in one role meets the n-th in the others, as in a communicator
                    self._collective_of[role, row] = ((slot, roles, calls[group]), len(roles))
                calls[group] += 1


def traces_of(stream: Stream) -> list[TraceTable]:
    """Return the trace of each role, as its first NPU runs it; a receive is as large as its send.

    Args:
        stream: The events of each role in order.
    """
    layout = stream.layout
    names = layout.family_names()
    sent: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for role, events in enumerate(stream.roles):
        for operation, value, _ in events:
            if operation.kind == SEND:
                # A receive takes the size of the send that it meets
                sent[role, (role + operation.roles_away) % layout.roles].append(value)
    tables = []
    for role, events in enumerate(stream.roles):
        block = Block()
        places: dict[Operation, list[int]] = defaultdict(list)
        for operation, value, parents in events:
            other = (role + operation.roles_away) % layout.roles
            size = sent[other, role].popleft() if operation.kind == RECEIVE else value
            after = [places[kind][-1 - back] for kind, back in parents if back < len(places[kind])]
            # None of the parents has happened so far: keep the order by the node before
            if parents and not after:
                after = [len(block) - 1] if len(block) else []
            places[operation].append(len(block))
            _add(block, operation, size, other * layout.width, names, sorted(set(after)))
        columns = TraceColumns(npu=role * layout.width)
        columns.stamp(block, "synthetic/")
        tables.append(columns.table())
    return tables


def _add(
    block: Block, operation: Operation, value: int, peer: int, name_of_slot: Mapping[str, str], after: Sequence[int]
) -> None:
    """Add one node with a value (microseconds or bytes) to a block; `after` are the rows of its parents."""
    place = len(block)
    if operation.kind in {COMPUTE, HOST}:
        is_host = operation.kind == HOST
        block.comp(f"{operation.kind}-{place}", duration_micros=value, is_cpu_op=is_host, after=after)
    elif operation.kind in {LOAD, STORE}:
        node_type = NodeType.MEM_LOAD_NODE if operation.kind == LOAD else NodeType.MEM_STORE_NODE
        block.mem(f"{operation.kind}-{place}", node_type, value, after=after)
    elif operation.kind == COLLECTIVE:
        kind = CollectiveCommType(operation.comm_type)
        name = f"{collective_name(kind)}-{place}"
        block.coll(name, kind, value, group=name_of_slot[operation.slot], after=after)
    elif operation.kind == SEND:
        block.send(f"{operation.kind}-{place}", value, peer=peer, after=after)
    else:
        block.recv(f"{operation.kind}-{place}", value, peer=peer, after=after)
