"""The reliable transport: queue pairs with a static window, cumulative acknowledgements and go-back-N.

A queue pair is one connection of two NPUs for one group (each NCCL communicator has its own, one for each channel); its
messages go in order. The receiver takes packets in sequence only, acknowledges each, and asks once per gap for the one
it misses. A sender that sees no progress for the timeout (doubled at each try) goes back too, so a lost tail is found
(InfiniBand volume 1, 9.7: PSN, ACK, NAK sequence error, retry).
"""

import numpy as np

from pdes.core.hashing import mix2, mix3
from pdes.core.hashmap import FREE, find
from pdes.core.jit import call_hook, inline, outline
from pdes.core.packet import (
    FLAG_ACK,
    FLAG_CLASS,
    FLAG_CNP,
    FLAG_LAST,
    FLAG_MARK,
    FLAG_NAK,
    FLAG_TRIMMED,
    HALF_PSN,
    P2P,
    PSN_MASK,
    SHARES_SHIFT,
    destination,
    flags,
    header,
    source,
    wire_bytes,
)
from pdes.core.state import (
    CC_ACK,
    CC_CNP,
    CC_LOSS,
    CONST_ACK,
    CONST_ADDRESS,
    CONST_CC_HOOK,
    CONST_CNP,
    CONST_DRIVEN,
    CONST_FAULT_HOOK,
    CONST_HEADER,
    CONST_MAX_RETRIES,
    CONST_MTU,
    CONST_P2P_CLASS,
    CONST_POST,
    CONST_RECORD_FLOWS,
    CONST_RTO,
    CONST_RTT,
    CONST_SEED,
    CONST_SELECTIVE,
    CONST_SELECTIVE_RX,
    CONST_TOLD,
    COUNT_ACK_PACKETS,
    COUNT_BYTES_RECEIVED,
    COUNT_BYTES_SENT,
    COUNT_CONSUMED_PACKETS,
    COUNT_DIGEST_A,
    COUNT_DIGEST_B,
    COUNT_FLOWS,
    COUNT_PAYLOAD_BYTES,
    COUNT_TIMEOUTS,
    CTL_CHECK,
    CTL_FAILED_QP,
    CTL_FLOWS_IN,
    CTL_FLOWS_OUT,
    CTL_QPS,
    CTL_RXQPS,
    FLOW_IN_WORDS,
    FLOW_OUT_WORDS,
    INF,
    LOSS_NAK,
    LOSS_TIMEOUT,
    LOSS_TRIMMED,
    MSG_BEGIN,
    MSG_BYTES,
    MSG_END,
    MSG_NEXT,
    MSG_REF,
    MSG_TAG,
    MSG_TOLD,
    MSG_WORDS,
    NPU_GLOBAL,
    NPU_LAST_RX,
    NPU_NOW,
    NPU_QP_HEAD,
    NPU_RTO_AT,
    NPU_WORDS,
    PORT_CTRL_COUNT,
    PORT_SCHEDULED,
    PORT_WORDS,
    QP_ACTIVE,
    QP_CONNECTION,
    QP_DEADLINE,
    QP_DST,
    QP_END,
    QP_HEAD_END,
    QP_MESSAGES,
    QP_MSG_CUR,
    QP_MSG_HEAD,
    QP_MSG_TAIL,
    QP_NEXT,
    QP_NPU,
    QP_PORT,
    QP_RETRIES,
    QP_SENT_MAX,
    QP_SHARES,
    QP_SIBLING,
    QP_UNA,
    QP_W1,
    QP_W2,
    QP_WORDS,
    RXQP_EXPECTED,
    RXQP_KEY,
    RXQP_MESSAGES,
    RXQP_NAK_SENT,
    RXQP_WORDS,
    SEL_HEAD,
    SEL_WORDS,
    TX_BUSY,
    TX_WORDS,
)
from pdes.core.world import world_at
from pdes.network.link import link_send, share_psb
from pdes.network.routing import npu_route
from pdes.nic.control import ECHO_BITS, ECHO_MASK, begin_control, round_trip, tell
from pdes.nic.message_pool import give_row_back, take_row
from pdes.nic.port import MAX_BACKOFF, activate, arm_timer, kick, queue_control, set_timer, take_message
from pdes.nic.selective import FORGET, LOSE_ALL, SELECTED, ask_sender


