"""What a run gives back."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class FoldedRows:
    """Whose trace rows stand for others', where results do not hold those of every NPU.

    like is int32[npus], the NPU that does the same at the same times and whose rows are held; group_like int32[groups],
    the group that stands for it: its collectives are those of groups alike.
    """

    like: np.ndarray
    group_like: np.ndarray


@dataclass(frozen=True)
class Results:
    """Outcome of a run. Times are int64 picoseconds since its start; -1 = did not happen or was not recorded.

    `queues` (link, time_ps, bytes) are the most bytes that waited at a port of a shared buffer in each stretch of time
    that begins at time_ps; `marks` (link, time_ps, packets) how many it marked in it (ECN); `pauses` (time_ps, link,
    data_class, paused) when a port was paused or went on: the first.
    `folded` is given where one NPU's trace rows stand for those of others that do the same (closed forms).
    `workers_rss_bytes` is the most memory that processes forked for the run have had, summed.
    `workers` has a row for each worker (a thread or process, which does one or several logical processes): worker,
    rank (of MPI), packet_hops, events, working_s and waiting_s (wall time, together from its begin to its end; waiting
    is for other workers, and of the first of a node also for parcels of other nodes), windows. Empty where it is not
    recorded: whole messages and closed forms.
    """

    finish_time_ps: int
    digest: str
    counters: dict[str, int]
    npu_node_ptr: np.ndarray
    node_start_ps: np.ndarray
    node_finish_ps: np.ndarray
    flows: dict[str, np.ndarray]
    links: dict[str, np.ndarray]
    wall_s: float
    setup_s: float
    compile_s: float
    first_event_s: float
    queues: dict[str, np.ndarray] = field(default_factory=dict)
    marks: dict[str, np.ndarray] = field(default_factory=dict)
    pauses: dict[str, np.ndarray] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    workers_rss_bytes: int = 0
    workers: dict[str, np.ndarray] = field(default_factory=dict)
    folded: FoldedRows | None = None
