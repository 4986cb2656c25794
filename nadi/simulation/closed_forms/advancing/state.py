"""What the kernel of closed forms works on (`advance`): rows, collectives and messages of classes of NPUs."""

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
"""At one moment in this order; EVENT_LANE + lane for each lane. RUNS: a collective takes its first step."""


class CollectiveClasses(NamedTuple):
    """Classes of groups and what they do.

    Attributes:
        slot_group: int32[], class of the group, of each slot of each class.
        group: a row for each class.
        member: int32[], a class, for each member of each class of groups,
        member_slot: int32[], and its slot there.
        came: int32[instances], members that are ready.
        time_ps: int64[instances], closed form.
        launch_ps: int64[schedules], of that, before the first step.
    """

    slot_group: Int32
    group: Annotated[np.recarray, GroupClass]
    member: Int32
    member_slot: Int32
    came: Int32
    time_ps: Int64
    launch_ps: Int64


class PaceChanges(NamedTuple):
    """Changes of how long computation takes, class by class in order of time.

    Attributes:
        at_ps: int64[], when each takes effect.
        slow_1024ths: int64[], of its time that computation takes from then on, 0 as long as it is.
    """

    at_ps: Int64
    slow_1024ths: Int64


class ClassSends(NamedTuple):
    """Sends of all classes, in the order of their rows.

    Attributes:
        ordinal: int32[N], how-manieth send of its trace a row of Program is.
        message: int32[], row of the columns below.
        port: int32[], of the class, that it leaves by.
        to: int32[], class that receives it,
        to_row: int32[], and its row there.
        line: int32[], of all classes, the connection to its receiver that it shares with others like it; -1 = none.
        arrived_ps: int64[], -1 = not yet.
        port_free_ps: int64[], of all ports of all classes.
        line_free_ps: int64[], of all lines of all classes.
        hold_ps: int64[M], for which a message holds its port,
        left_ps: int64[M], from when it begins until its sender is done,
        total_ps: int64[M], and until its receiver has it.
    """

    ordinal: Int32
    message: Int32
    port: Int32
    to: Int32
    to_row: Int32
    line: Int32
    arrived_ps: Int64
    port_free_ps: Int64
    line_free_ps: Int64
    hold_ps: Int64
    left_ps: Int64
    total_ps: Int64


class AdvanceState(NamedTuple):
    """All of it.

    Attributes:
        ctl: how far it is.
        classes: a row for each class of NPUs.
        heap: int64[2*room], see pdes.core.heap.
        trace: the engine's tables of all distinct traces.
        rows: trace rows of all classes, and slots.
        collectives, sends, changes: see there.
    """

    ctl: Annotated[np.record, RunState]
    classes: Annotated[np.recarray, NpuClass]
    heap: Int64
    trace: Trace
    rows: RowStates
    collectives: CollectiveClasses
    sends: ClassSends
    changes: PaceChanges


work_of = reader(AdvanceState)
