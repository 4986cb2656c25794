"""Links and paths as flows see them: capacities and maximum rates; what a message puts on its path, and its latency.

Acknowledgements limit no flow, as they are few bytes, which packets never wait for: on a link that some take, flows get
the capacity less the part that a full link in the other direction answers.
"""

import numpy as np

from nadi.pdes.core import Int64, packet
from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.state import AMPLE, FRAMED, PS_PER_S, Net
from nadi.pdes.network.framing import FLIT_BYTES, framed_bytes
from nadi.pdes.network.link import class_row, full_packet_bytes, is_dark, nominal_psb, on_link_bytes, share_psb
from nadi.pdes.network.routing import SET_MASK, SET_SHIFT, balanced, forwarding_ps, next_link, npu_route, switch_cell_to

RATE_UNITS = 64  # units of rates per B/s: 3e-12 of the rate of 50 Gb/s
WEIGHT_SHIFT = 14  # weights are in units of 2^-14: acknowledgements of RoCEv2, 2 % of data, are exact to 0.3 %
MAX_RATE_BPS = 6 * 10**13  # bit/s of a link: times RATE_UNITS / 8 * 2^WEIGHT_SHIFT it is 7.9e18 < 2^63
MAX_RATE = MAX_RATE_BPS * RATE_UNITS / 8  # the same in units of rates; only links that limit no flow (AMPLE) have more
UNITS_PER_PS = RATE_UNITS * PS_PER_S  # divided by a rate, picoseconds per byte
WHOLE = 1 << WEIGHT_SHIFT  # share of a link that all packets of a flow take
ALWAYS_LOST = 1 << 32  # loss probability of a link that is down (pdes.construction.schedule)


