"""The receiver of selective repeat (pdes/nic/selective.py)."""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.packet import FLAG_LAST, FLAG_NAK, FLAG_TRIMMED, HALF_PSN, PSN_MASK, flags, wire_bytes
from pdes.core.state import SELECTIVE_PACKETS, kept_messages, take_row, world_at
from pdes.nic.control import ECHO_BITS, ECHO_MASK
from pdes.nic.selective import clear_bit, is_set, set_bit
from pdes.nic.transport import echo_of, finish_flow, payload_bytes, send_ack


@inline
def keep_last(net, qps, rx, seq, w1, w2, tag):
    """Keep the words of the last packet of a message until all packets before it have arrived."""
    message = take_row(net, qps)
    kept = kept_messages(qps.msg)
    kept[message].tag = tag
    kept[message].last_seq = seq
    kept[message].w1 = w1
    kept[message].w2 = w2
    before = np.int64(-1)
    at = qps.sel_rx[rx].head_message
    while at >= 0 and kept[at].last_seq < seq:
        before = at
        at = kept[at].next_message
    kept[message].next_message = at
    if before < 0:
        qps.sel_rx[rx].head_message = message
    else:
        kept[before].next_message = message


@inline
def complete_next(npus, qps, node, rx, expected):
    """Move the queue pair's first kept message to the NPU's list if it is complete; return it, or -1."""
    kept = kept_messages(qps.msg)
    message = qps.sel_rx[rx].head_message
    if message < 0 or kept[message].last_seq >= expected:
        return np.int64(-1)
    qps.sel_rx[rx].head_message = kept[message].next_message
    kept[message].next_message = -1
    npu = npus.npu[node]
    if npu.done_head < 0:
        npu.done_head = message
    else:
        kept[npu.done_tail].next_message = message
    npu.done_tail = message
    return message


@inline
def accept(qps, rx, expected, seq):
    """Mark a packet, not before `expected`, as arrived; return whether it is new, and the first missing number."""
    seen = qps.sel_rx[rx].seen
    if seq - expected >= SELECTIVE_PACKETS or is_set(seen, seq):
        return False, expected
    set_bit(seen, seq)
    while is_set(seen, expected):
        clear_bit(seen, expected)
        expected += 1
    return True, expected


@hook
def receive(address, node, now, w1, w2, w3, rx, flag):
    """Handle a data packet, and put the messages that it completes on the NPU's list."""
    w = world_at(address)
    net, npus, qps = w.net, w.npus, w.qps
    rxqp = qps.rxqp[rx]
    expected = rxqp.expected
    ahead = (w2 - expected) & PSN_MASK
    if flags(w1) & FLAG_TRIMMED != 0:
        flag |= FLAG_NAK
    elif ahead < HALF_PSN:
        is_new, missing = accept(qps, rx, expected, expected + ahead)
        rxqp.expected = missing
        if is_new:
            net.count.payload_bytes += wire_bytes(w1) - net.const.header_bytes
            if flags(w1) & FLAG_LAST != 0:
                keep_last(net, qps, rx, expected + ahead, w1, w2, w3)
        expected = missing
        message = complete_next(npus, qps, node, rx, expected)
        while message >= 0:
            ordinal = np.int64(rxqp.messages)
            rxqp.messages = ordinal + 1
            kept = kept_messages(qps.msg)[message]
            if net.const.reduces == 1:
                kept.payload_bytes = payload_bytes(net, qps, rx, kept.last_seq + 1, kept.w1)
            finish_flow(net, qps, kept.w1, kept.tag, ordinal, now)
            message = complete_next(npus, qps, node, rx, expected)
    a3 = ((w2 & PSN_MASK) << ECHO_BITS) | (echo_of(net, w1, w3) & ECHO_MASK)
    send_ack(net, npus, qps, node, rx, now, w1, w2, a3, expected, flag)
    return 0
