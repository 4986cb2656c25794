"""The reliable transport: queue pairs with a static window, cumulative acknowledgements and go-back-N.

A queue pair is one connection of two NPUs for one group (each NCCL communicator has its own, one per channel); its
messages are sent in order. The receiver accepts packets in sequence only, acknowledges each, and requests a missing
packet once per gap. A sender without progress for the timeout (doubled at each try) goes back too, so a lost tail is
recovered (InfiniBand volume 1, 9.7: PSN, ACK, NAK sequence error, retry).
Parameters such as `net`, `npus`, `qps`, `node` and `pair` are explained in pdes/core/state.py.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.algorithms import FREE, find, find_row, mix2
from nadi.pdes.core.jit import call_hook, clear_row, hook, inline, outline
from nadi.pdes.network.link import class_row, link_psb, share_psb
from nadi.pdes.network.routing import npu_route, path_of
from nadi.pdes.nic import selective
from nadi.pdes.nic.control import ECHO_BITS, ECHO_MASK, round_trip, update_control
from nadi.pdes.nic.counting import count_posted, finish_flow, within_job
from nadi.pdes.nic.paths import open_paths
from nadi.pdes.nic.port import activate, arm_timer, queue_control, set_timer, take_message, wake_port
from nadi.pdes.nic.several_ports import first_port, port_busy_ps, port_psb, send_from_port


@inline
def has_own_pair(net, src, connection):
    """Return whether a message of NPU `src` of `net` has a queue pair of its own on a `connection` without share."""
    return connection == packet.P2P and net.jobs.total[packet.job_of(net.jobs.who[src])].pair_per_message == 1


@inline
def class_of_connection(net, node, connection):
    """Return the data class of the messages of a `connection`, which names their group, from NPU `node` of `net`."""
    group = connection & ((1 << packet.CONNECTION_SHIFT) - 1)
    if group == packet.P2P:
        return np.int64(net.p2p_class[node])
    # requests to send and their answers belong to no group of the run
    return np.int64(net.group_class[group]) if group < net.group_class.shape[0] else np.int64(0)


@inline
def queue_pair(net, npus, qps, node, dst, connection, tag):
    """Return the row of NPU `node`'s queue pair to NPU `dst` for a message, new at first use.

    connection: connection of the message (pdes.core.packet), which names the queue pair; tag: word 3 of its last
    packet, which also names it if each point-to-point message has a queue pair of its own.
    """
    # The share of the line rate (SHARES_SHIFT) is the same at each use: workload.collectives.schedules ensures it.
    npu = npus.npu[node]
    shares = connection >> packet.SHARES_SHIFT
    connection &= (1 << packet.SHARES_SHIFT) - 1
    src = npu.number
    pair = net.ctl.queue_pairs
    is_of_message = has_own_pair(net, src, connection)
    if not is_of_message:
        key = packet.connection_key(src, dst, connection)
        at = find(qps.qp_key, key)
        if qps.qp_key[at] != FREE:
            return np.int64(qps.qp_val[at])
        qps.qp_key[at] = key
        qps.qp_val[at] = pair
    qp = qps.qp[pair]
    net.ctl.queue_pairs = pair + 1
    net.ctl.check = 1  # a pool has less room: check before the next action
    clear_row(qps.qp, pair)
    qp.head_message = qp.tail_message = qp.current_message = -1
    qp.deadline_ps = state.INF  # nothing is sent yet that could time out
    qp.w1 = packet.header(dst, src, 0, 0) | class_of_connection(net, node, connection) << packet.DATA_CLASS_SHIFT
    path = path_of(net, src, dst, within_job(net, connection))
    path = mix2(path, tag) if is_of_message else np.int64(path)
    qp.w2 = packet.path_word(pair, path)
    if net.hooks.paths != 0:
        clear_row(qps.paths, pair)
        open_paths(qps, pair, path)
    qp.port = first_port(net, npus, npu_route(net, node, dst, qp.w2))
    qp.npu = node
    qp.connection = connection
    if connection == packet.P2P and class_row(net, np.int64(qp.port)).special & state.INSIDE == 0:
        shares = net.const.p2p_shares  # to another host, by the NIC
    qp.shares = shares
    qp.sibling = npu.first_queue_pair  # newest first: timeouts visit all of the NPU
    npu.first_queue_pair = pair
    if net.hooks.congestion_control != 0:
        start_control(net, npus, qps, pair, npu.now_ps)
    return pair


@inline
def is_inside(net, qps, pair):
    """Return whether queue pair `pair` of `qps` sends over NVLink, within its domain, in `net`."""
    return class_row(net, np.int64(qps.qp[pair].port)).special & state.INSIDE != 0


@inline
def start_control(net, npus, qps, pair, now_ps):
    """Start the control of `pair` of `qps`, which has none yet, at now_ps; NVLink domains keep a static window."""
    qp = qps.qp[pair]
    clear_row(qps.cc, pair)
    cc = qps.cc[pair]
    cc.last_seq = -1
    port = np.int64(qp.port)
    cc.line_ps_per_byte = share_psb(net, port, qp.w1, qp.shares) * (port_psb(net, npus, port) / link_psb(net, port))
    cc.window_packets = net.const.window_packets
    qp.controlled = net.const.window_fixed == 1 or not is_inside(net, qps, pair)
    update_control(net, qps, pair, state.CC_START, now_ps, qp.shares, 0, 0)


@inline
def find_port(net, npus, qps, node, pair):
    """Update the port of `pair` of `qps`, of NPU `node`, if in no port's list, where routes of `net` may change."""
    qp = qps.qp[pair]
    if net.hooks.make_changes != 0 and qp.active == 0:
        qp.port = first_port(net, npus, npu_route(net, node, packet.destination(qp.w1), qp.w2))
        if net.const.window_fixed == 0 and is_inside(net, qps, pair) == (qp.controlled == 1):
            start_control(net, npus, qps, pair, npus.npu[node].now_ps)