def capacities(net: Net) -> Int64:
    """Return int64[tx rows], the load that each outgoing link carries (FlowLink.capacity).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    rows = net.link_class[packet.class_of(net.tx.meta)]
    ps_per_byte = np.where(rows.ps_per_byte > 0, rows.ps_per_byte, np.inf)  # a link that loses all packets has no rate
    rate = np.minimum(UNITS_PER_PS / ps_per_byte, MAX_RATE).astype(np.int64)
    return np.where(rows.error == ALWAYS_LOST, 0, rate << WEIGHT_SHIFT)


@inline
def capacity_of(net, link):
    """Return the load that row `link` of the links of `net`, `net.tx`, carries now (FlowLink.capacity)."""
    row = net.link_class[packet.class_of(net.tx[link].meta)]
    if row.error == ALWAYS_LOST or is_dark(net, link, net.ctl.now_ps, 1):
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


@inline
def add_hop(flows, flow_id, link, share, is_back):
    """Append a link to the path of a flow, at the end of `hop`.

    Args:
        flows: State of the flow model of the LP (`Flows`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        link: Number of the outgoing link.
        share: Part of the flow's packets that takes the link, in WHOLEths.
        is_back: 1 for the links of acknowledgements, else 0.
    """
    flow = flows.flow[flow_id]
    flows.hop[flow.first_hop + flow.hops].link = link
    use = flows.hop_use[flow.first_hop + flow.hops]
    use.share = share
    use.is_back = is_back
    use.ack_weight = 0
    flow.hops += 1


@inline
def ahead(net, routes, node, dst, word1, word2, now_ps):
    """Return the link that all packets of a flow take at a node to an NPU, if they do not spread.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the node.
        dst: Number of the NPU that receives.
        word1: Word 1 of the flow's packets.
        word2: Word 2 of the flow's packets, whose path hash chooses links (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    if node < net.const.npus or net.hooks.balancing == 0:
        return next_link(net, routes, node, dst, word2)
    return balanced(net, routes, np.int64(switch_cell_to(net, routes, node, dst, word2)), node, word1, word2, now_ps)


@inline
def lay_single(world, flow_id, src, dst, word2, is_back, now_ps):
    """Append to a flow's path the links of packets with one word 2 from an NPU to another.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        src: Number of the NPU that sends.
        dst: Number of the NPU that receives.
        word2: Word 2 of the flow's packets, whose path hash chooses links (pdes/core/packet.py).
        is_back: 1 for the links of acknowledgements, else 0.
        now_ps: Current time in ps.
    """
    net, routes = world.net, world.routes
    word1 = packet.header(dst, src, 0, 0)
    node = src
    while node != dst:
        link = ahead(net, routes, node, dst, word1, word2, now_ps)
        add_hop(world.flows, flow_id, link, WHOLE, is_back)
        # nothing leads to the NPU, and the pit loses all packets
        # a path that ends there has no capacity: the flow waits until routes change
        if link == net.const.pit and net.const.pit > 0:
            break
        node = packet.end_of(net.tx[link].meta)


@inline
def spread(world, flow_id, node, dst, word2, is_back, front_length):
    """Append the links over which a node sends a flow's packets to an NPU; share out `node_share`.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        node: Number of the node.
        dst: Number of the NPU that receives.
        word2: Word 2 of the flow's packets, whose path hash chooses links (pdes/core/packet.py).
        is_back: 1 for the links of acknowledgements, else 0.
        front_length: Number of nodes in `flows.front` that have received a share for the next round, which is returned
            after this node's sharing.
    """
    net, routes, flows = world.net, world.routes, world.flows
    # on shortest paths all that reaches the node is in by now; a later share would make it a node to come again
    share = flows.node_share[node]
    flows.node_share[node] = 0
    if node < net.const.npus:
        first, count, at_port = npu_route(net, node, dst, word2), np.int64(1), True
    else:
        cell = np.int64(switch_cell_to(net, routes, node, dst, word2))
        first, count, at_port = cell & SET_MASK, cell >> SET_SHIFT, False
    for i in range(count):
        link = np.int64(first)
        if not at_port:
            link = np.int64(routes.link[first + i]) if count > 1 else np.int64(first)
            link += routes.node[node].first_link
        # whole parts that differ by at most 1 and add up to the share
        # 16384 parts over 3 links: 5462, 5461, 5461
        part = share // count + np.int64(i < share % count)
        if part == 0:
            continue
        add_hop(flows, flow_id, link, part, is_back)
        after = packet.end_of(net.tx[link].meta)
        if after != dst and not (net.const.pit > 0 and link == net.const.pit):
            # not among the nodes to come yet
            if flows.node_share[after] == 0:
                flows.front[front_length] = after
                front_length += 1
            flows.node_share[after] += part
    return front_length


@inline
def lay_spread(world, flow_id, src, dst, word2, is_back):
    """Append to a flow's path the links over which packets with one word 2 spread from an NPU to another.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        src: Number of the NPU that sends.
        dst: Number of the NPU that receives.
        word2: Word 2 of the flow's packets, whose path hash chooses links (pdes/core/packet.py).
        is_back: 1 for the links of acknowledgements, else 0.
    """
    flows = world.flows
    flows.front[0] = src
    flows.node_share[src] = WHOLE
    at, ends = 0, 1
    # `front` is a queue of nodes: [at, ends) are to come
    while at < ends:
        ends = spread(world, flow_id, np.int64(flows.front[at]), dst, word2, is_back, ends)
        at += 1


@outline
def lay_both_ways(world, flow_id, src, dst, word2, now_ps):
    """Write at the end of `hop` the links of packets from an NPU to another, then those of acknowledgements.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        src: Number of the NPU that sends.
        dst: Number of the NPU that receives.
        word2: Word 2 of the flow's packets, whose path hash chooses links (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    flow = world.flows.flow[flow_id]
    # at the end of `hop`, where the caller keeps the rows or lets the next path overwrite them
    flow.first_hop = world.flows.state.hops
    flow.hops = 0
    if world.net.const.spreads == 1:
        lay_spread(world, flow_id, src, dst, word2, 0)
        lay_spread(world, flow_id, dst, src, word2, 1)
    else:
        lay_single(world, flow_id, src, dst, word2, 0, now_ps)
        lay_single(world, flow_id, dst, src, word2, 1, now_ps)


@inline
def idle_way(world, flow_id, node, dst, is_back, packet_bytes):
    """Return the ps of a packet over the idle path of a flow.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of the flow: a row of `flows.flow`, and of `qps.qp`.
        node: Number of the node where the path begins.
        dst: Number of the NPU that receives.
        is_back: 1 for the links of acknowledgements, else 0.
        packet_bytes: Size of the packet on the wire in bytes.
    """
    # The first path: each link begins where the one before it ends.
    net, flows = world.net, world.flows
    flow = flows.flow[flow_id]
    way_ps = np.int64(0)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        link = np.int64(flows.hop[h].link)
        # the path may spread: of its links, those that continue from `node` make the first path
        if flows.hop_use[h].is_back == is_back and node != dst and starts_at(net, link, node):
            way_ps += forwarding_ps(net, world.routes, node) + class_row(net, link).delay_ps
            way_ps += np.int64(packet_bytes * nominal_psb(net, link))
            node = packet.end_of(net.tx[link].meta)
    return way_ps


@outline
def lay_path(world, pair, now_ps):
    """Find the links of a connection and of its acknowledgements, and its idle round trip.

    Args:
        world: State of the LP (`World`).
        pair: Connection: row of the queue pair in `qps.qp` and of its flow in `flows.flow`.
        now_ps: Current time in ps.
    """
    net, flows = world.net, world.flows
    flow, qp = flows.flow[pair], world.qps.qp[pair]
    flow.epoch = flows.state.epoch
    lay_both_ways(world, pair, np.int64(qp.npu), packet.destination(qp.w1), qp.w2, now_ps)
    flows.state.hops += flow.hops
    src, dst = np.int64(qp.npu), packet.destination(qp.w1)
    there_ps = idle_way(world, pair, src, dst, 0, full_packet_bytes(net))
    back_ps = idle_way(world, pair, dst, src, 1, net.const.ack_bytes)
    flow.round_trip_ps = there_ps + back_ps
    npus = world.net.const.npus  # counted from the sender on, so that not all senders end with the same receiver
    flow.turn = (dst - src + npus) % npus << packet.SHARES_SHIFT | qp.connection


@inline
def starts_at(net, link, node):
    """Return whether a link leaves a node.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
        node: Number of the node.
    """
    return net.out_ptr[node] <= link and link < net.out_ptr[node + 1]


@inline
def is_ample(net, link):
    """Return whether a link limits no flow, so that flows have no weight on it.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
    """
    return class_row(net, link).special & AMPLE != 0


@inline
def bytes_on(net, link, size_bytes, packets):
    """Return the bytes of a message on a link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
        size_bytes: Payload of the message in bytes.
        packets: Number of packets of the message.
    """
    # a header per packet, or flits per 128 bytes (pdes/network/framing.py)
    if class_row(net, link).special & FRAMED == 0:
        return size_bytes + packets * net.const.header_bytes
    return flit_bytes(net, size_bytes, packets)


@inline
def flit_bytes(net, size_bytes, packets):
    """Return the bytes of a message on a link with flits.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        size_bytes: Payload of the message in bytes.
        packets: Number of packets of the message.
    """
    full = framed_bytes(net, 0, full_packet_bytes(net))
    # (packets - 1) full ones and a rest, at least one flit pair for an empty message
    last = size_bytes - (packets - 1) * net.const.mtu_bytes
    return (packets - 1) * full + framed_bytes(net, 0, last + net.const.header_bytes)


@inline
def back_bytes_on(net, link, packets):
    """Return the bytes on a link of the acknowledgements of a message.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Number of the outgoing link.
        packets: Number of packets of the message.
    """
    return packets * (FLIT_BYTES if class_row(net, link).special & FRAMED != 0 else net.const.ack_bytes)


@inline
def packets_of(net, size):
    """Return the number of packets of a message.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        size: Payload of the message in bytes.
    """
    return max(1, (size + net.const.mtu_bytes - 1) // net.const.mtu_bytes)


@outline
def load_message(world, pair, size_bytes):
    """Set weights, remaining bytes, cap and latency of a connection for a message that begins.

    Args:
        world: State of the LP (`World`).
        pair: Connection: row of the queue pair in `qps.qp` and of its flow in `flows.flow`.
        size_bytes: Payload of the message in bytes.
    """
    net, flows = world.net, world.flows
    flow, qp = flows.flow[pair], world.qps.qp[pair]
    packets = packets_of(net, size_bytes)
    wire = size_bytes + packets * net.const.header_bytes
    slowest_ps = 0.0  # of a full packet
    slowest = np.int64(-1)
    node = np.int64(qp.npu)
    full = full_packet_bytes(net)
    flow.remaining_bytes = float(wire)
    # 0: a message of one packet takes no turns (rates.py)
    flow.packet_bytes = float(full) if packets > 1 else 0.0
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop, use = flows.hop[h], flows.hop_use[h]
        link = np.int64(hop.link)
        hop.weight = use.ack_weight = 0
        if use.is_back == 1:
            # Example: full packets of 4178 bytes on the wire and acknowledgements of 86: the weight back is 86 / 4178 =
            # 2 % of WHOLE, so a link with 50 Gb/s of data one way carries 1 Gb/s the other way.
            if not is_ample(net, link):
                use.ack_weight = np.int64(np.float64(use.share) * back_bytes_on(net, link, 1) / full + 0.5)
            continue
        on_link = bytes_on(net, link, size_bytes, packets)
        hop.weight = 0 if is_ample(net, link) else np.int64(np.float64(use.share) * on_link / wire + 0.5)
        if starts_at(net, link, node):
            packet_ps = on_link_bytes(net, link, 0, full) * nominal_psb(net, link)
            if packet_ps >= slowest_ps:  # the last of equal ones: switches before it may cut packets through
                slowest_ps = packet_ps
                slowest = np.int64(h)
                # so that a weight, which is rounded, changes nothing on an idle path
                if use.share == WHOLE:
                    flow.remaining_bytes = np.float64(on_link) * WHOLE / hop.weight
            node = packet.end_of(net.tx[link].meta)
    psb = share_psb(net, np.int64(qp.port), 0, qp.shares)
    slowest_psb = slowest_ps / full
    # slower than every link: the mover of the sender limits the message, so no hop is the slowest
    if qp.shares > packet.SHARE_UNITS and psb > slowest_psb:
        slowest, slowest_psb = np.int64(-1), psb
        flow.remaining_bytes = float(wire)
    cap = UNITS_PER_PS / psb
    if packets > net.const.window_packets:
        # a window per round trip: 64 packets of 4178 bytes in 20 us are 107 Gb/s
        cap = min(cap, UNITS_PER_PS * net.const.window_packets * full / flow.round_trip_ps)
    flow.cap = np.int64(cap)
    flow.latency_ps = latency_of(world, pair, size_bytes, packets, slowest, slowest_psb)


@inline
def latency_of(world, pair, size_bytes, packets, slowest_hop, slowest_psb):
    """Return the ps from the end of a message at the slowest link of its path until it has arrived.

    Args:
        world: State of the LP (`World`).
        pair: Connection: row of the queue pair in `qps.qp` and of its flow in `flows.flow`.
        size_bytes: Payload of the message in bytes.
        packets: Number of packets of the message.
        slowest_hop: Row of `hop` of the slowest link; -1 = the sender's cap is slower than all links.
        slowest_psb: Time in ps per byte there.
    """
    # The first packet reaches the slowest link after it has crossed those before, and the last packet crosses those
    # behind it. A short last packet does not overtake the one before it, which is full: it follows on the last link.
    net, flows = world.net, world.flows
    flow, qp = flows.flow[pair], world.qps.qp[pair]
    full = full_packet_bytes(net)
    last = size_bytes - (packets - 1) * net.const.mtu_bytes + net.const.header_bytes
    fixed = np.int64(0)
    last_ps = 0.0
    # the full packet before the last one leaves the slowest link that much earlier than the message ends
    full_ps = -last * slowest_psb
    on_last_link_ps = 0.0
    node = np.int64(qp.npu)
    before = slowest_hop >= 0
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        link = np.int64(flows.hop[h].link)
        if flows.hop_use[h].is_back == 1 or not starts_at(net, link, node):
            continue
        row = class_row(net, link)
        fixed += forwarding_ps(net, world.routes, node) + row.delay_ps
        psb = nominal_psb(net, link)
        # seen_bytes: a switch that cuts through forwards after the header, so a packet costs each link but that
        of_full = min(on_link_bytes(net, link, 0, full), row.seen_bytes) * psb
        on_last_link_ps = min(on_link_bytes(net, link, 0, last), row.seen_bytes) * psb
        if h == slowest_hop:
            before = False
        else:
            last_ps += of_full if before and packets > 1 else on_last_link_ps
            full_ps += of_full
        node = packet.end_of(net.tx[link].meta)
    if packets > 1:
        last_ps = max(last_ps, full_ps + on_last_link_ps)
    return fixed + np.int64(last_ps + 0.5)
