"""Rows of runs at closed forms."""

from pdes.kernels import Row, word


class RunState(
    Row,
    words=16,
    written_by="nadi.simulation.closed_forms.advancing.advance nadi.simulation.closed_forms.advancing.run",
):
    """Progress of a run at closed forms."""

    at = word("count", "class whose rows start now, -1 none")
    now_ps = word("time", "time of the current events")
    events = word("count", "events in the heap")
    room = word("count", "entries of the heap")
    most = word("count", "maximum of events that one row creates")
    done = word("count", "rows that are done")
    finish_ps = word("time", "time at which the last of them was done")
    serial = word("flag", "collectives of a group run one at a time")
    late = word("flag", "an event is beyond the engine's largest time")
    compute_slow_1000ths = word(
        "ratio", "time of compute beside a collective relative to compute alone, 0: no slowdown"
    )


class NpuClass(
    Row,
    words=32,
    written_by=(
        "build.tables nadi.simulation.closed_forms.advancing.advance nadi.simulation.closed_forms.advancing.run "
        "npu.contention npu.trace"
    ),
):
    """NPUs that do the same at the same times; one of them represents the class."""

    trace_number = word("code", "number of the distinct trace that they run")
    trace_base = word("place", "first row of that trace in the tables")
    row_base = word("place", "first of its rows")
    slot_base = word("place", "first of its slots")
    send_base = word("place", "first of its sends")
    port_base = word("place", "first of its ports")
    ready_head = word("row", "first row of the list of rows ready to start, -1 none", begins=-1)
    ready_tail = word("row", "last row of that list", begins=-1)
    lane = word("row", "row that a lane works on, -1 idle", many=4, begins=-1)
    wait_head = word("row", "first row of the list of rows that wait for a lane", many=4, begins=-1)
    wait_tail = word("row", "last row of that list", many=4, begins=-1)
    running = word("count", "collectives from their first step to their end, where they slow compute down")
    work_ps = word("duration", "remaining work of the compute lane's row at since_ps, in whole ps without a collective")
    work_part = word("ratio", "remainder of that work, in compute_slow_1000ths-ths of a ps")
    since_ps = word("time", "time of the last update of the remaining work")
    due_ps = word("time", "completion time of the compute lane's row at its present pace")
    next_change = word("place", "next change of its pace")
    changes_end = word("place", "entry past its last change")
    slow_1024ths = word("ratio", "time of compute relative to its nominal time, 0: nominal")


class GroupClass(Row, written_by="nadi.simulation.closed_forms.advancing.folded_program"):
    """Groups that do the same; one of them represents the class."""

    instance_base = word("place", "first of its collectives")
    needed = word("count", "members that a collective waits for")
    member_base = word("place", "first of its members")
    members = word("count", "distinct members of the class")
