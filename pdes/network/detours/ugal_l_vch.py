"""UGAL with local queues, which a port divides by virtual channel where both paths begin with the same link.

Kim et al. (ISCA 2008, section 4.3) name the rule UGAL-L with hybrid virtual-channel discrimination. Where the shortest
path and the detour leave the first switch by one port, its whole queue says nothing. So detours begin in the next
virtual lane, or data class, and the rule compares the packets of the two lanes. Packets on shortest paths have a lane
to themselves until they reach another group: in the lane of others that pass on a detour they would fill the buffers of
the switch with the full cable, and hold these up. Where packets do not rise, both lanes are one, and it is `ugal_l`.
"""

import numpy as np

from nadi.pdes.core import packet
from nadi.pdes.core.jit import hook, inline
from nadi.pdes.network.detours import state as detour
from nadi.pdes.network.lane_credits import raised

TITLE = "as ugal-l; where both paths begin with one link, by the queues of its lanes"
READS_QUEUES = True
RAISES_DETOURS = True


@inline
def prefers_minimal(net, routes, node, word1, word2, column, now_ps):
    """Return whether the shortest path's queue times its links is at most that of a detour over a home.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        column: Column of the home of the detour.
        now_ps: Current time in ps.
    """
    minimal, other = detour.links_of_both(net, routes, node, word1, word2, column)
    if minimal != other:
        return detour.prefers_first(net, routes, node, word1, column, minimal, other, now_ps)
    # output queues have no lanes; a queue of nothing also brings the port up to the packet's time
    if (
        net.hooks.shared_switches == 0
        or column == routes.node[node].column
        or detour.queued_packets(net, node, minimal, now_ps) == 0
    ):
        return True
    waiting = net.gate[minimal].queued_bytes
    queue = np.int64(waiting[packet.data_class(word1)])
    begun = np.int64(waiting[packet.data_class(raised(net, word1))])
    return detour.is_no_longer(net, routes, node, word1, column, queue, begun)


@hook
def route(world_address, node, record, now_ps):
    """Return the cell (port set) of a switch for a packet, and keep the packet's state.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        record: Record of the packet.
        now_ps: Current time in ps.
    """
    net, routes, word1, word2 = detour.opened(world_address, record)
    column = detour.first_column(net, routes, node, word1, word2, now_ps)
    if column >= 0 and not prefers_minimal(net, routes, node, word1, word2, column, now_ps):
        word2 = packet.on_detour(word2, column)
        net.record[record].w1 = raised(net, word1)
    return detour.go_on(net, routes, node, record, word1, word2, now_ps)
