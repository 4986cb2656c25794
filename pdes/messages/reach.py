"""The reach of a coupled flow: the time from its begin until its first chunk has come everywhere.

It is the longest chain of lanes' first messages, each of which awaits those that its lane receives before.
"""

import numpy as np

from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.packet import SHARES_SHIFT, path_word
from nadi.pdes.messages.paths import idle_way, lay_both_ways
from nadi.pdes.network.link import link_psb
from nadi.pdes.network.routing import path_of
from nadi.pdes.nic.counting import within_job
from nadi.pdes.npu.collective import npu_of_peer, plan_entry, sent_bytes_of


@inline
def first_send(plans, lane):
    """Return the first step of a lane that sends; if there is none, the end of its steps.

    Args:
        plans: Groups and schedules of collectives (`PlanTables`).
        lane: Row of the lane in `plans.lane_row`.
    """
    step = np.int64(plans.lane_ptr[lane])
    # a lane that only receives has none, and its reach is that of its senders
    while step < plans.lane_ptr[lane + 1] and plans.step[step].send_peer < 0:
        step += 1
    return step


@inline
def lanes_of_member(world, schedule, member):
    """Return the rows of a member's first lane in `lane_row` and `flows.lane`, and the number of its lanes.

    Args:
        world: State of the LP (`World`).
        schedule: Number of the schedule.
        member: Number of the member in its group.
    """
    # Members that share a plan but have different peers have different rows of `flows.lane`.
    plans = world.plans
    entry = plan_entry(plans, schedule, member)
    plan = np.int64(plans.plan_of[entry])
    first = np.int64(plans.plan_ptr[plan])
    return first, np.int64(world.flows.lane_first[entry]), plans.plan_ptr[plan + 1] - first


@inline
def act_as(plans, collective, schedule, member):
    """Let an instance stand for a member of a schedule.

    Args:
        plans: Groups and schedules of collectives (`PlanTables`).
        collective: The instance (a row `Instance`).
        schedule: Number of the schedule.
        member: Number of the member in its group.
    """
    # one instance serves all members in turn, since none of them has an instance of its own (`coupled.join`)
    collective.member = member
    collective.list_first = plans.list_first[plan_entry(plans, schedule, member)]


@inline
def hash_word(net, plans, group, lane, src, dst):
    """Return the word by which hashes choose the path of a lane from an NPU to another.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        plans: Groups and schedules of collectives (`PlanTables`).
        group: Number of the group.
        lane: Row of the lane in `plans.lane_row`.
        src: Number of the NPU that sends.
        dst: Number of the NPU that receives.
    """
    connection = group | np.int64(plans.lane_row[lane].connection) & ((1 << SHARES_SHIFT) - 1)
    return path_word(np.int64(0), path_of(net, src, dst, within_job(net, connection)))


@inline
def set_first_message(world, flow_id, kind, lane, row, src, inst, now_ps):
    """Set what the first message of a lane takes: latency_ps and chunk_ps.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of a flow whose path may be overwritten.
        kind: Collectives of one group, schedule and size (a row `CoupledKind`).
        lane: Row of the lane in `plans.lane_row`.
        row: Row of the lane in `flows.lane`, which the function changes.
        src: Number of the NPU that sends.
        inst: Row of the collective in `insts.inst`.
        now_ps: Current time in ps.
    """
    net, flows, insts, plans = world.net, world.flows, world.insts, world.plans
    step = first_send(plans, lane)
    if step == plans.lane_ptr[lane + 1]:
        return
    size = sent_bytes_of(net.const.address, insts, plans, inst, lane, step)
    dst = npu_of_peer(insts, plans, inst, lane, np.int64(plans.step[step].send_peer))
    lay_both_ways(world, flow_id, src, dst, hash_word(net, plans, kind.group, lane, src, dst), now_ps)
    # a message of less than a packet crosses each link in less than a full packet's time
    packet_bytes = min(size, net.const.mtu_bytes) + net.const.header_bytes
    latency_ps = idle_way(world, flow_id, src, dst, 0, packet_bytes)
    row.latency_ps = max(row.latency_ps, latency_ps + plans.lane_row[lane].latency_ps)
    messages, busy_ps = 0, 0.0
    for number in range(step, plans.lane_ptr[lane + 1]):
        messages += np.int64(plans.step[number].send_peer >= 0)
    flow = flows.flow[flow_id]
    # per message of the lane, the time of all bytes on the busiest link of its path
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        if flows.hop_use[h].is_back == 0:
            link = np.int64(flows.hop[h].link)
            busy_ps = max(busy_ps, flows.link_total[link].total_bytes * link_psb(net, link))
    row.chunk_ps = max(row.chunk_ps, np.int64(busy_ps / messages))


