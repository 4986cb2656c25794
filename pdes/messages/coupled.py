"""Coupled flows: a collective as one flow over all links that its messages cross.

The flow begins when the last member has started. Its weight on a link is the number of bytes that the collective puts
there per byte of the lane that sends most, so that its rate is that of one lane: each lane counts as much for fairness
as another connection. All lanes send at this rate, the highest at which no link is overloaded. Where lanes change their
peers, as in recursive algorithms, the flow consists of *stages*, one after another, with weights of their own.

All members end at the same moment, when the last stage has ended and a delay has passed. Alone on the idle fabric, a
collective takes alone_ps, of which its bytes need port_ps at the members' ports; its launch and its turns (a lane
sends, and waits until it receives) take the rest. Where stages take longer, took_ps,

- a port of k lanes limits the rate: one lane uses the port while others wait, so that a k-th of the longer time adds to
  alone_ps: the collective takes max(took_ps, alone_ps + (took_ps - port_ps) / k).
- a link of the fabric limits the rate: other lanes are faster, so that slow ones never wait: max(took_ps, alone_ps).

In both cases nothing hides the launch and `reach_ps`, which add to took_ps: a link is idle until the first chunk
reaches it through the levels of the collective, and after the last one has left it. The reach is the longest chain of
lanes' first messages, each of which awaits those before: one message of a ring, and the way up and down of a tree.
"""

import numpy as np

from nadi.pdes.core.jit import call_hook, clear_row, hook, inline, outline
from nadi.pdes.core.packet import MAX_SEQ, SHARE_UNITS, SHARES_SHIFT, end_of, job_of
from nadi.pdes.core.rows import INF
from nadi.pdes.core.state import FRAMED, world_at
from nadi.pdes.messages.events import FIRST_DONE, KEY_SHIFT, OWN, add_event
from nadi.pdes.messages.paths import UNITS_PER_PS, WHOLE, back_bytes_on, flit_bytes, is_ample, lay_both_ways, packets_of
from nadi.pdes.messages.rates import ask_to_solve, count_limit, enter, leave
from nadi.pdes.messages.reach import act_as, find_reach, hash_word, lanes_of_member
from nadi.pdes.network.link import class_row, count_for_job, share_psb
from nadi.pdes.npu.collective import free_instance, instance, npu_of_peer, sent_bytes_of
from nadi.pdes.npu.trace import row_of_collective

MAX_STAGES = 64  # of a collective; one with more counts as one stage
MAX_RATIO_SHIFT = 16  # a link carries at most 2^16 times the bytes of the reference, so that weights fit


