"""From the configuration of a run file to results: each stage is called once, in order."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pdes
from compiling.kernel_cache import (
    cache_complaint,
    cache_dir,
    is_warm,
    last_compilation_s,
    note_compilation,
    what_was_not_kept,
)
from et import TraceTable
from inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.configuration.effects import without_effect
from nadi.configuration.from_model import model_and_plan, serving_and_requests
from nadi.configuration.input_files import InputFiles, changed_paths, files_read
from nadi.configuration.sections import NetworkSection, RunConfig, SystemSection, engine_settings
from nadi.errors import ConfigError
from nadi.launching.checkpoints import CheckpointFolder, usual_signals
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.sources import source_hash
from nadi.launching.workers import SERIAL, Workers
from nadi.launching.world import ALONE, RankGather, together
from nadi.simulation import fidelities
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.advance import advance
from nadi.simulation.closed_forms.advancing.folded_program import FoldedProgram
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.idle_fabric import idle_settings
from nadi.simulation.coupled_flows import coupled_collectives, of_coupled
from nadi.simulation.fidelities import fabric_settings as fabric
from nadi.simulation.job_times import times_alone_ps, without_faults_ps
from nadi.simulation.nvlink_stand_ins import with_nvlink_closed_forms
from nadi.simulation.wiring import affordable
from nadi.simulation.wiring.affordable import Estimate, estimate, of_all_ranks
from nadi.simulation.wiring.affordable import work as work_of
from nadi.simulation.wiring.fault_schedule import check_supported, rerouted, schedule, with_slow_links
from nadi.simulation.wiring.flow_traffic import with_flows
from nadi.simulation.wiring.freed_memory import return_freed_memory
from nadi.simulation.wiring.in_network import with_reducers, without_reducers
from nadi.simulation.wiring.partitioning import place
from nadi.simulation.wiring.reading import LoadedWorkload, OperatorSources, built_fabric, with_interference
from pdes import LONGEST_RUN_PS, jit_enabled, work, work_messages
from topologies import Graph
from topologies.units import format_time
from workload import CollectiveSettings, Program

SELDOM_REPEAT = "collectives of NVLink domains seldom repeat, so all of their packets are simulated from now on"
WITH_TICKS = "; with [system] tick, such as 1us, more of them repeat (docs/explanation/reuse.md)"


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run with its inputs and results."""

    config: RunConfig  # configuration of the run file
    graph: Graph  # fabric of the run
    traces: list[TraceTable]  # distinct trace files
    trace_of_npu: NDArray[np.int32]  # int32[npus], trace of each NPU, -1 = none
    program: Program  # Program of the NPUs
    settings: pdes.Settings  # settled settings of the packet network
    collectives: CollectiveSettings  # settled algorithms of collectives
    workers: Workers  # ranks and workers that ran it
    results: pdes.Results  # times, counters, flows and links
    operators: OperatorSources  # sources of the times of operators
    files: Sequence[InputFiles] = ()  # user files that the run read, as they were when it began
    # schedule and size of the collectives that a closed-form run computes by formula; it plays the others
    formulas: frozenset[tuple[int, int]] = frozenset()
    alone_ps: tuple[int, ...] = ()  # time in picoseconds of each job alone on the fabric; () = not simulated
    without_faults_ps: int = -1  # end of the same run without faults, in picoseconds; -1 = not simulated

    def peak_rss_bytes(self) -> int:
        """Return the peak resident memory in bytes of this rank and of the processes that it forked."""
        return pdes.peak_rss_bytes() + self.results.workers_rss_bytes


