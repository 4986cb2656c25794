"""What links carry of flows, and the maximum rates of flows: their changes make links and flows dirty (rates.py).

Acknowledgements limit no flow, as they are few bytes, which packets never wait for: on a link that some take, flows get
the capacity less the part that a full link in the other direction answers.
"""

import numpy as np

from nadi.pdes.core import Int64
from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.packet import class_of
from nadi.pdes.core.state import PS_PER_S, Net

RATE_UNITS = 64  # units of rates per B/s: 3e-12 of the rate of 50 Gb/s
WEIGHT_SHIFT = 14  # weights are in units of 2^-14: acknowledgements of RoCEv2, 2 % of data, are exact to 0.3 %
MAX_RATE_BPS = 6 * 10**13  # bit/s of a link: times RATE_UNITS / 8 * 2^WEIGHT_SHIFT it is 7.9e18 < 2^63
MAX_RATE = MAX_RATE_BPS * RATE_UNITS / 8  # the same in units of rates; only links that limit no flow (AMPLE) have more
UNITS_PER_PS = RATE_UNITS * PS_PER_S  # divided by a rate, picoseconds per byte
ALWAYS_LOST = 1 << 32  # loss probability of a link that is down (pdes.construction.schedule)


def capacities(net: Net) -> Int64:
    """Return int64[tx rows], the load that each outgoing link carries (FlowLink.capacity).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    rows = net.link_class[class_of(net.tx.meta)]
    ps_per_byte = np.where(rows.ps_per_byte > 0, rows.ps_per_byte, np.inf)  # a link that loses all packets has no rate
    rate = np.minimum(UNITS_PER_PS / ps_per_byte, MAX_RATE).astype(np.int64)
    return np.where(rows.error == ALWAYS_LOST, 0, rate << WEIGHT_SHIFT)


@inline
def capacity_of(net, link):
    """Return the load that row `link` of the links of `net`, `net.tx`, carries now (FlowLink.capacity)."""
    row = net.link_class[class_of(net.tx[link].meta)]
    if row.error == ALWAYS_LOST:
        return np.int64(0)
    return np.int64(min(UNITS_PER_PS / row.ps_per_byte, MAX_RATE)) << WEIGHT_SHIFT


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
    """Mark a flow, row `flow_id` of `flows.flow`, whose rate the next solution sets in any case."""
    flow = flows.flow[flow_id]
    if flow.is_fresh == 0:
        flow.is_fresh = 1
        flows.fresh[flows.state.fresh] = flow_id
        flows.state.fresh += 1


@inline
def peak_of(flows, flow_id):
    """Return the maximum rate of flow `flow_id` of `flows`: its cap, and its rate alone on each of its links."""
    flow = flows.flow[flow_id]
    peak = flow.cap
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        weight = np.int64(flows.hop[h].weight)
        if weight > 0:
            peak = min(peak, flows.link[flows.hop[h].link].capacity // weight)
    return peak


@inline
def peak_load(weight, peak):
    """Return the part of `FlowLink.peak` of a flow with this `weight` on the link and maximum rate `peak`."""
    return (weight * peak + (1 << WEIGHT_SHIFT) - 1) >> WEIGHT_SHIFT


@inline
def count_acks(flows, flow, count):
    """Count a row `flow` of `flows.flow`, which begins (count 1) or ends (-1), on the links of its acknowledgements."""
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        weight = np.int64(flows.hop_use[h].ack_weight)
        if weight > 0:
            link = np.int64(flows.hop[h].link)
            row = flows.link[link]
            row.ack_weight += count * weight
            row.ack_flows += count
            set_capacity(flows, link, np.int64(row.whole_capacity))


@outline
def set_capacity(flows, link, whole_capacity):
    """Change the capacity of a link (FlowLink.whole_capacity), and the peaks of its flows."""
    row = flows.link[link]
    row.whole_capacity = capacity = whole_capacity
    if row.ack_flows > 0:
        # a link that is full with flows of weight 1, and with the acknowledgements of as much in the other direction
        capacity = whole_capacity // ((1 << WEIGHT_SHIFT) + row.ack_weight // row.ack_flows) << WEIGHT_SHIFT
    if capacity == row.capacity:
        return
    row.capacity = capacity
    make_dirty(flows, link)
    for i in range(row.first_flow, row.first_flow + row.flows):
        flow_id = np.int64(flows.link_flow[i].flow)
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
