"""An NPU's port: what it sends next.

Acknowledgements first, then packets in transit and the queue pairs that may send, one packet each in turn.
"""

import numpy as np

from pdes.core.fifo import SET_DOWN, TAKE_UP, after, carry, push, take_block
from pdes.core.heap import heap_hasten, heap_push
from pdes.core.jit import call_hook, inline
from pdes.core.packet import FLAG_LAST, PSN_MASK, data_class, wire_bytes
from pdes.core.state import (
    CC_NEXT_SEND,
    CC_WORDS,
    CONST_ADDRESS,
    CONST_CC_HOOK,
    CONST_HEADER,
    CONST_MTU,
    CONST_NIC,
    CONST_PACE,
    CONST_RTO,
    CONST_RTT,
    CONST_SELECTIVE,
    CONST_SWITCH_HOOK,
    COUNT_BYTES_SENT,
    COUNT_DATA_PACKETS,
    COUNT_RETRANSMITTED,
    GATE_PAUSED,
    GATE_WORDS,
    INF,
    LANES,
    MSG_BEGIN,
    MSG_BYTES,
    MSG_END,
    MSG_NEXT,
    MSG_REF,
    MSG_TAG,
    MSG_WORDS,
    NPU_HEAP_BASE,
    NPU_HEAP_SIZE,
    NPU_KICK_HEAD,
    NPU_NOW,
    NPU_PORTS,
    NPU_RTO_AT,
    NPU_WORDS,
    PORT_CTRL_COUNT,
    PORT_CTRL_HEAD,
    PORT_CTRL_TAIL,
    PORT_KICK_NEXT,
    PORT_PACE_AT,
    PORT_PACED,
    PORT_RING,
    PORT_SCHEDULED,
    PORT_SENT_REF,
    PORT_TRANSIT_BYTES,
    PORT_TRANSIT_COUNT,
    PORT_TRANSIT_HEAD,
    PORT_TURN,
    PORT_WORDS,
    QP_ACTIVE,
    QP_CUR_END,
    QP_CUR_TAG,
    QP_DEADLINE,
    QP_END,
    QP_MSG_CUR,
    QP_NEXT,
    QP_PORT,
    QP_RETRIES,
    QP_RING_NEXT,
    QP_SENT_MAX,
    QP_UNA,
    QP_W1,
    QP_W2,
    QP_WORDS,
    RECORD_WORDS,
    TX_BUSY,
    TX_WORDS,
)
from pdes.network.link import link_send
from pdes.nic.control import window_of
from pdes.nic.pacing import hold_back
from pdes.nic.selective import MESSAGE_BITS, TAKE_LOST, ask_sender, has_lost

NOT_KICKED = -2
TAKES_TURNS, HELD_BACK = 1, 2
MAX_BACKOFF = 6


@inline
def set_event(npus, node, time, slot):
    """Put the node's event `slot` into its heap."""
    n = node * NPU_WORDS
    size = npus.npu[n + NPU_HEAP_SIZE]
    heap_push(npus.heap, npus.npu[n + NPU_HEAP_BASE], size, time, slot)
    npus.npu[n + NPU_HEAP_SIZE] = size + 1


@inline
def kick(npus, node, link):
    """Have the port tried once the node has done all else of this moment."""
    p = link * PORT_WORDS
    if npus.port[p + PORT_SCHEDULED] == 0 and npus.port[p + PORT_KICK_NEXT] == NOT_KICKED:
        npus.port[p + PORT_KICK_NEXT] = npus.npu[node * NPU_WORDS + NPU_KICK_HEAD]
        npus.npu[node * NPU_WORDS + NPU_KICK_HEAD] = link


