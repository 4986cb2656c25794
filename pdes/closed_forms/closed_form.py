"""Collectives at their closed forms and messages by their paths, with no contention: the compiled half.

NPUs are those of pdes/npu: rows become ready, start, take their lanes or their turn, and finish as
there. What an NPU waits for comes otherwise: a collective ends for all members at once, so long after the last of them
is ready; a message leaves when its sender's port is free and is there when its path says. Whatever is caused elsewhere
takes a picosecond at least, so the order of NPUs at one moment changes nothing, and classes of NPUs that do the same
(pdes/closed_forms/likeness.py) may stand for their members.
"""

import numpy as np

from pdes.closed_forms.closed_form_state import EVENT_ARRIVED, EVENT_LANE, EVENT_LEFT, EVENT_TOGETHER, work_of
from pdes.core.hashing import mix2, mix3
from pdes.core.heap import heap_pop, heap_push
from pdes.core.jit import inline, kernel, outline
from pdes.core.state import LONGEST_RUN_PS, ROW_ARRIVED, ROW_DONE, ROW_POSTED, ROW_READY, ROW_STARTED
from pdes.npu.trace import KIND_COLLECTIVE, KIND_COMPUTE, KIND_MEMORY, KIND_RECV, KIND_SEND

ALL_DONE, NO_ROOM, PAUSED, TOO_LATE = range(4)
CLASS_SHIFT, KIND_SHIFT = 32, 56
ROW_MASK, CLASS_MASK = (1 << 32) - 1, (1 << 24) - 1
NOTHING = -1


@inline
def at(w, time_ps, kind, which, row):
    """Have something happen to a class later."""
    if time_ps > LONGEST_RUN_PS:
        w.ctl.late = 1
        return
    word = (np.int64(kind) << KIND_SHIFT) | (np.int64(which) << CLASS_SHIFT) | np.int64(row)
    heap_push(w.heap, 0, w.ctl.events, np.int64(time_ps), word)
    w.ctl.events += 1


@inline
def make_ready(w, c, row):
    """Append a row to those of a class that are ready to start."""
    npu_class = w.classes[c]
    w.rows.state[npu_class.row_base + row] = -1
    if npu_class.ready_head < 0:
        npu_class.ready_head = row
    else:
        w.rows.state[npu_class.row_base + npu_class.ready_tail] = row
    npu_class.ready_tail = row


@inline
def wait_for_lane(w, c, lane, row):
    """Append a row to those of a class that wait for a lane."""
    npu_class = w.classes[c]
    w.rows.state[npu_class.row_base + row] = -1
    if npu_class.wait_head[lane] < 0:
        npu_class.wait_head[lane] = row
    else:
        w.rows.state[npu_class.row_base + npu_class.wait_tail[lane]] = row
    npu_class.wait_tail[lane] = row


@inline
def next_for_lane(w, c, lane):
    """The lane is idle: make the next row that waits for it ready."""
    npu_class = w.classes[c]
    waiting = npu_class.wait_head[lane]
    if waiting >= 0:
        npu_class.wait_head[lane] = w.rows.state[npu_class.row_base + waiting]
        make_ready(w, c, waiting)


@inline
def wake_group(w, c, r):
    """The group's next collective may start if it is ready."""
    npu_class = w.classes[c]
    group = np.int64(w.traces.group[r])
    slot = npu_class.slot_base + group
    w.collectives.slot_next[slot] += 1
    i = w.traces.slot_ptr[npu_class.trace_number] + group
    place = w.traces.coll_ptr[i] + w.collectives.slot_next[slot]
    if place < w.traces.coll_ptr[i + 1]:
        following = np.int64(w.traces.coll_node[place])
        if w.rows.flag[npu_class.row_base + following] & ROW_READY != 0:
            make_ready(w, c, following)


@outline
def finish(address, which, row):
    """A row is done: tell its children, and the next collective of its group."""
    w = work_of(address)
    npu_class = w.classes[which]
    base = npu_class.row_base
    r = w.traces.ptr[npu_class.trace_number] + row
    w.rows.flag[base + row] |= ROW_DONE
    w.rows.finish_ps[base + row] = w.ctl.now_ps
    w.ctl.done += 1
    w.ctl.finish_ps = max(w.ctl.finish_ps, w.ctl.now_ps)
    if w.traces.kind[r] == KIND_COLLECTIVE and w.ctl.serial == 1:
        wake_group(w, which, r)
    for i in range(w.traces.child_ptr[r], w.traces.child_ptr[r + 1]):
        child = np.int64(w.traces.child[i])
        left = w.rows.state[base + child] - 1
        w.rows.state[base + child] = left
        if left == 0:
            make_ready(w, which, child)