def simulate(
    config: RunConfig,
    progress: Progress | NoProgress,
    ranks: RankGather = ALONE,
    *,
    force: bool = False,
    keep_flows: bool = True,
    checkpoints: CheckpointFolder | None = None,
    publish: Callable[[FinishedRun, RankGather], None] | None = None,
) -> FinishedRun:
    """Run the simulation that a run file describes; on several ranks, each simulates its part.

    `force`: True = also try a run that needs more memory than is free, or more than a day.
    `checkpoints`: where the run saves its state, and from which it continues; None = nowhere.
    `keep_flows`: True = the results have a row for each message, if the run file enables that table.
    `publish`: receives the run so far, cut off (`until_cut`), after each checkpoint, with the ranks that have parts of
    its results; None = nobody does.
    Raises TopologyError, TraceError, WorkloadError or PartitionError if the user's input is wrong (exit code 2);
    AgreedError if the input is wrong, on several ranks; pdes.RunError if the run failed (exit code 1).
    """
    with together(ranks):
        _refuse(config, ranks.size, force=force)
        workers = _workers(config, ranks)
        config, graph, work, owner, settings = _set_up(config, workers, progress, force=force, keep_flows=keep_flows)
        files = files_read(config, exchange=ranks.exchange, may_open=work.opens)
        if checkpoints is not None:
            checkpoints.identify(_identity(config, files))
    derived: set[tuple[int, int]] = set()  # collectives at closed forms whose times are not played

    def finished(results: pdes.Results) -> FinishedRun:
        inputs = config, graph, work.traces, work.trace_of_npu, work.program, settings, work.collectives, workers
        return FinishedRun(*inputs, results, work.operators, files, frozenset(derived))

    def run_closed_forms() -> pdes.Results:
        costs, folded = _lay_out(graph, work, settings, force=force)
        _compile_plays(graph, work.program, settings, progress)
        costed = running.costed(folded, costs, work.collectives)
        derived.update(running.formulas(folded, costed, work.program))
        _warn(config, progress)
        compiles = _announce_compilation(advance, progress)
        results = running.run(graph, folded, costed, costs, settings, progress)
        if compiles:
            note_compilation(advance, results.compile_s)
        return results

    if not settings.fidelity.model.has_links:
        results = workers.by_rank_0(graph.npus, run_closed_forms)
    else:
        with together(ranks):
            work, own, is_coupled = _estimated(config.network, graph, work, settings)
            _compile_plays(graph, work.program, settings, progress, ranks)
            if is_coupled and ranks.rank == 0:
                network = config.network.model_copy(update=settings.fidelity.own.coupled)
                config = config.model_copy(update={"network": network})
                kinds = coupled_collectives(work.program, CollectiveCosts(graph, settings), work.collectives)
                settings = replace(settings, coupled=kinds)
        expected = of_all_ranks(own, ranks)
        settings, own = affordable.with_rows_of_messages(config.output.flows, settings, own, expected.messages)
        with together(ranks):
            affordable.check_run(own, expected, settings, workers.total, force=force)
            # only after check_run: the pairs of NPUs of a run that it refuses would fill the memory
            affordable.check_counters(graph, work.program, own)
        _warn(config, progress, ranks)
        if checkpoints is not None and publish is not None:
            publishing = ALONE if workers.alone else ranks
            checkpoints.publish = lambda results: publish(
                finished(until_cut(without_reducers(results, graph, work.program))), publishing
            )
        with usual_signals():
            results = run_program(graph, work.program, settings, progress, workers, owner, expected, checkpoints)
    simulation = finished(results)
    again = functools.partial(_again, force=force)
    if config.output.without_faults and config.faults:
        simulation = replace(simulation, without_faults_ps=without_faults_ps(config, again, progress, ranks))
    if config.output.alone and config.jobs:
        simulation = replace(simulation, alone_ps=times_alone_ps(simulation, again, progress, ranks))
    return simulation


def until_cut(results: pdes.Results) -> pdes.Results:
    """Return the results of a run that is not over as if all its trace nodes ended at the cut at the latest.

    A node that is not done ends at the cut, and one that has not begun takes no time there.
    """
    cut_ps = results.finish_time_ps
    start_ps, finish_ps = (
        np.where(times_ps < 0, cut_ps, times_ps) for times_ps in (results.node_start_ps, results.node_finish_ps)
    )
    return replace(results, node_start_ps=start_ps, node_finish_ps=finish_ps)


