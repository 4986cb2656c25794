"""Rows of runs at closed forms, and of the play of a group on an idle fabric."""

from pdes.core.rows.row import Kind, Row, word


class Progress(Row, words=16, written_by="closed_forms.closed_form closed_forms.closed_form_run"):
    """How far a run at closed forms is."""

    at = word(Kind.COUNT, "class whose rows start now, -1 none")
    now_ps = word(Kind.TIME, "of the events in hand")
    events = word(Kind.COUNT, "in the heap")
    room = word(Kind.COUNT, "of the heap")
    most = word(Kind.COUNT, "events that one row may make")
    done = word(Kind.COUNT, "rows")
    finish_ps = word(Kind.TIME, "when the last of them was done")
    serial = word(Kind.FLAG, "collectives of a group go one after another")
    late = word(Kind.FLAG, "an event is beyond what the engine can count")


class NpuClass(Row, written_by="build.npus closed_forms.closed_form closed_forms.closed_form_run npu.trace"):
    """NPUs that do the same at the same times, which one of them stands for."""

    trace_number = word(Kind.CODE, "which of the distinct traces they run")
    trace_base = word(Kind.PLACE, "first row of that in the tables")
    row_base = word(Kind.PLACE, "first of its rows")
    slot_base = word(Kind.PLACE, "first of its slots")
    send_base = word(Kind.PLACE, "first of its sends")
    port_base = word(Kind.PLACE, "first of its ports")
    ready_head = word(Kind.ROW, "list of those ready to start, -1 none", begins=-1)
    ready_tail = word(Kind.ROW, "its last", begins=-1)
    lane = word(Kind.ROW, "that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word(Kind.ROW, "list of those that wait for a lane", many=4, begins=-1)
    wait_tail = word(Kind.ROW, "its last", many=4, begins=-1)


class GroupClass(Row, written_by="closed_forms.folded_program"):
    """Groups that do the same, which one of them stands for."""

    instance_base = word(Kind.PLACE, "first of its collectives")
    needed = word(Kind.COUNT, "members that a collective waits for")
    member_base = word(Kind.PLACE, "first of its members")
    members = word(Kind.COUNT, "of it")


class PlayState(Row, words=16, written_by="closed_forms.idle_events closed_forms.idle_network"):
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


class Clock(Row, written_by="closed_forms.idle_network"):
    """Times of a play, in parts of a picosecond."""

    now_ps = word(Kind.FLOAT, "ps, of the event in hand")
    end_ps = word(Kind.FLOAT, "ps, of the last step or message that was done")


class Ends(Row):
    """What passes at the ends of a message."""

    begin_ps = word(Kind.FLOAT, "ps before the first step of a collective")
    send_ps = word(Kind.FLOAT, "ps before its first packet may be sent")
    act_ps = word(Kind.FLOAT, "ps before its receiver acts on it")
    memory_ps_per_byte = word(Kind.FLOAT, "ps per byte that is added to what is there")
    resolution_ps = word(Kind.FLOAT, "ps, of which times are multiples")
    counts_back = word(Kind.FLOAT, "1: it counts from when its last acknowledgement is back")


class PacketKind(Row):
    """A packet on its way: see nadi.closed_forms.idle_paths.Times."""

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


class PlayEvent(Row, written_by="closed_forms.idle_events"):
    """What happens in a play."""

    order = word(Kind.PACKED, "among those of a moment")
    what = word(Kind.PACKED, "lane, port or queue pair << KIND_BITS | which of what happens")
    kind = word(Kind.CODE, "of packet")
    to = word(Kind.CODE, "step or lane")
