"""Flowlets: a flow may change its link after a gap longer than paths differ (Kandula et al., CCR 2007; CONGA, 2014).

A switch keeps, for each of FLOWLETS hashes of flows, the time of the last packet and the link it took. Flows with the
same hash share an entry, as in hardware.
"""

import numpy as np

from nadi.pdes.core.algorithms import mix2
from nadi.pdes.core.jit import hook
from nadi.pdes.core.state import FLOWLETS, world_at
from nadi.pdes.network.balancing._flows import flow_hash
from nadi.pdes.network.batch import count_choice

TITLE = "each burst of a flow at random"
HAS_FLOWLETS = True
REMEMBERS = True


@hook
def pick(world_address, node, _first, count, word1, word2, now_ps):
    """Return the index, of the equal links of a switch, that the packet's flow took last; a random one after a gap.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        _first: Not used here.
        count: Number of equal links.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    routes = world.routes
    flow = flow_hash(routes, node, word1, word2)
    at = 2 * (node * FLOWLETS + (flow & (FLOWLETS - 1)))
    last = routes.flowlet[at]
    which = routes.flowlet[at + 1]
    # 0: no packet yet, since none arrives at a switch at 0 ps
    if last == 0 or now_ps - last > world.net.const.flowlet_gap_ps or which >= count:
        which = np.int64((mix2(flow, np.int64(count_choice(world.net, node, now_ps))) * count) >> 32)
        routes.flowlet[at + 1] = which
    routes.flowlet[at] = now_ps
    return which
