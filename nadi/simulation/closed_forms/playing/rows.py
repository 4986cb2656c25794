"""Rows of the play of a group on an idle fabric."""

from pdes.core.rows.row import Kind, Row, word


class PlayState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.playing.events nadi.simulation.closed_forms.playing.idle_fabric "
    "nadi.simulation.closed_forms.playing.network",
):
    """How far the play of a group is, and what it goes by."""

    events = word(Kind.COUNT, "in the heap")
    made = word(Kind.COUNT, "events so far")
    free_ack = word(Kind.PLACE, "free acknowledgement")
    looked_from = word(Kind.PLACE, "first of the ring of lanes to look at")
    looked_to = word(Kind.PLACE, "behind its last")
    kicked = word(Kind.COUNT, "ports that were kicked")
    window_packets = word(Kind.COUNT, "that a queue pair may have unacknowledged")
    mtu_bytes = word(Kind.BYTES, "payload of a full packet")
    begun = word(Kind.COUNT, "members that have")
    room = word(Kind.COUNT, "most that one event adds to the heap")
    pause_after = word(Kind.COUNT, "packets to be sent before `play` returns")
    seed = word(Kind.PACKED, "of the hash, -1: at message level")


class Clock(
    Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric nadi.simulation.closed_forms.playing.network"
):
    """Times of a play, in parts of a picosecond."""

    now_ps = word(Kind.FLOAT, "ps, of the event in hand")
    end_ps = word(Kind.FLOAT, "ps, of the last step or message that was done")


class Ends(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """What passes at the ends of a message."""

    begin_ps = word(Kind.FLOAT, "ps before the first step of a collective")
    send_ps = word(Kind.FLOAT, "ps before its first packet may be sent")
    act_ps = word(Kind.FLOAT, "ps before its receiver acts on it")
    memory_ps_per_byte = word(Kind.FLOAT, "ps per byte that is added to what is there")
    resolution_ps = word(Kind.FLOAT, "ps, of which times are multiples")
    counts_back = word(Kind.FLOAT, "1: it counts from when its last acknowledgement is back")


class PacketKind(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """A packet on its way: see `Times` of `idle_paths`."""

    first_ps = word(Kind.FLOAT, "ps on the first link")
    head_ps = word(Kind.FLOAT, "ps until the queue's switch may send it")
    last_ps = word(Kind.FLOAT, "ps on the link behind the queue")
    tail_ps = word(Kind.FLOAT, "ps between the links")
    after_ps = word(Kind.FLOAT, "ps behind the queue")
    left_ps = word(Kind.FLOAT, "ps until its sender is done")
    between_ps = word(Kind.FLOAT, "ps on the slowest link between the two")
    seen_ps = word(Kind.FLOAT, "ps there until the next switch may send it")
    meet_ps = word(Kind.FLOAT, "ps on the link where ways to the receiver meet")
    on_head_ps = word(Kind.FLOAT, "ps from there until the queue's switch may send it")
    on_tail_ps = word(Kind.FLOAT, "ps between these links")


class PlayEvent(Row, written_by="nadi.simulation.closed_forms.playing.events"):
    """What happens in a play."""

    order = word(Kind.PACKED, "among those of a moment")
    what = word(Kind.PACKED, "lane, port or queue pair << KIND_BITS | which of what happens")
    kind = word(Kind.CODE, "of packet")
    to = word(Kind.CODE, "step or lane")