def _identity(config: RunConfig, files: Sequence[InputFiles]) -> dict[str, Any]:
    """Return what must be equal where a run continues from a checkpoint: sources, keys that matter, and files."""
    sections = changed_paths(config, lambda path: Path(path).name).settled()  # folders may have moved
    sections.pop("energy", None)
    engine, output = sections["engine"], sections["output"]
    sections["engine"] = {key: engine[key] for key in ("seed", "reuse", "fast_forward")}
    sections["output"] = {key: output[key] for key in output if key not in {"dir", "report", "alone", "without_faults"}}
    hashes = {entry.key: entry.sha256 for entry in files if entry.key.partition(".")[0] not in {"engine", "energy"}}
    return {"sources": source_hash(), "keys": sections, "files": hashes}


def _again(config: RunConfig, progress: NoProgress, ranks: RankGather, *, force: bool) -> FinishedRun:
    """Simulate another configuration to compare with, without further results."""
    output = config.output.model_copy(update={"alone": False, "without_faults": False})
    return simulate(config.model_copy(update={"output": output}), progress, ranks, force=force, keep_flows=False)


def check_job(
    config: RunConfig,
    nodes: int,
    ranks_per_node: int,
    threads_per_rank: int,
    progress: Progress | NoProgress,
    limits: affordable.NodeLimits,
) -> affordable.JobCost:
    """Check a run of a batch job on `nodes` nodes as `simulate` would check it there, and estimate its cost.

    `limits` are the resources of a node.
    Raises ConfigError, TopologyError, TraceError, WorkloadError or PartitionError if `simulate` would refuse the run.
    """
    ranks, force = nodes * ranks_per_node, limits.force
    _refuse(config, ranks, force=force)
    alone = not config.network.several_workers
    workers = Workers(workers=ranks * threads_per_rank, lps_per_worker=config.engine.lps_per_worker, alone=alone)
    config, graph, work, _, settings = _set_up(config, workers, progress, force=force, keep_flows=True)
    if not settings.fidelity.model.has_links:
        _, folded = _lay_out(graph, work, settings, force=force)
        return affordable.cost_at_closed_forms(int(folded.row_ptr[-1]), graph, limits)
    work, expected, _ = _estimated(config.network, graph, work, settings)
    settings, expected = affordable.with_rows_of_messages(config.output.flows, settings, expected, expected.messages)
    cost = affordable.cost_of_packets(expected, graph, settings, nodes, ranks_per_node, workers.total, limits)
    affordable.check_counters(graph, work.program, expected)
    return cost


def _set_up(
    config: RunConfig, workers: Workers, progress: Progress | NoProgress, *, force: bool, keep_flows: bool
) -> tuple[RunConfig, Graph, LoadedWorkload, NDArray[np.int32] | None, pdes.Settings]:
    """Return the configuration with interference settled, fabric, this rank's work, owners of nodes, and settings.

    The function refuses unsupported combinations. `force`: allow plans that need more memory than is free;
    `keep_flows`: results may have a row per message.
    """
    graph = built_fabric(config)
    work, owner = place(config, graph, workers, progress, force=force)
    return_freed_memory()
    config, job_slowdowns = with_interference(config, graph, work.frameworks)
    network, record_flows = config.network, keep_flows and config.output.flows != "none"
    settings = network_settings(network, config.system, seed=config.engine.seed, record_flows=record_flows)
    sharers = config.memory.remote_sharers if config.memory.remote == "npu" else 1
    traffic = config.workload.traffic
    pairs = settings.queue_pairs if traffic is None else traffic.queue_pairs
    sample_ps = _sample_ps(config, graph, settings)
    # collectives that are replayed send no packets, which samples count
    reuse = config.engine.reuse == "exact" and not sample_ps
    settings = replace(
        settings,
        job_slowdowns=job_slowdowns,
        reuse=reuse,
        fast_forward=config.engine.fast_forward,
        queue_pairs=pairs,
        remote_sharers=sharers,
        sample_ps=sample_ps,
    )
    check_supported(config.faults, network)
    faults = schedule(config.faults, network.detection_time, graph, cut_through=network.cut_through)
    if faults:
        settings = replace(settings, faults=faults)
    slowdown = max([1.0, *(fault.slowdown or 1.0 for fault in config.faults)])
    slowdown *= max(job_slowdowns, default=settings.compute_slowdown)
    longest_ps = int(work.program.node_duration_ps.max(initial=0))
    if slowdown > 1 and longest_ps * slowdown > LONGEST_RUN_PS:
        raise ConfigError(
            f"compute_slowdown and slowdown of [[faults]] make a node of {format_time(longest_ps)} take {slowdown:g} "
            f"times as long; expected at most 26 days"
        )
    settings = fabric.fitted(graph, with_flows(settings, work.program, network.flows))
    return config, graph, work, owner, settings


