"""Packets that cross from one logical process to another.

An outbox has a list for each neighbour, and one for all LPs of another team (pdes/workers/batches.py). A list has two
halves, used alternately: while a window writes one half, the neighbour reads the other, which the previous window
wrote. A half is the number of records, and then records of five words: the four of a packet, with the arrival time as
the first, and what names the link (`Part.far`); the packet's telemetry follows, where packets carry it. A link carries
no more packets in a window than fit on the wire, so a half never overflows. The neighbour finds a half by its address,
which may be in its own memory, in memory shared between processes, or where batches of another team are unpacked.
"""

from nadi.pdes.core.jit import inline
from nadi.pdes.core.packet import end_of

HEADER_WORDS = 1  # words of a half's header, which shares its cache line with the first record
CROSSING_WORDS = 5  # words of a record without telemetry
WORD_BYTES = 8
FAR_LP = 32  # bit of a link's name in a list for another team above which is the number of the LP at its end
FAR_WINDOWS = 3  # windows after the current one whose arrivals outboxes accept, so that few packets wait on their links


@inline
def put_out(net, link, link_word, arrival_ps, word1, word2, word3):
    """Put a packet into the outbox for the LP at the end of a link; return its place.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        link_word: Word `meta` of the link.
        arrival_ps: Time in ps at which the packet arrives.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
    """
    number = end_of(link_word) - net.const.nodes  # of the list
    half = net.out_at[2 * number + net.ctl.parity]
    count = net.outbox[half]
    net.outbox[half] = count + 1
    p = half + HEADER_WORDS + count * net.const.crossing_words
    # no room is checked: a half has room for all packets that fit on the LP's links in a window
    net.outbox[p] = arrival_ps
    net.outbox[p + 1] = word1
    net.outbox[p + 2] = word2
    net.outbox[p + 3] = word3
    net.outbox[p + 4] = net.far[link]
    net.ctl.out_soonest_ps = min(net.ctl.out_soonest_ps, arrival_ps)
    return p


@inline
def arrived(net, number):
    """Return the address of the half of a list for this LP that the previous window wrote.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        number: Number of the list of incoming packets (`net.in_at`).
    """
    return net.in_at[2 * number + 1 - net.ctl.parity]


@inline
def crossing(net, world_address, i):
    """Return the address of a record of a half.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        world_address: Address of the half.
        i: Index of the record.
    """
    # an address, not an index: the half may be in memory of another process, which is no array of this world
    return world_address + WORD_BYTES * (HEADER_WORDS + i * net.const.crossing_words)
