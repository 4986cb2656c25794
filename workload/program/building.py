"""Construction of a Program from traces: the work of each NPU as arrays for the engine."""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nadi.et import TraceTable
from nadi.inputs.arrays import Int32, Int64
from nadi.inputs.limits import MAX_NPUS
from nadi.topologies import Graph
from nadi.workload.collectives.schedules.packed import DONE_AT_ONCE, ScheduleSet, pack
from nadi.workload.collectives.uneven import matrices
from nadi.workload.errors import Exchange, WorkloadError, agree, alone
from nadi.workload.kept import KeptResults
from nadi.workload.kinds import KINDS
from nadi.workload.node_kinds import MEMORY_LANE
from nadi.workload.program.checks.messages import check_collectives, check_messages
from nadi.workload.program.checks.sources import check_sizes
from nadi.workload.program.choosing import CollectiveSettings, ScheduleChooser
from nadi.workload.program.durations import ComputeModel, durations_ps, lanes
from nadi.workload.program.program import NOT_HERE, Program, TraceRows, assemble, empty_rows
from nadi.workload.program.sends import SendColumns, Ways
from nadi.workload.trace_sets.groups import GroupTable, resolve
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, IDLE, Families, TraceView, own_traces

_MAX_PRODUCT = 2**62  # of buffer bytes and chunks, which the engine multiplies in int64


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
    memory_nodes: Sequence[int] = (),
    kept: KeptResults | None = None,
) -> Program:
    """Check traces against each other and build the program for the engine.

    Each rank builds the part of its own NPUs. Checks, group numbers and errors cover all ranks: all raise the same.

    Args:
        traces: The distinct traces of all NPUs.
        trace_of_npu: int[npus], trace of each NPU, IDLE (-1) = no trace, ELSEWHERE (-2) = another rank's NPU.
        npus: Number of NPUs of the fabric.
        groups: Members of each named group; METADATA nodes of traces may define others.
        compute: Model of durations, None = durations as in the traces where they are recorded.
        settings: Settings of collectives, None = defaults.
        fabric: Fabric of the NPUs; some collective algorithms need it.
        exchange: Exchange with the other ranks; see workload.errors.
        example_npu: int[traces], NPU whose peers a trace has, AS_WRITTEN (-1) = peers are the same for all NPUs; None =
            AS_WRITTEN for all traces. See workload.trace_sets.trace_set.
        families: Families of groups by name; an NPU is in at most one group of a family.
        memory_nodes: NPUs that are memory nodes and not in the group of all NPUs.
        kept: Schedules and shapes that several programs have in common; None = this program computes its own.

    Raises WorkloadError: a trace is invalid; see workload.program.checks, workload.trace_sets.groups,
    workload.collectives.uneven and workload.program.durations.
    """
    settings = settings or CollectiveSettings()
    parts = SharedParts(settings, kept)
    work = WorkOfRanks(traces, trace_of_npu, npus, groups or {}, compute, settings, example_npu, families)
    built = parts.build(work, fabric, exchange, memory_nodes=memory_nodes)
    return parts.program(built.trace_of_rank, built.groups, built.chooser, exchange)


class WorkOfRanks(NamedTuple):
    """The traces of n ranks and all that their work depends on; see `build_program`."""

    traces: Sequence[TraceTable]  # Distinct traces of all ranks
    trace_of_rank: ArrayLike  # int[n], trace of each rank
    ranks: int  # Number of ranks n
    groups: Mapping[str, tuple[int, ...]]  # Members of each named group
    compute: ComputeModel | None  # Model of durations; None = durations as in the traces
    settings: CollectiveSettings  # Settings of collectives
    example_rank: ArrayLike | None = None  # int[traces], rank whose peers a trace has
    families: Families | None = None  # Families of groups by name


class RankWork(NamedTuple):
    """The work of n ranks: parts of a Program."""

    trace_of_rank: Int32  # int32[n], distinct trace of each rank, NOT_HERE (-1) = another rank of MPI has it
    groups: GroupTable  # Groups of ranks
    chooser: ScheduleChooser  # Choice of a schedule for each collective


