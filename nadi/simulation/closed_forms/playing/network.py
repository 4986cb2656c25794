"""Messages of one group on an idle fabric, event by event: the compiled half of `idle_fabric`.

This is a second, much simpler network model for comparison with the engine: one heap of events, and per message only
the port by which it leaves, the queue before its receiver and, if all paths to the receiver meet earlier, the queue
there. At one moment, events of members come before events of packets, and packets follow the engine's fair order
(docs/explanation/parallel.md).
"""

import numpy as np

from nadi.simulation.closed_forms.playing.events import (
    ACTS,
    COMES,
    FORWARDS,
    FORWARDS_ACK,
    IS_ACKNOWLEDGED,
    KIND_BITS,
    KINDS_MASK,
    LEAVES,
    MAY_SEND,
    POSTS,
    SENDS,
    WAKES,
    pop,
    push_own,
    push_packet,
)
from nadi.simulation.closed_forms.playing.state import idle_at
from pdes.kernels import inline, kernel, outline

NONE = -1

# State of a lane's next step.
READY, PUT_OFF, POSTED = 0, 1, 2

TOUCHES = 3  # memory accesses per byte of a reduction: two reads and a write

# Reasons for which `play` returns.
ALL_DONE, NO_ROOM, PAUSED = 0, 1, 2


@inline
def queue_lane(g, lane):
    """Append a lane to the ring of lanes to advance."""
    lanes = g.lanes
    if lanes.waits[lane] == 0:
        lanes.waits[lane] = 1
        to = g.ctl.looked_to
        lanes.ring[to] = lane
        g.ctl.looked_to = to + 1 if to + 1 < lanes.ring.shape[0] else 0


@outline
def advance(g):
    """Advance the lanes in the ring and those that wait for them as far as possible, then let kicked ports send."""
    lanes = g.lanes
    while g.ctl.looked_from != g.ctl.looked_to:
        at = g.ctl.looked_from
        lane = lanes.ring[at]
        g.ctl.looked_from = at + 1 if at + 1 < lanes.ring.shape[0] else 0
        done = lanes.at[lane]
        while half_step(g, lane):
            pass
        lanes.waits[lane] = 0
        if lanes.at[lane] > done:
            for i in range(lanes.follower_ptr[lane], lanes.follower_ptr[lane + 1]):
                queue_lane(g, lanes.follower[i])
    while g.ctl.kicked > 0:
        g.ctl.kicked -= 1
        port = g.ports.kicked[g.ctl.kicked]
        g.ports.is_kicked[port] = 0
        send(g, port)


@inline
def half_step(g, lane):
    """Post the send of a lane's next step, or end the step; return whether that was possible."""
    lanes, steps = g.lanes, g.steps
    step = lanes.at[lane]
    state = lanes.state[lane]
    if step == lanes.first[lane + 1] or state == PUT_OFF:
        return False
    if state == POSTED:
        has_left = lanes.blocking[lane] * (steps.pair[step] >= 0)
        if lanes.left[lane] < has_left or lanes.came[lane] < steps.receives[step]:
            return False
        lanes.left[lane] -= has_left
        lanes.came[lane] -= steps.receives[step]
        lanes.at[lane] = step + 1
        lanes.state[lane] = READY
        g.clock.end_ps = g.clock.now_ps
        return True
    after = steps.after[step]
    if after >= 0 and lanes.at[after] - lanes.first[after] <= steps.after_step[step]:
        return False
    latency_ps = lanes.latency_ps[lane]
    if step == lanes.first[lane] and lanes.begins[lane] == 1:
        latency_ps += g.ends.begin_ps
    if steps.pair[step] >= 0 and latency_ps > 0:
        lanes.state[lane] = PUT_OFF
        push_own(g, g.clock.now_ps + latency_ps, POSTS, lane)
    else:
        post(g, lane)
    return True


@outline
def post(g, lane):
    """Post the send of a lane's next step, if it has one."""
    g.lanes.state[lane] = POSTED
    step = g.lanes.at[lane]
    if g.steps.pair[step] >= 0:
        if g.ends.send_ps > 0:
            push_own(g, g.clock.now_ps + g.ends.send_ps, SENDS, step)
        else:
            send_message(g, step)


