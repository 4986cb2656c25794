"""Max-min fair rates of flows over links, by progressive filling, of only the flows that a change may affect.

The rates of all flows rise together. A flow stops at its peak, or when one of its links is full: the link's *level* is
that rate. A change (flows begin, end or get another peak; the capacity of a link changes) makes links dirty. In the
filling before and after it, everything is the same up to the lowest rate at which a dirty link is full, so flows with
lower rates keep theirs. The filling begins there, with the flows of the dirty links and all flows that share a link
with them, and so on. Links that cannot be full, because even the peaks of all their flows fit, connect nothing.

Rates, weights and capacities are integers, so sums do not depend on the order of their terms, and neither do rates on
the order in which flows began. A rate times a weight and a capacity stay below 2^63 (MAX_RATE_BPS).
"""

import numpy as np

from pdes.core.heap import heap_pop, heap_push
from pdes.core.inputs import Int64
from pdes.core.jit import inline, outline
from pdes.core.packet import class_of
from pdes.core.rows.row import INF
from pdes.core.state import PS_PER_S, Net
from pdes.messages.flows.finish_heap import add_flow, remove_flow, sift

RATE_UNITS = 64  # units of rates per B/s: 3e-12 of the rate of 50 Gb/s
WEIGHT_SHIFT = 14  # weights are in units of 2^-14: acknowledgements of RoCEv2, 2 % of data, are exact to 0.3 %
MAX_RATE_BPS = 6 * 10**13  # bit/s of a link: times RATE_UNITS / 8 * 2^WEIGHT_SHIFT it is 7.9e18 < 2^63
UNITS_PER_PS = RATE_UNITS * PS_PER_S  # divided by a rate, picoseconds per byte
ALWAYS_LOST = 1 << 32  # loss probability of a link that is down (pdes.build.schedule)


def capacities(net: Net) -> Int64:
    """Return int64[tx rows], the load that each outgoing link carries (FlowLink.capacity)."""
    rows = net.link_class[class_of(net.tx.meta)]
    rate = (UNITS_PER_PS / np.maximum(rows.ps_per_byte, 1e-9)).astype(np.int64)
    return np.where(rows.error == ALWAYS_LOST, 0, rate << WEIGHT_SHIFT)


@inline
def capacity_of(net, link):
    """Return the load that an outgoing link, a row of `tx`, carries now (FlowLink.capacity)."""
    row = net.link_class[class_of(net.tx[link].meta)]
    if row.error == ALWAYS_LOST:
        return np.int64(0)
    return np.int64(UNITS_PER_PS / row.ps_per_byte) << WEIGHT_SHIFT


@inline
def make_dirty(flows, link):
    """Mark a link whose flows or capacity have changed, for the next solution."""
    row = flows.link[link]
    if row.is_dirty == 0:
        row.is_dirty = 1
        flows.dirty[flows.state.dirty] = link
        flows.state.dirty += 1


@inline
def make_fresh(flows, flow_id):
    """Mark a flow whose rate the next solution sets in any case."""
    flow = flows.flow[flow_id]
    if flow.is_fresh == 0:
        flow.is_fresh = 1
        flows.fresh[flows.state.fresh] = flow_id
        flows.state.fresh += 1


