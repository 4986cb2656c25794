"""A packet is four int64 words.

word 0  ps: when the receiving node may act on it (its last byte is in, or its header where the node cuts through)
word 1  destination NPU | source NPU << 20 | FLAG_CNP << 39 | bytes on the wire << 40 |
        other flags << 56 | data class << 61
word 2  sequence number, 24 bits | sender's queue pair << 24 | entropy of its path << 48 (15 bits); bit 63: the entropy
        is the state of a detour (pdes/network/detours/state.py)
word 3  message tag: group << 44 | collective's number in the group << 24 | lane; point to point: P2P and the tag

In an inbox, word 0 is the arrival after the cell begins and the incoming link. In a row of outgoing links, the word
`meta` holds the link's receiving node, its number in the whole fabric and its class; two words hold the bytes and
packets sent and, in their upper bits, the longest wait of a packet for the port.

Packets that cross from one logical process to another lie in outboxes, as records of these words and one more.
"""

from collections.abc import Callable
from typing import Any

from nadi.pdes.core.jit import inline

MAX_NPUS = 1 << 19
MAX_GROUPS = (1 << 19) - 1
MAX_SEQ = 1 << 20
CALL_LANE = (1 << 22) - 1  # lane number that marks the tag of a call (pdes/npu/in_flight.py)
MAX_WIRE_BYTES = 0xFFFF
MAX_DATA_CLASSES = 8  # data classes of packets, which are virtual lanes of switches with credits
# Of the fields of word 1; NPU numbers are below 2^19. Bytes and flags begin at whole bytes, which kernels load alone;
# the sixth flag has its place below the bytes.
FLAGS_SHIFT, BYTES_SHIFT, DATA_CLASS_SHIFT = 39, 40, 61
ENDS_MASK = (1 << FLAGS_SHIFT) - 1  # bits of word 1 with the destination and source NPU
GROUP_SHIFT, SEQ_SHIFT = 44, 24  # of the group, and of the collective's number in it, in word 3
P2P = (1 << 19) - 1  # group number of point-to-point messages
CONNECTION_SHIFT = 19  # of the 6-bit number in a connection of two NPUs, group | number << CONNECTION_SHIFT (25 bits)
SHARES_SHIFT = 25  # of a connection's share of the line rate where messages are posted: SHARE_UNITS / it, 0 = all
SHARE_UNITS = 1024
CONTROL = P2P - 1  # group of the queue pairs for answers to requests (pdes/nic/rendezvous.py)

FLAG_CNP = 1
FLAG_ACK = 1 << 17  # control packet: an acknowledgement, or with FLAG_CNP a congestion notification
FLAG_LAST = 1 << 18
FLAG_NAK = 1 << 19
FLAG_MARK = 1 << 20  # congestion mark (ECN); on an acknowledgement, the mark of its packet
FLAG_TRIMMED = 1 << 21  # data trimmed to its header, which travels as control
FLAGS = FLAG_CNP | FLAG_ACK | FLAG_LAST | FLAG_NAK | FLAG_MARK | FLAG_TRIMMED
FLAG_LAST_HOP = FLAG_NAK  # of a trimmed packet: the last switch trimmed it (Ultra Ethernet's TRIMMED_LASTHOP)
# where receivers coalesce acknowledgements (`ack_every_bytes`, pdes/nic/selective.py)
FLAG_AGAIN = FLAG_NAK  # of data that is not trimmed: it was sent before
FLAG_ASK = FLAG_CNP  # of data: its sender asks for an acknowledgement at once
FLAG_ECHO_AGAIN = FLAG_LAST  # of an acknowledgement: FLAG_AGAIN of its packet
PAUSE_FRAME = 0xFFFFF  # destination of a pause frame, which is for the other end of the link; word 2 is `pause_word`
PAUSE, RESUME = 1, 0

