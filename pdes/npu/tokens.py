"""Phases of collectives take turns: an NPU does so many in one dimension at a time, and the others wait.

A phase is some lanes of an instance. It takes a token of its dimension before its first step, and gives it back when
its last lane is done; the next is chosen by `scheduling`. A phase for which a message has come begins without one:
members that choose differently would otherwise wait for each other for ever.
"""

from pdes.core.jit import inline
from pdes.npu.agenda import put_off, wake_place

ASLEEP, WAITING, CALLED, RUNNING = range(4)
"""PHASE_STATE: lanes left << 2 | one of these. CALLED: at work without a token."""
FIFO, LIFO, PRIORITY = range(3)


@inline
def phase_of(net, plans, inst, row):
    """Number of a lane's phase among those of all instances."""
    return inst * net.const.phase_stride + plans.lane_row[row].phase


@inline
def token_row(net, plans, node, row):
    """Row of the NPU's tokens for a lane's dimension."""
    return node * net.const.gated_dimensions + plans.lane_row[row].gate


@inline
def may_begin(net, npus, insts, plans, node, inst, row, arrived):
    """Whether a lane whose first step is ready may do it; row: of the lane; arrived: messages for it."""
    lane_row = plans.lane_row[row]
    if lane_row.gate < 0 or net.const.tokens == 0:
        return True
    phase = phase_of(net, plans, inst, row)
    phase_row = insts.phase[phase]
    word = phase_row.state
    token = token_row(net, plans, node, row)
    tokens = npus.token[token]
    if word & 3 == ASLEEP:
        word = (lane_row.alike << 2) | WAITING
        if tokens.running < net.const.tokens:
            tokens.running += 1
            word |= RUNNING
        else:
            phase_row.next_phase = tokens.waiting
            tokens.waiting = phase
    if word & 3 == WAITING and arrived > 0:
        leave_line(npus, insts, token, phase)
        word = (word & ~3) | CALLED
    phase_row.state = word
    return word & 3 != WAITING


@inline
def leave_line(npus, insts, token, phase):
    """Take a phase out of the queue."""
    tokens = npus.token[token]
    following = insts.phase[phase].next_phase
    before = tokens.waiting
    if before == phase:
        tokens.waiting = following
        return
    while insts.phase[before].next_phase != phase:
        before = insts.phase[before].next_phase
    insts.phase[before].next_phase = following


@inline
def first_in_turn(net, npus, insts, token):
    """The phase that goes next: the first that came, the last, or the first of the highest priority; -1 if none.

    The line begins with the last that came.
    """
    stride = net.const.phase_stride
    best = npus.token[token].waiting
    phase = best
    while phase >= 0:
        is_higher = insts.inst[phase // stride].priority >= insts.inst[best // stride].priority
        if net.const.scheduling == FIFO or (net.const.scheduling == PRIORITY and is_higher):
            best = phase
        phase = insts.phase[phase].next_phase
    return best


@inline
def lane_done(net, npus, insts, plans, node, inst, row, now):
    """A lane is done: the last of its phase gives the token to the next that waits, which goes on in this moment."""
    if plans.lane_row[row].gate < 0 or net.const.tokens == 0:
        return
    phase_row = insts.phase[phase_of(net, plans, inst, row)]
    word = phase_row.state - (1 << 2)
    phase_row.state = word
    if word >> 2 > 0:
        return
    phase_row.state = ASLEEP
    if word & 3 != RUNNING:
        return
    token = token_row(net, plans, node, row)
    phase = first_in_turn(net, npus, insts, token)
    if phase < 0:
        npus.token[token].running -= 1
        return
    leave_line(npus, insts, token, phase)
    insts.phase[phase].state |= RUNNING
    wake = wake_place(net, phase // net.const.phase_stride)
    if insts.lane[wake].due == 0:
        put_off(net, npus, insts, node, wake, now)
