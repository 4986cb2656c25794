"""Rows of runs at closed forms."""

from pdes.kernels import Row, WordKind, word


class RunState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.advancing.advance nadi.simulation.closed_forms.advancing.run",
):
    """How far a run at closed forms is."""

    at = word(WordKind.COUNT, "class whose rows start now, -1 none")
    now_ps = word(WordKind.TIME, "of the events in hand")
    events = word(WordKind.COUNT, "in the heap")
    room = word(WordKind.COUNT, "of the heap")
    most = word(WordKind.COUNT, "events that one row may make")
    done = word(WordKind.COUNT, "rows")
    finish_ps = word(WordKind.TIME, "when the last of them was done")
    serial = word(WordKind.FLAG, "collectives of a group go one after another")
    late = word(WordKind.FLAG, "an event is beyond what the engine can count")
    compute_slow_1000ths = word(
        WordKind.RATIO, "of its time that compute takes beside a collective, 0: as long as ever"
    )


class NpuClass(
    Row,
    words=32,
    written_by=(
        "build.npus nadi.simulation.closed_forms.advancing.advance nadi.simulation.closed_forms.advancing.run "
        "npu.contention npu.trace"
    ),
):
    """NPUs that do the same at the same times, which one of them stands for."""

    trace_number = word(WordKind.CODE, "which of the distinct traces they run")
    trace_base = word(WordKind.PLACE, "first row of that in the tables")
    row_base = word(WordKind.PLACE, "first of its rows")
    slot_base = word(WordKind.PLACE, "first of its slots")
    send_base = word(WordKind.PLACE, "first of its sends")
    port_base = word(WordKind.PLACE, "first of its ports")
    ready_head = word(WordKind.ROW, "list of those ready to start, -1 none", begins=-1)
    ready_tail = word(WordKind.ROW, "its last", begins=-1)
    lane = word(WordKind.ROW, "that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word(WordKind.ROW, "list of those that wait for a lane", many=4, begins=-1)
    wait_tail = word(WordKind.ROW, "its last", many=4, begins=-1)
    running = word(WordKind.COUNT, "collectives from their first step to their end, where they slow compute down")
    work_ps = word(
        WordKind.DURATION, "left of the compute lane's row at since_ps, with no collective running: whole ps"
    )
    work_part = word(WordKind.RATIO, "and compute_slow_1000ths-ths of a ps")
    since_ps = word(WordKind.TIME, "when that was")
    due_ps = word(WordKind.TIME, "when the compute lane's row will be done at its present pace")
    next_change = word(WordKind.PLACE, "first change of its pace that is still to come")
    changes_end = word(WordKind.PLACE, "past the last of them")
    slow_1024ths = word(WordKind.RATIO, "of its time that compute takes, 0 as long as it is")


class GroupClass(Row, written_by="nadi.simulation.closed_forms.advancing.folded_program"):
    """Groups that do the same, which one of them stands for."""

    instance_base = word(WordKind.PLACE, "first of its collectives")
    needed = word(WordKind.COUNT, "members that a collective waits for")
    member_base = word(WordKind.PLACE, "first of its members")
    members = word(WordKind.COUNT, "of it")
