"""Runs a Program at closed forms: what there is to cost, the run of its classes of NPUs, and who waits for whom."""

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pdes.build.simulation import Snapshot
from pdes.closed_forms import closed_form_state as s
from pdes.closed_forms.closed_form import ALL_DONE, NO_ROOM, TOO_LATE, add_digests, advance
from pdes.closed_forms.likeness import Classes, Pairs
from pdes.closed_forms.rows import GroupClass, NpuClass, Progress
from pdes.core.errors import RunError
from pdes.core.inputs import Array, Program, Rows
from pdes.core.jit import Directory, compile_for
from pdes.core.memory import aligned, full, row_of_zeros, zeros
from pdes.core.state import LANES, LONGEST_RUN_PS, ROW_DONE, ROW_READY, ROW_STARTED
from pdes.harvest.gathering import MOST_LINES
from pdes.harvest.stall import TOO_LATE_TEXT
from pdes.npu.trace import KIND_COLLECTIVE, KIND_RECV, KIND_SEND

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

EVENTS_OF_A_PAUSE = 1_000_000
_LEAST_PS = 1
"""That a collective or a message takes: what comes from another NPU comes later."""


class CollectiveKeys(NamedTuple):
    """K collectives that take a time of their own.

    Attributes:
        group: int64[K], least group that does it,
        schedule: int64[K], by this schedule of Program,
        bytes: int64[K], with this buffer.
        npu: int64[K], one that does it,
        row: int64[K], in this row of its trace.
    """

    group: Int64
    schedule: Int64
    bytes: Int64
    npu: Int64
    row: Int64


class MessageKeys(NamedTuple):
    """M messages that take a time of their own.

    Attributes:
        src: int64[M], an NPU that sends it,
        dst: int64[M], to this one.
        bytes: int64[M].
    """

    src: Int64
    dst: Int64
    bytes: Int64


class MessageTimes(NamedTuple):
    """Times of M messages, int64[M] picoseconds each.

    Attributes:
        hold_ps: for which one holds its sender's port.
        left_ps: from when it begins until its sender is done.
        total_ps: from then until its receiver has it.
    """

    hold_ps: Int64
    left_ps: Int64
    total_ps: Int64


class FoldedProgram(NamedTuple):
    """A Program's classes as the kernel walks them, without times.

    Attributes:
        program: the Program.
        classes: of its NPUs.
        row_ptr: int64[C+1], rows of each class.
        traces: columns.
        send_ptr: int64[C+1], sends of each class.
        send_key: int32[], row of `messages` of each send.
        sends: port, receiving class and its row of each send, int32[] each.
        port_ptr: int64[C+1], ports of each class.
        slot_ptr: int64[C+1], slots of each class.
        slot_group: int32[], class of the group of each slot.
        group: GroupClass rows.
        member, member_slot: int32[], see there.
        instance_key: int64[instances], row of `collectives`, -1 = done at once.
        collectives: what to cost.
        messages: what to cost.
    """

    program: Program
    classes: Classes
    row_ptr: Int64
    traces: s.Traces
    send_ptr: Int64
    send_key: Int32
    sends: tuple[Int32, Int32, Int32]
    port_ptr: Int64
    slot_ptr: Int64
    slot_group: Int32
    group: np.recarray
    member: Int32
    member_slot: Int32
    instance_key: Int64
    collectives: CollectiveKeys
    messages: MessageKeys


class ClassTimes(NamedTuple):
    """What a run gives, of classes.

    Attributes:
        row_ptr: int64[C+1], rows of a class.
        start_ps: int64[], of each row.
        finish_ps: int64[], likewise.
        send_ptr: int64[C+1], sends of a class in the order of its rows.
        arrived_ps: int64[], when each was there.
        finish_time_ps: when the last row was done.
        events: that were taken.
        wall_s: seconds that it took.
    """

    row_ptr: Int64
    start_ps: Int64
    finish_ps: Int64
    send_ptr: Int64
    arrived_ps: Int64
    finish_time_ps: int
    events: int
    wall_s: float


