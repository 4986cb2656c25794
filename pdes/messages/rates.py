"""Max-min fair rates of flows over links, by progressive filling, of only the links whose levels change.

The rates of all flows rise together. A flow stops at its peak, or when one of its links is full: the link *limits* the
flow, and its *level* is that rate. Changes (flows begin, end or get another peak; the capacity of a link changes) make
links dirty. A solution visits links in ascending order of level. If a link has room for more than its level, the flows
that it limits are open (without a rate) until it or another link is full. If a link is full at a rate, its open flows
and those with higher rates get that rate. Both change what the other links of these flows have left, and the solution
visits these in turn. A flow that changes at a rate only affects links of at least that level, so one pass suffices, and
links and flows to which no change spreads keep their rates.

Rates, weights and capacities are integers, so sums do not depend on the order of their terms, and neither do rates on
the order in which flows began. A rate times a weight and a capacity stay below 2^63 (MAX_RATE_BPS).

Flows of one port take turns, packet by packet, so that messages that share it evenly do not end at one moment.
"""

import numpy as np

from nadi.pdes.core.algorithms import keyed_remove, keyed_sift
from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.rows import INF
from nadi.pdes.messages.events import SOLVE, add_event
from nadi.pdes.messages.paths import UNITS_PER_PS, WEIGHT_SHIFT, count_acks, make_dirty, make_fresh, peak_load, peak_of

OVERLOADED = INF - 1  # level of a link whose flows together have more than its capacity, until a solution visits it
MAX_TURNS = 16  # flows of a port up to which packets take turns; their ends are that many solutions in place of one
FULL_SHIFT = 6  # a port is full with all but 1 / 64 of its capacity: acknowledgements may be limited elsewhere
LINK_FLOWS_PER_HOP = 4  # a link with n flows has had at most 1 + 2 + 4 + ... + 2n < 4n rows of `link_flow`


@inline
def ask_to_solve(world, now_ps):
    """Let the rates of `world` be set when everything else of this time, now_ps, has happened."""
    if world.flows.state.solve_ps != now_ps:
        world.flows.state.solve_ps = now_ps
        add_event(world.net.ctl, world.messages, now_ps, SOLVE, 0, 0)


@inline
def make_room(flows, link):
    """Move the flows of a link, a row of `link`, to the end of `link_flow`, with room for twice as many."""
    first = flows.state.link_flows
    for i in range(link.flows):
        entry, old = flows.link_flow[first + i], flows.link_flow[link.first_flow + i]
        entry.flow, entry.weight = old.flow, old.weight
        flows.link_flow_hop[first + i] = flows.link_flow_hop[link.first_flow + i]
    link.first_flow = first  # the old rows stay unused
    link.room = max(1, 2 * link.room)
    flows.state.link_flows += link.room


@outline
def enter(flows, flow_id, now_ps):
    """Let flow `flow_id` of `flows`, whose hops have weights, begin at now_ps; the next solution sets its rate."""
    flow = flows.flow[flow_id]
    count_acks(flows, flow, 1)
    flow.rate = 0  # no bytes until the next solution, at this time
    flow.limit = -1
    flow.since_ps = now_ps
    flow.peak = peak_of(flows, flow_id)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = flows.hop[h]
        weight = np.int64(hop.weight)
        if weight > 0:
            link = flows.link[hop.link]
            if link.flows == link.room:
                make_room(flows, link)
            flows.hop_use[h].place = link.flows
            entry = flows.link_flow[link.first_flow + link.flows]
            entry.flow, entry.weight = flow_id, weight
            flows.link_flow_hop[link.first_flow + link.flows] = h
            link.flows += 1
            link.weight += weight
            link.peak += peak_load(weight, flow.peak)
            make_dirty(flows, hop.link)
    make_fresh(flows, flow_id)
    flows.state.active += 1
    keyed_sift(flows.finish_heap, flows.finish_place, flows.state.active, flows.state.active - 1, INF, flow_id)


