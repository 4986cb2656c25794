"""Kernels of an open network (pdes/open_network.py): messages that its owner posts, not the NPUs' traces."""

import numpy as np

from nadi.pdes.core.jit import kernel
from nadi.pdes.core.packet import P2P, message_tag
from nadi.pdes.core.state import DONE, FULL, world_at
from nadi.pdes.messages.events import next_event_ps
from nadi.pdes.messages.message_loop import are_events_short, are_hops_short
from nadi.pdes.network.batch import blocks_short
from nadi.pdes.nic.transport import post
from nadi.pdes.npu.npu_window import short_of


@kernel
def post_from_outside(world_address, node, dst, row, size_bytes, now_ps):
    """Post a message whose trace row is done when the last byte has left; return DONE or FULL.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        dst: Number of the NPU that receives.
        row: Trace row of the NPU that sends.
        size_bytes: Payload of the message in bytes.
        now_ps: Current time in ps.
    """
    # after FULL: make room and call again
    world = world_at(world_address)
    net = world.net
    if blocks_short(net) or short_of(net, world.qps) > 0 or are_events_short(world) or are_hops_short(world):
        return FULL
    # as if an event of the NPU were at hand, from which posts take their time
    world.npus.npu[node].now_ps = now_ps
    net.next_time[node] = now_ps
    tag = message_tag(np.int64(P2P), np.int64(0), row)
    post(world_address, node, dst, np.int64(P2P), tag, size_bytes, row, now_ps)
    return DONE


@kernel
def next_message_event_ps(world_address):
    """Return the time in ps of the next event at message level, INF without one.

    Args:
        world_address: Address of the directory of the LP's `World`.
    """
    world = world_at(world_address)
    return next_event_ps(world.net.ctl, world.messages)