def lay_out(
    program: Program, classes: Classes, pairs: Pairs, group_likeness: Int64, pair_likeness: Int64, port: Int32
) -> FoldedProgram:
    """Lay out the classes of a Program, and find what must be costed.

    Args:
        program: of all NPUs.
        classes: of its NPUs, see pdes.closed_forms.likeness.
        pairs: whom they exchange messages with.
        group_likeness: int64[G], as for the classes.
        pair_likeness: int64[k], likewise.
        port: int32[k], number of the sender's port by which it sends to a peer.
    """
    trace = program.trace_of_npu[classes.example]
    rows = np.diff(program.trace_ptr)[trace]
    send = _ordinals(program)
    slot_ptr = _pointers(np.diff(program.slot_ptr)[classes.example])
    slot = _ranges(program.slot_ptr[classes.example], np.diff(slot_ptr))
    group, member, member_slot = _groups(program, classes)
    collectives, instance_key = _collectives(program, classes, group, member, member_slot, group_likeness)
    send_ptr, sends, send_key, messages, ports = _sends(program, classes, pairs, pair_likeness, port)
    return FoldedProgram(
        program=program,
        classes=classes,
        row_ptr=_pointers(rows),
        traces=s.Traces(
            ptr=_as(program.trace_ptr, np.int64),
            kind=_as(program.node_kind, np.int8),
            lane=_as(program.node_lane, np.int8),
            duration_ps=_as(program.node_duration_ps, np.int64),
            group=_as(program.node_group, np.int32),
            seq=_as(program.node_seq, np.int32),
            schedule=_as(program.node_schedule, np.int32),
            send=send,
            child_ptr=_as(program.child_ptr, np.int64),
            child=_as(program.child, np.int32),
            slot_ptr=_as(program.trace_slot_ptr, np.int64),
            coll_ptr=_as(program.coll_ptr, np.int64),
            coll_node=_as(program.coll_node, np.int32),
        ),
        send_ptr=send_ptr,
        send_key=send_key,
        sends=sends,
        port_ptr=_pointers(ports),
        slot_ptr=slot_ptr,
        slot_group=classes.class_of_group[program.slot_group[slot]],
        group=group,
        member=member,
        member_slot=member_slot,
        instance_key=instance_key,
        collectives=collectives,
        messages=messages,
    )


def run_closed_form(
    layout: FoldedProgram,
    collective_ps: Int64,
    messages: MessageTimes,
    *,
    concurrent: bool = False,
    progress: Callable[[Snapshot], None] | None = None,
) -> ClassTimes:
    """Run a Program, one NPU of each class.

    Args:
        layout: of the Program.
        collective_ps: int64[K], what each of layout.collectives takes.
        messages: what each of layout.messages takes.
        concurrent: collectives of one group go on side by side.
        progress: called now and then with a Snapshot.

    Raises:
        RunError: work is left that waits for ever (who waits for whom), or simulated time is too long.
    """
    begun = time.perf_counter()
    work = _work(layout, collective_ps, messages, concurrent=concurrent)
    directory, events = Directory(work), 0
    total = int(layout.row_ptr[-1])
    while (stopped := advance(directory.address, EVENTS_OF_A_PAUSE)) != ALL_DONE:
        if stopped == TOO_LATE:
            raise RunError(TOO_LATE_TEXT)
        if stopped == NO_ROOM:
            work = _with_more_room(work)
            directory.update(work)
        elif progress is not None:
            events += EVENTS_OF_A_PAUSE
            progress(_snapshot(work, events, total, time.perf_counter() - begun))
    if int(work.ctl.done) < total:
        raise RunError(_who_waits(layout, work))
    return ClassTimes(
        row_ptr=layout.row_ptr,
        start_ps=work.rows.start_ps[:total],
        finish_ps=work.rows.finish_ps[:total],
        send_ptr=layout.send_ptr,
        arrived_ps=work.sends.arrived_ps[: int(layout.send_ptr[-1])],
        finish_time_ps=int(work.ctl.finish_ps),
        events=total,
        wall_s=time.perf_counter() - begun,
    )


