"""Flows: messages share links max-min fairly, with the bytes of their packets and acknowledgements.

A connection sends its messages one after another, each as a fluid at the rate that pdes/messages/rates.py gives
it. Its last byte leaves when the flow ends, and arrives after the latencies of the path and one packet's transmission
over every link but the slowest. Closed forms are those of packets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from nadi.pdes.core import setting
from nadi.pdes.core.jit import call_hook, clock_ns, hook, inline, outline
from nadi.pdes.core.packet import destination
from nadi.pdes.core.rows import INF
from nadi.pdes.core.state import CHANGE_CIRCUIT, CHANGE_LINK, CHANGE_ROUTES, LONGEST_RUN_PS, whole_messages, world_at
from nadi.pdes.fidelity import NO_PAUSES, PATH_KEYS, MessageHooks, NetworkModel, OwnKeys
from nadi.pdes.messages import paths, rates
from nadi.pdes.messages.coupled import end_stage, lay_coupled
from nadi.pdes.messages.events import ARRIVE, FINISH, SOLVE, add_event
from nadi.pdes.messages.whole import add_message_event, leaves
from nadi.pdes.network.link import count_for_job, count_sent
from nadi.pdes.network.routing import change_row

COUPLED_ABOVE_MESSAGES = 1 << 22  # messages of a run, 40 s at 10 us each, above which "auto" couples collectives


@inline
def set_alarm(world):
    """Add an event for the earliest end, unless one is due before.

    Args:
        world: State of the LP (`World`).
    """
    state = world.flows.state
    if state.active > 0:
        earliest = world.flows.finish_heap[0].key
        if earliest < state.alarm_ps:
            state.alarm_ps = earliest
            add_event(world.net.ctl, world.messages, earliest, FINISH, 0, 0)


@outline
def begin(world, pair, now_ps):
    """Let the first message of a connection begin.

    Args:
        world: State of the LP (`World`).
        pair: Connection: row of the queue pair in `qps.qp` and of its flow in `flows.flow`.
        now_ps: Current time in ps.
    """
    flows = world.flows
    flow = flows.flow[pair]
    if flow.epoch != flows.state.epoch:
        paths.lay_path(world, pair, now_ps)
    paths.load_message(world, pair, whole_messages(world.qps.msg)[flow.first_message].payload_bytes)
    rates.wait_for_turn(flows, pair, now_ps)
    rates.enter(flows, pair, now_ps)
    rates.ask_to_solve(world, now_ps)


@outline
def count_on_links(world, pair, size_bytes):
    """Count a message of a connection on the links that it has crossed, and its acknowledgements on theirs.

    Args:
        world: State of the LP (`World`).
        pair: Connection: row of the queue pair in `qps.qp` and of its flow in `flows.flow`.
        size_bytes: Payload of the message in bytes.
    """
    net, flows = world.net, world.flows
    flow = flows.flow[pair]
    packets = paths.packets_of(net, size_bytes)
    src, dst = np.int64(world.qps.qp[pair].npu), destination(world.qps.qp[pair].w1)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop, use = flows.hop[h], flows.hop_use[h]
        link = np.int64(hop.link)
        if use.is_back == 1:
            on_link = paths.back_bytes_on(net, link, packets) * use.share // paths.WHOLE
            # acknowledgements are no messages, so only their bytes count
            net.tx[link].sent_bytes += on_link
        else:
            on_link = paths.bytes_on(net, link, size_bytes, packets) * use.share // paths.WHOLE
            count_sent(net, link, on_link, 0)
            net.count.hops += 1
        count_for_job(net, link, src, dst, on_link)


@outline
def end(world, pair, now_ps):
    """End the current message of a connection, and let its next one begin.

    Args:
        world: State of the LP (`World`).
        pair: Connection: row of the queue pair in `qps.qp` and of its flow in `flows.flow`.
        now_ps: Current time in ps.
    """
    flows, qps = world.flows, world.qps
    flow = flows.flow[pair]
    message = flow.first_message
    msg = whole_messages(qps.msg)[message]
    size = msg.payload_bytes
    count_on_links(world, pair, size)
    following = msg.following
    rates.bring_up_to_date(flows, pair, flow.rate, flow.limit, now_ps)
    rest_bytes, port = flow.remaining_bytes, np.int64(flows.hop[flow.first_hop].link)
    flow.first_message = following
    flow.messages -= 1
    flows.state.held -= 1
    arrives = max(now_ps + flow.latency_ps, qps.arrived[pair])
    qps.arrived[pair] = arrives
    leaves(world, message, now_ps, now_ps)
    add_message_event(world.net, qps, world.messages, arrives, ARRIVE, message)
    if flow.messages > 0 and whole_messages(qps.msg)[following].payload_bytes == size:
        rate = flow.rate
        paths.load_message(world, pair, size)  # the same weights, so no rate changes
        flow.remaining_bytes += rest_bytes
        flow.rate = rate
        rates.set_finish(flows, pair)
        return
    rates.leave(flows, pair)
    rates.leave_turn(flows, port, rest_bytes, now_ps)
    rates.ask_to_solve(world, now_ps)
    if flow.messages > 0:
        begin(world, pair, now_ps)


@outline
def change_network(world, now_ps):
    """Make the changes of the schedule of faults that are due, and add an event for the next.

    Args:
        world: State of the LP (`World`).
        now_ps: Current time in ps.
    """
    net, schedule = world.net, world.schedule
    first = net.ctl.fault_at
    # changes that repeat do not keep a run going in which nothing else can happen
    goes_on = net.ctl.events > 0 or world.flows.state.active > 0 or first < net.const.first_repeated
    call_hook(net.hooks.make_changes, net.const.address)
    for i in range(first, net.ctl.fault_at):
        change = schedule.change[change_row(net, schedule, i)]
        if change.kind == CHANGE_LINK or change.kind == CHANGE_CIRCUIT:
            paths.set_capacity(world.flows, change.index, paths.capacity_of(net, change.index))
        elif change.kind == CHANGE_ROUTES:
            world.flows.state.epoch = change.value + 1
    rates.ask_to_solve(world, now_ps)
    if net.ctl.fault_ps < LONGEST_RUN_PS and goes_on:
        add_event(net.ctl, world.messages, net.ctl.fault_ps, FINISH, 0, 0)


@outline
def reroute(world, now_ps):
    """Move flows to the paths of new routing tables; without room for all, continue in another event of this time.

    Args:
        world: State of the LP (`World`).
        now_ps: Current time in ps.
    """
    flows = world.flows
    for pair in range(world.net.ctl.queue_pairs):
        flow = flows.flow[pair]
        if flows.finish_place[pair] > 0 and flow.epoch != flows.state.epoch:
            if flows.state.hops + world.net.const.reserve_hops > flows.hop.shape[0]:
                add_event(world.net.ctl, world.messages, now_ps, FINISH, 0, 0)
                return
            rates.bring_up_to_date(flows, pair, flow.rate, flow.limit, now_ps)
            left_bytes = flow.remaining_bytes
            rates.leave(flows, pair)
            if flow.is_coupled == 1:
                lay_coupled(world, pair, now_ps)
            else:
                paths.lay_path(world, pair, now_ps)
                paths.load_message(world, pair, whole_messages(world.qps.msg)[flow.first_message].payload_bytes)
            # `load_message` has set the bytes of the whole message, of which these are left
            flow.remaining_bytes = min(flow.remaining_bytes, left_bytes)
            rates.enter(flows, pair, now_ps)
            rates.ask_to_solve(world, now_ps)
    flows.state.moved_epoch = flows.state.epoch


@inline
def take_up(world, message, now_ps):
    """Let a message begin, or wait for those of its connection before it.

    Args:
        world: State of the LP (`World`).
        message: Row of `msg`.
        now_ps: Current time in ps.
    """
    flows = world.flows
    msg = whole_messages(world.qps.msg)
    pair = msg[message].connection
    flow = flows.flow[pair]
    msg[message].following = -1
    if flow.messages == 0:
        flow.first_message = message
    else:
        msg[flow.last_message].following = message
    flow.last_message = message
    flow.messages += 1
    flows.state.held += 1
    if flow.messages == 1:
        begin(world, pair, now_ps)


@hook
def act(world_address, message, now_ps):
    """Let a message begin, or wait for those of its connection before it.

    Args:
        world_address: Address of the directory of the LP's `World`.
        message: Row of `msg`.
        now_ps: Current time in ps.
    """
    take_up(world_at(world_address), message, now_ps)
    return 0


@hook
def settle(world_address, kind, now_ps):
    """Handle an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        kind: FINISH: change the network, and end the messages that are due. SOLVE: set rates.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    flows = world.flows
    if kind == SOLVE:
        begun_ns = clock_ns()
        flows.state.solved += rates.solve(flows, now_ps)
        flows.state.solve_ns += clock_ns() - begun_ns
    else:
        if flows.state.alarm_ps == now_ps:
            flows.state.alarm_ps = INF
        if world.net.hooks.make_changes != 0:
            if world.net.ctl.fault_ps <= now_ps or now_ps == 0:  # at 0 for the event of the first change
                change_network(world, now_ps)
            if flows.state.moved_epoch != flows.state.epoch:
                reroute(world, now_ps)
        while flows.state.active > 0 and flows.finish_heap[0].key <= now_ps:
            flow_id = np.int64(flows.finish_heap[0].number)
            if flows.flow[flow_id].is_coupled == 1:
                if flows.state.hops + world.net.const.reserve_hops > flows.hop.shape[0]:
                    add_event(world.net.ctl, world.messages, now_ps, FINISH, 0, 0)
                    break
                end_stage(world, flow_id, now_ps)
            else:
                end(world, rates.first_to_end(flows, flow_id, now_ps), now_ps)
    set_alarm(world)
    return 0


