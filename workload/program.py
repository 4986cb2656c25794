"""From traces to a Program: what each NPU does, as arrays that the engine walks."""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from et import TraceTable
from topologies import Graph
from workload import collectives
from workload.aggregation import Use
from workload.check import MOST_NPUS, check_sizes
from workload.check_collectives import check_collectives
from workload.check_messages import check_messages
from workload.durations import ComputeModel, durations_ps
from workload.errors import WorkloadError
from workload.exchange import Exchange, agree, alone
from workload.groups import GroupTable, resolve
from workload.kinds import KINDS
from workload.own import IDLE, own_traces
from workload.pointers import pointers
from workload.remote import lanes
from workload.schedules import DONE_AT_ONCE, Schedules, ScheduleSet
from workload.settings import CollectiveSettings
from workload.shape import Shape, shape_of
from workload.splits import Matrices, matrices
from workload.trace_set import Families
from workload.tree import IF_ANY, trees_of
from workload.uneven import NAME as UNEVEN
from workload.uneven import units
from workload.view import AS_WRITTEN, COLLECTIVE, RECV, TraceView

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

NOT_HERE = -1
_LARGEST_PRODUCT = 2**62  # of buffer and chunks: the engine multiplies them


class Program(NamedTuple):
    """What all NPUs do. N nodes in T distinct traces; docs/interfaces.md says more.

    NPUs whose rows are equal share a trace, even if ids, names of nodes and names of groups differ. Row r of an NPU's
    trace is row r of its TraceTable. A rank has what its own NPUs do; NPUs and groups are numbered over all ranks.

    Attributes:
        npus: number of NPUs, of all ranks.
        trace_of_npu: int32[npus], the distinct trace; an NPU without work has an empty one. -1 = another rank's NPU.
        trace_ptr: int64[T+1], nodes of a trace.
        node_kind: int8[N], NOOP 0, COMPUTE 1, MEMORY 2, SEND 3, RECV 4, COLLECTIVE 5.
        node_lane: int8[N], CPU 0, COMPUTE 1, MEMORY 2, REMOTE 3.
        node_duration_ps: int64[N], of COMPUTE and MEMORY.
        node_bytes: int64[N], the message, or a collective's whole buffer.
        node_peer: int32[N], the other NPU minus the own.
        node_tag: int32[N], of SEND and RECV.
        node_seq: int32[N], how many with this peer and tag, or of this group, come before.
        node_group: int32[N], the NPU's own slot of the group.
        node_schedule: int32[N], -1 = done at once.
        node_priority: int32[N], comm_priority of the trace; where phases wait for a dimension, higher ones go first.
        node_deps: int32[N], number of parents.
        child_ptr: int64[N+1], children of a node.
        child: int32[], rows within the trace.
        slot_ptr: int64[npus+1], slots of an NPU; none of another rank's.
        slot_group: int32[], their groups.
        slot_member: int32[], the NPU's member number there.
        group_ptr: int64[G+1], members of a group; none where no NPU of this rank uses it. Group 0 is all NPUs.
        group_member: int32[], NPUs.
        trace_slot_ptr: int64[T+1], entries of coll_ptr that are a trace's slots.
        coll_ptr: int64[slots of all traces + 1], collectives of a slot.
        coll_node: int32[], their rows within the trace, in order.
        recv_ptr: int64[T+1], receives of a trace.
        recv_key: int64[], sorted within a trace: (peer + 2^19) << 44 | tag << 20 | seq, wrapped into int64.
        recv_node: int32[], their rows within the trace.
        schedules: the collectives as steps.
        in_network: groups that are reduced in switches, of all ranks; see workload.aggregation.
    """

    npus: int
    trace_of_npu: Int32
    trace_ptr: Int64
    node_kind: Int8
    node_lane: Int8
    node_duration_ps: Int64
    node_bytes: Int64
    node_peer: Int32
    node_tag: Int32
    node_seq: Int32
    node_group: Int32
    node_schedule: Int32
    node_priority: Int32
    node_deps: Int32
    child_ptr: Int64
    child: Int32
    slot_ptr: Int64
    slot_group: Int32
    slot_member: Int32
    group_ptr: Int64
    group_member: Int32
    trace_slot_ptr: Int64
    coll_ptr: Int64
    coll_node: Int32
    recv_ptr: Int64
    recv_key: Int64
    recv_node: Int32
    schedules: Schedules
    in_network: tuple[Use, ...] = ()


