"""Runs: what is decided about one before it begins (by `resolving`), its execution, and what it is when it is over."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.compiling import kernel_cache
from nadi.compiling.decorators import jit_enabled
from nadi.configuration.effects import WithoutEffect
from nadi.configuration.input_files import InputFiles
from nadi.configuration.run_config import RunConfig, Training
from nadi.et import TraceTable
from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.launching.checkpoints import CheckpointFolder, usual_signals
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.ranks import ALONE, RankGather
from nadi.launching.workers import SERIAL, Workers
from nadi.pdes import parallel
from nadi.pdes.parallel import work, work_messages
from nadi.simulation.assembly import engine_inputs, rerouted, results_of_traces
from nadi.simulation.assembly.reading import JobWork, OperatorSources
from nadi.simulation.assembly.resource_checks import Estimate, estimate, expected_work, of_all_ranks
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.advance import advance
from nadi.simulation.closed_forms.advancing.equivalence import ClassProgram
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.isolated import idle_settings
from nadi.simulation.followed_epochs import FollowedEpochs
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program
from nadi.workload.program import further_rows

# main kernels that this process has already loaded, whose cache entries need no second check
_LOADED_KERNELS: set[Callable[..., Any]] = set()
SELDOM_REPEAT = "collectives of NVLink domains seldom repeat, so all of their packets are simulated from now on"
WITH_TICKS = "; with [system] tick, such as 1us, more of them repeat (docs/explanation/reuse.md)"


class Roofline(NamedTuple):
    """Rates of a GPU that bound all computation."""

    peak_flops: float  # floating-point operations per second; 0 = not set
    bandwidth_Bps: float  # noqa: N815 - of the memory, in bytes per second; 0 = not set


@dataclass(frozen=True, eq=False, kw_only=True)
class RunPlan:
    """All that is decided about a run before it begins, and this rank's part of its inputs."""

    config: RunConfig  # settled values of the run file, which are only to be printed
    graph: Graph  # fabric of the run
    traces: list[TraceTable]  # distinct trace files
    trace_of_npu: NDArray[np.int32]  # int32[npus], trace of each NPU, -1 = none
    program: Program  # Program of the NPUs
    settings: pdes.Settings  # settings of the packet network, with faults, reuse, ticks and records
    collectives: CollectiveSettings  # algorithms of collectives
    operators: OperatorSources  # sources of the times of operators
    workers: Workers  # ranks and workers that run it
    owner: NDArray[np.int32] | None  # int32[nodes], logical process of each node; None = there is one
    expected: Estimate | None  # work of all ranks; None at closed forms
    # costs and classes of NPUs of a run at closed forms; None on other ranks than the first, and for other runs
    closed_form: tuple[CollectiveCosts, ClassProgram] | None
    files: Sequence[InputFiles]  # user files that the run reads, as they are before it
    memories: Sequence[int]  # NPUs that are remote memories
    jobs: Sequence[JobWork]  # work of each of [[jobs]], copy by copy
    training: Training | None  # model and plan that the run trains; None = neither is known, or there are [[jobs]]
    roofline: Roofline | None  # rates that bound computation in a run by rooflines
    flow_names: Sequence[str]  # groups whose messages are flows in a run of packets
    keeps_nodes: bool  # whether results have a row per trace node
    checkpoint_s: float  # wall time between two checkpoints in seconds, 0 = none
    identity: Mapping[str, Any]  # what must be equal where a run continues from a checkpoint; {} = none is written
    note: str  # what the run has chosen, its expected cost, or that more workers will not pay; "" = nothing
    model_warnings: Sequence[str]  # sentences about a model's run, which are printed before it begins
    warning: str  # sentence about keys without effect, which is printed before the run begins; "" = none
    warnings: Sequence[str]  # sentences about inputs, for the results
    without_effect: WithoutEffect  # keys and faults that change nothing, as far as they are known before the run
    if_no_time: str  # why the run takes no time, if it takes none
    epochs: FollowedEpochs | None  # epochs of optical switches that follow phases of the workload
    without_faults: Callable[[], "RunPlan"] | None  # plan of the same run without its faults, if results compare it
    alone: Sequence[Callable[[], "RunPlan"]]  # plan of each job alone on the fabric, if results compare them


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedRun(RunPlan):
    """A finished run with its plan and results."""

    results: pdes.Results  # times, counters, flows and links
    # schedule and size of the collectives that a closed-form run computes by formula; it simulates the others
    formulas: frozenset[tuple[int, int]] = frozenset()
    alone_ps: tuple[int, ...] = ()  # time in picoseconds of each job alone on the fabric; () = not simulated
    # when the last NPU reports each phase that optical switches follow, but the last one
    phase_reports_ps: tuple[int, ...] = ()
    without_faults_ps: int = -1  # end of the same run without faults, in picoseconds; -1 = not simulated

    def peak_rss_bytes(self) -> int:
        """Return the peak resident memory in bytes of this rank and of the processes that it forked."""
        return parallel.peak_rss_bytes() + self.results.workers_rss_bytes


