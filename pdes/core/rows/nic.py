"""Rows of ports, queue pairs and messages."""

from nadi.pdes.core.rows.row import INF, Row, word


class Port(Row, words=8):
    """An NPU's port; rows as in `tx`, which begins with the ports of the NPUs."""

    sent_ref = word("waiter", "waiter for the last byte of the packet on the wire, -1 nobody", begins=-1, rest="begins")
    pace_at_ps = word("time", "the port's pacing event in the heap, INF none", begins=INF, rest="future")
    transit_bytes = word("bytes", "bytes of transit packets that wait")
    ring = word(
        "queue_pair",
        "last of the circular list of queue pairs that may send, -1 none",
        bits=32,
        begins=-1,
        rest="begins",
    )
    paced = word(
        "queue_pair",
        "the queue pair held back by pacing that may send first, -1 none",
        bits=32,
        begins=-1,
        rest="begins",
    )
    wake_next = word(
        "link", "next port in the NPU's list of ports to try, -2 not in the list", bits=32, begins=-2, rest="begins"
    )
    control_packets = word("count", "acknowledgements that wait; they are sent first", bits=32, rest="begins")
    control_head = word("record", "first acknowledgement", bits=32)
    control_tail = word("record", "last acknowledgement", bits=32)
    transit_packets = word("count", "transit packets that wait", bits=32, rest="begins")
    transit_head = word("record", "first transit packet", bits=32)
    transit_tail = word("record", "last transit packet", bits=32)
    scheduled = word("flag", "an event in the heap marks when the port falls idle", bits=8, rest="same")
    turn = word("flag", "transit has the next turn against the queue pairs", bits=8, rest="same")


class QueuePair(Row, words=16):
    """A sending queue pair: one cache line for every acknowledgement, then one for every packet."""

    # Life of a queue pair: the first message of its connection opens it (`queue_pair`), and it lasts until the run
    # ends. A posted message moves `end_seq`; it takes turns at its port (`active`) while it has packets and room in its
    # window; each acknowledgement moves `una`. Always una <= next_seq <= sent_max <= end_seq. Normally next_seq =
    # sent_max. After a loss it goes back: with una = 11 and sent_max = 14, a NAK of packet 11 sets next_seq = 11, and
    # 11 to 13 are sent again. After more than max_retries timeouts without progress the run fails. Sequence numbers
    # here are whole; packets carry their lowest 24 bits (PSN of InfiniBand, IBTA volume 1, 9.7).
    next_seq = word("sequence", "next packet to send")
    una = word("sequence", "first packet that is not acknowledged")
    end_seq = word("sequence", "first packet that is not posted")
    sent_max = word("sequence", "first packet that was never sent")
    head_end = word("sequence", "first packet after the oldest message")
    deadline_ps = word("time", "time at which it retransmits without progress")
    ring_next = word("queue_pair", "next of the port's circular list", bits=32)
    port = word("link", "port that sends", bits=32)
    pending = word(
        "message",
        "1 + first message that waits for an answer (pdes/nic/rendezvous.py), 0 none",
        bits=32,
        plus=1,
        rest="begins",
    )
    retries = word("count", "consecutive timeouts", bits=16, rest="same")
    active = word("code", "TAKES_TURNS, in its port's list; HELD_BACK by pacing; 0", bits=8, rest="begins")
    controlled = word("flag", "congestion control handles it: its port is not NVLink within a domain", bits=8)
    current_end = word("sequence", "first packet after the message of next_seq")
    w1 = word("packed", "packet word 1 without the size")
    w2 = word("packet_word", "packet word 2 without the sequence number")
    current_tag = word("packed", "packet word 3")
    head_message = word("message", "oldest message not wholly acknowledged, -1 none", bits=32)
    current_message = word("message", "message of next_seq, -1 none", bits=32)
    tail_message = word("message", "newest message", bits=32)
    sibling = word("queue_pair", "next queue pair of the same NPU, -1 none", bits=32)
    npu = word("node", "NPU that owns it", bits=32)
    connection = word("group", "group | number << CONNECTION_SHIFT", bits=32)
    messages = word("count", "messages posted", bits=32)
    shares = word("ratio", "its rate is SHARE_UNITS / this of its port's; up to SHARE_UNITS: the whole rate", bits=32)


class CongestionState(
    Row,
    words=32,
):
    """Congestion-control state of a sending queue pair; an algorithm's own words follow (pdes/nic/congestion)."""

    # The transport knows these words alone, whatever the algorithm: how many packets may be unacknowledged, and the
    # pace of the next. An algorithm's own words follow the last of them.
    window_packets = word("count", "packets that may be unacknowledged")
    pace_ps_per_byte = word("float", "ps per wire byte between the begins of packets; 0 = not paced")
    line_ps_per_byte = word("float", "ps per byte of its port's rate, or of its share of that")
    next_send_ps = word("time", "time at which pacing lets the next packet go", rest="future")
    last_seq = word("sequence", "newest packet that ends a message, -1 none")
    last_sent_ps = word("time", "time at which that packet was sent")
    child = word("queue_pair", "first child in the heap of those that pacing holds back (pdes/nic/port.py)")
    sibling = word("queue_pair", "next sibling in the same heap")