@inline
def queue_control(net, npus, link, now, w1, w2, w3):
    """Queue an acknowledgement."""
    p = link * PORT_WORDS
    tail = npus.port[p + PORT_CTRL_TAIL]
    if npus.port[p + PORT_CTRL_COUNT] == 0:
        tail = take_block(net)
        npus.port[p + PORT_CTRL_HEAD] = tail
    npus.port[p + PORT_CTRL_COUNT] += 1
    npus.port[p + PORT_CTRL_TAIL] = push(net, tail, now, w1, w2, w3)
    carry(net, SET_DOWN, tail)


@inline
def may_send(net, qps, q):
    """Whether a queue pair has something to send and room in its window, or something to send again."""
    row = q * QP_WORDS
    if net.const[CONST_SELECTIVE] != 0 and has_lost(qps, q):
        return True
    following = qps.qp[row + QP_NEXT]
    return following < qps.qp[row + QP_END] and following - qps.qp[row + QP_UNA] < window_of(net, qps, q)


@inline
def take_turns(npus, qps, link, q):
    """Put a queue pair behind those that take turns at the port."""
    qp = qps.qp
    row = q * QP_WORDS
    qp[row + QP_ACTIVE] = TAKES_TURNS
    last = npus.port[link * PORT_WORDS + PORT_RING]
    if last < 0:
        qp[row + QP_RING_NEXT] = q
    else:
        qp[row + QP_RING_NEXT] = qp[last * QP_WORDS + QP_RING_NEXT]
        qp[last * QP_WORDS + QP_RING_NEXT] = q
    npus.port[link * PORT_WORDS + PORT_RING] = q


@inline
def leave_turns(npus, qps, link, q):
    """Take the queue pair whose turn it is out of the port's list."""
    last = npus.port[link * PORT_WORDS + PORT_RING]
    qps.qp[q * QP_WORDS + QP_ACTIVE] = 0
    if last == q:
        npus.port[link * PORT_WORDS + PORT_RING] = -1
    else:
        qps.qp[last * QP_WORDS + QP_RING_NEXT] = qps.qp[q * QP_WORDS + QP_RING_NEXT]


@inline
def activate(net, npus, qps, node, q):
    """Let a queue pair take turns if it has something to send and room in its window."""
    row = q * QP_WORDS
    qp = qps.qp
    if qp[row + QP_ACTIVE] != 0 or not may_send(net, qps, q):
        return
    link = qp[row + QP_PORT]
    now = npus.npu[node * NPU_WORDS + NPU_NOW]
    if net.const[CONST_CC_HOOK] != 0 and qps.cc[q * CC_WORDS + CC_NEXT_SEND] > now:
        qp[row + QP_ACTIVE] = HELD_BACK
        hold_back(npus, qps, link, q)
    else:
        take_turns(npus, qps, link, q)
    kick(npus, node, link)


@inline
def take_message(qps, row, message):
    """Make `message` the one that the queue pair at `row` sends from."""
    qps.qp[row + QP_MSG_CUR] = message
    if message >= 0:
        qps.qp[row + QP_CUR_END] = qps.msg[message * MSG_WORDS + MSG_END]
        qps.qp[row + QP_CUR_TAG] = qps.msg[message * MSG_WORDS + MSG_TAG]


@inline
def set_timer(npus, node, deadline):
    """Have the NPU's retransmission timer run out at `deadline`, unless it does so before."""
    n = node * NPU_WORDS
    at = npus.npu[n + NPU_RTO_AT]
    if deadline < at:
        npus.npu[n + NPU_RTO_AT] = deadline
        slot = npus.npu[n + NPU_PORTS] + LANES
        if at == INF:
            set_event(npus, node, deadline, slot)
        else:
            heap_hasten(npus.heap, npus.npu[n + NPU_HEAP_BASE], npus.npu[n + NPU_HEAP_SIZE], deadline, slot)


@inline
def arm_timer(net, npus, qps, node, row, now):
    """Start the retransmission timer of the queue pair at `row`."""
    rto = net.const[CONST_RTO]
    if rto > 0:
        deadline = now + (rto << min(qps.qp[row + QP_RETRIES], MAX_BACKOFF))
        qps.qp[row + QP_DEADLINE] = deadline
        set_timer(npus, node, deadline)