@inline
def take_from_link(flows, link, place):
    """Remove the flow at `place` of the list of row `link` of `flows.link`: the list's last one takes the place."""
    row = flows.link[link]
    row.flows -= 1
    end, at = row.first_flow + row.flows, row.first_flow + place
    last, entry = flows.link_flow[end], flows.link_flow[at]
    entry.flow, entry.weight = last.flow, last.weight
    hop = flows.link_flow_hop[end]
    flows.link_flow_hop[at] = hop
    flows.hop_use[hop].place = place


@outline
def leave(flows, flow_id):
    """Let flow `flow_id` of `flows` end: remove it from the lists of its links."""
    flow = flows.flow[flow_id]
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = flows.hop[h]
        weight = np.int64(hop.weight)
        if weight > 0:
            link = flows.link[hop.link]
            take_from_link(flows, hop.link, np.int64(flows.hop_use[h].place))
            link.weight -= weight
            link.peak -= peak_load(weight, flow.peak)
            link.load -= weight * flow.rate
            if flow.limit == hop.link:
                link.limited_weight -= weight
            make_dirty(flows, hop.link)
    keyed_remove(flows.finish_heap, flows.finish_place, flows.state.active, flow_id)
    flows.state.active -= 1
    count_acks(flows, flow, -1)


@inline
def count_limit(flow, limit, now_ps):
    """Count the time from the last change of a row `flow` to now_ps for the link that limited it, `limit`, or -1."""
    # A majority vote (Boyer and Moore, 1981): if one link has more than half of the time, it is bound_link at the end.
    took_ps = now_ps - flow.since_ps
    if limit == flow.bound_link:
        flow.bound_ps += took_ps
    elif took_ps > flow.bound_ps:
        flow.bound_link = limit
        flow.bound_ps = took_ps - flow.bound_ps
    else:
        flow.bound_ps -= took_ps


@inline
def bring_up_to_date(flows, flow_id, rate, limit, now_ps):
    """Subtract what flow `flow_id` of `flows` sent until now_ps at `rate`, due to link `limit`, from its bytes."""
    flow = flows.flow[flow_id]
    count_limit(flow, limit, now_ps)
    sent_bytes = rate * ((now_ps - flow.since_ps) / UNITS_PER_PS)
    flow.remaining_bytes = max(0.0, flow.remaining_bytes - sent_bytes)
    flow.since_ps = now_ps


@inline
def turn_bytes(flows, flow_id):
    """Return the bytes left of flow `flow_id` of `flows` when the last packet has left, as packets take turns."""
    # Where a port is full, packets leave at its rate: of n flows, the first to end has sent its last packet n - 1
    # packets before the others have sent as many. Until then, all of them have sent 1 / n of that packet as fluids.
    flow = flows.flow[flow_id]
    hop = flows.hop[flow.first_hop]
    row = flows.link[hop.link]
    load = np.int64(hop.weight) * flow.rate
    if row.load < row.capacity - (row.capacity >> FULL_SHIFT) or load < row.capacity // MAX_TURNS:
        return 0.0
    return flow.packet_bytes * (1.0 - np.float64(load) / row.capacity)


@inline
def set_finish(flows, flow_id):
    """Set the end of the current message of flow `flow_id` of `flows`, from since_ps on at its rate."""
    flow = flows.flow[flow_id]
    finish_ps = np.int64(INF)  # no rate: never
    if flow.rate > 0:
        took_ps = max(0.0, flow.remaining_bytes - turn_bytes(flows, flow_id)) * (UNITS_PER_PS / flow.rate)
        if took_ps < INF - flow.since_ps:
            finish_ps = flow.since_ps + 1 + np.int64(took_ps)
    place = flows.finish_place[flow_id] - 1
    keyed_sift(flows.finish_heap, flows.finish_place, flows.state.active, place, finish_ps, flow_id)


