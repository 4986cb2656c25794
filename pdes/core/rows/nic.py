"""Rows of ports, queue pairs and messages."""

from pdes.core.rows.row import INF, Row, WordKind, word


class Port(Row, words=8, written_by="nic.allowed nic.pacing nic.port npu.npu_window"):
    """An NPU's port; rows as in `tx`, which begins with the ports of the NPUs."""

    sent_ref = word(WordKind.PACKED, "who waits for the last byte of the packet on the wire, -1 nobody", begins=-1)
    pace_at_ps = word(WordKind.TIME, "the port's pacing event in the heap, INF none", begins=INF)
    transit_bytes = word(WordKind.BYTES, "that wait on their way through")
    ring = word(WordKind.QUEUE_PAIR, "last of the circular list of those that may send, -1 none", bits=32, begins=-1)
    paced = word(
        WordKind.QUEUE_PAIR, "of those that pacing holds back who may send soonest, -1 none", bits=32, begins=-1
    )
    kick_next = word(
        WordKind.LINK, "next port in the NPU's list of ports to try, -2 not in the list", bits=32, begins=-2
    )
    control_packets = word(WordKind.COUNT, "acknowledgements that wait, sent first", bits=32)
    control_head = word(WordKind.RECORD, "first acknowledgement", bits=32)
    control_tail = word(WordKind.RECORD, "last acknowledgement", bits=32)
    transit_packets = word(WordKind.COUNT, "of others that wait on their way through", bits=32)
    transit_head = word(WordKind.RECORD, "first on its way through", bits=32)
    transit_tail = word(WordKind.RECORD, "last on its way through", bits=32)
    scheduled = word(WordKind.FLAG, "an event waits in the heap for the port to fall idle", bits=8)
    turn = word(WordKind.FLAG, "transit has the next turn against the queue pairs", bits=8)


class QueuePair(Row, words=16, written_by="nic.port nic.rendezvous nic.transport"):
    """A sending queue pair: what every acknowledgement needs, then what every packet needs, a cache line each."""

    next_seq = word(WordKind.SEQUENCE, "of the next packet to send")
    una = word(WordKind.SEQUENCE, "first not acknowledged")
    end_seq = word(WordKind.SEQUENCE, "first not posted")
    sent_max = word(WordKind.SEQUENCE, "first never sent")
    head_end = word(WordKind.SEQUENCE, "after the oldest message")
    deadline_ps = word(WordKind.TIME, "retransmit when no progress by then")
    ring_next = word(WordKind.QUEUE_PAIR, "circular list of the port", bits=32)
    port = word(WordKind.LINK, "by which it sends", bits=32)
    pending = word(WordKind.MESSAGE, "1 + the first that waits for an answer (pdes/nic/rendezvous.py), 0 none", bits=32)
    retries = word(WordKind.COUNT, "timeouts in a row", bits=16)
    active = word(WordKind.CODE, "TAKES_TURNS, in its port's list; HELD_BACK by pacing; 0", bits=16)
    current_end = word(WordKind.SEQUENCE, "after the message of next_seq")
    w1 = word(WordKind.PACKED, "packet word 1 without the size")
    w2 = word(WordKind.PACKED, "packet word 2 without the sequence number")
    current_tag = word(WordKind.PACKED, "packet word 3")
    head_message = word(WordKind.MESSAGE, "oldest not wholly acknowledged, -1 none", bits=32)
    current_message = word(WordKind.MESSAGE, "of next_seq, -1 none", bits=32)
    tail_message = word(WordKind.MESSAGE, "newest", bits=32)
    sibling = word(WordKind.QUEUE_PAIR, "next of the same NPU, -1 none", bits=32)
    npu = word(WordKind.NODE, "whose it is", bits=32)
    connection = word(WordKind.GROUP, "group | number << CONNECTION_SHIFT", bits=32)
    messages = word(WordKind.COUNT, "posted", bits=32)
    shares = word(
        WordKind.RATIO, "goes at SHARE_UNITS / that of its port's rate; up to SHARE_UNITS: at all of it", bits=32
    )


class CongestionState(
    Row, words=32, written_by="nic.allowed nic.congestion.* nic.control nic.driven nic.pacing nic.transport"
):
    """What congestion control keeps of a sending queue pair; an algorithm's own words follow (pdes/nic/congestion)."""

    window_packets = word(WordKind.COUNT, "that may be unacknowledged")
    pace_ps_per_byte = word(WordKind.FLOAT, "ps per byte on the wire from begin to begin of packets; 0 = not paced")
    line_ps_per_byte = word(WordKind.FLOAT, "ps per byte of its port, or of its share of that")
    next_send_ps = word(WordKind.TIME, "pacing lets the next packet go then")
    last_seq = word(WordKind.SEQUENCE, "of the newest packet that ends a message, -1 none")
    last_sent_ps = word(WordKind.TIME, "when that was sent")
    child = word(WordKind.QUEUE_PAIR, "of the heap of those that pacing holds back (pdes/nic/pacing.py)")
    sibling = word(WordKind.QUEUE_PAIR, "of the same heap")