class Rows(NamedTuple):
    """The rows of one distinct trace of n nodes: columns of Program, and its parents as CSR."""

    kind: Int8
    lane: Int8
    duration_ps: Int64
    bytes: Int64
    peer: Int32
    tag: Int32
    seq: Int32
    group: Int32
    schedule: Int32
    priority: Int32
    dep_ptr: Int64
    dep: Int32


_COLUMNS = tuple(name for name in Rows._fields if name not in {"dep_ptr", "dep"})


def build_program(
    traces: Sequence[TraceTable],
    trace_of_npu: ArrayLike,
    npus: int,
    groups: Mapping[str, tuple[int, ...]] | None = None,
    compute: ComputeModel | None = None,
    settings: CollectiveSettings | None = None,
    *,
    fabric: Graph | None = None,
    exchange: Exchange = alone,
    example_npu: ArrayLike | None = None,
    families: Families | None = None,
) -> Program:
    """Check traces against each other and build what the engine runs.

    On several ranks each builds the part of its own NPUs; checks and group numbers are those of all ranks together, and
    so are errors: all ranks raise the same.

    Args:
        traces: distinct traces.
        trace_of_npu: int[npus], the trace of each NPU, IDLE (-1) = it has none, ELSEWHERE (-2) = it is another rank's.
        npus: NPUs of the fabric.
        groups: members of each named group; METADATA nodes may name others.
        compute: how durations are found; as recorded unless told otherwise.
        settings: how collectives are done.
        fabric: which the NPUs are on; needed by some collective algorithms only.
        exchange: with the other ranks; see workload.exchange.
        example_npu: int[traces], whose numbers the peers of a trace are, AS_WRITTEN (-1) = everybody's; None = of all
            traces. See workload.trace_set.
        families: groups by name of which each NPU is in one.

    Raises:
        WorkloadError: whatever is wrong with the traces, see workload.check, workload.check_collectives,
            workload.check_messages, workload.groups, workload.splits and workload.durations.
    """
    compute, settings = compute or ComputeModel(), settings or CollectiveSettings()
    trace = np.asarray(trace_of_npu, np.int32)
    has_traces = agree(exchange, lambda: _check_traces(traces, trace, npus))
    if not any(exchange(has_traces)):
        raise WorkloadError(f"no trace for any of {npus} NPUs: expected at least one")
    dims = None if fabric is None else fabric.dims
    examples = None if example_npu is None else np.asarray(example_npu, np.int32)
    own = agree(exchange, lambda: own_traces(traces, trace, dims, examples))
    agree(exchange, lambda: own.each(lambda view, users: check_sizes(view, users, npus)))
    table = resolve(own, npus, groups or {}, exchange, dims or (), families)
    check_collectives(own, table, exchange)
    check_messages(own, exchange)
    chooser = _Chooser(settings, table, fabric, matrices(own, table, exchange))
    distinct = _Distinct()
    own_rows = np.full(npus, NOT_HERE, np.int32)

    def add_rows(view: TraceView, users: Int64) -> None:
        for alike in _alike(view, table, users, chooser):
            rows = _rows(view, table, int(alike[0]), compute, chooser)
            own_rows[alike] = _share(distinct, view, rows, alike)

    agree(exchange, lambda: own.each(add_rows))
    if np.any(trace == IDLE):
        own_rows[trace == IDLE] = distinct.number(empty_rows(0))
    program = assemble(own_rows, distinct.rows, table, chooser.schedules.pack())
    uses = tuple(chooser.use(*told) for told in _told(program, chooser, exchange))
    return program._replace(in_network=uses, schedules=chooser.schedules.pack()) if uses else program


