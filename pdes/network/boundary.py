"""Packets that cross from one logical process to another.

An outbox has two halves for each neighbour, written in turn: while a window writes one, the neighbour takes in the
other, which the window before wrote. A half is a header, whose first word counts, and then records of five words: the
four of a packet, its first the time of arrival, and the link's place among the links between the two; and what the
packet has met, where packets carry telemetry. A link carries
no more packets in a window than fit on the wire, so a half never overflows. The neighbour finds a half by its address,
which may lie in its own memory, in memory shared between processes, or in a buffer that MPI has filled.
"""

from pdes.core.jit import inline, peek
from pdes.core.link_words import end_of
from pdes.core.state import INF

HEADER_WORDS = 8
CROSSING_WORDS = 5
WORD_BYTES = 8
FAR_WINDOWS = 3
"""Outboxes take what arrives in as many windows after the one in hand, so that little waits for its turn."""


@inline
def put_out(net, link, meta, ready, w1, w2, w3):
    """Put a packet into the outbox for the LP at the other end of the link; its place there."""
    neighbour = end_of(meta) - net.const.nodes
    half = net.out_at[2 * neighbour + net.ctl.parity]
    count = net.outbox[half]
    net.outbox[half] = count + 1
    p = half + HEADER_WORDS + count * net.const.crossing_words
    net.outbox[p] = ready
    net.outbox[p + 1] = w1
    net.outbox[p + 2] = w2
    net.outbox[p + 3] = w3
    net.outbox[p + 4] = net.far[link]
    net.ctl.out_soonest_ps = min(net.ctl.out_soonest_ps, ready)
    return p


@inline
def empty_outbox(net):
    """Begin a window: nothing is in the halves that it writes."""
    for neighbour in range(net.const.neighbours):
        net.outbox[net.out_at[2 * neighbour + net.ctl.parity]] = 0
    net.ctl.out_soonest_ps = INF


@inline
def arrived(net, neighbour):
    """Address of the half that the neighbour wrote in the window before."""
    return net.in_at[2 * neighbour + 1 - net.ctl.parity]


@inline
def crossing(net, address, i):
    """Address of the i-th record of a half."""
    return address + WORD_BYTES * (HEADER_WORDS + i * net.const.crossing_words)


@inline
def crossings(address):
    """Number of records in a half."""
    return peek(address)
