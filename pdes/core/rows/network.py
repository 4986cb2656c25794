"""Rows of what packets meet: links and switches, and the ports, queue pairs and messages of NPUs."""

from nadi.pdes.core.rows import INF, Row, word


class OutgoingLink(
    Row,
):
    """The sending side of a link, node by node; then links that come from other LPs, with `meta` only."""

    # pdes/core/packet.py packs and unpacks the words with several fields.

    # Four words, so that two links share a cache line: a packet-hop reads all four and writes three of them.
    busy_ps = word("time", "end of the port's current transmission", rest="recent")
    meta = word(
        "packed_local",
        "receiving node | the link's number in the whole fabric << 22 | its class << 46; a node from the "
        "number of nodes on is the list of the LP's outbox of that number less the nodes",
    )
    sent_bytes = word("packed", "bytes sent on the wire | upper 16 bits of the longest wait << BYTES_BITS")
    sent_packets = word("packed", "packets sent | lower 28 bits of the longest wait of a packet (ps) << PACKETS_BITS")


class LinkSample(Row, words=4):
    """What a link has done in its current interval of samples; bytes and queue may have different ones."""

    sent_interval = word("count", "number of the interval in which the link sent last")
    sent_bytes = word("bytes", "bytes sent in that interval")
    queue_interval = word("count", "number of the interval in which a packet waited last")
    queue_bytes = word("bytes", "maximum of the bytes that waited in that interval")


class SampleEntry(Row, words=4):
    """An entry of the log of samples: a sum or maximum of an interval of a link."""

    link = word("link", "row of `tx`")
    kind = word("code", "SENT or QUEUED (pdes/network/telemetry.py)")
    interval = word("count", "number of the interval")
    amount = word("bytes", "bytes sent, or the maximum of the bytes that waited")


class LinkClass(Row):
    """Properties that many links have in common."""

    # A row per distinct combination of rate, delay, loss and marking, of which a fabric has few: they stay in the
    # cache. Only where flows share links with packets is it a row per link, as flows take a part of each link's rate.
    ps_per_byte = word("float", "ps per byte of the link's rate")
    delay_ps = word("duration", "propagation time")
    seen_bytes = word("bytes", "bytes that the receiving node waits for before it forwards")
    error = word("ratio", "loss probability in units of 2^-32: a packet is lost if a 32-bit hash is below")
    kmin_bytes = word("bytes", "queue of the sending port above which packets are marked with some probability")
    kmax_bytes = word("bytes", "queue from which every packet is marked")
    pmax = word("ratio", "probability of a mark just below kmax_bytes, in units of 2^-32")
    special = word(
        "flags",
        "CARE: packets may be lost or carry telemetry; FRAMED, INSIDE, AMPLE, CIRCUIT, RISES, COUNTED (core/state.py)",
    )


class Forwarding(Row):
    """Forwarding state of a node: one cache line."""

    # `row` may be negative: of a switch whose cells differ from `default` in columns 5 and 6 only, two cells are
    # stored, and `row` is their place minus 5, so that place row + column needs no further subtraction.
    row = word("place", "table mode: (virtual) place of column 0 of the node's row in `cell`")
    first = word("count", "first column with a cell of its own")
    last = word("count", "column behind the last that has a cell of its own")
    default = word("packed", "cell of the other columns")
    salt = word("packed", "32-bit hash of (seed, node)")
    column = word("count", "home column of a switch, -1 none")
    first_link = word("link", "first outgoing link of the node")
    forward = word(
        "packed",
        "ps from arrival to departure << 2 | 2 if it has several equal links to some NPU | 1 if it cuts through",
    )