def empty_rows(n: int) -> Rows:
    """Rows of n nodes without work, bytes or parents, to be filled."""
    int8, int32, int64 = np.zeros(n, np.int8), np.zeros(n, np.int32), np.zeros(n, np.int64)
    return Rows(
        kind=int8,
        lane=int8.copy(),
        duration_ps=int64,
        bytes=int64.copy(),
        peer=int32,
        tag=int32.copy(),
        seq=int32.copy(),
        group=int32.copy(),
        schedule=np.full(n, DONE_AT_ONCE, np.int32),
        priority=int32.copy(),
        dep_ptr=np.zeros(n + 1, np.int64),
        dep=np.zeros(0, np.int32),
    )


def assemble(own_rows: Int32, distinct: Sequence[Rows], groups: GroupTable, schedules: Schedules) -> Program:
    """Put distinct traces together.

    Args:
        own_rows: int32[npus], the trace of each NPU, -1 = another rank's.
        distinct: traces, each run by at least one NPU.
        groups: slots of all NPUs.
        schedules: to which the rows' schedule numbers refer.
    """
    trace_ptr = pointers([len(rows.kind) for rows in distinct])
    none = empty_rows(0)  # a rank may have no NPUs
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(rows, name) for rows in (none, *distinct)]) for name in _COLUMNS
    }
    deps = np.concatenate([np.diff(rows.dep_ptr) for rows in (none, *distinct)])
    parents = (rows.dep + start for rows, start in zip(distinct, trace_ptr[:-1], strict=True))
    parent = np.concatenate([np.zeros(0, np.int64), *parents])
    child_ptr, child = _children(deps, parent.astype(np.int64), trace_ptr)
    slots_of_trace = np.zeros(len(distinct), np.int64)
    here = own_rows != NOT_HERE
    slots_of_trace[own_rows[here]] = np.diff(groups.slot_ptr)[here]
    trace_slot_ptr, coll_ptr, coll_node = _collective_lists(columns, trace_ptr, slots_of_trace)
    recv_ptr, recv_key, recv_node = _receive_lists(columns, trace_ptr)
    return Program(
        npus=len(own_rows),
        trace_of_npu=own_rows.astype(np.int32),
        trace_ptr=trace_ptr,
        **{f"node_{name}": column for name, column in columns.items()},
        node_deps=deps.astype(np.int32),
        child_ptr=child_ptr,
        child=child,
        slot_ptr=groups.slot_ptr,
        slot_group=groups.slot_group,
        slot_member=groups.slot_member,
        group_ptr=groups.group_ptr,
        group_member=groups.group_member,
        trace_slot_ptr=trace_slot_ptr,
        coll_ptr=coll_ptr,
        coll_node=coll_node,
        recv_ptr=recv_ptr,
        recv_key=recv_key,
        recv_node=recv_node,
        schedules=schedules,
    )


def receive_key(peer: NDArray[np.integer], tag: NDArray[np.integer], seq: NDArray[np.integer]) -> Int64:
    """int64[]: the key by which a message finds its receive; wraps for peers from 0 on, as int64 does."""
    biased = (peer.astype(np.int64) + (1 << 19)) << 44
    return biased | (tag.astype(np.int64) << 20) | seq.astype(np.int64)


