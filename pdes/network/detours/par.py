"""Progressive adaptive routing: UGAL at the first switch, and once more for packets on shortest paths in their group.

A packet that the first switch has sent on a shortest path may still take a detour at the switches that follow in the
group of the source; one on a detour stays on it (Jiang, Kim and Dally, "Indirect Adaptive Routing on Large Scale
Interconnection Networks", ISCA 2009, section 3.3).
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import destination, on_detour, source
from nadi.pdes.network.detours.state import (
    any_column,
    go_on,
    is_home_of,
    is_of_npu,
    may_decide,
    near_column,
    opened,
    prefers_minimal,
)
from nadi.pdes.network.lane_credits import raised

TITLE = "as ugal-l, but packets on a detour stay on it"
READS_QUEUES = True
CHANGES = 1


@hook
def route(world_address, node, record, now_ps):
    """Return the cell (port set) of a switch for a packet, and keep the packet's state.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
    """
    net, routes, word1, word2 = opened(world_address, record)
    if word2 >= 0 and may_decide(net, routes, node, word1):
        if is_home_of(net, routes, node, source(word1)):
            column = any_column(net, routes, node, word1, now_ps)
        elif is_of_npu(net, routes, node, destination(word1)):
            column = -1
        else:
            column = near_column(net, routes, node, now_ps)
        if column >= 0 and not prefers_minimal(net, routes, node, word1, word2, column, now_ps):
            word2 = on_detour(word2, column)
            if not is_home_of(net, routes, node, source(word1)):
                net.record[record].w1 = raised(net, word1)
    return go_on(net, routes, node, record, word1, word2, now_ps)
