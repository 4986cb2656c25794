"""The driver: run a simulation to its end with any kind of workers."""

import time
from dataclasses import replace

import numpy as np

from nadi.pdes.checkpoint.contract import Checkpoints
from nadi.pdes.checkpoint.saver import Saver, reused
from nadi.pdes.construction.layout import Layout, Outboxes
from nadi.pdes.construction.settings import Settings
from nadi.pdes.construction.simulation import Progress, Simulation
from nadi.pdes.construction.worlds import build_lps
from nadi.pdes.core.errors import RunError
from nadi.pdes.core.inputs import Program
from nadi.pdes.nic.rate_limited import control_of, has_shares
from nadi.pdes.outcomes.outcome import LpResults, check, outcome_of, results
from nadi.pdes.results import Results, simulated_hops
from nadi.pdes.reuse.records import Records
from nadi.pdes.reuse.recurrence import Recurrence, may_recur
from nadi.pdes.reuse.replay import Replay
from nadi.pdes.workers.mailbox import Mailbox, ProcessPlace, SingleProcess
from nadi.pdes.workers.worker_pool import WorkerPool, compile_kernels


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
    alone = SingleProcess([lp.part for lp in sim.lps])
    return _run(sim.layout, sim.program, sim.settings, alone, threads, progress, sim, checkpoints)


def run_divided(
    layout: Layout,
    program: Program,
    settings: Settings,
    mailbox: Mailbox,
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


def _simulation(
    layout: Layout, program: Program, settings: Settings, place: ProcessPlace, built: Simulation | None
) -> Simulation:
    """Return the Simulation of the LPs of one process, which `place` lists: `built` if there is one, or a new one."""
    if place.post is None and built is not None:
        return built
    outboxes = Outboxes(place.parts) if place.post is None else place.post
    return build_lps(layout, program, settings, place.parts, outboxes)


def _run(
    layout: Layout,
    program: Program,
    settings: Settings,
    mailbox: Mailbox,
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
    compile_s = compile_kernels(layout, settings)
    trace = np.asarray(program.trace_of_npu)
    own_trace = trace[np.isin(layout.owner[: len(trace)], mailbox.lps(layout)) & (trace >= 0)]
    nodes_total = mailbox.sum(int(np.diff(program.trace_ptr)[own_trace].sum()))
    seconds = {"compile_s": compile_s}

    is_first = True

    def share(place: ProcessPlace) -> LpResults:
        """Run the LPs of one process, which `place` lists, and return their LpResults; seconds gets the wall times."""
        # a second run, after a disturbance, needs worlds of its own
        sim = _simulation(layout, program, settings, place, built if is_first else None)
        records = Records()
        for lp in sim.lps:
            lp.replay = Replay(sim, lp, records) if lp.domains else None
        saver = None if checkpoints is None else Saver(checkpoints, mailbox, place, sim, records)
        resumed_hops = 0
        if saver is not None and resumes and is_first:
            saver.restore(place.team)
            resumed_hops = simulated_hops(sum(int(lp.world.net.count.hops) for lp in sim.lps), records.counts())
        recurrence = Recurrence(sim, place.team, records) if may_recur(sim) else None
        workers = WorkerPool(sim, place, progress, nodes_total, saver, recurrence)
        seconds["setup_s"] = time.perf_counter() - begun - compile_s + (built.setup_s if built else 0.0)
        with mailbox.windows():
            started = time.perf_counter()
            workers.run()
            seconds["wall_s"] = time.perf_counter() - started
        for lp in sim.lps:
            if lp.replay:
                lp.replay.finish()
        seconds["first_event_s"] = workers.first_event_s
        return replace(outcome_of(sim), workers=workers.times(), reuse=records.counts(), resumed_hops=resumed_hops)

    total, own = mailbox.everywhere(layout, threads, share)
    if total.is_disturbed:
        is_first = layout.reuses = False
        total, own = mailbox.everywhere(layout, threads, share)
    try:
        check(total)
    except RunError as error:
        raise mailbox.failure(str(error)) from None
    return results(total, own, layout.graph, program, settings, **seconds)
