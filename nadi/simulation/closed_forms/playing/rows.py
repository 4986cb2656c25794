"""Rows of the play of one group on an idle fabric."""

from pdes.kernels import Row, WordKind, word


class PlayState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.playing.events nadi.simulation.closed_forms.playing.idle_fabric "
    "nadi.simulation.closed_forms.playing.network",
):
    """Progress and parameters of the play of one group."""

    events = word(WordKind.COUNT, "events in the heap")
    made = word(WordKind.COUNT, "events created so far")
    free_ack = word(WordKind.PLACE, "first free entry for an acknowledgement")
    looked_from = word(WordKind.PLACE, "first entry of the ring of lanes to advance")
    looked_to = word(WordKind.PLACE, "entry behind the ring's last")
    kicked = word(WordKind.COUNT, "ports in the list of kicked ports")
    window_packets = word(WordKind.COUNT, "maximum of unacknowledged packets of a queue pair")
    mtu_bytes = word(WordKind.BYTES, "payload of a full packet")
    begun = word(WordKind.COUNT, "members that have begun")
    room = word(WordKind.COUNT, "maximum of events that one event adds to the heap")
    pause_after = word(WordKind.COUNT, "packets to send before `play` returns")
    seed = word(WordKind.PACKED, "seed of the hash, -1: message level")


class Clock(
    Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric nadi.simulation.closed_forms.playing.network"
):
    """Times of a play, in fractions of a picosecond."""

    now_ps = word(WordKind.FLOAT, "ps, time of the current event")
    end_ps = word(WordKind.FLOAT, "ps, time of the last completed step or message")


class MessageEnds(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """Delays at the ends of a message."""

    begin_ps = word(WordKind.FLOAT, "ps before the first step of a collective")
    send_ps = word(WordKind.FLOAT, "ps before the message's first packet may be sent")
    act_ps = word(WordKind.FLOAT, "ps before the receiver acts on the message")
    memory_ps_per_byte = word(WordKind.FLOAT, "ps per byte of each memory access of a reduction")
    resolution_ps = word(WordKind.FLOAT, "ps, resolution of reduction times")
    counts_back = word(WordKind.FLOAT, "1: a message counts when its last acknowledgement is back")


class PacketKind(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """Times of a packet on its path: see `PathTimes` of `idle_paths`."""

    first_ps = word(WordKind.FLOAT, "ps on the first link")
    head_ps = word(WordKind.FLOAT, "ps until the queue's switch may send it")
    last_ps = word(WordKind.FLOAT, "ps on the link behind the queue")
    tail_ps = word(WordKind.FLOAT, "ps between the links")
    after_ps = word(WordKind.FLOAT, "ps behind the queue")
    left_ps = word(WordKind.FLOAT, "ps until its sender is done")
    between_ps = word(WordKind.FLOAT, "ps on the slowest link between the two ports")
    seen_ps = word(WordKind.FLOAT, "ps on that link until the next switch may send it")
    meet_ps = word(WordKind.FLOAT, "ps on the link where paths to the receiver meet")
    on_head_ps = word(WordKind.FLOAT, "ps from there until the queue's switch may send it")
    on_tail_ps = word(WordKind.FLOAT, "ps between these links")


class PlayEvent(Row, written_by="nadi.simulation.closed_forms.playing.events"):
    """An event of a play."""

    order = word(WordKind.PACKED, "order among the events of one moment")
    what = word(WordKind.PACKED, "lane, port or queue pair << KIND_BITS | kind of event")
    kind = word(WordKind.CODE, "kind of packet")
    to = word(WordKind.CODE, "step or lane of the event")
