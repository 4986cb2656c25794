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
    """Return the same link for all traffic to one host.

    Args:
        world_address: Address of the directory of the LP's `World`.
        _node: Not used here.
        _first: Not used here.
        count: Number of equal links.
        word1: Word 1 of the packet (pdes/core/packet.py).
        _w2: Not used here.
        _now: Not used here.
    """
    return np.int64(world_at(world_address).routes.host[destination(word1)]) % count
