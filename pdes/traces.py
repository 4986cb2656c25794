"""How an NPU works through its trace: rows and their states, lanes, ready rows, pace and slow-downs."""

from nadi.pdes.construction.layout import offsets
from nadi.pdes.construction.schedule import slow_changes
from nadi.pdes.construction.tables import (
    begin_traces,
    digests,
    job_tables,
    padded,
    row_states,
    slow_1000ths,
    trace_tables,
)
from nadi.pdes.core.packet import job_of, rank_of
from nadi.pdes.core.rows.npu import Turns
from nadi.pdes.core.state import (
    COMPUTE_LANE,
    LANES,
    ROW_ARRIVED,
    ROW_DONE,
    ROW_POSTED,
    ROW_READY,
    ROW_STARTED,
    SLOWDOWN_UNIT,
    RowStates,
    Trace,
)
from nadi.pdes.network.faults import slowed
from nadi.pdes.npu.contention import begin_work, change_pace
from nadi.pdes.npu.trace import (
    KIND_COLLECTIVE,
    KIND_COMPUTE,
    KIND_MEMORY,
    KIND_RECV,
    KIND_SEND,
    begin_turns,
    end_turn,
    leave_lane,
    next_for_lane,
    next_ready,
    notify_children,
    takes_turn,
    wait_for_lane,
)
