"""Work of a run in each window by LP, and its projected time on many ranks, measured on one core.

`record_windows` runs all LPs on one worker and notes packet-hops and crossings of each LP in each window. `replay` runs
one LP alone on its recorded input, as its rank would. A `WindowCost` fitted to replays predicts the time of each LP in
each window, and `projected_s` that of ranks that meet after each window: the sum over windows of the slowest rank.
"""

import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.studies.benchmarks.instruments.others import LONE, Others, play_others
from pdes import Layout, Results, RunError, Settings, Simulation
from pdes.arrays import Array, Float64, Graph, Int32, Int64, Program
from pdes.instruments import (
    DONE,
    FAILED,
    FULL,
    HEADER_WORDS,
    WORD_BYTES,
    LogicalProcess,
    Outboxes,
    Part,
    build_lps,
    check,
    compile_kernels,
    failed_queue_pair,
    harvest,
    has_shares,
    make_room,
    no_parcels,
    results,
    share,
    with_driven,
)
from pdes.instruments import team as tm
from pdes.kernels import Directory, compile_for

Progressed = Callable[[int], None]
CALLS = 1001  # number of empty calls or windows from which the constant overheads are measured
FOREVER = 1 << 62  # limit of windows and times that no run reaches


@dataclass(frozen=True, eq=False)
class Recording:
    """Windows of a run by LP.

    Attributes:
        hops: int32[windows, lps], packet-hops.
        sent: int32[windows, lps], packets that the LP sent to other LPs.
        taken: int32[windows, lps], packets that the LP received from other LPs.
        begin_ps: int64[windows], simulated time in ps at which the window begins.
        spent_ns: int64[windows], wall time in ns of all LPs on one core, without the kernel's call overhead.
        pairs: int64[m, 2], ordered pairs of LPs with links from the first to the second.
        crossed: int64[m], packets from the first to the second LP, over all windows.
        results: Results of the run; None if it was stopped early.
        came: Input of each LP to be replayed, per window: (words, offsets of each neighbour's packets in them).
    """

    hops: np.ndarray
    sent: np.ndarray
    taken: np.ndarray
    begin_ps: np.ndarray
    spent_ns: np.ndarray
    pairs: np.ndarray
    crossed: np.ndarray
    results: Results | None = None
    came: dict[int, list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)

    @property
    def windows(self) -> int:
        """Number of windows."""
        return self.hops.shape[0]

    @property
    def lps(self) -> int:
        """Number of LPs."""
        return self.hops.shape[1]

    @property
    def wall_s(self) -> float:
        """Wall time in the kernel in seconds."""
        return float(self.spent_ns.sum()) * 1e-9


def record_windows(
    sim: Simulation, most_windows: int | None = None, keep: Sequence[int] = (), progress: Progressed | None = None
) -> Recording:
    """Run a Simulation that holds all LPs on one worker and record each window.

    Args:
        sim: Simulation that has not started.
        most_windows: Maximum number of windows, after which the run stops without results; None = run to the end.
        keep: LPs whose input is recorded for `replay`.
        progress: Function to call with the number of windows after every window.

    Raises RunError if the run failed, see pdes.run.
    """
    compile_s = compile_kernels(sim.graph, sim.settings)
    lps = len(sim.lps)
    team, crew, meeting = _team_of(sim.lps)
    call_ns = _call_ns()
    outboxes = _OutboxReader(sim.lps)
    hops: list[Int32] = []
    sent = [outboxes.none()]
    begin_ps: list[int] = []
    spent_ns: list[int] = []
    came: dict[int, list[tuple[Int64, Int64]]] = {number: [] for number in keep}
    status = tm.PAUSED
    while status != DONE and (most_windows is None or len(hops) < most_windows):
        number = int(team.workers[0].window)
        for lp, inputs in came.items():
            inputs.append(outboxes.to(lp, 1 - (number & 1), sent[-1]))
        begin_ps.append(int(team.workers[0].begin_ps))
        status, kernel_ns = _run_window(sim.lps, team, meeting)
        spent_ns.append(max(0, kernel_ns - call_ns))
        hops.append(crew.costs.astype(np.int32))
        sent.append(outboxes.counts(number & 1))
        if progress is not None:
            progress(len(hops))
    counts = np.array(sent, np.int32)
    recording = Recording(
        hops=np.array(hops, np.int32),
        sent=_sums(counts[1:], outboxes.pairs[:, 0], lps),
        taken=_sums(counts[:-1], outboxes.pairs[:, 1], lps),
        begin_ps=np.array(begin_ps, np.int64),
        spent_ns=np.array(spent_ns, np.int64),
        pairs=outboxes.pairs,
        crossed=counts.sum(axis=0, dtype=np.int64),
        came=came,
    )
    if status != DONE:
        return recording
    harvested = harvest(sim)
    check(harvested)
    seconds = {"wall_s": recording.wall_s, "setup_s": sim.setup_s, "compile_s": compile_s, "first_event_s": 0.0}
    return replace(recording, results=results(harvested, harvested, sim.graph, sim.settings, **seconds))