class SharedParts:
    """The distinct traces, schedules and channels of a Program, which all its jobs share."""

    def __init__(self, settings: CollectiveSettings, kept: KeptResults | None = None) -> None:
        """Begin without traces, schedules and channels.

        Args:
            settings: The settings of the first job's collectives, which limit the memory of schedules.
            kept: Schedules and shapes that several programs have in common; None = none.
        """
        self.kept = kept
        self.distinct = _Distinct()
        self.schedules = ScheduleSet(settings.most_bytes, kept)
        self.trees_of: dict[int, str] = {}
        self.ways = Ways()

    def build(
        self,
        work: WorkOfRanks,
        fabric: Graph | None,
        exchange: Exchange,
        *,
        memory_nodes: Sequence[int] = (),
        placement: Int32 | None = None,
    ) -> RankWork:
        """Add the traces of ranks, and return their work.

        Args:
            work: The traces of the ranks and all that their work depends on.
            fabric: The fabric as a graph of nodes and links; None = unknown.
            exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
            memory_nodes: The ranks that are memory nodes, which are not in the group of all.
            placement: The NPU of each rank, int32[n]; None = NPUs are ranks.
        """
        return _build(self, work, fabric, exchange, memory_nodes, placement)

    def idle(self) -> int:
        """Return the number of the distinct trace without rows."""
        return self.distinct.number(empty_rows(0))

    def program(self, trace_of_npu: Int32, groups: GroupTable, chooser: ScheduleChooser, exchange: Exchange) -> Program:
        """Return the program of all NPUs.

        Args:
            trace_of_npu: The distinct trace of each NPU, int32[npus].
            groups: The groups of all NPUs, with the members of those that this rank's NPUs use.
            chooser: The choice of schedules for these groups, which knows the groups that switches reduce.
            exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
        """
        program = assemble(trace_of_npu, self.distinct.rows, groups, pack([]))
        uses = tuple(chooser.use(*group) for group in _in_network_groups(program, chooser, exchange))
        return program._replace(in_network=uses, schedules=self.schedules.pack(), channels=self.ways.channels())

    def chooser(self, settings: CollectiveSettings, groups: GroupTable, fabric: Graph | None) -> ScheduleChooser:
        """Return the choice of schedules for groups of NPUs, without uneven all-to-alls.

        Args:
            settings: The settings of collectives: algorithms and the meaning of sizes.
            groups: The groups of all NPUs, with the members of those that this rank's NPUs use.
            fabric: The fabric as a graph of nodes and links; None = unknown.
        """
        return ScheduleChooser(settings, groups, fabric, {}, self.schedules, self.trees_of)


def _build(
    parts: SharedParts,
    work: WorkOfRanks,
    fabric: Graph | None,
    exchange: Exchange,
    memory_nodes: Sequence[int],
    placement: Int32 | None,
) -> RankWork:
    """Return what `SharedParts.build` returns."""
    traces, npus, settings = work.traces, work.ranks, work.settings
    compute, groups, families = work.compute or ComputeModel(), work.groups, work.families
    trace = np.asarray(work.trace_of_rank, np.int32)
    has_traces = agree(exchange, lambda: _check_traces(traces, trace, npus))
    if not any(exchange(has_traces)):
        raise WorkloadError(f"no trace for any of {npus} NPUs: expected at least one")
    dims = None if fabric is None else fabric.dims
    if placement is not None:
        dims = (npus,)  # those of the fabric say nothing of ranks
    examples = None if work.example_rank is None else np.asarray(work.example_rank, np.int32)
    own = agree(exchange, lambda: own_traces(traces, trace, dims, examples))
    agree(exchange, lambda: own.each(lambda view, users: check_sizes(view, users, npus)))
    table = resolve(own, npus, groups, exchange, dims or (), families, memory_nodes)
    check_collectives(own, table, exchange)
    check_messages(own, exchange)
    chooser = ScheduleChooser(
        settings, table, fabric, matrices(own, table, exchange), parts.schedules, parts.trees_of, placement, parts.kept
    )
    members = np.setdiff1d(np.arange(npus), np.array(memory_nodes, np.int64))
    sends = SendColumns(settings, fabric, members, groups, families or {}, placement, parts.ways)
    own_rows = np.full(npus, NOT_HERE, np.int32)

    def add_rows(view: TraceView, users: Int64) -> None:
        """Add the rows of one distinct trace `view`, as the NPUs `users` run it, to the traces of all."""
        for alike in _alike(view, table, users, chooser):
            rows = _rows(view, table, int(alike[0]), compute, chooser)
            own_rows[alike] = _share(parts.distinct, view, rows, alike, sends)

    agree(exchange, lambda: own.each(add_rows))
    if np.any(trace == IDLE):
        own_rows[trace == IDLE] = parts.idle()
    return RankWork(own_rows, table, chooser)