class _Distinct:
    """Traces as they come, equal ones once."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self._number: dict[bytes, int] = {}

    def number(self, rows: Rows) -> int:
        digest = hashlib.blake2b()
        for column in rows:
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(column).data)
        key = digest.digest()
        if key not in self._number:
            self._number[key] = len(self.rows)
            self.rows.append(rows)
        return self._number[key]


def _check_traces(traces: Sequence[TraceTable], trace: Int32, npus: int) -> bool:
    """Check that the traces are those of npus NPUs; whether this rank has any."""
    if not 1 <= npus < MOST_NPUS:
        raise WorkloadError(f"{npus} NPUs: expected 1 to {MOST_NPUS - 1}")
    lacking = npus + np.flatnonzero(trace[npus:] >= 0)
    if len(lacking):
        npu = int(lacking[0])
        raise WorkloadError(f"{traces[trace[npu]].path}: trace of NPU {npu}, but the fabric has {npus} NPUs", npu)
    if len(trace) != npus:
        raise WorkloadError(f"traces for {len(trace)} NPUs: expected one for each of {npus} (-1 = idle)")
    return bool(np.any(trace >= 0))


class _Told(NamedTuple):
    """What a rank tells of a group that switches reduce: see Use; asked: kind, or "" = not in the network."""

    group: int
    members: Int32
    asked: list[str]
    bytes: Int64
    priority: Int32


def _told(program: Program, chooser: "_Chooser", exchange: Exchange) -> list[_Told]:
    """All groups with collectives that switches reduce, each told by the rank of its first member."""
    if not chooser.trees:
        return []
    found = []
    for trace in range(len(program.trace_ptr) - 1):
        users = np.flatnonzero(program.trace_of_npu == trace)
        for slot, entry in enumerate(range(int(program.trace_slot_ptr[trace]), int(program.trace_slot_ptr[trace + 1]))):
            rows = program.trace_ptr[trace] + program.coll_node[program.coll_ptr[entry] : program.coll_ptr[entry + 1]]
            asked = [chooser.trees_of.get(schedule, "") for schedule in program.node_schedule[rows].tolist()]
            if not any(asked):
                continue
            own = program.slot_ptr[users] + slot
            for at in own[program.slot_member[own] == 0].tolist():
                group = int(program.slot_group[at])
                members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]]
                told = _Told(group, members, asked, program.node_bytes[rows], program.node_priority[rows])
                found.append((at, told))
    found.sort(key=operator.itemgetter(0))
    return [told for of_rank in exchange([told for _, told in found]) for told in of_rank]


def _trees(settings: CollectiveSettings) -> str:
    """Trees of the algorithms that switches take part in, "" = there are none.

    Raises:
        WorkloadError: they differ; a group has one set of aggregators. Those that can do without give way.
    """
    chosen = (collectives.choose(kind, settings.algorithm_of(kind)) for kind in KINDS if kind in settings.algorithm)
    wanted = {choice.trees: choice.name for choice in chosen if choice.trees}
    found = {trees: name for trees, name in wanted.items() if not trees.startswith(IF_ANY)} or wanted
    if len(found) > 1:
        both = " and ".join(f"{name} (trees over {trees})" for trees, name in sorted(found.items()))
        raise WorkloadError(f"collectives: found {both} in one run; expected algorithms over the same trees")
    return next(iter(found), "")


class _Chooser:
    """Finds the schedule of each collective; the NPUs that run a trace have the same groups.

    trees: those of the kinds that are reduced in switches, "" = none is. trees_of: kind of each schedule that is.
    """

    def __init__(
        self, settings: CollectiveSettings, groups: GroupTable, fabric: Graph | None, uneven: Matrices
    ) -> None:
        self.settings = settings
        self.schedules = ScheduleSet(settings.most_bytes)
        self.trees = _trees(settings)
        self.trees_of: dict[int, str] = {}
        self._uneven = uneven
        self._uneven_of: dict[int, list[Int64]] = {}
        for (group, _), matrix in sorted(uneven.items(), key=operator.itemgetter(0)):
            self._uneven_of.setdefault(group, []).append(matrix)
        self._uneven_schedules: dict[tuple[int, tuple[int, ...] | None], tuple[int, int]] = {}
        self._groups, self._fabric = groups, fabric
        self._shapes: dict[int, Shape] = {}
        self._known: dict[tuple[str, int, Shape | None, int], int] = {}

    def needs_shape(self, kind: str) -> bool:
        """Whether the algorithm of a kind depends on the group's shape and on the size."""
        return collectives.choose(kind, self.settings.algorithm_of(kind)).needs_shape

    def schedule(self, kind: str, group: int, size_bytes: int) -> int:
        """Number of the schedule."""
        members = len(self._groups.members(group))
        shape = self._shape(group) if members > 1 and self.needs_shape(kind) else None
        return self._add(kind, members, shape, size_bytes)

    def use(self, group: int, members: Int32, asked: list[str], size_bytes: Int64, priority: Int32) -> Use:
        """What the aggregators of a group do, whose members may be another rank's."""
        fabric = cast("Graph", self._fabric)  # else there is no tree
        is_held = len(self._groups.members(group)) > 0
        shape = self._shape(group) if is_held else shape_of(fabric, members, trees=self.trees)
        wanted = list(zip(asked, size_bytes.tolist(), strict=True))
        number = {
            (kind, size): self._add(kind, len(members), shape, size) if kind else DONE_AT_ONCE
            for kind, size in dict.fromkeys(wanted)
        }
        switches = trees_of(fabric, members, self.trees)[1]
        return Use(group, members, switches, np.array([number[one] for one in wanted], np.int32), size_bytes, priority)

    def _add(self, kind: str, members: int, shape: Shape | None, size_bytes: int) -> int:
        key = kind, members, shape, size_bytes
        if key in self._known:
            return self._known[key]
        algorithm = self.settings.algorithm_of(kind)
        number = self._known[key] = self.schedules.add(kind, algorithm, members, shape, size_bytes)
        if number != DONE_AT_ONCE and self.schedules.aggregators(number):
            self.trees_of[number] = kind
        return number

    def uneven(self, group: int, seq: int) -> tuple[int, int]:
        """Number of the schedule of a group's uneven all-to-all, and the bytes of the buffer that it works on."""
        matrix = self._uneven[group, seq]
        algorithm = self.settings.algorithm_of(UNEVEN)
        shape = self._shape(group) if algorithm == "hierarchical" and len(matrix) > 1 else None
        key = id(matrix), shape.host if shape else None  # equal matrices are one array
        if key not in self._uneven_schedules:
            schedule, cut = self.schedules.add_uneven(matrix, algorithm, key[1]), units(matrix)
            chunks = cut.chunks if schedule == DONE_AT_ONCE else self.schedules.chunks(schedule)
            self._uneven_schedules[key] = schedule, chunks * cut.unit_bytes
        return self._uneven_schedules[key]

    def likeness(self, group: int, *, by_shape: bool) -> object:
        """Groups of equal likeness have equal schedules; by_shape: of algorithms that ask for the group's shape."""
        members = len(self._groups.members(group))
        shape = (by_shape and self._shape(group)) or members
        return shape, tuple(id(matrix) for matrix in self._uneven_of.get(group, ()))  # equal matrices are one array

    def _shape(self, group: int) -> Shape | None:
        if group not in self._shapes and self._fabric is not None:
            self._shapes[group] = shape_of(self._fabric, self._groups.members(group), trees=self.trees)
        return self._shapes.get(group)


