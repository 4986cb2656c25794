"""The link that the packet's entropy names, as in source routes: a sender knows which of its paths cross which switch.

Multipath Reliable Connection (arXiv 2605.04333, section 2.4; OCP mrc.h): an entropy value of the kinds "structured" or
"SRv6" has a field per tier, which names the plane and the spine. Here the lowest bits name the port of a NIC, and those
above them the uplink of the first switch. Turns of an entropy rule therefore load all uplinks alike, where a hash loads
some of them with far more of a queue pair's paths than others.
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import entropy
from nadi.pdes.core.state import world_at
from nadi.pdes.network.routing import choose_of

TITLE = "switches with NPUs: by a field of the packet's entropy, which names the link; others: by a hash of it"
PORT_BITS = 3  # field of the port, for NICs of up to 8 (pdes/nic/entropy)


@hook
def pick(world_address, node, _first, count, _word1, word2, _now):
    """Return the link that a packet's entropy names.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        _first: Not used here.
        count: Number of equal links.
        _word1: Not used here.
        word2: Word 2 of the packet, which has its entropy (pdes/core/packet.py).
        _now: Not used here.
    """
    routes = world_at(world_address).routes
    # a second field for further tiers would need more bits; with the same one, they would repeat the first choice
    if routes.node[node].column < 0:
        return choose_of(routes, node, count, word2)
    return (entropy(word2) >> PORT_BITS) % count
