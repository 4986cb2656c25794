"""Selective repeat: the receiver keeps packets that arrive out of order, and each acknowledgement names its packet too.

A queue pair has at most SELECTIVE_PACKETS unacknowledged; bit `sequence number mod SELECTIVE_PACKETS` of a bit set
represents a packet. The sender considers a packet lost when one sent `reorder_packets` later has arrived (never, where
packets may overtake each other freely), when a switch has trimmed it, or at the timeout; then it sends only that packet
again. Messages complete in order (as in InfiniBand), so tags of their last packets wait at the receiver.
"""

import numpy as np

from pdes.core.jit import call_hook, hook, inline
from pdes.core.state import SELECTIVE_PACKETS, give_row_back, kept_messages, world_at

FORGET, SELECTED, LOSE_ALL, TAKE_LOST = range(4)  # operations of the sender's hook
MESSAGE_BITS = 24  # bits of the message in the result of TAKE_LOST; the sequence number is above


@inline
def is_set(bits, seq):
    """Return whether the bit of a sequence number is set."""
    return (bits[(seq & (SELECTIVE_PACKETS - 1)) >> 5] >> (seq & 31)) & 1 == 1


@inline
def set_bit(bits, seq):
    """Set the bit of a sequence number."""
    bits[(seq & (SELECTIVE_PACKETS - 1)) >> 5] |= 1 << (seq & 31)


@inline
def clear_bit(bits, seq):
    """Clear the bit of a sequence number."""
    bits[(seq & (SELECTIVE_PACKETS - 1)) >> 5] &= ~(1 << (seq & 31))


@inline
def take_complete(net, npus, qps, node):
    """Remove a complete message from the NPU's list; return words 1 and 2 and tag of its last packet."""
    npu = npus.npu[node]
    message = npu.done_head
    kept = kept_messages(qps.msg)[message]
    npu.done_head = kept.next_message
    npu.done_bytes = kept.payload_bytes
    give_row_back(net, qps, message)
    return kept.w1, kept.w2, kept.tag


@inline
def has_lost(qps, q):
    """Return whether packets wait to be sent again."""
    return qps.sel_tx[q].lost_packets > 0


@inline
def lose(qps, q, seq):
    """Mark a packet to be sent again, unless it has arrived or is marked already."""
    if not is_set(qps.sel_tx[q].seen, seq) and not is_set(qps.sel_tx[q].lost, seq):
        set_bit(qps.sel_tx[q].lost, seq)
        qps.sel_tx[q].lost_packets += 1


@inline
def spare(qps, q, seq):
    """Remove the mark that a packet is to be sent again."""
    selective = qps.sel_tx[q]
    if is_set(selective.lost, seq):
        clear_bit(selective.lost, seq)
        selective.lost_packets -= 1


@inline
def selected(net, qps, q, seq, trimmed):
    """Handle an acknowledgement of packet `seq`, which was unacknowledged; return whether it reveals a loss."""
    selective = qps.sel_tx[q]
    if not trimmed:
        set_bit(selective.seen, seq)
        spare(qps, q, seq)
    before = selective.lost_packets
    if trimmed:
        lose(qps, q, seq)
    else:
        highest = max(selective.highest, seq)
        selective.highest = highest
        checked = max(selective.checked, qps.qp[q].una)
        while checked + net.const.reorder_packets <= highest:
            lose(qps, q, checked)
            checked += 1
        selective.checked = checked
    return selective.lost_packets > before


@inline
def take_lost(qps, q):
    """Return the first packet to be sent again, without its mark, and its message."""
    qp = qps.qp[q]
    seq = qp.una
    while not is_set(qps.sel_tx[q].lost, seq):
        seq += 1
    spare(qps, q, seq)
    message = np.int64(qp.head_message)
    while qps.msg[message].end_seq <= seq:
        message = qps.msg[message].next_message
    return seq, message


@hook
def sender(address, operation, q, a, b, trimmed):
    """Carry out an operation of the sender: FORGET: all packets from a to before b are acknowledged."""
    # SELECTED: an acknowledgement names a. LOSE_ALL: after a timeout, mark all packets that have been sent and have not
    # arrived. TAKE_LOST: return the first marked packet and its message, number << MESSAGE_BITS | message.
    w = world_at(address)
    qps = w.qps
    if operation == FORGET:
        for seq in range(a, b):
            clear_bit(qps.sel_tx[q].seen, seq)
            spare(qps, q, seq)
    elif operation == SELECTED:
        return np.int64(selected(w.net, qps, q, a, trimmed == 1))
    elif operation == LOSE_ALL:
        for seq in range(qps.qp[q].una, qps.qp[q].next_seq):
            lose(qps, q, seq)
        qps.sel_tx[q].checked = qps.qp[q].next_seq
    else:
        seq, message = take_lost(qps, q)
        return seq << MESSAGE_BITS | message
    return np.int64(0)


@inline
def ask_sender(net, operation, q, a, b, trimmed):
    """Call the sender's hook."""
    return call_hook(net.hooks.selective_sender, net.const.address, operation, q, a, b, trimmed)
