"""The receiver of selective repeat (pdes/nic/selective.py)."""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.jit import call_hook, hook, inline
from nadi.pdes.nic.control import ECHO_BITS
from nadi.pdes.nic.counting import finish_flow
from nadi.pdes.nic.selective import clear_bit, is_set, sack_base, set_bit
from nadi.pdes.nic.transport import echo_of, payload_bytes, send_ack


@inline
def keep_last(net, qps, receiver, seq, word1, word2, tag):
    """Keep the words of the last packet of a message until all packets before it have arrived.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        receiver: Row of the receiving queue pair in `qps.rxqp`.
        seq: Sequence number of the packet.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
    """
    message = state.take_row(net, qps)
    kept = state.kept_messages(qps.msg)
    kept[message].tag = tag
    kept[message].last_seq = seq
    kept[message].w1 = word1
    kept[message].w2 = word2
    before = np.int64(-1)
    # usually empty: a message whose last packet comes in order is completed by the same call
    at = qps.sel_rx[receiver].head_message
    # the list is in the order of sequence numbers
    while at >= 0 and kept[at].last_seq < seq:
        before = at
        at = kept[at].next_message
    kept[message].next_message = at
    if before < 0:
        qps.sel_rx[receiver].head_message = message
    else:
        kept[before].next_message = message


@inline
def complete_next(npus, qps, node, receiver, expected_seq):
    """Move the first kept message of a receiving queue pair to an NPU's list if complete; return it, or -1.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        receiver: Row of the receiving queue pair in `qps.rxqp`.
        expected_seq: First packet that has not arrived.
    """
    kept = state.kept_messages(qps.msg)
    message = qps.sel_rx[receiver].head_message
    # complete once all packets up to its last one are in
    if message < 0 or kept[message].last_seq >= expected_seq:
        return np.int64(-1)
    qps.sel_rx[receiver].head_message = kept[message].next_message
    kept[message].next_message = -1
    # The NPU's list, not the caller, reports it: one packet may complete several messages, and kernels return one at a
    # time.
    npu = npus.npu[node]
    if npu.done_head < 0:
        npu.done_head = message
    else:
        kept[npu.done_tail].next_message = message
    npu.done_tail = message
    return message


@inline
def accept(qps, receiver, expected_seq, seq):
    """Mark a packet, not before the first missing one, as arrived; return whether it is new, and the first missing one.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        receiver: Row of the receiving queue pair in `qps.rxqp`.
        expected_seq: First packet that has not arrived.
        seq: Sequence number of the packet.
    """
    seen = qps.sel_rx[receiver].seen
    # beyond the bitmap, or a duplicate
    if seq - expected_seq >= state.SELECTIVE_PACKETS or is_set(seen, seq):
        return False, expected_seq
    set_bit(seen, seq)
    # bits of packets before the first missing one are cleared as it moves on, for the packets 512 later that share them
    while is_set(seen, expected_seq):
        clear_bit(seen, expected_seq)
        expected_seq += 1
    return True, expected_seq


@inline
def bitmap_of(seen, base_seq):
    """Return the bits of the 64 packets from base_seq on as one word.

    Args:
        seen: Bit set of the packets that have arrived (`Selective.seen`).
        base_seq: Number of the packet of bit 0.
    """
    at = base_seq & (state.SELECTIVE_PACKETS - 1)
    word, shift = at >> 5, at & 31
    words = state.SELECTIVE_PACKETS >> 5
    low = seen[word] | seen[(word + 1) & (words - 1)] << 32
    if shift == 0:
        return low
    return ((low >> shift) & ((1 << (64 - shift)) - 1)) | seen[(word + 2) & (words - 1)] << (64 - shift)


@inline
def is_due(net, own, word1, is_new, seq, expected_seq, before_seq):
    """Return whether a receiver that coalesces acknowledgements sends one for a packet with data.

    It does after `ack_every_bytes` of data, and at once for a packet that is marked, has arrived before or ends a
    message, and for one whose sender asks; then also when all packets up to the highest are in (htsim, uec.cpp:
    processData).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        own: The receiver's row of `Selective`.
        word1: Word 1 of the packet (pdes/core/packet.py).
        is_new: Whether the packet has not arrived before.
        seq: Sequence number of the packet.
        expected_seq: First packet that has not arrived.
        before_seq: First packet that had not arrived before it.
    """
    own.unanswered_bytes += packet.wire_bytes(word1)
    due = not is_new or own.unanswered_bytes >= net.const.ack_every_bytes or packet.flags(word1) & packet.FLAG_MARK != 0
    if is_new:
        own.highest = max(own.highest, seq)
        if packet.flags(word1) & (packet.FLAG_ASK | packet.FLAG_LAST) != 0:
            due = True
            own.wants_answer = 1
        # only a packet that was the first missing one can leave nothing behind it missing
        if own.wants_answer == 1 and expected_seq != before_seq and own.highest < expected_seq:
            due = True
            own.wants_answer = 0
    return due