@dataclass(frozen=True)
class FlowKeys(OwnKeys):
    """Keys of this model."""

    coupled: ClassVar[Mapping[str, str]] = {"collectives": "coupled"}

    collectives: Literal["steps", "coupled", "auto"] = setting(
        "auto",
        'flow: "steps" = each message of a collective is a flow, "coupled" = each collective is one flow over all its '
        f'links, "auto" = coupled if the run has more than {COUPLED_ABOVE_MESSAGES:,} messages',
    )

    def couples(self, num_messages: float) -> bool:
        """Return whether collectives are coupled flows.

        Args:
            num_messages: Approximate number of messages of the run.
        """
        return self.collectives == "coupled" or (self.collectives == "auto" and num_messages > COUPLED_ABOVE_MESSAGES)


NETWORK = NetworkModel(
    name="flow",
    title="is a fluid with the bytes of its packets, on their route; messages share links max-min fairly",
    use="contention and oversubscription where packets are too many; faults of links",
    keys=PATH_KEYS | {"detection_time", "load_balancing", "nvlink"},
    own=FlowKeys,
    conditions={"nvlink": ('collectives = "steps"', lambda network: network.collectives != "coupled")},
    hooks=(MessageHooks("flow", act, settle=settle),),
    refused_faults={
        "error_rate": "messages as a whole are never lost; expected another fault",
        "pause_storm": NO_PAUSES,
    },
    max_link_rate_bps=paths.MAX_RATE_BPS,
)
