"""Turn the worlds at the end of a run into results, or into a report of the rows that wait and for what.

This module has the results of a run, and the samples of links among them.
"""

from dataclasses import dataclass, field

import numpy as np

from nadi.pdes.construction.layout import LogicalProcess
from nadi.pdes.core import Array, Int64, packet
from nadi.pdes.network.telemetry import QUEUED, SENT


@dataclass(frozen=True)
class KeptRows:
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
    kept_rows: KeptRows | None = None  # closed forms: NPUs whose rows stand for those that do the same

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


# Samples of links: from the log and the rows of each logical process to a table by link and interval.

_ENTRY = ("link", "kind", "interval", "amount")  # words of SampleEntry
_LAST = {SENT: ("sent_interval", "sent_bytes"), QUEUED: ("queue_interval", "queue_bytes")}  # words of LinkSample


def samples_of(lp: LogicalProcess) -> Int64:
    """Return int64[k, 4] of an LP: link, begin of the interval (ps), bytes sent and maximum queue; one of both is 0."""
    net = lp.world.net
    if not net.const.sample_ps:
        return np.zeros((0, 4), np.int64)
    lp.take_samples()
    links = len(lp.part.links)
    parts = [np.stack([rows[word] for word in _ENTRY], axis=1) for rows in lp.samples]
    for kind, (interval, amount) in _LAST.items():  # the latest interval of each link, which is not in the log
        own = net.sample[:links]
        parts.append(np.stack([np.arange(links), np.full(links, kind), own[interval], own[amount]], axis=1))
    every = np.concatenate(parts).astype(np.int64)
    every = every[(every[:, 3] > 0) & (every[:, 0] < links)]  # not of the row that loses packets without a route
    link, kind, interval, amount = every.T
    sent, queued = (np.where(kind == wanted, amount, 0) for wanted in (SENT, QUEUED))
    table = np.stack([lp.part.links[link], interval * int(net.const.sample_ps), sent, queued], axis=1)
    return table.astype(np.int64)


def by_interval(samples: Int64) -> dict[str, Array]:
    """Return the table of samples by column, a row per link and interval, from int64[k, 4] of all LPs."""
    samples = samples[np.lexsort((samples[:, 1], samples[:, 0]))]
    link, time_ps, sent, queued = samples.T
    # first row of each (link, interval): an interval that has both kinds of entries becomes one row
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time_ps, prepend=-1) != 0))
    if len(first):
        sent, queued = np.add.reduceat(sent, first), np.maximum.reduceat(queued, first)
    return {"link": link[first], "time_ps": time_ps[first], "tx_bytes": sent, "queue_bytes": queued}


def stretches(watched: Int64, width_ps: int, name: str, merge_values: np.ufunc) -> dict[str, Array]:
    """Return a table with a row for each link and interval in which it was watched.

    Args:
        watched: int64[k, 3] of all LPs: link, begin of the interval in ps, value.
        width_ps: Width of the table's intervals in ps, that of the LP with the longest.
        name: Name of the column of values.
        merge_values: Function that merges the values of shorter intervals of other LPs within one of the table.
    """
    # those that begin at 1, 2 and 3 us are all in that of 0 to 4 us
    link, time, value = watched[:, 0], watched[:, 1] // width_ps * width_ps, watched[:, 2]
    if np.any((np.diff(link) < 0) | (np.diff(link) == 0) & (np.diff(time) < 0)):  # of one LP they are in order
        order = np.lexsort((time, link))
        link, time, value = link[order], time[order], value[order]
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time, prepend=-1) != 0))
    joined = merge_values.reduceat(value, first) if len(first) else value
    return {"link": link[first], "time_ps": time[first], name: joined}


def pauses_of(log: Int64, count: int) -> dict[str, Array]:
    """Return the table of pauses by column, in the order of time.

    Args:
        log: int64[k, 2], the entries of all LPs' `Net.pause_log`.
        count: Number of pauses that the table holds, the first ones.
    """
    log = log[np.lexsort((log[:, 1], log[:, 0]))][:count]
    return {
        "time_ps": log[:, 0],
        "link": packet.logged_link(log[:, 1]),
        "data_class": packet.paused_class(log[:, 1]),
        "paused": packet.asks_to_pause(log[:, 1]).astype(bool),
    }
