"""Source routes: packets of listed pairs of NPUs take listed paths (topologies/listed_paths.py).

The path is that of the packet's entropy, as it is left by the choice of one of an NPU's ports (`port_of_several`),
modulo the number of paths that begin at the packet's first switch. So a queue pair with one entropy has one path, and
turns of an entropy rule (pdes/nic/entropy) take all paths in turn, as with Segment Routing in Multipath Reliable
Connection (arXiv 2605.04333, section 2.4). Each switch finds the next link by the pair and the entropy, which a packet
carries anyway. A switch that is not on the packet's path, as after a
failure has changed the paths, sends by the tables; these lead ever nearer to the destination until the path is met or
the packet arrives, and a path crosses no switch twice, so that packets never go in circles.
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline
from nadi.pdes.core.packet import ENDS_MASK, destination, entropy
from nadi.pdes.core.state import world_at
from nadi.pdes.network.routing import switch_cell_to

TITLE = "paths that [network] source_routes, or the fabric's builder, lists for pairs of NPUs"
BY_SOURCE = True


@inline
def listed_cell(net, routes, node, word1, word2):
    """Return the cell (port set) of a switch on the listed path of a packet; -1 if it is on none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet, which has the entropy of its path.
    """
    pair = word1 & ENDS_MASK
    low, high = np.int64(routes.listed_ptr[node]), np.int64(routes.listed_ptr[node + 1])
    end = high
    while low < high:
        middle = (low + high) >> 1
        if routes.listed_pair[middle] < pair:
            low = middle + 1
        else:
            high = middle
    if low == end or routes.listed_pair[low] != pair:
        return np.int64(-1)
    first = np.int64(routes.listed_cell_ptr[low])
    count = np.int64(routes.listed_cell_ptr[low + 1]) - first
    return np.int64(routes.listed_cell[first + entropy(word2) // net.const.turned_ports % count])


@hook
def route(world_address, node, record, _now_ps):
    """Return the cell (port set) of a switch for a packet: that of its listed path, or of the tables.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        record: Record of the packet.
        _now_ps: Not used here.
    """
    world = world_at(world_address)
    net, routes = world.net, world.routes
    word1, word2 = net.record[record].w1, net.record[record].w2
    cell = listed_cell(net, routes, node, word1, word2)
    return cell if cell >= 0 else np.int64(switch_cell_to(net, routes, node, destination(word1), word2))
