"""Runs with collectives at their closed forms and messages at their paths, without contention: the compiled half.

NPUs are those of pdes/npu: rows become ready, start, take their lanes or their turn, and finish as there
(pdes/npu/trace.py). The events that an NPU waits for come from other sources: a collective ends for all members at
once, its time after the last member is ready; a message leaves when its sender's port is free, and arrives after the
time of its path. Every effect on another NPU takes at least a picosecond, so the order of NPUs at one moment does not
matter, and one NPU of a class (`equivalence`) can represent the class.
"""

import numpy as np

from nadi.pdes import LONGEST_RUN_PS, trace_steps
from nadi.pdes.kernels import heap_pop, heap_push, inline, kernel, mix2, mix3, outline
from nadi.simulation.closed_forms.advancing.state import state_of

# Kinds of events; events of one moment are handled in this order. A lane's event is EVENT_LANE + lane; at EVENT_RUNS a
# collective takes its first step. Kind 0 begins the run.
EVENT_LEFT, EVENT_LANE, EVENT_ARRIVED = 1, 2, 2 + trace_steps.LANES
EVENT_RUNS, EVENT_TOGETHER, EVENT_POSTED = EVENT_ARRIVED + 1, EVENT_ARRIVED + 2, EVENT_ARRIVED + 3
ALL_DONE, NO_ROOM, PAUSED, TOO_LATE = range(4)
CLASS_SHIFT, KIND_SHIFT = 32, 56
ROW_MASK, CLASS_MASK = (1 << 32) - 1, (1 << 24) - 1


@inline
def push_event(state, time_ps, kind, class_number, row):
    """Push a future event of a class of NPUs.

    Args:
        state: State of the run (`AdvanceState`).
        time_ps: Time of the event in ps.
        kind: Kind of the event (EVENT_*).
        class_number: Number of the class of NPUs.
        row: Row in the trace of the class.
    """
    # later times could exceed 63 bits; `advance` ends the run
    if time_ps > LONGEST_RUN_PS:
        state.ctl.late = 1
        return
    word = (np.int64(kind) << KIND_SHIFT) | (np.int64(class_number) << CLASS_SHIFT) | np.int64(row)
    heap_push(state.heap, 0, state.ctl.events, np.int64(time_ps), word)
    state.ctl.events += 1


@outline
def finish(address, class_number, row):
    """Finish a row of a class of NPUs, and notify the rows that wait for it.

    Args:
        address: Address of the directory of the state.
        class_number: Number of the class of NPUs.
        row: Row in the trace of the class.
    """
    state = state_of(address)
    npu_class = state.classes[class_number]
    state.rows.finish[npu_class.row_base + row] = state.ctl.now_ps
    state.ctl.done += 1
    state.ctl.finish_ps = max(state.ctl.finish_ps, state.ctl.now_ps)
    if state.ctl.one_at_a_time == 1:
        trace_steps.end_turn(state.turns[class_number], row)
    trace_steps.notify_children(npu_class, state.rows, state.trace, row, state.ctl.serial)


@inline
def send(state, class_number, row, program_row):
    """Begin a send when earlier messages have left its port.

    A send at a share runs beside the sends of other connections: it waits for the previous send of its own connection,
    and ends only when the port could have sent all earlier bytes and its own.

    Args:
        state: State of the run (`AdvanceState`).
        class_number: Number of the class of NPUs.
        row: Row in the trace of the class.
        program_row: The same row in the tables of the Program.
    """
    npu_class = state.classes[class_number]
    i = npu_class.send_base + state.sends.ordinal[program_row]
    m = np.int64(state.sends.message[i])
    port = npu_class.port_base + state.sends.port[i]
    free = state.sends.port_free_ps[port]
    hold = state.sends.hold_ps[m]
    line = state.sends.line[i]
    # a send at a share: the port keeps the time for its bytes, while the line takes longer
    if line >= 0:
        ready = max(state.ctl.now_ps, state.sends.line_free_ps[line])
        begin = max(ready, free + hold - state.sends.left_ps[m])
        state.sends.line_free_ps[line] = begin + state.sends.left_ps[m]
        state.sends.port_free_ps[port] = max(ready, free) + hold
    else:
        begin = max(state.ctl.now_ps, free)
        state.sends.port_free_ps[port] = begin + hold
    state.sends.arrived_ps[i] = begin + state.sends.total_ps[m]
    push_event(state, begin + state.sends.left_ps[m], EVENT_LEFT, class_number, row)
    push_event(
        state,
        begin + state.sends.total_ps[m],
        EVENT_ARRIVED,
        np.int64(state.sends.to[i]),
        np.int64(state.sends.to_row[i]),
    )


