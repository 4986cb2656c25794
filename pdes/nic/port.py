"""An NPU's port: acknowledgements first, then transit packets and the queue pairs in rotation, and those that wait."""

import numpy as np

from nadi.pdes.core import algorithms, state
from nadi.pdes.core.jit import call_hook, inline, outline
from nadi.pdes.core.packet import FLAG_LAST, SHARE_UNITS, data_class, filled_in, numbered, wire_bytes
from nadi.pdes.nic.control import echo_at, request_credit
from nadi.pdes.nic.paths import path_to_probe, probe_words, with_path
from nadi.pdes.nic.selective import MESSAGE_BITS, TAKE_LOST, ask_sender, has_lost, in_flight, note_sent
from nadi.pdes.nic.several_ports import paused_classes, port_busy_ps, send_from_port

# Queue pairs that pacing holds back: a pairing heap per port, the earliest on top (Fredman et al., 1986).
#
# The heap's links are in the queue pairs' own rows, so a port has room for any number. Equal times are ordered by the
# number of the queue pair, which is the order of creation in the NPU.


@inline
def before(qps, pair, other):
    """Return whether a queue pair may send before another.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        other: Row of another queue pair.
    """
    at = qps.cc[pair].next_send_ps
    bt = qps.cc[other].next_send_ps
    return at < bt or (at == bt and pair < other)


@inline
def join(qps, heap, other):
    """Merge two pairing heaps, given by the queue pairs at their tops, and return the new top.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        heap: Queue pair at the top of one heap.
        other: Queue pair at the top of the other heap.
    """
    # A pairing heap: each node's children are a list linked by `sibling`, the newest first. To join is to make one top
    # a child of the other, in constant time; only taking the earliest, in O(log n) amortised, orders anything.
    top, under = (other, heap) if before(qps, other, heap) else (heap, other)
    qps.cc[under].sibling = qps.cc[top].child
    qps.cc[top].child = under
    return top


@inline
def hold_back(npus, qps, link, pair):
    """Add a queue pair to the port's heap of those that wait until their next_send_ps.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        link: Outgoing link of the port.
        pair: Row of the queue pair in `qps.qp`.
    """
    cc = qps.cc[pair]
    port = npus.port[link]
    # a queue pair is in this heap or in the port's rotation, never in both: `active` says which
    cc.child = cc.sibling = -1
    port.paced = pair if port.paced < 0 else join(qps, np.int64(port.paced), np.int64(pair))


@outline
def take_soonest(npus, qps, link):
    """Remove the queue pair that may send first from the port's heap, and return it: merge its children in pairs.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        link: Outgoing link of the port.
    """
    pair = np.int64(npus.port[link].paced)
    rest = qps.cc[pair].child
    pairs = np.int64(-1)
    # two passes over the children of a pairing heap: merge pairs, then the results, the last pair first
    while rest >= 0:
        first = rest
        second = qps.cc[first].sibling
        rest = np.int64(-1)
        top = first
        if second >= 0:
            rest = qps.cc[second].sibling
            top = join(qps, first, second)
        qps.cc[top].sibling = pairs
        pairs = top
    top = np.int64(-1)
    while pairs >= 0:
        following = qps.cc[pairs].sibling
        top = pairs if top < 0 else join(qps, top, pairs)
        pairs = following
    if top >= 0:
        qps.cc[top].sibling = -1
    npus.port[link].paced = top
    return pair


NOT_WOKEN = -2  # word `wake_next` of a port that is not in the NPU's list of ports to try
TAKES_TURNS, HELD_BACK = 1, 2
MAX_BACKOFF = 6  # maximum number of times that the timeout is doubled


@inline
def set_event(npus, node, time_ps, slot):
    """Add an event of NPU `node` of `npus` at time_ps; slot: number of the port, lane or timer to which it belongs."""
    npu = npus.npu[node]
    size = npu.heap_size
    algorithms.heap_push(npus.heap, npu.heap, size, time_ps, slot)
    npu.heap_size = size + 1


