"""Selective repeat: the receiver keeps packets that arrive out of order, and each acknowledgement names its packet too.

A queue pair has at most SELECTIVE_PACKETS unacknowledged; bit `sequence number mod SELECTIVE_PACKETS` of a bit set
represents a packet. The sender considers a packet lost when one sent `reorder_packets` later has arrived (never, where
packets may overtake each other freely), when a switch has trimmed it, or at the timeout; then it sends only that packet
again. With `ack_every_bytes` receivers do not acknowledge each packet, and an acknowledgement also carries a bitmap of
64 packets, in which a clear bit says nothing (Ultra Ethernet's SACK). It has no room for a send time, so the sender
keeps those of its packets. Messages complete in order (as in InfiniBand), so tags of their last packets wait at the
receiver.
"""

import numpy as np

from nadi.pdes.core.jit import call_hook, hook, inline
from nadi.pdes.core.packet import FLAG_AGAIN, FLAG_ASK
from nadi.pdes.core.state import INF, PATH_LOST, PATH_TIMEOUT, SELECTIVE_PACKETS, give_row_back, kept_messages, world_at

FORGET, SELECTED, LOSE_ALL, TAKE_LOST, SACKED = range(5)  # operations of the sender's hook
SACK_BITS = 64  # packets of a bitmap
MESSAGE_BITS = 24  # bits of the message in the result of TAKE_LOST; the sequence number is above


@inline
def is_set(bits, seq):
    """Return whether the bit of a sequence number is set.

    Args:
        bits: Bit set of sequence numbers, modulo SELECTIVE_PACKETS.
        seq: Sequence number of the packet.
    """
    return (bits[(seq & (SELECTIVE_PACKETS - 1)) >> 5] >> (seq & 31)) & 1 == 1


@inline
def set_bit(bits, seq):
    """Set the bit of a sequence number.

    Args:
        bits: Bit set of sequence numbers, modulo SELECTIVE_PACKETS.
        seq: Sequence number of the packet.
    """
    bits[(seq & (SELECTIVE_PACKETS - 1)) >> 5] |= 1 << (seq & 31)


@inline
def clear_bit(bits, seq):
    """Clear the bit of a sequence number.

    Args:
        bits: Bit set of sequence numbers, modulo SELECTIVE_PACKETS.
        seq: Sequence number of the packet.
    """
    bits[(seq & (SELECTIVE_PACKETS - 1)) >> 5] &= ~(1 << (seq & 31))


@inline
def take_complete(net, npus, qps, node):
    """Remove a complete message from an NPU's list; return words 1 and 2 and the tag of its last packet.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
    """
    npu = npus.npu[node]
    message = npu.done_head
    kept = kept_messages(qps.msg)[message]
    npu.done_head = kept.next_message
    npu.done_bytes = kept.payload_bytes
    give_row_back(net, qps, message)
    return kept.w1, kept.w2, kept.tag


@inline
def in_flight(qps, pair):
    """Return the number of a queue pair's packets that have been sent and are not known to have arrived or to be lost.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    selective = qps.sel_tx[pair]
    return qps.qp[pair].next_seq - qps.qp[pair].una - selective.seen_packets - selective.lost_packets


@inline
def has_lost(qps, pair):
    """Return whether packets wait to be sent again.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    return qps.sel_tx[pair].lost_packets > 0


@inline
def lose(qps, pair, seq):
    """Mark a packet of a queue pair to be sent again, unless it has arrived or is marked already.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        seq: Sequence number of the packet.
    """
    # `lost_packets` is the number of bits in `lost`, so a packet counts once however often it seems lost
    if not is_set(qps.sel_tx[pair].seen, seq) and not is_set(qps.sel_tx[pair].lost, seq):
        set_bit(qps.sel_tx[pair].lost, seq)
        qps.sel_tx[pair].lost_packets += 1


