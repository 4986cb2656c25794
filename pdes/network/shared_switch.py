"""A switch whose ports share a buffer: dynamic thresholds, pauses or drops, marks (docs/explanation/fabric.md).

Departures and arrivals of one switch form one sequence in time, since its ports share the buffer. Keeping that order
for every packet would require a heap. But the buffer's use only matters near a threshold: until a packet would exceed
one, each port advances on its own, up to the time of a packet that comes to it. Packets that other ports have not sent
yet make the buffer look fuller than it is, so a packet that passes the test then is certain to pass; for a packet that
fails, all ports advance to its time, and it is tested again. While a pause is in force the whole switch advances in
time order, since each departure may end it.
"""

import numpy as np

from pdes.core.fifo import NONE, TAKE_UP, carry, head_of, prefetch_block, without_first
from pdes.core.hashing import mix3
from pdes.core.jit import hook, inline, outline, prefetch
from pdes.core.packet import (
    FLAG_ACK,
    FLAG_MARK,
    FLAG_TRIMMED,
    PAUSE,
    PAUSE_FRAME,
    RESUME,
    class_of,
    data_class,
    destination,
    filled_in,
    flags,
    header,
    number_of,
    packets_sent,
    pause_word,
    trimmed,
    wire_bytes,
)
from pdes.core.state import (
    CONTROL,
    FRAMES,
    INF,
    MAX_TELEMETRY_HOPS,
    TELEMETRY_CLASS_SHIFT,
    TELEMETRY_QUEUE_SHIFT,
    TRIMMED,
    world_at,
)
from pdes.network.batch import blocks_short, came_over, give_back, inbox_blocks, take_batch
from pdes.network.link import drop, inbox_of, link_send, prefetch_inbox
from pdes.network.port_queues import (
    TIME_BITS,
    TIME_MASK,
    control_waits,
    fall_out,
    line_up,
    may_go,
    next_queue,
    on_pause,
    paused_link,
)
from pdes.network.routing import balanced, choose, switch_cell_to

AHEAD = 4  # packets of the batch by which prefetching precedes use
TELEMETRY_BYTES_MASK = (1 << TELEMETRY_QUEUE_SHIFT) - 1
TELEMETRY_TIME_MASK = (1 << TELEMETRY_CLASS_SHIFT) - 1


@inline
def threshold(net, node):
    """Return the bytes that one queue, or one ingress port, may use of the shared part: a share of the free bytes."""
    free = max(0, net.pool[node].shared_bytes - net.pool[node].used_bytes)
    return (free * net.const.alpha_1024ths) >> 10


@inline
def admit(net, node, link, way_in, klass, size):
    """Return whether a data packet stays below the threshold of its ingress port (with pauses) or of its queue."""
    # if it does, its bytes are counted
    pool = net.pool[node]
    used = pool.used_bytes + size
    in_use = size + (net.gate[way_in].in_bytes[klass] if net.const.pfc == 1 else net.gate[link].queued_bytes[klass])
    fits = in_use <= threshold(net, node) and used <= pool.shared_bytes
    if fits:
        pool.used_bytes = used
        if net.const.pfc == 1:
            net.gate[way_in].in_bytes[klass] = in_use
    return fits


@inline
def meet(net, link, start, left):
    """Add this port's telemetry to the packet in hand; left: bytes that wait behind it."""
    hops = net.carried.hops
    if hops < MAX_TELEMETRY_HOPS:
        tx = net.tx[link]
        sent_bytes = tx.sent_bytes & TELEMETRY_BYTES_MASK
        net.carried.met[2 * hops] = (start & TELEMETRY_TIME_MASK) | (class_of(tx.meta) << TELEMETRY_CLASS_SHIFT)
        net.carried.met[2 * hops + 1] = sent_bytes | (left << TELEMETRY_QUEUE_SHIFT)
        net.carried.hops = hops + 1


@inline
def is_marked(net, link, left):
    """Return whether a packet that leaves `left` bytes of its class behind is marked (RED on the current queue)."""
    tx = net.tx[link]
    link_class = net.link_class[class_of(tx.meta)]
    low, high = link_class.kmin_bytes, link_class.kmax_bytes
    if left >= high:
        return True
    if left <= low:
        return False
    h = mix3(net.const.seed + 0xECE, number_of(tx.meta), packets_sent(tx.sent_packets))
    return h < np.int64(link_class.pmax * (left - low) / (high - low))


