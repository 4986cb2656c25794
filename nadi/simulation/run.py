"""From a plan to results: `execute` decides nothing."""

import functools
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.compiling.decorators import jit_enabled
from nadi.compiling.kernel_cache import cache_complaint, note_compilation, what_was_not_kept
from nadi.launching.checkpoints import CheckpointFolder, usual_signals
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.workers import SERIAL, Workers
from nadi.launching.world import ALONE, RankGather
from nadi.pdes import work, work_messages
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.advance import advance
from nadi.simulation.compilation import announce_compilation, compile_plays
from nadi.simulation.job_times import job_finish_ps
from nadi.simulation.run_plan import FinishedRun, RunPlan
from nadi.simulation.wiring.engine_inputs import engine_inputs, results_of_traces
from nadi.simulation.wiring.fault_schedule import rerouted
from nadi.simulation.wiring.resource_checks import Estimate, estimate, of_all_ranks
from nadi.simulation.wiring.resource_checks import work as work_of
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.program import further_rows

SELDOM_REPEAT = "collectives of NVLink domains seldom repeat, so all of their packets are simulated from now on"
WITH_TICKS = "; with [system] tick, such as 1us, more of them repeat (docs/explanation/reuse.md)"


class _Silence(NoProgress):
    """Progress without output: the run with which another one is compared has warned already."""

    def warn(self, text: str) -> None:
        """Print nothing.

        Args:
            text: Text of the warning.
        """


def execute(
    plan: RunPlan,
    progress: Progress,
    checkpoints: CheckpointFolder | None = None,
    publish: Callable[[FinishedRun, RankGather], None] | None = None,
) -> FinishedRun:
    """Run a plan; on several ranks, each simulates its part. Raises pdes.RunError if the run failed.

    Args:
        plan: Plan of the run.
        progress: Display of the run's progress.
        checkpoints: Checkpoints that the run writes and continues from; None = no checkpoints.
        publish: Receiver of the run so far, cut off (`until_cut`), after each checkpoint, with the ranks that have
            parts of its results; None = no receiver.
    """
    ranks = plan.workers.ranks
    known = {field.name: getattr(plan, field.name) for field in fields(RunPlan)} | {"closed_form": None}
    if ranks.rank == 0:
        if plan.note:
            progress.say(plan.note)
        if plan.warning:
            progress.warn(plan.warning)
    formulas: set[tuple[int, int]] = set()
    if plan.settings.fidelity.model.has_links:
        if checkpoints is not None and publish is not None:
            # ranks without a part of the results do not take part
            publishing = ALONE if plan.workers.alone else ranks
            checkpoints.publish = lambda results: publish(
                FinishedRun(**known, results=until_cut(results_of_traces(results, plan.graph, plan.program))),
                publishing,
            )
        with usual_signals():
            results = run_program(
                *(plan.graph, plan.program, plan.settings, progress),
                *(plan.workers, plan.owner, plan.expected, checkpoints),
            )
    else:
        results = plan.workers.by_rank_0(plan.graph.npus, lambda: _at_closed_forms(plan, formulas, progress))
    finished = FinishedRun(**known, results=results, formulas=frozenset(formulas))
    if plan.without_faults is not None:
        if ranks.rank == 0:
            progress.say("the same run without its faults")
        finish_ps = execute(plan.without_faults(), _Silence()).results.finish_time_ps
        finished = replace(finished, without_faults_ps=finish_ps)
    return replace(finished, alone_ps=_times_alone_ps(plan, progress)) if plan.alone else finished


def _at_closed_forms(plan: RunPlan, formulas: set[tuple[int, int]], progress: Progress) -> pdes.Results:
    """Run a plan at closed forms; `formulas` gets the collectives whose times are not played."""
    assert plan.closed_form is not None  # noqa: S101 - that of rank 0, which runs this
    costs, folded = plan.closed_form
    compile_plays(plan.graph, plan.program, plan.settings, progress)
    costed = running.costed(folded, costs, plan.collectives)
    formulas.update(running.formulas(folded, costed, plan.program))
    compiles = announce_compilation(advance, progress)
    results = running.run(plan.graph, folded, costed, costs, plan.settings, progress)
    if compiles:
        note_compilation(advance, results.compile_s)
    return results


