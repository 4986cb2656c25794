"""Run of a Program at closed forms, one NPU per class, and the message for a run that cannot finish."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi import pdes
from nadi.inputs.arrays import Int64
from nadi.pdes import trace_steps, traces
from nadi.pdes.kernels import Directory, Program, aligned, compile_for, full, row_of, rows_of, zeros
from nadi.simulation.closed_forms.advancing import state as s
from nadi.simulation.closed_forms.advancing.advance import ALL_DONE, NO_ROOM, TOO_LATE, add_digests, advance
from nadi.simulation.closed_forms.advancing.equivalence import Classes, ClassProgram

EVENTS_OF_A_PAUSE = 1_000_000  # number of events between two progress snapshots
_MIN_PS = 1  # minimum time of a collective or a message: effects on other NPUs come later than their cause
# maximum number of events of a collective besides its ends at the members: it begins to run, and compute slows down
_ADDITIONAL_EVENTS = 2


class MessageTimes(NamedTuple):
    """Times of M messages in picoseconds."""

    hold_ps: Int64  # int64[M], time that a message holds its sender's port
    left_ps: Int64  # int64[M], time from its begin until its sender is done
    total_ps: Int64  # int64[M], time from its begin until its receiver has it


class ClassTimes(NamedTuple):
    """Results of a run, per class of NPUs."""

    row_ptr: Int64  # int64[C+1], range of the rows of each class
    start_ps: Int64  # int64[], start of each row in picoseconds
    finish_ps: Int64  # int64[], finish of each row in picoseconds
    send_ptr: Int64  # int64[C+1], range of the sends of each class, in the order of its rows
    arrived_ps: Int64  # int64[], arrival of each send in picoseconds
    finish_time_ps: int  # finish of the last row in picoseconds
    events: int  # number of rows that ran
    wall_s: float  # wall-clock time of the run in seconds


def run_closed_form(
    by_class: ClassProgram,
    collective_ps: Int64,
    messages: MessageTimes,
    settings: pdes.Settings,
    progress: Callable[[pdes.Snapshot], None] | None = None,
) -> ClassTimes:
    """Run a Program, one NPU per class, and return the times per class of NPUs; RunError if rows wait for ever.

    by_class: the Program laid out by classes of NPUs; collective_ps: int64[K], time in ps of each of
        by_class.collectives;
    messages: times of by_class.messages; settings: the engine's settings of the run; progress: function that receives a
    snapshot every EVENTS_OF_A_PAUSE events, None = no function.
    """
    begun = time.perf_counter()
    work = _initial_state(by_class, collective_ps, messages, settings)
    work = work._replace(changes=_pace_changes(work, by_class, settings.faults.npus))
    if settings.slows_compute:
        work.ctl.slows_compute = 1
        jobs = traces.job_tables(by_class.program, by_class.program.npus)
        work.classes.slow_1000ths[: len(by_class.classes.example)] = traces.slow_1000ths(
            jobs, settings, by_class.classes.example
        )
        work.collectives.launch_ps[:] += settings.fidelity.endpoint_delay_ps
    directory, events = Directory(work, "closed forms"), 0
    total = int(by_class.row_ptr[-1])
    while (stopped := advance(directory.address, EVENTS_OF_A_PAUSE)) != ALL_DONE:
        if stopped == TOO_LATE:
            raise pdes.RunError(pdes.TOO_LATE_TEXT)
        if stopped == NO_ROOM:
            heap = zeros(2 * len(work.heap))
            heap[: len(work.heap)] = work.heap
            work = work._replace(heap=heap)
            work.ctl.room = len(heap) // 2
            directory.update(work)
        elif progress is not None:
            events += EVENTS_OF_A_PAUSE
            progress(
                pdes.Snapshot(
                    now_ps=int(work.ctl.now_ps),
                    packet_hops=0,
                    nodes_done=int(work.ctl.done),
                    nodes_total=total,
                    wall_s=time.perf_counter() - begun,
                    messages=events,
                )
            )
    directory.check_guards()
    if int(work.ctl.done) < total:
        raise pdes.RunError(_deadlock_message(by_class, work))
    return ClassTimes(
        row_ptr=by_class.row_ptr,
        start_ps=work.rows.start[:total],
        finish_ps=work.rows.finish[:total],
        send_ptr=by_class.send_ptr,
        arrived_ps=work.sends.arrived_ps[: int(by_class.send_ptr[-1])],
        finish_time_ps=int(work.ctl.finish_ps),
        events=total,
        wall_s=time.perf_counter() - begun,
    )


def _pace_changes(work: s.AdvanceState, by_class: ClassProgram, npu_faults: Sequence[pdes.NpuFault]) -> s.PaceChanges:
    """Return the times at which classes of NPUs become slow or fast again, and set each class's part of them."""
    of_npu: dict[int, list[pdes.NpuFault]] = {}
    for fault in npu_faults:
        of_npu.setdefault(fault.npu, []).append(fault)
    changes: list[tuple[int, int]] = []
    for number, npu in enumerate(by_class.classes.example.tolist()):
        work.classes[number].next_change = len(changes)
        # cells of 1 ps: closed forms know no windows
        changes += traces.slow_changes(of_npu.get(npu, []), cell_ps=1)
        work.classes[number].changes_end = len(changes)
    columns = np.array(changes, np.int64).reshape(-1, 2)
    return s.PaceChanges(aligned(columns[:, 0]), aligned(columns[:, 1]))