@inline
def wake_port(npus, node, link):
    """Mark the port of `link` of `npus` to be tried once NPU `node` has done everything else at this time."""
    npu = npus.npu[node]
    port = npus.port[link]
    # an event is set for when the port falls idle, and tries it: a second attempt at this time could only find it busy
    if port.scheduled == 0 and port.wake_next == NOT_WOKEN:
        port.wake_next = npu.wake_head
        npu.wake_head = link


@inline
def queue_control(net, npus, link, now_ps, word1, word2, word3):
    """Queue an acknowledgement at the port of a link.

    net: links of the LP; npus: NPUs and ports of the LP; link: outgoing link of the NPU; now_ps: current time in ps;
    word1, word2, word3: words of the acknowledgement (pdes/core/packet.py).
    """
    port = npus.port[link]
    tail = np.int64(port.control_tail)
    if port.control_packets == 0:
        tail = algorithms.take_block(net)
        port.control_head = tail
    port.control_packets += 1
    # no limit in bytes: a data packet causes at most an acknowledgement and a notification
    port.control_tail = algorithms.push(net, tail, now_ps, word1, word2, word3)
    algorithms.carry(net, algorithms.SET_DOWN, tail)


@inline
def may_send_by_flight(net, qps, pair):
    """Return whether `pair` of `qps` and `net` has something to send, lost or new, and room for it in flight."""
    qp = qps.qp[pair]
    window = net.const.window_packets if net.const.window_fixed == 1 else qps.cc[pair].window_packets
    # the bit sets end SELECTIVE_PACKETS behind the first unacknowledged packet
    has_new = qp.next_seq < qp.end_seq and qp.next_seq - qp.una < state.SELECTIVE_PACKETS
    return (has_new or has_lost(qps, pair)) and in_flight(qps, pair) < window


@inline
def may_send(net, qps, pair):
    """Return whether `pair` of `qps` and `net` has data and room in its window, or packets to send again."""
    qp = qps.qp[pair]
    if net.hooks.selective_sender != 0:
        if net.hooks.credits != 0 and qps.credit_tx[pair].credit_bytes <= 0:
            return False
        if net.const.by_flight == 1:
            return may_send_by_flight(net, qps, pair)
        if has_lost(qps, pair):
            return True
    window = net.const.window_packets if net.const.window_fixed == 1 else qps.cc[pair].window_packets
    # in packets, not bytes: with una = 10 and a window of 4, packets 10 to 13 may be under way
    return qp.next_seq < qp.end_seq and qp.next_seq - qp.una < window


@inline
def take_turns(npus, qps, link, pair):
    """Put `pair` of `qps` behind the queue pairs that take turns at the port of `link` of `npus`."""
    port = npus.port[link]
    qp = qps.qp[pair]
    qp.active = TAKES_TURNS
    last = port.ring
    # port.ring is the last of a circular list, so that both ends are at hand
    if last < 0:
        qp.ring_next = pair
    else:
        qp.ring_next = qps.qp[last].ring_next
        qps.qp[last].ring_next = pair
    # the newest is last: its turn comes after all others have sent one packet
    port.ring = pair


@inline
def leave_turns(npus, qps, link, pair):
    """Remove `pair` of `qps`, whose turn it is, from the list of those that take turns at `link` of `npus`."""
    qp = qps.qp[pair]
    port = npus.port[link]
    last = port.ring
    qp.active = 0
    # it was alone
    if last == pair:
        port.ring = -1
    else:
        qps.qp[last].ring_next = qp.ring_next


@inline
def activate(net, npus, qps, node, pair):
    """Let a queue pair take turns if it has data to send and room in its window.

    net: links of the LP; npus: NPUs and ports of the LP; qps: queue pairs of the LP; node: number of the NPU in the LP;
    pair: row of the queue pair in `qps.qp`.
    """
    qp = qps.qp[pair]
    if qp.active != 0:
        return
    if not may_send(net, qps, pair):
        request_credit(net, npus, node, pair, 0)
        return
    # it joins behind the others, so one whose window was full does not regain its turn before they have had theirs
    link = np.int64(qp.port)
    # where some queue pairs are limited to a share, those at line rate have no pace
    has_pace = net.hooks.congestion_control != 0 and (net.const.window_fixed == 0 or qp.shares > SHARE_UNITS)
    if has_pace and qps.cc[pair].next_send_ps > npus.npu[node].now_ps:
        qp.active = HELD_BACK
        hold_back(npus, qps, link, pair)
    else:
        take_turns(npus, qps, link, pair)
    wake_port(npus, node, link)


