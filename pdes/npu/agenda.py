"""When collectives of an NPU continue: the agenda of future actions, and tokens that limit phases."""

import numpy as np

from nadi.pdes.core.algorithms import heap_decrease_key
from nadi.pdes.core.jit import call_hook, inline
from nadi.pdes.core.state import LANES, LAUNCHING, PENDING_LANES, STARTED
from nadi.pdes.nic.port import set_event

# The agenda of an NPU: future actions of its collectives, such as launches and steps with a protocol latency.
#
# The agenda is a list of places, earliest first; equal times in order of addition. The heap of the NPU's own events
# holds the first. A place is a lane of an instance, or the whole instance, which follows its lanes.

DUE = -1  # word `due` of a place whose postponed step may be posted


@inline
def agenda_slot(ports):
    """Return the slot of the agenda in an NPU's heap.

    Args:
        ports: Number of ports of the NPU.
    """
    # slots of an NPU with 2 ports and 4 lanes: 0, 1 ports idle; 2 to 5 lanes; 6 timer; 7, 8 paces; 9 agenda; 10 actions
    # on messages (pdes/npu/endpoints.py); 11 begin of the job; 12 credits
    # (pdes/nic/receiver_credits.py). Equal times are handled in this order.
    return 2 * ports + LANES + 1


@inline
def begin_slot(ports):
    """Return the slot of the begin of the NPU's job in its heap.

    Args:
        ports: Number of ports of the NPU.
    """
    return agenda_slot(ports) + 2


@inline
def lane_place(net, inst, lane):
    """Return the place of a lane of an instance.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inst: Row of the instance in `insts.inst`.
        lane: Number of the lane within its plan.
    """
    return inst * net.const.lane_stride + lane


@inline
def wake_place(net, inst):
    """Return the place of an instance as a whole.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        inst: Row of the instance in `insts.inst`.
    """
    # lane_stride is one more than the lanes of any plan, so the last place of an instance is never a lane's
    return (inst + 1) * net.const.lane_stride - 1


@inline
def mark_pending(insts, instance, lane):
    """Mark a lane of an instance that may be able to continue.

    Args:
        insts: Active collectives of the LP (`Insts`).
        instance: Row of the instance in `insts.inst`.
        lane: Number of the lane within its plan.
    """
    if lane < PENDING_LANES:
        insts.inst[instance].pending_lanes |= np.int64(1) << lane
    else:
        # -1 has all bits set: every lane is checked
        insts.inst[instance].pending_lanes = -1


@inline
def arm(net, npus, insts, node, lane_place, was_armed):
    """Set an NPU's event at the time of its agenda's first entry.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        lane_place: Row of that entry in `insts.lane`.
        was_armed: Whether the event of another entry is set.
    """
    # bit 0 of `due`: an event in the heap waits for this place already
    due = insts.lane[lane_place].due
    if due & 1 == 1:
        return
    insts.lane[lane_place].due = due | 1
    npu = npus.npu[node]
    slot = agenda_slot(npu.ports)
    # one event of the agenda is in the heap: make it earlier; message-level events cannot move
    if was_armed and net.hooks.act == 0:
        heap_decrease_key(npus.heap, npu.heap, npu.heap_size, due >> 1, slot)
    else:
        set_event(npus, node, due >> 1, slot)


@inline
def put_in(rows, head, tail, row, due_word):
    """Insert a row into a list by `due`, behind rows of the same time; return the list's first and last row.

    Args:
        rows: Table with words `due` (time << 1) and `later`.
        head: First row of the list, negative = empty.
        tail: Last row of the list.
        row: Row to insert.
        due_word: Time in ps << 1.
    """
    # time << 1; the caller sets bit 0 when it sets the event, so times are compared without that bit
    rows[row].due = due_word
    if head < 0 or due_word >> 1 < rows[head].due >> 1:
        rows[row].later = head
        if head < 0:
            tail = row
        return row, tail
    before = head
    # most come last, since most delays are equal
    if due_word >> 1 >= rows[tail].due >> 1:
        before = tail
        tail = row
    else:
        while rows[rows[before].later].due >> 1 <= due_word >> 1:
            before = np.int64(rows[before].later)
    rows[row].later = rows[before].later
    rows[before].later = row
    return head, tail


@inline
def put_off(net, npus, insts, node, lane_place, time_ps):
    """Postpone the continuation of a lane of an NPU.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        lane_place: Row of the lane in `insts.lane`.
        time_ps: Time in ps until which the lane waits.
    """
    npu = npus.npu[node]
    head = npu.agenda_head
    npu.agenda_head, npu.agenda_tail = put_in(insts.lane, head, npu.agenda_tail, lane_place, time_ps << 1)
    if npu.agenda_head == lane_place:
        if head >= 0 and net.hooks.act == 0:
            # its event has become that of the new head
            insts.lane[head].due &= ~1
        arm(net, npus, insts, node, lane_place, head >= 0)


@inline
def take_due(net, npus, insts, node, now_ps):
    """Remove the first lane that is due from an NPU's agenda and return its instance, -1 = none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    npu = npus.npu[node]
    at = npu.agenda_head
    if at < 0 or insts.lane[at].due >> 1 > now_ps:
        return np.int64(-1)
    inst = at // net.const.lane_stride
    collective = insts.inst[inst]
    insts.lane[at].due = DUE
    # for the instance's own place this marks a bit behind the lanes, which the next lines replace by all of them
    mark_pending(insts, inst, at - lane_place(net, inst, 0))
    # the place of the collective as a whole: its first step is due, so check all lanes
    if at == wake_place(net, inst):
        insts.lane[at].due = 0
        collective.pending_lanes = -1
        if collective.started == LAUNCHING and net.const.slows_compute != 0:
            call_hook(net.hooks.running, net.const.address, node, np.int64(collective.row), 1, now_ps)
        collective.started = STARTED
    head = np.int64(insts.lane[at].later)
    npu.agenda_head = head
    if head >= 0:
        arm(net, npus, insts, node, head, False)
    return inst


# Tokens: a limit on the phases of collectives that an NPU runs in one dimension at a time.
#
# A phase is a set of lanes of an instance. It takes a token of its dimension before its first step, and returns it
# when its last lane is done; `scheduling` chooses the next. A phase with a message that has arrived begins without a
# token: members with different choices would otherwise deadlock.

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
