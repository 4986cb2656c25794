"""Rows of the play of a group on an idle fabric."""

from pdes.kernels import Row, WordKind, word


class PlayState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.playing.events nadi.simulation.closed_forms.playing.idle_fabric "
    "nadi.simulation.closed_forms.playing.network",
):
    """How far the play of a group is, and what it goes by."""

    events = word(WordKind.COUNT, "in the heap")
    made = word(WordKind.COUNT, "events so far")
    free_ack = word(WordKind.PLACE, "free acknowledgement")
    looked_from = word(WordKind.PLACE, "first of the ring of lanes to look at")
    looked_to = word(WordKind.PLACE, "behind its last")
    kicked = word(WordKind.COUNT, "ports that were kicked")
    window_packets = word(WordKind.COUNT, "that a queue pair may have unacknowledged")
    mtu_bytes = word(WordKind.BYTES, "payload of a full packet")
    begun = word(WordKind.COUNT, "members that have")
    room = word(WordKind.COUNT, "most that one event adds to the heap")
    pause_after = word(WordKind.COUNT, "packets to be sent before `play` returns")
    seed = word(WordKind.PACKED, "of the hash, -1: at message level")


class Clock(
    Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric nadi.simulation.closed_forms.playing.network"
):
    """Times of a play, in parts of a picosecond."""

    now_ps = word(WordKind.FLOAT, "ps, of the event in hand")
    end_ps = word(WordKind.FLOAT, "ps, of the last step or message that was done")


class MessageEnds(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """What passes at the ends of a message."""

    begin_ps = word(WordKind.FLOAT, "ps before the first step of a collective")
    send_ps = word(WordKind.FLOAT, "ps before its first packet may be sent")
    act_ps = word(WordKind.FLOAT, "ps before its receiver acts on it")
    memory_ps_per_byte = word(WordKind.FLOAT, "ps per byte that is added to what is there")
    resolution_ps = word(WordKind.FLOAT, "ps, of which times are multiples")
    counts_back = word(WordKind.FLOAT, "1: it counts from when its last acknowledgement is back")


class PacketKind(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """A packet on its way: see `PathTimes` of `idle_paths`."""

    first_ps = word(WordKind.FLOAT, "ps on the first link")
    head_ps = word(WordKind.FLOAT, "ps until the queue's switch may send it")
    last_ps = word(WordKind.FLOAT, "ps on the link behind the queue")
    tail_ps = word(WordKind.FLOAT, "ps between the links")
    after_ps = word(WordKind.FLOAT, "ps behind the queue")
    left_ps = word(WordKind.FLOAT, "ps until its sender is done")
    between_ps = word(WordKind.FLOAT, "ps on the slowest link between the two")
    seen_ps = word(WordKind.FLOAT, "ps there until the next switch may send it")
    meet_ps = word(WordKind.FLOAT, "ps on the link where ways to the receiver meet")
    on_head_ps = word(WordKind.FLOAT, "ps from there until the queue's switch may send it")
    on_tail_ps = word(WordKind.FLOAT, "ps between these links")


class PlayEvent(Row, written_by="nadi.simulation.closed_forms.playing.events"):
    """What happens in a play."""

    order = word(WordKind.PACKED, "among those of a moment")
    what = word(WordKind.PACKED, "lane, port or queue pair << KIND_BITS | which of what happens")
    kind = word(WordKind.CODE, "of packet")
    to = word(WordKind.CODE, "step or lane")