def _sample_ps(config: RunConfig, graph: Graph, settings: pdes.Settings) -> int:
    """Return the interval of samples of links in picoseconds, 0 = no samples; refuse one shorter than a packet."""
    if config.output.sample is None or not config.network.model.has_packets:
        return 0
    packet_bytes = settings.mtu_bytes + settings.header_bytes
    packet_ps = round(packet_bytes * PS_PER_BYTE_AT_1_BPS / int(graph.link_rate_bps.min()))
    if config.output.sample < packet_ps:
        raise ConfigError(
            f"[output] sample: found {format_time(config.output.sample)}; expected at least {format_time(packet_ps)}, "
            "which a packet takes on the slowest link"
        )
    return config.output.sample


def _estimated(
    network: NetworkSection, graph: Graph, work: LoadedWorkload, settings: pdes.Settings
) -> tuple[LoadedWorkload, Estimate, bool]:
    """Return the work with [network] nvlink, its estimate, and whether collectives are coupled; then without nvlink."""
    loaded = work
    if network.nvlink != "messages" and not settings.fidelity.own.couples(0):
        work = work._replace(program=with_nvlink_closed_forms(graph, work.program, settings, work.collectives))
    own = estimate(graph, work.program, settings)
    if not settings.fidelity.own.couples(own.messages):
        return work, own, False
    if loaded is not work:
        own = estimate(graph, loaded.program, settings)
    return loaded, of_coupled(graph, loaded.program, settings, own), True


def _refuse(config: RunConfig, num_ranks: int, *, force: bool) -> None:
    """Refuse worker processes on several MPI ranks, and, unless `force`, too large fabrics or models."""
    if num_ranks > 1 and config.engine.backend == "processes":
        raise ConfigError(f"[engine] backend: found processes on {num_ranks} MPI ranks; expected threads there")
    if num_ranks > 1 and config.engine.fast_forward:
        raise ConfigError(f"[engine] fast_forward: found on {num_ranks} MPI ranks; expected threads of one process")
    if config.topology.graph is None:  # a fabric given by Python is already built
        affordable.check_fabric(config.topology.source(), force=force)
    from workload.generators.training.generator import NODE_BYTES, nodes_at_most

    for single in config.single_jobs():
        served, trained = serving_and_requests(single), model_and_plan(single)
        if served is not None:
            from workload.generators.inference.generator import nodes_at_least

            nodes = nodes_at_least(*served)
            affordable.check_trace(nodes, fewer="requests or tokens", node_bytes=NODE_BYTES, force=force)
        if trained is not None:
            nodes = nodes_at_most(*trained, single.workload.framework)
            affordable.check_trace(nodes, fewer="micro-batches or steps", node_bytes=NODE_BYTES, force=force)


def _lay_out(
    graph: Graph, work: LoadedWorkload, settings: pdes.Settings, *, force: bool
) -> tuple[CollectiveCosts, FoldedProgram]:
    """Return costs and folded program of a run at closed forms; refuse too much memory unless `force`."""
    costs = CollectiveCosts(with_slow_links(graph, settings.faults), settings, planned_on=graph)
    folded = running.laid_out(
        graph, work.program, costs, slow_npus=settings.faults.npus, job_slowdowns=settings.job_slowdowns
    )
    affordable.check_rows(int(folded.row_ptr[-1]), force=force)
    return costs, folded


def _warn(config: RunConfig, progress: Progress | NoProgress, ranks: RankGather = ALONE) -> None:
    """Warn of keys without effect, after all checks and before a run that may take long."""
    warning = without_effect(config)
    if warning and ranks.rank == 0:
        progress.warn(warning)


