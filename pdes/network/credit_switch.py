"""A switch whose ports send only what the other end has room for: credits by virtual lane (docs/explanation/fabric.md).

A packet waits in the input buffer of its lane, whose room its sender has reserved, in a queue for its output port
(virtual output queues): packets for other ports pass it, but their sender can send none while the buffer is full. An
output serves a lane's packets from all inputs in the order of their arrival, and its lanes by two tables of weights
(InfiniBand's arbitration of virtual lanes: IBTA volume 1, 7.6.9). A packet leaves its buffer when it begins to leave
the switch, for a buffer of the output port of one packet; then its credits return.

Each departure sends a frame over another port, so all ports of a switch advance together, in time order.
"""

import numpy as np

from nadi.pdes.core import algorithms, packet, state
from nadi.pdes.core.jit import hook, inline, outline, trailing_zeros
from nadi.pdes.network import lane_credits, port_queues
from nadi.pdes.network.batch import blocks_short, came_over, give_back, inbox_blocks, order_ties, take_batch
from nadi.pdes.network.link import inbox_of, link_send
from nadi.pdes.network.routing import choose, link_by_rule, switch_cell_to
from nadi.pdes.network.shared_switch import note_queue
from nadi.pdes.network.switch import switches_window

CONTROL, FRAMES = 0, 1  # queues of a port after those of its virtual lanes
QUEUES_OF_CONTROL = 2
LANE_MASK = 7  # of a lane's number in a word of arbitration; the bytes left of its weight are above it


@inline
def enqueue(net, node, link, queue, now_ps, ingress, word1, word2, word3):
    """Append a packet to a queue of a port.

    net, node, link: outgoing link of a switch of the LP; queue: number of the lane, or of a queue of control behind the
    lanes; now_ps: current time in ps; ingress: own outgoing link whose reverse carried the packet here; word1, word2,
    word3: words of the packet.
    """
    gate = net.gate[link]
    lane = net.lane[lane_credits.lane_place(net, link, queue)]
    port_queues.join_ports(net, node, link)
    head, tail = algorithms.head_of(lane.queue), algorithms.tail_of(lane.queue)
    if gate.mask & (1 << queue) == 0:
        head = tail = algorithms.take_block(net)
        gate.mask |= 1 << queue
    kept = (ingress << port_queues.TIME_BITS) | (now_ps & port_queues.TIME_MASK)
    lane.queue = algorithms.ends(head, algorithms.append(net, tail, kept, word1, word2, word3))
    algorithms.carry(net, algorithms.SET_DOWN, tail)


@inline
def lane_in_turn(net, link, table, ready):
    """Return the virtual lane whose turn it is in one of the two tables of a port.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        table: 0 for the table of low priority, 1 for that of high priority.
        ready: Bit set, not 0, of the lanes of the table that can send.
    """
    own = net.gate[link].discipline
    first = own[table] & LANE_MASK
    if ready & (1 << first) != 0 and own[table] >> 3 != 0:
        return first
    # a lane that cannot send loses the rest of its turn; the word names the lane to look at first
    first += np.int64(own[table] >> 3 != 0)
    below = (1 << (first & LANE_MASK)) - 1
    after = ready & ~below
    lane = np.int64(trailing_zeros(after if after != 0 else ready))
    own[table] = lane | net.lane_weight[lane] << 3
    return lane


@inline
def next_queue(net, link):
    """Return the queue of a port that sends next: frames, control, then the lane that arbitration chooses.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port, on which a packet may go.
    """
    gate, lanes = net.gate[link], net.const.lanes
    ready = gate.mask & ~gate.paused
    control = ready >> lanes
    if control != 0:
        return lanes + (control >> FRAMES)
    high = ready & net.const.high_lanes
    low = ready & ~high
    # word 2: bytes of high priority since the last packet of low priority, or since none of these waited
    sent_bytes = gate.discipline[2]
    is_high = high != 0 and (low == 0 or sent_bytes == 0 or sent_bytes < net.const.high_limit_bytes)
    return lane_in_turn(net, link, np.int64(is_high), high if is_high else low)


