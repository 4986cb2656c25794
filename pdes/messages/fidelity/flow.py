"""Flows: messages share links max-min fairly, with the bytes of their packets and acknowledgements.

A connection sends its messages one after another, each as a fluid at the rate that pdes/messages/flows/rates.py gives
it. Its last byte leaves when the flow ends, and arrives after the latencies of the path and one packet's transmission
over every link but the slowest. Closed forms are those of packets.
"""

import numpy as np

from pdes.core.jit import call_hook, clock_ns, hook, inline, outline
from pdes.core.rows.row import INF
from pdes.core.state import CHANGE_LINK, CHANGE_ROUTES, LONGEST_RUN_PS, whole_messages, world_at
from pdes.messages.events import ARRIVE, FINISH, SOLVE, add_event
from pdes.messages.flows.paths import WHOLE, back_bytes_on, bytes_on, lay_path, load_message, packets_of
from pdes.messages.flows.rates import bring_up_to_date, capacity_of, enter, leave, set_capacity, set_finish, solve
from pdes.messages.whole import add_message_event, leaves
from pdes.network.link import count_sent

TITLE = "flows share links max-min fairly; headers, acknowledgements and delays as of packets"


@inline
def ask_to_solve(w, now):
    """Let rates be set when everything else of this time has happened."""
    if w.flows.state.solve_ps != now:
        w.flows.state.solve_ps = now
        add_event(w.net.ctl, w.messages, now, SOLVE, 0, 0)


@inline
def set_alarm(w):
    """Add an event for the earliest end, unless one is due before."""
    state = w.flows.state
    if state.active > 0:
        earliest = w.flows.flow[w.flows.finish_heap[0]].finish_ps
        if earliest < state.alarm_ps:
            state.alarm_ps = earliest
            add_event(w.net.ctl, w.messages, earliest, FINISH, 0, 0)


@outline
def begin(w, q, now):
    """Let the connection's first message begin."""
    flows = w.flows
    flow = flows.flow[q]
    if flow.epoch != flows.state.epoch:
        lay_path(w, q, now)
    load_message(w, q, whole_messages(w.qps.msg)[flow.first_message].payload_bytes)
    enter(flows, q, now)
    ask_to_solve(w, now)


@outline
def count_on_links(w, q, size):
    """Count a message on the links that it has crossed, and its acknowledgements on theirs."""
    net, flows = w.net, w.flows
    flow = flows.flow[q]
    packets = packets_of(net, size)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = flows.hop[h]
        link = np.int64(hop.link)
        if hop.is_back == 1:
            net.tx[link].sent_bytes += back_bytes_on(net, link, packets) * hop.share // WHOLE
        else:
            count_sent(net, link, bytes_on(net, link, size, packets) * hop.share // WHOLE, 0)
            net.count.hops += 1


@outline
def end(w, q, now):
    """End the connection's current message, and let its next one begin."""
    flows, qps = w.flows, w.qps
    flow = flows.flow[q]
    message = flow.first_message
    msg = whole_messages(qps.msg)[message]
    size = msg.payload_bytes
    count_on_links(w, q, size)
    following = msg.following
    flow.first_message = following
    flow.messages -= 1
    flows.state.held -= 1
    arrives = max(now + flow.latency_ps, qps.arrived[q])
    qps.arrived[q] = arrives
    leaves(w, message, now, now)
    add_message_event(w.net, qps, w.messages, arrives, ARRIVE, message)
    if flow.messages > 0 and whole_messages(qps.msg)[following].payload_bytes == size:
        rate = flow.rate
        load_message(w, q, size)  # the same weights, so no rate changes
        flow.since_ps = now
        flow.rate = rate
        set_finish(flows, q)
        return
    leave(flows, q)
    ask_to_solve(w, now)
    if flow.messages > 0:
        begin(w, q, now)


@outline
def change_network(w, now):
    """Make the changes of the schedule of faults that are due, and add an event for the next."""
    net, schedule = w.net, w.schedule
    first = net.ctl.fault_at
    call_hook(net.hooks.make_changes, net.const.address)
    for i in range(first, net.ctl.fault_at):
        change = schedule.change[i]
        if change.kind == CHANGE_LINK:
            set_capacity(w.flows, change.index, capacity_of(net, change.index))
        elif change.kind == CHANGE_ROUTES:
            w.flows.state.epoch = change.value + 1
    ask_to_solve(w, now)
    if net.ctl.fault_ps < LONGEST_RUN_PS:
        add_event(net.ctl, w.messages, net.ctl.fault_ps, FINISH, 0, 0)


@outline
def reroute(w, now):
    """Move flows to the paths of new routing tables; without room for all, go on in another event of this time."""
    flows = w.flows
    for q in range(w.net.ctl.queue_pairs):
        flow = flows.flow[q]
        if flow.heap_place > 0 and flow.epoch != flows.state.epoch:
            if flows.state.hops + w.net.const.reserve_hops > flows.hop.shape[0]:
                add_event(w.net.ctl, w.messages, now, FINISH, 0, 0)
                return
            bring_up_to_date(flows, q, now)
            left_bytes = flow.remaining_bytes
            leave(flows, q)
            lay_path(w, q, now)
            load_message(w, q, whole_messages(w.qps.msg)[flow.first_message].payload_bytes)
            flow.remaining_bytes = min(flow.remaining_bytes, left_bytes)
            enter(flows, q, now)
            ask_to_solve(w, now)
    flows.state.moved_epoch = flows.state.epoch


@hook
def act(address, message, now):
    """Let a message begin, or wait for those of its connection before it."""
    w = world_at(address)
    flows = w.flows
    msg = whole_messages(w.qps.msg)
    q = msg[message].connection
    flow = flows.flow[q]
    msg[message].following = -1
    if flow.messages == 0:
        flow.first_message = message
    else:
        msg[flow.last_message].following = message
    flow.last_message = message
    flow.messages += 1
    flows.state.held += 1
    if flow.messages == 1:
        begin(w, q, now)
    return 0


@hook
def settle(address, kind, now):
    """FINISH: change the network, and end the messages that are due. SOLVE: set rates."""
    w = world_at(address)
    flows = w.flows
    if kind == SOLVE:
        begun_ns = clock_ns()
        flows.state.solved += solve(flows, now)
        flows.state.solve_ns += clock_ns() - begun_ns
    else:
        if flows.state.alarm_ps == now:
            flows.state.alarm_ps = INF
        if w.net.hooks.make_changes != 0:
            if w.net.ctl.fault_ps <= now or now == 0:  # at 0 for the event of the first change
                change_network(w, now)
            if flows.state.moved_epoch != flows.state.epoch:
                reroute(w, now)
        while flows.state.active > 0 and flows.flow[flows.finish_heap[0]].finish_ps <= now:
            end(w, np.int64(flows.finish_heap[0]), now)
    set_alarm(w)
    return 0