class ReplayTimes(NamedTuple):
    """Wall times of an LP alone, without the time of meeting others."""

    spent_ns: np.ndarray  # int64[windows], wall time of each window in ns
    sent_ns: np.ndarray  # int64[windows], wall time in ns until all packets to other cluster nodes were sent


def replay(
    graph: Graph,
    program: Program,
    settings: Settings,
    owner: ArrayLike,
    recording: Recording,
    number: int,
    away: Collection[int] = (),
) -> ReplayTimes:
    """Run one LP alone on the input that was recorded for it.

    Another core plays the other LPs (module `others`), so that the caches of this core only serve the LP's own work.

    Args:
        graph: Fabric of the recording.
        program: Program of the recording.
        settings: Settings of the recording.
        owner: int[nodes], LP of each node in the recording.
        recording: Recording with the input of this LP.
        number: Number of the LP.
        away: LPs on other nodes of a cluster.

    Raises RunError if the LP did different work than in the recording (a defect).
    """
    settings = with_driven(settings, driven=has_shares(program, settings))
    layout = Layout(graph, settings, owner)
    part = layout.part(number)
    if away:
        part.send_first(graph, away)
    post = _ReplayOutbox(part)  # owns memory that the LP uses
    (lp,) = build_lps(layout, program, settings, [part], post).lps
    windows, came = recording.windows, recording.came[number]
    others = _others(windows, [words.ctypes.data + WORD_BYTES * offsets for words, offsets in came], recording.begin_ps)
    start_ns, outside_ns = _run_windows([lp], others)
    differing = np.flatnonzero(others.hops != recording.hops[:, number])
    if len(differing):
        raise RunError(
            f"engine defect: LP {number} did {others.hops[differing[0]]} packet-hops in window {differing[0]} of its "
            f"replay, {recording.hops[differing[0], number]} when it was recorded"
        )
    others.published_ns[0] = start_ns
    spent_ns = np.maximum(others.arrived_ns - others.published_ns - outside_ns - _empty_window_ns(), 0)
    sent_ns = others.packed_ns - others.published_ns - outside_ns - _empty_window_ns()
    return ReplayTimes(spent_ns, np.clip(sent_ns, 0, spent_ns))


def _others(windows: int, inputs: Sequence[Int64], begin_ps: Int64) -> Others:
    """Return the stand-in of all other LPs."""
    words = np.concatenate([*inputs, np.zeros(0, np.int64)]).astype(np.int64)
    return Others(words, begin_ps, *np.zeros((4, windows), np.int64))


def _run_windows(lps: Sequence[LogicalProcess], others: Others) -> tuple[int, Int64]:
    """Run the windows of at most one LP on this core while another core plays the other LPs.

    Returns:
        Clock at the start, and int64[windows]: time in ns of each window outside the kernel.
    """
    team, _, meeting = _team_of(lps, first=LONE)
    directory = Directory(others)
    lp_address = lps[0].address if lps else 0
    compile_for(play_others, meeting.address, lp_address, directory.address)
    outside_ns = np.zeros(len(others.begin_ps), np.int64)
    thread = threading.Thread(target=play_others, args=(meeting.address, lp_address, directory.address))
    thread.start()
    start_ns = time.perf_counter_ns()
    try:
        while (status := tm.work(meeting.address, LONE, FOREVER, FOREVER)) != DONE:
            exit_ns = time.perf_counter_ns()
            own = team.workers[-1]
            if status == FAILED:
                raise RunError(failed_queue_pair(lps[own.lp]))
            if status == FULL:
                make_room(lps[own.lp])
            outside_ns[own.window] += time.perf_counter_ns() - exit_ns
    finally:
        team.state.abort = 1
        thread.join()
    return start_ns, outside_ns


@functools.cache
def _empty_window_ns() -> int:
    """Return the time in ns of a window without work: the cost of meeting the others."""
    others = _others(CALLS, [], np.arange(CALLS))
    _run_windows([], others)
    return int(np.median(others.arrived_ns[1:] - others.published_ns[1:]))


