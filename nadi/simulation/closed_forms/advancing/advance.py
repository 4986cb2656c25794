"""Runs with collectives at their closed forms and messages at their paths, without contention: the compiled half.

NPUs are those of pdes/npu: rows become ready, start, take their lanes or their turn, and finish as there
(pdes/npu/trace.py). The events that an NPU waits for come from other sources: a collective ends for all members at
once, its time after the last member is ready; a message leaves when its sender's port is free, and arrives after the
time of its path. Every effect on another NPU takes at least a picosecond, so the order of NPUs at one moment does not
matter, and one NPU of a class (`likeness`) can represent the class.
"""

import numpy as np

from nadi.simulation.closed_forms.advancing.state import state_of
from pdes import LONGEST_RUN_PS
from pdes.kernels import heap_pop, heap_push, inline, kernel, mix2, mix3, outline
from pdes.traces import (
    COMPUTE_LANE,
    KIND_COLLECTIVE,
    KIND_COMPUTE,
    KIND_MEMORY,
    KIND_RECV,
    KIND_SEND,
    LANES,
    ROW_ARRIVED,
    ROW_POSTED,
    ROW_READY,
    ROW_STARTED,
    begin_work,
    change_pace,
    leave_lane,
    next_for_lane,
    next_ready,
    slowed,
    tell_of,
    wait_for_lane,
)

# Kinds of events; events of one moment are handled in this order. A lane's event is EVENT_LANE + lane; at EVENT_RUNS a
# collective takes its first step. Kind 0 begins the run.
EVENT_LEFT, EVENT_LANE, EVENT_ARRIVED = 1, 2, 2 + LANES
EVENT_RUNS, EVENT_TOGETHER, EVENT_POSTED = EVENT_ARRIVED + 1, EVENT_ARRIVED + 2, EVENT_ARRIVED + 3
ALL_DONE, NO_ROOM, PAUSED, TOO_LATE = range(4)
CLASS_SHIFT, KIND_SHIFT = 32, 56
ROW_MASK, CLASS_MASK = (1 << 32) - 1, (1 << 24) - 1


@inline
def push_event(w, time_ps, kind, which, row):
    """Push a future event of a class."""
    if time_ps > LONGEST_RUN_PS:
        w.ctl.late = 1
        return
    word = (np.int64(kind) << KIND_SHIFT) | (np.int64(which) << CLASS_SHIFT) | np.int64(row)
    heap_push(w.heap, 0, w.ctl.events, np.int64(time_ps), word)
    w.ctl.events += 1


@outline
def finish(address, which, row):
    """Finish a row, and notify the rows that wait for it."""
    w = state_of(address)
    npu_class = w.classes[which]
    w.rows.finish[npu_class.row_base + row] = w.ctl.now_ps
    w.ctl.done += 1
    w.ctl.finish_ps = max(w.ctl.finish_ps, w.ctl.now_ps)
    tell_of(npu_class, w.rows, w.trace, row, w.ctl.serial)


@inline
def send(w, which, row, r):
    """Begin a send when earlier messages have left its port.

    A send at a share runs beside the sends of other connections: it waits for the previous send of its own connection,
    and ends only when the port could have sent all earlier bytes and its own.
    """
    npu_class = w.classes[which]
    i = npu_class.send_base + w.sends.ordinal[r]
    m = np.int64(w.sends.message[i])
    port = npu_class.port_base + w.sends.port[i]
    free = w.sends.port_free_ps[port]
    hold = w.sends.hold_ps[m]
    line = w.sends.line[i]
    if line >= 0:
        ready = max(w.ctl.now_ps, w.sends.line_free_ps[line])
        begin = max(ready, free + hold - w.sends.left_ps[m])
        w.sends.line_free_ps[line] = begin + w.sends.left_ps[m]
        w.sends.port_free_ps[port] = max(ready, free) + hold
    else:
        begin = max(w.ctl.now_ps, free)
        w.sends.port_free_ps[port] = begin + hold
    w.sends.arrived_ps[i] = begin + w.sends.total_ps[m]
    push_event(w, begin + w.sends.left_ps[m], EVENT_LEFT, which, row)
    push_event(w, begin + w.sends.total_ps[m], EVENT_ARRIVED, np.int64(w.sends.to[i]), np.int64(w.sends.to_row[i]))