def compile_closed_form() -> float:
    """Compile what a run needs, or load it. Seconds it took."""
    begun = time.perf_counter()
    words = np.zeros(1, np.int64)
    compile_for(advance, 0, 0)
    compile_for(add_digests, words, words, words, words)
    return time.perf_counter() - begun


def digest_of(times: ClassTimes, classes: Classes) -> str:
    """Hash of the completion time of every trace row of every NPU."""
    found = np.zeros(2, np.int64)
    add_digests(times.finish_ps, times.row_ptr, classes.class_of_npu.astype(np.int64), found)
    rows = int((np.diff(times.row_ptr) * classes.size).sum())
    return hashlib.sha256(np.array([*found.tolist(), 0, rows], "<i8").tobytes()).hexdigest()[:32]


def _as(column: Array, dtype: DTypeLike) -> Array:
    return np.ascontiguousarray(column, dtype)


def _pointers(counts: Array) -> Int64:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ranges(first: Array, counts: Array) -> Int64:
    """Numbers from each first on, so many."""
    ptr = _pointers(counts)
    return np.arange(ptr[-1]) - np.repeat(ptr[:-1] - first, counts)


def _ordinals(program: Program) -> Int32:
    """int32[N]: how-manieth send of its trace each row is."""
    is_send = program.node_kind == KIND_SEND
    before = np.concatenate([[0], np.cumsum(is_send)])
    return (before[:-1] - np.repeat(before[program.trace_ptr[:-1]], np.diff(program.trace_ptr))).astype(np.int32)


def _groups(program: Program, classes: Classes) -> tuple[Rows, Int32, Int32]:
    """Members of each class of groups as classes and slots, once each; places of its collectives are open."""
    owner = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    slot = np.arange(len(owner)) - program.slot_ptr[owner]
    is_example = np.zeros(len(program.group_ptr) - 1, np.bool_)
    is_example[classes.group_example] = True
    own = np.flatnonzero(is_example[program.slot_group])
    of_group = classes.class_of_group[program.slot_group[own]].astype(np.int64)
    users = np.bincount(of_group, minlength=len(classes.group_example))
    keys = np.stack([of_group, classes.class_of_npu[owner[own]], slot[own]], axis=1)
    unlike = np.unique(keys, axis=0) if len(keys) else keys.reshape(0, 3)
    members = np.bincount(unlike[:, 0], minlength=len(classes.group_example))
    group = zeros(len(members), GroupClass)[: len(members)]
    sizes = np.diff(program.group_ptr)[classes.group_example]
    group.needed = members + (users < sizes)
    group.member_base = _pointers(members)[:-1]
    group.members = members
    return group, unlike[:, 1].astype(np.int32), unlike[:, 2].astype(np.int32)


def _collectives(
    program: Program, classes: Classes, group: Rows, member: Int32, member_slot: Int32, likeness: Int64
) -> tuple[CollectiveKeys, Int64]:
    """What to cost, and the row of that for each collective of each class of groups; sets where these begin."""
    first = group.member_base
    trace = program.trace_of_npu[classes.example[member[first]]].astype(np.int64)
    entry = program.trace_slot_ptr[trace] + member_slot[first]
    counts = program.coll_ptr[entry + 1] - program.coll_ptr[entry]
    group.instance_base = _pointers(counts)[:-1]
    done = _done(program)
    stands = _numbers(likeness[classes.group_example])
    at = _ranges(program.coll_ptr[entry], counts)
    of_row = np.repeat(stands, counts) * (int(done.max(initial=0)) + 1) + done[at]
    costs = done[at] > 0
    found = np.zeros(int(of_row.max(initial=0)) + 1, np.bool_)
    found[of_row[costs]] = True
    instance_key = np.where(costs, np.cumsum(found)[of_row] - 1, -1)
    chosen = np.full(int(np.count_nonzero(found)), len(at))
    np.minimum.at(chosen, instance_key[costs], np.flatnonzero(costs))
    of_group = np.searchsorted(_pointers(counts), chosen, side="right") - 1
    row = program.coll_node[at[chosen]].astype(np.int64)
    node = program.trace_ptr[trace[of_group]] + row
    least = _least(likeness, classes.group_example)
    keys = CollectiveKeys(
        group=least[classes.group_example[of_group]].astype(np.int64),
        schedule=program.node_schedule[node].astype(np.int64),
        bytes=program.node_bytes[node],
        npu=classes.example[member[first[of_group]]].astype(np.int64),
        row=row,
    )
    return keys, instance_key


