"""What the packed words of a link hold, and word 0 of a packet in an inbox.

Of a row of outgoing links: where the link goes, its number in the whole fabric and its class in one word (`meta`); and
with the bytes and packets that it has sent, in two words, the longest wait of a packet for the port.
"""

from pdes.core.jit import inline

NODE_BITS, LINK_BITS = 22, 24
NODE_MASK, LINK_MASK = (1 << NODE_BITS) - 1, (1 << LINK_BITS) - 1
CLASS_SHIFT = NODE_BITS + LINK_BITS
META_MASK = (1 << CLASS_SHIFT) - 1
BYTES_BITS, PACKETS_BITS = 46, 34
BYTES_MASK, PACKETS_MASK = (1 << BYTES_BITS) - 1, (1 << PACKETS_BITS) - 1
WAIT_BITS = 62 - PACKETS_BITS
WAIT_MASK = (1 << WAIT_BITS) - 1
MAX_WAIT_PS = (1 << (62 - BYTES_BITS + WAIT_BITS)) - 1


@inline
def link_meta(node, link, link_class):
    """The word `meta`."""
    return node | (link << NODE_BITS) | (link_class << CLASS_SHIFT)


@inline
def end_of(meta):
    """The node at the end of the link."""
    return meta & NODE_MASK


@inline
def number_of(meta):
    """The link's number in the whole fabric."""
    return (meta >> NODE_BITS) & LINK_MASK


@inline
def class_of(meta):
    """The link's class."""
    return meta >> CLASS_SHIFT


@inline
def with_class(meta, link_class):
    """The same link of another class."""
    return (meta & META_MASK) | (link_class << CLASS_SHIFT)


@inline
def bytes_sent(sent_bytes):
    """Bytes that were sent, out of the word of that name."""
    return sent_bytes & BYTES_MASK


@inline
def packets_sent(sent_packets):
    """Packets that were sent, out of the word of that name."""
    return sent_packets & PACKETS_MASK


@inline
def longest_wait_ps(sent_bytes, sent_packets):
    """The longest wait of a packet for the port, out of both."""
    return (sent_bytes >> BYTES_BITS << WAIT_BITS) | (sent_packets >> PACKETS_BITS)


@inline
def with_longest_wait(sent_bytes, sent_packets, wait_ps):
    """Both words with another longest wait."""
    wait_ps = min(wait_ps, MAX_WAIT_PS)
    sent_bytes = bytes_sent(sent_bytes) | (wait_ps >> WAIT_BITS << BYTES_BITS)
    return sent_bytes, packets_sent(sent_packets) | ((wait_ps & WAIT_MASK) << PACKETS_BITS)


@inline
def inbox_word(later_ps, meta):
    """Word 0 of a packet in an inbox: ps after the cell begins, and over which link it comes."""
    return (later_ps << LINK_BITS) | number_of(meta)


@inline
def inbox_later_ps(w0):
    """Ps after the cell begins."""
    return w0 >> LINK_BITS


@inline
def inbox_link(w0):
    """Over which link of the fabric it has come."""
    return w0 & LINK_MASK
