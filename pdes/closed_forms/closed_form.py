"""Collectives at their closed forms and messages by their paths, with no contention: the compiled half.

NPUs are those of pdes/npu: rows become ready, start, take their lanes or their turn, and finish as
there. What an NPU waits for comes otherwise: a collective ends for all members at once, so long after the last of them
is ready; a message leaves when its sender's port is free and is there when its path says. Whatever is caused elsewhere
takes a picosecond at least, so the order of NPUs at one moment changes nothing, and classes of NPUs that do the same
(pdes/closed_forms/likeness.py) may stand for their members.
"""

import numpy as np

from pdes.closed_forms.closed_form_state import (
    CLASS_LANE,
    CLASS_PORT,
    CLASS_READY_HEAD,
    CLASS_READY_TAIL,
    CLASS_ROW,
    CLASS_SEND,
    CLASS_SLOT,
    CLASS_TRACE,
    CLASS_WAIT_HEAD,
    CLASS_WAIT_TAIL,
    CLASS_WORDS,
    CTL_AT,
    CTL_DONE,
    CTL_EVENTS,
    CTL_FINISH,
    CTL_LATE,
    CTL_MOST,
    CTL_NOW,
    CTL_ROOM,
    CTL_SERIAL,
    EVENT_ARRIVED,
    EVENT_LANE,
    EVENT_LEFT,
    EVENT_TOGETHER,
    GROUP_INSTANCE,
    GROUP_MEMBER,
    GROUP_MEMBERS,
    GROUP_NEEDED,
    GROUP_WORDS,
    work_of,
)
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
        w.ctl[CTL_LATE] = 1
        return
    word = (np.int64(kind) << KIND_SHIFT) | (np.int64(which) << CLASS_SHIFT) | np.int64(row)
    heap_push(w.heap, 0, w.ctl[CTL_EVENTS], np.int64(time_ps), word)
    w.ctl[CTL_EVENTS] += 1


@inline
def append(w, c, head, tail, row):
    """Append a row to the list of a class whose ends are words `head` and `tail`."""
    base = w.classes[c + CLASS_ROW]
    w.rows.state[base + row] = -1
    if w.classes[c + head] < 0:
        w.classes[c + head] = row
    else:
        w.rows.state[base + w.classes[c + tail]] = row
    w.classes[c + tail] = row


@inline
def next_for_lane(w, c, lane):
    """The lane is idle: make the next row that waits for it ready."""
    waiting = w.classes[c + CLASS_WAIT_HEAD + lane]
    if waiting >= 0:
        w.classes[c + CLASS_WAIT_HEAD + lane] = w.rows.state[w.classes[c + CLASS_ROW] + waiting]
        append(w, c, CLASS_READY_HEAD, CLASS_READY_TAIL, waiting)


@inline
def wake_group(w, c, r):
    """The group's next collective may start if it is ready."""
    group = np.int64(w.traces.group[r])
    slot = w.classes[c + CLASS_SLOT] + group
    w.collectives.slot_next[slot] += 1
    i = w.traces.slot_ptr[w.classes[c + CLASS_TRACE]] + group
    place = w.traces.coll_ptr[i] + w.collectives.slot_next[slot]
    if place < w.traces.coll_ptr[i + 1]:
        following = np.int64(w.traces.coll_node[place])
        if w.rows.flag[w.classes[c + CLASS_ROW] + following] & ROW_READY != 0:
            append(w, c, CLASS_READY_HEAD, CLASS_READY_TAIL, following)


@outline
def finish(address, which, row):
    """A row is done: tell its children, and the next collective of its group."""
    w = work_of(address)
    c = which * CLASS_WORDS
    base = w.classes[c + CLASS_ROW]
    r = w.traces.ptr[w.classes[c + CLASS_TRACE]] + row
    w.rows.flag[base + row] |= ROW_DONE
    w.rows.finish_ps[base + row] = w.ctl[CTL_NOW]
    w.ctl[CTL_DONE] += 1
    w.ctl[CTL_FINISH] = max(w.ctl[CTL_FINISH], w.ctl[CTL_NOW])
    if w.traces.kind[r] == KIND_COLLECTIVE and w.ctl[CTL_SERIAL] == 1:
        wake_group(w, c, r)
    for i in range(w.traces.child_ptr[r], w.traces.child_ptr[r + 1]):
        child = np.int64(w.traces.child[i])
        left = w.rows.state[base + child] - 1
        w.rows.state[base + child] = left
        if left == 0:
            append(w, c, CLASS_READY_HEAD, CLASS_READY_TAIL, child)


@inline
def send(w, which, row, r):
    """A send begins when the messages before it have left its port."""
    c = which * CLASS_WORDS
    i = w.classes[c + CLASS_SEND] + w.traces.send[r]
    m = np.int64(w.sends.message[i])
    port = w.classes[c + CLASS_PORT] + w.sends.port[i]
    begin = max(w.ctl[CTL_NOW], w.sends.port_free_ps[port])
    w.sends.port_free_ps[port] = begin + w.sends.hold_ps[m]
    w.sends.arrived_ps[i] = begin + w.sends.total_ps[m]
    at(w, begin + w.sends.left_ps[m], EVENT_LEFT, which, row)
    at(w, begin + w.sends.total_ps[m], EVENT_ARRIVED, np.int64(w.sends.to[i]), np.int64(w.sends.to_row[i]))