@inline
def send_data(net, npus, qps, node, link, q, now):
    """Send the next packet of queue pair q, whose turn it is, and give the turn to the next."""
    row = q * QP_WORDS
    qp = qps.qp
    again = net.const[CONST_SELECTIVE] != 0 and has_lost(qps, q)
    if again:
        lost = ask_sender(net, TAKE_LOST, q, 0, 0, 0)
        seq = lost >> MESSAGE_BITS
        message = lost & ((1 << MESSAGE_BITS) - 1)
        tag = qps.msg[message * MSG_WORDS + MSG_TAG]
        end = qps.msg[message * MSG_WORDS + MSG_END]
    else:
        seq = qp[row + QP_NEXT]
        qp[row + QP_NEXT] = seq + 1
        message = qp[row + QP_MSG_CUR]
        tag = qp[row + QP_CUR_TAG]
        end = qp[row + QP_CUR_END]
    size = net.const[CONST_MTU]
    flag = 0
    fresh = seq >= qp[row + QP_SENT_MAX]
    if fresh:
        qp[row + QP_SENT_MAX] = seq + 1
    else:
        net.count[COUNT_RETRANSMITTED] += 1
    if seq + 1 == end:
        flag = FLAG_LAST
        m = message * MSG_WORDS
        size = qps.msg[m + MSG_BYTES] - (end - 1 - qps.msg[m + MSG_BEGIN]) * size
        if fresh:
            npus.port[link * PORT_WORDS + PORT_SENT_REF] = qps.msg[m + MSG_REF]
        if not again:
            take_message(qps, row, qps.msg[m + MSG_NEXT])
    size += net.const[CONST_HEADER]
    if seq == qp[row + QP_UNA]:
        arm_timer(net, npus, qps, node, row, now)
    due = True
    if net.const[CONST_CC_HOOK] != 0:
        due = call_hook(net.const[CONST_PACE], net.const[CONST_ADDRESS], link, q, now, seq, size, flag, 0) == 1
        if net.const[CONST_RTT] == 1 and flag & FLAG_LAST == 0:
            tag = now + 1
    if not may_send(net, qps, q):
        leave_turns(npus, qps, link, q)
    elif due:
        npus.port[link * PORT_WORDS + PORT_RING] = q
    else:
        leave_turns(npus, qps, link, q)
        qp[row + QP_ACTIVE] = HELD_BACK
        hold_back(npus, qps, link, q)
    net.count[COUNT_DATA_PACKETS] += 1
    net.count[COUNT_BYTES_SENT] += size
    w1 = qp[row + QP_W1] | (size << 40) | (flag << 56)
    return w1, qp[row + QP_W2] | (seq & PSN_MASK), tag


@inline
def take(net, head):
    """Words of the record at `head` of a queue."""
    p = head * RECORD_WORDS
    return net.record[p], net.record[p + 1], net.record[p + 2], net.record[p + 3]


@inline
def first_to_send(npus, qps, link):
    """The queue pair whose turn it is, -1 if none.

    One that has nothing left to send goes: it went back, and then an acknowledgement of all came after all.
    """
    p = link * PORT_WORDS
    last = npus.port[p + PORT_RING]
    while last >= 0:
        q = qps.qp[last * QP_WORDS + QP_RING_NEXT]
        row = q * QP_WORDS
        if qps.qp[row + QP_NEXT] < qps.qp[row + QP_END]:
            return q
        leave_turns(npus, qps, link, q)
        last = npus.port[p + PORT_RING]
    return last


