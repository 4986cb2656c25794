"""The results of a run."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class FoldedRows:
    """Representatives of NPUs and groups, for results that do not hold the trace rows of every NPU."""

    like: np.ndarray  # int32[npus], the NPU with the same actions at the same times, whose rows are held
    group_like: np.ndarray  # int32[groups], the group with the same collectives, which are held


@dataclass(frozen=True)
class Results:
    """LpResults of a run. Times are int64 picoseconds since its start; -1 = did not happen or was not recorded.

    `queues` (link, time_ps, bytes) holds the maximum of the bytes that waited at a port of a shared buffer in each
    interval that begins at time_ps; `marks` (link, time_ps, packets) the number of packets that it marked (ECN);
    `pauses` (time_ps, link, data_class, paused) when a port was paused or resumed, up to the limit of the settings.
    `samples` (link, time_ps, tx_bytes, queue_bytes) has the bytes that a link sent, and the maximum of those that
    waited at its port, in each interval of the user with traffic; empty if links are not sampled.
    `limits` (src, dst, group, link, limited_ps) has a row for each connection of the flow model, or kind of coupled
    collectives (src and dst -1), that one link limited for most of the time: limited_ps longer than the rest.
    `workers` has a row for each worker (a thread or process with one or several logical processes): worker, rank (of
    MPI), packet_hops, events, working_s and waiting_s (wall time, which add up to its run time; waiting is for other
    workers, and for the first of a node also for batches of other nodes), windows. It is empty where nothing is
    recorded, at message level and with closed forms.
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
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    marks: dict[str, np.ndarray] = field(default_factory=dict)
    pauses: dict[str, np.ndarray] = field(default_factory=dict)
    limits: dict[str, np.ndarray] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    # episodes_simulated, episodes_replayed, episodes_disturbed: collectives of NVLink domains that were simulated in a
    # world of their own, that were replayed, and that went on as packets, as others met them; episode_hops,
    # replayed_hops: packet-hops of the first two; record_bytes: memory of the records; repeated_periods, repeated_hops:
    # periods of the whole run that were counted, not simulated, and their packet-hops; near_periods, near_ps,
    # near_error_ps: those of them that were taken to be like others, their time together, and by how much it may differ
    reuse: dict[str, int] = field(default_factory=dict)
    resumed_hops: int = 0  # packet-hops that earlier parts of a resumed run simulated, before wall_s began
    workers_rss_bytes: int = 0  # peak memory of processes forked for the run, summed
    workers: dict[str, np.ndarray] = field(default_factory=dict)
    # where the program has several jobs, or names its job: the digest of each, which does not depend on the others, nor
    # on its NPUs; and int64[links, jobs + 1] bytes of each on each link, the last column for bytes of none
    job_digests: tuple[str, ...] = ()
    job_bytes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    # of a run that is not over: the time before which all is simulated, which finish_time_ps is then, too; there are no
    # messages, and rows that have not begun, or are not done, have -1
    snapshot_ps: int | None = None
    folded: FoldedRows | None = None  # closed forms: one NPU's rows represent those of others that do the same

    @property
    def simulated_hops(self) -> int:
        """Return the packet-hops that were simulated one by one."""
        return simulated_hops(self.counters["packet_hops"], self.reuse) - self.resumed_hops


def simulated_hops(packet_hops: int, reuse: dict[str, int]) -> int:
    """Return the packet-hops that were simulated one by one.

    Args:
        packet_hops: Packet-hops of the run.
        reuse: Counts as of Results.reuse.
    """
    reused = reuse.get("replayed_hops", 0) + reuse.get("repeated_hops", 0)
    return packet_hops - reused + reuse.get("episode_hops", 0)
