"""Valiant: every packet goes to a random group first, and from there by a shortest path (Valiant, 1982).

In a dragonfly the detour ends where the packet enters the group (Kim et al., ISCA 2008, section 4.1); in networks
without groups it leads to a random switch with NPUs. Packets within a group go over a random switch of the group. The
first switch decides.
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import on_detour
from nadi.pdes.network.detours.state import any_column, go_on, may_decide, opened

TITLE = "every packet over a random group or switch"


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
        column = any_column(net, routes, node, word1, now_ps)
        if column >= 0:
            word2 = on_detour(word2, column)
    return go_on(net, routes, node, record, word1, word2, now_ps)