@inline
def join(state, class_number, program_row):
    """Count a ready member of a collective; the last one pushes the end of the collective at all members.

    Args:
        state: State of the run (`AdvanceState`).
        class_number: Number of the class of NPUs.
        program_row: The same row in the tables of the Program.
    """
    npu_class = state.classes[class_number]
    group = state.collectives.group[
        np.int64(state.collectives.slot_group[npu_class.slot_base + state.trace.group[program_row]])
    ]
    seq = np.int64(state.trace.seq[program_row])
    i = group.instance_base + seq
    state.collectives.came[i] += 1
    # only the last member to come knows when the collective begins
    if state.collectives.came[i] < group.needed:
        return
    first = group.member_base
    for k in range(first, first + group.members):
        member = np.int64(state.collectives.member[k])
        trace = state.classes[member].trace_number
        row = state.trace.coll_node[
            state.trace.coll_ptr[state.trace.trace_slot_ptr[trace] + state.collectives.member_slot[k]] + seq
        ]
        push_event(state, state.ctl.now_ps + state.collectives.time_ps[i], EVENT_TOGETHER, member, np.int64(row))


@inline
def takes_ps(state, npu_class, program_row, kind, lane):
    """Return the time of a row that begins now, if the number of running collectives stays the same.

    Args:
        state: State of the run (`AdvanceState`).
        npu_class: The class of NPUs (a row of `state.classes`).
        program_row: The same row in the tables of the Program.
        kind: Kind of the row (KIND_*).
        lane: Number of the row's lane.
    """
    now = state.ctl.now_ps
    duration = state.trace.duration_ps[program_row]
    if kind == trace_steps.KIND_COMPUTE:
        # changes count for rows that begin after them, so they are made when a row begins
        while npu_class.next_change < npu_class.changes_end and state.changes.at_ps[npu_class.next_change] <= now:
            npu_class.slow_1024ths = state.changes.slow_1024ths[npu_class.next_change]
            npu_class.next_change += 1
        if npu_class.slow_1024ths != 0:
            duration = trace_steps.slowed(duration, npu_class.slow_1024ths)
    if lane == trace_steps.COMPUTE_LANE and state.ctl.slows_compute != 0:
        duration = trace_steps.begin_work(npu_class, duration, now)
    return duration


@outline
def count_running(address, class_number, change):
    """Count a running collective more or less, and update the pace of the compute lane's row.

    Args:
        address: Address of the directory of the state.
        class_number: Number of the class of NPUs.
        change: 1 if a collective begins, -1 if it ends.
    """
    state = state_of(address)
    npu_class = state.classes[class_number]
    before = npu_class.running
    after = before + change
    row = np.int64(npu_class.lane[trace_steps.COMPUTE_LANE])
    # the pace is the same with one running collective as with several
    if row < 0 or (before > 0 and after > 0):
        npu_class.running = after
        return
    trace_steps.change_pace(npu_class, change, state.ctl.now_ps)
    push_event(state, npu_class.due_ps, EVENT_LANE + trace_steps.COMPUTE_LANE, class_number, row)


@inline
def has_lapsed(state, npu_class, row):
    """Return whether the end event of a compute lane's row is out of date, because collectives have changed its end.

    Args:
        state: State of the run (`AdvanceState`).
        npu_class: The class of NPUs (a row of `state.classes`).
        row: Row in the trace of the class.
    """
    if state.ctl.slows_compute == 0:
        return False
    # events stay in the heap when the pace changes, and another one is pushed
    return npu_class.lane[trace_steps.COMPUTE_LANE] != row or npu_class.due_ps != state.ctl.now_ps


@inline
def slows(w, r):
    """Return whether a collective slows computation down: a slowdown is set, and kernels run the collective.

    Args:
        w: State of the run.
        r: Row of the collective in the tables of the Program.
    """
    return w.ctl.slows_compute != 0 and w.trace.lane[r] == trace_steps.COMPUTE_LANE


@inline
def has_ready(state, class_number):
    """Return whether a row of a class of NPUs may start, after idle kinds have begun their next rows.

    Args:
        state: State of the run (`AdvanceState`).
        class_number: Number of the class of NPUs.
    """
    npu_class = state.classes[class_number]
    if state.ctl.one_at_a_time == 1 and npu_class.ready_head < 0:
        trace_steps.begin_turns(npu_class, state.turns[class_number], state.rows)
    return npu_class.ready_head >= 0


