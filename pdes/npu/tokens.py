"""Tokens: a limit on the phases of collectives that an NPU runs in one dimension at a time.

A phase is a set of lanes of an instance. It takes a token of its dimension before its first step, and returns it when
its last lane is done; `scheduling` chooses the next. A phase with a message that has arrived begins without a token:
members with different choices would otherwise deadlock.
"""

from nadi.pdes.core.jit import inline
from nadi.pdes.npu.agenda import put_off, wake_place

# progress of a phase, whose state is lanes left << 2 | one of these; CALLED: at work without a token
ASLEEP, WAITING, CALLED, RUNNING = range(4)
FIFO, LIFO, PRIORITY = range(3)


@inline
def phase_of(net, plans, inst, row):
    """Return the number of a lane's phase among those of all instances.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        plans: Groups and schedules of collectives (`PlanTables`).
        inst: Row of the instance in `insts.inst`.
        row: Row of the lane in `plans.lane_row`.
    """
    # phases of an instance are consecutive, as its lanes are
    return inst * net.const.phase_stride + plans.lane_row[row].phase


@inline
def token_row(net, plans, node, row):
    """Return the row of the NPU's tokens for a lane's dimension.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        plans: Groups and schedules of collectives (`PlanTables`).
        node: Number of the NPU in the LP.
        row: Row of the lane in `plans.lane_row`.
    """
    return node * net.const.gated_dimensions + plans.lane_row[row].gate


@inline
def may_begin(net, npus, insts, plans, node, inst, lane_row_number, arrived_messages):
    """Return whether a lane of an instance may do its first step, which is ready.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        plans: Groups and schedules of collectives (`PlanTables`).
        node: Number of the NPU in the LP.
        inst: Row of the instance in `insts.inst`.
        lane_row_number: Row of the lane in `plans.lane_row`.
        arrived_messages: Number of messages that have arrived for the lane, or been requested.
    """
    lane_row = plans.lane_row[lane_row_number]
    if lane_row.gate < 0 or net.const.tokens == 0:
        return True
    phase = phase_of(net, plans, inst, lane_row_number)
    phase_row = insts.phase[phase]
    word = phase_row.state
    token = token_row(net, plans, node, lane_row_number)
    tokens = npus.token[token]
    # the first lane of a phase asks for a token for all of its lanes
    if word & 3 == ASLEEP:
        # lanes left of the phase are counted from the start, so that its last lane knows that it is the last
        word = (lane_row.alike << 2) | WAITING
        if tokens.running < net.const.tokens:
            tokens.running += 1
            word |= RUNNING
        else:
            phase_row.next_phase = tokens.waiting
            tokens.waiting = phase
    # another member has begun the phase and waits for this one, so it needs no token
    # Example of a deadlock without this: A holds the token for phase 1 and B that for phase 2, and each waits for the
    # other's message in the phase for which it has none.
    if word & 3 == WAITING and arrived_messages > 0:
        leave_line(npus, insts, token, phase)
        word = (word & ~3) | CALLED
    phase_row.state = word
    return word & 3 != WAITING


@inline
def leave_line(npus, insts, token, phase):
    """Remove a phase from the queue of phases that wait for a token.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        token: Row of `npus.token`: an NPU's tokens of a dimension.
        phase: Row of `insts.phase`.
    """
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
    """Return the next phase to get a token: first or last to come, or of the highest priority; -1 = none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        token: Row of `npus.token`: an NPU's tokens of a dimension.
    """
    # The line begins with the last to come.
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
def lane_done(net, npus, insts, plans, node, inst, lane_row_number, now_ps):
    """Count a finished lane: the last one of its phase passes the token to the next phase, which continues now.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        plans: Groups and schedules of collectives (`PlanTables`).
        node: Number of the NPU in the LP.
        inst: Row of the instance in `insts.inst`.
        lane_row_number: Row of the lane in `plans.lane_row`.
        now_ps: Current time in ps.
    """
    if plans.lane_row[lane_row_number].gate < 0 or net.const.tokens == 0:
        return
    phase_row = insts.phase[phase_of(net, plans, inst, lane_row_number)]
    word = phase_row.state - (1 << 2)
    phase_row.state = word
    # other lanes of the phase go on
    if word >> 2 > 0:
        return
    phase_row.state = ASLEEP
    # it was called by a message, so it holds no token
    if word & 3 != RUNNING:
        return
    token = token_row(net, plans, node, lane_row_number)
    phase = first_in_turn(net, npus, insts, token)
    if phase < 0:
        npus.token[token].running -= 1
        return
    leave_line(npus, insts, token, phase)
    insts.phase[phase].state |= RUNNING
    wake = wake_place(net, phase // net.const.phase_stride)
    # through the agenda, since the caller is in the middle of an instance
    if insts.lane[wake].due == 0:
        put_off(net, npus, insts, node, wake, now_ps)
