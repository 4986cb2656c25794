"""How an NPU works through its trace: states of rows, lanes, and the kernels of each step."""

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
)
from nadi.pdes.network.routing import slowed
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