@inline
def join(w, which, r):
    """A member of a collective is ready; with the last of them all end so much later."""
    c = which * CLASS_WORDS
    g = np.int64(w.collectives.slot_group[w.classes[c + CLASS_SLOT] + w.traces.group[r]]) * GROUP_WORDS
    seq = np.int64(w.traces.seq[r])
    i = w.collectives.group[g + GROUP_INSTANCE] + seq
    w.collectives.came[i] += 1
    if w.collectives.came[i] < w.collectives.group[g + GROUP_NEEDED]:
        return
    first = w.collectives.group[g + GROUP_MEMBER]
    for k in range(first, first + w.collectives.group[g + GROUP_MEMBERS]):
        member = np.int64(w.collectives.member[k])
        trace = w.classes[member * CLASS_WORDS + CLASS_TRACE]
        row = w.traces.coll_node[w.traces.coll_ptr[w.traces.slot_ptr[trace] + w.collectives.member_slot[k]] + seq]
        at(w, w.ctl[CTL_NOW] + w.collectives.time_ps[i], EVENT_TOGETHER, member, np.int64(row))


@outline
def start(address, which):
    """Start the first row that is ready."""
    w = work_of(address)
    c = which * CLASS_WORDS
    base = w.classes[c + CLASS_ROW]
    row = w.classes[c + CLASS_READY_HEAD]
    w.classes[c + CLASS_READY_HEAD] = w.rows.state[base + row]
    r = w.traces.ptr[w.classes[c + CLASS_TRACE]] + row
    kind = w.traces.kind[r]
    done = False
    if kind == KIND_COMPUTE or kind == KIND_MEMORY:
        lane = np.int64(w.traces.lane[r])
        if w.classes[c + CLASS_LANE + lane] >= 0:
            append(w, c, CLASS_WAIT_HEAD + lane, CLASS_WAIT_TAIL + lane, row)
            return
        if w.traces.duration_ps[r] == 0:
            done = True
            next_for_lane(w, c, lane)
        else:
            w.classes[c + CLASS_LANE + lane] = row
            at(w, w.ctl[CTL_NOW] + w.traces.duration_ps[r], EVENT_LANE + lane, which, row)
    elif kind == KIND_SEND:
        send(w, which, row, r)
    elif kind == KIND_RECV:
        done = w.rows.flag[base + row] & ROW_ARRIVED != 0
        w.rows.flag[base + row] |= ROW_POSTED
    elif kind == KIND_COLLECTIVE:
        slot = w.classes[c + CLASS_SLOT] + w.traces.group[r]
        if w.ctl[CTL_SERIAL] == 1 and w.collectives.slot_next[slot] != w.traces.seq[r]:
            w.rows.flag[base + row] |= ROW_READY
            return
        if w.traces.schedule[r] < 0:
            done = True
        else:
            join(w, which, r)
    else:
        done = True
    w.rows.flag[base + row] |= ROW_STARTED
    w.rows.start_ps[base + row] = w.ctl[CTL_NOW]
    if done:
        finish(address, which, row)


@outline
def act(address, kind, which, row):
    """What an event does to a class."""
    w = work_of(address)
    base = w.classes[which * CLASS_WORDS + CLASS_ROW]
    if kind == EVENT_ARRIVED:
        w.rows.flag[base + row] |= ROW_ARRIVED
        if w.rows.flag[base + row] & ROW_POSTED != 0:
            finish(address, which, row)
    elif kind == EVENT_LEFT or kind == EVENT_TOGETHER:
        finish(address, which, row)
    elif kind >= EVENT_LANE:
        lane = kind - EVENT_LANE
        w.classes[which * CLASS_WORDS + CLASS_LANE + lane] = NOTHING
        next_for_lane(w, which * CLASS_WORDS, lane)
        finish(address, which, row)


@kernel
def advance(address, events):
    """Go on for so many events; why it stops."""
    w = work_of(address)
    ctl = w.ctl
    left = events
    while True:
        which = ctl[CTL_AT]
        while which >= 0 and w.classes[which * CLASS_WORDS + CLASS_READY_HEAD] >= 0 and ctl[CTL_LATE] == 0:
            if ctl[CTL_EVENTS] + ctl[CTL_MOST] > ctl[CTL_ROOM]:
                return NO_ROOM
            start(address, which)
        ctl[CTL_AT] = -1
        if ctl[CTL_LATE] == 1:
            return TOO_LATE
        if ctl[CTL_EVENTS] == 0:
            return ALL_DONE
        if left == 0:
            return PAUSED
        left -= 1
        ctl[CTL_NOW] = w.heap[0]
        word = w.heap[1]
        heap_pop(w.heap, 0, ctl[CTL_EVENTS])
        ctl[CTL_EVENTS] -= 1
        ctl[CTL_AT] = (word >> CLASS_SHIFT) & CLASS_MASK
        act(address, word >> KIND_SHIFT, ctl[CTL_AT], word & ROW_MASK)


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