class Resends(Row):
    """How often a sending queue pair has sent its first unacknowledged packet again, where switches trim packets."""

    trimmed_seq = word("sequence", "first unacknowledged packet when one was trimmed last")
    trimmed_times = word("count", "times that this packet was trimmed and sent again")


class Message(Row, words=8):
    """A posted message."""

    # Life of a message: `post` appends it to the list head_message .. tail_message of its queue pair
    # (`enqueue_message`), with packets [begin_seq, end_seq). It is current_message while its packets are sent for the
    # first time or again. When its last packet has left for the first time, the waiter `ref` goes on (the send buffer
    # is free); when `una` reaches end_seq, the row is free again (`free_acknowledged`). The receiver knows the message
    # by its last packet alone, which has the tag, so nothing is allocated there before.
    payload_bytes = word("bytes", "payload of the message")
    tag = word("packed", "packet word 3")
    begin_seq = word("sequence", "its first packet")
    end_seq = word("sequence", "first packet after its last")
    next_message = word("message", "next of its list, -1 none")
    ref = word(
        "waiter",
        "who waits for its last byte to leave: trace row, or REF_INSTANCE | instance, -1 nobody. Of a "
        "blocking lane, 1 + its number << REF_LANE too",
    )
    told = word("waiter", "waiter for its last acknowledgement, where that counts (pdes/npu/endpoints.py)")


class Selective(Row, words=40):
    """Selective repeat, rows parallel to `qp` and `rxqp`: bit sets of sequence numbers, 32 bits per word."""

    # bit `seq mod 512` is in word (seq mod 512) >> 5 at place seq & 31: packet 70 is bit 6 of word 2
    seen = word("flags", "packets that have arrived", many=16)
    lost = word("flags", "sender: packets to send again", many=16)
    lost_packets = word("count", "number of packets to send again")
    highest = word("sequence", "sender: highest packet that has arrived")
    checked = word("sequence", "sender: first packet not yet checked for loss")
    head_message = word("message", "receiver: list of messages whose last packet is here, by number, -1 none")


class Receiver(Row):
    """A receiving queue pair; the table of rows is a hash map by `key` (pdes/core/hashing.py)."""

    # a row is never freed: one per queue pair whose data this LP's NPUs have seen, with the number of the next packet
    # in order
    key = word("packed_local", "dst << 44 | src << 24 | sending queue pair there, -1: the row is free", begins=-1)
    expected = word("sequence", "next packet in order")
    nak_sent = word("packed", "1: a NAK is out | ps of the last congestion notification << 1")
    messages = word("count", "messages received", bits=32)
    port_back = word("link", "1 + port that acknowledges, 0 not known yet", bits=32, plus=1)


class FlowOut(Row):
    """A posted message, kept for the results."""

    # sender and receiver may be in different LPs, so each keeps its half; halves with the same pair, tag and ordinal
    # are joined after the run (pdes.outcomes.outcome)
    pair = word("packed", "src | dst << 20")
    tag = word("packed", "packet word 3")
    payload_bytes = word("bytes", "payload of the message")
    posted_ps = word("time", "time of posting")
    ordinal = word("count", "number of the message within its queue pair")


class FlowIn(Row):
    """A completed message, kept for the results."""

    pair = word("packed", "src | dst << 20")
    tag = word("packed", "packet word 3")
    ordinal = word("count", "number of the message within its queue pair")
    finished_ps = word("time", "time of completion")


class PendingRequest(Row, words=8):
    """A row of `msg` for a message whose request is not answered yet (pdes/nic/rendezvous.py)."""

    # The classes below, and WholeMessage, are other views of rows of `msg`, so that one pool, with one check for room,
    # serves all of them. In all of them `tag` is word 1 and `ref` word 5 where they have it, since code reads these
    # without knowing the view.
    payload_bytes = word("bytes", "payload of the message")
    tag = word("packed", "packet word 3")
    group = word("group", "group with which it was posted")
    _unused = word("count", "not used")
    next_message = word("message", "next of its list, -1 none")
    ref = word("waiter", "as in Message")


class LaterMessage(Row):
    """A row of `msg` for a message that an NPU acts on later (pdes/npu/endpoints.py)."""

    payload_bytes = word("bytes", "payload of the message")
    tag = word("packed", "packet word 3")
    connection = word("queue_pair", "connection that carries it")
    w1 = word("packed", "word 1 of its last packet, where its receiver acts on it later")
    later = word("message", "next of its list, -1 none")
    ref = word("waiter", "as in Message")
    due = word("packed", "time of the action, ps << 1")
    what = word("code", "kind of the action")


class KeptMessage(Row, words=8):
    """A row of `msg` for a message whose last packet has arrived (pdes/nic/selective_receiver.py)."""

    w1 = word("packed", "word 1 of its last packet")
    tag = word("packed", "packet word 3")
    last_seq = word("sequence", "sequence number of its last packet")
    payload_bytes = word("bytes", "payload of the message, once it is complete")
    next_message = word("message", "next of its list, -1 none")
    w2 = word("packet_word", "word 2 of its last packet")


class QueuedRequest(Row, words=8):
    """A row of `msg` for a request, or a message behind one, that a lane has not reached (pdes/nic/rendezvous.py)."""

    _unused = word("count", "not used")
    src = word("npu", "NPU that asks, or SENT_AT_ONCE")
    _unused2 = word("count", "not used", many=2)
    next_message = word("message", "next of its list, -1 none")
