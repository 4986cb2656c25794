"""Weighted round robin: the packets of class 0, then those of class 1, that `class_weights` allows in a turn.

A class without a packet that may leave loses the rest of its turn. Word 0 of the port holds the class that has had the
turn, 0 for class 1 and 1 for class 0, and above it the packets left of the turn: so class 0 begins.
"""

from nadi.pdes.core.jit import hook
from nadi.pdes.core.state import world_at

TITLE = "weighted round robin by class_weights"


@hook
def pick(world_address, link, ready_classes):
    """Return the data class of a port whose turn it is, and count its packet.

    Args:
        world_address: Address of the directory of the LP's `World`.
        link: Outgoing link of the port.
        ready_classes: Bit set of the data classes that can send.
    """
    net = world_at(world_address).net
    own = net.gate[link].discipline
    # the word holds packets left in the turn of a class << 1 | 1 - that class
    klass = 1 - (own[0] & 1)
    left = own[0] >> 1
    # the turn is over, or its class has nothing: the other class gets it, unless that has nothing either
    if left == 0 or ready_classes & (1 << klass) == 0:
        if left == 0 or ready_classes & (1 << (1 - klass)) != 0:
            klass = 1 - klass
        if ready_classes & (1 << klass) == 0:
            klass = 1 - klass
        # class_weights has the weight of class 0 in the lower 16 bits, of class 1 above
        left = (net.const.class_weights >> (16 * klass)) & 0xFFFF
    own[0] = (1 - klass) | ((left - 1) << 1)
    return klass
