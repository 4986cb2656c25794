"""Workers that process the windows: threads, processes, MPI ranks, and their communication.

This module has the workers of a process, the points where they take snapshots, and the compilation of their kernels. A
mailbox is the interface between the processes of a run: a team, outboxes, and the merging of outcomes. There are three:
`SingleProcess`, whose workers are threads; processes of a machine, and MPI ranks, with threads each (`processes.py`).
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from nadi.pdes.construction.constants import hooks_of
from nadi.pdes.construction.layout import (
    Layout,
    LeastWaiting,
    LogicalProcess,
    Outboxes,
    Part,
    Progress,
    Simulation,
    Snapshot,
)
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import AgreedRunError, Int64, Record, Rows, RunError, state as s
from nadi.pdes.core.algorithms import rehash
from nadi.pdes.core.declared import grow
from nadi.pdes.core.jit import Directory, between_guards, compile_for, hook_address, jit_enabled, zeros
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.core.rows.run import LINE_WORDS
from nadi.pdes.messages import message_loop
from nadi.pdes.messages.events import FINISH, KEY_SHIFT, KIND_SHIFT, OWN, begin_with
from nadi.pdes.nic.counting import sum_messages
from nadi.pdes.outcomes.outcome import LpResults, WorkerTimes
from nadi.pdes.outcomes.stall import TOO_LATE_TEXT, failed_queue_pair
from nadi.pdes.reuse_kernels import domains, path_links, periods, quiescent
from nadi.pdes.workers import team as tm
from nadi.pdes.workers.batches import MessageBatches, Words, no_batches
from nadi.pdes.workers.team import Team, found_team, team_in, team_words


class ProcessPlace(NamedTuple):
    """The position of one process in a run, and its memory."""

    parts: Sequence[Part]  # parts of its LPs
    post: Outboxes | None  # outboxes of the LPs and their neighbours; None = their worlds are built
    team: Team  # see pdes.workers.team; set up already
    batches: MessageBatches  # packets of the LPs to and from other teams
    first: int = 0  # number within the team of its first worker
    threads: int = 1  # number of its workers
    rank: int = 0  # MPI rank
    exchange: Callable[[], None] | None = None  # exchanges batches with other teams: for its first worker, if needed
    ranks: Sequence[int] = ()  # MPI rank of each process of the team; () = there are no ranks


Share = Callable[[ProcessPlace], LpResults]  # one process's part of a run, from building its worlds to their outcome


class Mailbox(ABC):
    """The cooperation of a run's processes, each with a Place; defaults for no other process before the run."""

    failure: type[RunError] = RunError  # raised for a failure that every process finds
    size = 1  # number of processes
    number = 0  # of this process among them

    def lps(self, layout: Layout) -> range:
        """Return the LPs of this process, before it starts others itself.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
        """
        return range(layout.lps)

    def sum(self, value: int) -> int:
        """Return the sum of a value over all processes that exist before any is started."""
        return value

    def exchange(self, values: Sequence[Any]) -> list[Any]:
        """Return what each process has for this one; all processes call this during the run.

        Args:
            values: What this process has for each.
        """
        return list(values)

    def of_all(self, value: Any) -> list[Any]:
        """Return the value of each process; all processes call this during the run.

        Args:
            value: Value of this process.
        """
        return self.exchange([value] * self.size)

    def merged(self, own: LpResults) -> tuple[LpResults, LpResults] | None:
        """Return what `everywhere` returns; all processes call this during the run. None: another process gets it.

        Args:
            own: LpResults of this process.
        """
        return own, own

    @abstractmethod
    def everywhere(self, layout: Layout, threads: int, work: Share) -> tuple[LpResults, LpResults]:
        """Let every process do its work, called once after every kernel is compiled.

        Returns the merged outcome, and the outcome whose trace rows the results of this process hold. Raises RunError
        if a process failed.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
            threads: Maximum number of workers of a process.
            work: Function of a process's ProcessPlace that returns its LpResults.
        """

    def windows(self) -> AbstractContextManager:
        """Return a context for this process's windows: all enter together; it reports early ends."""
        return nullcontext()


