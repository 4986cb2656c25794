"""Packed words of a link, and word 0 of a packet in an inbox.

In a row of outgoing links, one word (`meta`) holds the link's receiving node, its number in the whole fabric and its
class; two words hold the bytes and packets sent and, in their upper bits, the longest wait of a packet for the port.
"""

from pdes.core.jit import inline
from pdes.core.packet import bits

NODE_BITS, LINK_BITS = 22, 24
CLASS_SHIFT = NODE_BITS + LINK_BITS
META_MASK = (1 << CLASS_SHIFT) - 1
BYTES_BITS, PACKETS_BITS = 46, 34
WAIT_BITS = 62 - PACKETS_BITS  # low bits of the longest wait, kept above the packets; the others are above the bytes
WAIT_MASK = (1 << WAIT_BITS) - 1
MAX_WAIT_PS = (1 << (62 - BYTES_BITS + WAIT_BITS)) - 1

# Fields of `meta`.
end_of = bits(0, NODE_BITS)  # node at the end of the link
number_of = bits(NODE_BITS, LINK_BITS)  # the link's number in the whole fabric
class_of = bits(CLASS_SHIFT)
# Fields of the words `sent_bytes` and `sent_packets`.
bytes_sent = bits(0, BYTES_BITS)
packets_sent = bits(0, PACKETS_BITS)
# Fields of word 0 of a packet in an inbox.
inbox_later_ps = bits(LINK_BITS)  # ps after the cell begins
inbox_link = bits(0, LINK_BITS)  # link of the fabric over which it comes


@inline
def link_meta(node, link, link_class):
    """Return the word `meta`."""
    return node | (link << NODE_BITS) | (link_class << CLASS_SHIFT)


@inline
def with_class(meta, link_class):
    """Return the word `meta` with another class."""
    return (meta & META_MASK) | (link_class << CLASS_SHIFT)


@inline
def longest_wait_ps(sent_bytes, sent_packets):
    """Return the longest wait of a packet for the port, from both words."""
    return (sent_bytes >> BYTES_BITS << WAIT_BITS) | (sent_packets >> PACKETS_BITS)


@inline
def with_longest_wait(sent_bytes, sent_packets, wait_ps):
    """Return both words with another longest wait."""
    wait_ps = min(wait_ps, MAX_WAIT_PS)
    sent_bytes = bytes_sent(sent_bytes) | (wait_ps >> WAIT_BITS << BYTES_BITS)
    return sent_bytes, packets_sent(sent_packets) | ((wait_ps & WAIT_MASK) << PACKETS_BITS)


@inline
def inbox_word(later_ps, meta):
    """Return word 0 of a packet in an inbox: arrival in ps after the cell begins, and the incoming link."""
    return (later_ps << LINK_BITS) | number_of(meta)