class Message(Row, words=8, written_by="nic.transport npu.endpoints"):
    """A posted message."""

    payload_bytes = word(WordKind.BYTES, "of the message")
    tag = word(WordKind.PACKED, "packet word 3")
    begin_seq = word(WordKind.SEQUENCE, "of its first packet")
    end_seq = word(WordKind.SEQUENCE, "after its last")
    next_message = word(WordKind.MESSAGE, "of its list, -1 none")
    ref = word(
        WordKind.PACKED,
        "who waits for its last byte to leave: trace row, or REF_INSTANCE | instance, -1 nobody. Of a "
        "blocking lane, 1 + its number << REF_LANE too",
    )
    told = word(WordKind.PACKED, "who waits for its last acknowledgement, where that counts (pdes/npu/endpoints.py)")


class Selective(Row, words=40, written_by="nic.selective nic.selective_receiver nic.transport"):
    """Selective repeat, rows as `qp` and `rxqp`: bit sets of sequence numbers, 32 bits a word."""

    seen = word(WordKind.FLAGS, "has arrived", many=16)
    lost = word(WordKind.FLAGS, "sender: is to be sent again", many=16)
    lost_packets = word(WordKind.COUNT, "of those")
    highest = word(WordKind.SEQUENCE, "sender: that has arrived")
    checked = word(WordKind.SEQUENCE, "sender: those before have been looked at for losses")
    head_message = word(WordKind.MESSAGE, "receiver: list of messages whose last packet is here, by number, -1 none")


class Receiver(Row, written_by="nic.selective_receiver nic.transport"):
    """A receiving queue pair; rows stand where a map by their keys would have them (pdes/core/hashmap.py)."""

    key = word(WordKind.PACKED, "dst << 44 | src << 24 | sending queue pair there, -1: the row is free", begins=-1)
    expected = word(WordKind.SEQUENCE, "of the next packet")
    nak_sent = word(WordKind.PACKED, "1: asked for what is missing | ps of the last congestion notification << 1")
    messages = word(WordKind.COUNT, "received", bits=32)
    port_back = word(WordKind.LINK, "1 + that by which it acknowledges, 0 not known yet", bits=32)


class FlowOut(Row, written_by="messages.whole nic.transport"):
    """A message that was posted, kept for the results."""

    pair = word(WordKind.PACKED, "src | dst << 20")
    tag = word(WordKind.PACKED, "packet word 3")
    payload_bytes = word(WordKind.BYTES, "of the message")
    posted_ps = word(WordKind.TIME, "when it was posted")
    ordinal = word(WordKind.COUNT, "which of its queue pair it is")


class FlowIn(Row, written_by="nic.transport"):
    """A message that is complete, kept for the results."""

    pair = word(WordKind.PACKED, "src | dst << 20")
    tag = word(WordKind.PACKED, "packet word 3")
    ordinal = word(WordKind.COUNT, "which of its queue pair it is")
    finished_ps = word(WordKind.TIME, "when it was")


class PendingRequest(Row, words=8, written_by="nic.rendezvous"):
    """A row of `msg` of a message that is asked for and not answered (pdes/nic/rendezvous.py)."""

    payload_bytes = word(WordKind.BYTES, "of the message")
    tag = word(WordKind.PACKED, "packet word 3")
    group = word(WordKind.GROUP, "as it was posted")
    _unused = word(WordKind.COUNT, "not used")
    next_message = word(WordKind.MESSAGE, "of its list, -1 none")
    ref = word(WordKind.PACKED, "as of Message")


class LaterMessage(Row, written_by="npu.agenda npu.endpoints"):
    """A row of `msg` of what an NPU does with a message later (pdes/npu/endpoints.py)."""

    payload_bytes = word(WordKind.BYTES, "of the message")
    tag = word(WordKind.PACKED, "packet word 3")
    connection = word(WordKind.QUEUE_PAIR, "by which it goes")
    w1 = word(WordKind.PACKED, "of its last packet, where its receiver acts on it later")
    later = word(WordKind.MESSAGE, "next of its list, -1 none")
    ref = word(WordKind.PACKED, "as of Message")
    due = word(WordKind.PACKED, "when: ps << 1")
    what = word(WordKind.CODE, "what is to be done")


class KeptMessage(Row, words=8, written_by="nic.selective_receiver"):
    """A row of `msg` of a message whose last packet is here (pdes/nic/selective_receiver.py)."""

    w1 = word(WordKind.PACKED, "of its last packet")
    tag = word(WordKind.PACKED, "packet word 3")
    last_seq = word(WordKind.SEQUENCE, "of its last packet")
    payload_bytes = word(WordKind.BYTES, "of the message, once it is complete")
    next_message = word(WordKind.MESSAGE, "of its list, -1 none")
    w2 = word(WordKind.PACKED, "of its last packet")


class QueuedRequest(Row, words=8, written_by="nic.rendezvous"):
    """A row of `msg` of a request, or a message behind one, that a lane has not come to (pdes/nic/rendezvous.py)."""

    _unused = word(WordKind.COUNT, "not used")
    src = word(WordKind.NPU, "who asks, or SENT_AT_ONCE")
    _unused2 = word(WordKind.COUNT, "not used", many=2)
    next_message = word(WordKind.MESSAGE, "of its list, -1 none")