def _times_alone_ps(plan: RunPlan, progress: Progress) -> tuple[int, ...]:
    """Run each job of a plan alone, on the same NPUs, and return the time that each takes in picoseconds."""
    jobs, ranks = plan.program.jobs, plan.workers.ranks
    assert jobs is not None  # noqa: S101 - as there are plans of them alone
    times = []
    for number, resolve_alone in enumerate(plan.alone):
        if ranks.rank == 0:
            progress.say(f'job "{jobs.names[number]}" alone')
        run = execute(resolve_alone(), _Silence())
        # each rank knows the ends of its own NPUs only
        finish_ps = max(ranks.exchange(int(job_finish_ps(run.program, run.results)[0])))
        # a job that begins late begins then alone, too, so that its time counts from there
        times.append(finish_ps - int(jobs.begin_ps[number]))
    return tuple(times)


def until_cut(results: pdes.Results) -> pdes.Results:
    """Return the results of a run that is not over as if all its trace nodes ended at the cut at the latest.

    A node that is not done ends at the cut, and one that has not begun takes no time there.
    """
    snapshot_ps = results.finish_time_ps
    start_ps, finish_ps = (
        np.where(times_ps < 0, snapshot_ps, times_ps) for times_ps in (results.node_start_ps, results.node_finish_ps)
    )
    return replace(results, node_start_ps=start_ps, node_finish_ps=finish_ps)


def run_program(
    graph: Graph,
    program: Program,
    settings: pdes.Settings,
    progress: Progress,
    workers: Workers = SERIAL,
    owner: NDArray[np.int32] | None = None,
    expected: Estimate | None = None,
    checkpoints: pdes.Checkpoints | None = None,
) -> pdes.Results:
    """Build the state of a program and run it; announce the compilation of kernels.

    Args:
        graph: The fabric (`Graph`).
        program: Program of the NPUs, at least of this rank's.
        settings: The engine's settings of the run (`pdes.Settings`).
        progress: Display of the run's progress.
        workers: Ranks, processes and threads of the run.
        owner: int32[nodes], LP of each node; None = one LP.
        expected: Estimated work of all ranks, for the progress display; None = the function estimates it.
        checkpoints: Checkpoints that the run writes and continues from; None = no checkpoints.
    """
    expected = expected or of_all_ranks(estimate(graph, program, settings), workers.ranks)
    if_stopped = SELDOM_REPEAT + WITH_TICKS * (settings.tick_ps == 0)
    progress.expect(work_of(expected, settings), expected.replayable_hops, if_stopped)
    # one rank speaks for all
    reports_cache = jit_enabled() and workers.ranks.rank == 0
    if reports_cache:
        _warn_once(progress, cache_complaint())
    main_kernel = work_messages if settings.fidelity.hooks.act else work
    compiles = announce_compilation(main_kernel, progress)
    extended_graph, extended_program, owner = engine_inputs(graph, program, owner)
    if extended_graph is not graph:
        settings = replace(settings, faults=rerouted(settings.faults, extended_graph))
    compile_s = 0.0
    if compiles:  # before worlds need them
        compile_s = pdes.compile_kernels(pdes.Layout(extended_graph, settings, owner), settings)
    results = workers.run(extended_graph, extended_program, owner, settings, progress, checkpoints)
    # divided sends have rows of their own, which the traces of the user do not have
    further = sum(workers.ranks.exchange(further_rows(program)))
    counters = results.counters | {"trace_nodes": results.counters["trace_nodes"] - further}
    results = replace(results, compile_s=compile_s + results.compile_s, counters=counters)
    if compiles and reports_cache:
        note_compilation(main_kernel, results.compile_s)
    if reports_cache:
        _warn_once(progress, what_was_not_kept())
    return results_of_traces(results, graph, program)


@functools.cache
def _warn_once(progress: Progress, complaint: str) -> None:
    """Warn once why the next run will not find the compiled kernels."""
    if complaint:
        progress.warn(f"compiled kernels are not kept: {complaint}; `nadi doctor` explains why")