def _done(program: Program) -> Int64:
    """int64[]: of each entry of coll_node, equal for collectives of one schedule and size; 0 = done at once."""
    trace = np.searchsorted(program.coll_ptr[program.trace_slot_ptr], np.arange(len(program.coll_node)), side="right")
    node = program.trace_ptr[trace - 1] + program.coll_node
    schedule = program.node_schedule[node].astype(np.int64)
    size = _numbers(program.node_bytes[node])
    number = _numbers(schedule * (int(size.max(initial=0)) + 1) + size) + 1
    return np.where(schedule >= 0, number, 0)


def _numbers(keys: Array) -> Int64:
    """int64[n]: numbers of equal keys, from 0 on."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def _least(likeness: Int64, used: Int32) -> Int64:
    """int64[G]: the least of the used groups that stands alike."""
    least = np.arange(len(likeness))
    order = np.sort(used)
    _, first, inverse = np.unique(likeness[order], return_index=True, return_inverse=True)
    least[order] = order[first[inverse.reshape(-1)]]
    return least


def _unlike(keys: Int64) -> tuple[Int64, Int64, Int64]:
    """Distinct rows of int64[n, k], where each stands first, and which each row is."""
    if len(keys) == 0:
        return keys, np.zeros(0, np.int64), np.zeros(0, np.int64)
    unlike, at, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return unlike, at, index.reshape(-1)


def _sends(
    program: Program, classes: Classes, pairs: Pairs, likeness: Int64, port: Int32
) -> tuple[Int64, tuple[Int32, Int32, Int32], Int32, MessageKeys, Int64]:
    """Pointers, columns and keys of the sends of all classes, and how many ports each class has."""
    kind = program.node_kind
    count = np.add.reduceat(np.append(kind == KIND_SEND, False).astype(np.int64), program.trace_ptr[:-1])
    count = np.where(np.diff(program.trace_ptr) > 0, count, 0)
    send_ptr = _pointers(count[program.trace_of_npu[classes.example]])
    total = int(send_ptr[-1])
    pair, size = np.zeros(total, np.int64), np.zeros(total, np.int64)
    to, to_row = np.zeros(total, np.int32), np.zeros(total, np.int32)
    for c in np.flatnonzero(np.diff(send_ptr)).tolist():
        npu = int(classes.example[c])
        trace = int(program.trace_of_npu[npu])
        rows = int(program.trace_ptr[trace]) + np.flatnonzero(
            kind[program.trace_ptr[trace] : program.trace_ptr[trace + 1]] == KIND_SEND
        )
        own = slice(int(send_ptr[c]), int(send_ptr[c + 1]))
        peer = npu + program.node_peer[rows].astype(np.int64)
        known = slice(int(pairs.ptr[npu]), int(pairs.ptr[npu + 1]))
        pair[own] = known.start + np.searchsorted(pairs.peer[known], peer)
        size[own] = program.node_bytes[rows]
        to[own] = classes.class_of_npu[peer]
        to_row[own] = _receives(program, rows, program.trace_of_npu[peer])
    unlike, at, index = _unlike(np.stack([likeness[pair], size], axis=1))
    messages = MessageKeys(pairs.npu[pair[at]], pairs.peer[pair[at]], unlike[:, 1])
    ports = np.zeros(len(classes.example), np.int64)
    np.maximum.at(ports, np.repeat(np.arange(len(ports)), np.diff(send_ptr)), port[pair] + 1)
    return send_ptr, (port[pair].astype(np.int32), to, to_row), index.astype(np.int32), messages, ports


def _receives(program: Program, rows: Int64, to_trace: Int32) -> Int32:
    """int32[]: rows of the receives of sends (rows of Program) in the traces of their receivers."""
    peer = -program.node_peer[rows].astype(np.int64)
    key = ((peer + (1 << 19)) << 44) | (program.node_tag[rows].astype(np.int64) << 20) | program.node_seq[rows]
    found = np.zeros(len(rows), np.int32)
    for trace in np.unique(to_trace).tolist():
        first, end = int(program.recv_ptr[trace]), int(program.recv_ptr[trace + 1])
        mine = to_trace == trace
        found[mine] = program.recv_node[first + np.searchsorted(program.recv_key[first:end], key[mine])]
    return found


def _work(layout: FoldedProgram, collective_ps: Int64, messages: MessageTimes, *, concurrent: bool) -> s.Work:
    """The state at time 0."""
    program, classes = layout.program, layout.classes
    count = len(classes.example)
    trace = program.trace_of_npu[classes.example].astype(np.int64)
    rows, sends = int(layout.row_ptr[-1]), int(layout.send_ptr[-1])
    state = zeros(rows, np.int32)
    at = _ranges(program.trace_ptr[trace], np.diff(layout.row_ptr))
    state[:rows] = program.node_deps[at]
    words = zeros(count, NpuClass)
    for name in NpuClass.declared:
        words[name] = -1
    words.trace_number[:count] = trace
    words.row_base[:count] = layout.row_ptr[:-1]
    words.slot_base[:count] = layout.slot_ptr[:-1]
    words.send_base[:count] = layout.send_ptr[:-1]
    words.port_base[:count] = layout.port_ptr[:-1]
    _begin(words, state, layout.row_ptr)
    most = max(LANES, int(layout.group.members.max(initial=0)))
    room = count + 4 * most + 1024
    heap = zeros(2 * room)
    heap[0 : 2 * count : 2] = 0
    heap[1 : 2 * count : 2] = np.arange(count) << 32
    ctl = row_of_zeros(Progress)
    ctl.at, ctl.events, ctl.room, ctl.most, ctl.serial = -1, count, room, most, int(not concurrent)
    takes = np.where(layout.instance_key >= 0, np.append(collective_ps, 0)[layout.instance_key], 0)
    return s.Work(
        ctl=ctl,
        classes=words,
        heap=heap,
        traces=layout.traces,
        rows=s.ClassRows(state, zeros(rows, np.int8), full(rows, -1), full(rows, -1)),
        collectives=s.Collectives(
            slot_group=_as(layout.slot_group, np.int32),
            slot_next=zeros(int(layout.slot_ptr[-1]), np.int32),
            group=aligned(layout.group),
            member=_as(layout.member, np.int32),
            member_slot=_as(layout.member_slot, np.int32),
            came=zeros(len(takes), np.int32),
            time_ps=_bounded(takes),
        ),
        sends=s.Sends(
            layout.send_key,
            *layout.sends,
            full(sends, -1),
            zeros(int(layout.port_ptr[-1])),
            *(_bounded(column) for column in messages),
        ),
    )


def _bounded(times_ps: ArrayLike) -> Int64:
    return np.clip(np.asarray(times_ps, np.int64), _LEAST_PS, LONGEST_RUN_PS + 1)


def _begin(words: Rows, state: Int32, row_ptr: Int64) -> None:
    """Put the rows without parents on the lists of what is ready, in the order of the trace."""
    ready = np.flatnonzero(state[: row_ptr[-1]] == 0)
    which = np.searchsorted(row_ptr, ready, side="right") - 1
    row = ready - row_ptr[which]
    is_last = np.append(which[1:] != which[:-1], True)[: len(ready)]
    is_first = np.append(True, which[1:] != which[:-1])[: len(ready)]
    state[ready] = np.where(is_last, -1, np.append(row[1:], -1)[: len(ready)])
    words.ready_head[which[is_first]] = row[is_first]
    words.ready_tail[which[is_last]] = row[is_last]


def _with_more_room(work: s.Work) -> s.Work:
    """With twice the heap."""
    heap = zeros(2 * len(work.heap))
    heap[: len(work.heap)] = work.heap
    work.ctl.room = len(heap) // 2
    return work._replace(heap=heap)


def _snapshot(work: s.Work, events: int, total: int, wall_s: float) -> Snapshot:
    return Snapshot(
        now_ps=int(work.ctl.now_ps),
        packet_hops=0,
        nodes_done=int(work.ctl.done),
        nodes_total=total,
        wall_s=wall_s,
        messages=events,
    )


def _who_waits(layout: FoldedProgram, work: s.Work) -> str:
    """The rows that are under way and what each waits for, a line each, of the least NPU of each class."""
    flag = work.rows.flag[: layout.row_ptr[-1]]
    begun = np.flatnonzero(((flag & (ROW_STARTED | ROW_READY)) != 0) & ((flag & ROW_DONE) == 0))
    which = np.searchsorted(layout.row_ptr, begun, side="right") - 1
    rows = begun - layout.row_ptr[which]
    some = zip(which[:MOST_LINES].tolist(), rows[:MOST_LINES].tolist(), strict=True)
    lines = [_waits(layout, work, c, row) for c, row in some]
    done = np.add.reduceat(np.append((flag & ROW_DONE) != 0, False).astype(np.int64), layout.row_ptr[:-1])
    of_class = np.diff(layout.row_ptr)
    left = int(((of_class - np.where(of_class > 0, done, 0)) * layout.classes.size).sum())
    more = f"\n  and {len(begun) - MOST_LINES} more" if len(begun) > MOST_LINES else ""
    head = f"nothing is left to happen at {int(work.ctl.now_ps)} ps, but {left} trace nodes are not done:"
    return head + "".join(f"\n  {line}" for line in lines) + more


def _waits(layout: FoldedProgram, work: s.Work, c: int, row: int) -> str:
    program, classes = layout.program, layout.classes
    npu = int(classes.example[c])
    at = int(program.trace_ptr[program.trace_of_npu[npu]]) + row
    kind, seq = int(program.node_kind[at]), int(program.node_seq[at])
    if kind == KIND_RECV:
        peer = npu + int(program.node_peer[at])
        return f"npu {npu} row {row}: receive {seq} of tag {program.node_tag[at]} waits for npu {peer}"
    if kind != KIND_COLLECTIVE:
        return f"npu {npu} row {row} is under way (engine defect)"
    slot = int(program.node_group[at])
    group = int(program.slot_group[program.slot_ptr[npu] + slot])
    name = f"npu {npu} row {row}: collective {seq} of group {group}"
    turn = int(work.collectives.slot_next[layout.slot_ptr[c] + slot])
    if work.ctl.serial == 1 and turn != seq:
        return f"{name} waits for its turn: collective {turn} of the group is not done"
    members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist()
    absent = next((m for m in members if not _has_come(layout, work, m, group, seq)), None)
    return f"{name} waits for npu {absent}" if absent is not None else f"{name} waits for nothing (engine defect)"


def _has_come(layout: FoldedProgram, work: s.Work, npu: int, group: int, seq: int) -> bool:
    """Whether a member is ready for a collective of its group."""
    program, c = layout.program, int(layout.classes.class_of_npu[npu])
    slots = np.flatnonzero(program.slot_group[program.slot_ptr[npu] : program.slot_ptr[npu + 1]] == group)
    if not len(slots):
        return False
    entry = program.trace_slot_ptr[program.trace_of_npu[npu]] + slots[0]
    row = int(program.coll_node[program.coll_ptr[entry] + seq])
    return bool(work.rows.flag[layout.row_ptr[c] + row] & ROW_STARTED)
