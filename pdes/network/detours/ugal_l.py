"""UGAL with local queues: a detour where the shortest path's queue times its links is longer than the detour's.

The first switch compares the shortest path with a detour over a random group or switch. In a dragonfly each further
switch of the source's group decides again, with a group to which one of its own links leads, and in networks without
groups each switch next to the source's, with a neighbour: so the second link of the shortest path, whose queue the
first switch does not see, is avoided, too. (As spcl's simulator of "Spritz" does; Singh, "Load-Balanced Routing in
Interconnection Networks", 2005, and Kim et al., ISCA 2008, section 4.2, decide once, at the source.)
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import PATH_MASK, PSN_MASK, destination, is_on_detour, on_detour, source
from nadi.pdes.core.state import world_at
from nadi.pdes.network.detours.state import (
    any_column,
    go_on,
    is_home_of,
    is_of_npu,
    may_decide,
    near_column,
    prefers_minimal,
)

TITLE = "a detour where the shortest path's queue is longer, decided at each switch of the source's group"


@hook
def route(world_address, node, record, now_ps):
    """Return the cell (port set) of a switch for a packet, and keep the packet's state.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, routes = world.net, world.routes
    packet = net.record[record]
    word1, word2 = packet.w1, packet.w2
    if (word2 >= 0 or is_on_detour(word2)) and may_decide(net, routes, node, word1):
        if is_home_of(net, routes, node, source(word1)):
            column = any_column(net, routes, node, word1, now_ps)
            decides = column >= 0
        else:
            # packets within a group decide once
            column = near_column(net, routes, node, now_ps)
            decides = column >= 0 and not is_of_npu(net, routes, node, destination(word1))
        if decides:
            word2 &= PATH_MASK | PSN_MASK
            if not prefers_minimal(net, routes, node, word1, word2, column, now_ps):
                word2 = on_detour(word2, column)
    return go_on(net, routes, node, record, word1, word2)
