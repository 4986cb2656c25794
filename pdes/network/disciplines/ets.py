"""Enhanced transmission selection (IEEE 802.1Qaz): strict classes first, then deficit round robin by bytes.

A class of weight 0 is strict: the one with the highest number goes first. The others share what is left of the port by
deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): at its turn a class may send the bytes of as many more full
packets as its weight says, and keeps what its next packet is too large for. A class that empties, or can send nothing
at its turn, keeps nothing. Word 0 of a port holds the class that has the turn, and above it whether it has got its
bytes; words 1 to 4 hold what each class may still send, two classes in a word.
"""

import numpy as np

from nadi.pdes.core.algorithms import head_of
from nadi.pdes.core.jit import hook, inline, leading_zeros
from nadi.pdes.core.packet import MAX_DATA_CLASSES, wire_bytes
from nadi.pdes.core.state import world_at

TITLE = "strict classes of weight 0, then deficit round robin by class_weights"
LAST = MAX_DATA_CLASSES - 1
HAS_TURN = MAX_DATA_CLASSES  # in word 0: the class has got the bytes of its turn
HALF = 32
HALF_MASK = (1 << HALF) - 1
WORD_BITS = 64


@inline
def deficit_of(own, klass):
    """Return the bytes that a class may still send.

    Args:
        own: Words of the discipline at the port.
        klass: Number of the class.
    """
    return own[1 + (klass >> 1)] >> (HALF * (klass & 1)) & HALF_MASK


@inline
def set_deficit(own, klass, size_bytes):
    """Set the bytes that a class may still send.

    Args:
        own: Words of the discipline at the port.
        klass: Number of the class.
        size_bytes: The bytes, below 2^31.
    """
    at, shift = 1 + (klass >> 1), HALF * (klass & 1)
    own[at] = own[at] & (HALF_MASK << (HALF - shift)) | (size_bytes << shift)


@hook
def pick(world_address, link, ready_classes):
    """Return the data class whose first packet leaves a port, and count its bytes.

    Args:
        world_address: Address of the directory of the LP's `World`.
        link: Outgoing link of the port.
        ready_classes: Bit set of the data classes that can send.
    """
    net = world_at(world_address).net
    gate = net.gate[link]
    own = gate.discipline
    strict = ready_classes & net.const.strict_classes
    if strict != 0:
        return np.int64(WORD_BITS - 1 - leading_zeros(strict))
    klass, has_turn = own[0] & LAST, own[0] & HAS_TURN
    while True:
        if ready_classes & (1 << klass) != 0:
            left_bytes = deficit_of(own, klass)
            if has_turn == 0:
                left_bytes += net.lane_weight[klass] * (net.const.mtu_bytes + net.const.header_bytes)
                has_turn = HAS_TURN
            size_bytes = wire_bytes(net.record[head_of(gate.queues[klass])].w1)
            if size_bytes <= left_bytes:
                is_last = gate.queued_bytes[klass] == size_bytes
                set_deficit(own, klass, np.int64(0) if is_last else left_bytes - size_bytes)
                own[0] = (klass + 1) & LAST if is_last else klass | HAS_TURN
                return klass
            set_deficit(own, klass, left_bytes)
        else:
            set_deficit(own, klass, np.int64(0))
        klass = (klass + 1) & LAST
        has_turn = np.int64(0)
