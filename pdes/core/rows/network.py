"""Rows of links, switches and what packets carry."""

from pdes.core.rows.row import Row, WordKind, word


class OutgoingLink(Row, written_by="build.part build.schedule messages.fidelity.* network.faults network.link"):
    """The sending side of a link, node by node; then links that come from other LPs, with `meta` only.

    pdes/core/link_words.py packs and unpacks the words with several fields.
    """

    busy_ps = word(WordKind.TIME, "end of the port's current transmission")
    meta = word(
        WordKind.PACKED,
        "receiving node | the link's number in the whole fabric << 22 | its class << 46; a node from the "
        "number of nodes on is the LP's neighbour of that number less the nodes",
    )
    sent_bytes = word(WordKind.PACKED, "bytes sent on the wire | upper 16 bits of the longest wait << BYTES_BITS")
    sent_packets = word(
        WordKind.PACKED, "packets sent | lower 28 bits of the longest wait of a packet (ps) << PACKETS_BITS"
    )


class LinkClass(Row, written_by="build.fabric build.schedule"):
    """Properties that many links have in common."""

    ps_per_byte = word(WordKind.FLOAT, "ps per byte of the link's rate")
    delay_ps = word(WordKind.DURATION, "propagation time")
    seen_bytes = word(WordKind.BYTES, "bytes that the receiving node waits for before it forwards")
    error = word(WordKind.RATIO, "loss probability in units of 2^-32: a packet is lost if a 32-bit hash is below")
    kmin_bytes = word(WordKind.BYTES, "queue of the sending port above which packets are marked with some probability")
    kmax_bytes = word(WordKind.BYTES, "queue from which every packet is marked")
    pmax = word(WordKind.RATIO, "probability of a mark just below kmax_bytes, in units of 2^-32")
    special = word(WordKind.FLAGS, "CARE: packets may be lost, or carry telemetry; FRAMED: flits; INSIDE: NVLink")


class Forwarding(Row, written_by="build.routes network.faults"):
    """Forwarding state of a node: one cache line."""

    row = word(WordKind.PLACE, "table mode: (virtual) place of column 0 of the node's row in `cell`")
    first = word(WordKind.COUNT, "first column with a cell of its own")
    last = word(WordKind.COUNT, "column behind the last that has a cell of its own")
    default = word(WordKind.PACKED, "cell of the other columns")
    salt = word(WordKind.PACKED, "32-bit hash of (seed, node)")
    column = word(WordKind.COUNT, "home column of a switch, -1 none")
    first_link = word(WordKind.LINK, "first outgoing link of the node")
    forward = word(WordKind.PACKED, "ps from arrival to departure << 1 | 1 if the node cuts through")


class Gate(
    Row,
    words=32,
    written_by="build.buffers network.disciplines.* network.pause network.port_queues network.shared_switch",
):
    """A port of a switch that shares its buffer, and the traffic that enters by its link (docs/explanation/fabric.md).

    For an NPU's port only the pauses are used.
    """

    mask = word(WordKind.FLAGS, "non-empty queues")
    paused = word(WordKind.FLAGS, "data classes that the other end has paused")
    queued_bytes = word(WordKind.BYTES, "bytes that wait, by data class", many=2)
    longest_bytes = word(WordKind.BYTES, "maximum of the bytes that waited, both classes")
    queues = word(WordKind.PACKED, "first record | place behind the last << 32", many=5)
    place = word(WordKind.COUNT, "index in the node's list of ports with packets that wait")
    in_bytes = word(
        WordKind.BYTES, "shared bytes that came in over the reverse link and have not left, by data class", many=2
    )
    held_bytes = word(WordKind.BYTES, "likewise, bytes in the headroom", many=2)
    asked = word(WordKind.FLAGS, "data classes that the other end was asked to pause")
    headroom_bytes = word(WordKind.BYTES, "headroom of each class")
    marked_packets = word(WordKind.COUNT, "packets sent with a congestion mark")
    pause_frames = word(WordKind.COUNT, "pause frames sent")
    trimmed_packets = word(WordKind.COUNT, "packets cut to their headers")
    paused_ps = word(WordKind.DURATION, "total time for which a class was paused")
    since_ps = word(WordKind.TIME, "begin of the pause, by data class", many=2)
    discipline = word(WordKind.PACKED, "the switch discipline's own, as its file defines (pdes/network/disciplines)", many=4)
    trimmed_turn = word(WordKind.COUNT, "trimmed packets sent since the last data packet, while data waited")


class SwitchBuffer(Row, words=8, written_by="build.buffers network.port_queues network.shared_switch"):
    """A switch that shares its buffer; by node."""

    used_bytes = word(WordKind.BYTES, "shared bytes in use")
    ports = word(WordKind.COUNT, "ports with packets that wait")
    asked = word(WordKind.COUNT, "pauses that are in force")
    shared_bytes = word(WordKind.BYTES, "size of the shared part of the buffer")


class Telemetry(Row, words=16, written_by="network.shared_switch network.telemetry nic.allowed"):
    """Telemetry of a data packet from its links, parallel to its record; `carried` holds that of the packet in hand."""

    hops = word(WordKind.COUNT, "number of hops that have written")
    met = word(
        WordKind.PACKED,
        "two words a hop: ps when the packet left the queue | class of the link << TELEMETRY_CLASS_SHIFT; "
        "bytes that the port had sent, 34 bits | bytes left in its queue << TELEMETRY_QUEUE_SHIFT",
        many=14,
    )


class Change(Row, written_by="build.schedule"):
    """A change of the schedule of faults (pdes/network/faults.py)."""

    begin_ps = word(WordKind.TIME, "begin of the cell at which it takes effect")
    kind = word(WordKind.CODE, "CHANGE_LINK, CHANGE_NPU or CHANGE_ROUTES")
    index = word(WordKind.LINK, "own outgoing link; own NPU")
    value = word(WordKind.CODE, "class of the link; `slow` of the NPU; number of the routing tables")


class PacketRecord(Row, written_by="core.fifo"):
    """A packet that waits, or is on the wire (pdes/core/packet.py)."""

    ready_ps = word(
        WordKind.TIME, "time at which the receiving node may act: last byte in, or header if it cuts through"
    )
    w1 = word(WordKind.PACKED, "destination, source, bytes on the wire, flags")
    w2 = word(WordKind.PACKED, "sequence number, sender's queue pair, entropy of its path")
    w3 = word(WordKind.PACKED, "message tag")