@inline
def fill_bound(row):
    """Return a minimum of the rate at which a link, `row`, is full when its open and its limited flows rise on."""
    weight = row.limited_weight + row.open_weight  # of flows that would rise together
    if weight > 0:
        return max(0, (row.capacity - row.load + row.limited_weight * row.level) // weight)
    if row.load > row.capacity:
        return row.capacity // row.weight
    return np.int64(INF)


@inline
def move_visit(flows, link, rate):
    """Let the solution of `flows`, which visits `link` now, visit it again at a higher `rate`; INF: not any more."""
    state = flows.state
    if rate < INF:
        keyed_sift(flows.fill_heap, flows.fill_place, state.filling, flows.fill_place[link] - 1, rate, link)
        return
    keyed_remove(flows.fill_heap, flows.fill_place, state.filling, link)
    state.filling -= 1
    if flows.link[link].level < INF:
        state.full -= 1


@inline
def plan_visit(flows, link):
    """Let the solution visit a link, whose flows have changed, before its level changes."""
    row, state = flows.link[link], flows.state
    # it limits flows if these may ask for more than its capacity, or did when rates were last set
    if row.level < INF or row.peak > row.capacity >> WEIGHT_SHIFT:
        place = flows.fill_place[link] - 1
        if row.level == INF and row.load > row.capacity:
            row.level = OVERLOADED
            state.full += place >= 0
        rate = row.level if row.filled == state.stamp else min(row.level, fill_bound(row))
        if place < 0 and rate < INF:
            place = state.filling
            state.filling += 1
            if row.level < INF:
                state.full += 1
            keyed_sift(flows.fill_heap, flows.fill_place, state.filling, place, rate, link)
        elif place >= 0 and rate < flows.fill_heap[place].key:
            keyed_sift(flows.fill_heap, flows.fill_place, state.filling, place, rate, link)


@inline
def open_flow(flows, flow_id, stamp, visited):
    """Let flow `flow_id` have no rate in solution `stamp` of `flows`, which visits its links except `visited`."""
    flow, state = flows.flow[flow_id], flows.state
    flow.mark = 2 * stamp
    flow.old_rate = flow.rate
    flow.old_limit = flow.limit
    flows.reached_flow[state.reached] = flow_id
    state.reached += 1
    state.open_flows += 1
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        link, weight = np.int64(flows.hop[h].link), np.int64(flows.hop[h].weight)
        row = flows.link[link]
        row.load -= weight * flow.rate
        row.open_weight += weight
        if flow.limit == link:
            row.limited_weight -= weight
    flow.limit = -1
    for h in range(flow.first_hop, flow.first_hop + flow.hops):  # a loop of its own, so that loads of rows overlap
        if flows.hop[h].link != visited and flows.hop[h].weight > 0:
            plan_visit(flows, np.int64(flows.hop[h].link))


@inline
def fix_rate(flows, flow_id, rate, limit):
    """Set the `rate` of an open flow, `flow_id` of `flows`. limit: full link that limits it, -1: none."""
    flow = flows.flow[flow_id]
    flow.mark += 1  # 2 x stamp + 1: it has a rate
    flow.rate = rate
    flow.limit = limit
    flows.state.open_flows -= 1
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        link, weight = np.int64(flows.hop[h].link), np.int64(flows.hop[h].weight)
        row = flows.link[link]
        row.load += weight * rate
        row.open_weight -= weight
        if limit == link:
            row.limited_weight += weight
        if row.load > row.capacity:
            plan_visit(flows, link)


@inline
def full_rate(flows, link, stamp, bound):
    """Return the rate, at least `bound`, at which `link` of `flows` is full in solution `stamp`; INF: never."""
    # Flows that the link limits and open ones could have their peaks. Each step counts the flows below the rate of the
    # step before as they are, so the rate grows until no more flows are below it. Example: capacity 100, open flows of
    # weight 1 with peaks 20, 60, 60: from 33 the first has only 20, so the rate is 80 / 2 = 40, and no other is below.
    row = flows.link[link]
    rate = bound
    while True:
        rest, weight = row.capacity, np.int64(0)
        for i in range(row.first_flow, row.first_flow + row.flows):
            entry = flows.link_flow[i]
            flow = flows.flow[entry.flow]
            own = flow.rate
            if flow.mark == 2 * stamp or (flow.limit == link and flow.mark < 2 * stamp):
                own = flow.peak
            if own <= rate or flow.mark > 2 * stamp:
                rest -= entry.weight * own
            else:
                weight += np.int64(entry.weight)
        if weight == 0:
            return np.int64(INF)
        if rest // weight <= rate:
            return max(0, rest // weight)
        rate = rest // weight


@outline
def release(flows, link, stamp):
    """Open the flows that `link` of `flows`, which has room for more, limits, in solution number `stamp`."""
    row = flows.link[link]
    for i in range(row.first_flow, row.first_flow + row.flows):
        flow_id = np.int64(flows.link_flow[i].flow)
        if flows.flow[flow_id].limit == link:
            open_flow(flows, flow_id, stamp, link)
    row.level = INF
    flows.state.full -= 1


@outline
def fill_link(flows, link, stamp, rate):
    """Set the level of `link` of `flows`, full at `rate`, and in solution `stamp` its flows' rates up to that."""
    row = flows.link[link]
    row.filled = stamp  # its level is final in this solution
    for i in range(row.first_flow, row.first_flow + row.flows):
        flow_id = np.int64(flows.link_flow[i].flow)
        flow = flows.flow[flow_id]
        if flow.mark < 2 * stamp and flow.rate > rate:
            open_flow(flows, flow_id, stamp, link)
        if flow.mark == 2 * stamp:
            if flow.peak > rate:
                fix_rate(flows, flow_id, rate, link)
            else:
                fix_rate(flows, flow_id, flow.peak, -1)
    row.level = rate


@outline
def visit(flows, link, stamp):
    """Settle the first link of `fill_heap`: fill it, or release the flows that it limits, or put it back for later.

    link: its row, whose key is the lowest rate at which it may be full; stamp: number of the solution of `flows`.
    """
    row = flows.link[link]
    due = flows.fill_heap[0].key
    rate = row.level  # the key is a bound: flows with rates since then may have left more
    if row.filled < stamp:
        rate = fill_bound(row)
        if rate <= due and (row.open_weight > 0 or rate != row.level):
            rate = full_rate(flows, link, stamp, rate)
    if min(rate, row.level) > due:
        move_visit(flows, link, min(rate, row.level))
    elif rate > row.level:
        release(flows, link, stamp)
        move_visit(flows, link, fill_bound(row))
    else:
        # done in this solution, unless the rate of another flow overloads the link (`fix_rate`)
        changes = row.open_weight > 0 or rate < row.level
        move_visit(flows, link, INF)
        if changes:
            fill_link(flows, link, stamp, rate)


@outline
def solve(flows, now_ps):
    """Set the rates of `flows` at now_ps from changes since the last solution; return how many flows it looked at."""
    state = flows.state
    state.stamp += 1
    stamp = state.stamp
    for i in range(state.dirty):
        flows.link[flows.dirty[i]].is_dirty = 0
        plan_visit(flows, flows.dirty[i])
    state.dirty = 0
    for i in range(state.fresh):
        flow_id = flows.fresh[i]
        flows.flow[flow_id].is_fresh = 0
        if flows.finish_place[flow_id] > 0 and flows.flow[flow_id].mark < 2 * stamp:
            open_flow(flows, flow_id, stamp, -1)
    state.fresh = 0
    while state.filling > 0 and (state.full > 0 or state.open_flows > 0):
        visit(flows, flows.fill_heap[0].number, stamp)
    for i in range(state.filling):  # links that no open flow can fill any more
        flows.fill_place[flows.fill_heap[i].number] = 0
    state.filling = 0
    for i in range(state.reached):
        flow_id = flows.reached_flow[i]
        flow = flows.flow[flow_id]
        if flow.mark == 2 * stamp:
            fix_rate(flows, flow_id, flow.peak, -1)
        if flow.rate != flow.old_rate:
            bring_up_to_date(flows, flow_id, flow.old_rate, flow.old_limit, now_ps)
            set_finish(flows, flow_id)
    count = state.reached
    state.reached = 0
    return count


# Flows of one port take turns, packet by packet, so that messages that share it evenly do not end at one moment.
#
# A fluid differs from packets by up to one packet of each flow. Where messages depend on each other, as in rings with
# several channels per port, these packets matter: as fluids, channels that begin together end together in every step,
# and the port waits for the latency of all of them; as packets, the first channel ends and begins ever earlier, until
# one sends while others wait. So
#
# - a message ends when its last packet has left, and others send the rest of that turn (`turn_bytes`),
# - a message that begins at a busy port waits for the packet on the wire.
#
# The bytes of all flows of a port together do not change. Messages of a single packet do not take part.


@inline
def takes_turns(flows, flow_id, port):
    """Return whether a flow sends messages at an NPU's port.

    Args:
        flows: State of the flow model of the LP (`Flows`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        port: Outgoing link of an NPU.
    """
    flow = flows.flow[flow_id]
    return flow.packet_bytes > 0.0 and flows.hop[flow.first_hop].link == port


@outline
def pass_on(flows, port, rest_bytes, others, now_ps):
    """Let the flows of a port send more bytes in all, which another flow does not send.

    Args:
        flows: State of the flow model of the LP (`Flows`).
        port: Outgoing link of an NPU.
        rest_bytes: Number of these bytes, negative if the flows send less.
        others: Number of the flows of the port that send messages.
        now_ps: Current time in ps.
    """
    row = flows.link[port]
    for i in range(row.first_flow, row.first_flow + row.flows):
        flow_id = np.int64(flows.link_flow[i].flow)
        if takes_turns(flows, flow_id, port):
            flow = flows.flow[flow_id]
            # bytes sent so far are subtracted first, at the rate that still holds
            bring_up_to_date(flows, flow_id, flow.rate, flow.limit, now_ps)
            # the sum over the flows is what the caller gives or takes: the port's bytes do not change
            flow.remaining_bytes = max(0.0, flow.remaining_bytes + rest_bytes / others)
            set_finish(flows, flow_id)


@outline
def senders(flows, port):
    """Return the number of flows that take turns at an NPU's port, 0 if they are too many, and their rate."""
    row = flows.link[port]
    count, rate = 0, np.int64(0)
    if row.flows <= 2 * MAX_TURNS:  # the others are acknowledgements
        for i in range(row.first_flow, row.first_flow + row.flows):
            flow_id = np.int64(flows.link_flow[i].flow)
            if takes_turns(flows, flow_id, port):
                count += 1
                rate += flows.flow[flow_id].rate
    return (0 if count > MAX_TURNS else count), rate


@inline
def first_to_end(flows, flow_id, now_ps):
    """Return which flow ends first of those that end by now at one port.

    Args:
        flows: State of the flow model of the LP (`Flows`).
        flow_id: Number of one of these flows.
        now_ps: Current time in ps.
    """
    port = np.int64(flows.hop[flows.flow[flow_id].first_hop].link)
    row = flows.link[port]
    if row.flows <= 2 * MAX_TURNS:
        for i in range(row.first_flow, row.first_flow + row.flows):
            other = np.int64(flows.link_flow[i].flow)
            # several end at one time, as fluids of equal rate do; as packets, that with the smallest `turn` has sent
            # its last one first
            is_due = flows.finish_heap[flows.finish_place[other] - 1].key <= now_ps
            if is_due and takes_turns(flows, other, port) and flows.flow[other].turn < flows.flow[flow_id].turn:
                flow_id = other
    return flow_id


@inline
def wait_for_turn(flows, flow_id, now_ps):
    """Let a flow that is about to begin wait for the packet on the wire of its port: on average, half of it is left.

    Args:
        flows: State of the flow model of the LP (`Flows`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        now_ps: Current time in ps.
    """
    flow = flows.flow[flow_id]
    port = np.int64(flows.hop[flow.first_hop].link)
    others, rate = senders(flows, port)
    if others > 0 and rate > 0 and flow.packet_bytes > 0.0:
        # of half a packet's time, the new flow would have had a share of 1 / (others + 1)
        rest_bytes = 0.5 * flow.packet_bytes / (others + 1)
        flow.remaining_bytes += rest_bytes
        pass_on(flows, port, -rest_bytes, others, now_ps)


@inline
def leave_turn(flows, port, rest_bytes, now_ps):
    """Let the other flows of a port send what one that has ended has left of its last packet.

    Args:
        flows: State of the flow model of the LP (`Flows`).
        port: Outgoing link of an NPU.
        rest_bytes: Bytes of its last packet that the ended flow has left.
        now_ps: Current time in ps.
    """
    others, _ = senders(flows, port)
    if others > 0 and rest_bytes > 1.0:  # less is an error of rounding
        pass_on(flows, port, rest_bytes, others, now_ps)
