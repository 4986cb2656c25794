"""Static routing by source: the sender's number, modulo the links (S-mod-k, Rodriguez et al., 2009)."""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import source

TITLE = "by the sender's number"


@hook
def pick(_address, _node, _first, count, w1, _w2, _now):
    """Return the same link for all traffic of one NPU.

    Args:
        _address: Not used here.
        _node: Not used here.
        _first: Not used here.
        count: Number of equal links.
        w1: Word 1 of the packet (pdes/core/packet.py).
        _w2: Not used here.
        _now: Not used here.
    """
    return source(w1) % count