class _Distinct:
    """The distinct traces so far, and their numbers."""

    def __init__(self) -> None:
        self.rows: list[TraceRows] = []
        self._number: dict[bytes, int] = {}

    def number(self, rows: TraceRows) -> int:
        """Return the number of a distinct trace, after adding it if it is new.

        Args:
            rows: The rows of the trace.
        """
        digest = hashlib.blake2b()
        for column in rows:
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(column).data)
        key = digest.digest()
        if key not in self._number:
            self._number[key] = len(self.rows)
            self.rows.append(rows)
        return self._number[key]


def _check_traces(traces: Sequence[TraceTable], trace_of_npu: Int32, npus: int) -> bool:
    """Check that the traces fit the number of NPUs, and return whether this rank has any."""
    if not 1 <= npus <= MAX_NPUS:
        raise WorkloadError(f"{npus} NPUs: expected 1 to {MAX_NPUS}")
    lacking = npus + np.flatnonzero(trace_of_npu[npus:] >= 0)
    if len(lacking):
        npu = int(lacking[0])
        raise WorkloadError(
            f"{traces[trace_of_npu[npu]].path}: trace of NPU {npu}, but the fabric has {npus} NPUs", npu
        )
    if len(trace_of_npu) != npus:
        raise WorkloadError(f"traces for {len(trace_of_npu)} NPUs: expected one for each of {npus} (-1 = idle)")
    return bool(np.any(trace_of_npu >= 0))


# Number and members of a group that switches reduce, and kinds ("" = not in the network), bytes and priorities of its
# collectives, see InNetworkGroup
_InNetworkCollectives = tuple[int, Int32, list[str], Int64, Int32]


def _in_network_groups(program: Program, chooser: ScheduleChooser, exchange: Exchange) -> list[_InNetworkCollectives]:
    """Return all groups with collectives that switches reduce; the rank of the first member sends each to all."""
    if not chooser.trees:
        return []
    groups: list[tuple[int, _InNetworkCollectives]] = []
    for trace in range(len(program.trace_ptr) - 1):
        users = np.flatnonzero(program.trace_of_npu == trace)
        for slot, entry in enumerate(range(int(program.trace_slot_ptr[trace]), int(program.trace_slot_ptr[trace + 1]))):
            rows = program.trace_ptr[trace] + program.coll_node[program.coll_ptr[entry] : program.coll_ptr[entry + 1]]
            kinds = [chooser.trees_of.get(schedule, "") for schedule in program.node_schedule[rows].tolist()]
            if not any(kinds):
                continue
            own = program.slot_ptr[users] + slot
            # Only the NPU that is member 0 reports the group: each occurs once, whatever traces its members run
            for at in own[program.slot_member[own] == 0].tolist():
                group = int(program.slot_group[at])
                members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]]
                size_bytes, priority = program.node_bytes[rows], program.node_priority[rows]
                groups.append((at, (group, members, kinds, size_bytes, priority)))
    groups.sort(key=operator.itemgetter(0))
    return [group for of_rank in exchange([group for _, group in groups]) for group in of_rank]


