"""Receiver-credited congestion control (RCCC): a receiver paces what its senders may send, at the rate of its link.

Ultra Ethernet's RCCC as uet-htsim (40ccb05, htsim/sim/uec.cpp) has it, which follows EQDS (Olteanu et al., NSDI 2022).
A sender may send while it has any credit, and spends the bytes of each packet. It begins with as much as the largest
window, on speculation, which ends with the first answer. Each data packet asks for what the sender still needs. The
receiver's pacer grants credit to the queue pairs that ask, in turns of four packets; then to those that asked before,
up to a largest window beyond what they asked for. It combines with any congestion control of the sender: a packet then
needs both credit and room in the window.

The oversubscribed control (oversubscribed_cc.cpp) slows the pacer down where the core of the network, not the
receiver's link, is the bottleneck: by trims that were not at the last hop, and by marks.

Credits are in quanta, counted from the queue pair's beginning, so that a lost grant is made good by the next. A queue
pair that has been idle for a pause begins anew, with its speculation; so does a pacer's rate. What differs from htsim:
the last packet of a message, which carries its tag, does not ask.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.algorithms import FREE, find_row, mix3
from nadi.pdes.core.jit import hook, inline, outline
from nadi.pdes.network.link import full_packet_bytes
from nadi.pdes.nic.control import ECHO_BITS
from nadi.pdes.nic.port import activate, arm_timer, set_event
from nadi.pdes.nic.transport import is_inside, port_back, receiving_pair, send_control

QUANTUM_BYTES = 256  # unit of credit (UEC_PULL_QUANTUM)
TARGET_MASK = (1 << 24) - 1  # bits of the credit that a data packet asks for, in quanta, above its send time
HALF_TARGET = 1 << 23
PACKETS_PER_PULL = 4  # packets of credit per grant (UecSink::_mtus_per_pull)
EMPTY_PULL_QUANTA = 4  # quanta for whose time the pacer waits after a grant of nothing (UecPullPacer::doNextEvent)
PULL_RATE = 0.99  # share of the line rate at which credit is granted (main_uec.cpp)
MAX_WINDOW_BDPS = 1.5  # largest credit in rate x base round trip (UecSrc::initRccc)
MAX_ACTIVE = 64  # queue pairs of a NIC that are counted, as a count takes time
NEVER_SHORT_BYTES = 1 << 60  # credit of a queue pair within an NVLink domain, which needs none
ACTIVE, IDLE = 1, 2  # lists in which a receiving queue pair is, as bits

# of the oversubscribed control (oversubscribed_cc.cpp)
TARGET_CONGESTION = 0.3  # average share of marked packets above which the rate falls (_target_congestion)
ADDITIVE_INCREASE = 0.01  # share of the line rate by which it rises, doubled each time without a mark (_Ai)
DECREASE = 0.5  # factor of the excess of marks (_Md)
AVERAGE_WEIGHT = 0.5  # weight of an interval in the average share of marked packets (_alpha)
INTERVAL_RTTS = 1.5  # interval in base round trips, times 0.75 to 1.25 at random (nextInterval)
MAX_DOUBLINGS = 7  # 2^7 steps of 0.01 exceed the line rate


@inline
def pause_ps(net):
    """Return the time in ps without packets after which a queue pair or pacer begins anew.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    # two round trips: what was granted before has arrived by then
    return max(2 * net.const.base_rtt_ps, net.const.tie_pause_ps)


@inline
def begin(net, qps, pair, now_ps):
    """Give an idle queue pair its speculative credit, unless it has been idle for less than a pause.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
    """
    own = qps.credit_tx[pair]
    if now_ps >= own.fresh_ps:
        inside = is_inside(net, qps, pair)
        own.credit_bytes = NEVER_SHORT_BYTES if inside else net.const.credit_window_bytes
        own.speculates = not inside
        own.awaited_quanta = 0


