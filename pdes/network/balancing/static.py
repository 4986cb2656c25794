"""Static routing by destination: the destination's number, modulo the links (D-mod-k, Zahavi, 2012)."""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import destination

TITLE = "by the destination's number"
BY_DESTINATION = True


@hook
def pick(_address, _node, _first, count, word1, _w2, _now):
    """Return the same link for all traffic to one NPU.

    Args:
        _address: Not used here.
        _node: Not used here.
        _first: Not used here.
        count: Number of equal links.
        word1: Word 1 of the packet (pdes/core/packet.py).
        _w2: Not used here.
        _now: Not used here.
    """
    return destination(word1) % count