def _alike(view: TraceView, group_table: GroupTable, running_npus: Int64, chooser: ScheduleChooser) -> list[Int64]:
    """Return the NPUs that run a trace, split by the schedules of their groups."""
    groups = group_table.slot_group[group_table.slot_ptr[running_npus][:, None] + np.arange(len(view.slot_names))]
    # Only slots in which the NPUs have different groups can give them different schedules
    groups = groups[:, np.any(groups != groups[:1], axis=0)]
    if groups.shape[1] == 0:
        return [running_npus]
    kinds = (KINDS[kind] for kind in np.unique(view.coll_kind).tolist())
    by_shape = bool(np.any(view.coll_uneven)) or any(chooser.needs_shape(kind) for kind in kinds)
    distinct, row = np.unique(groups, return_inverse=True)
    number: dict[object, int] = {}
    key = [number.setdefault(chooser.schedule_key(g, by_shape=by_shape), len(number)) for g in distinct.tolist()]
    # int[users, slots], a number for what the schedule of each slot depends on: users with equal rows share a trace
    patterns, first, of_user = np.unique(
        np.array(key)[row.reshape(groups.shape)], axis=0, return_index=True, return_inverse=True
    )
    return [running_npus[of_user.reshape(-1) == i] for i in np.argsort(first).tolist()[: len(patterns)]]


def _rows(
    view: TraceView, group_table: GroupTable, npu: int, compute: ComputeModel, chooser: ScheduleChooser
) -> TraceRows:
    """Return the rows, without peers, of a trace that `npu` and others with equal schedules run."""
    n = len(view.table)
    rows = empty_rows(n)._replace(
        kind=view.kind, lane=lanes(view, compute.remote).copy(), duration_ps=durations_ps(view, compute)
    )
    rows.lane[view.coll_rows[_is_copied(view, chooser)[view.coll_slot]]] = MEMORY_LANE
    rows = rows._replace(dep_ptr=view.table.dep_ptr, dep=view.table.dep)
    rows.bytes[view.messages.row] = view.table.comm_size[view.messages.row]
    rows.tag[view.messages.row] = view.messages.tag
    rows.seq[view.messages.row] = view.messages.seq
    rows.seq[view.coll_rows] = view.coll_seq
    rows.group[view.coll_rows] = view.coll_slot
    rows.collective[view.coll_rows] = view.coll_kind
    rows.uneven[view.coll_rows] = view.coll_uneven
    groups = group_table.slot_group[group_table.slots_of(npu)]
    _fill_collectives(rows, view, group_table, groups, chooser)
    _fill_uneven(rows, view, groups, chooser)
    return rows


def _is_copied(view: TraceView, chooser: ScheduleChooser) -> NDArray[np.bool_]:
    """Return bool[slots]: whether copy engines run the collectives of a trace's groups."""
    return np.array([name in chooser.settings.copied for name in view.slot_names], np.bool_)


def _fill_uneven(rows: TraceRows, view: TraceView, groups: Int32, chooser: ScheduleChooser) -> None:
    """Set buffer and schedule of each all-to-all with split sizes; groups: int32[slots], group numbers."""
    for at in np.flatnonzero(view.coll_uneven).tolist():
        schedule, size_bytes = chooser.uneven(int(groups[view.coll_slot[at]]), int(view.coll_seq[at]))
        row = int(view.coll_rows[at])
        if schedule != DONE_AT_ONCE and size_bytes * chooser.schedules.pieces(schedule) > _MAX_PRODUCT:
            raise WorkloadError(f"{view.node(row)}: {view.collective(row)}: expected at most 2^62 bytes times chunks")
        rows.bytes[row], rows.schedule[row] = size_bytes, schedule
        rows.priority[row] = view.table.comm_priority[row]