class Gate(
    Row,
    words=48,
):
    """A port of a switch that shares its buffer, and the traffic that enters by its link (docs/explanation/fabric.md).

    For an NPU's port only the pauses are used.
    """

    # A pause has two sides. `paused` is what the other end has asked of this port (it must not send the class); `asked`
    # is what this switch has asked of the other end, since `in_bytes` of the class would exceed its threshold. What
    # arrives until the request takes effect is counted in `held_bytes`, at most `headroom_bytes` (IEEE 802.1Qbb, annex
    # O: two propagation times, and the packets that both ends may just have begun).
    mask = word("flags", "non-empty queues", rest="begins")
    paused = word(
        "flags", "data classes that the other end has paused, or virtual lanes without credits", rest="begins"
    )
    asked = word("flags", "data classes that the other end was asked to pause", bits=32, rest="begins")
    traits = word("flags", "MARKS, MARKS_BY_CLASS, TO_NPU (pdes/network/port_queues.py)", bits=32, is_built=True)
    waiting_bytes = word("bytes", "bytes that wait, of all data classes or lanes")
    longest_bytes = word("bytes", "maximum of waiting_bytes", bits=32)
    headroom_bytes = word("bytes", "headroom of each class", bits=32)
    # a port has up to 2^31 bytes, the largest buffer
    queued_bytes = word("bytes", "bytes that wait, by data class or lane", many=8, bits=32)
    queues = word("packed_local", "first record | place behind the last << 32", many=11)
    place = word("count", "index in the node's list of ports with packets that wait", bits=32)
    trimmed_turn = word(
        "count", "trimmed packets sent since the last data packet, while data waited", bits=32, rest="same"
    )
    in_bytes = word(
        "bytes", "shared bytes that came in over the reverse link and have not left, by data class", many=8, bits=32
    )
    held_bytes = word("bytes", "likewise, bytes in the headroom", many=8, bits=32)
    marked_packets = word("count", "packets sent with a congestion mark")
    pause_frames = word("count", "pause frames, or frames that return credits, sent")
    trimmed_packets = word("count", "packets cut to their headers")
    paused_ps = word("duration", "total time for which a class was paused, or a lane without credits")
    since_ps = word("time", "begin of the pause, by data class", many=8)
    discipline = word(
        "packed", "own words of the discipline (pdes/network/disciplines), or of the arbitration", many=5, rest="same"
    )
    limit_bytes = word("bytes", "bytes of a class that may wait, 0: a share of the free buffer", is_built=True)


class VirtualLane(Row, words=8):
    """A virtual lane of a link with credits, at its sending end; then the port's queues of control (pdes/network)."""

    # `free_units` is of the buffer at the other end, `held_units` and `owed_units` of the own one, for what comes over
    # the reverse link. Without faults, the buffer's size = free_units of the sender + packets and frames on the wire +
    # held_units and owed_units of the receiver.
    queue = word("packed_local", "packets for this port: first record | place behind the last << 32")
    free_units = word("count", "credits: room at the other end of the link that the port may fill", rest="same")
    held_units = word("count", "credits of the packets in this end's input buffer", rest="begins")
    owed_units = word("count", "credits of packets that have left it, which are not returned yet", rest="same")
    since_ps = word("time", "time since which the lane has no credits for a full packet, while that is so")


class SwitchBuffer(Row, words=8):
    """The buffer of a switch; by node."""

    used_bytes = word("bytes", "shared bytes in use", rest="begins")
    ports = word("count", "ports with packets that wait")
    asked = word("count", "pauses that are in force")
    shared_bytes = word("bytes", "size of the shared part; 0: no buffer, the switch is one of NVLink")
    # what the switches of a tier have in common
    pfc = word("flags", "data classes of which it pauses senders (PFC); those of others it drops or trims")
    trim = word("flag", "it cuts packets that it would drop to their headers")
    alpha_1024ths = word("ratio", "factor of its dynamic thresholds")
    resume_offset_bytes = word("bytes", "bytes below the threshold at which a pause ends", bits=32)
    trimmed_a_turn = word("count", "trimmed packets that a port sends per data packet while both wait", bits=32)


class PortTies(Row, words=2):
    """Ties at an output port of a switch: packets for it that arrive at one time."""

    last_tie_ps = word("time", "time of the last tie")
    ties = word("count", "ties since the last pause without any (Constants.tie_pause_ps), modulo TIES")