ENTROPY_SHIFT, ENTROPY_MASK = 48, 0x7FFF  # of the entropy of the path in word 2
PSN_MASK = 0xFFFFFF
PATH_MASK = (1 << 63) - 1 - PSN_MASK  # queue pair and entropy, without what switches have decided (bit 63)
BEFORE_PATH_MASK = (1 << 48) - 1  # sequence number and queue pair
DECIDED = -(1 << 63)  # bit 63: a switch has decided on a detour
DIRECT = 1 << 62  # with DECIDED: only the shortest path is left
FINAL = 1 << 61  # with DECIDED: no other switch decides again
COLUMN_BITS = 13  # of the home of a detour
SACK_EXPECTED_SHIFT, SACK_NAMED_MASK, SACK_MASK = 10, 0x3FF, 0x3FFF  # of the two numbers in word 2 (`sack_word`)
HALF_PSN = 1 << 23  # half the range of sequence numbers, the longest distance that orders two of them


def bits(first_bit: int, count: int = 0, mask: int = -1) -> Callable[[Any], Any]:
    """Return a function, also for kernels, that extracts bits of a word from `first_bit` on.

    Args:
        first_bit: Position of the first bit.
        count: Number of bits; 0 = those of `mask`.
        mask: Bits that are kept, the first of which is at first_bit.
    """
    AT, MASK = first_bit, (1 << count) - 1 if count else mask

    @inline
    def part(word):
        return word >> AT & MASK

    return part


# Fields of word 1 of a packet.
destination = bits(0, 20)  # NPU to which it goes
source = bits(20, 19)  # NPU from which it comes
wire_bytes = bits(BYTES_SHIFT, 16)  # headers and gaps included
data_class = bits(DATA_CLASS_SHIFT, 3)  # of data, below MAX_DATA_CLASSES; control packets have 0
flags = bits(FLAGS_SHIFT, mask=FLAGS)  # FLAG_*
# Fields of `Jobs.who`.
rank_of = bits(0, 20)  # number within the job
job_of = bits(20)  # number of the job
# Fields of word 2, of a pause frame's word 2, and of its entry in the log of pauses.
sender_pair = bits(24, 24)  # the sender's queue pair
entropy = bits(ENTROPY_SHIFT, ENTROPY_MASK.bit_length())  # of the path
detour_column = bits(ENTROPY_SHIFT, COLUMN_BITS)  # home of the detour, where a switch has decided on one
paused_class = bits(1, 3)  # data class
asks_to_pause = bits(0, 1)  # PAUSE or RESUME
logged_link = bits(4)  # link of the fabric that must stop, or may send again
# Fields of word 3.
tag_group = bits(GROUP_SHIFT)
tag_seq = bits(SEQ_SHIFT, 20)  # number of the collective within its group
tag_lane = bits(0, SEQ_SHIFT)  # point to point: the user's tag
# Fields of `pair_word`, of `instance_key`, and of `connection_key` and `receiver_key`.
pair_source = bits(0, 20)  # NPU that sends
pair_destination = bits(20)  # NPU that receives
instance_node = bits(40)  # NPU of the LP
key_owner = bits(44)  # NPU whose queue pair it is
key_source = bits(24, 20)  # of `receiver_key`: NPU that sends


@inline
def header(dst, src, size_bytes, flag_bits):
    """Return word 1 of a packet.

    Args:
        dst: Number of the NPU that receives.
        src: Number of the NPU that sends.
        size_bytes: Size of the packet on the wire in bytes.
        flag_bits: Flags of the packet (FLAG_*).
    """
    return dst | (src << 20) | (size_bytes << BYTES_SHIFT) | (flag_bits << FLAGS_SHIFT)


@inline
def filled_in(word1, size_bytes, flag_bits):
    """Return word 1 with more flags and with a size, from a word without size.

    Args:
        word1: Word 1 without a size.
        size_bytes: Size of the packet on the wire in bytes.
        flag_bits: Flags of the packet (FLAG_*).
    """
    return word1 | (size_bytes << BYTES_SHIFT) | (flag_bits << FLAGS_SHIFT)


