"""Rows of the play of one group on an idle fabric."""

from pdes.kernels import Row, word


class PlayState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.playing.events nadi.simulation.closed_forms.playing.idle_fabric "
    "nadi.simulation.closed_forms.playing.network",
):
    """Progress and parameters of the play of one group."""

    events = word("count", "events in the heap")
    made = word("count", "events created so far")
    free_ack = word("place", "first free entry for an acknowledgement")
    looked_from = word("place", "first entry of the ring of lanes to advance")
    looked_to = word("place", "entry behind the ring's last")
    kicked = word("count", "ports in the list of kicked ports")
    window_packets = word("count", "maximum of unacknowledged packets of a queue pair")
    mtu_bytes = word("bytes", "payload of a full packet")
    begun = word("count", "members that have begun")
    room = word("count", "maximum of events that one event adds to the heap")
    pause_after = word("count", "packets to send before `play` returns")
    seed = word("packed", "seed of the hash, -1: message level")


class Clock(
    Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric nadi.simulation.closed_forms.playing.network"
):
    """Times of a play, in fractions of a picosecond."""

    now_ps = word("float", "ps, time of the current event")
    end_ps = word("float", "ps, time of the last completed step or message")


class MessageEnds(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """Delays at the ends of a message."""

    begin_ps = word("float", "ps before the first step of a collective")
    send_ps = word("float", "ps before the message's first packet may be sent")
    act_ps = word("float", "ps before the receiver acts on the message")
    memory_ps_per_byte = word("float", "ps per byte of each memory access of a reduction")
    resolution_ps = word("float", "ps, resolution of reduction times")
    counts_back = word("float", "1: a message counts when its last acknowledgement is back")


class PacketKind(Row, written_by="nadi.simulation.closed_forms.playing.idle_fabric"):
    """Times of a packet on its path: see `PathTimes` of `idle_paths`."""

    first_ps = word("float", "ps on the first link")
    head_ps = word("float", "ps until the queue's switch may send it")
    last_ps = word("float", "ps on the link behind the queue")
    tail_ps = word("float", "ps between the links")
    after_ps = word("float", "ps behind the queue")
    left_ps = word("float", "ps until its sender is done")
    between_ps = word("float", "ps on the slowest link between the two ports")
    seen_ps = word("float", "ps on that link until the next switch may send it")
    meet_ps = word("float", "ps on the link where paths to the receiver meet")
    on_head_ps = word("float", "ps from there until the queue's switch may send it")
    on_tail_ps = word("float", "ps between these links")


class PlayEvent(Row, written_by="nadi.simulation.closed_forms.playing.events"):
    """An event of a play."""

    order = word("packed", "order among the events of one moment")
    what = word("packed", "lane, port or queue pair << KIND_BITS | kind of event")
    kind = word("code", "kind of packet")
    to = word("code", "step or lane of the event")
