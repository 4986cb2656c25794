"""ECMP by the whole flow: sender, receiver and entropy, which are the 5-tuple of a RoCE packet (its UDP source port).

The hash of `routing.choose` takes the entropy alone. That is a hash of sender and receiver where a flow has one path;
the entropies of many flows with many paths each are the same numbers, and would share all links.
"""

from nadi.pdes.core.algorithms import mix3
from nadi.pdes.core.jit import hook, inline
from nadi.pdes.core.packet import ENDS_MASK, entropy
from nadi.pdes.core.state import world_at


@inline
def flow_hash(routes, node, word1, word2):
    """Return the hash of a packet's flow at a switch, 32 bits.

    Args:
        routes: Routing state of the LP (`Routes`).
        node: Number of the switch in the LP.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
    """
    return mix3(routes.node[node].salt, word1 & ENDS_MASK, entropy(word2))


@hook
def pick(world_address, node, _first, count, word1, word2, _now):
    """Return the index, of the equal links of a switch, that the hash of a packet's flow names.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the switch in the LP.
        _first: Not used here.
        count: Number of equal links.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        _now: Not used here.
    """
    return (flow_hash(world_at(world_address).routes, node, word1, word2) * count) >> 32
