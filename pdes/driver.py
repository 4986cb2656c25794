"""Drivers: run a simulation to its end, post messages in an open network, and compile all kernels before any run."""

import time
from dataclasses import replace

import numpy as np

from nadi.pdes import workers
from nadi.pdes.checkpoint import Checkpoints
from nadi.pdes.checkpoint.saver import Saver, reused
from nadi.pdes.construction import build_lps, build_world
from nadi.pdes.construction.constants import all_hooks
from nadi.pdes.construction.layout import Layout, Outboxes, Progress, Simulation
from nadi.pdes.construction.packets import follow_queues, wait_on_links
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Graph, Program, RunError
from nadi.pdes.core.jit import Directory, compile_for, hook_address, zeros
from nadi.pdes.core.packet import pair_source, tag_lane
from nadi.pdes.core.state import FAILED, FULL, INF
from nadi.pdes.fidelity import MessageReport, check_message
from nadi.pdes.messages import message_loop
from nadi.pdes.nic.pacing import control_of, has_shares
from nadi.pdes.outcomes import Results, simulated_hops
from nadi.pdes.outcomes.outcome import LpResults, check, outcome_of, results
from nadi.pdes.outcomes.stall import TOO_LATE_TEXT, failed_queue_pair
from nadi.pdes.reuse import Records
from nadi.pdes.reuse.recurrence import Recurrence, may_recur
from nadi.pdes.reuse.replay import Replay
from nadi.pdes.workers import team as tm
from nadi.pdes.workers.batches import no_batches
from nadi.pdes.workers.other_teams import OTHER_TEAMS


def run(
    sim: Simulation, progress: Progress | None = None, threads: int = 1, checkpoints: Checkpoints | None = None
) -> Results:
    """Run a Simulation from build_world to its end and return its Results; it holds all LPs.

    Raises RunError: events run out and work is left (the text lists which row waits for what), a queue pair gives up,
    or an invariant of the engine is broken (a defect, never the user's fault).

    Args:
        sim: The run, or the part of it in this process (`Simulation`).
        progress: Function that receives a Snapshot a few times a second; None = no function.
        threads: Number of workers that share the LPs; one at message level.
        checkpoints: Checkpoints that the run writes and continues from; None = no checkpoints.
    """
    alone = workers.SingleProcess([lp.part for lp in sim.lps])
    return _run(sim.layout, sim.program, sim.settings, alone, threads, progress, sim, checkpoints)


def run_divided(
    layout: Layout,
    program: Program,
    settings: Settings,
    mailbox: workers.Mailbox,
    threads: int = 1,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
) -> Results:
    """Build the LPs in all processes of the mailbox (all ranks call this), run them, and return Results.

    Raises RunError: the run failed, see `run`; or a process ended early.

    Args:
        layout: Division of the fabric among LPs, the same in all processes.
        program: Work of all NPUs, with at least the traces of this process's LPs (`mailbox.lps`).
        settings: Settings of the run.
        mailbox: Cooperation of the run's processes.
        threads: Number of workers of each process; one at message level.
        progress: Function that receives a Snapshot a few times a second on the first rank; None = no function.
        checkpoints: Checkpoints that the run writes and continues from; None = no checkpoints.
    """
    layout.control = control_of(settings, rate_limited=mailbox.sum(int(has_shares(program, settings))) > 0)
    return _run(layout, program, settings, mailbox, threads, progress, checkpoints=checkpoints)