@inline
def send_message(g, step):
    """Append a step's message to its queue pair."""
    pairs, steps = g.pairs, g.steps
    pair = steps.pair[step]
    steps.next[step] = NONE
    if pairs.head[pair] < 0:
        pairs.head[pair] = step
        pairs.packets[pair] = steps.packets[step]
        pairs.next_ps[pair] = g.clock.now_ps + moving_ps(g, pair)
    else:
        steps.next[pairs.tail[pair]] = step
    pairs.tail[pair] = step
    take_turns(g, pair, g.clock.now_ps)
    kick(g, port_of(g, pair))


@inline
def port_of(g, pair):
    """Return the port that a queue pair sends through."""
    return g.ways.port[g.pairs.way[pair]]


@inline
def kick(g, port):
    """Mark a port so that it tries to send after all lanes have advanced."""
    if g.ports.is_kicked[port] == 0:
        g.ports.is_kicked[port] = 1
        g.ports.kicked[g.ctl.kicked] = port
        g.ctl.kicked += 1


@inline
def moving_ps(g, pair):
    """Return the time to move the payload of the pair's next packet at its share."""
    pairs = g.pairs
    head = pairs.head[pair]
    if head < 0 or pairs.moved_ps[pair] == 0:
        return np.int64(0)
    size = g.ctl.mtu_bytes
    if pairs.packets[pair] == 1:
        size = g.steps.last_bytes[head]
    return np.int64(size * pairs.moved_ps[pair] + 0.5)


@outline
def take_turns(g, pair, by_ps):
    """Put a queue pair in line at its port, if it has something to send and room in its window.

    A pair whose share delays it beyond by_ps gets a MAY_SEND event instead.
    """
    pairs = g.pairs
    if pairs.waits[pair] == 0 and pairs.head[pair] >= 0:
        if pairs.open[pair] >= g.ctl.window_packets:
            pairs.is_full[pair] = 1
        else:
            pairs.waits[pair] = 1
            if pairs.next_ps[pair] <= by_ps:
                line_up(g, pair)
            else:
                push_own(g, pairs.next_ps[pair], MAY_SEND, pair)


@inline
def line_up(g, pair):
    """Append a queue pair to the line at its port."""
    ports = g.ports
    port = port_of(g, pair)
    g.pairs.next[pair] = NONE
    if ports.turn[port] < 0:
        ports.turn[port] = pair
    else:
        g.pairs.next[ports.last_turn[port]] = pair
    ports.last_turn[port] = pair


@outline
def send(g, port):
    """Send an acknowledgement, else a packet of the queue pair whose turn it is, if the port is free."""
    ports = g.ports
    if ports.free_ps[port] <= g.clock.now_ps:
        if ports.ack[port] >= 0:
            send_ack(g, port)
        elif ports.turn[port] >= 0:
            send_data(g, port)
    if (ports.ack[port] >= 0 or ports.turn[port] >= 0) and ports.free_ps[port] < ports.wake_ps[port]:
        ports.wake_ps[port] = ports.free_ps[port]
        push_own(g, ports.free_ps[port], WAKES, port)


@inline
def send_ack(g, port):
    """Send the next acknowledgement of a port; it belongs to a queue pair that sends to the port's member."""
    ports, pairs = g.ports, g.pairs
    ack = ports.ack[port]
    ports.ack[port] = ports.next_ack[ack]
    ports.next_ack[ack] = g.ctl.free_ack
    g.ctl.free_ack = ack
    ports.acks[port] -= 1
    pair, step = ports.ack_pair[ack], ports.ack_step[ack]
    begin(g, port, pair, pairs.ack[pair], pairs.back[pair], FORWARDS_ACK, IS_ACKNOWLEDGED, step)


@inline
def send_data(g, port):
    """Send a packet of the queue pair whose turn it is."""
    ports, pairs, steps = g.ports, g.pairs, g.steps
    pair = ports.turn[port]
    ports.turn[port] = pairs.next[pair]
    step = pairs.head[pair]
    pairs.packets[pair] -= 1
    pairs.open[pair] += 1
    g.ctl.pause_after -= 1
    is_last = pairs.packets[pair] == 0
    kind, to = pairs.full[pair], np.int64(NONE)
    if is_last:
        kind, to = steps.last[step], step
        following = steps.next[step]
        pairs.head[pair] = following
        if following >= 0:
            pairs.packets[pair] = steps.packets[following]
    begin(g, port, pair, kind, pairs.way[pair], FORWARDS, COMES, to)
    left_ps = g.clock.now_ps + g.kind[kind].left_ps
    pairs.waits[pair] = 0
    begins = max(pairs.next_ps[pair], 2 * g.clock.now_ps - left_ps)
    pairs.next_ps[pair] = max(g.clock.now_ps, begins + moving_ps(g, pair))
    if g.clock.now_ps < ports.free_ps[port] < left_ps:  # at message level, messages at a share are serial
        pairs.next_ps[pair] = left_ps
    take_turns(g, pair, ports.free_ps[port])
    lane = steps.lane[step]
    if is_last and g.lanes.blocking[lane] > 0 and g.ends.counts_back == 0:
        push_own(g, left_ps, LEAVES, lane)


