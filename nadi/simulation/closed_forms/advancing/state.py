"""State of the kernel of closed forms (`advance`): rows, collectives and messages of classes of NPUs."""

from typing import Annotated, NamedTuple

import numpy as np

from nadi.pdes.kernels import Int32, Int64, Row, reader, word
from nadi.pdes.trace_steps import Turns
from nadi.pdes.traces import RowStates, Trace


class RunState(
    Row,
    words=16,
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
    one_at_a_time = word("flag", "NPUs run one row of each kind at a time (pdes/npu/trace.py)")
    slows_compute = word("flag", "computation of some classes is slower beside a collective")


class NpuClass(
    Row,
    words=32,
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
    work_part = word("ratio", "remainder of that work, in slow_1000ths-ths of a ps")
    since_ps = word("time", "time of the last update of the remaining work")
    due_ps = word("time", "completion time of the compute lane's row at its present pace")
    next_change = word("place", "next change of its pace")
    changes_end = word("place", "entry past its last change")
    slow_1024ths = word("ratio", "time of compute relative to its nominal time, 0: nominal")
    slow_1000ths = word("ratio", "time of compute beside a collective relative to compute alone, in 1000ths")


class GroupClass(Row):
    """Groups that do the same; one of them represents the class."""

    instance_base = word("place", "first of its collectives")
    needed = word("count", "members that a collective waits for")
    member_base = word("place", "first of its members")
    members = word("count", "distinct members of the class")


class CollectiveClasses(NamedTuple):
    """Classes of groups and their collectives."""

    slot_group: Int32  # int32[], class of the group of each slot of each class of NPUs
    group: Annotated[np.recarray, GroupClass]  # row of each class of groups
    member: Int32  # int32[], class of NPUs of each member of each class of groups
    member_slot: Int32  # int32[], slot of the group on that member
    came: Int32  # int32[instances], number of members that are ready
    time_ps: Int64  # int64[instances], time of the collective from its closed form in picoseconds
    launch_ps: Int64  # int64[schedules], part of that time before the first step in picoseconds


class PaceChanges(NamedTuple):
    """Changes of the pace of computation, class by class in order of time."""

    at_ps: Int64  # int64[], time at which each change takes effect in picoseconds
    slow_1024ths: Int64  # int64[], time of computation from then on in 1024ths of its nominal time, 0 = nominal


class ClassSends(NamedTuple):
    """Sends of all classes, in the order of their rows."""

    ordinal: Int32  # int32[N], index of each row of Program among the sends of its trace
    message: Int32  # int32[], index in the columns of messages below
    port: Int32  # int32[], port of the class that the send leaves through
    to: Int32  # int32[], class that receives it
    to_row: Int32  # int32[], row of the receive in that class
    # int32[], connection to the receiver that the send shares with other sends at this share, numbered over all
    # classes; -1 = none
    line: Int32
    arrived_ps: Int64  # int64[], arrival time in picoseconds, -1 = not yet
    port_free_ps: Int64  # int64[], time at which each port of each class is free
    line_free_ps: Int64  # int64[], time at which each connection of each class is free
    hold_ps: Int64  # int64[M], time that a message holds its port
    left_ps: Int64  # int64[M], time from its begin until its sender is done
    total_ps: Int64  # int64[M], time from its begin until its receiver has it


class AdvanceState(NamedTuple):
    """State of a run at closed forms."""

    ctl: Annotated[np.record, RunState]  # progress of the run
    classes: Annotated[np.recarray, NpuClass]  # row of each class of NPUs
    turns: Annotated[np.recarray, Turns]  # row of each class of NPUs if they run one row of each kind at a time
    heap: Int64  # int64[2*room], event heap, see pdes.core.algorithms
    trace: Trace  # the engine's tables of all distinct traces
    rows: RowStates  # trace rows and slots of all classes
    collectives: CollectiveClasses  # classes of groups and their collectives
    sends: ClassSends  # sends of all classes
    changes: PaceChanges  # changes of the pace of computation


state_of = reader(AdvanceState)
