"""Packet spraying: every packet takes a random link (Dixit et al., INFOCOM 2013)."""

import numpy as np

from nadi.pdes.core.algorithms import mix2
from nadi.pdes.core.jit import hook
from nadi.pdes.core.state import world_at
from nadi.pdes.network.batch import count_choice

TITLE = "each packet at random"
REORDERS = True


@hook
def pick(world_address, node, _first, count, _w1, _w2, now_ps):
    """Return an index of the equal links of a switch, by a hash of the switch and of its number of such choices.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        _first: Not used here.
        count: Number of equal links.
        _w1: Not used here.
        _w2: Not used here.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    choices = count_choice(world.net, node, now_ps)
    # a counter in place of a random generator: the same choices on any partition
    return (mix2(world.routes.node[node].salt, np.int64(choices)) * count) >> 32