@inline
def spare(qps, pair, seq):
    """Remove the mark that a packet of a queue pair is to be sent again.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        seq: Sequence number of the packet.
    """
    selective = qps.sel_tx[pair]
    if is_set(selective.lost, seq):
        clear_bit(selective.lost, seq)
        selective.lost_packets -= 1


@inline
def sack_base(named_seq, expected_seq):
    """Return the first packet of the bitmap of an acknowledgement (htsim, uec.cpp: sackBitmapBase).

    Args:
        named_seq: Number of the acknowledged packet.
        expected_seq: First packet that has not arrived.
    """
    return max(named_seq - SACK_BITS + 1, expected_seq + 1)


@inline
def sacked(qps, pair, base_seq, bitmap):
    """Note the packets of a bitmap that have arrived.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        base_seq: Number of the packet of bit 0.
        bitmap: The bitmap, word 3 of the acknowledgement.
    """
    selective, una, end = qps.sel_tx[pair], qps.qp[pair].una, qps.qp[pair].sent_max
    for seq in range(max(base_seq, una), min(base_seq + SACK_BITS, end)):
        if (bitmap >> (seq - base_seq)) & 1 == 1 and not is_set(selective.seen, seq):
            selective.seen_packets += 1
            set_bit(selective.seen, seq)
            spare(qps, pair, seq)
            selective.highest = max(selective.highest, seq)


@inline
def note_sent(net, qps, pair, seq, size_bytes, is_new, now_ps):
    """Note when a packet is sent, and return the flags that ask for an acknowledgement of it at once.

    A sender asks if the packet was sent before, or if it can send no more behind it: the window is full, credit is used
    up or all is sent (htsim, uec.cpp: sendNewPacket), and for the first when nothing else is under way.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        seq: Sequence number of the packet.
        size_bytes: Size of the packet on the wire in bytes.
        is_new: Whether the packet was never sent before.
        now_ps: Current time in ps.
    """
    qp = qps.qp[pair]
    at = pair * SELECTIVE_PACKETS + (seq & (SELECTIVE_PACKETS - 1))
    if not is_new:
        qps.sent_at[at] = now_ps << 2 | min((qps.sent_at[at] & 3) + 1, 3)
        return FLAG_AGAIN | FLAG_ASK
    qps.sent_at[at] = now_ps << 2 | 1
    window = net.const.window_packets if net.const.window_fixed == 1 else qps.cc[pair].window_packets
    is_last = qp.next_seq == qp.end_seq or in_flight(qps, pair) >= window
    if net.hooks.credits != 0:
        is_last |= qps.credit_tx[pair].credit_bytes <= size_bytes
    return FLAG_ASK if is_last or seq == qp.una else 0


@inline
def time_since_sent(qps, pair, seq, is_again, now_ps):
    """Return the time in ps since a packet was sent, -1 = unknown, as which of its copies has arrived is not certain.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        seq: Sequence number of the packet.
        is_again: Whether the copy that has arrived was not the first.
        now_ps: Current time in ps.
    """
    at = pair * SELECTIVE_PACKETS + (seq & (SELECTIVE_PACKETS - 1))
    # 1 = the first copy, 2 = the second, 3 = a later one
    return now_ps - (qps.sent_at[at] >> 2) if qps.sent_at[at] & 3 == 1 + is_again else np.int64(-1)