class _ReplayOutbox(Outboxes):
    """The outbox of a replayed LP, with empty input before its first window."""

    def __init__(self, part: Part) -> None:
        super().__init__([part])
        self._nothing = np.zeros(HEADER_WORDS, np.int64)

    def address(self, sender: int, receiver: int, half: int) -> int:  # noqa: ARG002 - as in Post
        """Return the address of an empty half."""
        return self._nothing.ctypes.data


class _OutboxReader:
    """A reader of the packets in the LPs' outboxes. `pairs`: (sender, receiver), by sender, then by receiver."""

    def __init__(self, lps: Sequence[LogicalProcess]) -> None:
        self._outboxes = [lp.world.net.outbox for lp in lps]
        self._crossing_words = lps[0].part.crossing_words
        at = [lp.part.outbox_at() for lp in lps]
        self._halves = [[begins[half:-1:2] for begins in at] for half in range(2)]
        pairs = [(lp.part.number, other) for lp in lps for other in lp.part.neighbours]
        self.pairs = np.array(pairs, np.int64).reshape(-1, 2)
        self._begin = np.concatenate([[0], np.cumsum([len(begins) for begins in self._halves[0]])])
        self._number = {pair: number for number, pair in enumerate(pairs)}
        self._into = {lp.part.number: lp.part.neighbours for lp in lps}

    def none(self) -> Int32:
        """Return int32[pairs] of zeros: the counts before the first window."""
        return np.zeros(len(self.pairs), np.int32)

    def counts(self, half: int) -> Int32:
        """Return int32[pairs]: the number of packets in the given halves."""
        counts = self.none()
        for box, at, begin in zip(self._outboxes, self._halves[half], self._begin[:-1], strict=True):
            counts[begin : begin + len(at)] = box[at]
        return counts

    def to(self, lp: int, half: int, counts: Int32) -> tuple[Int64, Int64]:
        """Return the packets for an LP: the words of all halves, and the offset of each half."""
        pieces = []
        for other in self._into[lp]:
            pair = self._number[other, lp]
            begin = int(self._halves[half][other][pair - self._begin[other]])
            length = HEADER_WORDS + self._crossing_words * int(counts[pair])
            pieces.append(self._outboxes[other][begin : begin + length])
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        words = np.concatenate([*pieces, np.zeros(0, np.int64)])
        return words, np.cumsum(lengths) - lengths


def _sums(counts: Int32, lp_of: Int64, lps: int) -> Int32:
    """Return int32[windows, lps]: the counts of pairs summed by LP."""
    sums = np.zeros((len(counts), lps), np.int32)
    for row, of_window in zip(sums, counts, strict=True):
        row[:] = np.bincount(lp_of, weights=of_window, minlength=lps)
    return sums


def _team_of(lps: Sequence[LogicalProcess], first: int = 0) -> tuple[tm.Team, tm.CrewLists, Directory]:
    """Return a team whose last worker, number `first`, has all LPs; its crew; and the directory of their meeting."""
    team = tm.team_in(np.zeros(tm.team_words(first + 1), np.int64))
    cell_ps, window_ps = (int(lps[0].world.net.const[name]) if lps else 1 for name in ("cell_ps", "lookahead_ps"))
    tm.found_team(team, cell_ps, window_ps, crew_size=1)
    crew = tm.new_crew(len(lps), first)
    addresses = np.array([lp.address for lp in lps], np.int64)
    return team, crew, Directory(tm.Meeting(team, crew, addresses, no_parcels(lps)))


def _run_window(lps: Sequence[LogicalProcess], team: tm.Team, meeting: Directory) -> tuple[int, int]:
    """Call the kernel, extending full tables, until the window ends; return its status and the time in it in ns."""
    kernel_ns = 0
    while True:
        start_ns = time.perf_counter_ns()
        status = tm.work(meeting.address, 0, 0, 0)
        kernel_ns += time.perf_counter_ns() - start_ns
        if status not in {FULL, FAILED}:
            return status, kernel_ns
        lp = lps[team.workers[0].lp]
        if status == FAILED:
            raise RunError(failed_queue_pair(lp))
        make_room(lp)


def _call_ns() -> int:
    """Return the time in ns of a kernel call without work."""
    team, _, meeting = _team_of([])
    calls_ns = [_run_window([], team, meeting)[1] for _ in range(CALLS)]
    return int(np.median(calls_ns))


@dataclass(frozen=True)
class WindowCost:
    """A linear model of an LP's time in a window.

    Attributes:
        window_ns: Constant time in ns per window.
        crossing_ns: Time in ns per packet sent to or received from another LP.
        hop_ns: Time in ns per packet-hop.
    """

    window_ns: float
    crossing_ns: float
    hop_ns: float

    def of(self, recording: Recording) -> Float64:
        """Return float64[windows, lps]: the time in ns of each LP in each window."""
        crossings = recording.sent + recording.taken
        return self.window_ns + self.crossing_ns * crossings + self.hop_ns * recording.hops