@inline
def others_active(npus, qps, pair):
    """Return how many other queue pairs take turns at the port of a queue pair, at most MAX_ACTIVE.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    last = np.int64(npus.port[qps.qp[pair].port].ring)
    others = np.int64(0)
    at = last
    while at >= 0 and others < MAX_ACTIVE:
        others += at != pair
        at = np.int64(qps.qp[at].ring_next)
        if at == last:
            break
    return others


@inline
def ask(net, npus, qps, pair):
    """Note that a queue pair asks for what it needs; return the credit up to which, from its beginning, modulo 2^24.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    qp, own = qps.qp[pair], qps.credit_tx[pair]
    full = full_packet_bytes(net)
    new = qp.end_seq - qp.next_seq
    need = (new + qps.sel_tx[pair].lost_packets) * full
    # no more than the sender's own window lets it use
    if net.const.window_fixed == 0:
        need = min(need, (qps.cc[pair].window_packets + 1) * full)
    need = min(need, net.const.credit_window_bytes) - own.credit_bytes
    # a short message asks at least for a packet, whatever it has on speculation
    if own.speculates == 1 and new > 0:
        need = max(need, full)
    # what its NIC can send is for all that want to (computePullTarget, where _active_srcs lacks the one that sends now)
    if need > 0:
        need //= max(others_active(npus, qps, pair), 1)
    # below 0 if it has more than it needs
    need_quanta = (need + QUANTUM_BYTES - 1) // QUANTUM_BYTES
    own.awaited_quanta = max(need_quanta, 0)
    return (own.granted_quanta + need_quanta) & TARGET_MASK


@outline
def request(net, npus, qps, node, pair, now_ps, after_timeout):
    """Send a request to the receiver of a queue pair that can send nothing and awaits no credit, or after a timeout.

    Short messages need it: the last packet of each does not ask, and its acknowledgement ends the speculation, so the
    next message may find neither credit nor a packet that asks for it.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
        after_timeout: Whether to ask again for what it has asked for already.
    """
    qp, own = qps.qp[pair], qps.credit_tx[pair]
    if own.credit_bytes > 0 or (own.awaited_quanta > 0 and not after_timeout):
        return
    if qp.next_seq == qp.end_seq and qps.sel_tx[pair].lost_packets == 0:
        return
    flag_bits = packet.FLAG_ACK | packet.FLAG_CNP | packet.FLAG_NAK
    net.count.credit_packets += 1
    w1 = packet.header(packet.destination(qp.w1), packet.source(qp.w1), net.const.ack_bytes, flag_bits)
    send_control(net, npus, node, np.int64(qp.port), now_ps, w1, qp.w2, ask(net, npus, qps, pair))
    # the timer watches the request where nothing else is under way
    if qp.una == qp.next_seq:
        arm_timer(net, npus, qps, node, pair, now_ps)


