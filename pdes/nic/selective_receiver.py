"""Selective repeat, the receiver's side (pdes/nic/selective.py)."""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.packet import FLAG_LAST, FLAG_NAK, FLAG_TRIMMED, HALF_PSN, PSN_MASK, flags, wire_bytes
from pdes.core.state import (
    CONST_HEADER,
    CONST_REDUCES,
    COUNT_PAYLOAD_BYTES,
    MSG_BEGIN,
    MSG_BYTES,
    MSG_END,
    MSG_NEXT,
    MSG_REF,
    MSG_TAG,
    MSG_WORDS,
    NPU_DONE_HEAD,
    NPU_DONE_TAIL,
    NPU_WORDS,
    RXQP_EXPECTED,
    RXQP_MESSAGES,
    RXQP_WORDS,
    SEL_HEAD,
    SEL_SEEN,
    SEL_WORDS,
    SELECTIVE_PACKETS,
)
from pdes.core.world import world_at
from pdes.nic.control import ECHO_BITS, ECHO_MASK
from pdes.nic.message_pool import take_row
from pdes.nic.selective import clear_bit, is_set, set_bit
from pdes.nic.transport import echo_of, finish_flow, payload_bytes, send_ack


@inline
def keep_last(net, qps, rx, seq, w1, w2, tag):
    """The last packet of a message is here: keep its words until all before it is."""
    message = take_row(net, qps)
    m = message * MSG_WORDS
    qps.msg[m + MSG_TAG] = tag
    qps.msg[m + MSG_BEGIN] = seq
    qps.msg[m + MSG_BYTES] = w1
    qps.msg[m + MSG_REF] = w2
    head = rx * SEL_WORDS + SEL_HEAD
    before = np.int64(-1)
    at = qps.sel_rx[head]
    while at >= 0 and qps.msg[at * MSG_WORDS + MSG_BEGIN] < seq:
        before = at
        at = qps.msg[at * MSG_WORDS + MSG_NEXT]
    qps.msg[m + MSG_NEXT] = at
    if before < 0:
        qps.sel_rx[head] = message
    else:
        qps.msg[before * MSG_WORDS + MSG_NEXT] = message


@inline
def complete_next(npus, qps, node, rx, expected):
    """Move the first kept message of the queue pair that is complete to the NPU's list; it, or -1 if there is none."""
    head = rx * SEL_WORDS + SEL_HEAD
    message = qps.sel_rx[head]
    if message < 0 or qps.msg[message * MSG_WORDS + MSG_BEGIN] >= expected:
        return np.int64(-1)
    qps.sel_rx[head] = qps.msg[message * MSG_WORDS + MSG_NEXT]
    qps.msg[message * MSG_WORDS + MSG_NEXT] = -1
    n = node * NPU_WORDS
    if npus.npu[n + NPU_DONE_HEAD] < 0:
        npus.npu[n + NPU_DONE_HEAD] = message
    else:
        qps.msg[npus.npu[n + NPU_DONE_TAIL] * MSG_WORDS + MSG_NEXT] = message
    npus.npu[n + NPU_DONE_TAIL] = message
    return message


@inline
def accept(qps, rx, expected, seq):
    """Note a packet, not before `expected`. Returns whether it is new, and the first number still missing."""
    row = rx * SEL_WORDS + SEL_SEEN
    if seq - expected >= SELECTIVE_PACKETS or is_set(qps.sel_rx, row, seq):
        return False, expected
    set_bit(qps.sel_rx, row, seq)
    while is_set(qps.sel_rx, row, expected):
        clear_bit(qps.sel_rx, row, expected)
        expected += 1
    return True, expected


@hook
def receive(address, node, now, w1, w2, w3, rx, flag):
    """Take a data packet. What it completes is put on the NPU's list."""
    w = world_at(address)
    net, npus, qps = w.net, w.npus, w.qps
    row = rx * RXQP_WORDS
    expected = qps.rxqp[row + RXQP_EXPECTED]
    ahead = (w2 - expected) & PSN_MASK
    if flags(w1) & FLAG_TRIMMED != 0:
        flag |= FLAG_NAK
    elif ahead < HALF_PSN:
        is_new, missing = accept(qps, rx, expected, expected + ahead)
        qps.rxqp[row + RXQP_EXPECTED] = missing
        if is_new:
            net.count[COUNT_PAYLOAD_BYTES] += wire_bytes(w1) - net.const[CONST_HEADER]
            if flags(w1) & FLAG_LAST != 0:
                keep_last(net, qps, rx, expected + ahead, w1, w2, w3)
        expected = missing
        message = complete_next(npus, qps, node, rx, expected)
        while message >= 0:
            ordinal = qps.rxqp[row + RXQP_MESSAGES]
            qps.rxqp[row + RXQP_MESSAGES] = ordinal + 1
            m = message * MSG_WORDS
            if net.const[CONST_REDUCES] == 1:
                last = qps.msg[m + MSG_BEGIN]
                qps.msg[m + MSG_END] = payload_bytes(net, qps, rx, last + 1, qps.msg[m + MSG_BYTES])
            finish_flow(net, qps, qps.msg[m + MSG_BYTES], qps.msg[m + MSG_TAG], ordinal, now)
            message = complete_next(npus, qps, node, rx, expected)
    a3 = ((w2 & PSN_MASK) << ECHO_BITS) | (echo_of(net, w1, w3) & ECHO_MASK)
    send_ack(net, npus, node, now, w1, w2, a3, expected, flag)
    return 0
