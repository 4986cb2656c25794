"""Rows of runs at closed forms."""

from pdes.core.rows.row import Kind, Row, word


class RunState(Row, words=16, written_by="nadi.closed_forms.advancing.advance nadi.closed_forms.advancing.run"):
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


class NpuClass(
    Row,
    written_by="build.npus nadi.closed_forms.advancing.advance nadi.closed_forms.advancing.run npu.trace",
):
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


class GroupClass(Row, written_by="nadi.closed_forms.advancing.folded_program"):
    """Groups that do the same, which one of them stands for."""

    instance_base = word(Kind.PLACE, "first of its collectives")
    needed = word(Kind.COUNT, "members that a collective waits for")
    member_base = word(Kind.PLACE, "first of its members")
    members = word(Kind.COUNT, "of it")