def fit(recording: Recording, replays: Mapping[int, Int64]) -> tuple[WindowCost, float]:
    """Fit a WindowCost with non-negative terms by least squares.

    Args:
        recording: Recording of the run.
        replays: int64[windows], times in ns from `replay`, by LP. The minimum over several replays, window by window,
            excludes disturbances by other processes.

    Returns:
        The fitted costs, and the maximum relative error of the total time of a replayed LP.
    """
    lps = list(replays)
    hops = recording.hops[:, lps].T.reshape(-1)
    crossings = (recording.sent + recording.taken)[:, lps].T.reshape(-1)
    rows = np.stack([np.ones(len(hops)), crossings, hops], axis=1).astype(np.float64)
    cost = WindowCost(*_least_squares(rows, np.concatenate([replays[lp] for lp in lps]).astype(np.float64)).tolist())
    fitted = cost.of(recording).sum(axis=0)
    return cost, max(
        abs(float(fitted[lp]) / max(int(measured_ns.sum()), 1) - 1.0) for lp, measured_ns in replays.items()
    )


def _least_squares(rows: Float64, values: Float64) -> Float64:
    """Return float64[columns]: non-negative coefficients; columns with negative ones are dropped and get 0."""
    columns = list(range(rows.shape[1]))
    coefficients = np.zeros(rows.shape[1])
    while columns:
        solved = np.linalg.lstsq(rows[:, columns], values, rcond=None)[0]
        if solved.min() >= 0.0:
            coefficients[columns] = solved
            break
        del columns[int(solved.argmin())]
    return coefficients


def rank_sums(values: Array, ranks: int) -> Array:
    """Return [windows, ranks]: sums over the LPs of each rank, as `pdes.build.layout.share` assigns them.

    Args:
        values: [windows, lps], values to sum.
        ranks: Number of ranks.

    Raises:
        ValueError: There are more ranks than LPs.
    """
    if ranks > values.shape[1]:
        raise ValueError(f"{ranks} ranks; expected at most {values.shape[1]}, one for each LP")
    return np.add.reduceat(values, [share(values.shape[1], ranks, rank).start for rank in range(ranks)], axis=1)


def busiest_ns(recording: Recording, cost: WindowCost, ranks: int) -> Float64:
    """Return float64[windows]: the time in ns of the slowest rank in each window."""
    return rank_sums(cost.of(recording), ranks).max(axis=1)


def projected_s(recording: Recording, cost: WindowCost, ranks: int, sync_ns: float | Float64 = 0.0) -> float:
    """Return the projected run time in seconds; sync_ns: time to meet after a window, constant or per window."""
    return float((busiest_ns(recording, cost, ranks) + sync_ns).sum()) * 1e-9


class WindowTraffic(NamedTuple):
    """Data that a cluster node sends at the end of a window; each figure is the maximum over all nodes.

    Attributes:
        pairs: Number of LP pairs with one LP on another node.
        nodes: Number of other nodes.
        packets: float64[windows], packets to other nodes, estimated from the LPs' packets in the window and the overall
            share of packets that leave the node.
        letters: Number of neighbours on other nodes per LP.
    """

    pairs: int
    nodes: int
    packets: np.ndarray
    letters: int


def exchange(recording: Recording, nodes: int, ranks: int) -> WindowTraffic:
    """Return the traffic between nodes that hold contiguous, equal shares of the ranks."""
    lps = [len(share(recording.lps, ranks, rank)) for rank in range(ranks)]
    node_of = np.concatenate(
        [np.full(sum(lps[rank] for rank in share(ranks, nodes, node)), node) for node in range(nodes)]
    )
    src, dst = node_of[recording.pairs].T
    away = src != dst
    links = np.stack([src, dst], axis=1)[away]
    begins = [int(np.searchsorted(node_of, node)) for node in range(nodes)]
    leaving, sent = (np.bincount(src[which], recording.crossed[which], nodes) for which in (away, slice(None)))
    packets = np.add.reduceat(recording.sent, begins, axis=1) * (leaving / np.maximum(sent, 1.0))
    return WindowTraffic(
        pairs=int(np.bincount(links[:, 0], minlength=nodes).max()),
        nodes=int(np.bincount(np.unique(links, axis=0)[:, 0], minlength=nodes).max()),
        packets=packets.max(axis=1),
        letters=int(np.bincount(recording.pairs[away, 0], minlength=1).max()),
    )
