"""A switch whose ports share a buffer: dynamic thresholds, pauses or drops, marks (docs/explanation/fabric.md).

Departures and arrivals of one switch form one sequence in time, since its ports share the buffer. Keeping that order
for every packet would require a heap. But the buffer's use only matters near a threshold: until a packet would exceed
one, each port advances on its own, up to the time of a packet that comes to it. Packets that other ports have not sent
yet make the buffer look fuller than it is, so a packet that passes the test then is certain to pass; for a packet that
fails, all ports advance to its time, and it is tested again. While a pause is in force the whole switch advances in
time order, since each departure may end it. Parameters such as `net` and `link` are explained in pdes/core/state.py.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.algorithms import NONE, TAKE_UP, carry, head_of, mix3, prefetch_block, without_first
from nadi.pdes.core.jit import hook, inline, outline, prefetch
from nadi.pdes.network import lane_credits, port_queues
from nadi.pdes.network.batch import blocks_short, came_over, give_back, inbox_blocks, order_ties, take_batch
from nadi.pdes.network.link import drop, inbox_of, link_send, prefetch_inbox
from nadi.pdes.network.routing import choose, link_by_rule, switch_cell_to
from nadi.pdes.network.switch import switches_window
from nadi.pdes.network.telemetry import sample_queue

REFERENCE_PSB = 320.0  # ps per byte at 25 Gb/s, to which marking thresholds of data classes refer
AHEAD = 4  # packets of the batch by which prefetching precedes use
TRIMMED_A_TURN = 10  # trimmed packets that are sent per data packet (NDP: Handley et al., SIGCOMM 2017, section 3.1)
MANY = (1 << 31) - 1  # packets per turn that mean no limit
TELEMETRY_BYTES_MASK = (1 << state.TELEMETRY_QUEUE_SHIFT) - 1
TELEMETRY_TIME_MASK = (1 << state.TELEMETRY_CLASS_SHIFT) - 1


def trimmed_a_turn(share: float, full_bytes: int, trimmed_bytes: int) -> int:
    """Return the number of trimmed packets that a port sends per data packet while both wait.

    Ultra Ethernet (1.0.2, section 3.6.5) gives the class of trimmed packets 25 % by deficit round robin, or as much as
    data; htsim's queue (compositequeue.cpp) sends trimmed packets first.

    Args:
        share: Share of the port's bytes that trimmed packets get; 0 = NDP's ten to one, 1 = all they need.
        full_bytes: Size of a full data packet on the wire in bytes.
        trimmed_bytes: Size of a trimmed packet on the wire in bytes.
    """
    if share == 0:
        return TRIMMED_A_TURN
    return MANY if share == 1 else min(MANY, max(1, int(share / (1 - share) * full_bytes / trimmed_bytes)))


@inline
def threshold(net, node):
    """Return the buffer bytes of switch `node` of `net` that a queue or ingress port may use: a share of the free."""
    free = max(0, net.pool[node].shared_bytes - net.pool[node].used_bytes)
    return (free * net.pool[node].alpha_1024ths) >> 10  # alpha x free (Choudhury and Hahne, 1998)


@inline
def admit(net, node, link, ingress, klass, size_bytes):
    """Return whether size_bytes to `link` of `node` of `net` stay below the threshold of ingress port or queue."""
    # If it does, its bytes are counted. ingress: own outgoing link whose reverse carried it; klass: its data class.
    pool = net.pool[node]
    pauses = pool.pfc & (1 << klass) != 0
    used = pool.used_bytes + size_bytes  # pauses count by where bytes came from, drops by where they go
    in_use = size_bytes + (net.gate[ingress].in_bytes[klass] if pauses else net.gate[link].queued_bytes[klass])
    limit = net.gate[link].limit_bytes
    fits = in_use <= (limit if limit > 0 else threshold(net, node)) and used <= pool.shared_bytes
    if fits:
        pool.used_bytes = used
        if pauses:
            net.gate[ingress].in_bytes[klass] = in_use
    return fits


@inline
def meet(net, link, start_ps, left_bytes):
    """Add telemetry of `link` of `net` at start_ps to the packet in hand; left_bytes: bytes that wait behind it."""
    hops = net.carried.hops
    if hops < state.MAX_TELEMETRY_HOPS:
        tx = net.tx[link]
        sent_bytes = tx.sent_bytes & TELEMETRY_BYTES_MASK
        net.carried.met[2 * hops] = (start_ps & TELEMETRY_TIME_MASK) | (
            packet.class_of(tx.meta) << state.TELEMETRY_CLASS_SHIFT
        )
        net.carried.met[2 * hops + 1] = sent_bytes | (left_bytes << state.TELEMETRY_QUEUE_SHIFT)
        net.carried.hops = hops + 1


@inline
def is_marked(net, node, link, klass, left_bytes, start_ps):
    """Return whether a packet of `klass` that leaves left_bytes at `link` of `node` of `net` at start_ps is marked."""
    tx = net.tx[link]
    link_class = net.link_class[packet.class_of(tx.meta)]
    low, high, pmax = link_class.kmin_bytes, link_class.kmax_bytes, link_class.pmax
    if net.gate[link].traits & port_queues.MARKS_BY_CLASS != 0:
        own_class = net.class_marks[klass]
        if own_class.is_own == 1:
            scale = REFERENCE_PSB / link_class.ps_per_byte
            low, high = np.int64(own_class.kmin_bytes * scale), np.int64(own_class.kmax_bytes * scale)
            pmax = own_class.pmax
    if left_bytes >= high:  # RFC 3168 leaves the queue law open: DCQCN's is RED's, kmin to kmax
        return True
    if left_bytes <= low:
        return False
    own = net.mark_draws[link]
    if start_ps - own.last_draw_ps > net.const.tie_pause_ps:
        own.draws = 0
    own.draws += 1
    own.last_draw_ps = start_ps
    h = mix3(net.const.seed + 0xECE, link - net.out_ptr[node], own.draws)
    return h < np.int64(pmax * (left_bytes - low) / (high - low))


@outline
def widen(net, columns):
    """Double the width of the `columns` of `depth` and `marks` of each port of `net`."""
    net.ctl.depth_ps *= 2
    has_marks = net.const.ecn == 1
    for row in range(net.depth.shape[0] // columns):
        base = row * columns
        for i in range(columns // 2):
            net.depth[base + i] = max(net.depth[base + 2 * i], net.depth[base + 2 * i + 1])
            if has_marks:
                net.marks[base + i] = net.marks[base + 2 * i] + net.marks[base + 2 * i + 1]
        # the right half is for later times
        for i in range(columns // 2, columns):
            net.depth[base + i] = 0
            if has_marks:
                net.marks[base + i] = 0


@outline
def column_at(net, link, time_ps):
    """Return the place in `depth` and `marks` of `net` of the column of `link` for time_ps."""
    columns = net.const.depths
    while time_ps >= net.ctl.depth_ps * columns:
        widen(net, columns)
    return link * columns + time_ps // net.ctl.depth_ps


@outline
def note_queue(net, link, now_ps, waiting_bytes):
    """Note the waiting_bytes at the port of `link` of `net` at now_ps."""
    column = column_at(net, link, now_ps)
    net.depth[column] = max(np.int64(net.depth[column]), waiting_bytes)
    if net.const.sample_ps > 0:
        sample_queue(net, link, now_ps, waiting_bytes)


@inline
def start_transmission(net, node, link, klass, queued_ps, start_ps, left_bytes, word1, word2, word3):
    """Send a data packet from a switch.

    net, node, link: outgoing link of a switch of the LP; klass: the packet's data class; queued_ps, start_ps: time in
    ps at which it came to the port, and at which its first bit leaves; left_bytes: bytes of its class that wait behind
    it; word1, word2, word3: words of the packet (pdes/core/packet.py).
    """
    marks = left_bytes > 0 and net.gate[link].traits & (port_queues.MARKS | port_queues.MARKS_BY_CLASS) != 0
    if marks and is_marked(net, node, link, klass, left_bytes, start_ps):
        word1 = packet.filled_in(word1, 0, packet.FLAG_MARK)
        net.gate[link].marked_packets += 1
        net.count.marked_packets += 1
        if net.const.depths > 0:
            net.marks[column_at(net, link, start_ps)] += 1
    if net.hooks.telemetry != 0:
        meet(net, link, start_ps, net.gate[link].waiting_bytes)
    link_send(net, link, queued_ps, start_ps, word1, word2, word3)


@inline
def send_or_enqueue(net, node, link, queue, now_ps, word1, word2, word3):
    """Send a control packet, a pause frame or a trimmed packet over a link, or append it to its queue at the port.

    net, node, link: outgoing link of a switch of the LP; queue: CONTROL, FRAMES or TRIMMED; now_ps: current time in ps;
    word1, word2, word3: words of the packet.
    """
    # Control packets wait for control packets only. For a trimmed packet, the port has advanced to the current time.
    waits = (
        port_queues.may_go(net, link) if queue == state.TRIMMED else port_queues.control_waits(net.gate[link].mask) != 0
    )
    if net.tx[link].busy_ps <= now_ps and not waits:
        link_send(net, link, now_ps, now_ps, word1, word2, word3)
    else:
        port_queues.enqueue_packet(net, node, link, queue, now_ps, 0, word1, word2, word3)


@outline
def ask(net, node, link, klass, operation, now_ps):
    """At now_ps, send a pause frame over `link` of `node` of `net`: PAUSE or RESUME (`operation`) class `klass`."""
    gate = net.gate[link]
    pool_row = net.pool[node]
    if operation == packet.PAUSE:
        gate.asked |= 1 << klass
        pool_row.asked += 1
        gate.pause_frames += 1
        net.count.pause_frames += 1
    else:
        gate.asked &= ~(1 << klass)
        pool_row.asked -= 1
    size_bytes = net.const.pause_frame_bytes
    frame = packet.header(packet.PAUSE_FRAME, 0, size_bytes, packet.FLAG_ACK)
    send_or_enqueue(net, node, link, state.FRAMES, now_ps, frame, packet.pause_word(klass, operation), 0)


@inline
def release_buffer(net, node, ingress, klass, size_bytes, now_ps):
    """Remove size_bytes of class `klass` from the buffer of `node` of `net` at now_ps; `ingress` may resume."""
    pool = net.pool[node]
    if pool.pfc & (1 << klass) == 0:
        pool.used_bytes -= size_bytes
        return
    gate = net.gate[ingress]
    # bytes in the headroom leave first
    held = min(gate.held_bytes[klass], size_bytes)
    gate.held_bytes[klass] -= held
    gate.in_bytes[klass] -= size_bytes - held
    pool.used_bytes -= size_bytes - held  # headroom is no part of the shared bytes
    if gate.asked & (1 << klass) != 0 and gate.held_bytes[klass] == 0:
        used = gate.in_bytes[klass]
        if used == 0 or used + pool.resume_offset_bytes <= threshold(net, node):
            ask(net, node, ingress, klass, packet.RESUME, now_ps)


@outline
def depart(net, node, link, start_ps):
    """Send, from start_ps, the next packet that waits at the port of `link` of `node` of `net` and is not paused."""
    gate = net.gate[link]
    queue = port_queues.next_queue(net, node, link, gate.mask & ~gate.paused)
    head = head_of(gate.queues[queue])
    carry(net, TAKE_UP, head)
    arrival = net.record[head]
    word0, word1, word2, word3 = arrival.ready_ps, arrival.w1, arrival.w2, arrival.w3
    gate.queues[queue] = without_first(net, gate.queues[queue])
    if gate.queues[queue] == NONE:
        gate.mask &= ~(1 << queue)
        if gate.mask == 0:
            port_queues.remove_port(net, node, link)
    # word 0 has the low bits of the time, and the ingress above them
    queued_ps = start_ps - ((start_ps - word0) & port_queues.TIME_MASK)
    net.count.events += 1
    if queue >= state.CONTROL:
        link_send(net, link, queued_ps, start_ps, word1, word2, word3)
    else:
        size_bytes = packet.wire_bytes(word1)
        came_in = queue
        if net.const.rising_lanes != 0:
            came_in = np.int64(packet.data_class(word1))
            word1 = packet.with_class(word1, queue)
        left_bytes = gate.queued_bytes[queue] - size_bytes
        gate.queued_bytes[queue] = left_bytes
        gate.waiting_bytes -= size_bytes
        start_transmission(net, node, link, queue, queued_ps, start_ps, left_bytes, word1, word2, word3)
        release_buffer(net, node, word0 >> port_queues.TIME_BITS, came_in, size_bytes, start_ps)


@inline
def bring_up_port(net, node, link, until_ps):
    """Let the port of `link` of switch `node` of `net` send all packets that depart before until_ps."""
    tx = net.tx[link]
    while port_queues.may_go(net, link) and tx.busy_ps < until_ps:
        depart(net, node, link, tx.busy_ps)


@outline
def bring_up_in_order(net, node, until_ps):
    """Let ports of `node` of `net` send packets that depart before until_ps, in time order; ties by link number."""
    base = net.out_ptr[node]  # a scan: few ports have packets, and pauses are rare
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
def bring_up_for(net, node, link, now_ps):
    """Advance the port of `link` of `node` of `net`, or all of the switch where order matters, to now_ps."""
    if net.pool[node].asked > 0:
        bring_up_in_order(net, node, now_ps + 1)
    else:
        bring_up_port(net, node, link, now_ps + 1)


@inline
def bring_up(net, node, until_ps):
    """Let all ports of switch `node` of `net` send the packets that depart before until_ps."""
    if net.pool[node].asked > 0:
        bring_up_in_order(net, node, until_ps)
        return
    for i in range(net.pool[node].ports - 1, -1, -1):
        bring_up_port(net, node, np.int64(net.backlog[net.out_ptr[node] + i]), until_ps)


@outline
def near_threshold(net, node, link, ingress, klass, now_ps, record, word1, word2, word3):
    """Test a data packet near a threshold, with all ports up to date. Return whether it proceeds (and is counted).

    net, node, link, ingress, klass: the packet's switch, port, incoming port and data class; now_ps: current time in
    ps; record, word1, word2, word3: record and words of the packet.
    """
    bring_up(net, node, now_ps + 1)  # may free enough
    carry(net, TAKE_UP, record)
    size_bytes = packet.wire_bytes(word1)
    if admit(net, node, link, ingress, klass, size_bytes):
        return True
    if net.pool[node].pfc & (1 << klass) != 0:
        gate = net.gate[ingress]
        # 802.1Q clause 36: a lossless class has headroom for what the sender sends before a pause takes effect
        if gate.held_bytes[klass] + size_bytes > gate.headroom_bytes:
            drop(net, link, word1)
            return False
        gate.held_bytes[klass] += size_bytes
        if gate.asked & (1 << klass) == 0:
            ask(net, node, ingress, klass, packet.PAUSE, now_ps)
        return True
    if net.pool[node].trim == 1:
        # the header alone travels on; at the last hop the receiver's own load was the reason, not another's
        cut = net.const.trimmed_bytes
        at_end = packet.FLAG_LAST_HOP if net.gate[link].traits & port_queues.TO_NPU != 0 else 0
        net.count.dropped_bytes += size_bytes - cut
        net.count.trimmed_packets += 1
        net.gate[link].trimmed_packets += 1
        send_or_enqueue(net, node, link, state.TRIMMED, now_ps, packet.trimmed(word1, cut, at_end), word2, word3)
    else:
        drop(net, link, word1)
    return False


@inline
def take_data(net, node, link, ingress, leaves, now_ps, record, word1, word2, word3):
    """Handle a data packet for the port of a link.

    net, node, link, ingress: the packet's switch, port and incoming port; leaves: the data class in which it leaves;
    now_ps: current time in ps; record, word1, word2, word3: record and words of the packet.
    """
    tx = net.tx[link]
    pool = net.pool[node]
    gate = net.gate[link]
    klass = packet.data_class(word1)
    bring_up_for(net, node, link, now_ps)
    carry(net, TAKE_UP, record)
    size_bytes = packet.wire_bytes(word1)
    # pauses count by the class in which it came, which its word 1 keeps while it waits
    sent_word1 = word1 if leaves == klass else packet.with_class(word1, leaves)
    idle = tx.busy_ps <= now_ps and gate.paused & (1 << leaves) == 0
    # no packet waits, and this one leaves before its bytes count
    if idle and gate.mask == 0 and pool.asked == 0:
        used = pool.used_bytes + size_bytes
        if used <= threshold(net, node) and used <= pool.shared_bytes:
            start_transmission(net, node, link, leaves, now_ps, now_ps, np.int64(0), sent_word1, word2, word3)
            return
    clear = pool.asked == 0 and admit(net, node, link, ingress, klass, size_bytes)
    if not clear and not near_threshold(net, node, link, ingress, klass, now_ps, record, word1, word2, word3):
        return
    # other ports may have sent, and the other end may have resumed
    idle = tx.busy_ps <= now_ps and gate.paused & (1 << leaves) == 0
    if idle and gate.mask & ~gate.paused == 0 and gate.queued_bytes[leaves] == 0:
        # cut through the queue: nothing of its class waits, and the port is idle
        start_transmission(net, node, link, leaves, now_ps, now_ps, np.int64(0), sent_word1, word2, word3)
        release_buffer(net, node, ingress, klass, size_bytes, now_ps)
        return
    port_queues.enqueue_packet(net, node, link, leaves, now_ps, ingress, word1, word2, word3)
    gate.queued_bytes[leaves] += size_bytes
    gate.waiting_bytes += size_bytes
    gate.longest_bytes = max(gate.longest_bytes, gate.waiting_bytes)
    if net.const.depths > 0:
        note_queue(net, link, now_ps, gate.waiting_bytes)


@outline
def take_rising(net, node, link, ingress, now_ps, record, word1, word2, word3):
    """Handle a data packet whose class may rise at this switch, as `take_data`."""
    leaves = np.int64(lane_credits.next_lane(net, ingress, word1, net.record[record].w1))
    take_data(net, node, link, ingress, leaves, now_ps, record, word1, word2, word3)


@outline
def take_pause(net, node, record, word2, now_ps):
    """Handle at now_ps a pause frame in `record`, with its word2, from the other end of a link of `node` of `net`."""
    link = np.int64(port_queues.paused_link(net, record))
    bring_up_for(net, node, link, now_ps)
    port_queues.on_pause(net, record, word2, now_ps)
    if port_queues.may_go(net, link) and net.tx[link].busy_ps <= now_ps:
        depart(net, node, link, now_ps)


@inline
def act(net, inbox, routes, node, begin_ps, end_ps):
    """Process a cell of switch `node` of `net` (routes, begin_ps, end_ps): the batch in time order, and departures."""
    batch = net.ctl.batch
    rule = net.hooks.balancing != 0 or net.hooks.detour != 0
    rises = net.const.rising_lanes != 0
    for i in range(batch):
        arrival = net.record[inbox.batch_pos[inbox.batch_key[i] & 0xFFFF]]
        link = np.int64(-1)
        if packet.destination(arrival.w1) != packet.PAUSE_FRAME:
            cell = switch_cell_to(net, routes, node, packet.destination(arrival.w1), arrival.w2)
            link = choose(routes, cell, node, arrival.w2)
            inbox.batch_tmp[i] = cell  # for a rule, which chooses at the packet's own time
            prefetch(net.tx, link, 0)
            prefetch(net.gate, link, 0)
        inbox.batch_out[i] = link
    for i in range(batch):
        if i + AHEAD < batch and inbox.batch_out[i + AHEAD] >= 0:
            prefetch_inbox(net, inbox.batch_out[i + AHEAD])
        key = inbox.batch_key[i]
        now_ps = begin_ps + (key >> 16)
        at = inbox.batch_pos[key & 0xFFFF]
        arrival = net.record[at]
        word1, word2, word3 = arrival.w1, arrival.w2, arrival.w3
        link = inbox.batch_out[i]
        if rule and link >= 0:
            link = link_by_rule(net, routes, inbox.batch_tmp[i], node, at, now_ps)
            word2 = arrival.w2
        if link < 0:
            take_pause(net, node, at, word2, now_ps)
        elif packet.flags(word1) & (packet.FLAG_ACK | packet.FLAG_TRIMMED) != 0:
            bring_up_for(net, node, link, now_ps)
            carry(net, TAKE_UP, at)
            queue = state.CONTROL if packet.flags(word1) & packet.FLAG_ACK != 0 else state.TRIMMED
            send_or_enqueue(net, node, link, queue, now_ps, word1, word2, word3)
        else:
            ingress = np.int64(net.facing[came_over(net, inbox, key & 0xFFFF)])
            if rises:
                take_rising(net, node, link, ingress, now_ps, at, word1, word2, word3)
            else:  # the same class twice, which costs nothing once compiled
                klass = packet.data_class(word1)
                take_data(net, node, link, ingress, klass, now_ps, at, word1, word2, word3)
    bring_up(net, node, end_ps)


@hook
def shared_switches(world_address, begin_ps, end_ps, first_node, end_node):
    """Let switches first_node to before end_node process the cell begin_ps to end_ps; 1: a pool is too small."""
    world = state.world_at(world_address)
    net, inbox, routes = world.net, world.inbox, world.routes
    nodes = net.const.nodes
    for node in range(first_node, end_node):
        has_mail = net.inbox[inbox_of(node, net.ctl.side)] >= 0
        if net.pool[node].shared_bytes == 0:
            # an NVSwitch: NVLink sends only what the other end has room for, so nothing pauses or marks
            if has_mail and switches_window(net, inbox, routes, begin_ps, end_ps, node, node + 1):
                return 1
        elif has_mail or net.next_time[node] < end_ps:
            if blocks_short(net):
                return 1
            following, _ = inbox_blocks(net, min(node + 1, nodes - 1))
            if following >= 0:
                prefetch_block(net, following)
            take_batch(net, inbox, node, begin_ps, end_ps)
            order_ties(net, inbox, node, begin_ps)
            act(net, inbox, routes, node, begin_ps, end_ps)
            give_back(net, inbox)
            port_queues.set_next_time(net, node)
    return 0
