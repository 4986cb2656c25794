"""A packet is four int64 words.

word 0  ps: when the receiving node may act on it (its last byte is in, or its header where the node cuts through)
word 1  destination NPU | source NPU << 20 | bytes on the wire << 40 | flags << 56
word 2  sequence number, 24 bits | sender's queue pair << 24 | entropy of its path << 48 (15 bits)
word 3  message tag: group << 44 | how-manieth << 24 | lane; for send and receive, group is P2P and lane the tag
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pdes.core.jit import inline

MAX_NPUS = 1 << 19
MAX_GROUPS = (1 << 19) - 1
MAX_SEQ = 1 << 20
CALL_LANE = (1 << 22) - 1
"""In the tag of a call, in place of the lane of a message (pdes/npu/in_flight.py)."""
MAX_WIRE_BYTES = 0xFFFF
P2P = (1 << 19) - 1
"""Group number of messages between two NPUs."""
CONNECTION_SHIFT = 19
"""A connection of two NPUs is named by group | number << CONNECTION_SHIFT: with 6 bits of number, 25 in all."""
SHARES_SHIFT = 25
"""Above that stands, where messages are posted, its share of the line rate: SHARE_UNITS / that, 0 = all."""
SHARE_UNITS = 1024
CONTROL = P2P - 1
"""Group of the queue pairs of answers to requests (pdes/nic/rendezvous.py)."""

FLAG_ACK = 1
"""Control: an acknowledgement, or with FLAG_CNP a congestion notification."""
FLAG_LAST = 2
FLAG_NAK = 4
FLAG_MARK = 8
"""Congestion was met; on an acknowledgement: its packet had met it."""
FLAG_CNP = 16
FLAG_TRIMMED = 32
"""Data that was cut to its header: control."""
FLAG_CLASS = 64
"""Data of class 1."""
PAUSE_FRAME = 0xFFFFF
"""As a destination: whoever is at the other end of the link. Word 2 is `pause_word`."""
PAUSE, RESUME = 1, 0

PSN_MASK = 0xFFFFFF
HALF_PSN = 1 << 23


def bits(at: int, count: int = 0) -> Callable[[Any], Any]:
    """A function of kernels and of host code: so many bits of a word from bit `at` on; count 0: all of them."""
    AT, MASK = at, (1 << count) - 1 if count else -1

    @inline
    def part(word):
        return word >> AT & MASK

    return part


# Of word 1 of a packet.
destination = bits(0, 20)  # NPU that it goes to
source = bits(20, 20)  # NPU that it comes from
wire_bytes = bits(40, 16)  # headers and gaps included
flags = bits(56)  # FLAG_*
# Of word 2; of a pause frame's; of that with the link of the fabric, in the log of pauses.
sender_pair = bits(24, 24)  # the sender's queue pair
entropy = bits(48)  # of the path, 15 bits
paused_class = bits(1, 1)  # data class
asks_to_pause = bits(0, 1)  # PAUSE or RESUME
logged_link = bits(2)  # that may not send, or may again
# Of word 3.
tag_group = bits(44)
tag_seq = bits(24, 20)  # how-manieth of its group it is about
tag_lane = bits(0, 24)  # between two NPUs the user's tag
# Of `pair_word`, and of `instance_key`.
pair_source = bits(0, 20)  # NPU that sends
pair_destination = bits(20)  # NPU that receives
instance_node = bits(40)  # NPU of the LP


@inline
def header(dst, src, size, flag):
    """Word 1."""
    return dst | (src << 20) | (size << 40) | (flag << 56)


@inline
def filled_in(w1, size, flag):
    """Word 1 with more flags and, of one that has none, a size."""
    return w1 | (size << 40) | (flag << 56)


@inline
def trimmed(w1, size):
    """Word 1 of a packet that is cut to so many bytes."""
    return (w1 & ~(0xFFFF << 40)) | (size << 40) | (FLAG_TRIMMED << 56)


@inline
def pause_word(klass, ask):
    """Word 2 of a pause frame: a data class, which is to PAUSE or RESUME."""
    return klass << 1 | ask


@inline
def logged_pause(link, w2):
    """Both in the log of pauses, with the link of the fabric that may not send, or may again."""
    return link << 2 | w2


@inline
def path_word(q, path):
    """Word 2 without a sequence number; path: of which the entropy is the lowest bits."""
    return (q << 24) | ((path & 0x7FFF) << 48)


@inline
def numbered(w2, seq):
    """Word 2 with a sequence number, of one without."""
    return w2 | (seq & PSN_MASK)


@inline
def identity(w2):
    """Sequence number and entropy: what of word 2 is the same on any partition."""
    return (w2 & PSN_MASK) | (w2 >> 48 << 24)


@inline
def data_class(w1):
    """Class of a data packet."""
    return np.int64(flags(w1) & FLAG_CLASS != 0)


@inline
def pair_word(src, dst):
    """Two NPUs: who sends a message to whom."""
    return src | (dst << 20)


@inline
def receive_key(peer, tag, seq):
    """Names the receive of the seq-th message of a tag from an NPU so many numbers on: Program's recv_key."""
    return ((peer + MAX_NPUS) << 44) | (tag << 20) | seq


@inline
def connection_key(src, dst, connection):
    """Names a sending queue pair."""
    return (src << 44) | (dst << 25) | connection


@inline
def receiver_key(w1, w2):
    """Names the receiving queue pair of a data packet."""
    return (destination(w1) << 44) | (source(w1) << 24) | sender_pair(w2)


@inline
def message_tag(group, seq, lane):
    """Word 3 of the last packet of a message: of the seq-th collective of a group, or between two NPUs (P2P)."""
    return (group << 44) | (seq << 24) | lane


@inline
def instance_key(node, group, seq):
    """Names the seq-th collective of a group on an NPU of the LP."""
    return (node << 40) | (group << 20) | seq


@inline
def tag_for(key, lane):
    """Tag of a message for a lane of a collective with such a name, on any NPU."""
    return message_tag(key >> 20 & (MAX_SEQ - 1), key & (MAX_SEQ - 1), lane)