@inline
def selected(net, qps, pair, seq, is_trimmed, now_ps):
    """Handle an acknowledgement, new to the queue pair; return whether it reveals a loss.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        seq: Sequence number of the packet.
        is_trimmed: Whether the acknowledgement says that the packet was trimmed.
        now_ps: Current time in ps.
    """
    selective = qps.sel_tx[pair]
    if not is_trimmed:
        selective.seen_packets += not is_set(selective.seen, seq)
        set_bit(selective.seen, seq)
        spare(qps, pair, seq)
    # the caller tells congestion control of a loss only if this acknowledgement reveals a new one
    before = selective.lost_packets
    if is_trimmed:
        lose(qps, pair, seq)
    else:
        highest = max(selective.highest, seq)
        selective.highest = highest
        # `checked` never moves back, so each packet is checked once: without it, each acknowledgement would check the
        # whole window
        checked = max(selective.checked, qps.qp[pair].una)
        # packets too far behind the highest that has arrived count as lost
        reorder = net.const.reorder_packets
        if net.const.probes != 0 and net.hooks.congestion_control != 0:
            # as `pdes.construction.constants.reorder_packets`, of the window that congestion control has made smaller
            reorder = min(reorder, max(1, np.int64(qps.cc[pair].window_packets) >> (1 - net.const.by_flight)))
        while checked + reorder <= highest:
            lose(qps, pair, checked)
            if net.hooks.paths != 0 and is_set(selective.lost, checked):
                call_hook(net.hooks.paths, net.const.address, PATH_LOST, pair, checked, 0, now_ps)
            checked += 1
        selective.checked = checked
        if net.const.sleek == 1:
            recover(net, qps, pair)
    return selective.lost_packets > before


MIN_OUT_OF_ORDER = 5  # packets out of order below which SLEEK infers no loss (htsim, uec.cpp: min_retx_config)
WINDOWS_OUT_OF_ORDER = 1.5  # windows out of order from which it does (htsim, uec.cpp: loss_retx_factor)


@inline
def recover(net, qps, pair):
    """Infer losses of a queue pair from the number of packets that have arrived out of order (SLEEK).

    uet-htsim's runSleek: recovery begins when that number reaches 1.5 windows, at most the largest window and at least
    five packets. It ends when all that had been sent by then has arrived. Meanwhile what has not arrived is sent again,
    once, up to a window behind the first unacknowledged packet.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    selective, qp = qps.sel_tx[pair], qps.qp[pair]
    largest = net.const.window_packets
    window = largest if net.const.window_fixed == 1 else qps.cc[pair].window_packets
    if qp.una >= selective.recovery_seq:
        if selective.seen_packets < max(min(int(WINDOWS_OUT_OF_ORDER * window), largest), MIN_OUT_OF_ORDER):
            return
        selective.recovery_seq = qp.next_seq
    resend(qps, pair, max(window, 1))


@inline
def resend(qps, pair, window):
    """Mark what a recovery of SLEEK has not sent again yet, up to a window behind the first unacknowledged packet.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        window: The window in packets.
    """
    selective, qp = qps.sel_tx[pair], qps.qp[pair]
    seq = max(selective.resent_seq, qp.una)
    while seq < min(selective.recovery_seq, qp.una + window):
        lose(qps, pair, seq)
        seq += 1
    selective.resent_seq = seq


FIRST_PROBE_RTTS = 3  # base round trips without an answer after which SLEEK probes (uec.cpp: probe_first_trial_time)
TAIL_PROBE_RTTS = 2  # after which it does once all has been sent: base round trip and target delay (processAck)
NEXT_PROBE_RTTS = 5  # after which it does again (probe_retry_time)


@inline
def hear_answer(net, qps, pair, now_ps, is_of_probe):
    """Note that a queue pair has an answer; return when SLEEK probes it unless it has another before (ps), INF = not.

    If the answer to a probe has not waited, what was sent before the probe does not wait in queues either, but is lost:
    a recovery begins.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
        is_of_probe: Whether the answer names the packet that probes repeat.
    """
    selective, qp = qps.sel_tx[pair], qps.qp[pair]
    if is_of_probe:
        # the target of the queueing delay is one base round trip where switches do not trim
        if selective.probed_ps > 0 and now_ps - selective.probed_ps < 2 * net.const.base_rtt_ps:
            selective.recovery_seq = qp.next_seq
            selective.resent_seq = qp.una
            window = net.const.window_packets if net.const.window_fixed == 1 else qps.cc[pair].window_packets
            resend(qps, pair, max(window, 1))
        selective.probed_ps = 0
    selective.probe_ps = 0
    # links with credits lose nothing, and a probe would need some
    if qp.una < qp.end_seq and net.const.queues == 0:
        rtts = FIRST_PROBE_RTTS if qp.next_seq < qp.end_seq else TAIL_PROBE_RTTS
        selective.probe_ps = now_ps + rtts * net.const.base_rtt_ps
    return np.int64(selective.probe_ps if selective.probe_ps > 0 else INF)


@inline
def take_lost(qps, pair):
    """Return the number of the first packet to be sent again, whose mark is removed, and the row of its message.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    qp = qps.qp[pair]
    # it ends, since lost_packets > 0, after at most SELECTIVE_PACKETS bits
    seq = qp.una
    while not is_set(qps.sel_tx[pair].lost, seq):
        seq += 1
    spare(qps, pair, seq)
    message = np.int64(qp.head_message)
    # messages lie one behind the other in packet numbers
    while qps.msg[message].end_seq <= seq:
        message = qps.msg[message].next_message
    return seq, message