@inline
def begin(g, port, pair, kind, way, forwards, reaches, to):
    """Occupy the port, and push the packet's event at its first queue, behind earlier packets on the same links."""
    ways, kind_row = g.ways, g.kind[kind]
    free_ps = g.clock.now_ps + kind_row.first_ps
    g.ports.free_ps[port] = free_ps
    if ways.queue[way] < 0:
        at_ps = free_ps + kind_row.tail_ps + kind_row.after_ps
        if reaches == COMES:
            at_ps = max(at_ps, g.pairs.arrived_ps[pair])
            g.pairs.arrived_ps[pair] = at_ps
        push_packet(g, at_ps, ways.last[way], at_ps, reaches, pair, kind, to)
    else:
        at_ps = g.clock.now_ps + kind_row.head_ps
        order = ways.order[way]
        if order >= 0:
            at_ps = max(at_ps, ways.free_ps[order] + kind_row.seen_ps)
            ways.free_ps[order] = at_ps + kind_row.between_ps - kind_row.seen_ps
        push_packet(g, at_ps, ways.via[way], at_ps - ways.latency_ps[way], forwards, pair, kind, to)


@inline
def occupy_port(g, port, at_ps, busy_ps, earliest_ps):
    """Return when a port has sent a packet that may start at at_ps, after earlier ones and not before earliest_ps."""
    free_ps = max(max(at_ps, g.ports.free_ps[port]) + busy_ps, earliest_ps)
    g.ports.free_ps[port] = free_ps
    return free_ps


@inline
def forward(g, pair, kind, way, reaches, to):
    """Handle a packet at the first queue behind its port; packets that meet there keep their order."""
    kind_row, meets = g.kind[kind], g.ways.meets[way]
    at_ps = g.clock.now_ps
    earliest_ps = at_ps - kind_row.head_ps + kind_row.first_ps + kind_row.tail_ps
    if meets >= 0:
        free_ps = occupy_port(g, meets, at_ps, kind_row.meet_ps, earliest_ps)
        at_ps = free_ps - kind_row.meet_ps + kind_row.on_head_ps
        earliest_ps = free_ps + kind_row.on_tail_ps
    at_ps = occupy_port(g, g.ways.queue[way], at_ps, kind_row.last_ps, earliest_ps) + kind_row.after_ps
    push_packet(g, at_ps, g.ways.last[way], at_ps, reaches, pair, kind, to)


@inline
def ack_return_ps(g, pair, port):
    """Return when the last waiting acknowledgement of the receiver's port is back at the sender without contention."""
    kind_row = g.kind[g.pairs.ack[pair]]
    first_ps = kind_row.first_ps
    left_ps = max(g.clock.now_ps, g.ports.free_ps[port]) + g.ports.acks[port] * first_ps
    way_ps = kind_row.tail_ps + kind_row.on_tail_ps
    if g.ways.queue[g.pairs.back[pair]] >= 0:
        way_ps = max(way_ps, kind_row.head_ps + kind_row.on_head_ps + kind_row.last_ps - first_ps)
    return left_ps + way_ps + kind_row.after_ps


@inline
def act_time_ps(g, pair, port, step):
    """Return when a lane acts on the arrived message of a step: in order, and after its reduction."""
    lanes = g.lanes
    at_ps = g.clock.now_ps
    if g.ends.counts_back > 0:
        at_ps = ack_return_ps(g, pair, port)
    at_ps += g.ends.act_ps
    if g.ends.memory_ps_per_byte > 0:
        lane = g.steps.to[step]
        if lanes.reduces[lanes.receive_ptr[lane] + lanes.taken[lane]] == 1:
            time_ps = np.int64(g.steps.bytes[step] * g.ends.memory_ps_per_byte + 0.5)
            at_ps += TOUCHES * (time_ps - time_ps % g.ends.resolution_ps)
        lanes.taken[lane] += 1
        at_ps = max(at_ps, lanes.taken_ps[lane])
        lanes.taken_ps[lane] = at_ps
    return at_ps


