"""Weighted round robin: classes take turns of as many packets as `class_weights` allows, by their numbers.

A class without a packet that may leave loses the rest of its turn. Word 0 of the port holds 7 less the class that has
had the turn, and above it the packets left of the turn: so class 0 begins.
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline, trailing_zeros
from nadi.pdes.core.packet import MAX_DATA_CLASSES
from nadi.pdes.core.state import world_at

TITLE = "weighted round robin by class_weights"
CLASS_BITS = 3
LAST = MAX_DATA_CLASSES - 1


@inline
def next_ready(ready_classes, klass):
    """Return the first class after another, in a circle, that can send.

    Args:
        ready_classes: Bit set, not 0, of the data classes that can send.
        klass: Number of the class before it.
    """
    after = ready_classes >> (klass + 1) << (klass + 1)
    return np.int64(trailing_zeros(after if after != 0 else ready_classes))


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
    klass = LAST - (own[0] & LAST)
    left = own[0] >> CLASS_BITS
    if left == 0 or ready_classes & (1 << klass) == 0:
        klass = next_ready(ready_classes, klass)
        left = net.lane_weight[klass]
    own[0] = (LAST - klass) | ((left - 1) << CLASS_BITS)
    return klass
