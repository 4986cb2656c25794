"""Rows of runs at closed forms."""

from pdes.core.rows.row import Kind, Row, word


class RunState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.advancing.advance nadi.simulation.closed_forms.advancing.run",
):
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
    compute_slow_1000ths = word(Kind.RATIO, "of its time that compute takes beside a collective, 0: as long as ever")


class NpuClass(
    Row,
    words=32,
    written_by=(
        "build.npus nadi.simulation.closed_forms.advancing.advance nadi.simulation.closed_forms.advancing.run "
        "npu.contention npu.trace"
    ),
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
    running = word(Kind.COUNT, "collectives from their first step to their end, where they slow compute down")
    work_ps = word(Kind.DURATION, "left of the compute lane's row at since_ps, with no collective running: whole ps")
    work_part = word(Kind.RATIO, "and compute_slow_1000ths-ths of a ps")
    since_ps = word(Kind.TIME, "when that was")
    due_ps = word(Kind.TIME, "when the compute lane's row will be done at its present pace")
    next_change = word(Kind.PLACE, "first change of its pace that is still to come")
    changes_end = word(Kind.PLACE, "past the last of them")
    slow_1024ths = word(Kind.RATIO, "of its time that compute takes, 0 as long as it is")


class GroupClass(Row, written_by="nadi.simulation.closed_forms.advancing.folded_program"):
    """Groups that do the same, which one of them stands for."""

    instance_base = word(Kind.PLACE, "first of its collectives")
    needed = word(Kind.COUNT, "members that a collective waits for")
    member_base = word(Kind.PLACE, "first of its members")
    members = word(Kind.COUNT, "of it")