@inline
def add_to_links(world, flow_id, messages, packets, plain_bytes, framed_bytes):
    """Add messages, whose path is at the end of `hop`, to `link_total`.

    world: state of the LP; flow_id: number of the flow of the stage (row of `flows.flow` and `flows.stage`); messages:
    number of messages; packets: number of packets of all messages; plain_bytes, framed_bytes: bytes of the packets on a
    link without flits, and on one with flits.
    """
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
        # at least a byte, since 0 means that the link is not in `touched` yet
        total.total_bytes += max(1, on_link * use.share // WHOLE)
        if use.is_back == 0:
            total.messages += messages


@inline
def stages_of(plans, lane):
    """Return the number of stages of a lane.

    plans: plans of collectives; lane: row of `lane_row`.
    """
    # In a stage it sends to the same peers. A lane that goes to and fro between peers is a pipeline, of one stage.
    peer = first_peer = np.int64(-1)
    stages = returns = receives = 0
    for number in range(plans.lane_ptr[lane], plans.lane_ptr[lane + 1]):
        step = plans.step[number]
        if step.send_peer >= 0:
            if step.send_peer != peer:
                peer = np.int64(step.send_peer)
                # a receive between two peers separates stages: what is sent to several peers at once is one stage
                stages += np.int64(stages == 0 or receives == 1)
                first_peer = peer if stages == 1 and receives == 0 else first_peer
                returns += np.int64(peer == first_peer)
            receives = 0
        if step.recv_peer >= 0:
            receives = 1
    return stages if returns <= 2 and stages <= MAX_STAGES else 1


@outline
def find_stages(world, kind):
    """Set the stages of the lanes of a kind of collectives, and their number.

    world: state of the LP; kind: row of `flows.coupled`.
    """
    # A lane begins with the first stage, or after a lane of which it awaits the last step.
    flows, plans = world.flows, world.plans
    kind.stages = 1
    for at in range(plans.plan_of_ptr[kind.schedule], plans.plan_of_ptr[kind.schedule + 1]):
        plan, first_row = np.int64(plans.plan_of[at]), np.int64(flows.lane_first[at])
        first_lane = np.int64(plans.plan_ptr[plan])
        for number in range(plans.plan_ptr[plan + 1] - first_lane):
            step, lane = plans.step[plans.lane_ptr[first_lane + number]], flows.lane[first_row + number]
            clear_row(flows.lane, first_row + number)
            if step.dep_lane >= 0:
                other, before = first_lane + step.dep_lane, flows.lane[first_row + step.dep_lane]
                # a lane that awaits the last step of another one begins when that has ended all its stages
                if step.dep_step == plans.lane_ptr[other + 1] - plans.lane_ptr[other] - 1:
                    lane.stage = before.stage + before.stages
            lane.stages = stages_of(plans, first_lane + number)
            # too many stages to follow: the lane counts in the first one alone
            if lane.stage + lane.stages > MAX_STAGES:
                lane.stage = lane.stages = 0
            kind.stages = max(kind.stages, lane.stage + lane.stages)


@outline
def add_lane(world, flow_id, lane, own, src, now_ps):
    """Add what NPU `src` sends in a lane in a stage; return (bytes in a row, ps at its share).

    world: state of the LP; flow_id: number of the flow of the stage (row of `flows.flow` and `flows.stage`); lane: row
    of `lane_row`; own: row of `flows.lane`; src: number of the NPU in the fabric; now_ps: current time in ps.
    """
    # Messages to several peers are in a row if the lane receives between them; else they leave at once.
    net, flows, insts, plans = world.net, world.flows, world.insts, world.plans
    flow, stage = flows.flow[flow_id], flows.stage[flow_id]
    inst = np.int64(stage.instance)
    shares = np.int64(plans.lane_row[lane].connection) >> SHARES_SHIFT
    row_bytes, lane_ps = np.int64(0), 0.0
    sent = receives = np.int64(0)
    step, end = np.int64(plans.lane_ptr[lane]), np.int64(plans.lane_ptr[lane + 1])
    number = np.int64(flows.lane[own].stage)
    while step < end:
        to = np.int64(plans.step[step].send_peer)
        if to < 0:
            receives |= np.int64(plans.step[step].recv_peer >= 0)
            step += 1
            continue
        is_next = sent == 1 and receives == 1
        number += np.int64(is_next and flows.lane[own].stages > 1)
        sent, receives = np.int64(1), np.int64(0)
        # messages to one peer in a row take one path
        messages = packets = payload_bytes = framed_bytes = np.int64(0)
        while step < end and (plans.step[step].send_peer == to or plans.step[step].send_peer < 0):
            if plans.step[step].send_peer >= 0 and number == stage.number:
                size = sent_bytes_of(net.const.address, insts, plans, inst, lane, step)
                of_message = packets_of(net, size)
                messages += 1
                packets += of_message
                payload_bytes += size
                framed_bytes += flit_bytes(net, size, of_message)
            receives |= np.int64(plans.step[step].recv_peer >= 0)
            step += 1
        if messages == 0:
            continue
        plain_bytes = payload_bytes + packets * net.const.header_bytes
        dst = npu_of_peer(insts, plans, inst, lane, to)
        word2 = hash_word(net, plans, np.int64(flows.coupled[stage.kind].group), lane, src, dst)
        lay_both_ways(world, flow_id, src, dst, word2, now_ps)
        add_to_links(world, flow_id, messages, packets, plain_bytes, framed_bytes)
        # in a row: bytes add up; at the same time: the longer one counts
        row_bytes = row_bytes + plain_bytes if is_next else max(row_bytes, plain_bytes)
        if shares > SHARE_UNITS:
            lane_ps += plain_bytes * share_psb(net, np.int64(flows.hop[flow.first_hop].link), 0, shares)
        stage.messages += messages
        stage.payload_bytes += payload_bytes
    return row_bytes, lane_ps


@outline
def lay_coupled(world, flow_id, now_ps):
    """Find links, weights, cap and bytes of a stage, whose collective is in its instance.

    world: state of the LP; flow_id: number of the flow of the stage (row of `flows.flow` and `flows.stage`); now_ps:
    current time in ps.
    """
    net, flows, insts, plans = world.net, world.flows, world.insts, world.plans
    flow, stage = flows.flow[flow_id], flows.stage[flow_id]
    kind, collective = flows.coupled[stage.kind], insts.inst[stage.instance]
    schedule = kind.schedule
    stage.messages = stage.payload_bytes = stage.link_messages = 0
    flow.epoch = flows.state.epoch
    most_bytes, slowest_ps = np.int64(1), 0.0
    for member in range(plans.members[schedule]):
        # as each member: its peers and chunks give the links and bytes that it adds
        act_as(plans, collective, schedule, member)
        first_lane, first_row, lanes = lanes_of_member(world, schedule, member)
        src = np.int64(plans.group_member[plans.group_ptr[kind.group] + member])
        for own in range(first_row, first_row + lanes):
            begin = flows.lane[own].stage
            if begin <= stage.number < begin + max(1, flows.lane[own].stages):
                row_bytes, lane_ps = add_lane(world, flow_id, first_lane + own - first_row, own, src, now_ps)
                most_bytes = max(most_bytes, row_bytes)
                slowest_ps = max(slowest_ps, lane_ps)
    # bounds the weights: no link has more than 2^MAX_RATIO_SHIFT times the bytes to which weights refer
    for i in range(flows.state.touched):
        most_bytes = max(most_bytes, flows.link_total[flows.touched[i]].total_bytes >> MAX_RATIO_SHIFT)
    flow.first_hop = flows.state.hops
    flow.hops = flows.state.touched
    # lanes with a share of the line rate limit the flow to the rate of the slowest of them
    flow.cap = INF if slowest_ps == 0.0 else np.int64(UNITS_PER_PS * most_bytes / slowest_ps)
    for i in range(flow.hops):
        h = flow.first_hop + i
        link = flows.touched[i]
        total = flows.link_total[link]
        flows.hop[h].link = link
        flows.hop_use[h].ack_weight = 0  # acknowledgements are among all bytes
        # the lane that sends most has weight WHOLE on a link that it alone uses; rounded, at most 2^16 times WHOLE
        weight = np.float64(total.total_bytes) * WHOLE / most_bytes + 0.5
        flows.hop[h].weight = 0 if is_ample(net, link) else np.int64(weight)
        flows.hop_total[h].total_bytes = total.total_bytes
        flows.hop_total[h].messages = total.messages
        stage.link_messages += total.messages
        total.total_bytes = total.messages = 0
    flows.state.hops += flow.hops
    flows.state.touched = 0
    set_port_time(world, flow_id, most_bytes)
    flow.remaining_bytes = stage.whole_bytes


@inline
def is_port(net, link):
    """Return whether outgoing link number `link` of `net` begins or ends at an NPU."""
    return link < net.out_ptr[net.const.npus] or end_of(net.tx[link].meta) < net.const.npus


@inline
def set_port_time(world, flow_id, most_bytes):
    """Set the bytes of a stage, and their time at idle ports, as where collectives are simulated in isolation.

    world: state of the LP; flow_id: number of the flow of the stage (row of `flows.flow` and `flows.stage`);
    most_bytes: bytes on the wire of the lane or link with the most, which weights refer to.
    """
    net, flows = world.net, world.flows
    flow, stage = flows.flow[flow_id], flows.stage[flow_id]
    rate = slowest = flow.cap
    stage.peak_link = -1
    stage.whole_bytes = float(most_bytes)
    stage.lanes = 1
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        link, weight = np.int64(flows.hop[h].link), np.int64(flows.hop[h].weight)
        if weight > 0 and flows.link[link].idle_capacity // weight < slowest:
            slowest = flows.link[link].idle_capacity // weight
            stage.peak_link = link
        if is_port(net, link) and weight > 0 and flows.link[link].idle_capacity // weight < rate:
            rate = flows.link[link].idle_capacity // weight
            # so that rounding the weight changes nothing on the idle fabric
            stage.whole_bytes = np.float64(flows.hop_total[h].total_bytes) * WHOLE / weight
            # weight 2 x WHOLE at a port: two lanes share it
            stage.lanes = max(1, weight // WHOLE)
    stage.port_ps = 1 + np.int64(stage.whole_bytes * (UNITS_PER_PS / max(1, rate)))


@inline
def new_stage(world, kind_number, number, next_stage):
    """Return a flow of `world` for stage `number` of kind `kind_number`; next_stage: flow of the next, -1 none."""
    # it takes the place of a queue pair, which sends nothing
    net, qps, flows = world.net, world.qps, world.flows
    flow_id = net.ctl.queue_pairs
    net.ctl.queue_pairs = flow_id + 1
    net.ctl.check = 1
    clear_row(qps.qp, flow_id)
    clear_row(flows.flow, flow_id)
    clear_row(flows.stage, flow_id)
    flows.flow[flow_id].is_coupled = 1
    stage = flows.stage[flow_id]
    stage.kind, stage.number, stage.next_stage = kind_number, number, next_stage
    return flow_id


@outline
def begin_stage(world, flow_id, inst, now_ps):
    """Let a stage of a collective begin.

    world: state of the LP; flow_id: number of the flow of the stage (row of `flows.flow` and `flows.stage`); inst: row
    of `insts.inst`; now_ps: current time in ps.
    """
    flows = world.flows
    stage = flows.stage[flow_id]
    stage.instance = inst
    stage.begun_ps = now_ps
    if flows.flow[flow_id].epoch != flows.state.epoch:
        lay_coupled(world, flow_id, now_ps)
    flows.flow[flow_id].remaining_bytes = stage.whole_bytes
    enter(flows, flow_id, now_ps)
    ask_to_solve(world, now_ps)


@outline
def begin_coupled(world, inst, now_ps):
    """Let the flow of a collective begin, all of whose members have started.

    world: state of the LP; inst: row of `insts.inst`; now_ps: current time in ps.
    """
    flows = world.flows
    collective = world.insts.inst[inst]
    number = flows.coupled_ptr[world.plans.slot_group[collective.slot]]
    # a group has few kinds (schedule and size), all known before the run, so a search is short
    while (
        flows.coupled[number].schedule != collective.schedule
        or flows.coupled[number].buffer_bytes != collective.buffer_bytes
    ):
        number += 1
    kind = flows.coupled[number]
    if kind.stages == 0:
        find_stages(world, kind)
    flow_id = np.int64(kind.free_flow)
    if flow_id >= 0:
        kind.free_flow = flows.stage[flow_id].next_flow
    else:
        # from the last stage to the first, so that each knows the one behind it
        for left in range(kind.stages):
            flow_id = new_stage(world, number, kind.stages - 1 - left, flow_id)
    collective.first_lane = flow_id  # its first stage
    begin_stage(world, flow_id, inst, now_ps)
    if kind.reach_ps == 0:
        find_reach(world, flow_id, kind, inst, now_ps)


@hook
def join(world_address, node, row, now_ps):
    """Start the collective of trace row `row` of NPU `node`, if it is a coupled flow; return whether it is.

    world_address: address of the directory of the LP's `World`; node: number of the NPU; row: trace row of the NPU;
    now_ps: current time in ps.
    """
    # with the last member, its flow begins
    world = world_at(world_address)
    net, plans, trace, insts = world.net, world.plans, world.trace, world.insts
    npu = world.npus.npu[node]
    r = npu.trace_base + row
    slot = npu.slot_base + trace.group[r]
    group, seq, schedule = np.int64(plans.slot_group[slot]), np.int64(trace.seq[r]), np.int64(trace.schedule[r])
    if world.flows.is_coupled[schedule] == 0:
        return 0
    # all members share the instance of the first
    inst = instance(net, insts, np.int64(plans.group_member[plans.group_ptr[group]]), group, seq)
    collective = insts.inst[inst]
    if collective.lanes_left == 0:
        collective.lanes_left = plans.members[schedule]
        collective.slot = slot
        collective.schedule = schedule
        collective.buffer_bytes = trace.bytes[r]
    # lanes_left counts members here, which have no lanes of their own
    collective.lanes_left -= 1
    world.flows.state.held += 1
    if net.const.slows_compute != 0:
        call_hook(net.hooks.running, world_address, node, row, 1, now_ps)
    if collective.lanes_left == 0:
        begin_coupled(world, inst, now_ps)
    return 1


@inline
def count_stage(world, flow_id):
    """Count the messages of the stage of `world` with number `flow_id` of its flow."""
    net, flows = world.net, world.flows
    flow, stage = flows.flow[flow_id], flows.stage[flow_id]
    plans, group = world.plans, flows.coupled[stage.kind].group
    member = np.int64(plans.group_member[plans.group_ptr[group]])  # all members are of one job
    net.jobs.total[job_of(net.jobs.who[member])].messages += stage.messages
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        tx, total = net.tx[flows.hop[h].link], flows.hop_total[h]
        tx.sent_bytes += total.total_bytes
        tx.sent_packets += total.messages
        count_for_job(net, np.int64(flows.hop[h].link), member, member, total.total_bytes)
    net.count.hops += stage.link_messages
    net.count.data_packets += stage.messages
    net.count.consumed_packets += stage.messages
    net.count.flows += stage.messages
    net.count.sent_bytes += stage.payload_bytes
    net.count.received_bytes += stage.payload_bytes
    net.count.payload_bytes += stage.payload_bytes


@outline
def end_stage(world, flow_id, now_ps):
    """End a stage; then the next begins, or the members' trace rows end when the rest of the time alone has passed.

    world: state of the LP; flow_id: number of the flow of the stage (row of `flows.flow` and `flows.stage`); now_ps:
    current time in ps.
    """
    flows, insts = world.flows, world.insts
    stage = flows.stage[flow_id]
    inst = np.int64(stage.instance)
    collective = insts.inst[inst]
    count_stage(world, flow_id)
    count_limit(flows.flow[flow_id], flows.flow[flow_id].limit, now_ps)
    leave(flows, flow_id)
    took_ps = now_ps - stage.begun_ps
    collective.left_ps += took_ps
    limit = np.int64(flows.flow[flow_id].limit)
    # at its own peak: the link that sets the peak counts
    if limit < 0:
        limit = np.int64(stage.peak_link)
    if limit >= 0 and is_port(world.net, limit):
        # module: a k-th of the longer time adds to alone_ps, so only the rest of it counts as taken
        collective.left_ps -= (took_ps - stage.port_ps) // stage.lanes
    if stage.next_stage >= 0:
        begin_stage(world, np.int64(stage.next_stage), inst, now_ps)
        return
    ask_to_solve(world, now_ps)
    kind = flows.coupled[stage.kind]
    first = np.int64(collective.first_lane)
    least_ps = kind.alone_ps
    # alone_ps less the stages' bytes at the ports: launch and turns
    each = first
    while each >= 0:
        least_ps -= flows.stage[each].port_ps
        each = np.int64(flows.stage[each].next_stage)
    least_ps = max(0, min(least_ps, world.plans.launch_ps[kind.schedule] + kind.reach_ps))
    end_members(world, kind, inst, now_ps + max(least_ps, kind.alone_ps - collective.left_ps))
    free_instance(world.net, insts, inst)
    flows.stage[first].next_flow = kind.free_flow
    kind.free_flow = first


@inline
def end_members(world, kind, inst, time_ps):
    """Add events in which the members of a collective end its trace rows.

    world: state of the LP; kind: row of `flows.coupled`; inst: row of `insts.inst`; time_ps: time in ps of the end.
    """
    plans = world.plans
    seq = world.insts.inst[inst].key & (MAX_SEQ - 1)
    members = np.int64(plans.members[kind.schedule])
    for member in range(members):
        node = np.int64(plans.group_member[plans.group_ptr[kind.group] + member])
        row, _ = row_of_collective(world.npus.npu[node], world.trace, plans, kind.group, seq)
        add_event(world.net.ctl, world.messages, time_ps, OWN, (node << KEY_SHIFT) | (FIRST_DONE + row), node)
    world.flows.state.held -= members