def compile_closed_form() -> float:
    """Compile the kernels of a run or load them from the cache, and return the seconds that this took."""
    begun = time.perf_counter()
    words = np.zeros(1, np.int64)
    compile_for(advance, 0, 0)
    compile_for(add_digests, words, words, words, words, words, words)
    return time.perf_counter() - begun


def digests_of(times: ClassTimes, program: Program, classes: Classes) -> dict[str, Any]:
    """Return the fields digest and job_digests of Results: hashes of the completion times of all trace rows.

    Args:
        times: Times of the rows by class.
        program: Work of all NPUs (`Program`).
        classes: Classes of NPUs.
    """
    tables = traces.job_tables(program, program.npus)
    totals = np.zeros(4 * len(tables.total), np.int64)
    class_of_npu = classes.class_of_npu.astype(np.int64)
    add_digests(times.finish_ps, times.row_ptr, class_of_npu, tables.who, program.begins_ps, totals)
    return traces.digests(totals.reshape(-1, 4), program)


def _initial_state(
    by_class: ClassProgram, collective_ps: Int64, messages: MessageTimes, settings: pdes.Settings
) -> s.AdvanceState:
    """Return the state at time 0; collective_ps: int64[K], time of each collective in ps."""
    program, classes = by_class.program, by_class.classes
    count = len(classes.example)
    trace = program.trace_of_npu[classes.example].astype(np.int64)
    words = rows_of(s.NpuClass, count)
    state, _ = traces.begin_traces(words, trace, program)
    words.slot_base[:count] = by_class.slot_ptr[:-1]
    words.send_base[:count] = by_class.send_ptr[:-1]
    words.port_base[:count] = by_class.port_ptr[:-1]
    most = max(trace_steps.LANES, int(by_class.group.members.max(initial=0))) + _ADDITIONAL_EVENTS
    room = count + 4 * most + 1024
    heap = zeros(2 * room)
    begin_ps = program.begins_ps[classes.example]
    # a sorted array is a heap
    order = np.argsort(begin_ps, kind="stable")
    heap[0 : 2 * count : 2] = begin_ps[order]
    # the first event of each class is the begin of its job, kind 0
    heap[1 : 2 * count : 2] = order << 32
    ctl = row_of(s.RunState)
    ctl.at, ctl.events, ctl.room, ctl.most = -1, count, room, most
    ctl.serial, ctl.one_at_a_time = not settings.concurrent_collectives, settings.one_at_a_time
    takes = np.where(by_class.instance_key >= 0, np.append(collective_ps, 0)[by_class.instance_key], 0)
    return s.AdvanceState(
        ctl=ctl,
        classes=words,
        turns=rows_of(trace_steps.Turns, count if settings.one_at_a_time else 0),
        heap=heap,
        trace=traces.trace_tables(program, 1.0),
        rows=traces.row_states(state, int(by_class.slot_ptr[-1]), is_recorded=True),
        collectives=s.CollectiveClasses(
            slot_group=traces.padded(by_class.slot_group, np.int32),
            group=aligned(by_class.group),
            member=traces.padded(by_class.member, np.int32),
            member_slot=traces.padded(by_class.member_slot, np.int32),
            came=zeros(len(takes), np.int32),
            time_ps=_bounded(takes),
            launch_ps=aligned(program.schedules.launch_ps, np.int64),
        ),
        sends=s.ClassSends(
            by_class.send_ordinal,
            by_class.send_key,
            *by_class.sends,
            full(int(by_class.send_ptr[-1]), -1),
            zeros(int(by_class.port_ptr[-1])),
            zeros(max(1, by_class.lines)),
            *(_bounded(column) for column in messages),
        ),
        changes=s.PaceChanges(zeros(0), zeros(0)),
    )