@inline
def join(w, which, r):
    """Count a ready member of a collective; the last one pushes the end of the collective at all members."""
    npu_class = w.classes[which]
    group = w.collectives.group[np.int64(w.collectives.slot_group[npu_class.slot_base + w.trace.group[r]])]
    seq = np.int64(w.trace.seq[r])
    i = group.instance_base + seq
    w.collectives.came[i] += 1
    if w.collectives.came[i] < group.needed:
        return
    first = group.member_base
    for k in range(first, first + group.members):
        member = np.int64(w.collectives.member[k])
        trace = w.classes[member].trace_number
        row = w.trace.coll_node[w.trace.coll_ptr[w.trace.trace_slot_ptr[trace] + w.collectives.member_slot[k]] + seq]
        push_event(w, w.ctl.now_ps + w.collectives.time_ps[i], EVENT_TOGETHER, member, np.int64(row))


@inline
def takes_ps(w, npu_class, r, kind, lane):
    """Return the time of a row that begins now, if the number of running collectives stays the same."""
    now = w.ctl.now_ps
    duration = w.trace.duration_ps[r]
    if kind == KIND_COMPUTE:
        while npu_class.next_change < npu_class.changes_end and w.changes.at_ps[npu_class.next_change] <= now:
            npu_class.slow_1024ths = w.changes.slow_1024ths[npu_class.next_change]
            npu_class.next_change += 1
        if npu_class.slow_1024ths != 0:
            duration = slowed(duration, npu_class.slow_1024ths)
    if lane == COMPUTE_LANE and w.ctl.compute_slow_1000ths != 0:
        duration = begin_work(w.ctl.compute_slow_1000ths, npu_class, duration, now)
    return duration


@outline
def count_running(address, which, by):
    """Count one running collective more (by = 1) or less (-1), and update the pace of the compute lane's row."""
    w = state_of(address)
    npu_class = w.classes[which]
    before = npu_class.running
    after = before + by
    row = np.int64(npu_class.lane[COMPUTE_LANE])
    if row < 0 or (before > 0 and after > 0):
        npu_class.running = after
        return
    change_pace(w.ctl.compute_slow_1000ths, npu_class, by, w.ctl.now_ps)
    push_event(w, npu_class.due_ps, EVENT_LANE + COMPUTE_LANE, which, row)


@inline
def has_lapsed(w, npu_class, row):
    """Return whether the end event of a compute lane's row is out of date, because collectives have changed its end."""
    if w.ctl.compute_slow_1000ths == 0:
        return False
    return npu_class.lane[COMPUTE_LANE] != row or npu_class.due_ps != w.ctl.now_ps


@inline
def slows(w, r):
    """Return whether a collective slows computation down: a slowdown is set, and kernels run the collective."""
    return w.ctl.compute_slow_1000ths != 0 and w.trace.lane[r] == COMPUTE_LANE