def announce_compilation(kernel: Callable[..., Any], progress: Progress) -> bool:
    """Print a line if a main kernel must be compiled first, with the time that this took before; return whether.

    Args:
        kernel: The main kernel of the run.
        progress: Display of the run's progress.
    """
    if not jit_enabled() or kernel in _LOADED_KERNELS:
        return False
    # only the first run of a process can have to compile
    _LOADED_KERNELS.add(kernel)
    if kernel_cache.is_warm(kernel):
        return False
    seconds = kernel_cache.last_compilation_s(kernel)
    hint = "" if seconds is None else f" (it took {seconds:.0f} s here before)"
    progress.say(f"compiling the kernels, once, into {kernel_cache.cache_dir()}{hint}")
    return True


def compile_isolated(graph: Graph, program: Program, settings: pdes.Settings, progress: Progress) -> None:
    """Compile the kernels that simulate collectives as packets, in a run that simulates no packets itself.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        progress: Display of the run's progress.
    """
    model = settings.fidelity.model
    simulates = model.has_headers and not model.has_packets and bool((program.node_schedule >= 0).any())
    if simulates and announce_compilation(work, progress):
        idle = idle_settings(graph, settings)
        kernel_cache.note_compilation(work, parallel.compile_kernels(parallel.Layout(graph, idle), idle))


def job_finish_ps(program: Program, results: pdes.Results) -> Int64:
    """Return int64[jobs]: the end of the last trace node of each job on this rank's NPUs; 0 where there are none.

    Args:
        program: Work of all NPUs (`Program`).
        results: Results of the run.
    """
    jobs = program.jobs
    if jobs is None:
        return np.zeros(0, np.int64)
    finish_ps = np.zeros(len(jobs.names), np.int64)
    job_of_npu = jobs.of_npus()
    has_rows = np.flatnonzero(np.diff(results.npu_node_ptr) > 0)
    if len(has_rows):
        of_npu = np.zeros(program.npus, np.int64)
        # reduceat takes no empty stretches, so NPUs without rows are left out
        of_npu[has_rows] = np.maximum.reduceat(results.node_finish_ps, results.npu_node_ptr[has_rows])
        if results.kept_rows is not None:
            of_npu = of_npu[results.kept_rows.like]
        works = job_of_npu >= 0
        np.maximum.at(finish_ps, job_of_npu[works], of_npu[works])
    return finish_ps


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
            more, results = _epochs_found(plan, progress)
            known |= more
            # a run that saves its state, or continues from one, has its circuits from the begin on
            if results is None or checkpoints is not None:
                inputs = plan.graph, plan.program, known["settings"], progress
                results = run_program(*inputs, plan.workers, plan.owner, plan.expected, checkpoints)
    else:
        results = plan.workers.by_rank_0(plan.graph.npus, lambda: _at_closed_forms(plan, formulas, progress))
    finished = FinishedRun(**known, results=results, formulas=frozenset(formulas))
    if plan.without_faults is not None:
        if ranks.rank == 0:
            progress.say("the same run without its faults")
        finish_ps = execute(plan.without_faults(), _Silence()).results.finish_time_ps
        finished = replace(finished, without_faults_ps=finish_ps)
    return replace(finished, alone_ps=_times_alone_ps(plan, progress)) if plan.alone else finished


