"""UGAL with local queues: a detour where the shortest path's queue times its links is longer than the detour's.

The first switch compares the shortest path with a detour over a random group or switch, by the queues of its own ports
(Singh, "Load-Balanced Routing in Interconnection Networks", 2005; Kim et al., ISCA 2008, section 4.2). What it knows of
links further on is what full buffers hold back: queues without a limit tell it nothing.
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import on_detour
from nadi.pdes.network.detours.state import first_column, go_on, opened, prefers_minimal

TITLE = "a detour where the shortest path's queue is longer, decided at the first switch"
READS_QUEUES = True


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
    column = first_column(net, routes, node, word1, word2, now_ps)
    if column >= 0 and not prefers_minimal(net, routes, node, word1, word2, column, now_ps):
        word2 = on_detour(word2, column)
    return go_on(net, routes, node, record, word1, word2, now_ps)
