"""What a run does in each window, LP by LP, and what that takes on many ranks, measured on one core.

`record_windows` runs all LPs on one worker, stops after every window and notes the packet-hops and crossings of each
LP. `replay` then runs one of these LPs alone on what the others sent to it, as its rank would: only its own state is in
the caches, and between windows it waits for another core. A `WindowCost` fitted to replays says what each LP takes for
each window, and `projected_s` what ranks take that meet at the end of each window: the sum of what the slowest takes.
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

CALLS = 1001
FOREVER = 1 << 62


@dataclass(frozen=True, eq=False)
class Recording:
    """Windows of a run, LP by LP.

    Attributes:
        hops: int32[windows, lps], packet-hops.
        sent: int32[windows, lps], packets that the LP sent to other LPs.
        taken: int32[windows, lps], packets that it took in from them.
        begin_ps: int64[windows].
        spent_ns: int64[windows], wall time of all LPs on one core, without that of calling the kernel.
        pairs: int64[m, 2], LPs that have links from the first to the second, in order.
        crossed: int64[m], packets that went there, of all windows.
        results: of the run; None if it was ended after some windows.
        came: of each LP that was asked for, per window (words, offsets of the neighbours in them): what it took in.
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
        """How many."""
        return self.hops.shape[0]

    @property
    def lps(self) -> int:
        """How many."""
        return self.hops.shape[1]

    @property
    def wall_s(self) -> float:
        """Time in the kernel."""
        return float(self.spent_ns.sum()) * 1e-9


def record_windows(
    sim: Simulation,
    most_windows: int | None = None,
    keep: Sequence[int] = (),
    progress: Callable[[int], None] | None = None,
) -> Recording:
    """Run a Simulation that holds all LPs on one worker and record each window.

    Args:
        sim: from build_world, not begun.
        most_windows: end after so many, without results; None = run to the end.
        keep: LPs to be replayed.
        progress: called after every window with their number.

    Raises:
        RunError: as pdes.run.
    """
    compile_s = compile_kernels(sim.graph, sim.settings)
    lps = len(sim.lps)
    team, crew, meeting = _alone(sim.lps)
    call_ns = _call_ns()
    letters = _Letters(sim.lps)
    hops: list[Int32] = []
    sent = [letters.none()]
    begin_ps: list[int] = []
    spent_ns: list[int] = []
    came: dict[int, list[tuple[Int64, Int64]]] = {number: [] for number in keep}
    status = tm.PAUSED
    while status != DONE and (most_windows is None or len(hops) < most_windows):
        number = int(team.workers[0].window)
        for lp, blobs in came.items():
            blobs.append(letters.to(lp, 1 - (number & 1), sent[-1]))
        begin_ps.append(int(team.workers[0].begin_ps))
        status, took_ns = _one_call(sim.lps, team, meeting)
        spent_ns.append(max(0, took_ns - call_ns))
        hops.append(crew.costs.astype(np.int32))
        sent.append(letters.counts(number & 1))
        if progress is not None:
            progress(len(hops))
    counts = np.array(sent, np.int32)
    found = Recording(
        hops=np.array(hops, np.int32),
        sent=_sums(counts[1:], letters.pairs[:, 0], lps),
        taken=_sums(counts[:-1], letters.pairs[:, 1], lps),
        begin_ps=np.array(begin_ps, np.int64),
        spent_ns=np.array(spent_ns, np.int64),
        pairs=letters.pairs,
        crossed=counts.sum(axis=0, dtype=np.int64),
        came=came,
    )
    if status != DONE:
        return found
    own = harvest(sim)
    check(own)
    seconds = {"wall_s": found.wall_s, "setup_s": sim.setup_s, "compile_s": compile_s, "first_event_s": 0.0}
    return replace(found, results=results(own, own, sim.graph, sim.settings, **seconds))


class ReplayTimes(NamedTuple):
    """Wall time of an LP alone, without that of meeting others.

    Attributes:
        spent_ns: int64[windows], in each window.
        sent_ns: int64[windows], until all was out that goes to other nodes of a cluster.
    """

    spent_ns: np.ndarray
    sent_ns: np.ndarray


