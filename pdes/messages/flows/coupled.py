"""Coupled flows: a collective as one flow over all links that its messages cross.

The flow begins when the last member has started. Its weight on a link is the number of bytes that the collective puts
there per byte of the lane that sends most, so that its rate is that of one lane: each lane counts as much for fairness
as another connection. All lanes send at this rate, the highest at which no link is overloaded. All members end at the
same moment, when the flow has ended and a delay has passed: what the collective takes alone on the idle fabric beyond
the time of its bytes at the members' ports.
"""

import numpy as np

from pdes.core.hashing import mix3
from pdes.core.jit import call_hook, clear_row, hook, inline, outline
from pdes.core.packet import SHARE_UNITS, SHARES_SHIFT, end_of, path_word
from pdes.core.rows.row import INF
from pdes.core.state import FRAMED, world_at
from pdes.messages.events import FIRST_DONE, KEY_SHIFT, OWN, add_event
from pdes.messages.flows.paths import WHOLE, back_bytes_on, flit_bytes, lay_both_ways, packets_of
from pdes.messages.flows.rates import UNITS_PER_PS, ask_to_solve, count_limit, enter, leave
from pdes.network.link import class_row, share_psb
from pdes.npu.collective import free_instance, instance, npu_of_peer, sent_bytes_of
from pdes.npu.trace import row_of_collective

MAX_RATIO_SHIFT = 16  # a link carries at most 2^16 times the bytes of the reference, so that weights fit