@inline
def trimmed(word1, size_bytes, flag_bits):
    """Return word 1 of a packet that is cut to `size_bytes` bytes.

    Args:
        word1: Word 1 of the packet (pdes/core/packet.py).
        size_bytes: Size in bytes to which the packet is cut.
        flag_bits: FLAG_LAST_HOP if the last switch trims it, else 0.
    """
    # the size field and FLAG_AGAIN are cleared first: `|` alone would mix the bits of both sizes
    return (
        (word1 & ~(0xFFFF << BYTES_SHIFT | FLAG_AGAIN << FLAGS_SHIFT))
        | (size_bytes << BYTES_SHIFT)
        | ((FLAG_TRIMMED | flag_bits) << FLAGS_SHIFT)
    )


@inline
def with_class(word1, klass):
    """Return word 1 with another data class.

    Args:
        word1: Word 1 of the packet.
        klass: Number of the data class, or virtual lane.
    """
    return (word1 & ((1 << DATA_CLASS_SHIFT) - 1)) | (klass << DATA_CLASS_SHIFT)


@inline
def pause_word(klass, ask):
    """Return word 2 of a pause frame: a data class, and PAUSE or RESUME.

    Args:
        klass: Number of the data class.
        ask: PAUSE or RESUME.
    """
    return klass << 1 | ask


@inline
def logged_pause(link, word2):
    """Return an entry of the log of pauses.

    Args:
        link: Number in the fabric of the link that must stop or may send.
        word2: Word 2 of the pause frame.
    """
    return link << 4 | word2


@inline
def path_word(pair, path):
    """Return word 2 without a sequence number.

    Args:
        pair: Number of the sender's queue pair.
        path: Hash of the path, whose lowest bits are the entropy.
    """
    return (pair << 24) | ((path & ENTROPY_MASK) << ENTROPY_SHIFT)


@inline
def with_entropy(word2, value):
    """Return word 2 with another entropy.

    Args:
        word2: Word 2 of the packet.
        value: The entropy, below ENTROPY_MASK + 1.
    """
    return (word2 & ~(ENTROPY_MASK << ENTROPY_SHIFT)) | (value << ENTROPY_SHIFT)


@inline
def on_detour(word2, column):
    """Return word 2 of a packet that a switch sends on a detour.

    Args:
        word2: Word 2 of the packet.
        column: Column of the home over which the detour leads (pdes/network/detours/state.py).
    """
    return (word2 & BEFORE_PATH_MASK) | (column << 48) | DECIDED


@inline
def is_on_detour(word2):
    """Return whether a packet, by its word 2, is on its way to the home of a detour."""
    return word2 < 0 and word2 & DIRECT == 0


