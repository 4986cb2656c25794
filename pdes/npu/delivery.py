"""Completion of a message at its receiver: a receive is done, a lane continues, or a request is answered.

A reduction may take time: its bytes pass three times through an NPU's memory. Reductions run concurrently, but a lane
takes its messages in order.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.jit import call_hook, hook, inline, outline
from nadi.pdes.nic.rendezvous import CLEAR, EAGER, KIND_MASK, REQUEST, answer, is_used, lane_gets, send_cleared
from nadi.pdes.npu.agenda import lane_place
from nadi.pdes.npu.collective import arrives, first_lane_of, instance, instance_for
from nadi.pdes.npu.in_flight import call
from nadi.pdes.npu.trace import NOTHING, row_of_collective

TOUCHES = 3  # memory accesses per reduced byte: two reads and a write


@inline
def row_of_message(net, npus, trace, node, word1, word3):
    """Return the trace row of an NPU that receives a point-to-point message.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        trace: The distinct traces (`Trace`).
        node: Number of the NPU in the LP.
        word1: Word 1 of the message's last packet (pdes/core/packet.py).
        word3: Word 3 of that packet, the tag.
    """
    npu = npus.npu[node]
    number = npu.trace_number
    peer = packet.rank_of(net.jobs.who[packet.source(word1)]) - packet.rank_of(net.jobs.who[npu.number])
    # by difference of ranks, since NPUs that do the same share a trace, whatever their numbers
    key = packet.receive_key(peer, packet.tag_lane(word3), packet.tag_seq(word3))
    low = trace.recv_ptr[number]
    high = trace.recv_ptr[number + 1]
    # binary search: the receives of a trace are sorted by key
    while low < high:
        middle = (low + high) >> 1
        if trace.recv_key[middle] < key:
            low = middle + 1
        else:
            high = middle
    # the key is there: checks of the program have matched each send with a receive
    return np.int64(trace.recv_node[low])


@outline
def receive_row(world_address, node, word1, word3):
    """Handle a complete point-to-point message; return the NPU's receive if that has been posted, else NOTHING.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        word1: Word 1 of the message's last packet (pdes/core/packet.py).
        word3: Word 3 of that packet, the tag.
    """
    world = state.world_at(world_address)
    rows = world.rows
    row = row_of_message(world.net, world.npus, world.trace, node, word1, word3)
    flag = world.npus.npu[node].row_base + row
    # a message may come before its receive is posted, and the other way round: the later of both finds the other's flag
    rows.flag[flag] |= state.ROW_ARRIVED
    if rows.flag[flag] & state.ROW_POSTED != 0:
        return row
    return np.int64(NOTHING)


@inline
def apart(both):
    """Return row and instance from the one word that a hook returns.

    Args:
        both: (instance + 1) << 32 | (row + 1).
    """
    # 1 is added to each half, so that 0 means none; two results in one int64, as hooks return one word
    return (both & 0xFFFFFFFF) - 1, (both >> 32) - 1


@hook
def message_by_kind(world_address, node, word1, word3):
    """Handle a complete message: request, answer, call, or data. Return (row done, instance), in one word (`apart`).

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        word1: Word 1 of the message's last packet (pdes/core/packet.py).
        word3: Word 3 of that packet, the tag.
    """
    world = state.world_at(world_address)
    net, npus, rows = world.net, world.npus, world.rows
    npu = npus.npu[node]
    done = inst = np.int64(NOTHING)
    kind = np.int64(EAGER)
    if is_used(net):
        kind = word3 & KIND_MASK
    # the kind is in bits of the lane that no plan uses (MAX_TAG), so it is removed before the tag names anything
    tag = word3 - kind
    group = packet.tag_group(tag)
    lane = packet.tag_lane(tag)
    # others have started the collective, and wait for this NPU: it starts without a place
    if net.const.collectives_in_flight > 0 and group != packet.P2P:
        call(world_address, node, group, packet.tag_seq(tag))
        if lane == packet.CALL_LANE:
            return 0
    if kind == CLEAR:
        send_cleared(net, npus, world.qps, node, packet.source(word1), tag, npu.now_ps)
    elif group != packet.P2P:
        inst = instance_for(net, npus, world.insts, node, group, packet.tag_seq(tag))
        if is_used(net):
            lane_gets(net, world.qps, world.insts, lane_place(net, inst, lane), kind, packet.source(word1))
        else:
            arrives(net, world.insts, inst, lane)
    elif kind == REQUEST:
        flag = npu.row_base + row_of_message(net, npus, world.trace, node, word1, tag)
        # asked before the receive is posted: `start_row` answers then
        rows.flag[flag] |= state.ROW_ASKED
        if rows.flag[flag] & state.ROW_POSTED != 0:
            answer(net, node, packet.source(word1), tag, npu.now_ps)
    else:
        done = receive_row(world_address, node, word1, tag)
    return (inst + 1) << 32 | (done + 1)


@inline
def message_done(net, npus, insts, node, word1, word3):
    """Let an NPU act on a message. Return (row done, instance to advance).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        word1: Word 1 of the message's last packet (pdes/core/packet.py).
        word3: Word 3 of that packet, the tag.
    """
    if net.const.handshakes == 1:
        return apart(call_hook(net.hooks.message_by_kind, net.const.address, node, word1, word3))
    if packet.tag_group(word3) == packet.P2P:
        return receive_row(net.const.address, node, word1, word3), np.int64(NOTHING)
    inst = instance_for(net, npus, insts, node, packet.tag_group(word3), packet.tag_seq(word3))
    arrives(net, insts, inst, packet.tag_lane(word3))
    return np.int64(NOTHING), inst


@inline
def message_is_in(net, npus, insts, node, now_ps, word1, word2, word3):
    """Let an NPU act on a message, now or later. Return (row done, instance).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        insts: Active collectives of the LP (`Insts`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the message's last packet (pdes/core/packet.py).
        word2: Word 2 of that packet.
        word3: Word 3 of that packet, the tag.
    """
    if net.hooks.is_in != 0:
        return apart(call_hook(net.hooks.is_in, net.const.address, node, now_ps, word1, word2, word3))
    return message_done(net, npus, insts, node, word1, word3)


@inline
def in_lane_at(world, node, tag, size_bytes, earliest_ps, is_data):
    """Return when (ps) a lane of an NPU takes a message: after its reduction and the messages before it.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        earliest_ps: Time in ps from which the lane could take it.
        is_data: Whether the message carries data; another one only stays in order.
    """
    # The message's number within its lane determines whether it is reduced; without is_data it only stays in order.
    net, messages, taken = world.net, world.messages, world.insts.taken
    number = packet.tag_lane(tag)
    inst = instance(net, world.insts, node, packet.tag_group(tag), packet.tag_seq(tag))
    taken_row = taken[lane_place(net, inst, number)]
    if is_data:
        npu = world.npus.npu[node]
        row, slot = row_of_collective(npu, world.trace, world.plans, packet.tag_group(tag), packet.tag_seq(tag))
        lane = first_lane_of(world.plans, np.int64(world.trace.schedule[npu.trace_base + row]), slot) + number
        # `reduces` has a flag for each receive of each lane, in order: message k of the lane is its receive k
        if messages.reduces[messages.receive_ptr[lane] + taken_row.messages] == 1:
            time = np.int64(min(size_bytes * messages.memory_psb[0] + 0.5, state.LONGEST_RUN_PS / TOUCHES))
            earliest_ps += TOUCHES * (time - time % net.const.resolution_ps)
        taken_row.messages += 1
    # a small message that is not reduced must not overtake one whose reduction still lasts
    earliest_ps = max(earliest_ps, taken_row.taken_ps)
    taken_row.taken_ps = earliest_ps
    return earliest_ps