@inline
def count_turn(net, link, lane, size_bytes):
    """Count a packet of a virtual lane in the turns of a port.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        lane: Number of the virtual lane, which `lane_in_turn` has returned.
        size_bytes: Size of the packet on the wire in bytes.
    """
    gate = net.gate[link]
    own = gate.discipline
    is_high = np.int64(net.const.high_lanes >> lane & 1)
    left = (own[is_high] >> 3) - size_bytes
    own[is_high] = lane | left << 3 if left > 0 else (lane + 1) & LANE_MASK
    others = gate.mask & ~gate.paused & ~net.const.high_lanes & ((1 << net.const.lanes) - 1)
    own[2] = own[2] + size_bytes if is_high == 1 and others != 0 else 0


@inline
def send_data(net, node, link, ingress, lane, queued_ps, start_ps, word1, word2, word3):
    """Send a packet of data from a switch, spend its credits, and return those of its input buffer.

    net, node, link: outgoing link of a switch of the LP; ingress: own outgoing link whose reverse carried the packet;
    lane: the virtual lane in which it came, which may be another one than that of its word 1; queued_ps, start_ps: time
    in ps at which it came to the port, and at which its first bit leaves; word1, word2, word3: words of the packet.
    """
    lane_credits.spend(net, link, word1, start_ps)
    link_send(net, link, queued_ps, start_ps, word1, word2, word3)
    # links inside of an NVLink domain have no credits
    if lane_credits.takes_credits(net, ingress, word1):
        units = lane_credits.leave(net, ingress, lane, packet.wire_bytes(word1))
        if units > 0:
            net.count.pause_frames += 1
            net.gate[ingress].pause_frames += 1
            queue, word2 = net.const.lanes + FRAMES, lane_credits.frame_of(lane, units)
            send_or_enqueue(net, node, ingress, queue, start_ps, lane_credits.frame_header(net), word2, np.int64(0))


@inline
def send_or_enqueue(net, node, link, queue, now_ps, word1, word2, word3):
    """Send a control packet or a frame over a link, or append it to its queue at the port.

    net, node, link: outgoing link of a switch of the LP; queue: number of the queue behind the lanes; now_ps: current
    time in ps; word1, word2, word3: words of the packet.
    """
    if net.tx[link].busy_ps <= now_ps and net.gate[link].mask >> net.const.lanes == 0:
        link_send(net, link, now_ps, now_ps, word1, word2, word3)
    else:
        enqueue(net, node, link, queue, now_ps, np.int64(0), word1, word2, word3)


@outline
def depart(net, node, link, start_ps):
    """Send, from start_ps, the next packet that waits at the port of `link` of `node` of `net` and has credits."""
    gate = net.gate[link]
    queue = next_queue(net, link)
    lane = net.lane[lane_credits.lane_place(net, link, queue)]
    head = algorithms.head_of(lane.queue)
    algorithms.carry(net, algorithms.TAKE_UP, head)
    arrival = net.record[head]
    word0, word1, word2, word3 = arrival.ready_ps, arrival.w1, arrival.w2, arrival.w3
    lane.queue = algorithms.without_first(net, lane.queue)
    if lane.queue == algorithms.NONE:
        gate.mask &= ~(1 << queue)
        if gate.mask == 0:
            port_queues.remove_port(net, node, link)
    queued_ps = start_ps - ((start_ps - word0) & port_queues.TIME_MASK)
    net.count.events += 1
    if queue >= net.const.lanes:
        link_send(net, link, queued_ps, start_ps, word1, word2, word3)
    else:
        size_bytes = packet.wire_bytes(word1)
        count_turn(net, link, queue, size_bytes)
        gate.waiting_bytes -= size_bytes
        gate.queued_bytes[queue] -= size_bytes
        ingress, lane = word0 >> port_queues.TIME_BITS, packet.data_class(word1)
        send_data(net, node, link, ingress, lane, queued_ps, start_ps, packet.with_class(word1, queue), word2, word3)


@outline
def bring_up(net, node, until_ps):
    """Let ports of `node` of `net` send packets that depart before until_ps, in time order; ties by link number."""
    base = net.out_ptr[node]
    while True:
        soonest = until_ps
        which = np.int64(-1)
        for i in range(base, base + net.pool[node].ports):
            link = np.int64(net.backlog[i])
            busy = net.tx[link].busy_ps
            if (busy < soonest or (busy == soonest and which >= 0 and link < which)) and port_queues.may_go(net, link):
                soonest = busy
                which = link
        if which < 0:
            return
        depart(net, node, which, soonest)