@inline
def sack_word(word2, expected_seq, ahead):
    """Return word 2 of an acknowledgement whose word 3 is a bitmap: it holds two numbers, 14 and 10 bits of them.

    Args:
        word2: Word 2 of the acknowledged packet.
        expected_seq: First packet that has not arrived.
        ahead: Number of the acknowledged packet less expected_seq; below -512 it counts as -512.
    """
    named = max(ahead, -(SACK_NAMED_MASK + 1) // 2) + (SACK_NAMED_MASK + 1) // 2
    return word2 & PATH_MASK | (expected_seq & SACK_MASK) << SACK_EXPECTED_SHIFT | named


@inline
def sack_numbers(word2, una):
    """Return expected_seq less the sender's first unacknowledged packet `una`, and `ahead`, of `sack_word`.

    Args:
        word2: Word 2 of the acknowledgement.
        una: First packet that the sender knows not to have arrived.
    """
    # the nearest number with these 14 bits: an acknowledgement is never 7,680 packets (8,192 less a window) late
    advance = ((word2 >> SACK_EXPECTED_SHIFT) - una) & SACK_MASK
    advance -= (SACK_MASK + 1) * (advance > SACK_MASK >> 1)
    return advance, (word2 & SACK_NAMED_MASK) - (SACK_NAMED_MASK + 1) // 2


@inline
def numbered(word2, seq):
    """Return word 2 with a sequence number, from a word without.

    Args:
        word2: Word 2 without a sequence number.
        seq: Sequence number; only its lowest 24 bits are used.
    """
    return word2 | (seq & PSN_MASK)


@inline
def pair_word(src, dst):
    """Return the word of sending and receiving NPU.

    Args:
        src: Number of the NPU that sends.
        dst: Number of the NPU that receives.
    """
    return src | (dst << 20)


@inline
def receive_key(peer, tag, seq):
    """Return the key of a receive (Program's recv_key).

    Args:
        peer: Sender minus receiver.
        tag: Tag of the message.
        seq: Number of the message among those with the same peer and tag.
    """
    # a peer is between -(2^19 - 1) and 2^19 - 1; the offset makes the key positive, so that keys sort as words
    return ((peer + MAX_NPUS) << 44) | (tag << 20) | seq


@inline
def connection_key(src, dst, connection):
    """Return the key of a sending queue pair.

    Args:
        src: Number of the NPU that sends.
        dst: Number of the NPU that receives.
        connection: Group and number of the connection (CONNECTION_SHIFT).
    """
    return (src << 44) | (dst << 25) | connection


@inline
def receiver_key(word1, word2):
    """Return the key of the receiving queue pair of a data packet.

    Args:
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
    """
    return (destination(word1) << 44) | (source(word1) << 24) | sender_pair(word2)


@inline
def message_tag(group, seq, lane):
    """Return word 3 of a message's last packet.

    Args:
        group: Number of the group; P2P for point to point.
        seq: Number of the collective in its group.
        lane: Number of the receiving lane; point to point, the user's tag.
    """
    return (group << GROUP_SHIFT) | (seq << SEQ_SHIFT) | lane


@inline
def instance_key(node, group, seq):
    """Return the key of a collective on an NPU.

    Args:
        node: Number of the NPU in the LP.
        group: Number of the group; P2P for point to point.
        seq: Number of the collective in its group.
    """
    return (node << 40) | (group << 20) | seq


@inline
def tag_for(key, lane):
    """Return the tag of a message for a lane of the collective with this key, on any NPU.

    Args:
        key: Key of the collective (`instance_key`).
        lane: Number of the lane.
    """
    return message_tag(key >> 20 & (MAX_SEQ - 1), key & (MAX_SEQ - 1), lane)


NODE_BITS, LINK_BITS = 22, 24
CLASS_SHIFT = NODE_BITS + LINK_BITS
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
    """Return the word `meta`.

    Args:
        node: Receiving node as the LP numbers it.
        link: Number of the link in the fabric.
        link_class: Row of the link in `link_class`.
    """
    return node | (link << NODE_BITS) | (link_class << CLASS_SHIFT)


@inline
def longest_wait_ps(sent_bytes, sent_packets):
    """Return the longest wait of a packet for the port, which is kept in upper bits of both words of a link.

    Args:
        sent_bytes: Word `sent_bytes` of the link.
        sent_packets: Word `sent_packets` of the link.
    """
    # 16 bits above the bytes and 28 above the packets: waits up to 2^44 ps, which is 17.6 s
    return (sent_bytes >> BYTES_BITS << WAIT_BITS) | (sent_packets >> PACKETS_BITS)


@inline
def with_longest_wait(sent_bytes, sent_packets, wait_ps):
    """Return the words `sent_bytes` and `sent_packets` of a link with another longest wait of a packet.

    Args:
        sent_bytes: Word `sent_bytes` of the link.
        sent_packets: Word `sent_packets` of the link.
        wait_ps: Longest wait in ps, cut to MAX_WAIT_PS.
    """
    wait_ps = min(wait_ps, MAX_WAIT_PS)
    sent_bytes = bytes_sent(sent_bytes) | (wait_ps >> WAIT_BITS << BYTES_BITS)
    return sent_bytes, packets_sent(sent_packets) | ((wait_ps & WAIT_MASK) << PACKETS_BITS)


# Outboxes: packets that cross from one logical process to another.
#
# An outbox has a list for each neighbour, and one for all LPs of another team (pdes/workers/batches.py). A list has two
# halves, used alternately: while a window writes one half, the neighbour reads the other, which the previous window
# wrote. A half is the number of records, and then records of five words: the four of a packet, with the arrival time
# as the first, and what names the link (`Part.far`); the packet's telemetry follows, where packets carry it. A link
# carries no more packets in a window than fit on the wire, so a half never overflows. The neighbour finds a half by its
# address, which may be in its own memory, in memory shared between processes, or where batches of another team are
# unpacked.

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