@inline
def stop_speculating(qps, pair):
    """Take what is left of a queue pair's speculative credit, as the receiver has answered.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    own = qps.credit_tx[pair]
    if own.speculates == 1:
        own.speculates = 0
        own.credit_bytes = min(own.credit_bytes, 0)


@inline
def append(qps, pacer, key, which):
    """Append a receiving queue pair to a list of its NPU's pacer.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pacer: Pacer of the NPU (row of `CreditPacer`).
        key: Key of the receiving queue pair.
        which: ACTIVE or IDLE.
    """
    # lists are linked by keys, as rows of the map of receivers move when it grows
    at = which - 1
    row = find_row(qps.rxqp, key)
    qps.credit_rx[row].listed |= which
    qps.credit_rx[row].following[at] = FREE
    if pacer.head[at] == FREE:
        pacer.head[at] = key
    else:
        qps.credit_rx[find_row(qps.rxqp, pacer.tail[at])].following[at] = key
    pacer.tail[at] = key


@inline
def take_first(qps, pacer, which):
    """Remove the first receiving queue pair of a list of a pacer and return its row.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pacer: Pacer of the NPU (row of `CreditPacer`).
        which: ACTIVE or IDLE.
    """
    at = which - 1
    row = find_row(qps.rxqp, pacer.head[at])
    pacer.head[at] = qps.credit_rx[row].following[at]
    qps.credit_rx[row].listed &= ~which
    return row


@inline
def schedule(npus, node, time_ps):
    """Set the event of an NPU's pacer, if none is set.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        time_ps: Time in ps.
    """
    pacer = npus.pacer[node]
    if pacer.is_set == 0:
        pacer.is_set = 1
        # the last slot of an NPU's heap (pdes/npu/agenda.py)
        set_event(npus, node, time_ps, 2 * npus.npu[node].ports + state.LANES + 4)


@inline
def want(net, npus, qps, node, row, now_ps, is_trimmed, asks_quanta):
    """Note what a sender asks for, and let the pacer serve it.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        row: Row of the receiving queue pair in `qps.rxqp`.
        now_ps: Current time in ps.
        is_trimmed: Whether its packet must be sent again, which needs credit whatever it asks for.
        asks_quanta: Credit up to which it asks, modulo 2^24; -1 = it does not say.
    """
    own = qps.credit_rx[row]
    # one in a list may wait long for its turn among many
    if now_ps >= own.fresh_ps and own.listed == 0:
        own.owed_quanta = max(own.owed_quanta, 0)
    own.fresh_ps = now_ps + pause_ps(net)
    asks_more = False
    if asks_quanta >= 0:
        ahead = (asks_quanta - own.granted_quanta) & TARGET_MASK
        # below 0 if more was granted unasked than it asks for; it may still ask for more than before
        ahead -= (TARGET_MASK + 1) * (ahead >= HALF_TARGET)
        if ahead > own.owed_quanta:
            own.owed_quanta = ahead
            asks_more = True
    if (asks_more or is_trimmed) and own.listed & ACTIVE == 0:
        append(qps, npus.pacer[node], qps.rxqp[row].key, ACTIVE)
        schedule(npus, node, max(now_ps, npus.pacer[node].next_ps))


@inline
def oversubscribed(net, npus, node, now_ps, word1):
    """Count an arrival, and once per interval adapt the rate of an NPU's pacer to trims and marks.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
        word1: Word 1 of the data packet (pdes/core/packet.py).
    """
    own = npus.pacer[node]
    if now_ps >= own.fresh_ps:
        own.cut = own.average = 0.0
        own.increases = own.packets = own.marked = own.trimmed = own.trimmed_last = own.draws = own.until_ps = 0
    own.fresh_ps = now_ps + pause_ps(net)
    if now_ps >= own.until_ps:
        if own.packets > 0:
            whole = own.packets - own.trimmed - own.trimmed_last
            share = own.marked / whole if whole > 0 else 0.0
            rate = 1.0 - own.cut - own.trimmed / own.packets
            own.average = (1.0 - AVERAGE_WEIGHT) * own.average + AVERAGE_WEIGHT * share
            has_excess = own.average > TARGET_CONGESTION
            if has_excess:
                rate *= 1.0 - (own.average - TARGET_CONGESTION) * DECREASE
            if own.trimmed > 0 or has_excess:
                own.increases = 0
            else:
                doublings = own.increases if own.marked == 0 else np.int64(0)
                rate += ADDITIVE_INCREASE * (1 << min(doublings, MAX_DOUBLINGS))
                own.increases += 1
            own.cut = 1.0 - min(max(rate, net.const.min_pull_rate), 1.0)
        own.packets = own.marked = own.trimmed = own.trimmed_last = 0
        # 0.75 to 1.25 times, so that receivers do not act in step
        h = mix3(net.const.seed + 0xCCC, npus.npu[node].number, own.draws)
        own.draws += 1
        own.until_ps = now_ps + np.int64(INTERVAL_RTTS * net.const.base_rtt_ps * (0.75 + 0.5 * h / 2.0**32))
    own.packets += 1
    flag_bits = packet.flags(word1)
    if flag_bits & packet.FLAG_TRIMMED == 0:
        own.marked += np.int64(flag_bits & packet.FLAG_MARK != 0)
    elif flag_bits & packet.FLAG_LAST_HOP != 0:
        own.trimmed_last += 1
    else:
        own.trimmed += 1


@outline
def pace(world_address, node, now_ps):
    """Let an NPU's pacer grant credit to the queue pair whose turn it is.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    pacer = npus.pacer[node]
    pacer.is_set = 0
    per_pull = PACKETS_PER_PULL * net.const.mtu_bytes // QUANTUM_BYTES
    which = np.int64(ACTIVE if pacer.head[ACTIVE - 1] != FREE else IDLE)
    row = take_first(qps, pacer, which)
    key, own = qps.rxqp[row].key, qps.credit_rx[row]
    grant = per_pull if which == IDLE else min(per_pull, max(own.owed_quanta, 0))
    own.granted_quanta += grant
    own.owed_quanta -= grant
    own.fresh_ps = now_ps + pause_ps(net)
    if which == ACTIVE and own.owed_quanta > 0:
        append(qps, pacer, key, np.int64(ACTIVE))
    # one that asked gets a turn among the idle, even for a trimmed packet whose sender has not asked again yet
    elif own.listed & IDLE == 0 and (
        which == ACTIVE or -own.owed_quanta * QUANTUM_BYTES < net.const.credit_window_bytes
    ):
        append(qps, pacer, key, np.int64(IDLE))
    peer = packet.destination(own.w1)
    net.count.credit_packets += 1
    send_control(
        net,
        npus,
        node,
        port_back(net, npus, qps, node, row, peer, own.w2),
        now_ps,
        packet.filled_in(own.w1, net.const.ack_bytes, 0),
        own.w2,
        own.granted_quanta,
    )
    quanta = grant if grant > 0 else EMPTY_PULL_QUANTA
    pacer.next_ps = now_ps + np.int64(pacer.ps_per_quantum * quanta / (1.0 - pacer.cut) + 0.5)
    if pacer.head[0] != FREE or pacer.head[1] != FREE:
        schedule(npus, node, pacer.next_ps)