@outline
def start(address, class_number):
    """Start the first row of a class of NPUs that is ready, unless it waits for its turn.

    Args:
        address: Address of the directory of the state.
        class_number: Number of the class of NPUs.
    """
    state = state_of(address)
    npu_class = state.classes[class_number]
    base = npu_class.row_base
    row = trace_steps.next_ready(npu_class, state.rows)
    if state.ctl.one_at_a_time == 1 and not trace_steps.takes_turn(
        npu_class, state.turns[class_number], state.rows, state.trace, row, state.ctl.serial
    ):
        return
    program_row = npu_class.trace_base + row
    kind = state.trace.kind[program_row]
    done = False
    if kind == trace_steps.KIND_COMPUTE or kind == trace_steps.KIND_MEMORY:
        lane = np.int64(state.trace.lane[program_row])
        if npu_class.lane[lane] >= 0:
            trace_steps.wait_for_lane(npu_class, state.rows, lane, row)
            return
        duration = takes_ps(state, npu_class, program_row, kind, lane)
        if duration == 0:
            done = True
            trace_steps.next_for_lane(npu_class, state.rows, lane)
        else:
            npu_class.lane[lane] = row
            push_event(state, state.ctl.now_ps + duration, EVENT_LANE + lane, class_number, row)
    elif kind == trace_steps.KIND_SEND:
        if state.trace.duration_ps[program_row] > 0:
            push_event(state, state.ctl.now_ps + state.trace.duration_ps[program_row], EVENT_POSTED, class_number, row)
        else:
            send(state, class_number, row, program_row)
    elif kind == trace_steps.KIND_RECV:
        done = state.rows.flag[base + row] & trace_steps.ROW_ARRIVED != 0  # else the arrival finishes the row
        state.rows.flag[base + row] |= trace_steps.ROW_POSTED
    elif kind == trace_steps.KIND_COLLECTIVE:
        slot = npu_class.slot_base + state.trace.group[program_row]
        if state.ctl.serial == 1 and state.rows.slot_next[slot] != state.trace.seq[program_row]:
            state.rows.flag[base + row] |= trace_steps.ROW_READY
            return
        if state.trace.schedule[program_row] < 0:
            done = True
        else:
            if slows(state, program_row):
                launch_ps = state.collectives.launch_ps[state.trace.schedule[program_row]]
                if launch_ps > 0:
                    push_event(state, state.ctl.now_ps + launch_ps, EVENT_RUNS, class_number, row)
                else:
                    count_running(address, class_number, 1)
            join(state, class_number, program_row)
    else:
        done = True
    state.rows.flag[base + row] |= trace_steps.ROW_STARTED
    state.rows.start[base + row] = state.ctl.now_ps
    if done:
        finish(address, class_number, row)


@outline
def act(address, event_kind, class_number, row):
    """Handle an event of a row of a class of NPUs.

    Args:
        address: Address of the directory of the state.
        event_kind: Kind of the event (EVENT_*).
        class_number: Number of the class of NPUs.
        row: Row in the trace of the class.
    """
    state = state_of(address)
    npu_class = state.classes[class_number]
    base = npu_class.row_base
    if event_kind == EVENT_ARRIVED:
        state.rows.flag[base + row] |= trace_steps.ROW_ARRIVED
        # a receive ends when it is posted and its message is in
        if state.rows.flag[base + row] & trace_steps.ROW_POSTED != 0:
            finish(address, class_number, row)
    elif event_kind == EVENT_RUNS:
        count_running(address, class_number, 1)
    elif event_kind == EVENT_TOGETHER:
        if slows(state, npu_class.trace_base + row):
            count_running(address, class_number, -1)
        finish(address, class_number, row)
    elif event_kind == EVENT_POSTED:
        send(state, class_number, row, npu_class.trace_base + row)
    elif event_kind == EVENT_LEFT:
        finish(address, class_number, row)
    elif event_kind == EVENT_LANE + trace_steps.COMPUTE_LANE and has_lapsed(state, npu_class, row):
        return
    elif event_kind >= EVENT_LANE:
        trace_steps.leave_lane(npu_class, state.rows, event_kind - EVENT_LANE)
        finish(address, class_number, row)


@kernel
def advance(address, max_events):
    """Run for a number of events, and return why the run stops: NO_ROOM, TOO_LATE, ALL_DONE or PAUSED.

    Args:
        address: Address of the directory of the state.
        max_events: Maximum number of events.
    """
    state = state_of(address)
    ctl = state.ctl
    left = max_events
    while True:
        class_number = ctl.at
        while class_number >= 0 and ctl.late == 0 and has_ready(state, class_number):
            # a start pushes at most `most` events, and must not be interrupted
            if ctl.events + ctl.most > ctl.room:
                return NO_ROOM
            start(address, class_number)
        ctl.at = -1
        if ctl.late == 1:
            return TOO_LATE
        if ctl.events == 0:
            return ALL_DONE
        if left == 0:
            return PAUSED
        left -= 1
        ctl.now_ps = state.heap[0]
        word = state.heap[1]
        heap_pop(state.heap, 0, ctl.events)
        ctl.events -= 1
        # only its rows can have become ready
        ctl.at = (word >> CLASS_SHIFT) & CLASS_MASK
        act(address, word >> KIND_SHIFT, ctl.at, word & ROW_MASK)


@kernel
def add_digests(finish_ps, first_row, class_of_npu, who, begin_ps, totals):
    """Add the digests of all rows of all NPUs to int64[4 x jobs] totals, as pdes.npu.trace.finish_row does.

    `finish_ps`: int64[rows]. `first_row`: first row of each class. `class_of_npu`, `begin_ps`: int64[npus], class, and
    begin of its job. `who`: int64[npus], rank and job (pdes.core.packet).
    """
    for npu in range(class_of_npu.shape[0]):
        c = class_of_npu[npu]
        at = 4 * trace_steps.job_of(who[npu])
        for i in range(first_row[c], first_row[c + 1]):
            # the same hash as in runs with packets, so that digests can be compared
            h = mix3(trace_steps.rank_of(who[npu]), i - first_row[c], 0x4E41)
            since = finish_ps[i] - begin_ps[npu]
            totals[at] += mix2(h, since)
            totals[at + 1] += mix2(since * 3 + 1, h)
            totals[at + 3] += 1
