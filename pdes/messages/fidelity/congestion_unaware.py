"""Analytical, congestion-unaware: a message takes all latencies of its path and its bytes at the slowest rate.

No message waits for another, however many cross a link. The first link counts with the connection's share of its rate.
Messages of one connection (two NPUs, one group) arrive in the order of posting. ASTRA-sim's analytical network (Won et
al., ISPASS 2023) does the same, but counts only the first dimension that differs between two NPUs.
"""

import numpy as np

from pdes.core.inputs import Float64, Int64
from pdes.core.jit import hook
from pdes.core.packet import SHARE_UNITS, class_of, destination, end_of
from pdes.core.state import whole_messages, world_at
from pdes.messages.events import ARRIVE
from pdes.messages.whole import add_message_event, leaves, link_of_connection, whole_ps
from pdes.network.link import count_sent, link_psb
from pdes.network.routing import forwarding_ps

USER_NAME = "analytical"
TITLE = "latencies and rate of the path; no message waits for another"
LINKS_ARE_BUSY = False


@hook
def act(world_address, message, now_ps):
    """Send a message, a row of `msg`, over its whole path."""
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
        slowest = max(slowest, link_psb(net, link) * shares)
        shares = 1.0
        count_sent(net, link, size, 0)
        net.count.hops += 1
        node = end_of(meta)
    arrived = max(now_ps + whole_ps(net, size, slowest, latency), qps.arrived[pair])
    qps.arrived[pair] = arrived
    leaves(world, message, now_ps + whole_ps(net, size, slowest, 0), now_ps)
    add_message_event(net, qps, world.messages, arrived, ARRIVE, message)
    return 0


def alone_ps(psb: Float64, delay_ps: Int64, forwarding_ps: Int64, size_bytes: Int64, resolution_ps: int) -> Int64:
    """Return all latencies of an idle path plus the time of the bytes at the lowest rate; see congestion_aware."""
    time_ps = (size_bytes * psb.max() + 0.5).astype(np.int64) + delay_ps.sum() + forwarding_ps.sum()
    return time_ps - time_ps % resolution_ps