@outline
def post(world_address, node, dst, connection, tag, size_bytes, waiter, now_ps):
    """Post a message of size_bytes from NPU `node` (of the LP) to NPU `dst` (of the fabric); return 0."""
    # connection: group of the queue pair, with number and share (pdes.core.packet); tag: word 3 of the packets; waiter:
    # what waits for the last byte to leave (Message.ref).
    world = state.world_at(world_address)
    hooks = world.net.hooks
    if hooks.post != 0:
        call_hook(hooks.post, world_address, node, dst, connection, tag, size_bytes, waiter, now_ps)
    else:
        pair = queue_pair(world.net, world.npus, world.qps, node, dst, connection, tag)
        enqueue_message(world.net, world.npus, world.qps, node, pair, tag, size_bytes, waiter, now_ps)
        count_posted(world.net, world.npus, world.qps, node, pair, tag, size_bytes, now_ps)


@inline
def enqueue_message(net, npus, qps, node, pair, tag, size_bytes, waiter, now_ps):
    """Append a message to those of queue pair `pair` and return its row of `msg`; other arguments as of `post`."""
    qp = qps.qp[pair]
    if qp.una == qp.end_seq:
        find_port(net, npus, qps, node, pair)
        if net.hooks.credits != 0:
            call_hook(net.hooks.credits, net.const.address, state.CREDIT_BEGIN, node, pair, now_ps, 0, 0, 0)
    message = state.take_row(net, qps)
    msg = qps.msg[message]
    mtu = net.const.mtu_bytes
    begin = qp.end_seq  # packets of messages have consecutive numbers
    msg.payload_bytes = size_bytes
    msg.tag = tag
    msg.begin_seq = begin
    msg.end_seq = begin + max(1, (size_bytes + mtu - 1) // mtu)  # an empty message has one packet
    msg.next_message = -1
    msg.ref = waiter
    qp.end_seq = msg.end_seq
    if qp.head_message < 0:
        qp.head_message = message
        qp.head_end = qp.end_seq
    else:
        qps.msg[qp.tail_message].next_message = message
    qp.tail_message = message
    if qp.current_message < 0:
        take_message(qps, pair, message)
        if net.hooks.begin_message != 0:
            call_hook(net.hooks.begin_message, net.const.address, pair, now_ps)
    activate(net, npus, qps, node, pair)
    return message


@inline
def port_back(net, npus, qps, node, receiver, dst, word2):
    """Return the port of `node` for acknowledgements (word2) to NPU `dst`, which `receiver` keeps if routes stay."""
    rxqp = qps.rxqp[receiver]
    link = np.int64(rxqp.port_back) - 1
    if link < 0 or net.hooks.make_changes != 0:
        link = first_port(net, npus, npu_route(net, node, dst, word2))
        rxqp.port_back = link + 1
    return link


@inline
def send_ack(net, npus, qps, node, receiver, now_ps, word1, word2, echo, expected_seq, flag_bits):
    """Answer a data packet of `receiver` (word1, word2): acknowledge all before expected_seq; word 3 is `echo`."""
    me = packet.destination(word1)
    peer = packet.source(word1)
    a1 = packet.header(peer, me, net.const.ack_bytes, flag_bits)
    a2 = packet.numbered(
        word2 & packet.PATH_MASK, expected_seq
    )  # with the sender's own queue pair, so that it needs no search
    link = port_back(net, npus, qps, node, receiver, peer, a2)
    net.count.ack_packets += 1
    send_control(net, npus, node, link, now_ps, a1, a2, echo)


@inline
def send_control(net, npus, node, link, now_ps, word1, word2, word3):
    """Send a control packet of `ack_bytes` (word1 to word3) at now_ps over `link` of `node`, or before all data."""
    net.count.sent_bytes += net.const.ack_bytes
    send_first(net, npus, node, link, now_ps, word1, word2, word3)


@inline
def send_first(net, npus, node, link, now_ps, word1, word2, word3):
    """Send a packet (word1 to word3) at now_ps over `link` of `node`, or as soon as the port is idle."""
    port = npus.port[link]
    if port.scheduled == 0 and port_busy_ps(net, npus, link) <= now_ps and port.control_packets == 0:
        send_from_port(net, node, link, now_ps, now_ps, word1, word2, word3)
    else:
        queue_control(net, npus, link, now_ps, word1, word2, word3)
        wake_port(npus, node, link)


@inline
def must_notify(net, qps, receiver, now_ps):
    """Return whether a marked packet of a `receiver` (its row of `qps`) makes it notify its sender, and note that."""
    rxqp = qps.rxqp[receiver]
    last = rxqp.nak_sent >> 1
    if last != 0 and now_ps - last < net.const.cnp_interval_ps:
        return False
    rxqp.nak_sent = (rxqp.nak_sent & 1) | (now_ps << 1)  # bit 0 stays: a NAK is out
    net.count.congestion_notifications += 1
    return True


@inline
def send_notification(net, npus, qps, node, receiver, now_ps, word1, word2):
    """Send a congestion notification (RoCEv2 CNP) for a marked packet (word1, word2) of a `receiver` (its row)."""
    net.count.ack_packets -= 1  # send_ack counts one, and a CNP is none
    flag_bits = packet.FLAG_ACK | packet.FLAG_CNP
    send_ack(net, npus, qps, node, receiver, now_ps, word1, word2, 0, 0, flag_bits)


@hook
def notify(world_address, node, now_ps, word1, word2, receiver):
    """Notify the sender of a marked packet of a `receiver` (its row), unless that was done too short a time ago."""
    world = state.world_at(world_address)
    if must_notify(world.net, world.qps, receiver, now_ps):
        send_notification(world.net, world.npus, world.qps, node, receiver, now_ps, word1, word2)
    return 0


@inline
def receiving_pair(net, npus, qps, node, key):
    """Return the row of `qps.rxqp` for `key` (`receiver_key`), new at first use; try the last of `node` first."""
    npu = npus.npu[node]
    last = npu.last_receiver
    if last >= 0 and qps.rxqp[last].key == key:
        return last
    at = find_row(qps.rxqp, key)
    if qps.rxqp[at].key == FREE:
        net.ctl.receivers += 1
        net.ctl.check = 1
        if net.hooks.selective_sender != 0:
            qps.sel_rx[at].head_message = -1
        qps.rxqp[at].key = key
    npu.last_receiver = at
    return at


@inline
def echo_of(net, word1, word3):
    """Return the send time that a data packet, with word1 and word3, carries in a run of `net`; 0 without one."""
    return (
        word3 & ECHO_MASK
        if net.const.carries_send_time == 1 and packet.flags(word1) & (packet.FLAG_LAST | packet.FLAG_TRIMMED) == 0
        else np.int64(0)
    )


@inline
def on_data(net, npus, qps, node, now_ps, word1, word2, word3):
    """Handle at now_ps a data packet (word1, word2, word3) for NPU `node`; return True if it completes a message."""
    net.count.consumed_packets += 1
    net.count.received_bytes += packet.wire_bytes(word1)
    key = packet.receiver_key(word1, word2)
    receiver = receiving_pair(net, npus, qps, node, key)
    rxqp = qps.rxqp[receiver]
    expected = rxqp.expected
    ahead = (word2 - expected) & packet.PSN_MASK  # modulo 2^24: 0 next in order, below half a gap, else a duplicate
    complete = False
    flag = packet.FLAG_ACK
    answer = True
    if packet.flags(word1) & packet.FLAG_MARK != 0:
        if net.hooks.notify != 0:
            call_hook(net.hooks.notify, net.const.address, node, now_ps, word1, word2, receiver)
        else:
            flag |= packet.FLAG_MARK
    if net.hooks.selective_sender != 0:
        call_hook(net.hooks.selective_receiver, net.const.address, node, now_ps, word1, word2, word3, receiver, flag)
        return False
    if ahead == 0 and packet.flags(word1) & packet.FLAG_TRIMMED == 0:
        expected += 1
        rxqp.expected = expected
        rxqp.nak_sent &= ~1  # the gap is closed: a later one gets a NAK, too
        net.count.payload_bytes += packet.wire_bytes(word1) - net.const.header_bytes
        complete = packet.flags(word1) & packet.FLAG_LAST != 0
    elif ahead < packet.HALF_PSN:  # a gap or a trimmed packet: ask for the missing one, once
        answer = rxqp.nak_sent & 1 == 0 or ahead == 0  # once per gap, but again if the missing one itself came trimmed
        flag |= packet.flags(word1) & packet.FLAG_TRIMMED
        rxqp.nak_sent |= 1
        flag |= packet.FLAG_NAK
    if answer:
        send_ack(net, npus, qps, node, receiver, now_ps, word1, word2, echo_of(net, word1, word3), expected, flag)
    if complete:
        ordinal = np.int64(rxqp.messages)
        rxqp.messages = ordinal + 1
        finish_flow(net, qps, word1, word3, ordinal, now_ps)
    return complete


@inline
def payload_bytes(net, qps, receiver, end_seq, word1):
    """Return the payload of the message of `receiver` that ends before end_seq; word1: word 1 of its last packet."""
    full = end_seq - 1 - qps.begun[receiver]  # packets before the last one, which are full
    qps.begun[receiver] = end_seq
    return full * net.const.mtu_bytes + packet.wire_bytes(word1) - net.const.header_bytes


@inline
def go_back(qps, pair):
    """Send again from the first unacknowledged packet of `pair` of `qps`; return whether later ones had been sent."""
    qp = qps.qp[pair]
    has_sent = qp.next_seq != qp.una
    if has_sent:
        qp.next_seq = qp.una
        take_message(qps, pair, qp.head_message)
    return has_sent


@inline
def free_acknowledged(net, qps, node, pair, now_ps):
    """Free the rows of the messages of queue pair `pair` of NPU `node` that are wholly acknowledged at now_ps."""
    qp = qps.qp[pair]
    una = qp.una
    message = np.int64(qp.head_message)
    while message >= 0 and qps.msg[message].end_seq <= una:
        following = qps.msg[message].next_message
        told = qps.msg[message].told
        state.give_row_back(net, qps, message)
        if net.hooks.is_acknowledged != 0 and told >= 0:
            call_hook(net.hooks.is_acknowledged, net.const.address, node, told, now_ps)
        message = following
    qp.head_message = message
    if message >= 0:  # so that `take_acknowledged` compares one word
        qp.head_end = qps.msg[message].end_seq


@outline
def hear(net, node, pair, now_ps, word1, word2, word3):
    """Tell paths and credits of `pair` of NPU `node` of an answer (word1 to word3); return whether it is for them."""
    is_notification = packet.flags(word1) & packet.FLAG_CNP != 0
    # a grant of credit, or a request, which is for the receiver of the queue pair that it names
    if is_notification and packet.flags(word1) & (packet.FLAG_LAST | packet.FLAG_NAK) != 0:
        call_hook(net.hooks.credits, net.const.address, state.CREDIT_CONTROL, node, pair, now_ps, word1, word2, word3)
        return True
    if net.hooks.paths != 0:
        call_hook(net.hooks.paths, net.const.address, state.PATH_ANSWER, pair, word1, word2, now_ps)
    if net.hooks.credits != 0 and not is_notification:
        call_hook(net.hooks.credits, net.const.address, state.CREDIT_HEAR, node, pair, now_ps, 0, 0, 0)
    return False


@inline
def on_ack(net, npus, qps, node, now_ps, word1, word2, word3):
    """Handle at now_ps an acknowledgement (word1, word2, word3) for NPU `node`: open the window, or go back."""
    net.count.consumed_packets += 1
    net.count.received_bytes += packet.wire_bytes(word1)
    pair = packet.sender_pair(word2)
    qp = qps.qp[pair]
    # asked once: each packet of a run without such parts would pay for each question
    is_extended = net.const.extends_transport == 1
    if is_extended and hear(net, node, pair, now_ps, word1, word2, word3):
        return
    # a notification acknowledges nothing
    if packet.flags(word1) & packet.FLAG_CNP != 0:
        update_control(net, qps, pair, state.CC_CNP, now_ps, 0, 0, 0)
        return
    una = qp.una
    # the acknowledged packet: the last before the expected one, or with selective repeat the one it names
    advance = (word2 - una) & packet.PSN_MASK
    named = una + advance - 1
    known = np.int64(0)
    if is_extended and net.hooks.selective_sender != 0:
        if net.const.ack_every_bytes != 0:
            advance, distance = packet.sack_numbers(word2, una)
            distance += advance
        else:
            distance = ((word3 >> ECHO_BITS) - una) & packet.PSN_MASK
            if distance >= packet.HALF_PSN:
                distance -= packet.PSN_MASK + 1
        named = una + distance
        known = arrived_packets(net, qps, pair)
    fresh = take_acknowledged(net, npus, qps, node, pair, now_ps, advance & packet.PSN_MASK)
    shows_loss = False
    if is_extended and net.hooks.selective_sender != 0:
        if net.const.ack_every_bytes != 0:
            selective.ask_sender(net, selective.SACKED, pair, selective.sack_base(named, una + advance), word3, 0)
        is_trimmed = np.int64(packet.flags(word1) & packet.FLAG_NAK != 0)
        is_known = named >= qp.una and named < qp.sent_max
        shows_loss = is_known and selective.ask_sender(net, selective.SELECTED, pair, named, now_ps, is_trimmed) == 1
        if net.const.by_flight == 1:
            fresh = arrived_packets(net, qps, pair) - known
    # congestion control handles every acknowledgement, and then a loss; there is no round trip of a sequence
    # error, nor, with go back N, of an answer that acknowledges nothing new
    if net.hooks.congestion_control != 0:
        rtt = np.int64(-1)
        if net.const.carries_send_time == 1:
            answered = named
            if packet.flags(word1) & packet.FLAG_NAK != 0 or (fresh == 0 and net.hooks.selective_sender == 0):
                answered = np.int64(-2)
            if not is_extended or net.const.ack_every_bytes == 0:
                rtt = round_trip(qps, pair, now_ps, answered, word3 & ECHO_MASK)
            elif answered >= una:
                is_again = packet.flags(word1) & packet.FLAG_ECHO_AGAIN != 0
                rtt = selective.time_since_sent(qps, pair, answered, is_again, now_ps)
        update_control(
            net, qps, pair, state.CC_ACK, now_ps, fresh, np.int64(packet.flags(word1) & packet.FLAG_MARK != 0), rtt
        )
    return_to_lost(net, qps, pair, now_ps, word1, word2, named, shows_loss)
    if is_extended and net.const.sleek == 1:
        set_timer(npus, node, selective.hear_answer(net, qps, pair, now_ps, named == una - 1))
    # the window may have room now
    activate(net, npus, qps, node, pair)


@inline
def take_acknowledged(net, npus, qps, node, pair, now_ps, advance):
    """Acknowledge `advance` packets of `pair` from the first unacknowledged on; return how many are newly so."""
    # Numbers wrap: a packet up to half the range ahead that was sent at all is newly acknowledged; any other is old.
    qp = qps.qp[pair]
    una = qp.una + advance
    if advance == 0 or advance >= packet.HALF_PSN or una > qp.sent_max:
        return np.int64(0)
    if net.hooks.selective_sender != 0:
        selective.ask_sender(net, selective.FORGET, pair, qp.una, una, 0)
    qp.una = una
    qp.retries = 0  # progress ends the doubling of timeouts
    if qp.head_end <= una:
        free_acknowledged(net, qps, node, pair, now_ps)
    # after a go-back: packets that are acknowledged now need not be sent again
    if qp.next_seq < una:
        qp.next_seq = una
        take_message(qps, pair, qp.head_message)
    arm_timer(net, npus, qps, node, pair, now_ps)
    return np.int64(advance)


@inline
def return_to_lost(net, qps, pair, now_ps, word1, word2, named_seq, shows_loss):
    """Tell the control of `pair` of a loss; go back to it, unless selective repeat has marked what to send again."""
    # named_seq: number of the packet that the acknowledgement, with words 1 and 2, answers. shows_loss: whether it
    # reveals a loss to selective repeat.
    if net.hooks.selective_sender == 0:
        is_nak = packet.flags(word1) & packet.FLAG_NAK != 0
        shows_loss = is_nak and (word2 - qps.qp[pair].una) & packet.PSN_MASK == 0 and go_back(qps, pair)
    if shows_loss:
        tell_of_loss(net, qps, pair, now_ps, word1, named_seq)


@outline
def tell_of_loss(net, qps, pair, now_ps, word1, named_seq):
    """Tell the control of `pair` of `net` and `qps` at now_ps of the loss that an acknowledgement (word1) reveals."""
    # named_seq: number of the packet that the acknowledgement answers
    is_selective = net.hooks.selective_sender != 0
    is_trimmed = packet.flags(word1) & packet.FLAG_NAK != 0
    is_last_hop = np.int64(packet.flags(word1) & packet.FLAG_TRIMMED != 0)
    if not is_selective:
        is_trimmed, is_last_hop = is_last_hop == 1, np.int64(0)
    if is_trimmed and (not is_selective or named_seq == qps.qp[pair].una):
        count_resend(net, qps, pair)
    kind = state.LOSS_TRIMMED if is_trimmed else state.LOSS_NAK
    rtt = np.int64(-1)
    if is_trimmed and net.const.ack_every_bytes != 0:
        rtt = selective.time_since_sent(qps, pair, named_seq, 0, now_ps)
    update_control(net, qps, pair, state.CC_LOSS, now_ps, kind, is_last_hop, rtt)


@inline
def arrived_packets(net, qps, pair):
    """Return how many packets of `pair` of `qps` and `net` are known to have arrived, where windows count flight."""
    return qps.qp[pair].una + qps.sel_tx[pair].seen_packets if net.const.by_flight == 1 else np.int64(0)


@inline
def count_resend(net, qps, pair):
    """Count that `pair` of `qps` repeats its first unacknowledged packet after a trim; after too many it gives up."""
    # Only trims can repeat without end: each makes the receiver ask again, and the timer begins anew with the packet.
    # A receiver asks for a packet that was dropped once, and timeouts have a limit of their own.
    una = qps.qp[pair].una
    resends = qps.resends[pair]
    resends.trimmed_times = resends.trimmed_times + 1 if resends.trimmed_seq == una else np.int64(1)
    resends.trimmed_seq = una
    if resends.trimmed_times > net.const.max_resends:
        net.ctl.failed_queue_pair = pair
