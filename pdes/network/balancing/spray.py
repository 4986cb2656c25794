"""Packet spraying: every packet takes a random link (Dixit et al., INFOCOM 2013)."""

from pdes.core.hashing import mix3
from pdes.core.jit import hook
from pdes.core.packet import identity
from pdes.core.state import world_at

TITLE = "each packet at random"
REORDERS = True


@hook
def pick(world_address, node, _first, count, word1, word2, now_ps):
    """Return an index of `count` links of a switch, by a hash of packet, switch and time: retransmissions differ."""
    routes = world_at(world_address).routes
    return (mix3(routes.node[node].salt + word1, identity(word2), now_ps) * count) >> 32
