"""Rows of links, switches and what packets carry."""

from pdes.core.rows.row import Row, WordKind, word


class OutgoingLink(Row, written_by="build.part build.schedule messages.fidelity.* network.faults network.link"):
    """Sending side of a link, node by node; then links that come from other LPs, with `meta` only.

    pdes/core/link_words.py packs and unpacks what stands together.
    """

    busy_ps = word(WordKind.TIME, "the port sends until then")
    meta = word(
        WordKind.PACKED,
        "receiving node | the link's number in the whole fabric << 22 | its class << 46; a node from the "
        "number of nodes on is the LP's neighbour of that number less the nodes",
    )
    sent_bytes = word(WordKind.PACKED, "on the wire | upper 16 bits of the longest wait << BYTES_BITS")
    sent_packets = word(
        WordKind.PACKED, "how many | lower 28 bits of the longest wait of a packet (ps) << PACKETS_BITS"
    )


class LinkClass(Row, written_by="build.fabric build.schedule"):
    """What many links have in common."""

    ps_per_byte = word(WordKind.FLOAT, "ps per byte")
    delay_ps = word(WordKind.DURATION, "on the wire")
    seen_bytes = word(WordKind.BYTES, "that the receiving node waits for before it forwards")
    error = word(WordKind.RATIO, "a packet is lost if a 32-bit hash is below")
    kmin_bytes = word(WordKind.BYTES, "in the queue of the sending port: more are marked with some probability")
    kmax_bytes = word(WordKind.BYTES, "in the queue: as many or more are always marked")
    pmax = word(WordKind.RATIO, "of 2^32: probability of a mark just below kmax_bytes")
    special = word(WordKind.FLAGS, "CARE: packets may be lost, or carry what they meet; FRAMED: flits; INSIDE: NVLink")


class Forwarding(Row, written_by="build.routes network.faults"):
    """How a node forwards: one cache line."""

    row = word(WordKind.PLACE, "table mode: where column 0 of the node's row would stand in `cell`")
    first = word(WordKind.COUNT, "columns from `first` to before `last` have their own cells")
    last = word(WordKind.COUNT, "the column behind them")
    default = word(WordKind.PACKED, "cell of the other columns")
    salt = word(WordKind.PACKED, "32-bit hash of (seed, node)")
    column = word(WordKind.COUNT, "home column of a switch, -1 none")
    first_link = word(WordKind.LINK, "its first")
    forward = word(WordKind.PACKED, "ps from arrival to departure << 1 | 1 where the node cuts through")


class Gate(Row, words=32, written_by="build.buffers network.pause network.port_queues network.shared_switch"):
    """A port of a switch with a shared buffer, and what its link admits; of NPUs only pauses (see docs/explanation)."""

    mask = word(WordKind.FLAGS, "of the queues where something waits")
    paused = word(WordKind.FLAGS, "of data classes that the other end has paused")
    queued_bytes = word(WordKind.BYTES, "that wait, by data class", many=2)
    longest_bytes = word(WordKind.BYTES, "most that waited, both classes")
    queues = word(WordKind.PACKED, "first record | place behind the last << 32", many=5)
    place = word(WordKind.COUNT, "in the node's list of ports where something waits")
    in_bytes = word(
        WordKind.BYTES, "shared, that came in over the reverse link and have not left, by data class", many=2
    )
    held_bytes = word(WordKind.BYTES, "likewise, in the headroom", many=2)
    asked = word(WordKind.FLAGS, "of data classes that the other end was asked to pause")
    headroom_bytes = word(WordKind.BYTES, "for each class")
    marked_packets = word(WordKind.COUNT, "sent with a congestion mark")
    pause_frames = word(WordKind.COUNT, "sent")
    trimmed_packets = word(WordKind.COUNT, "cut to their headers")
    paused_ps = word(WordKind.DURATION, "for which a class was paused, in all")
    since_ps = word(WordKind.TIME, "since when, by data class", many=2)
    turn = word(WordKind.PACKED, "weighted round robin: class whose turn it is | packets left of its turn << 1")
    trimmed_turn = word(WordKind.COUNT, "trimmed packets sent since the last data packet that waited, while one did")


class SwitchBuffer(Row, words=8, written_by="build.buffers network.port_queues network.shared_switch"):
    """A switch that shares its buffer; by node."""

    used_bytes = word(WordKind.BYTES, "shared bytes in use")
    ports = word(WordKind.COUNT, "where something waits")
    asked = word(WordKind.COUNT, "pauses asked for and not taken back")
    shared_bytes = word(WordKind.BYTES, "to share")


class Telemetry(Row, words=16, written_by="network.shared_switch network.telemetry nic.allowed"):
    """What a data packet has met on its way, beside its record; `carried`: of the packet in hand."""

    hops = word(WordKind.COUNT, "how many have written")
    met = word(
        WordKind.PACKED,
        "two words a hop: ps when the packet left the queue | class of the link << TELEMETRY_CLASS_SHIFT; "
        "bytes that the port had sent, 34 bits | bytes left in its queue << TELEMETRY_QUEUE_SHIFT",
        many=14,
    )


class Change(Row, written_by="build.schedule"):
    """A change of the schedule of faults (pdes/network/faults.py)."""

    begin_ps = word(WordKind.TIME, "begin of a cell")
    kind = word(WordKind.CODE, "CHANGE_LINK, CHANGE_NPU or CHANGE_ROUTES")
    index = word(WordKind.LINK, "own outgoing link; own NPU")
    value = word(WordKind.CODE, "its class; its `slow`; which routing tables")


class PacketRecord(Row, written_by="core.fifo"):
    """A packet that waits, or is on the wire (pdes/core/packet.py)."""

    ready_ps = word(
        WordKind.TIME, "when the receiving node may act: its last byte is in, or its header if it cuts through"
    )
    w1 = word(WordKind.PACKED, "destination, source, bytes on the wire, flags")
    w2 = word(WordKind.PACKED, "sequence number, sender's queue pair, entropy of its path")
    w3 = word(WordKind.PACKED, "message tag")