def _alike(view: TraceView, table: GroupTable, users: Int64, chooser: _Chooser) -> list[Int64]:
    """The users of a trace, apart where they have groups of their own that stand unlike on the fabric."""
    groups = table.slot_group[table.slot_ptr[users][:, None] + np.arange(len(view.slot_names))]
    groups = groups[:, np.any(groups != groups[:1], axis=0)]
    if groups.shape[1] == 0:
        return [users]
    kinds = (KINDS[kind] for kind in np.unique(view.coll_kind).tolist())
    by_shape = bool(np.any(view.coll_uneven)) or any(chooser.needs_shape(kind) for kind in kinds)
    found, row = np.unique(groups, return_inverse=True)
    number: dict[object, int] = {}
    likeness = [number.setdefault(chooser.likeness(group, by_shape=by_shape), len(number)) for group in found.tolist()]
    alike, first, of_user = np.unique(
        np.array(likeness)[row.reshape(groups.shape)], axis=0, return_index=True, return_inverse=True
    )
    return [users[of_user.reshape(-1) == i] for i in np.argsort(first).tolist()[: len(alike)]]


def _rows(view: TraceView, table: GroupTable, npu: int, compute: ComputeModel, chooser: _Chooser) -> Rows:
    """The rows of a trace that npu and others run, without peers."""
    n = len(view.table)
    rows = empty_rows(n)._replace(
        kind=view.kind, lane=lanes(view, compute.remote), duration_ps=durations_ps(view, compute)
    )
    rows = rows._replace(dep_ptr=view.table.dep_ptr, dep=view.table.dep)
    rows.bytes[view.p2p_rows] = view.table.comm_size[view.p2p_rows]
    rows.tag[view.p2p_rows] = view.p2p_tag
    rows.seq[view.p2p_rows] = view.p2p_seq
    rows.seq[view.coll_rows] = view.coll_seq
    rows.group[view.coll_rows] = view.coll_slot
    groups = table.slot_group[table.slots_of(npu)]
    _fill_collectives(rows, view, table, groups, chooser)
    _fill_uneven(rows, view, groups, chooser)
    return rows


