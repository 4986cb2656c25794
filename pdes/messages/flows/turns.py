"""Flows of one port take turns, packet by packet, so that messages that share it evenly do not end at one moment.

A fluid differs from packets by up to one packet of each flow. Where messages depend on each other, as in rings with
several channels per port, these packets matter: as fluids, channels that begin together end together in every step, and
the port waits for the latency of all of them; as packets, the first channel ends and begins ever earlier, until one
sends while others wait. So

- a message ends when its last packet has left, and others send the rest of that turn (`turn_bytes` of rates.py),
- a message that begins at a busy port waits for the packet on the wire.

The bytes of all flows of a port together do not change. Messages of a single packet do not take part.
"""

import numpy as np

from nadi.pdes.core.jit import inline, outline
from nadi.pdes.messages.flows.rates import MAX_TURNS, bring_up_to_date, set_finish


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