def _run(
    layout: Layout,
    program: Program,
    settings: Settings,
    mailbox: workers.Mailbox,
    threads: int,
    progress: Progress | None,
    built: Simulation | None = None,
    checkpoints: Checkpoints | None = None,
) -> Results:
    """Compile, let every process run its share, and return Results; built: a Simulation ready to run, or None."""
    begun = time.perf_counter()
    resumes = checkpoints is not None and checkpoints.resumed is not None
    if layout.reuses and checkpoints is not None and not reused(checkpoints):
        layout.reuses, built = False, None
    compile_s = workers.compile_kernels(layout, settings)
    trace = np.asarray(program.trace_of_npu)
    own_trace = trace[np.isin(layout.owner[: len(trace)], mailbox.lps(layout)) & (trace >= 0)]
    nodes_total = mailbox.sum(int(np.diff(program.trace_ptr)[own_trace].sum()))
    seconds = {"compile_s": compile_s}

    is_first = True

    def share(place: workers.ProcessPlace) -> LpResults:
        """Run the LPs of one process, which `place` lists, and return their LpResults; seconds gets the wall times."""
        # a second run, after a disturbance, needs worlds of its own
        if built is not None and is_first and place.post is None:
            sim = built
        else:
            sim = build_lps(layout, program, settings, place.parts, place.post or Outboxes(place.parts))
        records = Records()
        for lp in sim.lps:
            lp.replay = Replay(sim, lp, records) if lp.domains else None
        saver = None if checkpoints is None else Saver(checkpoints, mailbox, place, sim, records)
        resumed_hops = 0
        if saver is not None and resumes and is_first:
            saver.restore(place.team)
            resumed_hops = simulated_hops(sum(int(lp.world.net.count.hops) for lp in sim.lps), records.counts())
        recurrence = Recurrence(sim, place, mailbox, records) if may_recur(sim) else None
        pool = workers.WorkerPool(sim, place, progress, nodes_total, saver, recurrence)
        seconds["setup_s"] = time.perf_counter() - begun - compile_s + (built.setup_s if built else 0.0)
        with mailbox.windows():
            started = time.perf_counter()
            pool.run()
            seconds["wall_s"] = time.perf_counter() - started
        for lp in sim.lps:
            if lp.replay:
                lp.replay.finish()
        seconds["first_event_s"] = pool.first_event_s
        return replace(outcome_of(sim), workers=pool.times(), reuse=records.counts(), resumed_hops=resumed_hops)

    total, own = mailbox.everywhere(layout, threads, share)
    if total.is_disturbed:
        is_first = layout.reuses = False
        total, own = mailbox.everywhere(layout, threads, share)
    try:
        check(total)
    except RunError as error:
        raise mailbox.failure(str(error)) from None
    return results(total, own, layout.graph, program, settings, **seconds)


# A network of the engine, of packets, whole messages or flows, to which its owner posts messages one at a time.
#
# It runs the same kernels on the same world as `run` does, in which no NPU has anything to do. A message
# that is posted takes a row of its sender's trace, which is done when the message has left.


