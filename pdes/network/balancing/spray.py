"""Packet spraying: every packet takes a random link (Dixit et al., INFOCOM 2013)."""

from pdes.core.hashing import mix3
from pdes.core.jit import hook
from pdes.core.packet import identity
from pdes.core.state import world_at

TITLE = "each packet at random"
REORDERS = True


@hook
def pick(address, node, _first, count, w1, w2, now):
    """Return a link by a hash of the packet, the switch and the time, so that a retransmission may take another."""
    routes = world_at(address).routes
    return (mix3(routes.node[node].salt + w1, identity(w2), now) * count) >> 32