@inline
def take_data(net, node, link, ingress, lane, now_ps, word1, word2, word3):
    """Take a packet of data, which has arrived over the reverse of `ingress`, into its input buffer; send it if it may.

    net, node, link: the packet's switch and port; lane: the virtual lane in which it leaves; now_ps: current time in
    ps; word1, word2, word3: words of the packet.
    """
    gate, came_in = net.gate[link], packet.data_class(word1)
    size_bytes = packet.wire_bytes(word1)
    if lane_credits.takes_credits(net, ingress, word1):
        lane_credits.arrive(net, ingress, came_in, size_bytes)
    if net.tx[link].busy_ps <= now_ps and gate.mask & ~gate.paused == 0 and (gate.paused | gate.mask) >> lane & 1 == 0:
        word1 = packet.with_class(word1, lane)
        send_data(net, node, link, ingress, came_in, now_ps, now_ps, word1, word2, word3)
        return
    # its word 1 keeps the lane in which it came, as the queue is that of the lane in which it leaves
    enqueue(net, node, link, lane, now_ps, ingress, word1, word2, word3)
    gate.waiting_bytes += size_bytes
    gate.queued_bytes[lane] += size_bytes
    gate.longest_bytes = max(gate.longest_bytes, gate.waiting_bytes)
    if net.const.depths > 0:
        note_queue(net, link, now_ps, gate.waiting_bytes)


@inline
def act(net, inbox, routes, node, begin_ps, end_ps):
    """Process a cell of switch `node` of `net` (routes, begin_ps, end_ps): the batch in time order, and departures."""
    rule = net.hooks.balancing != 0 or net.hooks.detour != 0
    for i in range(net.ctl.batch):
        key = inbox.batch_key[i]
        now_ps = begin_ps + (key >> 16)
        at = inbox.batch_pos[key & 0xFFFF]
        bring_up(net, node, now_ps + 1)
        arrival = net.record[at]
        word1, word2, word3 = arrival.w1, arrival.w2, arrival.w3
        if packet.destination(word1) == packet.PAUSE_FRAME:
            link = np.int64(port_queues.paused_link(net, at))
            lane_credits.on_frame(net, link, word2, now_ps)
            if port_queues.may_go(net, link) and net.tx[link].busy_ps <= now_ps:
                depart(net, node, link, now_ps)
            continue
        cell = switch_cell_to(net, routes, node, packet.destination(word1), word2)
        if rule:
            link = np.int64(link_by_rule(net, routes, cell, node, at, now_ps))
            word2 = arrival.w2
        else:
            link = np.int64(choose(routes, cell, node, word2))
        algorithms.carry(net, algorithms.TAKE_UP, at)
        if packet.flags(word1) & packet.FLAG_ACK != 0:
            send_or_enqueue(net, node, link, net.const.lanes + CONTROL, now_ps, word1, word2, word3)
        else:
            ingress = np.int64(net.facing[came_over(net, inbox, key & 0xFFFF)])
            lane = np.int64(lane_credits.next_lane(net, ingress, word1, arrival.w1))
            take_data(net, node, link, ingress, lane, now_ps, word1, word2, word3)
    bring_up(net, node, end_ps)


@hook
def credit_switches(world_address, begin_ps, end_ps, first_node, end_node):
    """Let switches first_node to before end_node process the cell begin_ps to end_ps; 1: a pool is too small."""
    world = state.world_at(world_address)
    net, inbox, routes = world.net, world.inbox, world.routes
    nodes = net.const.nodes
    for node in range(first_node, end_node):
        has_mail = net.inbox[inbox_of(node, net.ctl.side)] >= 0
        if net.pool[node].shared_bytes == 0:
            # an NVSwitch: NVLink sends only what the other end has room for
            if has_mail and switches_window(net, inbox, routes, begin_ps, end_ps, node, node + 1):
                return 1
        elif has_mail or net.next_time[node] < end_ps:
            if blocks_short(net):
                return 1
            following, _ = inbox_blocks(net, min(node + 1, nodes - 1))
            if following >= 0:
                algorithms.prefetch_block(net, following)
            take_batch(net, inbox, node, begin_ps, end_ps)
            order_ties(net, inbox, node, begin_ps)
            act(net, inbox, routes, node, begin_ps, end_ps)
            give_back(net, inbox)
            port_queues.set_next_time(net, node)
    return 0