@inline
def receive_data(g, pair, step):
    """Handle a data packet; step: the step whose message it completes, -1 = none."""
    ports = g.ports
    ack, port = g.ctl.free_ack, g.ways.port[g.pairs.back[pair]]
    g.ctl.free_ack = ports.next_ack[ack]
    ports.ack_pair[ack], ports.ack_step[ack], ports.next_ack[ack] = pair, NONE, NONE
    ports.acks[port] += 1
    if ports.ack[port] < 0:
        ports.ack[port] = ack
    else:
        ports.next_ack[ports.last_ack[port]] = ack
    ports.last_ack[port] = ack
    if step < 0:
        send(g, port)
        return
    if g.ends.counts_back > 0:
        ports.ack_step[ack] = step
    at_ps = act_time_ps(g, pair, port, step)
    lane = g.steps.to[step]
    kick(g, port)
    if at_ps > g.clock.now_ps:
        push_own(g, at_ps, ACTS, lane)
    else:
        g.lanes.came[lane] += 1
        queue_lane(g, lane)
    advance(g)


@inline
def receive_ack(g, pair, step):
    """Handle an acknowledgement; step: the step whose message it completes, -1 = none."""
    g.pairs.open[pair] -= 1
    if g.pairs.is_full[pair] > 0:
        g.pairs.is_full[pair] = 0
        take_turns(g, pair, g.clock.now_ps)
        kick(g, port_of(g, pair))
    if step >= 0:
        lane = g.steps.lane[step]
        g.clock.end_ps = g.clock.now_ps
        if g.lanes.blocking[lane] > 0:
            g.lanes.left[lane] += 1
            queue_lane(g, lane)
    advance(g)


@inline
def has_room(g):
    """Return whether the consequences of one event have room."""
    return g.ctl.events + g.ctl.room <= g.time_ps.shape[0] and g.ctl.free_ack >= 0


@kernel
def play(address):
    """Start or continue to play, and return why it stopped: ALL_DONE, NO_ROOM or PAUSED."""
    g = idle_at(address)
    lanes, ctl = g.lanes, g.ctl
    while ctl.begun < lanes.member_ptr.shape[0] - 1:
        if not has_room(g):
            return NO_ROOM
        member = ctl.begun
        ctl.begun = member + 1
        for lane in range(lanes.member_ptr[member], lanes.member_ptr[member + 1]):
            queue_lane(g, lane)
        advance(g)
    while ctl.events > 0:
        if not has_room(g):
            return NO_ROOM
        if ctl.pause_after <= 0:
            return PAUSED
        g.clock.now_ps = g.time_ps[0]
        happening = g.event[0]
        what, kind, to = happening.what, happening.kind, happening.to
        pop(g)
        handle(g, what & KINDS_MASK, what >> KIND_BITS, kind, to)
    return ALL_DONE


@inline
def handle(g, what, which, kind, to):
    """Handle one event."""
    if what == FORWARDS:
        forward(g, which, kind, g.pairs.way[which], COMES, to)
    elif what == FORWARDS_ACK:
        forward(g, which, kind, g.pairs.back[which], IS_ACKNOWLEDGED, to)
    elif what == COMES:
        receive_data(g, which, to)
    elif what == IS_ACKNOWLEDGED:
        receive_ack(g, which, to)
    elif what == WAKES:
        if g.ports.wake_ps[which] <= g.clock.now_ps:  # else an earlier WAKES event replaced it
            g.ports.wake_ps[which] = np.inf
            send(g, which)
    elif what == MAY_SEND:
        line_up(g, which)
        send(g, port_of(g, which))
    elif what == SENDS:
        send_message(g, which)
        if g.ctl.events == 0 or g.time_ps[0] > g.clock.now_ps or g.event[0].what & KINDS_MASK != SENDS:
            advance(g)  # else more messages are sent at this moment, before ports try to send
    else:
        if what == LEAVES:
            g.lanes.left[which] += 1
        elif what == ACTS:
            g.lanes.came[which] += 1
        else:
            post(g, which)
        queue_lane(g, which)
        advance(g)