@inline
def set_pace(net, npus, node, link, at):
    """Have the port tried at `at`, unless that is so before."""
    p = link * PORT_WORDS
    n = node * NPU_WORDS
    before = npus.port[p + PORT_PACE_AT]
    if at < before:
        npus.port[p + PORT_PACE_AT] = at
        slot = npus.npu[n + NPU_PORTS] + LANES + 1 + link - net.out_ptr[node]
        if before == INF:
            set_event(npus, node, at, slot)
        else:
            heap_hasten(npus.heap, npus.npu[n + NPU_HEAP_BASE], npus.npu[n + NPU_HEAP_SIZE], at, slot)


@inline
def someone_waits(net, npus, qps, node, link, busy):
    """Whether a queue pair may want the port by the time it falls idle; one that wants it later sets the pace."""
    p = link * PORT_WORDS
    if npus.port[p + PORT_RING] >= 0:
        return True
    if net.const[CONST_CC_HOOK] == 0 or npus.port[p + PORT_PACED] < 0:
        return False
    soonest = npus.port[p + PORT_PACED]
    at = qps.cc[soonest * CC_WORDS + CC_NEXT_SEND]
    if at > busy:
        set_pace(net, npus, node, link, at)
    return at <= busy


@inline
def transit_allowed(net, npus, link):
    """Whether a packet on its way through the NPU waits that no pause holds back."""
    p = link * PORT_WORDS
    if npus.port[p + PORT_TRANSIT_COUNT] == 0:
        return False
    if net.const[CONST_SWITCH_HOOK] == 0:
        return True
    w1 = net.record[npus.port[p + PORT_TRANSIT_HEAD] * RECORD_WORDS + 1]
    return net.gate[link * GATE_WORDS + GATE_PAUSED] & (1 << data_class(w1)) == 0


@inline
def transmit(net, npus, qps, node, link, now):
    """Send one packet if the port is idle and has one.

    While more is left, or someone waits for the last byte, an event brings the NPU back when the port is idle.
    """
    p = link * PORT_WORDS
    port = npus.port
    busy = net.tx[link * TX_WORDS + TX_BUSY]
    has_control = port[p + PORT_CTRL_COUNT] > 0
    has_transit = transit_allowed(net, npus, link)
    first = np.int64(-1)
    if net.const[CONST_NIC] == 0:
        first = first_to_send(npus, qps, link)
    elif busy > now or not has_control:
        first = call_hook(net.const[CONST_NIC], net.const[CONST_ADDRESS], node, link, now, 0, 0, 0, 0)
    if not has_control and not has_transit and first < 0:
        return
    if busy <= now:
        asked = now
        if has_control:
            control = port[p + PORT_CTRL_HEAD]
            carry(net, TAKE_UP, control)
            asked, w1, w2, w3 = take(net, control)
            port[p + PORT_CTRL_COUNT] -= 1
            port[p + PORT_CTRL_HEAD] = after(net, control)
        elif has_transit and (first < 0 or port[p + PORT_TURN] == 1):
            transit = port[p + PORT_TRANSIT_HEAD]
            carry(net, TAKE_UP, transit)
            asked, w1, w2, w3 = take(net, transit)
            port[p + PORT_TRANSIT_COUNT] -= 1
            port[p + PORT_TRANSIT_HEAD] = after(net, transit)
            port[p + PORT_TRANSIT_BYTES] -= wire_bytes(w1)
            port[p + PORT_TURN] = 0
        else:
            w1, w2, w3 = send_data(net, npus, qps, node, link, first, now)
            port[p + PORT_TURN] = 1
        link_send(net, link, asked, now, w1, w2, w3)
        busy = net.tx[link * TX_WORDS + TX_BUSY]
        if (
            port[p + PORT_SENT_REF] < 0
            and port[p + PORT_CTRL_COUNT] == 0
            and port[p + PORT_TRANSIT_COUNT] == 0
            and not someone_waits(net, npus, qps, node, link, busy)
        ):
            return
    port[p + PORT_SCHEDULED] = 1
    set_event(npus, node, busy, link - net.out_ptr[node])