def replay(
    graph: Graph,
    program: Program,
    settings: Settings,
    owner: ArrayLike,
    recording: Recording,
    number: int,
    away: Collection[int] = (),
) -> ReplayTimes:
    """Run one LP alone, on what came to it from others when it was recorded.

    Another core plays the others (`nadi.studies.benchmarks.instruments.others`), so that from window to window nothing
    but the
    LP's own work goes through the caches of its core.

    Args:
        graph: the fabric, as it was recorded.
        program: what the NPUs do, likewise.
        settings: of the packet network, likewise.
        owner: int[nodes], the LP of each node, likewise.
        recording: with `came` of this LP.
        number: of the LP.
        away: LPs of other nodes of a cluster.

    Raises:
        RunError: it did not do what it did in the recording (a defect).
    """
    settings = with_driven(settings, driven=has_shares(program, settings))
    layout = Layout(graph, settings, owner)
    part = layout.part(number)
    if away:
        part.send_first(graph, away)
    post = _Replayed(part)  # has memory of the LP's
    (lp,) = build_lps(layout, program, settings, [part], post).lps
    windows, came = recording.windows, recording.came[number]
    others = _others(windows, [words.ctypes.data + WORD_BYTES * offsets for words, offsets in came], recording.begin_ps)
    begun_ns, outside_ns = _met([lp], others)
    wrong = np.flatnonzero(others.hops != recording.hops[:, number])
    if len(wrong):
        raise RunError(
            f"engine defect: LP {number} did {others.hops[wrong[0]]} packet-hops in window {wrong[0]} of its "
            f"replay, {recording.hops[wrong[0], number]} when it was recorded"
        )
    others.published_ns[0] = begun_ns
    spent_ns = np.maximum(others.arrived_ns - others.published_ns - outside_ns - _meeting_ns(), 0)
    sent_ns = others.packed_ns - others.published_ns - outside_ns - _meeting_ns()
    return ReplayTimes(spent_ns, np.clip(sent_ns, 0, spent_ns))


def _others(windows: int, came: Sequence[Int64], begin_ps: Int64) -> Others:
    """All LPs but one."""
    words = np.concatenate([*came, np.zeros(0, np.int64)]).astype(np.int64)
    return Others(words, begin_ps, *np.zeros((4, windows), np.int64))


def _met(lps: Sequence[LogicalProcess], others: Others) -> tuple[int, Int64]:
    """Have an LP, or nobody, do its windows on this core while another core plays the others.

    Returns:
        The clock at the begin, and int64[windows], nanoseconds in each window that are none of the kernel's.
    """
    team, _, meeting = _alone(lps, first=LONE)
    known = Directory(others)
    lp_address = lps[0].address if lps else 0
    compile_for(play_others, meeting.address, lp_address, known.address)
    outside_ns = np.zeros(len(others.begin_ps), np.int64)
    thread = threading.Thread(target=play_others, args=(meeting.address, lp_address, known.address))
    thread.start()
    begun_ns = time.perf_counter_ns()
    try:
        while (status := tm.work(meeting.address, LONE, FOREVER, FOREVER)) != DONE:
            left_ns = time.perf_counter_ns()
            own = team.workers[-1]
            if status == FAILED:
                raise RunError(failed_queue_pair(lps[own.lp]))
            if status == FULL:
                make_room(lps[own.lp])
            outside_ns[own.window] += time.perf_counter_ns() - left_ns
    finally:
        team.state.abort = 1
        thread.join()
    return begun_ns, outside_ns


@functools.cache
def _meeting_ns() -> int:
    """What it takes to meet the others where there is nothing to do."""
    others = _others(CALLS, [], np.arange(CALLS))
    _met([], others)
    return int(np.median(others.arrived_ns[1:] - others.published_ns[1:]))


class _Replayed(Outboxes):
    """The outbox of an LP; all that comes to it before its first window is nothing."""

    def __init__(self, part: Part) -> None:
        super().__init__([part])
        self._nothing = np.zeros(HEADER_WORDS, np.int64)

    def address(self, sender: int, receiver: int, half: int) -> int:  # noqa: ARG002 - as in Post
        """Address of an empty half."""
        return self._nothing.ctypes.data


class _Letters:
    """What lies in the outboxes of LPs. `pairs`: (sender, receiver), by sender, then by receiver."""

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
        """Counts before the first window."""
        return np.zeros(len(self.pairs), np.int32)

    def counts(self, half: int) -> Int32:
        """int32[pairs]: packets in the halves."""
        found = self.none()
        for box, at, begin in zip(self._outboxes, self._halves[half], self._begin[:-1], strict=True):
            found[begin : begin + len(at)] = box[at]
        return found

    def to(self, lp: int, half: int, counts: Int32) -> tuple[Int64, Int64]:
        """What lies there for an LP: all halves in a row, and where each begins."""
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
    """int32[windows, lps]: counts of pairs summed by LP."""
    found = np.zeros((len(counts), lps), np.int32)
    for row, of_window in zip(found, counts, strict=True):
        row[:] = np.bincount(lp_of, weights=of_window, minlength=lps)
    return found


def _alone(lps: Sequence[LogicalProcess], first: int = 0) -> tuple[tm.Team, tm.CrewLists, Directory]:
    """A team whose last worker, number `first`, has all LPs; its crew, and their Directory."""
    team = tm.team_in(np.zeros(tm.team_words(first + 1), np.int64))
    cell_ps, window_ps = (int(lps[0].world.net.const[name]) if lps else 1 for name in ("cell_ps", "lookahead_ps"))
    tm.found_team(team, cell_ps, window_ps, crew_size=1)
    crew = tm.new_crew(len(lps), first)
    addresses = np.array([lp.address for lp in lps], np.int64)
    return team, crew, Directory(tm.Meeting(team, crew, addresses, no_parcels(lps)))