class MarkDraws(Row, words=2):
    """Draws of an output port of a switch whether a packet is marked, where its queue is between both thresholds."""

    # a count that begins anew, and not that of packets: the same queues later, or elsewhere, then mark alike
    last_draw_ps = word("time", "time of the last draw")
    draws = word("count", "draws since the last pause without any (Constants.tie_pause_ps)")


class QueueLog(Row, words=128):
    """What a port had to send behind each of its last packets, where choices are made before queues are joined."""

    newest = word("count", "place of the last packet below")
    joined_ps = word("time", "time at which a packet joined the queue", many=63)
    work_ps = word("duration", "time that the port then needed for all that it had to send", many=63)


class NodeCounts(Row, words=8):
    """A node's own counts, from which its choices follow as if at random. A tie: packets that arrive at one time."""

    # counts, not times, are hashed: a run that begins later, or an equal node elsewhere, then chooses alike (exact
    # reuse)
    ties = word("count", "ties since the last pause without any (Constants.tie_pause_ps), modulo TIES")
    last_tie_ps = word("time", "time of the last tie")
    choices = word("count", "choices of a link by load balancing since the last pause without any")
    last_choice_ps = word("time", "time of the last of them")
    pauses = word("count", "number of these pauses")


class Telemetry(Row, words=16):
    """Telemetry of a data packet from its links, parallel to its record; `carried` holds that of the packet in hand."""

    hops = word("count", "number of hops that have written")
    met = word(
        "packed",
        "two words a hop: ps when the packet left the queue | class of the link << TELEMETRY_CLASS_SHIFT; "
        "bytes that the port had sent, 34 bits | bytes left in its queue << TELEMETRY_QUEUE_SHIFT",
        many=14,
    )


class Change(Row):
    """A change of the schedule of faults (pdes/network/routing.py)."""

    begin_ps = word("time", "begin of the cell at which it takes effect")
    kind = word("code", "CHANGE_LINK, CHANGE_NPU, CHANGE_PAUSE, CHANGE_ROUTES or CHANGE_CIRCUIT")
    index = word("link", "own outgoing link; own NPU")
    value = word("code", "class of the link; `slow` of the NPU; number of the routing tables")


class PacketRecord(Row):
    """A packet that waits, or is on the wire (pdes/core/packet.py)."""

    # Life of a packet: `send_data` or `send_ack` (pdes/nic) composes words 1 to 3, and `link_send` occupies the port
    # and puts the packet where it waits for its arrival: into the inbox of the node at the link's end, the list of the
    # link if it arrives later than inboxes reach (`wait`), or the outbox for another LP (pdes/core/packet.py). In
    # the cell of its arrival, `take_batch` hands it to the node: a switch sends it on, at once or from a queue of a
    # port; an NPU passes it on or consumes it. A port without room, or a faulty link, drops it. The four words are
    # copied at each step, never shared, and at the end of a run packets made = consumed + dropped
    # (pdes.outcomes.outcome.check).
    ready_ps = word("time", "time at which the receiving node may act: last byte in, or header if it cuts through")
    w1 = word("packed", "destination, source, bytes on the wire, flags")
    w2 = word("packet_word", "sequence number, sender's queue pair, entropy of its path")
    w3 = word("packed", "message tag")


# Ports of NPUs, queue pairs and messages.


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


class NicPort(Row, words=4):
    """A port of an NPU, parallel to `port`, where packets of a queue pair take all ports of a NIC."""

    first = word("link", "first port of its NIC", bits=32, is_built=True)
    ports = word("count", "ports of the NIC, in the row of the first; in others 1", bits=32, is_built=True)
    ps_per_byte = word("float", "ps per byte of the rate of all ports of the NIC", is_built=True)
    busy_ps = word("time", "end of the NIC's current transmission at that rate", rest="recent")


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

    # In the state of a run at rest an algorithm's own words count as they are, its times since the moment, and its
    # sequence numbers from the first that is not acknowledged, unless their `rest` says more.

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