@outline
def widen(net, columns):
    """Double the width of the columns of `depth` and `marks`."""
    net.ctl.depth_ps *= 2
    has_marks = net.const.ecn == 1
    for row in range(net.depth.shape[0] // columns):
        base = row * columns
        for i in range(columns // 2):
            net.depth[base + i] = max(net.depth[base + 2 * i], net.depth[base + 2 * i + 1])
            if has_marks:
                net.marks[base + i] = net.marks[base + 2 * i] + net.marks[base + 2 * i + 1]
        for i in range(columns // 2, columns):
            net.depth[base + i] = 0
            if has_marks:
                net.marks[base + i] = 0


@outline
def column_at(net, link, at_ps):
    """Return the place in `depth` and `marks` of a port's column for a time."""
    columns = net.const.depths
    while at_ps >= net.ctl.depth_ps * columns:
        widen(net, columns)
    return link * columns + at_ps // net.ctl.depth_ps


@inline
def set_off(net, link, asked, start, left, all_left, w1, w2, w3):
    """Send a data packet; left: bytes of its class that wait behind it, all_left: of both classes."""
    if net.const.ecn == 1 and left > 0 and is_marked(net, link, left):
        w1 = filled_in(w1, 0, FLAG_MARK)
        net.gate[link].marked_packets += 1
        net.count.marked_packets += 1
        if net.const.depths > 0:
            net.marks[column_at(net, link, start)] += 1
    if net.hooks.telemetry != 0:
        meet(net, link, start, all_left)
    link_send(net, link, asked, start, w1, w2, w3)


@inline
def send_or_line_up(net, node, link, queue, now, w1, w2, w3):
    """Send a control packet, a pause frame or a trimmed packet, or append it to its queue at the port."""
    # Control packets wait for control packets only. For a trimmed packet, the port has advanced to the current time.
    waits = may_go(net, link) if queue == TRIMMED else control_waits(net.gate[link].mask) != 0
    if net.tx[link].busy_ps <= now and not waits:
        link_send(net, link, now, now, w1, w2, w3)
    else:
        line_up(net, node, link, queue, now, 0, w1, w2, w3)


@outline
def ask(net, node, link, klass, what, now):
    """Send a pause frame over the link: PAUSE or RESUME the traffic that its reverse carries."""
    gate = net.gate[link]
    pool_row = net.pool[node]
    if what == PAUSE:
        gate.asked |= 1 << klass
        pool_row.asked += 1
        gate.pause_frames += 1
        net.count.pause_frames += 1
    else:
        gate.asked &= ~(1 << klass)
        pool_row.asked -= 1
    size = net.const.pause_frame_bytes
    frame = header(PAUSE_FRAME, 0, size, FLAG_ACK)
    send_or_line_up(net, node, link, FRAMES, now, frame, pause_word(klass, what), 0)


@inline
def let_out(net, node, way_in, klass, size, now):
    """Remove a packet from the buffer, which may let the other end of its ingress link resume."""
    pool = net.pool[node]
    if net.const.pfc == 0:
        pool.used_bytes -= size
        return
    gate = net.gate[way_in]
    held = min(gate.held_bytes[klass], size)
    gate.held_bytes[klass] -= held
    gate.in_bytes[klass] -= size - held
    pool.used_bytes -= size - held
    if gate.asked & (1 << klass) != 0 and gate.held_bytes[klass] == 0:
        used = gate.in_bytes[klass]
        if used == 0 or used + net.const.resume_offset_bytes <= threshold(net, node):
            ask(net, node, way_in, klass, RESUME, now)


@outline
def depart(net, node, link, start):
    """Send the next packet that waits at the port and is not paused."""
    gate = net.gate[link]
    queue = next_queue(net, link, gate.mask & ~gate.paused)
    head = head_of(gate.queues[queue])
    carry(net, TAKE_UP, head)
    packet = net.record[head]
    w0, w1, w2, w3 = packet.ready_ps, packet.w1, packet.w2, packet.w3
    gate.queues[queue] = without_first(net, gate.queues[queue])
    if gate.queues[queue] == NONE:
        gate.mask &= ~(1 << queue)
        if gate.mask == 0:
            fall_out(net, node, link)
    asked = start - ((start - w0) & TIME_MASK)
    net.count.events += 1
    if queue >= CONTROL:
        link_send(net, link, asked, start, w1, w2, w3)
    else:
        size = wire_bytes(w1)
        gate.queued_bytes[queue] -= size
        left = gate.queued_bytes[queue]
        set_off(net, link, asked, start, left, left + gate.queued_bytes[1 - queue], w1, w2, w3)
        let_out(net, node, w0 >> TIME_BITS, queue, size, start)


@inline
def bring_up_port(net, node, link, until):
    """Let a port send all packets that depart before `until`."""
    tx = net.tx[link]
    while may_go(net, link) and tx.busy_ps < until:
        depart(net, node, link, tx.busy_ps)


@outline
def bring_up_in_order(net, node, until):
    """Let all ports send the packets that depart before `until`, in time order; ties by link number."""
    base = net.out_ptr[node]
    while True:
        soonest = until
        which = np.int64(-1)
        for i in range(base, base + net.pool[node].ports):
            link = np.int64(net.backlog[i])
            busy = net.tx[link].busy_ps
            if (busy < soonest or (busy == soonest and which >= 0 and link < which)) and may_go(net, link):
                soonest = busy
                which = link
        if which < 0:
            return
        depart(net, node, which, soonest)


@inline
def bring_up_for(net, node, link, now):
    """Advance a port, or all ports where their order matters, to the current time, before an action there."""
    if net.pool[node].asked > 0:
        bring_up_in_order(net, node, now + 1)
    else:
        bring_up_port(net, node, link, now + 1)


@inline
def bring_up(net, node, until):
    """Let all ports send the packets that depart before `until`."""
    if net.pool[node].asked > 0:
        bring_up_in_order(net, node, until)
        return
    for i in range(net.pool[node].ports - 1, -1, -1):
        bring_up_port(net, node, np.int64(net.backlog[net.out_ptr[node] + i]), until)


@outline
def near_threshold(net, node, link, way_in, klass, now, at, w1, w2, w3):
    """Test a data packet near a threshold, with all ports up to time. Return whether it proceeds (and is counted)."""
    bring_up(net, node, now + 1)
    carry(net, TAKE_UP, at)
    size = wire_bytes(w1)
    if admit(net, node, link, way_in, klass, size):
        return True
    if net.const.pfc == 1:
        gate = net.gate[way_in]
        if gate.held_bytes[klass] + size > gate.headroom_bytes:
            drop(net, link, w1)
            return False
        gate.held_bytes[klass] += size
        if gate.asked & (1 << klass) == 0:
            ask(net, node, way_in, klass, PAUSE, now)
        return True
    if net.const.trim == 1:
        cut = net.const.header_bytes
        net.count.dropped_bytes += size - cut
        net.count.trimmed_packets += 1
        net.gate[link].trimmed_packets += 1
        send_or_line_up(net, node, link, TRIMMED, now, trimmed(w1, cut), w2, w3)
    else:
        drop(net, link, w1)
    return False


@inline
def take_data(net, node, link, way_in, now, at, w1, w2, w3):
    """Handle a data packet, record `at`, from `way_in` for the port of `link`."""
    tx = net.tx[link]
    pool = net.pool[node]
    gate = net.gate[link]
    klass = data_class(w1)
    bring_up_for(net, node, link, now)
    carry(net, TAKE_UP, at)
    size = wire_bytes(w1)
    idle = tx.busy_ps <= now and gate.paused & (1 << klass) == 0
    # no packet waits, and this one leaves before its bytes count
    if idle and gate.mask == 0 and pool.asked == 0:
        used = pool.used_bytes + size
        if used <= threshold(net, node) and used <= pool.shared_bytes:
            set_off(net, link, now, now, np.int64(0), np.int64(0), w1, w2, w3)
            return
    clear = pool.asked == 0 and admit(net, node, link, way_in, klass, size)
    if not clear and not near_threshold(net, node, link, way_in, klass, now, at, w1, w2, w3):
        return
    # other ports may have sent, and the other end may have resumed
    idle = tx.busy_ps <= now and gate.paused & (1 << klass) == 0
    if idle and gate.mask & ~gate.paused == 0 and gate.queued_bytes[klass] == 0:
        others = gate.queued_bytes[1 - klass]
        set_off(net, link, now, now, np.int64(0), others, w1, w2, w3)
        let_out(net, node, way_in, klass, size, now)
        return
    line_up(net, node, link, klass, now, way_in, w1, w2, w3)
    gate.queued_bytes[klass] += size
    both = gate.queued_bytes[0] + gate.queued_bytes[1]
    gate.longest_bytes = max(gate.longest_bytes, both)
    if net.const.depths > 0:
        column = column_at(net, link, now)
        net.depth[column] = max(np.int64(net.depth[column]), both)


@outline
def take_pause(net, node, record, w2, now):
    """Handle a pause frame from the other end of a link."""
    link = np.int64(paused_link(net, record))
    bring_up_for(net, node, link, now)
    on_pause(net, record, w2, now)
    if may_go(net, link) and net.tx[link].busy_ps <= now:
        depart(net, node, link, now)


@inline
def act(net, inbox, routes, node, begin, end):
    """Process one cell of one switch: the packets of the batch in time order, and departures."""
    batch = net.ctl.batch
    rule = net.hooks.balancing != 0
    for i in range(batch):
        packet = net.record[inbox.batch_pos[inbox.batch_key[i] & 0xFFFF]]
        link = np.int64(-1)
        if destination(packet.w1) != PAUSE_FRAME:
            cell = switch_cell_to(net, routes, node, destination(packet.w1), packet.w2)
            link = choose(routes, cell, node, packet.w2)
            inbox.batch_tmp[i] = cell
            prefetch(net.tx, link)
            prefetch(net.gate, link)
        inbox.batch_out[i] = link
    for i in range(batch):
        if i + AHEAD < batch and inbox.batch_out[i + AHEAD] >= 0:
            prefetch_inbox(net, inbox.batch_out[i + AHEAD])
        key = inbox.batch_key[i]
        now = begin + (key >> 16)
        at = inbox.batch_pos[key & 0xFFFF]
        packet = net.record[at]
        w1, w2, w3 = packet.w1, packet.w2, packet.w3
        link = inbox.batch_out[i]
        if rule and link >= 0:
            link = balanced(net, routes, inbox.batch_tmp[i], node, w1, w2, now)
        if link < 0:
            take_pause(net, node, at, w2, now)
        elif flags(w1) & (FLAG_ACK | FLAG_TRIMMED) != 0:
            bring_up_for(net, node, link, now)
            carry(net, TAKE_UP, at)
            queue = CONTROL if flags(w1) & FLAG_ACK != 0 else TRIMMED
            send_or_line_up(net, node, link, queue, now, w1, w2, w3)
        else:
            way_in = np.int64(net.facing[came_over(net, inbox, key & 0xFFFF)])
            take_data(net, node, link, way_in, now, at, w1, w2, w3)
    bring_up(net, node, end)


@hook
def shared_switches(address, begin, end, first, last):
    """Let switches from `first` to before `last` process a cell; return 1 if a pool is too small."""
    world = world_at(address)
    net, inbox, routes = world.net, world.inbox, world.routes
    nodes = net.const.nodes
    for node in range(first, last):
        has_mail = net.inbox[inbox_of(node, net.ctl.side)] >= 0
        if has_mail or net.next_time[node] < end:
            if blocks_short(net):
                return 1
            following, _ = inbox_blocks(net, min(node + 1, nodes - 1))
            if following >= 0:
                prefetch_block(net, following)
            take_batch(net, inbox, node, begin, end)
            act(net, inbox, routes, node, begin, end)
            give_back(net, inbox)
            # the next event is when a port with packets to send falls idle
            soonest = np.int64(INF)
            base = net.out_ptr[node]
            for i in range(base, base + net.pool[node].ports):
                link = np.int64(net.backlog[i])
                if may_go(net, link):
                    soonest = min(soonest, net.tx[link].busy_ps)
            net.next_time[node] = soonest
    return 0