@inline
def peak_of(flows, flow_id):
    """Return the maximum rate of a flow: its cap, and its rate alone on each of its links."""
    flow = flows.flow[flow_id]
    peak = flow.cap
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        weight = np.int64(flows.hop[h].weight)
        if weight > 0:
            peak = min(peak, flows.link[flows.hop[h].link].capacity // weight)
    return peak


@inline
def peak_load(weight, peak):
    """Return a flow's part of `FlowLink.peak`."""
    return (weight * peak + (1 << WEIGHT_SHIFT) - 1) >> WEIGHT_SHIFT


@outline
def enter(flows, flow_id, now_ps):
    """Let a flow, whose hops have their weights, begin; the next solution sets its rate."""
    flow = flows.flow[flow_id]
    flow.rate = 0
    flow.since_ps = now_ps
    flow.finish_ps = INF
    flow.peak = peak_of(flows, flow_id)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = flows.hop[h]
        weight = np.int64(hop.weight)
        if weight > 0:
            link = flows.link[hop.link]
            hop.previous_hop = -1
            hop.next_hop = link.first_hop
            if link.first_hop >= 0:
                flows.hop[link.first_hop].previous_hop = h
            link.first_hop = h
            link.weight += weight
            link.peak += peak_load(weight, flow.peak)
            make_dirty(flows, hop.link)
    make_fresh(flows, flow_id)
    add_flow(flows, flow_id)


@outline
def leave(flows, flow_id):
    """Let a flow end: remove it from the lists of its links."""
    flow = flows.flow[flow_id]
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = flows.hop[h]
        weight = np.int64(hop.weight)
        if weight > 0:
            link = flows.link[hop.link]
            if hop.previous_hop >= 0:
                flows.hop[hop.previous_hop].next_hop = hop.next_hop
            else:
                link.first_hop = hop.next_hop
            if hop.next_hop >= 0:
                flows.hop[hop.next_hop].previous_hop = hop.previous_hop
            link.weight -= weight
            link.peak -= peak_load(weight, flow.peak)
            link.load -= weight * flow.rate
            make_dirty(flows, hop.link)
    remove_flow(flows, flow_id)


@outline
def set_capacity(flows, link, capacity):
    """Change the capacity of a link (FlowLink.capacity), and the peaks of its flows."""
    flows.link[link].capacity = capacity
    make_dirty(flows, link)
    at = flows.link[link].first_hop
    while at >= 0:
        flow_id = flows.hop[at].flow
        flow = flows.flow[flow_id]
        peak = peak_of(flows, flow_id)
        if peak != flow.peak:
            for h in range(flow.first_hop, flow.first_hop + flow.hops):
                weight = np.int64(flows.hop[h].weight)
                if weight > 0:
                    flows.link[flows.hop[h].link].peak += peak_load(weight, peak) - peak_load(weight, flow.peak)
                    make_dirty(flows, flows.hop[h].link)
            flow.peak = peak
            make_fresh(flows, flow_id)
        at = np.int64(flows.hop[at].next_hop)


@inline
def bring_up_to_date(flows, flow_id, now_ps):
    """Subtract from a flow's remaining bytes what it has sent since its last change."""
    flow = flows.flow[flow_id]
    sent_bytes = flow.rate * ((now_ps - flow.since_ps) / UNITS_PER_PS)
    flow.remaining_bytes = max(0.0, flow.remaining_bytes - sent_bytes)
    flow.since_ps = now_ps


@inline
def set_finish(flows, flow_id):
    """Set the end of a flow's current message, from since_ps on at its rate."""
    flow = flows.flow[flow_id]
    flow.finish_ps = INF
    if flow.rate > 0:
        took_ps = flow.remaining_bytes * (UNITS_PER_PS / flow.rate)
        if took_ps < INF - flow.since_ps:
            flow.finish_ps = flow.since_ps + 1 + np.int64(took_ps)
    sift(flows, flow.heap_place - 1, flow_id)


@inline
def set_rate(flows, flow_id, rate, now_ps):
    """Give a flow another rate, in units of 1 / RATE_UNITS bytes per second."""
    flow = flows.flow[flow_id]
    if rate != flow.rate:
        bring_up_to_date(flows, flow_id, now_ps)
        for h in range(flow.first_hop, flow.first_hop + flow.hops):
            flows.link[flows.hop[h].link].load += flows.hop[h].weight * (rate - flow.rate)
        flow.rate = rate
        set_finish(flows, flow_id)


@inline
def reach_link(flows, link, stamp, link_count):
    """Add a link to the `link_count` of solution `stamp`, unless it is there or limits nothing; return the number."""
    row = flows.link[link]
    # it limits flows if these may ask for more than its capacity, or did when rates were last set
    if row.mark != stamp and (row.level < INF or row.peak > row.capacity >> WEIGHT_SHIFT):
        row.mark = stamp
        flows.reached_link[link_count] = link
        link_count += 1
    return link_count


@inline
def reach_flow(flows, flow_id, stamp, flow_count, link_count):
    """Add a flow and its links to the flows and links of solution `stamp`; return the numbers of both."""
    flow = flows.flow[flow_id]
    flow.mark = 2 * stamp
    flows.reached_flow[flow_count] = flow_id
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        if flows.hop[h].weight > 0:
            link_count = reach_link(flows, flows.hop[h].link, stamp, link_count)
    return flow_count + 1, link_count


@outline
def reach(flows, stamp):
    """Collect the flows whose rates may change in solution `stamp`, and their links; return the numbers of both."""
    state = flows.state
    lowest = np.int64(INF)
    links = np.int64(0)
    for i in range(state.dirty):
        row = flows.link[flows.dirty[i]]
        lowest = min(lowest, row.level)
        if row.peak > row.capacity >> WEIGHT_SHIFT:
            lowest = min(lowest, row.capacity // row.weight)
        row.is_dirty = 0
        links = reach_link(flows, flows.dirty[i], stamp, links)
    state.dirty = 0
    count = np.int64(0)
    for i in range(state.fresh):
        flow_id = flows.fresh[i]
        flows.flow[flow_id].is_fresh = 0
        if flows.flow[flow_id].heap_place > 0 and flows.flow[flow_id].mark < 2 * stamp:
            count, links = reach_flow(flows, flow_id, stamp, count, links)
    state.fresh = 0
    at = 0
    while at < links:
        h = flows.link[flows.reached_link[at]].first_hop
        while h >= 0:
            flow_id = np.int64(flows.hop[h].flow)
            if flows.flow[flow_id].rate >= lowest and flows.flow[flow_id].mark < 2 * stamp:
                count, links = reach_flow(flows, flow_id, stamp, count, links)
            h = np.int64(flows.hop[h].next_hop)
        at += 1
    return count, links


@inline
def open_flow(flows, flow_id, stamp, heap_size):
    """Let solution `stamp` set a flow's rate; fill_heap has `heap_size` entries. Return the number after that."""
    flow = flows.flow[flow_id]
    bound = np.int64(INF)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        weight = np.int64(flows.hop[h].weight)
        row = flows.link[flows.hop[h].link]
        if weight > 0 and row.mark == stamp:
            row.rest += weight * flow.rate
            row.open_weight += weight
            bound = min(bound, row.capacity // weight)
    if bound == INF:
        flow.new_rate = flow.peak
        flow.mark += 1
    elif flow.peak < bound:
        heap_push(flows.fill_heap, 0, heap_size, flow.peak, flows.link.shape[0] + flow_id)
        heap_size += 1
    return heap_size


@inline
def fix_rate(flows, flow_id, stamp, rate):
    """Set a flow's rate in solution `stamp`, and take it from what is left of its links."""
    flow = flows.flow[flow_id]
    flow.new_rate = rate
    flow.mark = 2 * stamp + 1
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        weight = np.int64(flows.hop[h].weight)
        row = flows.link[flows.hop[h].link]
        if weight > 0 and row.mark == stamp:
            row.rest -= weight * rate
            row.open_weight -= weight


@outline
def fill(flows, stamp, flow_count, link_count):
    """Fill the links that solution `stamp` has reached with the flows that it has reached."""
    # The heap has an entry per link (the rate at which it would be full) and per flow whose peak is below what its
    # links could give it alone. Rates at which links are full only grow as flows stop before, so an entry may be late.
    for i in range(link_count):
        row = flows.link[flows.reached_link[i]]
        row.rest = row.capacity - row.load
        row.open_weight = 0
        row.level = INF
    heap = 0
    for i in range(flow_count):
        heap = open_flow(flows, flows.reached_flow[i], stamp, heap)
    for i in range(link_count):
        row = flows.link[flows.reached_link[i]]
        if row.open_weight > 0:
            heap_push(flows.fill_heap, 0, heap, row.rest // row.open_weight, flows.reached_link[i])
            heap += 1
    while heap > 0:
        level, item = flows.fill_heap[0], flows.fill_heap[1]
        heap_pop(flows.fill_heap, 0, heap)
        heap -= 1
        if item >= flows.link.shape[0]:
            flow_id = item - flows.link.shape[0]
            if flows.flow[flow_id].mark == 2 * stamp:
                fix_rate(flows, flow_id, stamp, level)
            continue
        row = flows.link[item]
        if row.open_weight == 0:
            continue
        rate = row.rest // row.open_weight
        if rate > level:
            heap_push(flows.fill_heap, 0, heap, rate, item)
            heap += 1
            continue
        row.level = rate
        h = row.first_hop
        while h >= 0:
            flow_id = np.int64(flows.hop[h].flow)
            if flows.flow[flow_id].mark == 2 * stamp:
                fix_rate(flows, flow_id, stamp, rate)
            h = np.int64(flows.hop[h].next_hop)


@outline
def solve(flows, now_ps):
    """Set the rates that follow from all changes since the last solution; return the number of flows it looked at."""
    flows.state.stamp += 1
    stamp = flows.state.stamp
    count, links = reach(flows, stamp)
    fill(flows, stamp, count, links)
    for i in range(count):
        flow_id = flows.reached_flow[i]
        set_rate(flows, flow_id, flows.flow[flow_id].new_rate, now_ps)
    return count
