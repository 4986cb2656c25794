"""The agenda of an NPU: future actions of its collectives, such as launches and steps with a protocol latency.

The agenda is a list of places, earliest first; equal times in order of addition. The heap of the NPU's own events holds
the first. A place is a lane of an instance, or the whole instance, which follows its lanes.
"""

import numpy as np

from pdes.core.heap import heap_hasten
from pdes.core.jit import call_hook, inline
from pdes.core.state import LANES, LAUNCHING, STARTED, STIRRED_LANES
from pdes.nic.port import set_event

DUE = -1  # word `due` of a place whose postponed step may be posted


@inline
def agenda_slot(ports):
    """Return the slot of the agenda in an NPU's heap."""
    return 2 * ports + LANES + 1


@inline
def lane_place(net, inst, lane):
    """Return the place of a lane of an instance."""
    return inst * net.const.lane_stride + lane


@inline
def wake_place(net, inst):
    """Return the place of an instance as a whole."""
    return (inst + 1) * net.const.lane_stride - 1


@inline
def stir(insts, inst, lane):
    """Mark a lane that may be able to continue."""
    if lane < STIRRED_LANES:
        insts.inst[inst].stirred |= np.int64(1) << lane
    else:
        insts.inst[inst].stirred = -1


@inline
def arm(net, npus, insts, node, at, was_armed):
    """Set an event at the time of the agenda's first entry; was_armed: another entry's event is in the heap."""
    due = insts.lane[at].due
    if due & 1 == 1:
        return
    insts.lane[at].due = due | 1
    npu = npus.npu[node]
    slot = agenda_slot(npu.ports)
    if was_armed and net.hooks.act == 0:
        heap_hasten(npus.heap, npu.heap, npu.heap_size, due >> 1, slot)
    else:
        set_event(npus, node, due >> 1, slot)


@inline
def put_in(rows, head, tail, at, due):
    """Insert a row into a list by its `due`, behind rows of the same time; return the list's first and last row."""
    rows[at].due = due
    if head < 0 or due >> 1 < rows[head].due >> 1:
        rows[at].later = head
        if head < 0:
            tail = at
        return at, tail
    before = head
    if due >> 1 >= rows[tail].due >> 1:
        before = tail
        tail = at
    else:
        while rows[rows[before].later].due >> 1 <= due >> 1:
            before = np.int64(rows[before].later)
    rows[at].later = rows[before].later
    rows[before].later = at
    return head, tail


@inline
def put_off(net, npus, insts, node, at, time):
    """Postpone the continuation of place `at` until `time`."""
    npu = npus.npu[node]
    head = npu.agenda_head
    npu.agenda_head, npu.agenda_tail = put_in(insts.lane, head, npu.agenda_tail, at, time << 1)
    if npu.agenda_head == at:
        if head >= 0 and net.hooks.act == 0:
            insts.lane[head].due &= ~1
        arm(net, npus, insts, node, at, head >= 0)


@inline
def take_due(net, npus, insts, node, now):
    """Remove the first place that is due and return its instance, -1 if none."""
    npu = npus.npu[node]
    at = npu.agenda_head
    if at < 0 or insts.lane[at].due >> 1 > now:
        return np.int64(-1)
    inst = at // net.const.lane_stride
    collective = insts.inst[inst]
    insts.lane[at].due = DUE
    stir(insts, inst, at - lane_place(net, inst, 0))
    if at == wake_place(net, inst):
        insts.lane[at].due = 0
        collective.stirred = -1
        if collective.started == LAUNCHING and net.const.compute_slow_1000ths != 0:
            call_hook(net.hooks.running, net.const.address, node, np.int64(collective.row), 1, now)
        collective.started = STARTED
    head = np.int64(insts.lane[at].later)
    npu.agenda_head = head
    if head >= 0:
        arm(net, npus, insts, node, head, False)
    return inst
