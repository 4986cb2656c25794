"""Packet spraying: every packet takes a random link (Dixit et al., INFOCOM 2013)."""

import numpy as np

from pdes.core.hashing import mix2
from pdes.core.jit import hook
from pdes.core.state import world_at

TITLE = "each packet at random"
REORDERS = True


@hook
def pick(world_address, node, _first, count, _w1, _w2, _now):
    """Return an index of `count` links of a switch, by a hash of the switch and of its number of such choices."""
    world = world_at(world_address)
    own = world.net.counts[node]
    own.chosen += 1
    return (mix2(world.routes.node[node].salt, np.int64(own.chosen)) * count) >> 32