@inline
def queue_pair(net, npus, qps, node, dst, connection):
    """The NPU's queue pair to `dst` of a connection (pdes.core.packet.CONNECTION_SHIFT); made at its first use.

    The share of the line rate (SHARES_SHIFT) is the same at each use: workload.schedules refuses all else.
    """
    n = node * NPU_WORDS
    shares = connection >> SHARES_SHIFT
    connection &= (1 << SHARES_SHIFT) - 1
    src = npus.npu[n + NPU_GLOBAL]
    key = (src << 44) | (dst << 25) | connection
    at = find(qps.qp_key, key)
    if qps.qp_key[at] != FREE:
        return np.int64(qps.qp_val[at])
    q = net.ctl[CTL_QPS]
    net.ctl[CTL_QPS] = q + 1
    net.ctl[CTL_CHECK] = 1
    qps.qp_key[at] = key
    qps.qp_val[at] = q
    row = q * QP_WORDS
    for c in range(QP_WORDS):
        qps.qp[row + c] = 0
    qps.qp[row + QP_MSG_HEAD] = -1
    qps.qp[row + QP_MSG_TAIL] = -1
    qps.qp[row + QP_MSG_CUR] = -1
    qps.qp[row + QP_DEADLINE] = INF
    flag = 0
    if connection == P2P and net.const[CONST_P2P_CLASS] == 1:
        flag = FLAG_CLASS
    qps.qp[row + QP_W1] = header(dst, src, 0, flag)
    qps.qp[row + QP_W2] = (q << 24) | ((mix3(src + net.const[CONST_SEED], dst, connection) & 0x7FFF) << 48)
    qps.qp[row + QP_PORT] = npu_route(net, node, dst, qps.qp[row + QP_W2])
    qps.qp[row + QP_NPU] = node
    qps.qp[row + QP_DST] = dst
    qps.qp[row + QP_CONNECTION] = connection
    qps.qp[row + QP_SHARES] = shares
    qps.qp[row + QP_SIBLING] = npus.npu[n + NPU_QP_HEAD]
    npus.npu[n + NPU_QP_HEAD] = q
    psb = share_psb(net, qps.qp[row + QP_PORT], qps.qp[row + QP_W1], shares)
    begin_control(net, qps, q, psb, shares, npus.npu[n + NPU_NOW])
    return q


@inline
def find_port(net, qps, node, row):
    """Where routes may have changed: the port that the queue pair at `row`, which is in no port's list, now takes."""
    if net.const[CONST_FAULT_HOOK] != 0 and qps.qp[row + QP_ACTIVE] == 0:
        qps.qp[row + QP_PORT] = npu_route(net, node, qps.qp[row + QP_DST], qps.qp[row + QP_W2])


@outline
def post(address, node, dst, connection, tag, size, ref, now):
    """Post a message of `size` bytes; `ref` is told when its last byte has left (MSG_REF)."""
    w = world_at(address)
    const = w.net.const
    if const[CONST_POST] != 0:
        call_hook(const[CONST_POST], const[CONST_ADDRESS], node, dst, connection, tag, size, ref, now)
    else:
        q = queue_pair(w.net, w.npus, w.qps, node, dst, connection)
        line_up(w.net, w.npus, w.qps, node, q, tag, size, ref, now)
        count_posted(w.net, w.npus, w.qps, node, q, tag, size, now)