def _one_call(lps: Sequence[LogicalProcess], team: tm.Team, meeting: Directory) -> tuple[int, int]:
    """Call the kernel and make room until it is content: what it says, and the nanoseconds in it."""
    took_ns = 0
    while True:
        begun = time.perf_counter_ns()
        status = tm.work(meeting.address, 0, 0, 0)
        took_ns += time.perf_counter_ns() - begun
        if status not in {FULL, FAILED}:
            return status, took_ns
        lp = lps[team.workers[0].lp]
        if status == FAILED:
            raise RunError(failed_queue_pair(lp))
        make_room(lp)


def _call_ns() -> int:
    """What a call of the kernel takes that finds nothing to do."""
    team, _, meeting = _alone([])
    took_ns = [_one_call([], team, meeting)[1] for _ in range(CALLS)]
    return int(np.median(took_ns))


@dataclass(frozen=True)
class WindowCost:
    """What an LP takes for a window: `window_ns`, and so much for each crossing and for each packet-hop."""

    window_ns: float
    crossing_ns: float
    hop_ns: float

    def of(self, recording: Recording) -> Float64:
        """float64[windows, lps]: nanoseconds of each LP in each window."""
        crossings = recording.sent + recording.taken
        return self.window_ns + self.crossing_ns * crossings + self.hop_ns * recording.hops


def fit(recording: Recording, replays: Mapping[int, Int64]) -> tuple[WindowCost, float]:
    """The Cost that fits best by least squares, no term negative, and how far it is off.

    Args:
        recording: the run.
        replays: LP -> int64[windows], nanoseconds from `replay`. The least of several replays, window by window, is
            free of what another process did to one of them.

    Returns:
        The Cost; the largest relative error of the time of all windows of one of these LPs.
    """
    lps = list(replays)
    hops = recording.hops[:, lps].T.reshape(-1)
    crossings = (recording.sent + recording.taken)[:, lps].T.reshape(-1)
    rows = np.stack([np.ones(len(hops)), crossings, hops], axis=1).astype(np.float64)
    cost = WindowCost(*_least_squares(rows, np.concatenate([replays[lp] for lp in lps]).astype(np.float64)).tolist())
    fitted = cost.of(recording).sum(axis=0)
    return cost, max(abs(float(fitted[lp]) / max(int(took.sum()), 1) - 1.0) for lp, took in replays.items())


def _least_squares(rows: Float64, values: Float64) -> Float64:
    """float64[columns]: coefficients; one that would be negative is left out and 0."""
    columns = list(range(rows.shape[1]))
    found = np.zeros(rows.shape[1])
    while columns:
        solved = np.linalg.lstsq(rows[:, columns], values, rcond=None)[0]
        if solved.min() >= 0.0:
            found[columns] = solved
            break
        del columns[int(solved.argmin())]
    return found


def rank_sums(values: Array, ranks: int) -> Array:
    """[windows, ranks]: sums over the LPs of each rank, as `pdes.build.layout.share` gives them.

    Args:
        values: [windows, lps].
        ranks: how many.

    Raises:
        ValueError: more ranks than LPs.
    """
    if ranks > values.shape[1]:
        raise ValueError(f"{ranks} ranks; expected at most {values.shape[1]}, one for each LP")
    return np.add.reduceat(values, [share(values.shape[1], ranks, rank).start for rank in range(ranks)], axis=1)


def busiest_ns(recording: Recording, cost: WindowCost, ranks: int) -> Float64:
    """float64[windows]: what the slowest of so many ranks takes for each window."""
    return rank_sums(cost.of(recording), ranks).max(axis=1)


def projected_s(recording: Recording, cost: WindowCost, ranks: int, sync_ns: float | Float64 = 0.0) -> float:
    """Seconds that so many ranks take; sync_ns: for meeting at the end of a window, a number or one for each window."""
    return float((busiest_ns(recording, cost, ranks) + sync_ns).sum()) * 1e-9


class WindowTraffic(NamedTuple):
    """What a node tells others at the end of a window; each figure is the most of any node.

    Attributes:
        pairs: pairs of LPs, one of them on another node.
        nodes: other nodes.
        packets: float64[windows], packets that it sends to other nodes; of what its LPs send in a window, as large a
            share leaves the node as does of all windows.
        letters: neighbours on other nodes of one LP, the most of any.
    """

    pairs: int
    nodes: int
    packets: np.ndarray
    letters: int


def exchange(recording: Recording, nodes: int, ranks: int) -> WindowTraffic:
    """What nodes exchange that share the ranks, contiguously and equally, as ranks share LPs."""
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
