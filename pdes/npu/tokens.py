"""Phases of collectives take turns: an NPU does so many in one dimension at a time, and the others wait.

A phase is some lanes of an instance. It takes a token of its dimension before its first step, and gives it back when
its last lane is done; the next is chosen by `scheduling`. A phase for which a message has come begins without one:
members that choose differently would otherwise wait for each other for ever.
"""

from pdes.core.jit import inline
from pdes.core.state import (
    CONST_DIMENSIONS_GATED,
    CONST_PHASE_STRIDE,
    CONST_SCHEDULING,
    CONST_TOKENS,
    INST_PRIORITY,
    INST_WORDS,
    LANE_ALIKE,
    LANE_GATE,
    LANE_PHASE,
    PHASE_NEXT,
    PHASE_STATE,
    PHASE_WORDS,
    TOKEN_HEAD,
    TOKEN_RUNNING,
    TOKEN_WORDS,
)
from pdes.npu.agenda import put_off, wake_place

NONE = -1
ASLEEP, WAITING, CALLED, RUNNING = range(4)
"""PHASE_STATE: lanes left << 2 | one of these. CALLED: at work without a token."""
FIFO, LIFO, PRIORITY = range(3)


@inline
def phase_of(net, plans, inst, row):
    """Number of a lane's phase among those of all instances."""
    return inst * net.const[CONST_PHASE_STRIDE] + plans.lane_row[row + LANE_PHASE]


@inline
def token_row(net, plans, node, row):
    """Row of the NPU's tokens for a lane's dimension."""
    return (node * net.const[CONST_DIMENSIONS_GATED] + plans.lane_row[row + LANE_GATE]) * TOKEN_WORDS


@inline
def may_begin(net, npus, insts, plans, node, inst, row, arrived):
    """Whether a lane whose first step is ready may do it; row: of the lane; arrived: messages for it."""
    if plans.lane_row[row + LANE_GATE] < 0 or net.const[CONST_TOKENS] == 0:
        return True
    phase = phase_of(net, plans, inst, row)
    at = phase * PHASE_WORDS
    word = insts.phase[at + PHASE_STATE]
    token = token_row(net, plans, node, row)
    if word & 3 == ASLEEP:
        word = (plans.lane_row[row + LANE_ALIKE] << 2) | WAITING
        if npus.token[token + TOKEN_RUNNING] < net.const[CONST_TOKENS]:
            npus.token[token + TOKEN_RUNNING] += 1
            word |= RUNNING
        else:
            line_up(npus, insts, token, phase)
    if word & 3 == WAITING and arrived > 0:
        leave_line(npus, insts, token, phase)
        word = (word & ~3) | CALLED
    insts.phase[at + PHASE_STATE] = word
    return word & 3 != WAITING


@inline
def line_up(npus, insts, token, phase):
    """Queue a phase behind those that wait for the same tokens."""
    insts.phase[phase * PHASE_WORDS + PHASE_NEXT] = NONE
    last = npus.token[token + TOKEN_HEAD]
    if last < 0:
        npus.token[token + TOKEN_HEAD] = phase
        return
    while insts.phase[last * PHASE_WORDS + PHASE_NEXT] >= 0:
        last = insts.phase[last * PHASE_WORDS + PHASE_NEXT]
    insts.phase[last * PHASE_WORDS + PHASE_NEXT] = phase


@inline
def leave_line(npus, insts, token, phase):
    """Take a phase out of the queue."""
    following = insts.phase[phase * PHASE_WORDS + PHASE_NEXT]
    before = npus.token[token + TOKEN_HEAD]
    if before == phase:
        npus.token[token + TOKEN_HEAD] = following
        return
    while insts.phase[before * PHASE_WORDS + PHASE_NEXT] != phase:
        before = insts.phase[before * PHASE_WORDS + PHASE_NEXT]
    insts.phase[before * PHASE_WORDS + PHASE_NEXT] = following


@inline
def first_in_turn(net, npus, insts, token):
    """The phase that goes next: the first that came, the last, or the first of the highest priority; NONE if none."""
    stride = net.const[CONST_PHASE_STRIDE]
    best = npus.token[token + TOKEN_HEAD]
    phase = best
    while phase >= 0:
        if net.const[CONST_SCHEDULING] == LIFO:
            best = phase
        elif net.const[CONST_SCHEDULING] == PRIORITY:
            rank = insts.inst[phase // stride * INST_WORDS + INST_PRIORITY]
            if rank > insts.inst[best // stride * INST_WORDS + INST_PRIORITY]:
                best = phase
        phase = insts.phase[phase * PHASE_WORDS + PHASE_NEXT]
    return best


@inline
def lane_done(net, npus, insts, plans, node, inst, row, now):
    """A lane is done: the last of its phase gives the token to the next that waits, which goes on in this moment."""
    if plans.lane_row[row + LANE_GATE] < 0 or net.const[CONST_TOKENS] == 0:
        return
    at = phase_of(net, plans, inst, row) * PHASE_WORDS
    word = insts.phase[at + PHASE_STATE] - (1 << 2)
    insts.phase[at + PHASE_STATE] = word
    if word >> 2 > 0:
        return
    insts.phase[at + PHASE_STATE] = ASLEEP
    if word & 3 != RUNNING:
        return
    token = token_row(net, plans, node, row)
    phase = first_in_turn(net, npus, insts, token)
    if phase < 0:
        npus.token[token + TOKEN_RUNNING] -= 1
        return
    leave_line(npus, insts, token, phase)
    insts.phase[phase * PHASE_WORDS + PHASE_STATE] |= RUNNING
    wake = wake_place(net, phase // net.const[CONST_PHASE_STRIDE])
    if insts.inst_due[wake] == 0:
        put_off(net, npus, insts, node, wake, now)
