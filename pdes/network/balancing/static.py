"""Static routing by destination: the destination's number, modulo the links (D-mod-k, Zahavi, 2012)."""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import destination

TITLE = "by the destination's number"
BY_DESTINATION = True


@hook
def pick(_address, _node, _first, count, word1, _w2, _now):
    """Return the same link for all traffic to one NPU."""
    return destination(word1) % count