@inline
def add_to_links(world, flow_id, messages, packets, plain_bytes, framed_bytes):
    """Add messages, whose path is at the end of `hop`, to `link_total`; their bytes on links without and with flits."""
    net, flows = world.net, world.flows
    flow = flows.flow[flow_id]
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        use, link = flows.hop_use[h], np.int64(flows.hop[h].link)
        on_link = plain_bytes
        if use.is_back == 1:
            on_link = back_bytes_on(net, link, packets)
        elif class_row(net, link).special & FRAMED != 0:
            on_link = framed_bytes
        total = flows.link_total[link]
        if total.total_bytes == 0:
            flows.touched[flows.state.touched] = link
            flows.state.touched += 1
        total.total_bytes += max(1, on_link * use.share // WHOLE)
        if use.is_back == 0:
            total.messages += messages


@outline
def add_lane(world, flow_id, lane, src, now_ps):
    """Add what NPU `src` sends in a lane, a row of `lane_row`, to `link_total`; return (bytes, ps at its share)."""
    net, flows, insts, plans = world.net, world.flows, world.insts, world.plans
    flow = flows.flow[flow_id]
    kind, inst = flows.coupled[flow.coupled - 1], np.int64(flow.instance)
    connection = kind.group | np.int64(plans.lane_row[lane].connection)
    shares = connection >> SHARES_SHIFT
    connection &= (1 << SHARES_SHIFT) - 1
    header_bytes = net.const.header_bytes
    lane_bytes, lane_ps = np.int64(0), 0.0
    step, end = np.int64(plans.lane_ptr[lane]), np.int64(plans.lane_ptr[lane + 1])
    while step < end:
        to = np.int64(plans.step[step].send_peer)
        if to < 0:
            step += 1
            continue
        messages = packets = payload_bytes = framed_bytes = np.int64(0)
        while step < end and (plans.step[step].send_peer == to or plans.step[step].send_peer < 0):
            if plans.step[step].send_peer >= 0:
                size = sent_bytes_of(net.const.address, insts, plans, inst, lane, step)
                of_message = packets_of(net, size)
                messages += 1
                packets += of_message
                payload_bytes += size
                framed_bytes += flit_bytes(net, size, of_message)
            step += 1
        plain_bytes = payload_bytes + packets * header_bytes
        dst = npu_of_peer(insts, plans, inst, lane, to)
        word2 = path_word(np.int64(0), mix3(src + net.const.seed, dst, connection))
        lay_both_ways(world, flow_id, src, dst, word2, now_ps)
        add_to_links(world, flow_id, messages, packets, plain_bytes, framed_bytes)
        lane_bytes += plain_bytes
        if shares > SHARE_UNITS and flow.hops > 0:
            lane_ps += plain_bytes * share_psb(net, np.int64(flows.hop[flow.first_hop].link), 0, shares)
        kind.messages += messages
        kind.payload_bytes += payload_bytes
    return lane_bytes, lane_ps


@outline
def lay_coupled(world, flow_id, now_ps):
    """Find links, weights, cap, bytes and latency of a coupled flow, whose collective is in its instance."""
    flows, insts, plans = world.flows, world.insts, world.plans
    flow = flows.flow[flow_id]
    kind, collective = flows.coupled[flow.coupled - 1], insts.inst[flow.instance]
    schedule = kind.schedule
    kind.messages = kind.payload_bytes = kind.hops = 0
    flow.epoch = flows.state.epoch
    most_bytes, slowest_ps = np.int64(1), 0.0
    for member in range(plans.members[schedule]):
        collective.member = member
        at = plans.plan_of_ptr[schedule] + (0 if plans.relative[schedule] else member)
        plan = np.int64(plans.plan_of[at])
        src = np.int64(plans.group_member[plans.group_ptr[kind.group] + member])
        for lane in range(plans.plan_ptr[plan], plans.plan_ptr[plan + 1]):
            lane_bytes, lane_ps = add_lane(world, flow_id, lane, src, now_ps)
            most_bytes = max(most_bytes, lane_bytes)
            slowest_ps = max(slowest_ps, lane_ps)
    for i in range(flows.state.touched):
        most_bytes = max(most_bytes, flows.link_total[flows.touched[i]].total_bytes >> MAX_RATIO_SHIFT)
    flow.first_hop = flows.state.hops
    flow.hops = flows.state.touched
    flow.cap = INF if slowest_ps == 0.0 else np.int64(UNITS_PER_PS * most_bytes / slowest_ps)
    for i in range(flow.hops):
        h = flow.first_hop + i
        link = flows.touched[i]
        total = flows.link_total[link]
        flows.hop[h].link = link
        flows.hop[h].weight = np.int64(np.float64(total.total_bytes) * WHOLE / most_bytes + 0.5)
        flows.hop_total[h].total_bytes = total.total_bytes
        flows.hop_total[h].messages = total.messages
        kind.hops += total.messages
        total.total_bytes = total.messages = 0
    flows.state.hops += flow.hops
    flows.state.touched = 0
    set_delay(world, flow_id, most_bytes)


@inline
def set_delay(world, flow_id, most_bytes):
    """Set bytes and latency of a coupled flow: alone on the idle fabric, it takes its kind's alone_ps."""
    # As on the fabric on which collectives are played alone (nadi/simulation/closed_forms/idle_fabric.py), only the
    # members' own ports limit the rate.
    net, flows = world.net, world.flows
    flow = flows.flow[flow_id]
    rate = flow.cap
    flow.whole_bytes = float(most_bytes)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        link, weight = np.int64(flows.hop[h].link), np.int64(flows.hop[h].weight)
        at_npu = link < net.out_ptr[net.const.npus] or end_of(net.tx[link].meta) < net.const.npus
        if at_npu and weight > 0 and flows.link[link].idle_capacity // weight < rate:
            rate = flows.link[link].idle_capacity // weight
            # so that rounding the weight changes nothing on the idle fabric
            flow.whole_bytes = np.float64(flows.hop_total[h].total_bytes) * WHOLE / weight
    took_ps = 1 + np.int64(flow.whole_bytes * (UNITS_PER_PS / max(1, rate)))
    flow.latency_ps = max(0, flows.coupled[flow.coupled - 1].alone_ps - took_ps)
    flow.remaining_bytes = flow.whole_bytes


@inline
def free_flow_of(world, kind_number):
    """Return a flow of a kind of collectives that is not under way, new if there is none."""
    net, qps, flows = world.net, world.qps, world.flows
    kind = flows.coupled[kind_number]
    flow_id = np.int64(kind.free_flow)
    if flow_id >= 0:
        kind.free_flow = flows.flow[flow_id].next_flow
        return flow_id
    # it takes the place of a queue pair, which sends nothing
    flow_id = net.ctl.queue_pairs
    net.ctl.queue_pairs = flow_id + 1
    net.ctl.check = 1
    clear_row(qps.qp, flow_id)
    clear_row(flows.flow, flow_id)
    flows.flow[flow_id].coupled = kind_number + 1
    return flow_id


@outline
def begin_coupled(world, inst, now_ps):
    """Let the flow of a collective begin, all of whose members have started."""
    flows = world.flows
    collective = world.insts.inst[inst]
    number = flows.coupled_ptr[world.plans.slot_group[collective.slot]]
    while (
        flows.coupled[number].schedule != collective.schedule
        or flows.coupled[number].buffer_bytes != collective.buffer_bytes
    ):
        number += 1
    flow_id = free_flow_of(world, number)
    flow = flows.flow[flow_id]
    flow.instance = inst
    if flow.epoch != flows.state.epoch:
        lay_coupled(world, flow_id, now_ps)
    flow.remaining_bytes = flow.whole_bytes
    enter(flows, flow_id, now_ps)
    ask_to_solve(world, now_ps)


@hook
def join(world_address, node, row, now_ps):
    """Start the collective of trace row `row` of NPU `node`; with the last member, its flow begins."""
    world = world_at(world_address)
    net, plans, trace, insts = world.net, world.plans, world.trace, world.insts
    npu = world.npus.npu[node]
    r = npu.trace_base + row
    slot = npu.slot_base + trace.group[r]
    group, seq, schedule = np.int64(plans.slot_group[slot]), np.int64(trace.seq[r]), np.int64(trace.schedule[r])
    # all members share the instance of the first
    inst = instance(net, insts, np.int64(plans.group_member[plans.group_ptr[group]]), group, seq)
    collective = insts.inst[inst]
    if collective.lanes_left == 0:
        collective.lanes_left = plans.members[schedule]
        collective.slot = slot
        collective.schedule = schedule
        collective.buffer_bytes = trace.bytes[r]
    collective.lanes_left -= 1
    world.flows.state.held += 1
    if net.const.compute_slow_1000ths != 0:
        call_hook(net.hooks.running, world_address, node, row, 1, now_ps)
    if collective.lanes_left == 0:
        begin_coupled(world, inst, now_ps)
    return 0


@outline
def end_coupled(world, flow_id, now_ps):
    """End a coupled flow: count its messages, and let its members' trace rows end after its latency."""
    net, flows, plans, insts = world.net, world.flows, world.plans, world.insts
    flow = flows.flow[flow_id]
    kind, inst = flows.coupled[flow.coupled - 1], np.int64(flow.instance)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        tx, total = net.tx[flows.hop[h].link], flows.hop_total[h]
        tx.sent_bytes += total.total_bytes
        tx.sent_packets += total.messages
    net.count.hops += kind.hops
    net.count.data_packets += kind.messages
    net.count.consumed_packets += kind.messages
    net.count.flows += kind.messages
    net.count.sent_bytes += kind.payload_bytes
    net.count.received_bytes += kind.payload_bytes
    net.count.payload_bytes += kind.payload_bytes
    count_limit(flow, flow.limit, now_ps)
    leave(flows, flow_id)
    ask_to_solve(world, now_ps)
    seq = insts.inst[inst].key & ((1 << 20) - 1)
    members = np.int64(plans.members[kind.schedule])
    for member in range(members):
        node = np.int64(plans.group_member[plans.group_ptr[kind.group] + member])
        row, _ = row_of_collective(world.npus.npu[node], world.trace, plans, kind.group, seq)
        order = (node << KEY_SHIFT) | (FIRST_DONE + row)
        add_event(net.ctl, world.messages, now_ps + flow.latency_ps, OWN, order, node)
    flows.state.held -= members
    free_instance(net, insts, inst)
    flow.next_flow = kind.free_flow
    kind.free_flow = flow_id