@inline
def take_message(qps, pair, message):
    """Make a message, a row of `qps.msg` or -1, the one that queue pair `pair` sends next."""
    qp = qps.qp[pair]
    qp.current_message = message
    if message >= 0:
        # copies in the queue pair's own lines, so that sending a packet in the middle of a message does not read `msg`
        qp.current_end = qps.msg[message].end_seq
        qp.current_tag = qps.msg[message].tag


@inline
def set_timer(npus, node, time_ps):
    """Let the retransmission timer of NPU `node` of `npus` expire at time_ps, unless it does so earlier."""
    npu = npus.npu[node]
    at = npu.rto_at_ps
    # One event per NPU, at the earliest of the deadlines that were set since it last fired. Deadlines move later with
    # each acknowledgement, and the event stays: when it comes too early, `on_timeout` finds nothing due and sets the
    # next. An event per packet would cost as much as the packet.
    if time_ps < at:
        npu.rto_at_ps = time_ps
        # slots of the heap: ports, lanes, this timer, paces of ports
        slot = npu.ports + state.LANES
        if at == state.INF:
            set_event(npus, node, time_ps, slot)
        else:
            algorithms.heap_decrease_key(npus.heap, npu.heap, npu.heap_size, time_ps, slot)


@inline
def arm_timer(net, npus, qps, node, pair, now_ps):
    """Start the retransmission timer of a queue pair.

    net: links of the LP; npus: NPUs and ports of the LP; qps: queue pairs of the LP; node: number of the NPU in the LP;
    pair: row of the queue pair in `qps.qp`; now_ps: current time in ps.
    """
    qp = qps.qp[pair]
    rto = net.const.rto_ps
    if rto > 0:
        # IBTA volume 1, 9.7.6: the requester retries after a timeout; doubling it, up to 64 times, is as RFC 6298 (5.5)
        deadline_ps = now_ps + (rto << min(np.int64(qp.retries), MAX_BACKOFF))
        qp.deadline_ps = deadline_ps
        set_timer(npus, node, deadline_ps)


@inline
def ask_receiver(net, qps, node, pair, now_ps, seq, size_bytes, flag_bits, is_new, word2, tag):
    """Return flags, word 2 and word 3 of a packet with what its sender asks for, and with its path.

    net: links of the LP; qps: queue pairs of the LP; node: number of the NPU in the LP; pair: row of the queue pair;
    now_ps: current time in ps; seq: number of the packet; size_bytes: its size on the wire; flag_bits: its flags;
    is_new: whether it was never sent before; word2, tag: words 2 and 3 without these.
    """
    asks = np.int64(0)
    if net.const.ack_every_bytes != 0:
        asks = note_sent(net, qps, pair, seq, size_bytes, is_new, now_ps)
    if net.hooks.credits != 0:
        spends = state.CREDIT_SPEND
        # the last packet of a message carries the tag alone, and does not ask
        is_last = np.int64(flag_bits & FLAG_LAST != 0)
        credit = call_hook(net.hooks.credits, net.const.address, spends, node, pair, now_ps, size_bytes, is_last, 0)
        if is_last == 0:
            tag = credit | (tag if net.const.carries_send_time == 1 else 0)
    if net.hooks.paths != 0:
        word2 = with_path(net, pair, word2, seq, seq == qps.qp[pair].una if is_new else 2, now_ps)
    return flag_bits | asks, word2, tag


@inline
def pass_turn(net, npus, qps, link, pair, is_due):
    """Pass the turn of `pair` of `qps` at `link` of `npus` and `net` on; is_due: its pace lets it send at once."""
    # out of the list if nothing more may go now, else behind the others, or wait for the pace
    if not may_send(net, qps, pair):
        leave_turns(npus, qps, link, pair)
    elif is_due:
        npus.port[link].ring = pair
    else:
        leave_turns(npus, qps, link, pair)
        qps.qp[pair].active = HELD_BACK
        hold_back(npus, qps, link, pair)


