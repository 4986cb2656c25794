"""Rail-aware routing by the destination's host: on every rail, the traffic to one host meets at one spine only."""

import numpy as np

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import destination
from nadi.pdes.core.state import world_at

TITLE = "by the destination's host"
BY_HOST = True
BY_DESTINATION = True


@hook
def pick(world_address, _node, _first, count, word1, _w2, _now):
    """Return the same link for all traffic to one host."""
    return np.int64(world_at(world_address).routes.host[destination(word1)]) % count