@outline
def start(address, which):
    """Start the first row that is ready."""
    w = state_of(address)
    npu_class = w.classes[which]
    base = npu_class.row_base
    row = next_ready(npu_class, w.rows)
    r = npu_class.trace_base + row
    kind = w.trace.kind[r]
    done = False
    if kind == KIND_COMPUTE or kind == KIND_MEMORY:
        lane = np.int64(w.trace.lane[r])
        if npu_class.lane[lane] >= 0:
            wait_for_lane(npu_class, w.rows, lane, row)
            return
        duration = takes_ps(w, npu_class, r, kind, lane)
        if duration == 0:
            done = True
            next_for_lane(npu_class, w.rows, lane)
        else:
            npu_class.lane[lane] = row
            push_event(w, w.ctl.now_ps + duration, EVENT_LANE + lane, which, row)
    elif kind == KIND_SEND:
        if w.trace.duration_ps[r] > 0:
            push_event(w, w.ctl.now_ps + w.trace.duration_ps[r], EVENT_POSTED, which, row)
        else:
            send(w, which, row, r)
    elif kind == KIND_RECV:
        done = w.rows.flag[base + row] & ROW_ARRIVED != 0
        w.rows.flag[base + row] |= ROW_POSTED
    elif kind == KIND_COLLECTIVE:
        slot = npu_class.slot_base + w.trace.group[r]
        if w.ctl.serial == 1 and w.rows.slot_next[slot] != w.trace.seq[r]:
            w.rows.flag[base + row] |= ROW_READY
            return
        if w.trace.schedule[r] < 0:
            done = True
        else:
            if slows(w, r):
                launch_ps = w.collectives.launch_ps[w.trace.schedule[r]]
                if launch_ps > 0:
                    push_event(w, w.ctl.now_ps + launch_ps, EVENT_RUNS, which, row)
                else:
                    count_running(address, which, 1)
            join(w, which, r)
    else:
        done = True
    w.rows.flag[base + row] |= ROW_STARTED
    w.rows.start[base + row] = w.ctl.now_ps
    if done:
        finish(address, which, row)


@outline
def act(address, kind, which, row):
    """Handle an event of a class."""
    w = state_of(address)
    npu_class = w.classes[which]
    base = npu_class.row_base
    if kind == EVENT_ARRIVED:
        w.rows.flag[base + row] |= ROW_ARRIVED
        if w.rows.flag[base + row] & ROW_POSTED != 0:
            finish(address, which, row)
    elif kind == EVENT_RUNS:
        count_running(address, which, 1)
    elif kind == EVENT_TOGETHER:
        if slows(w, npu_class.trace_base + row):
            count_running(address, which, -1)
        finish(address, which, row)
    elif kind == EVENT_POSTED:
        send(w, which, row, npu_class.trace_base + row)
    elif kind == EVENT_LEFT:
        finish(address, which, row)
    elif kind == EVENT_LANE + COMPUTE_LANE and has_lapsed(w, npu_class, row):
        return
    elif kind >= EVENT_LANE:
        leave_lane(npu_class, w.rows, kind - EVENT_LANE)
        finish(address, which, row)


@kernel
def advance(address, events):
    """Run for a number of events, and return why the run stops."""
    w = state_of(address)
    ctl = w.ctl
    left = events
    while True:
        which = ctl.at
        while which >= 0 and w.classes[which].ready_head >= 0 and ctl.late == 0:
            if ctl.events + ctl.most > ctl.room:
                return NO_ROOM
            start(address, which)
        ctl.at = -1
        if ctl.late == 1:
            return TOO_LATE
        if ctl.events == 0:
            return ALL_DONE
        if left == 0:
            return PAUSED
        left -= 1
        ctl.now_ps = w.heap[0]
        word = w.heap[1]
        heap_pop(w.heap, 0, ctl.events)
        ctl.events -= 1
        ctl.at = (word >> CLASS_SHIFT) & CLASS_MASK
        act(address, word >> KIND_SHIFT, ctl.at, word & ROW_MASK)


@kernel
def add_digests(finish_ps, first, class_of_npu, found):
    """Add the digests of all rows of all NPUs to int64[2] found; first: first row of each class."""
    for npu in range(class_of_npu.shape[0]):
        c = class_of_npu[npu]
        for i in range(first[c], first[c + 1]):
            h = mix3(npu, i - first[c], 0x4E41)
            now = finish_ps[i]
            found[0] += mix2(h, now)
            found[1] += mix2(now * 3 + 1, h)
