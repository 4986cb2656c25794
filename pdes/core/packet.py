"""A packet is four int64 words.

word 0  ps: when the receiving node may act on it (its last byte is in, or its header where the node cuts through)
word 1  destination NPU | source NPU << 20 | bytes on the wire << 40 | flags << 56
word 2  sequence number, 24 bits | sender's queue pair << 24 | entropy of its path << 48 (15 bits)
word 3  message tag: group << 44 | how-manieth << 24 | lane; for send and receive, group is P2P and lane the tag
"""

import numpy as np

from pdes.core.jit import inline

MAX_NPUS = 1 << 19
MAX_GROUPS = (1 << 19) - 1
MAX_SEQ = 1 << 20
MAX_LANES = 1 << 24
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

NPU_MASK = 0xFFFFF
PSN_MASK = 0xFFFFFF
HALF_PSN = 1 << 23


@inline
def destination(w1):
    """NPU that the packet goes to."""
    return w1 & NPU_MASK


@inline
def source(w1):
    """NPU that the packet comes from."""
    return (w1 >> 20) & NPU_MASK


@inline
def wire_bytes(w1):
    """Bytes on the wire, headers and gaps included."""
    return (w1 >> 40) & 0xFFFF


@inline
def flags(w1):
    """FLAG_* bits."""
    return w1 >> 56


@inline
def header(dst, src, size, flag):
    """Word 1."""
    return dst | (src << 20) | (size << 40) | (flag << 56)


@inline
def filled_in(w1, size, flag):
    """Word 1 with size and more flags, of one that has no size."""
    return w1 | (size << 40) | (flag << 56)


@inline
def flagged(w1, flag):
    """Word 1 with more flags."""
    return w1 | (flag << 56)


@inline
def trimmed(w1, size):
    """Word 1 of a packet that is cut to so many bytes."""
    return (w1 & ~(0xFFFF << 40)) | (size << 40) | (FLAG_TRIMMED << 56)


@inline
def pause_word(klass, ask):
    """Word 2 of a pause frame: a data class, which is to PAUSE or RESUME."""
    return klass << 1 | ask


@inline
def paused_class(w2):
    """Its data class."""
    return w2 >> 1 & 1


@inline
def asks_to_pause(w2):
    """PAUSE or RESUME."""
    return w2 & 1


@inline
def logged_pause(link, w2):
    """Both in the log of pauses, with the link of the fabric that may not send, or may again."""
    return link << 2 | w2


@inline
def logged_link(word):
    """That link."""
    return word >> 2


@inline
def path_word(q, path):
    """Word 2 without a sequence number; path: of which the entropy is the lowest bits."""
    return (q << 24) | ((path & 0x7FFF) << 48)


@inline
def numbered(w2, seq):
    """Word 2 with a sequence number, of one without."""
    return w2 | (seq & PSN_MASK)


@inline
def sender_pair(w2):
    """The sender's queue pair."""
    return w2 >> 24 & PSN_MASK


@inline
def identity(w2):
    """Sequence number and entropy: what of word 2 is the same on any partition."""
    return (w2 & PSN_MASK) | (w2 >> 48 << 24)


@inline
def entropy(w2):
    """The path's entropy, 15 bits."""
    return w2 >> 48


@inline
def data_class(w1):
    """Class of a data packet."""
    return np.int64(flags(w1) & FLAG_CLASS != 0)


@inline
def pair_word(src, dst):
    """Two NPUs: who sends a message to whom."""
    return src | (dst << 20)


@inline
def pair_source(pair):
    """Who sends."""
    return pair & NPU_MASK


@inline
def pair_destination(pair):
    """Who receives."""
    return pair >> 20


@inline
def receive_key(peer, tag, seq):
    """Names the receive of the seq-th message of a tag from an NPU so many numbers on: Program's recv_key."""
    return ((peer + (1 << 19)) << 44) | (tag << 20) | seq


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
def tag_group(tag):
    """Its group."""
    return tag >> 44


@inline
def tag_seq(tag):
    """How-manieth of its group it is about."""
    return tag >> 24 & (MAX_SEQ - 1)


@inline
def tag_lane(tag):
    """Its lane; between two NPUs the user's tag."""
    return tag & (MAX_LANES - 1)


@inline
def instance_key(node, group, seq):
    """Names the seq-th collective of a group on an NPU of the LP."""
    return (node << 40) | (group << 20) | seq


@inline
def instance_node(key):
    """The NPU of such a name."""
    return key >> 40


@inline
def tag_for(key, lane):
    """Tag of a message for a lane of a collective with such a name, on any NPU."""
    return message_tag(key >> 20 & (MAX_SEQ - 1), key & (MAX_SEQ - 1), lane)