def _fill_uneven(rows: Rows, view: TraceView, groups: Int32, chooser: _Chooser) -> None:
    """Buffer and schedule of each all-to-all with split sizes; groups: int32[slots]."""
    for at in np.flatnonzero(view.coll_uneven).tolist():
        schedule, size_bytes = chooser.uneven(int(groups[view.coll_slot[at]]), int(view.coll_seq[at]))
        row = int(view.coll_rows[at])
        if schedule != DONE_AT_ONCE and size_bytes * chooser.schedules.pieces(schedule) > _LARGEST_PRODUCT:
            raise WorkloadError(f"{view.node(row)}: {view.collective(row)}: expected at most 2^62 bytes times chunks")
        rows.bytes[row], rows.schedule[row] = size_bytes, schedule
        rows.priority[row] = view.table.comm_priority[row]


def _fill_collectives(rows: Rows, view: TraceView, table: GroupTable, groups: Int32, chooser: _Chooser) -> None:
    """Buffer and schedule of each collective without split sizes; groups: int32[slots]."""
    even = ~view.coll_uneven
    coll_rows, coll_kind, coll_slot = view.coll_rows[even], view.coll_kind[even], view.coll_slot[even]
    factor = chooser.settings.buffer_factor(table.sizes()[groups])[coll_kind, coll_slot]
    size = np.maximum(view.table.comm_size[coll_rows], 0)
    _check_products(view, coll_rows, size, factor)
    by_size = np.zeros(len(KINDS), np.bool_)
    for kind in np.unique(coll_kind).tolist():
        by_size[kind] = chooser.needs_shape(KINDS[kind])
    sizes, size_of_row = np.unique(np.where(by_size[coll_kind], size * factor, 0), return_inverse=True)
    pairs, pair_of_row = np.unique(coll_kind.astype(np.int64) * 2**32 + coll_slot, return_inverse=True)
    alike, alike_of_row = np.unique(pair_of_row * len(sizes) + size_of_row, return_inverse=True)
    chosen = np.zeros(len(alike), np.int32)
    pieces = np.ones(len(alike), np.int64)
    for i, one in enumerate(alike.tolist()):
        pair, size_bytes = int(pairs[one // len(sizes)]), int(sizes[one % len(sizes)])
        chosen[i] = chooser.schedule(KINDS[pair >> 32], int(groups[pair & (2**32 - 1)]), size_bytes)
        if chosen[i] != DONE_AT_ONCE:
            pieces[i] = chooser.schedules.pieces(int(chosen[i]))
    _check_products(view, coll_rows, size, factor * pieces[alike_of_row])
    rows.bytes[coll_rows] = size * factor
    rows.priority[coll_rows] = view.table.comm_priority[coll_rows]
    rows.schedule[coll_rows] = chosen[alike_of_row]


def _check_products(view: TraceView, coll_rows: Int32, size: Int64, factor: Int64) -> None:
    """Refuse sizes that times their factors the engine cannot hold; int64[] of the collectives."""
    too_large = size > _LARGEST_PRODUCT // np.maximum(factor, 1)
    if np.any(too_large):
        row = int(coll_rows[np.argmax(too_large)])
        raise WorkloadError(f"{view.node(row)}: {view.collective(row)}: expected at most 2^62 bytes times chunks")


def _share(distinct: _Distinct, view: TraceView, rows: Rows, users: Int64) -> list[int]:
    """Numbers of the traces that the users of one trace run: peers are relative, so some may differ."""
    if len(view.p2p_rows) == 0:
        return [distinct.number(rows)] * len(users)
    if view.example != AS_WRITTEN:
        rows.peer[view.p2p_rows] = view.p2p_peer - view.example
        return [distinct.number(rows)] * len(users)
    numbers = []
    for npu in users.tolist():
        peer = np.zeros(len(view.table), np.int32)
        peer[view.p2p_rows] = view.p2p_peer - npu
        numbers.append(distinct.number(rows._replace(peer=peer)))
    return numbers


def _children(deps: Int64, parent: Int64, trace_ptr: Int64) -> tuple[Int64, Int32]:
    """CSR of children; parent: rows over all traces, node after node, deps of them each."""
    row = np.repeat(np.arange(len(deps)), deps)
    start = np.repeat(trace_ptr[:-1], np.diff(trace_ptr))
    by_parent = np.argsort(parent, kind="stable")
    child = (row - start[row])[by_parent] if len(row) else row
    return pointers(np.bincount(parent, minlength=len(deps))), child.astype(np.int32)


def _trace_of_row(trace_ptr: Int64) -> Int64:
    return np.repeat(np.arange(len(trace_ptr) - 1), np.diff(trace_ptr))


def _collective_lists(
    columns: Mapping[str, NDArray[np.integer]], trace_ptr: Int64, slots_of_trace: Int64
) -> tuple[Int64, Int64, Int32]:
    """trace_slot_ptr, coll_ptr and coll_node of Program."""
    trace_slot_ptr = pointers(slots_of_trace)
    rows = np.flatnonzero(columns["kind"] == COLLECTIVE)
    trace = _trace_of_row(trace_ptr)[rows]
    entry = trace_slot_ptr[trace] + columns["group"][rows]
    order = np.lexsort((columns["seq"][rows], entry))
    counts = np.bincount(entry, minlength=int(trace_slot_ptr[-1]))
    return trace_slot_ptr, pointers(counts), (rows - trace_ptr[trace])[order].astype(np.int32)


def _receive_lists(columns: Mapping[str, NDArray[np.integer]], trace_ptr: Int64) -> tuple[Int64, Int64, Int32]:
    """recv_ptr, recv_key and recv_node of Program."""
    rows = np.flatnonzero(columns["kind"] == RECV)
    trace = _trace_of_row(trace_ptr)[rows]
    key = receive_key(*(columns[name][rows] for name in ("peer", "tag", "seq")))
    order = np.lexsort((key, trace))
    counts = np.bincount(trace, minlength=len(trace_ptr) - 1)
    return pointers(counts), key[order], (rows - trace_ptr[trace])[order].astype(np.int32)