def _bounded(times_ps: ArrayLike) -> Int64:
    """Return int64[n], times in picoseconds limited to what a run can represent, and at least _MIN_PS."""
    return aligned(np.clip(np.asarray(times_ps, np.int64), _MIN_PS, pdes.LONGEST_RUN_PS + 1))


def _deadlock_message(by_class: ClassProgram, work: s.AdvanceState) -> str:
    """Return a message with one line per unfinished row of the first NPU of each class, and what it waits for."""
    flag = work.rows.flag[: by_class.row_ptr[-1]]
    begun = np.flatnonzero(
        ((flag & (trace_steps.ROW_STARTED | trace_steps.ROW_READY)) != 0) & ((flag & trace_steps.ROW_DONE) == 0)
    )
    which = np.searchsorted(by_class.row_ptr, begun, side="right") - 1
    rows = begun - by_class.row_ptr[which]
    shown = zip(which[: pdes.MAX_LINES].tolist(), rows[: pdes.MAX_LINES].tolist(), strict=True)
    lines = [_waits(by_class, work, c, row) for c, row in shown]
    # one more item at the end, as reduceat takes no index behind it
    done = np.add.reduceat(np.append((flag & trace_steps.ROW_DONE) != 0, False).astype(np.int64), by_class.row_ptr[:-1])
    of_class = np.diff(by_class.row_ptr)
    left = int(((of_class - np.where(of_class > 0, done, 0)) * by_class.classes.size).sum())
    more = f"\n  and {len(begun) - pdes.MAX_LINES} more" if len(begun) > pdes.MAX_LINES else ""
    head = f"nothing is left to happen at {int(work.ctl.now_ps)} ps, but {left} trace nodes are not done:"
    return head + "".join(f"\n  {line}" for line in lines) + more


def _waits(by_class: ClassProgram, work: s.AdvanceState, class_number: int, row: int) -> str:
    """Return the text that says what a row of the first NPU of a class of NPUs waits for."""
    program, classes = by_class.program, by_class.classes
    npu = int(classes.example[class_number])
    at = int(program.trace_ptr[program.trace_of_npu[npu]]) + row
    kind, seq = int(program.node_kind[at]), int(program.node_seq[at])
    if kind == trace_steps.KIND_RECV:
        peer = program.peers(np.array(npu), program.node_peer[at])
        return f"npu {npu} row {row}: receive {seq} of tag {program.node_tag[at]} waits for npu {peer}"
    if kind != trace_steps.KIND_COLLECTIVE:
        return f"npu {npu} row {row} is under way (engine defect)"
    slot = int(program.node_group[at])
    group = int(program.slot_group[program.slot_ptr[npu] + slot])
    name = f"npu {npu} row {row}: collective {seq} of group {group}"
    turn = int(work.rows.slot_next[by_class.slot_ptr[class_number] + slot])
    if work.ctl.serial == 1 and turn != seq:
        return f"{name} waits for its turn: collective {turn} of the group is not done"
    members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist()
    absent = next((m for m in members if not _has_come(by_class, work, m, group, seq)), None)
    return f"{name} waits for npu {absent}" if absent is not None else f"{name} waits for nothing (engine defect)"


def _has_come(by_class: ClassProgram, work: s.AdvanceState, npu: int, group: int, seq: int) -> bool:
    """Return whether an NPU is ready for the collective with number `seq` of a group that it may belong to."""
    program, c = by_class.program, int(by_class.classes.class_of_npu[npu])
    slots = np.flatnonzero(program.slot_group[program.slot_ptr[npu] : program.slot_ptr[npu + 1]] == group)
    if not len(slots):
        return False
    entry = program.trace_slot_ptr[program.trace_of_npu[npu]] + slots[0]
    row = int(program.coll_node[program.coll_ptr[entry] + seq])
    return bool(work.rows.flag[by_class.row_ptr[c] + row] & trace_steps.ROW_STARTED)