@inline
def send_data(net, npus, qps, node, link, pair, now_ps):
    """Return words 1 to 3 of the next packet of the queue pair whose turn it is at a link; pass the turn on.

    net: links of the LP; npus: NPUs and ports of the LP; qps: queue pairs of the LP; node: number of the NPU in the LP;
    link: outgoing link of the NPU; pair: row of the queue pair in `qps.qp`; now_ps: current time in ps.
    """
    qp = qps.qp[pair]
    # asked once: each packet of a run without such parts would pay for each question
    is_extended = net.const.extends_transport == 1
    if is_extended and net.const.probes == 1:
        probe = path_to_probe(net, pair, now_ps)
        if probe > 0:  # in place of data; the turn stays with the queue pair
            return probe_words(net, qp, probe - 1)
    again = is_extended and net.hooks.selective_sender != 0 and has_lost(qps, pair)
    if again:
        # with selective repeat, lost packets go before new ones
        lost = ask_sender(net, TAKE_LOST, pair, 0, 0, 0)
        seq = lost >> MESSAGE_BITS
        message = lost & ((1 << MESSAGE_BITS) - 1)
        tag = qps.msg[message].tag
        end = qps.msg[message].end_seq
    else:
        seq = qp.next_seq
        qp.next_seq = seq + 1
        message = np.int64(qp.current_message)
        tag = qp.current_tag
        end = qp.current_end
    size, flag = net.const.mtu_bytes, 0
    # a repeated packet tells no waiter: its message has left once already
    fresh = seq >= qp.sent_max
    if fresh:
        qp.sent_max = seq + 1
    else:
        net.count.retransmitted_packets += 1
    # the last packet has the rest of the payload; when it has left, the send is done, unless this repeats it
    if seq + 1 == end:
        flag = FLAG_LAST
        msg = qps.msg[message]
        size = msg.payload_bytes - (end - 1 - msg.begin_seq) * size
        if fresh:
            npus.port[link].sent_ref = msg.ref
        if not again:
            take_message(qps, pair, msg.next_message)
    size += net.const.header_bytes
    # the timer watches the oldest packet, so it begins anew with that one
    if seq == qp.una:
        arm_timer(net, npus, qps, node, pair, now_ps)
    is_due = True
    if net.hooks.congestion_control != 0:
        is_due = call_hook(net.hooks.pace, net.const.address, link, pair, now_ps, seq, size, flag) == 1
        if net.const.carries_send_time == 1 and flag & FLAG_LAST == 0:
            tag = echo_at(now_ps)
    word2 = numbered(qp.w2, seq)
    if is_extended:
        flag, word2, tag = ask_receiver(net, qps, node, pair, now_ps, seq, size, flag, fresh, word2, tag)
    pass_turn(net, npus, qps, link, pair, is_due)
    net.count.data_packets, net.count.sent_bytes = net.count.data_packets + 1, net.count.sent_bytes + size
    return filled_in(qp.w1, size, flag), word2, tag


@inline
def take(net, record):
    """Return time and words of a packet of `net`, the first `record` of a queue, and take up its telemetry."""
    algorithms.carry(net, algorithms.TAKE_UP, record)
    packet = net.record[record]
    return packet.ready_ps, packet.w1, packet.w2, packet.w3


@inline
def first_to_send(npus, qps, link):
    """Return the queue pair of `qps` whose turn it is at the port of `link` of `npus`, -1 = none."""
    # A queue pair with nothing left to send is removed: it went back, then everything was acknowledged.
    port = npus.port[link]
    last = np.int64(port.ring)
    while last >= 0:
        pair = np.int64(qps.qp[last].ring_next)
        qp = qps.qp[pair]
        if qp.next_seq < qp.end_seq:
            return pair
        leave_turns(npus, qps, link, pair)
        last = np.int64(port.ring)
    return last