@inline
def send(w, which, row, r):
    """A send begins when the messages before it have left its port."""
    npu_class = w.classes[which]
    i = npu_class.send_base + w.traces.send[r]
    m = np.int64(w.sends.message[i])
    port = npu_class.port_base + w.sends.port[i]
    begin = max(w.ctl.now_ps, w.sends.port_free_ps[port])
    w.sends.port_free_ps[port] = begin + w.sends.hold_ps[m]
    w.sends.arrived_ps[i] = begin + w.sends.total_ps[m]
    at(w, begin + w.sends.left_ps[m], EVENT_LEFT, which, row)
    at(w, begin + w.sends.total_ps[m], EVENT_ARRIVED, np.int64(w.sends.to[i]), np.int64(w.sends.to_row[i]))


@inline
def join(w, which, r):
    """A member of a collective is ready; with the last of them all end so much later."""
    npu_class = w.classes[which]
    group = w.collectives.group[np.int64(w.collectives.slot_group[npu_class.slot_base + w.traces.group[r]])]
    seq = np.int64(w.traces.seq[r])
    i = group.instance_base + seq
    w.collectives.came[i] += 1
    if w.collectives.came[i] < group.needed:
        return
    first = group.member_base
    for k in range(first, first + group.members):
        member = np.int64(w.collectives.member[k])
        trace = w.classes[member].trace_number
        row = w.traces.coll_node[w.traces.coll_ptr[w.traces.slot_ptr[trace] + w.collectives.member_slot[k]] + seq]
        at(w, w.ctl.now_ps + w.collectives.time_ps[i], EVENT_TOGETHER, member, np.int64(row))


@outline
def start(address, which):
    """Start the first row that is ready."""
    w = work_of(address)
    npu_class = w.classes[which]
    base = npu_class.row_base
    row = npu_class.ready_head
    npu_class.ready_head = w.rows.state[base + row]
    r = w.traces.ptr[npu_class.trace_number] + row
    kind = w.traces.kind[r]
    done = False
    if kind == KIND_COMPUTE or kind == KIND_MEMORY:
        lane = np.int64(w.traces.lane[r])
        if npu_class.lane[lane] >= 0:
            wait_for_lane(w, which, lane, row)
            return
        if w.traces.duration_ps[r] == 0:
            done = True
            next_for_lane(w, which, lane)
        else:
            npu_class.lane[lane] = row
            at(w, w.ctl.now_ps + w.traces.duration_ps[r], EVENT_LANE + lane, which, row)
    elif kind == KIND_SEND:
        send(w, which, row, r)
    elif kind == KIND_RECV:
        done = w.rows.flag[base + row] & ROW_ARRIVED != 0
        w.rows.flag[base + row] |= ROW_POSTED
    elif kind == KIND_COLLECTIVE:
        slot = npu_class.slot_base + w.traces.group[r]
        if w.ctl.serial == 1 and w.collectives.slot_next[slot] != w.traces.seq[r]:
            w.rows.flag[base + row] |= ROW_READY
            return
        if w.traces.schedule[r] < 0:
            done = True
        else:
            join(w, which, r)
    else:
        done = True
    w.rows.flag[base + row] |= ROW_STARTED
    w.rows.start_ps[base + row] = w.ctl.now_ps
    if done:
        finish(address, which, row)


@outline
def act(address, kind, which, row):
    """What an event does to a class."""
    w = work_of(address)
    npu_class = w.classes[which]
    base = npu_class.row_base
    if kind == EVENT_ARRIVED:
        w.rows.flag[base + row] |= ROW_ARRIVED
        if w.rows.flag[base + row] & ROW_POSTED != 0:
            finish(address, which, row)
    elif kind == EVENT_LEFT or kind == EVENT_TOGETHER:
        finish(address, which, row)
    elif kind >= EVENT_LANE:
        lane = kind - EVENT_LANE
        npu_class.lane[lane] = NOTHING
        next_for_lane(w, which, lane)
        finish(address, which, row)


@kernel
def advance(address, events):
    """Go on for so many events; why it stops."""
    w = work_of(address)
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
    """Digests of all rows of all NPUs; first: of the rows of each class; found: int64[2]."""
    for npu in range(class_of_npu.shape[0]):
        c = class_of_npu[npu]
        for i in range(first[c], first[c + 1]):
            h = mix3(npu, i - first[c], 0x4E41)
            now = finish_ps[i]
            found[0] += mix2(h, now)
            found[1] += mix2(now * 3 + 1, h)