def _fill_collectives(
    rows: TraceRows, view: TraceView, group_table: GroupTable, groups: Int32, chooser: ScheduleChooser
) -> None:
    """Set buffer and schedule of each collective without split sizes; groups: int32[slots], group numbers."""
    even = ~view.coll_uneven
    coll_rows, coll_kind, coll_slot = view.coll_rows[even], view.coll_kind[even], view.coll_slot[even]
    # int64[collectives], S / comm_size: members if comm_size is one member's contribution; 0 for barriers; else 1
    factor = chooser.settings.buffer_factor(group_table.sizes()[groups])[coll_kind, coll_slot]
    size = np.maximum(view.table.comm_size[coll_rows], 0)
    _check_products(view, coll_rows, size, factor)
    by_size = np.zeros(len(KINDS), np.bool_)
    for kind in np.unique(coll_kind).tolist():
        by_size[kind] = chooser.needs_shape(KINDS[kind])
    # Sizes matter only to algorithms that choose by size; for the others all sizes have one schedule
    sizes, size_of_row = np.unique(np.where(by_size[coll_kind], size * factor, 0), return_inverse=True)
    # One number for each (kind, slot): a schedule is chosen once for all rows with equal numbers and sizes
    pairs, pair_of_row = np.unique(coll_kind.astype(np.int64) * 2**32 + coll_slot, return_inverse=True)
    keys, key_of_row = np.unique(pair_of_row * len(sizes) + size_of_row, return_inverse=True)
    chosen, is_copied = np.zeros(len(keys), np.int32), _is_copied(view, chooser)
    pieces = np.ones(len(keys), np.int64)
    for i, key in enumerate(keys.tolist()):
        pair, size_bytes = int(pairs[key // len(sizes)]), int(sizes[key % len(sizes)])
        slot = pair & (2**32 - 1)
        chosen[i] = chooser.schedule(KINDS[pair >> 32], int(groups[slot]), size_bytes, is_copied=bool(is_copied[slot]))
        if chosen[i] != DONE_AT_ONCE:
            pieces[i] = chooser.schedules.pieces(int(chosen[i]))
    _check_products(view, coll_rows, size, factor * pieces[key_of_row])
    rows.bytes[coll_rows] = size * factor
    rows.priority[coll_rows] = view.table.comm_priority[coll_rows]
    rows.schedule[coll_rows] = chosen[key_of_row]


def _check_products(view: TraceView, coll_rows: Int32, sizes: Int64, factors: Int64) -> None:
    """Refuse collectives (rows of a trace) whose size times factor, int64[] each, exceeds the engine's integers."""
    too_large = sizes > _MAX_PRODUCT // np.maximum(factors, 1)
    if np.any(too_large):
        row = int(coll_rows[np.argmax(too_large)])
        raise WorkloadError(f"{view.node(row)}: {view.collective(row)}: expected at most 2^62 bytes times chunks")


def _share(distinct: _Distinct, view: TraceView, rows: TraceRows, running_npus: Int64, sends: SendColumns) -> Int64:
    """Return int64[NPUs]: numbers of the distinct traces of the NPUs that run one, whose relative peers may differ."""
    if len(view.messages.row) == 0:
        return np.full(len(running_npus), distinct.number(rows))
    numbers = np.zeros(len(running_npus), np.int64)
    patterns, pattern = sends.patterns(view, running_npus)
    for number, places in enumerate(patterns):
        own = np.flatnonzero(pattern == number)
        filled = sends.fill(rows, view, places)
        if view.example != AS_WRITTEN:
            # Peers relative to the example NPU are the same for all NPUs that run the trace
            filled.peer[view.messages.row] = view.messages.peer - view.example
            numbers[own] = distinct.number(filled)
            continue
        for at in own.tolist():
            peer = np.zeros(len(view.table), np.int32)
            peer[view.messages.row] = view.messages.peer - running_npus[at]
            numbers[at] = distinct.number(filled._replace(peer=peer))
    return numbers