@hook
def manage(world_address, operation, node, row, now_ps, word1, word2, word3):
    """Carry out an operation of credits, and return its result or 0.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: CREDIT_BEGIN: a queue pair that was idle gets a message. CREDIT_SPEND: a queue pair sends `word1`
            bytes; returns what its packet asks for, above the send time. CREDIT_HEAR: a queue pair has an answer.
            CREDIT_CONTROL: a grant or request has come. CREDIT_RECEIVE: data has come. CREDIT_PACE: the pacer's time
            has come. CREDIT_REQUEST: a queue pair cannot send, and may have to ask; word1 is 1 after a timeout.
        node: Number of the NPU in the LP.
        row: Row of the queue pair in `qps.qp`, or with CREDIT_RECEIVE in `qps.rxqp`.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py), or with CREDIT_SPEND its size in bytes.
        word2: Word 2 of the packet, or with CREDIT_SPEND 1 for the last one of a message, which does not ask.
        word3: Word 3 of the packet.
    """
    world = state.world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    if operation == state.CREDIT_BEGIN:
        begin(net, qps, row, now_ps)
    elif operation == state.CREDIT_SPEND:
        qps.credit_tx[row].credit_bytes -= word1
        qps.credit_tx[row].fresh_ps = now_ps + pause_ps(net)
        return np.int64(0) if word2 == 1 else np.int64(ask(net, npus, qps, row) << ECHO_BITS)
    elif operation == state.CREDIT_HEAR:
        stop_speculating(qps, row)
        # also for one that takes turns at its port, which will find no credit when its turn comes
        request(net, npus, qps, node, row, now_ps, False)
    elif operation == state.CREDIT_RECEIVE:
        own = qps.credit_rx[row]
        back = packet.FLAG_ACK | packet.FLAG_CNP | packet.FLAG_LAST
        own.w1 = packet.header(packet.source(word1), packet.destination(word1), 0, back)
        own.w2 = word2 & ~packet.PSN_MASK
        flag_bits = packet.flags(word1)
        asks = np.int64(-1) if flag_bits & packet.FLAG_LAST != 0 else (word3 >> ECHO_BITS) & TARGET_MASK
        if net.const.min_pull_rate < 1.0:
            oversubscribed(net, npus, node, now_ps, word1)
        want(net, npus, qps, node, row, now_ps, flag_bits & packet.FLAG_TRIMMED != 0, asks)
    elif operation == state.CREDIT_PACE:
        pace(world_address, node, now_ps)
    elif operation == state.CREDIT_REQUEST:
        request(net, npus, qps, node, row, now_ps, word1 == 1)
    elif packet.flags(word1) & packet.FLAG_NAK != 0:
        at = receiving_pair(net, npus, qps, node, packet.receiver_key(word1, word2))
        want(net, npus, qps, node, at, now_ps, True, word3)
    else:
        own = qps.credit_tx[row]
        stop_speculating(qps, row)
        if word3 > own.granted_quanta:
            more = (word3 - own.granted_quanta) * QUANTUM_BYTES
            own.credit_bytes = min(own.credit_bytes + more, net.const.credit_window_bytes)
            own.awaited_quanta = max(own.awaited_quanta - (word3 - own.granted_quanta), 0)
            own.granted_quanta = word3
        activate(net, npus, qps, node, row)
    return np.int64(0)
