"""What an NPU's collectives will do later: launches, and steps whose protocol takes its time before it sends.

An NPU has a list of places, earliest first; equal times in the order in which they were put off. The heap of its own
events holds the first. A place is a lane of an instance, or the whole instance, which stands behind its lanes.
"""

import numpy as np

from pdes.core.heap import heap_hasten
from pdes.core.jit import call_hook, inline
from pdes.core.state import (
    CONST_ACT,
    CONST_ADDRESS,
    CONST_COMPUTE_SLOW,
    CONST_LANE_STRIDE,
    CONST_RUNNING,
    INST_STARTED,
    INST_WORDS,
    LANES,
    LAUNCHING,
    NPU_AGENDA_HEAD,
    NPU_AGENDA_TAIL,
    NPU_HEAP_BASE,
    NPU_HEAP_SIZE,
    NPU_PORTS,
    NPU_WORDS,
    STARTED,
)
from pdes.nic.port import set_event

DUE = -1
"""In `inst_due`: the step may be posted. 0: nothing was put off. Else ps << 1 | 1 if an event waits for that time."""


@inline
def agenda_slot(ports):
    """Slot of the agenda in an NPU's heap."""
    return 2 * ports + LANES + 1


@inline
def lane_place(net, inst, lane):
    """Place of a lane of an instance."""
    return inst * (net.const[CONST_LANE_STRIDE] + 1) + lane


@inline
def wake_place(net, inst):
    """Place of an instance as a whole."""
    return (inst + 1) * (net.const[CONST_LANE_STRIDE] + 1) - 1


@inline
def arm(net, npus, insts, node, at, was_armed):
    """Have an event at the time of the agenda's first entry; was_armed: another one's event waits in the heap."""
    due = insts.inst_due[at]
    if due & 1 == 1:
        return
    insts.inst_due[at] = due | 1
    n = node * NPU_WORDS
    slot = agenda_slot(npus.npu[n + NPU_PORTS])
    if was_armed and net.const[CONST_ACT] == 0:
        heap_hasten(npus.heap, npus.npu[n + NPU_HEAP_BASE], npus.npu[n + NPU_HEAP_SIZE], due >> 1, slot)
    else:
        set_event(npus, node, due >> 1, slot)


@inline
def put_off(net, npus, insts, node, at, time):
    """Have the place `at` go on at `time`."""
    n = node * NPU_WORDS
    insts.inst_due[at] = time << 1
    head = npus.npu[n + NPU_AGENDA_HEAD]
    if head < 0 or time < insts.inst_due[head] >> 1:
        insts.inst_later[at] = head
        npus.npu[n + NPU_AGENDA_HEAD] = at
        if head < 0:
            npus.npu[n + NPU_AGENDA_TAIL] = at
        elif net.const[CONST_ACT] == 0:
            insts.inst_due[head] &= ~1
        arm(net, npus, insts, node, at, head >= 0)
        return
    tail = npus.npu[n + NPU_AGENDA_TAIL]
    before = head
    if time >= insts.inst_due[tail] >> 1:
        before = tail
        npus.npu[n + NPU_AGENDA_TAIL] = at
    else:
        while insts.inst_due[insts.inst_later[before]] >> 1 <= time:
            before = insts.inst_later[before]
    insts.inst_later[at] = insts.inst_later[before]
    insts.inst_later[before] = at


@inline
def take_due(net, npus, insts, node, now):
    """The instance that may go on now, -1 if none."""
    n = node * NPU_WORDS
    at = npus.npu[n + NPU_AGENDA_HEAD]
    if at < 0 or insts.inst_due[at] >> 1 > now:
        return np.int64(-1)
    inst = at // (net.const[CONST_LANE_STRIDE] + 1)
    insts.inst_due[at] = DUE
    if at == wake_place(net, inst):
        insts.inst_due[at] = 0
        if insts.inst[inst * INST_WORDS + INST_STARTED] == LAUNCHING and net.const[CONST_COMPUTE_SLOW] != 0:
            call_hook(net.const[CONST_RUNNING], net.const[CONST_ADDRESS], node, 1, now, 0, 0, 0, 0)
        insts.inst[inst * INST_WORDS + INST_STARTED] = STARTED
    head = insts.inst_later[at]
    npus.npu[n + NPU_AGENDA_HEAD] = head
    if head >= 0:
        arm(net, npus, insts, node, head, False)
    return inst