@inline
def set_pace(net, npus, node, link, time_ps):
    """Let the port of a link be tried at a time, unless it is tried earlier.

    net: links of the LP; npus: NPUs and ports of the LP; node: number of the NPU in the LP; link: outgoing link of the
    NPU; time_ps: time in ps.
    """
    port = npus.port[link]
    npu = npus.npu[node]
    before = port.pace_at_ps
    if time_ps < before:
        port.pace_at_ps = time_ps
        slot = npu.ports + state.LANES + 1 + link - net.out_ptr[node]
        if before == state.INF:
            set_event(npus, node, time_ps, slot)
        else:
            algorithms.heap_decrease_key(npus.heap, npu.heap, npu.heap_size, time_ps, slot)


@inline
def someone_waits(net, npus, qps, node, link, idle_ps):
    """Return whether a queue pair may want the port when it is idle; else schedule the next paced one.

    net: links of the LP; npus: NPUs and ports of the LP; qps: queue pairs of the LP; node: number of the NPU in the LP;
    link: outgoing link of the NPU; idle_ps: time in ps at which it is idle.
    """
    port = npus.port[link]
    if port.ring >= 0:
        return True
    if net.hooks.congestion_control == 0 or port.paced < 0:
        return False
    # the port sleeps until the first pace is over, not until each: the heap of paced queue pairs has the order
    soonest = port.paced
    at = qps.cc[soonest].next_send_ps
    if at > idle_ps:
        set_pace(net, npus, node, link, at)
    return at <= idle_ps


@inline
def transit_allowed(net, npus, link):
    """Return whether a transit packet that no pause holds back waits at `link` of `npus` and `net`."""
    port = npus.port[link]
    if port.transit_packets == 0:
        return False
    if net.hooks.shared_switches == 0:
        return True
    # the first packet decides for all: transit is one FIFO for both classes, so a paused class holds back the other
    word1 = net.record[port.transit_head].w1
    return paused_classes(net, npus, link) & (1 << data_class(word1)) == 0


@inline
def transmit(net, npus, qps, node, link, now_ps):
    """Send one packet over a link if its port is idle and has one.

    net: links of the LP; npus: NPUs and ports of the LP; qps: queue pairs of the LP; node: number of the NPU in the LP;
    link: outgoing link of the NPU; now_ps: current time in ps.
    """
    # If more packets are left, or a message's last byte is awaited, an event follows when the port falls idle.
    port = npus.port[link]
    busy = port_busy_ps(net, npus, link)
    # candidates: acknowledgements, transit packets that no pause holds back, and a queue pair
    has_control = port.control_packets > 0
    has_transit = transit_allowed(net, npus, link)
    first = np.int64(-1)
    if net.hooks.first_allowed == 0:
        first = first_to_send(npus, qps, link)
    elif busy > now_ps or not has_control:
        # an idle port that has control to send chooses no queue pair
        first = call_hook(net.hooks.first_allowed, net.const.address, node, link, now_ps)
    # control never waits for a pause: PFC pauses data classes alone, and an acknowledgement that waited for the data
    # that it acknowledges could close a circle of waits
    if not has_control and not has_transit and first < 0:
        return
    if busy <= now_ps:
        # the port is idle: control first, then transit and the queue pairs alternately
        # when the packet came to the port, for its longest wait (links.parquet); a queue pair's packet is made now
        asked = now_ps
        if has_control:
            control = np.int64(port.control_head)
            asked, word1, word2, word3 = take(net, control)
            port.control_packets -= 1
            port.control_head = algorithms.after(net, control)
        elif has_transit and (first < 0 or port.turn == 1):
            transit = np.int64(port.transit_head)
            asked, word1, word2, word3 = take(net, transit)
            port.transit_packets -= 1
            port.transit_head = algorithms.after(net, transit)
            port.transit_bytes -= wire_bytes(word1)
            port.turn = 0
        else:
            word1, word2, word3 = send_data(net, npus, qps, node, link, first, now_ps)
            port.turn = 1
        busy = send_from_port(net, node, link, asked, now_ps, word1, word2, word3)
        # nobody awaits the last byte and nothing is left to send: no event, since the next post tries the port
        if (
            port.sent_ref < 0
            and port.control_packets == 0
            and port.transit_packets == 0
            and not someone_waits(net, npus, qps, node, link, busy)
        ):
            return
    # busy, or more to send: an event when the port falls idle, before which nothing else tries it (`wake_port`)
    port.scheduled = 1
    set_event(npus, node, busy, link - net.out_ptr[node])