@inline
def move_on(world, kind, member, number):
    """Set when the first message of a member's lane begins and arrives, by those before; return whether that is later.

    Args:
        world: State of the LP (`World`).
        kind: Collectives of one group, schedule and size (a row `CoupledKind`).
        member: Number of the member in its group.
        number: Number of the lane within the member's plan.
    """
    flows, plans = world.flows, world.plans
    first_lane, first_row, _ = lanes_of_member(world, kind.schedule, member)
    lane, row = first_lane + number, flows.lane[first_row + number]
    step, end = np.int64(plans.lane_ptr[lane]), first_send(plans, lane)
    if end == plans.lane_ptr[lane + 1]:
        return False
    begin_ps = np.int64(row.begin_ps)
    while step <= end:
        # the lane's first send awaits all that its steps up to there await: other lanes, and what it receives itself
        if plans.step[step].dep_lane >= 0:
            other = flows.lane[first_row + plans.step[step].dep_lane]
            begin_ps = max(begin_ps, other.begin_ps, other.arrival_ps)
        if plans.step[step].recv_peer >= 0 and step < end:
            begin_ps = max(begin_ps, row.arrival_ps)
        step += 1
    row.begin_ps = begin_ps
    peer, to_lane = np.int64(plans.step[end].send_peer), np.int64(plans.step[end].send_lane)
    first = np.int64(plans.list_first[plan_entry(plans, kind.schedule, member)])
    if first >= 0:
        peer, to_lane = np.int64(plans.peer_list[first + peer]), np.int64(plans.peer_list[first + to_lane])
    _, to_row, _ = lanes_of_member(world, kind.schedule, peer)
    to = flows.lane[to_row + to_lane]
    arrival_ps = begin_ps + row.latency_ps
    kind.reach_ps = max(kind.reach_ps, arrival_ps)
    # a stage has sent all its bytes before the next begins
    arrival_ps += row.chunk_ps if kind.stages == 1 else 0
    if arrival_ps <= to.arrival_ps:
        return False
    to.arrival_ps = arrival_ps
    return True


@outline
def find_reach(world, flow_id, kind, inst, now_ps):
    """Set `reach_ps` of a kind of collectives, of which an instance begins.

    Args:
        world: State of the LP (`World`).
        flow_id: Number of the flow of the first stage, whose path is known.
        kind: Collectives of one group, schedule and size (a row `CoupledKind`).
        inst: Row of the collective that begins in `insts.inst`.
        now_ps: Current time in ps.
    """
    # Only the first message of each lane counts: it awaits what the lane receives before, and steps of other lanes.
    flows, plans, collective = world.flows, world.plans, world.insts.inst[inst]
    flow = flows.flow[flow_id]
    first_hop, hops = np.int64(flow.first_hop), np.int64(flow.hops)
    for h in range(first_hop, first_hop + hops):
        flows.link_total[flows.hop[h].link].total_bytes = flows.hop_total[h].total_bytes
    schedule, members = kind.schedule, np.int64(plans.members[kind.schedule])
    for member in range(members):
        act_as(plans, collective, schedule, member)
        first_lane, first_row, lanes = lanes_of_member(world, schedule, member)
        src = np.int64(plans.group_member[plans.group_ptr[kind.group] + member])
        for number in range(lanes):
            row = flows.lane[first_row + number]
            set_first_message(world, flow_id, kind, first_lane + number, row, src, inst, now_ps)
    flow.first_hop, flow.hops = first_hop, hops
    for h in range(first_hop, first_hop + hops):
        flows.link_total[flows.hop[h].link].total_bytes = 0
    # longest path by relaxation (Bellman-Ford): rounds until no time moves; plans have no circles, so it ends
    later = True
    while later:
        later = False
        for member in range(members):
            _, _, lanes = lanes_of_member(world, schedule, member)
            for number in range(lanes):
                later |= move_on(world, kind, member, number)