def _epochs_found(plan: RunPlan, progress: Progress) -> tuple[dict[str, Any], pdes.Results | None]:
    """Find the begins of epochs that follow phases; return them by fields of FinishedRun, and results if there are."""
    if plan.epochs is None:
        return {}, None

    def run(settings: pdes.Settings) -> pdes.Results:
        return run_program(plan.graph, plan.program, settings, progress, plan.workers, plan.owner, plan.expected)

    exchange = plan.workers.ranks.exchange
    reports_ps, results = plan.epochs.find(plan.settings, run, exchange, progress, _likely_ps(plan))
    settings = replace(plan.settings, faults=plan.epochs.faults(reports_ps))
    return {"settings": settings, "phase_reports_ps": reports_ps}, results


def _likely_ps(plan: RunPlan) -> int:
    """Return a rough estimate, rather too long, of the time in ps that a run takes: its computation and its bytes."""
    program = plan.program
    compute_ps = np.diff(np.append(0, np.cumsum(program.node_duration_ps))[program.trace_ptr]).max(initial=0)
    wire_bytes = plan.expected.wire_bytes if plan.expected else 0.0
    ps_per_byte = PS_PER_BYTE_AT_1_BPS / int(plan.graph.link_rate_bps.min())
    # all NPUs send at a time, over the slowest links, and wait for each other
    return int(max(plan.workers.ranks.exchange(int(compute_ps)))) + int(4 * wire_bytes * ps_per_byte / program.npus)


def _at_closed_forms(plan: RunPlan, formulas: set[tuple[int, int]], progress: Progress) -> pdes.Results:
    """Run a plan at closed forms; `formulas` gets the collectives whose times are not simulated."""
    assert plan.closed_form is not None  # noqa: S101 - that of rank 0, which runs this
    costs, by_class = plan.closed_form
    compile_isolated(plan.graph, plan.program, plan.settings, progress)
    costed = running.costed(by_class, costs, plan.collectives)
    formulas.update(running.formulas(by_class, costed, plan.program))
    compiles = announce_compilation(advance, progress)
    results = running.run(plan.graph, by_class, costed, costs, plan.settings, progress)
    if compiles:
        kernel_cache.note_compilation(advance, results.compile_s)
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
    checkpoints: parallel.Checkpoints | None = None,
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
    progress.expect(expected_work(expected, settings), expected.replayable_hops, if_stopped)
    # one rank speaks for all
    reports_cache = jit_enabled() and workers.ranks.rank == 0
    if reports_cache:
        _warn_once(progress, kernel_cache.cache_complaint())
    main_kernel = work_messages if settings.fidelity.hooks.act else work
    compiles = announce_compilation(main_kernel, progress)
    extended_graph, extended_program, owner = engine_inputs(graph, program, owner)
    if extended_graph is not graph:
        settings = replace(settings, faults=rerouted(settings.faults, extended_graph))
    compile_s = 0.0
    if compiles:  # before worlds need them
        compile_s = parallel.compile_kernels(parallel.Layout(extended_graph, settings, owner), settings)
    results = workers.run(extended_graph, extended_program, owner, settings, progress, checkpoints)
    # divided sends have rows of their own, which the traces of the user do not have
    further = sum(workers.ranks.exchange(further_rows(program)))
    counters = results.counters | {"trace_nodes": results.counters["trace_nodes"] - further}
    results = replace(results, compile_s=compile_s + results.compile_s, counters=counters)
    if compiles and reports_cache:
        kernel_cache.note_compilation(main_kernel, results.compile_s)
    if reports_cache:
        _warn_once(progress, kernel_cache.what_was_not_kept())
    return results_of_traces(results, graph, program)


@functools.cache
def _warn_once(progress: Progress, reason: str) -> None:
    """Warn once why the next run will not find the compiled kernels."""
    if reason:
        progress.warn(f"compiled kernels are not kept: {reason}; `nadi doctor` explains why")