class OpenNetwork:
    """A Network (pdes/fidelity/__init__.py) of a model with links."""

    def __init__(self, graph: Graph, rows: Program, settings: Settings) -> None:
        """Build the network; rows: a program of rows without work that never start, as many as messages may be open.

        All NPUs have the same trace. Only `fidelity`, keys of [network] and faults of the settings have an effect.
        """
        self._sim = build_world(graph, rows, settings)
        (self._lp,) = self._sim.lps
        self._by_message = settings.fidelity.hooks.act is not None
        workers.compile_kernels(self._sim.layout, self._sim.settings)
        if self._by_message:
            workers.begin_messages(self._lp, self._sim.settings)
        self._team = tm.team_in(zeros(tm.team_words(1)))
        tm.found_team(self._team, self._sim.layout.grid_ps, self._sim.layout.lookahead_ps, pool_size=1)
        addresses = np.array([self._lp.address], np.int64)
        context = tm.WorkerContext(self._team, tm.new_pool(1), addresses, no_batches([self._lp.part]))
        self._context = Directory(context, "workers")
        self.grid_ps = 1 if self._by_message else int(self._sim.layout.grid_ps)
        self.now_ps = 0
        self._posted = 0
        # messages, by sender and row of its trace, that have not left, and that have not arrived
        self._leaving: dict[tuple[int, int], int] = {}
        self._arriving: dict[tuple[int, int], int] = {}
        self._free = [list(range(int(rows.trace_ptr[1])))[::-1] for _ in range(graph.npus)]

    def post(self, src: int, dst: int, size_bytes: int) -> int:
        """Post a message now and return its number; RunError: too many of the sender's messages are under way.

        Args:
            src: Number of the NPU that sends.
            dst: Number of the NPU that receives.
            size_bytes: Payload of the message in bytes.
        """
        check_message(self._sim.graph.npus, src, dst, size_bytes)
        if not self._free[src]:
            raise RunError(f"npu {src} has {self._sim.program.trace_ptr[1]:,} messages under way; expected fewer")
        row = self._free[src].pop()
        self._lp.world.rows.finish[self._lp.row_ptr[src] + row] = -1
        while message_loop.post_from_outside(self._lp.address, src, dst, row, size_bytes, self.now_ps) == FULL:
            workers.make_room(self._lp)
        worker, state = self._team.workers[0], self._team.state
        # the window that is next, or under way, must not begin after this message
        begun = state if worker.stage == tm.ALL else worker
        begun.begin_ps = min(begun.begin_ps, self.now_ps)
        self._leaving[src, row] = self._arriving[src, row] = self._posted
        self._posted += 1
        return self._posted - 1

    def next_event_ps(self) -> int | None:
        """Return a time before which nothing happens, by packets the begin of a cell; None = nothing is left."""
        if self._by_message:
            time_ps = message_loop.next_message_event_ps(self._lp.address)
        else:
            worker, state = self._team.workers[0], self._team.state
            time_ps = int(state.begin_ps if worker.stage == tm.ALL else worker.begin_ps)
        return time_ps if time_ps < INF else None

    def advance(self, until_ps: int) -> list[MessageReport]:
        """Do all that happens before until_ps, by packets to the end of its cell, and return what messages did then."""
        while (next_ps := self.next_event_ps()) is not None and next_ps < until_ps:
            if self._by_message:
                status = message_loop.work_messages(self._lp.address, INF, until_ps)
            else:
                status = tm.work(self._context.address, 0, INF, 0)
            if status == FULL:
                workers.make_room(self._lp)
            elif self._by_message and status == message_loop.TOO_LATE:
                raise RunError(TOO_LATE_TEXT)
            elif not self._by_message and status == FAILED:
                raise RunError(failed_queue_pair(self._sim, self._lp))
        # packets act to the end of a cell, so time is then there
        self.now_ps = max(self.now_ps, -(-until_ps // self.grid_ps) * self.grid_ps)
        return self._reports()

    def _reports(self) -> list[MessageReport]:
        """Return what messages have done since the last call, in order of time."""
        self._lp.take_flows()
        leaving = list(self._leaving)
        rows = [int(self._lp.row_ptr[src]) + row for src, row in leaving]
        times_ps = self._lp.world.rows.finish[rows].tolist()
        left = [(time_ps, place) for time_ps, place in zip(times_ps, leaving, strict=True) if time_ps >= 0]
        arrived = [
            (int(row.finished_ps), (int(pair_source(row.pair)), int(tag_lane(row.tag))))
            for rows in self._lp.flows_in
            for row in rows
        ]
        self._lp.flows_in.clear()
        self._lp.flows_out.clear()
        found = [MessageReport(time_ps, self._leaving.pop(place), has_arrived=False) for time_ps, place in left]
        found += [MessageReport(time_ps, self._arriving.pop(place), has_arrived=True) for time_ps, place in arrived]
        # a row is free again once its message has left and arrived
        for src, row in {place for _, place in (*left, *arrived)} - self._leaving.keys() - self._arriving.keys():
            self._free[src].append(row)
        return sorted(found)


# Compilation of all kernels that any run may use, before the first one (`nadi doctor --compile`).


def compile_all() -> float:
    """Compile or load all kernels of any run, and return the seconds."""
    begun = time.perf_counter()
    compile_entries()
    compile_hooks()
    return time.perf_counter() - begun


def compile_entries() -> None:
    """Compile or load the kernels that Python calls."""
    workers.compile_kernels()
    compile_for(message_loop.work_messages, 0, 0, 0)
    compile_for(message_loop.post_from_outside, 0, 0, 0, 0, 0, 0)
    compile_for(message_loop.next_message_event_ps, 0)
    compile_for(wait_on_links, 0, 0, 0)
    compile_for(follow_queues, *[np.zeros(1, np.int64)] * 6)


def compile_hooks() -> None:
    """Compile or load the kernels that other kernels call by their addresses, of which a run uses some."""
    for function in [*all_hooks(), *OTHER_TEAMS.values()]:
        hook_address(function)