class Segment:
    """Zeroed int64 words from which pieces are taken one after another, with guards between (pdes.core.jit)."""

    # Processes that share the words take the same pieces in the same order.

    def __init__(self, words: Int64) -> None:
        self._bytes = words.view(np.uint8)
        self._used_bytes = 0

    def take(self, words: int) -> Int64:
        """Return the next int64[words] of the segment, on cache-line pairs of its own."""
        begin = self._used_bytes
        # whole pairs of lines: processors prefetch lines in pairs, so a neighbour's writes would take the line from
        # this reader
        self._used_bytes += WORD_BYTES * segment_words(words)
        memory = self._bytes[begin : self._used_bytes]
        return between_guards(memory, WORD_BYTES * words, WORD_BYTES * LINE_WORDS).view(np.int64)


def segment_words(words: int) -> int:
    """Return the number of words of a Segment that a piece takes with its guards."""
    return rounded(words) + 2 * LINE_WORDS


def rounded(words: Words) -> Words:
    """Return words rounded up to whole pairs of cache lines."""
    return -(-words // LINE_WORDS) * LINE_WORDS


class SingleProcess(Mailbox):
    """One process, whose workers are threads; it has all LPs (parts), whose worlds are built already."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def everywhere(self, layout: Layout, threads: int, work: Share) -> tuple[LpResults, LpResults]:
        """Do all work in this process; return its outcome twice. As Mailbox.everywhere.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
            threads: Maximum number of workers of a process.
            work: Function of a process's ProcessPlace that returns its LpResults.
        """
        # a worker without an LP would only wait
        threads = min(threads, len(self._parts))
        team = team_in(zeros(team_words(threads)))
        found_team(team, layout.grid_ps, layout.lookahead_ps, pool_size=threads)
        own = work(ProcessPlace(self._parts, None, team, no_batches(self._parts), 0, threads))
        return own, own


# The workers of a process, the points where they take snapshots, and the compilation of their kernels.

# Snapshot points: all workers of a run stop before the same window, where the state of all LPs is consistent.
#
# A process asks for a snapshot point in the word `asked` of its team. The first worker of the team copies it at the
# end of a window; batches of the next window carry it to the other teams; at the end of that window all teams know of
# it, and every worker leaves the kernel (`pdes.workers.team.SNAPSHOT`) before the window after.

# The team's first worker adds LOOK, which nobody asks for, at a quiescent moment that all teams find together.

NO_SNAPSHOT, SAVE, SAVE_AND_END = 0, tm.LOOK + 1, tm.LOOK + 2  # what a process asks for, the strongest last


class StoppedError(AgreedRunError):
    """A run was asked to end, and its state is saved."""

    exit_code = 143  # as shells report SIGTERM: 128 + 15


class SnapshotPoints(ABC):
    """What the workers of one process do at snapshot points (pdes.checkpoint.saver)."""

    @abstractmethod
    def wanted(self) -> int:
        """Return NO_SNAPSHOT, SAVE or SAVE_AND_END, whatever this process asks for now."""

    @abstractmethod
    def save(self, team: Team, begin_ps: int) -> None:
        """Save the state of this process, whose workers are at a snapshot point.

        All processes of the run call this together. Raises StoppedError if the run is to end.

        Args:
            team: Memory that all workers of the team share.
            begin_ps: Begin of the next window in ps.
        """


# The workers of one process: they call the kernel, and do what it cannot: make room, report, communicate by MPI.

PAUSE_S = 0.2  # aimed wall time between two progress reports
NS = 1e-9  # seconds per nanosecond
FIRST_PAUSE_HOPS = 1  # packet-hops before the first report, which ends the start-up phase
MIN_HOPS_OF_A_PAUSE = 1_000  # minimum number of packet-hops between two reports
WINDOWS_OF_A_PAUSE = 200_000  # maximum number of windows between two reports, compiled
WINDOWS_OF_A_PAUSE_PLAIN = 200  # maximum number of windows between two reports, in plain Python
EVENTS_OF_A_PAUSE = 1_000_000  # events between two reports at message level


def compile_kernels(layout: Layout | None = None, settings: Settings | None = None) -> float:
    """Compile or load all kernels of a run and return the seconds.

    Args:
        layout: Division of the fabric among LPs; None = compile the kernels of every packet run.
        settings: Settings of the run; None with no layout.
    """
    begun = time.perf_counter()
    # stands for arguments of the type with which a run calls the kernels
    words = np.zeros(1, np.int64)
    if settings is not None and settings.fidelity.hooks.act:
        compile_for(message_loop.work_messages, 0, 0, 0)
    else:
        compile_for(tm.work, 0, 0, 0, 0)
        if layout is None or layout.reuses:
            compile_for(domains.end_members, 0, words, words, words, words)
            compile_for(sum_messages, words, words, words, words, words, words)
            compile_for(domains.count_messages, 0, 0, 0, 0, 0, words)
            compile_for(domains.count_links, 0, words, words, words, words)
            compile_for(domains.send_packets, 0, words, words, words, words, 0)
            compile_for(domains.take_packets, 0, words, words, words, words, words, words)
            compile_for(domains.begin_cells, 0, 0, words, words, words, words, words, words)
            compile_for(quiescent.find_windows, 0, words, words, words, words)
            compile_for(quiescent.forget, 0, 0)
            compile_for(quiescent.write_state, 0, 0, words, words, words, words)
            compile_for(periods.repeat_rows, 0, 0, 0, words, words, words, words, words, words)
            compile_for(periods.go_forward, 0, 0, words, words, words, words, words)
            compile_for(periods.count_messages_again, 0, words, words, words)
            compile_for(path_links.links_towards, 0, words, words, words, words)
    compile_for(rehash, words, words, words, words)
    for function in hooks_of(layout, settings).values() if layout is not None and settings is not None else ():
        hook_address(function)
    return time.perf_counter() - begun


class AbortedError(Exception):
    """Another worker failed, and reports the reason."""


class Recurring(Protocol):
    """Interface of pdes.reuse.recurrence.Recurrence, which counts periods that a run repeats."""

    counted_hops: int  # packet-hops of these, but those of replayed collectives
    replayed_hops: int  # those of replayed collectives in them
    watch: Record  # the NPU that is watched (WatchedNpu)
    within: Any  # looks at ends of windows, with packets under way (pdes.reuse.within_messages)

    def serve(self) -> None:
        """Look at a quiescent moment, at which all workers of all processes have stopped; all of these call this."""

    def stop_notes(self) -> None:
        """Stop the notes of a period, so that the state of the run is all in its logical processes."""


class WorkerPool:
    """Workers of one process, at its place, on the LPs of a Simulation."""

    def __init__(
        self,
        sim: Simulation,
        place: ProcessPlace,
        progress: Progress | None = None,
        nodes_total: int = 0,
        snapshot_points: SnapshotPoints | None = None,
        recurrence: Recurring | None = None,
    ) -> None:
        """Take what to run; nodes_total: trace rows of the whole run, for the Snapshots that progress receives.

        snapshot_points: writer of checkpoints, None = no checkpoints. recurrence: counter of repeated periods,
        which looks at quiescent moments; None = no counter.
        """
        self.sim = sim
        self.team = place.team
        self.first_event_s = 0.0
        self._place = place
        self._workers = range(place.first, place.first + place.threads)
        self._progress = progress
        self._nodes_total = nodes_total
        self._by_message = sim.settings.fidelity.hooks.act is not None
        addresses = np.array([lp.address for lp in sim.lps], np.int64)
        watch = recurrence.watch if recurrence else None
        pool = tm.new_pool(len(sim.lps), place.first, place.threads, watch)
        self._context = Directory(tm.WorkerContext(place.team, pool, addresses, place.batches), "workers")
        self._failure: BaseException | None = None
        self._snapshot_points = snapshot_points
        self._recurrence = recurrence
        self._all_at_snapshot_point = threading.Barrier(place.threads)
        self._begun = 0.0

    def run(self) -> None:
        """Run to the end, with one additional thread for each worker but the first."""
        self._begun = time.perf_counter()
        # daemons: an interrupt of the main thread need not wait for them
        threads = [threading.Thread(target=self._guarded, args=(i,), daemon=True) for i in self._workers[1:]]
        for thread in threads:
            thread.start()
        self._guarded(self._workers[0])
        for thread in threads:
            thread.join()
        self._check_guards()
        if self._failure is not None:
            raise self._failure

    def _check_guards(self) -> None:
        """Raise MemoryDamageError if a kernel damaged memory, before any other failure of the run."""
        try:
            self._context.check_guards()
            for lp in self.sim.lps:
                lp.check_guards()
        # other failures may follow from the damage, so this one is reported
        except RunError:
            self.team.state.abort = 1
            raise

    def _guarded(self, worker: int) -> None:
        """Run worker number `worker` to its end; its failure stops the team."""
        try:
            if self._by_message:
                self._work_messages()
            else:
                self._work(worker)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that called run
            if self._failure is None or isinstance(self._failure, AbortedError):
                self._failure = error
            self.team.state.abort = 1

    def times(self) -> WorkerTimes:
        """Return the work and waiting time of this process's finished workers; see Results.workers."""
        # one worker in one LP: nobody waits
        if self._by_message:
            return {}
        own: Rows = self.team.workers[self._workers.start : self._workers.stop]
        waited_s = own.waited_ns * NS
        return {
            "rank": np.full(len(own), self._place.rank),
            "packet_hops": own.hops.copy(),
            "events": own.events.copy(),
            "working_s": own.lasted_ns * NS - waited_s,
            "waiting_s": waited_s,
            "windows": own.window + 1,
        }

    def _work(self, worker: int) -> None:
        """Call the kernel for worker number `worker`, and do what it asks for between calls."""
        begun_ns = time.perf_counter_ns()
        own = self.team.workers[worker]
        windows_of_a_pause = WINDOWS_OF_A_PAUSE if jit_enabled() else WINDOWS_OF_A_PAUSE_PLAIN
        hops, windows = FIRST_PAUSE_HOPS, windows_of_a_pause
        done, last = -1, time.perf_counter()
        while (status := tm.work(self._context.address, worker, hops, windows)) != s.DONE:
            # at each return of the kernel, in which nobody could see a request
            if self._snapshot_points is not None:
                # the strongest request of all processes of the team holds
                self.team.state.asked = max(int(self.team.state.asked), self._snapshot_points.wanted())
            if status == s.FULL:
                make_room(self.sim.lps[own.lp])
            elif status == tm.SNAPSHOT:
                self._stop_at_snapshot_point(worker)
            elif status == s.FAILED:
                raise RunError(failed_queue_pair(self.sim, self.sim.lps[own.lp]))
            elif status == tm.ABORTED:
                raise AbortedError
            elif status == tm.EXCHANGE and self._place.exchange:
                begun = time.perf_counter_ns()
                self._place.exchange()
                own.waited_ns += time.perf_counter_ns() - begun
            elif status == tm.WITHIN and self._recurrence:
                self._recurrence.within.serve()
            elif status == tm.PAUSED:
                now = time.perf_counter()
                before, done = done, int(self.team.state.hops)
                # about PAUSE_S from now, as fast as since the last time; the first counts what was saved, too
                times = min(8.0, max(0.25, PAUSE_S / max(now - last, 1e-6)))
                hops = done + max(MIN_HOPS_OF_A_PAUSE, int((done - before) * times) if before >= 0 else 0)
                windows = int(own.window) + windows_of_a_pause
                last = now
                state = self.team.state
                self._report(state.begin_ps, state.all_hops, -state.all_rows_left)
        own.lasted_ns = time.perf_counter_ns() - begun_ns

    def _stop_at_snapshot_point(self, worker: int) -> None:
        """Wait until this process's workers are there; the first looks or saves, then all continue or end."""
        try:
            # twice: nobody saves before all have stopped, and nobody goes on before all is saved
            self._all_at_snapshot_point.wait()
            if worker == self._workers[0] and self._recurrence:
                if self.team.state.snapshot_point == tm.LOOK:
                    self._recurrence.serve()
                else:
                    self._recurrence.stop_notes()
            if worker == self._workers[0] and self._snapshot_points and self.team.state.snapshot_point > tm.LOOK:
                self._snapshot_points.save(self.team, int(self.team.workers[worker].begin_ps))
            self._all_at_snapshot_point.wait()
        except threading.BrokenBarrierError:
            raise AbortedError from None
        except BaseException:
            self._all_at_snapshot_point.abort()
            raise

    def _work_messages(self) -> None:
        """Run at message level, where one worker has all NPUs in one LP."""
        (lp,) = self.sim.lps
        if lp.world.net.ctl.events == 0:  # else the run continues from a saved state
            begin_messages(lp, self.sim.settings)
        while (status := message_loop.work_messages(lp.address, EVENTS_OF_A_PAUSE, s.INF)) != s.DONE:
            if status == s.FULL:
                make_room(lp)
            elif status == message_loop.TOO_LATE:
                raise RunError(TOO_LATE_TEXT)
            elif status == message_loop.PAUSED:
                ctl, count = lp.world.net.ctl, lp.world.net.count
                self._report(ctl.now_ps, count.hops, self._nodes_total - ctl.rows_left, int(count.consumed_packets))
                if self._snapshot_points is not None and (wanted := self._snapshot_points.wanted()):
                    self.team.state.snapshot_point = wanted
                    self._snapshot_points.save(self.team, int(ctl.now_ps))
        self.first_event_s = self.first_event_s or time.perf_counter() - self._begun

    def _report(self, now_ps: int, hops: int, nodes_done: int, messages: int | None = None) -> None:
        """Pass a Snapshot of the run to the progress function, if there is one."""
        wall_s = time.perf_counter() - self._begun
        self.first_event_s = self.first_event_s or wall_s
        if self._progress is not None:
            slowest = None if self._by_message else self._least_waiting(wall_s)
            counts = int(hops), int(nodes_done), self._nodes_total
            replays = [lp.replay for lp in self.sim.lps if lp.replay is not None]
            stopped = any(replay.has_stopped for replay in replays)
            periods = self._recurrence
            counted, replayed = (periods.counted_hops, periods.replayed_hops) if periods else (0, 0)
            replayed += replays[0].replayed_hops if replays else 0
            self._progress(Snapshot(int(now_ps), *counts, wall_s, messages, slowest, stopped, counted, replayed))

    def _least_waiting(self, wall_s: float) -> LeastWaiting | None:
        """Return the worker of the team that has waited least in `wall_s`, the seconds since the first window."""
        # the worker that waits least has most work in its LPs: it bounds the speed of all
        waited_s = self.team.workers.waited_ns * NS
        # a worker alone waits for nobody
        if len(waited_s) == 1:
            return None
        worker, ranks = int(waited_s.argmin()), self._place.ranks
        rank = int(ranks[worker // self._place.threads]) if ranks else 0
        shares = np.minimum(waited_s / wall_s, 1.0)
        return LeastWaiting(rank, worker, float(shares[worker]), float(shares.mean()))


def begin_messages(lp: LogicalProcess, settings: Settings) -> None:
    """Begin a run at message level: each NPU with work has an event at 0, and so have changes of the network.

    Args:
        lp: The logical process.
        settings: Settings of the run.
    """
    world = lp.world
    npu: Rows = world.npus.npu[: lp.part.npus]
    ready = np.flatnonzero((npu.ready_head >= 0) | (npu.job_row >= 0))
    # slot LANES of an NPU is the begin of its job
    orders, items = (OWN << KIND_SHIFT) | (ready << KEY_SHIFT) | s.LANES, ready
    # FINISH at 0: changes of the network at time 0 are made before the first message is posted
    if settings.fidelity.hooks.settle and settings.faults:
        orders, items = np.insert(orders, 0, FINISH << KIND_SHIFT), np.insert(items, 0, 0)
    begin_with(world.messages, world.net.ctl, orders, items)


def make_room(lp: LogicalProcess) -> None:
    """Make room in the pool that was too small, after FULL.

    Args:
        lp: The logical process whose pool was too small.
    """
    # tables that the host empties; pools that grow; and, without a shortage, replays that are due
    if lp.world.net.ctl.need == s.NEED_FLOWS:
        lp.take_flows()
    elif lp.world.net.ctl.need == s.NEED_SAMPLES:
        lp.take_samples()
    elif lp.world.net.ctl.need == s.NEED_REPLAY and lp.replay:
        lp.replay.serve()
    else:
        lp.world = grow(lp.world)
