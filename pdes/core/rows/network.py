"""Rows of links, switches and what packets carry."""

from nadi.pdes.core.rows.row import Row, word


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
    special = word("flags", "CARE: packets may be lost or carry telemetry; FRAMED, INSIDE, AMPLE (pdes/core/state.py)")


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
    words=32,
):
    """A port of a switch that shares its buffer, and the traffic that enters by its link (docs/explanation/fabric.md).

    For an NPU's port only the pauses are used.
    """

    # A pause has two sides. `paused` is what the other end has asked of this port (it must not send the class); `asked`
    # is what this switch has asked of the other end, since `in_bytes` of the class would exceed its threshold. What
    # arrives until the request takes effect is counted in `held_bytes`, at most `headroom_bytes` (IEEE 802.1Qbb, annex
    # O: two propagation times, and the packets that both ends may just have begun).
    mask = word("flags", "non-empty queues")
    paused = word("flags", "data classes that the other end has paused")
    queued_bytes = word("bytes", "bytes that wait, by data class", many=2)
    longest_bytes = word("bytes", "maximum of the bytes that waited, both classes")
    queues = word("packed_local", "first record | place behind the last << 32", many=5)
    place = word("count", "index in the node's list of ports with packets that wait")
    in_bytes = word("bytes", "shared bytes that came in over the reverse link and have not left, by data class", many=2)
    held_bytes = word("bytes", "likewise, bytes in the headroom", many=2)
    asked = word("flags", "data classes that the other end was asked to pause")
    headroom_bytes = word("bytes", "headroom of each class")
    marked_packets = word("count", "packets sent with a congestion mark")
    pause_frames = word("count", "pause frames sent")
    trimmed_packets = word("count", "packets cut to their headers")
    paused_ps = word("duration", "total time for which a class was paused")
    since_ps = word("time", "begin of the pause, by data class", many=2)
    discipline = word("packed", "the switch discipline's own, as its file defines (pdes/network/disciplines)", many=4)
    trimmed_turn = word("count", "trimmed packets sent since the last data packet, while data waited")


class SwitchBuffer(Row, words=8):
    """The buffer of a switch; by node."""

    used_bytes = word("bytes", "shared bytes in use")
    ports = word("count", "ports with packets that wait")
    asked = word("count", "pauses that are in force")
    shared_bytes = word("bytes", "size of the shared part; 0: no buffer, the switch is one of NVLink")


class PortTies(Row, words=2):
    """Ties at an output port of a switch: packets for it that arrive at one time."""

    last_tie_ps = word("time", "time of the last tie")
    ties = word("count", "ties since the last pause without any (Constants.tie_pause_ps)")


class NodeCounts(Row, words=8):
    """A node's own counts, from which its choices follow as if at random. A tie: packets that arrive at one time."""

    # counts, not times, are hashed: a run that begins later, or an equal node elsewhere, then chooses alike (exact
    # reuse)
    ties = word("count", "ties since the last pause without any (Constants.tie_pause_ps)")
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
    """A change of the schedule of faults (pdes/network/faults.py)."""

    begin_ps = word("time", "begin of the cell at which it takes effect")
    kind = word("code", "CHANGE_LINK, CHANGE_NPU, CHANGE_PAUSE or CHANGE_ROUTES")
    index = word("link", "own outgoing link; own NPU")
    value = word("code", "class of the link; `slow` of the NPU; number of the routing tables")


class PacketRecord(Row):
    """A packet that waits, or is on the wire (pdes/core/packet.py)."""

    # Life of a packet: `send_data` or `send_ack` (pdes/nic) composes words 1 to 3, and `link_send` occupies the port
    # and puts the packet where it waits for its arrival: into the inbox of the node at the link's end, the list of the
    # link if it arrives later than inboxes reach (`wait`), or the outbox for another LP (pdes/network/boundary.py). In
    # the cell of its arrival, `take_batch` hands it to the node: a switch sends it on, at once or from a queue of a
    # port; an NPU passes it on or consumes it. A port without room, or a faulty link, drops it. The four words are
    # copied at each step, never shared, and at the end of a run packets made = consumed + dropped
    # (pdes.outcomes.outcome.check).
    ready_ps = word("time", "time at which the receiving node may act: last byte in, or header if it cuts through")
    w1 = word("packed", "destination, source, bytes on the wire, flags")
    w2 = word("packet_word", "sequence number, sender's queue pair, entropy of its path")
    w3 = word("packed", "message tag")
