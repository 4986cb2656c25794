"""Analytical: each link of the path stores and forwards a message as a whole, or no message waits for another.

Congestion-aware, a link sends one message at a time, in order of arrival; simultaneous messages are ordered by sender,
and those of one sender as they were posted. A connection with a share of its port's rate occupies the port no longer
than others, but its messages take as long as the share requires. ASTRA-sim's congestion-aware network does the same
(Won et al., ISPASS 2023) for one dimension; here the fabric is arbitrary.

Congestion-unaware, a message takes all latencies of its path and its bytes at the slowest rate, however many cross a
link. The first link counts with the connection's share of its rate. Messages of one connection (two NPUs, one group)
arrive in the order of posting. ASTRA-sim's analytical network does the same, but counts only the first dimension that
differs between two NPUs.
"""

from dataclasses import dataclass

import numpy as np

from nadi.pdes.core import Float64, Int64, setting
from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import SHARE_UNITS, class_of, destination, end_of
from nadi.pdes.core.state import INF, whole_messages, world_at
from nadi.pdes.fidelity import MessageHooks, NetworkModel, OwnKeys, packet
from nadi.pdes.messages.events import ARRIVE, STEP
from nadi.pdes.messages.whole import add_message_event, leaves, link_of_connection, whole_ps
from nadi.pdes.network.link import count_for_job, count_sent, link_psb
from nadi.pdes.network.routing import forwarding_ps


@hook
def send_over_next_link(world_address, message, now_ps):
    """Send a message over the next link of its path.

    Args:
        world_address: Address of the directory of the LP's `World`.
        message: Row of `msg`.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    msg = whole_messages(qps.msg)[message]
    pair = msg.connection
    qp = qps.qp[pair]
    size = msg.payload_bytes
    node = msg.node
    link = link_of_connection(net, world.routes, qps, pair, node)
    tx = net.tx[link]
    meta = tx.meta
    # the port sends what came before first; INF bounds times on a link that is cut
    start = min(max(now_ps, tx.busy_ps), INF)
    psb = link_psb(net, link)
    sent = start + whole_ps(net, size, psb, 0)
    tx.busy_ps = sent
    count_sent(net, link, size, start - now_ps)
    count_for_job(net, link, np.int64(qp.npu), destination(qp.w1), size)
    net.count.hops += 1
    at_npu = node == qp.npu
    # the port is busy at its whole rate, while messages of a rate-limited queue pair follow each other at its share
    if at_npu and qp.shares > SHARE_UNITS:
        start = max(start, qps.arrived[pair])
        psb *= qp.shares / SHARE_UNITS
        sent = start + whole_ps(net, size, psb, 0)
        qps.arrived[pair] = sent
    if at_npu:
        leaves(world, message, sent, now_ps)
    after = end_of(meta)
    msg.node = after
    at = start + whole_ps(net, size, psb, net.link_class[class_of(meta)].delay_ps)
    if after == destination(qp.w1):
        add_message_event(net, qps, world.messages, at, ARRIVE, message)
    else:
        add_message_event(net, qps, world.messages, at + forwarding_ps(net, world.routes, after), STEP, message)
    return 0


def stored_ps(psb: Float64, delay_ps: Int64, forwarding_ps: Int64, size_bytes: Int64, resolution_ps: int) -> Int64:
    """Return int64[m], ps of messages on an idle path: sending and delay of each link, and forwarding.

    Args:
        psb: float64[k], ps per byte of the path's links.
        delay_ps: int64[k], propagation times of the path's links.
        forwarding_ps: Latencies in ps of the path's switches.
        size_bytes: int64[m], sizes of the messages.
        resolution_ps: Unit in ps to which times are rounded down.
    """
    time_ps = (size_bytes[:, None] * psb + 0.5).astype(np.int64) + delay_ps
    return forwarding_ps.sum() + (time_ps - time_ps % resolution_ps).sum(axis=1)


@hook
def send_over_path(world_address, message, now_ps):
    """Send a message over its whole path.

    Args:
        world_address: Address of the directory of the LP's `World`.
        message: Row of `msg`.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    msg = whole_messages(qps.msg)[message]
    pair = msg.connection
    qp = qps.qp[pair]
    size = msg.payload_bytes
    dst = destination(qp.w1)
    node = msg.node
    latency = np.int64(0)
    slowest = 0.0
    shares = max(SHARE_UNITS, qp.shares) / SHARE_UNITS
    while node != dst:
        latency += forwarding_ps(net, world.routes, node)
        link = link_of_connection(net, world.routes, qps, pair, node)
        meta = net.tx[link].meta
        latency += net.link_class[class_of(meta)].delay_ps
        # the queue pair has a share of the first link, and the whole rate of all others
        slowest = max(slowest, link_psb(net, link) * shares)
        shares = 1.0
        count_sent(net, link, size, 0)
        count_for_job(net, link, np.int64(qp.npu), dst, size)
        net.count.hops += 1
        node = end_of(meta)
    # messages of a queue pair arrive in order
    arrived = max(now_ps + whole_ps(net, size, slowest, latency), qps.arrived[pair])
    qps.arrived[pair] = arrived
    leaves(world, message, now_ps + whole_ps(net, size, slowest, 0), now_ps)
    add_message_event(net, qps, world.messages, arrived, ARRIVE, message)
    return 0


def unhindered_ps(psb: Float64, delay_ps: Int64, forwarding_ps: Int64, size_bytes: Int64, resolution_ps: int) -> Int64:
    """Return all latencies of an idle path plus the time of the bytes at the lowest rate; see stored_ps.

    Args:
        psb: float64[k], ps per byte of the path's links.
        delay_ps: int64[k], propagation times of the path's links.
        forwarding_ps: Latencies in ps of the path's switches.
        size_bytes: int64[m], sizes of the messages.
        resolution_ps: Unit in ps to which times are rounded down.
    """
    time_ps = (size_bytes * psb.max() + 0.5).astype(np.int64) + delay_ps.sum() + forwarding_ps.sum()
    return time_ps - time_ps % resolution_ps


@dataclass(frozen=True)
class AnalyticalKeys(OwnKeys):
    """Keys of this model."""

    congestion_aware: bool = setting(
        True, "analytical: a link sends one whole message at a time; false: messages do not wait for each other"
    )
    resolution_ps: int = setting(
        1, "analytical: unit to which times of transfers, reductions and rooflines are rounded down"
    )

    @property
    def unit_ps(self) -> int:
        """Unit in ps to which times are rounded down."""
        return self.resolution_ps


UNAWARE = (
    "with [network] congestion_aware = false no message waits for another, so times are too short; "
    f'congestion_aware = true or fidelity = "{packet.NETWORK.name}" shows by how much'
)


NETWORK = NetworkModel(
    name="analytical",
    title="is stored and forwarded whole over each link of its path, and waits for links; with "
    "congestion_aware = false it takes the latencies of its path, and its bytes at the slowest rate, and never waits",
    use="comparison with ASTRA-sim; fabrics with large numbers of small messages",
    own=AnalyticalKeys,
    hooks=(
        MessageHooks("congestion_aware", send_over_next_link, stored_ps, chosen_by={"congestion_aware": True}),
        MessageHooks(
            "congestion_unaware",
            send_over_path,
            unhindered_ps,
            contends=False,
            overload=UNAWARE,
            chosen_by={"congestion_aware": False},
        ),
    ),
)
