"""Completion of a message at its receiver: a receive is done, a lane continues, or a request is answered.

A reduction may take time: its bytes pass three times through an NPU's memory. Reductions run concurrently, but a lane
takes its messages in order.
"""

import numpy as np

from pdes.core.jit import call_hook, hook, inline, outline
from pdes.core.packet import CALL_LANE, P2P, receive_key, source, tag_group, tag_lane, tag_seq
from pdes.core.state import LONGEST_RUN_PS, ROW_ARRIVED, ROW_ASKED, ROW_POSTED, world_at
from pdes.nic.rendezvous import CLEAR, EAGER, KIND_MASK, REQUEST, answer, is_used, lane_gets, send_cleared
from pdes.npu.agenda import lane_place
from pdes.npu.collective import arrives, instance, instance_for, plan_of
from pdes.npu.in_flight import call
from pdes.npu.trace import NOTHING, row_of_collective

TOUCHES = 3  # memory accesses per reduced byte: two reads and a write


@inline
def row_of_message(npus, trace, node, w1, w3):
    """Return the trace row that receives a point-to-point message."""
    npu = npus.npu[node]
    number = npu.trace_number
    peer = source(w1) - npu.number
    key = receive_key(peer, tag_lane(w3), tag_seq(w3))
    low = trace.recv_ptr[number]
    high = trace.recv_ptr[number + 1]
    while low < high:
        middle = (low + high) >> 1
        if trace.recv_key[middle] < key:
            low = middle + 1
        else:
            high = middle
    return np.int64(trace.recv_node[low])


@outline
def receive_row(address, node, w1, w3):
    """Handle a complete point-to-point message: return its receive if that has been posted, else NOTHING."""
    w = world_at(address)
    rows = w.rows
    row = row_of_message(w.npus, w.trace, node, w1, w3)
    flag = w.npus.npu[node].row_base + row
    rows.flag[flag] |= ROW_ARRIVED
    if rows.flag[flag] & ROW_POSTED != 0:
        return row
    return np.int64(NOTHING)


@inline
def apart(both):
    """Return row and instance from the one word that a hook returns."""
    return (both & 0xFFFFFFFF) - 1, (both >> 32) - 1


@hook
def message_by_kind(address, node, w1, w3):
    """Handle a complete message: a request, its answer, a call, or data. Return as `start_row`, in one word."""
    w = world_at(address)
    net, npus, rows = w.net, w.npus, w.rows
    npu = npus.npu[node]
    done = inst = np.int64(NOTHING)
    kind = np.int64(EAGER)
    if is_used(net):
        kind = w3 & KIND_MASK
    tag = w3 - kind
    group = tag_group(tag)
    lane = tag_lane(tag)
    if net.const.collectives_in_flight > 0 and group != P2P:
        call(address, node, group, tag_seq(tag))
        if lane == CALL_LANE:
            return 0
    if kind == CLEAR:
        send_cleared(net, npus, w.qps, node, source(w1), tag, npu.now_ps)
    elif group != P2P:
        inst = instance_for(net, npus, w.insts, node, group, tag_seq(tag))
        if is_used(net):
            lane_gets(net, w.qps, w.insts, lane_place(net, inst, lane), kind, source(w1))
        else:
            arrives(net, w.insts, inst, lane)
    elif kind == REQUEST:
        flag = npu.row_base + row_of_message(npus, w.trace, node, w1, tag)
        rows.flag[flag] |= ROW_ASKED
        if rows.flag[flag] & ROW_POSTED != 0:
            answer(net, node, source(w1), tag, npu.now_ps)
    else:
        done = receive_row(address, node, w1, tag)
    return (inst + 1) << 32 | (done + 1)


@inline
def message_done(net, npus, insts, node, w1, w3):
    """Let the receiver act on a message; w1, w3: words of its last packet. Return as `start_row`."""
    if net.const.handshakes == 1:
        return apart(call_hook(net.hooks.message_by_kind, net.const.address, node, w1, w3))
    if tag_group(w3) == P2P:
        return receive_row(net.const.address, node, w1, w3), np.int64(NOTHING)
    inst = instance_for(net, npus, insts, node, tag_group(w3), tag_seq(w3))
    arrives(net, insts, inst, tag_lane(w3))
    return np.int64(NOTHING), inst


@inline
def message_is_in(net, npus, insts, node, now, w1, w2, w3):
    """Let the receiver act on a complete message, now or later; w1 to w3: its last packet. Return as `start_row`."""
    if net.hooks.is_in != 0:
        return apart(call_hook(net.hooks.is_in, net.const.address, node, now, w1, w2, w3))
    return message_done(net, npus, insts, node, w1, w3)


@inline
def in_lane_at(w, node, tag, size, at, is_data):
    """Return when a lane takes a message, at `at` at the earliest: after its reduction and the messages before it."""
    # the message's number within its lane determines whether it is reduced. is_data: else it only stays in order
    net, messages, taken = w.net, w.messages, w.insts.taken
    number = tag_lane(tag)
    inst = instance(net, w.insts, node, tag_group(tag), tag_seq(tag))
    taken_row = taken[lane_place(net, inst, number)]
    if is_data:
        npu = w.npus.npu[node]
        row, slot = row_of_collective(npu, w.trace, w.plans, tag_group(tag), tag_seq(tag))
        lane = w.plans.plan_ptr[plan_of(w.plans, w.trace.schedule[npu.trace_base + row], slot)] + number
        if messages.reduces[messages.receive_ptr[lane] + taken_row.messages] == 1:
            time = np.int64(min(size * messages.memory_psb[0] + 0.5, LONGEST_RUN_PS / TOUCHES))
            at += TOUCHES * (time - time % net.const.resolution_ps)
        taken_row.messages += 1
    at = max(at, taken_row.taken_ps)
    taken_row.taken_ps = at
    return at