@hook
def sender(world_address, operation, pair, first_seq, end_seq, is_trimmed):
    """Carry out an operation for a sending queue pair, and return its result or 0.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: FORGET, SELECTED, LOSE_ALL, TAKE_LOST or SACKED.
        pair: Row of the queue pair in `qps.qp`.
        first_seq: First sequence number of the operation.
        end_seq: Number behind the last one, with FORGET; with SELECTED and LOSE_ALL the current time in ps; with SACKED
            a bitmap.
        is_trimmed: 1 if the acknowledgement says that the packet was trimmed, with SELECTED.
    """
    # FORGET: all packets from first_seq to before end_seq are acknowledged. SELECTED: an acknowledgement names
    # first_seq; is_trimmed: as lost. LOSE_ALL: after a timeout, mark all packets that have been sent and have not
    # arrived. TAKE_LOST: return the first marked packet and its message, number << MESSAGE_BITS + message. SACKED:
    # packets of a bitmap that begins with first_seq have arrived.
    world = world_at(world_address)
    qps = world.qps
    if operation == FORGET:
        for seq in range(first_seq, end_seq):
            # bit `seq` is that of packet seq + 512, too, which may be sent now
            qps.sel_tx[pair].seen_packets -= is_set(qps.sel_tx[pair].seen, seq)
            clear_bit(qps.sel_tx[pair].seen, seq)
            spare(qps, pair, seq)
    elif operation == SELECTED:
        return np.int64(selected(world.net, qps, pair, first_seq, is_trimmed == 1, end_seq))
    elif operation == SACKED:
        sacked(qps, pair, first_seq, end_seq)
    elif operation == LOSE_ALL:
        for seq in range(qps.qp[pair].una, qps.qp[pair].next_seq):
            lose(qps, pair, seq)
            if world.net.hooks.paths != 0 and is_set(qps.sel_tx[pair].lost, seq):
                call_hook(world.net.hooks.paths, world_address, PATH_TIMEOUT, pair, seq, 0, end_seq)
        # all of these are marked; an acknowledgement of an old copy must not mark them once more
        qps.sel_tx[pair].checked = qps.qp[pair].next_seq
    else:
        seq, message = take_lost(qps, pair)
        return seq << MESSAGE_BITS | message
    return np.int64(0)


@inline
def ask_sender(net, operation, pair, a, b, trimmed):
    """Call the sender's hook.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        operation: FORGET, SELECTED, LOSE_ALL, TAKE_LOST or SACKED.
        pair: Row of the queue pair in `qps.qp`.
        a: Value `first_seq` of `sender`.
        b: Value `end_seq` of `sender`.
        trimmed: Value `is_trimmed` of `sender`.
    """
    return call_hook(net.hooks.selective_sender, net.const.address, operation, pair, a, b, trimmed)