@inline
def answer_by_bitmap(net, npus, qps, node, receiver, now_ps, word1, word2, flag_bits):
    """Acknowledge a packet, and those of a bitmap.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        receiver: Row of the receiving queue pair in `qps.rxqp`.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        flag_bits: Flags of the acknowledgement (FLAG_*).
    """
    expected = qps.rxqp[receiver].expected
    ahead = (word2 - expected) & packet.PSN_MASK
    ahead -= (packet.PSN_MASK + 1) * (ahead >= packet.HALF_PSN)
    if flag_bits & packet.FLAG_NAK == 0 and packet.flags(word1) & packet.FLAG_AGAIN != 0:
        flag_bits |= packet.FLAG_ECHO_AGAIN
    if flag_bits & packet.FLAG_NAK == 0:
        qps.sel_rx[receiver].unanswered_bytes = 0
    bitmap = bitmap_of(qps.sel_rx[receiver].seen, sack_base(expected + ahead, expected))
    a2 = packet.sack_word(word2, expected, ahead)
    send_ack(net, npus, qps, node, receiver, now_ps, word1, a2, bitmap, a2, flag_bits)


@hook
def receive(world_address, node, now_ps, word1, word2, word3, receiver, flag_bits):
    """Handle a data packet of a receiving queue pair, and list the messages that it completes at the NPU.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
        receiver: Row of the receiving queue pair in `qps.rxqp`.
        flag_bits: Flags of the acknowledgement (FLAG_*).
    """
    world = state.world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    if net.hooks.credits != 0:
        call_hook(
            net.hooks.credits, net.const.address, state.CREDIT_RECEIVE, node, receiver, now_ps, word1, word2, word3
        )
    rxqp = qps.rxqp[receiver]
    expected = rxqp.expected
    ahead = (word2 - expected) & packet.PSN_MASK
    answers = True
    # a trimmed packet has no data: ask for it again
    # as in NDP (SIGCOMM 2017, section 3), whose receiver answers a trimmed header by a NACK of that packet
    if packet.flags(word1) & packet.FLAG_TRIMMED != 0:
        flag_bits |= packet.FLAG_NAK | (packet.FLAG_TRIMMED if packet.flags(word1) & packet.FLAG_LAST_HOP != 0 else 0)
    elif ahead < packet.HALF_PSN:
        is_new, missing = accept(qps, receiver, expected, expected + ahead)
        if net.const.ack_every_bytes != 0:
            answers = is_due(net, qps.sel_rx[receiver], word1, is_new, expected + ahead, missing, expected)
        rxqp.expected = missing
        if is_new:
            net.count.payload_bytes += packet.wire_bytes(word1) - net.const.header_bytes
            if packet.flags(word1) & packet.FLAG_LAST != 0:
                keep_last(net, qps, receiver, expected + ahead, word1, word2, word3)
        expected = missing
        # the packet may fill a gap behind which several messages are complete
        message = complete_next(npus, qps, node, receiver, expected)
        while message >= 0:
            ordinal = np.int64(rxqp.messages)
            rxqp.messages = ordinal + 1
            kept = state.kept_messages(qps.msg)[message]
            if net.const.reduces == 1:
                kept.payload_bytes = payload_bytes(net, qps, receiver, kept.last_seq + 1, kept.w1)
            finish_flow(net, qps, kept.w1, kept.tag, ordinal, now_ps)
            message = complete_next(npus, qps, node, receiver, expected)
    if net.const.ack_every_bytes != 0:
        if answers:
            answer_by_bitmap(net, npus, qps, node, receiver, now_ps, word1, word2, flag_bits)
        return 0
    # word 3 of the acknowledgement: from bit 38 on the sequence number of this packet, below it the send time
    a3 = ((word2 & packet.PSN_MASK) << ECHO_BITS) | echo_of(net, word1, word3)
    send_ack(net, npus, qps, node, receiver, now_ps, word1, word2, a3, expected, flag_bits)
    return 0
