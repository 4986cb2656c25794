"""State of the kernel of closed forms (`advance`): rows, collectives and messages of classes of NPUs."""

from typing import Annotated, NamedTuple

import numpy as np

from nadi.simulation.closed_forms.advancing.rows import GroupClass, NpuClass, RunState
from pdes.kernels import Int32, Int64, reader
from pdes.traces import LANES, RowStates, Trace

EVENT_BEGIN, EVENT_LEFT, EVENT_LANE = 0, 1, 2
EVENT_ARRIVED = EVENT_LANE + LANES
EVENT_RUNS = EVENT_ARRIVED + 1
EVENT_TOGETHER = EVENT_RUNS + 1
EVENT_POSTED = EVENT_TOGETHER + 1
"""Kinds of events; events of one moment are handled in this order. A lane's event is EVENT_LANE + lane. EVENT_RUNS: a
collective takes its first step."""


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
    heap: Int64  # int64[2*room], event heap, see pdes.core.heap
    trace: Trace  # the engine's tables of all distinct traces
    rows: RowStates  # trace rows and slots of all classes
    collectives: CollectiveClasses  # classes of groups and their collectives
    sends: ClassSends  # sends of all classes
    changes: PaceChanges  # changes of the pace of computation


state_of = reader(AdvanceState)