@inline
def line_up(net, npus, qps, node, q, tag, size, ref, now):
    """Have a queue pair send a message after those that it has; its row. Arguments are as of `post`."""
    row = q * QP_WORDS
    if qps.qp[row + QP_UNA] == qps.qp[row + QP_END]:
        find_port(net, qps, node, row)
    message = take_row(net, qps)
    m = message * MSG_WORDS
    mtu = net.const[CONST_MTU]
    begin = qps.qp[row + QP_END]
    qps.msg[m + MSG_BYTES] = size
    qps.msg[m + MSG_TAG] = tag
    qps.msg[m + MSG_BEGIN] = begin
    qps.msg[m + MSG_END] = begin + max(1, (size + mtu - 1) // mtu)
    qps.msg[m + MSG_NEXT] = -1
    qps.msg[m + MSG_REF] = ref
    qps.qp[row + QP_END] = qps.msg[m + MSG_END]
    if qps.qp[row + QP_MSG_HEAD] < 0:
        qps.qp[row + QP_MSG_HEAD] = message
        qps.qp[row + QP_HEAD_END] = qps.qp[row + QP_END]
    else:
        qps.msg[qps.qp[row + QP_MSG_TAIL] * MSG_WORDS + MSG_NEXT] = message
    qps.qp[row + QP_MSG_TAIL] = message
    if qps.qp[row + QP_MSG_CUR] < 0:
        take_message(qps, row, message)
        if net.const[CONST_DRIVEN] != 0:
            call_hook(net.const[CONST_DRIVEN], net.const[CONST_ADDRESS], q, now, 0, 0, 0, 0, 0)
    activate(net, npus, qps, node, q)
    return message


@inline
def count_posted(net, npus, qps, node, q, tag, size, now):
    """Count a message that is posted to a queue pair, and note it."""
    row = q * QP_WORDS
    if net.const[CONST_RECORD_FLOWS] == 1:
        out = net.ctl[CTL_FLOWS_OUT]
        net.ctl[CTL_FLOWS_OUT] = out + 1
        out *= FLOW_OUT_WORDS
        qps.flow_out[out] = npus.npu[node * NPU_WORDS + NPU_GLOBAL] | (qps.qp[row + QP_DST] << 20)
        qps.flow_out[out + 1] = tag
        qps.flow_out[out + 2] = size
        qps.flow_out[out + 3] = now
        qps.flow_out[out + 4] = qps.qp[row + QP_MESSAGES]
    qps.qp[row + QP_MESSAGES] += 1


@inline
def send_ack(net, npus, node, now, w1, w2, a3, expected, flag):
    """Answer a data packet: acknowledge all before `expected`, echoing when it was sent (a3)."""
    me = destination(w1)
    peer = source(w1)
    a1 = header(peer, me, net.const[CONST_ACK], flag)
    a2 = (w2 & ~PSN_MASK) | (expected & PSN_MASK)
    link = npu_route(net, node, peer, a2)
    p = link * PORT_WORDS
    net.count[COUNT_ACK_PACKETS] += 1
    net.count[COUNT_BYTES_SENT] += net.const[CONST_ACK]
    idle = npus.port[p + PORT_SCHEDULED] == 0 and net.tx[link * TX_WORDS + TX_BUSY] <= now
    if idle and npus.port[p + PORT_CTRL_COUNT] == 0:
        link_send(net, link, now, now, a1, a2, a3)
    else:
        queue_control(net, npus, link, now, a1, a2, a3)
        kick(npus, node, link)


@inline
def receiving_pair(net, npus, qps, node, key):
    """The receiving queue pair of the key; made at its first packet. That of the NPU's last packet is tried first."""
    n = node * NPU_WORDS
    last = npus.npu[n + NPU_LAST_RX]
    if last >= 0 and qps.rxqp[last * RXQP_WORDS + RXQP_KEY] == key:
        return last
    at = find(qps.rx_key, key)
    if qps.rx_key[at] == FREE:
        new = net.ctl[CTL_RXQPS]
        net.ctl[CTL_RXQPS] = new + 1
        net.ctl[CTL_CHECK] = 1
        qps.rx_key[at] = key
        qps.rx_val[at] = new
        for c in range(RXQP_WORDS):
            qps.rxqp[new * RXQP_WORDS + c] = 0
        if net.const[CONST_SELECTIVE] != 0:
            qps.sel_rx[new * SEL_WORDS + SEL_HEAD] = -1
        qps.rxqp[new * RXQP_WORDS + RXQP_KEY] = key
    npus.npu[n + NPU_LAST_RX] = qps.rx_val[at]
    return qps.rx_val[at]


@inline
def echo_of(net, w1, w3):
    """When a data packet says that it was sent; 0 if it does not."""
    if net.const[CONST_RTT] == 1 and flags(w1) & (FLAG_LAST | FLAG_TRIMMED) == 0:
        return w3
    return np.int64(0)


@inline
def on_data(net, npus, qps, node, now, w1, w2, w3):
    """Take a data packet; True if it completes a message."""
    net.count[COUNT_CONSUMED_PACKETS] += 1
    net.count[COUNT_BYTES_RECEIVED] += wire_bytes(w1)
    key = (destination(w1) << 44) | (source(w1) << 24) | ((w2 >> 24) & PSN_MASK)
    rx = receiving_pair(net, npus, qps, node, key)
    row = rx * RXQP_WORDS
    expected = qps.rxqp[row + RXQP_EXPECTED]
    ahead = (w2 - expected) & PSN_MASK
    complete = False
    flag = FLAG_ACK
    answer = True
    if flags(w1) & FLAG_MARK != 0:
        if net.const[CONST_CNP] != 0:
            call_hook(net.const[CONST_CNP], net.const[CONST_ADDRESS], node, now, w1, w2, row, 0, 0)
        else:
            flag |= FLAG_MARK
    if net.const[CONST_SELECTIVE] != 0:
        call_hook(net.const[CONST_SELECTIVE_RX], net.const[CONST_ADDRESS], node, now, w1, w2, w3, rx, flag)
        return False
    if ahead == 0 and flags(w1) & FLAG_TRIMMED == 0:
        expected += 1
        qps.rxqp[row + RXQP_EXPECTED] = expected
        qps.rxqp[row + RXQP_NAK_SENT] &= ~1
        net.count[COUNT_PAYLOAD_BYTES] += wire_bytes(w1) - net.const[CONST_HEADER]
        complete = flags(w1) & FLAG_LAST != 0
    elif ahead < HALF_PSN:
        answer = qps.rxqp[row + RXQP_NAK_SENT] & 1 == 0 or ahead == 0
        flag |= flags(w1) & FLAG_TRIMMED
        qps.rxqp[row + RXQP_NAK_SENT] |= 1
        flag |= FLAG_NAK
    if answer:
        send_ack(net, npus, node, now, w1, w2, echo_of(net, w1, w3), expected, flag)
    if complete:
        ordinal = qps.rxqp[row + RXQP_MESSAGES]
        qps.rxqp[row + RXQP_MESSAGES] = ordinal + 1
        finish_flow(net, qps, w1, w3, ordinal, now)
    return complete


@inline
def payload_bytes(net, qps, rx, end, w1):
    """Payload of the message of a receiving queue pair that ends before number `end`; w1: of its last packet."""
    full = end - 1 - qps.begun[rx]
    qps.begun[rx] = end
    return full * net.const[CONST_MTU] + wire_bytes(w1) - net.const[CONST_HEADER]


@inline
def finish_flow(net, qps, w1, tag, ordinal, now):
    """A message is complete at its receiver."""
    pair = source(w1) | (destination(w1) << 20)
    h = mix3(pair, tag, ordinal)
    net.count[COUNT_FLOWS] += 1
    net.count[COUNT_DIGEST_A] += mix2(h, now)
    net.count[COUNT_DIGEST_B] += mix2(now * 3 + 1, h)
    if net.const[CONST_RECORD_FLOWS] == 1:
        out = net.ctl[CTL_FLOWS_IN]
        net.ctl[CTL_FLOWS_IN] = out + 1
        net.ctl[CTL_CHECK] = 1
        out *= FLOW_IN_WORDS
        qps.flow_in[out] = pair
        qps.flow_in[out + 1] = tag
        qps.flow_in[out + 2] = ordinal
        qps.flow_in[out + 3] = now


@inline
def go_back(qps, row):
    """Send again from the first packet that is not acknowledged; whether there was anything to go back from."""
    goes = qps.qp[row + QP_NEXT] != qps.qp[row + QP_UNA]
    if qps.qp[row + QP_NEXT] != qps.qp[row + QP_UNA]:
        qps.qp[row + QP_NEXT] = qps.qp[row + QP_UNA]
        take_message(qps, row, qps.qp[row + QP_MSG_HEAD])
    return goes


@inline
def free_acknowledged(net, qps, node, row, now):
    """Give back the messages that are wholly acknowledged."""
    una = qps.qp[row + QP_UNA]
    message = qps.qp[row + QP_MSG_HEAD]
    while message >= 0 and qps.msg[message * MSG_WORDS + MSG_END] <= una:
        following = qps.msg[message * MSG_WORDS + MSG_NEXT]
        told = qps.msg[message * MSG_WORDS + MSG_TOLD]
        give_row_back(net, qps, message)
        if net.const[CONST_TOLD] != 0 and told >= 0:
            call_hook(net.const[CONST_TOLD], net.const[CONST_ADDRESS], node, told, now, 0, 0, 0, 0)
        message = following
    qps.qp[row + QP_MSG_HEAD] = message
    if message >= 0:
        qps.qp[row + QP_HEAD_END] = qps.msg[message * MSG_WORDS + MSG_END]


@inline
def on_ack(net, npus, qps, node, now, w1, w2, w3):
    """Take an acknowledgement: open the window, or go back on a sequence error."""
    net.count[COUNT_CONSUMED_PACKETS] += 1
    net.count[COUNT_BYTES_RECEIVED] += wire_bytes(w1)
    q = (w2 >> 24) & PSN_MASK
    row = q * QP_WORDS
    if flags(w1) & FLAG_CNP != 0:
        tell(net, q, CC_CNP, now, 0, 0, 0)
        return
    una = qps.qp[row + QP_UNA]
    begin = una
    named = una + ((w2 - una) & PSN_MASK) - 1
    if net.const[CONST_SELECTIVE] != 0:
        distance = ((w3 >> ECHO_BITS) - una) & PSN_MASK
        if distance >= HALF_PSN:
            distance -= PSN_MASK + 1
        named = una + distance
    ahead = (w2 - una) & PSN_MASK
    if ahead > 0 and ahead < HALF_PSN and una + ahead <= qps.qp[row + QP_SENT_MAX]:
        if net.const[CONST_SELECTIVE] != 0:
            ask_sender(net, FORGET, q, una, una + ahead, 0)
        una += ahead
        qps.qp[row + QP_UNA] = una
        qps.qp[row + QP_RETRIES] = 0
        if qps.qp[row + QP_HEAD_END] <= una:
            free_acknowledged(net, qps, node, row, now)
        if qps.qp[row + QP_NEXT] < una:
            qps.qp[row + QP_NEXT] = una
            take_message(qps, row, qps.qp[row + QP_MSG_HEAD])
        arm_timer(net, npus, qps, node, row, now)
    if net.const[CONST_CC_HOOK] != 0:
        rtt = np.int64(-1)
        if net.const[CONST_RTT] == 1:
            answered = named
            if flags(w1) & FLAG_NAK != 0 or (una == begin and net.const[CONST_SELECTIVE] == 0):
                answered = np.int64(-2)
            rtt = round_trip(qps, q, now, answered, w3 & ECHO_MASK)
        tell(net, q, CC_ACK, now, una - begin, np.int64(flags(w1) & FLAG_MARK != 0), rtt)
    if net.const[CONST_SELECTIVE] != 0:
        trimmed = np.int64(flags(w1) & FLAG_NAK != 0)
        known = named >= una and named < qps.qp[row + QP_SENT_MAX]
        if known and ask_sender(net, SELECTED, q, named, 0, trimmed) == 1:
            loss = LOSS_NAK
            if trimmed == 1:
                loss = LOSS_TRIMMED
            tell(net, q, CC_LOSS, now, loss, 0, 0)
    elif flags(w1) & FLAG_NAK != 0 and (w2 - una) & PSN_MASK == 0:
        loss = LOSS_NAK
        if flags(w1) & FLAG_TRIMMED != 0:
            loss = LOSS_TRIMMED
        if go_back(qps, row):
            tell(net, q, CC_LOSS, now, loss, 0, 0)
    activate(net, npus, qps, node, q)


@outline
def on_timeout(address, node, now):
    """The NPU's retransmission timer: its queue pairs without progress go back."""
    w = world_at(address)
    net, npus, qps = w.net, w.npus, w.qps
    soonest = INF
    n = node * NPU_WORDS
    q = npus.npu[n + NPU_QP_HEAD]
    npus.npu[n + NPU_RTO_AT] = INF
    while q >= 0:
        row = q * QP_WORDS
        if qps.qp[row + QP_UNA] < qps.qp[row + QP_NEXT]:
            if qps.qp[row + QP_DEADLINE] <= now:
                net.count[COUNT_TIMEOUTS] += 1
                qps.qp[row + QP_RETRIES] += 1
                if qps.qp[row + QP_RETRIES] > net.const[CONST_MAX_RETRIES]:
                    net.ctl[CTL_FAILED_QP] = q
                if net.const[CONST_SELECTIVE] != 0:
                    ask_sender(net, LOSE_ALL, q, 0, 0, 0)
                    qps.qp[row + QP_DEADLINE] = now + (
                        net.const[CONST_RTO] << min(qps.qp[row + QP_RETRIES], MAX_BACKOFF)
                    )
                    soonest = min(soonest, qps.qp[row + QP_DEADLINE])
                else:
                    go_back(qps, row)
                tell(net, q, CC_LOSS, now, LOSS_TIMEOUT, 0, 0)
                find_port(net, qps, node, row)
                activate(net, npus, qps, node, q)
            else:
                soonest = min(soonest, qps.qp[row + QP_DEADLINE])
        q = qps.qp[row + QP_SIBLING]
    if soonest < INF:
        set_timer(npus, node, soonest)