class PairPaths(
    Row,
    words=16,
):
    """The paths of a sending queue pair: its entropies, and its turns; an entropy rule's own words follow."""

    # path i has the entropy first + i x step, modulo 2^15; the step is odd, so the paths have different entropies
    first = word("packed", "entropy of path 0")
    step = word("packed", "odd distance between entropies")
    inverse = word("packed", "inverse of the step modulo the number of entropies")
    salt = word("packed", "32-bit hash of the connection")
    last_ps = word("time", "time of the last packet or answer, 0 none")
    position = word("count", "turns taken since the last pause")
    draws = word("count", "random choices since the last pause")


class Selective(Row, words=48):
    """Selective repeat, rows parallel to `qp` and `rxqp`: bit sets of sequence numbers, 32 bits per word."""

    # bit `seq mod 512` is in word (seq mod 512) >> 5 at place seq & 31: packet 70 is bit 6 of word 2
    seen = word("flags", "packets that have arrived", many=16)
    lost = word("flags", "sender: packets to send again", many=16)
    lost_packets = word("count", "number of packets to send again")
    highest = word("sequence", "highest packet that has arrived; at a receiver that coalesces acknowledgements, too")
    checked = word("sequence", "sender: first packet not yet checked for loss")
    head_message = word("message", "receiver: list of messages whose last packet is here, by number, -1 none")
    unanswered_bytes = word("bytes", "receiver: data since its last coalesced acknowledgement", bits=32, rest="same")
    wants_answer = word("flag", "receiver: to acknowledge once nothing is missing", bits=32, rest="same")
    seen_packets = word("count", "sender: number of packets after `una` that have arrived")
    recovery_seq = word("sequence", "sender: SLEEK's recovery ends when all packets before this one have arrived")
    resent_seq = word("sequence", "sender: first packet that SLEEK's recovery has not sent again")
    probe_ps = word("time", "sender: time of SLEEK's next probe, 0 none")
    probed_ps = word("time", "sender: time of the last probe that has no answer, 0 none")


class SendCredit(Row, words=8):
    """Credit of a sending queue pair, parallel to `qp`: pdes/nic/receiver_credits.py."""

    credit_bytes = word("bytes", "bytes that it may send; a packet may exceed them", rest="same")
    granted_quanta = word("count", "credit that the receiver has granted since the beginning, in quanta")
    speculates = word("flag", "the credit is what it began with, as the receiver has not answered yet", rest="same")
    fresh_ps = word("time", "time from which it begins anew, if it sends nothing before", rest="future")
    awaited_quanta = word("count", "credit that it has asked for and not been granted, in quanta", rest="same")


class ReceiveCredit(Row, words=8):
    """Credit that a receiving queue pair has granted, parallel to `rxqp`: pdes/nic/receiver_credits.py."""

    w1 = word("packed", "packet word 1 of grants, without the size")
    w2 = word("packet_word", "packet word 2 of grants")
    granted_quanta = word("count", "credit that it has granted since the beginning, in quanta")
    owed_quanta = word("count", "credit that its sender asks for beyond that; below 0, granted unasked", rest="same")
    fresh_ps = word("time", "time from which what was granted unasked is forgotten", rest="future")
    listed = word("flags", "lists of the NPU's pacer in which it is: 1 active, 2 idle", rest="same")
    following = word("packed_local", "key of the next in each list, -1 none", many=2, begins=-1)


class Receiver(Row):
    """A receiving queue pair; the table of rows is a hash map by `key` (pdes/core/algorithms.py)."""

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

    payload_bytes = word("bytes", "payload of the message; of a notification, word 2 of the marked packet")
    tag = word("packed", "packet word 3")
    connection = word("queue_pair", "connection that carries it")
    w1 = word("packed", "word 1 of its last packet, where its receiver acts on it later, or of the marked one")
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