def _workers(config: RunConfig, ranks: RankGather) -> Workers:
    """Return the workers of the run file, or one worker if the network's model supports only one."""
    if not config.network.several_workers:
        return Workers(ranks, alone=True)
    engine = config.engine
    return Workers(ranks, engine.backend, engine.workers, engine.lps_per_worker, engine.share_memory)


def run_program(
    graph: Graph,
    program: Program,
    settings: pdes.Settings,
    progress: Progress | NoProgress,
    workers: Workers = SERIAL,
    owner: NDArray[np.int32] | None = None,
    expected: Estimate | None = None,
    checkpoints: pdes.Checkpoints | None = None,
) -> pdes.Results:
    """Build the state of a program and run it on `workers`; announce the compilation of kernels.

    `program`: Program of the NPUs, at least of this rank's.
    `owner`: int32[nodes], LP of each node; None = one LP.
    `expected`: Estimated work of all ranks, for the progress display; None = the function estimates it.
    `checkpoints`: where the run saves its state, and from which it continues.
    """
    expected = expected or of_all_ranks(estimate(graph, program, settings), workers.ranks)
    if_stopped = SELDOM_REPEAT + WITH_TICKS * (settings.tick_ps == 0)
    progress.expect(work_of(expected, settings), expected.replayable_hops, if_stopped)
    reports_cache = jit_enabled() and workers.ranks.rank == 0
    if reports_cache:
        _warn_once(progress, cache_complaint())
    main_kernel = work_messages if settings.fidelity.hooks.act else work
    compiles = _announce_compilation(main_kernel, progress)
    extended_graph, extended_program, owner = with_reducers(graph, program, owner)
    if extended_graph is not graph:
        settings = replace(settings, faults=rerouted(settings.faults, extended_graph))
    compile_s = pdes.compile_kernels(extended_graph, settings) if compiles else 0.0  # before worlds need them
    results = workers.run(extended_graph, extended_program, owner, settings, progress, checkpoints)
    results = replace(results, compile_s=compile_s + results.compile_s)
    if compiles and reports_cache:
        note_compilation(main_kernel, results.compile_s)
    if reports_cache:
        _warn_once(progress, what_was_not_kept())
    return without_reducers(results, graph, program)


def _compile_plays(
    graph: Graph,
    program: Program,
    settings: pdes.Settings,
    progress: Progress | NoProgress,
    ranks: RankGather = ALONE,
) -> None:
    """Compile the kernels that play collectives as packets on rank 0, in a run that simulates no packets itself."""
    model = settings.fidelity.model
    plays = model.has_headers and not model.has_packets and bool((program.node_schedule >= 0).any())
    if plays and ranks.rank == 0 and _announce_compilation(work, progress):
        note_compilation(work, pdes.compile_kernels(graph, idle_settings(graph, settings)))


# main kernels that this process has already loaded, whose cache entries need no second check
_LOADED_KERNELS: set[Callable[..., Any]] = set()


def _announce_compilation(kernel: Callable[..., Any], progress: Progress | NoProgress) -> bool:
    """Print a line if a main kernel must be compiled first, with the time that this took before; return whether."""
    if not jit_enabled() or kernel in _LOADED_KERNELS:
        return False
    _LOADED_KERNELS.add(kernel)
    if is_warm(kernel):
        return False
    seconds = last_compilation_s(kernel)
    hint = "" if seconds is None else f" (it took {seconds:.0f} s here before)"
    progress.say(f"compiling the kernels, once, into {cache_dir()}{hint}")
    return True


@functools.cache
def _warn_once(progress: Progress | NoProgress, complaint: str) -> None:
    """Warn once why the next run will not find the compiled kernels."""
    if complaint:
        progress.warn(f"compiled kernels are not kept: {complaint}; `nadi doctor` explains why")


def network_settings(
    network: NetworkSection,
    system: SystemSection | None = None,
    *,
    seed: int = 1,
    record_nodes: bool = True,
    record_flows: bool = True,
) -> pdes.Settings:
    """Return the engine's settings for [network] and [system] and these options; refuse contradictory values."""
    keywords = engine_settings(pdes.Settings, system or SystemSection()) | fidelities.settings(network)
    return pdes.Settings(seed=seed, record_nodes=record_nodes, record_flows=record_flows, **keywords)
