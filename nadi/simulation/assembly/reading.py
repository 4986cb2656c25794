"""Fabric and workload of a run file: traces, collectives, the program of the NPUs, and the pace of computation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from nadi import pdes, topologies, workload
from nadi.configuration import DurationSources
from nadi.configuration.run_config import RunConfig, Training
from nadi.errors import ConfigError
from nadi.et import TraceError, TraceTable, read_groups
from nadi.et.files import npu_of
from nadi.inputs.arrays import Int32
from nadi.inputs.units import BITS_PER_BYTE
from nadi.simulation import network_settings as fabric
from nadi.simulation.assembly import resource_checks
from nadi.simulation.assembly.optical import NO_SWITCHES, OpticalSwitches, with_circuits
from nadi.simulation.assembly.placement import placements, traffic_traces
from nadi.simulation.assembly.source_paths import with_listed_paths
from nadi.simulation.network_settings import network_settings
from nadi.topologies import Graph, TopologyError
from nadi.topologies.endpoints import with_host_memories
from nadi.workload import CollectiveSettings, ComputeModel, Exchange, Program, TraceSet, WorkloadError, alone
from nadi.workload.collectives import defaults_on
from nadi.workload.compute import (
    ALONE,
    IN_SERVING,
    IN_STEPS,
    SOURCES,
    ComputeTimes,
    Efficiencies,
    find_gpu,
    read_tables,
)
from nadi.workload.generators.inference import names_requests
from nadi.workload.generators.point_to_point import OPS_PER_S
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, MEMORY
from nadi.workload.program import FabricJob, RemoteMemory, SharedParts, WorkOfRanks, build_jobs, with_memory_nodes
from nadi.workload.trace_sets import ELSEWHERE, IDLE, TRACE_ENDINGS, repeated

if TYPE_CHECKING:
    from nadi.workload.generators.training.rules import Framework

_PACES = {"serving": IN_SERVING, "alone": ALONE}


class OperatorSources(NamedTuple):
    """Sources of the times of the distinct operators of a run."""

    counts: dict[str, int]  # number of operators by source: measured, interpolated, scaled, roofline
    tables: str  # package and version of NVIDIA's tables, "" = not used

    def document(self) -> dict[str, Any]:
        """Return the entries of summary.json."""
        if not self.counts:
            return {}
        counts = {source: self.counts.get(source, 0) for source in SOURCES}
        return {"operators": counts, "operator_tables": self.tables}


class JobWork(NamedTuple):
    """Work of a copy of one of [[jobs]]."""

    is_traffic: bool  # whether it is messages without a model
    training: Training | None  # model and plan that it trains; None = not known


class LoadedWorkload(NamedTuple):
    """Work of all NPUs, or of this rank's NPUs."""

    traces: list[TraceTable]  # distinct trace files
    trace_of_npu: NDArray[np.int32]  # int32[npus], trace of each NPU, -1 = none, -2 = another rank's
    program: Program  # Program for the engine
    collectives: CollectiveSettings  # algorithms and options of collectives
    # of each entry of [[jobs]], or of [workload]: the framework of its training steps, "" = not known, and the number
    # of multiprocessors that their dispatcher of tokens holds beside computation, and whether products leave those free
    # that NCCL holds
    frameworks: tuple[tuple[str, int, bool], ...]
    operators: OperatorSources  # sources of the times of operators
    memories: tuple[int, ...] = ()  # NPUs that are remote memories
    jobs: tuple[JobWork, ...] = ()  # work of each of [[jobs]], copy by copy

    def opens(self, file: Path) -> bool:
        """Return whether this rank may open a file, which is False for traces that only other ranks have."""
        if not file.name.endswith(TRACE_ENDINGS) or not np.any(self.trace_of_npu == ELSEWHERE):
            return True
        npu = npu_of(file)
        if npu is None or npu >= len(self.trace_of_npu):
            return str(file) in {table.path for table in self.traces}
        return bool(self.trace_of_npu[npu] != ELSEWHERE)


@dataclass(frozen=True, eq=False)
class WorkReader:
    """Reader of what a configuration says about a fabric's NPUs: their work, and how they compute and communicate."""

    config: RunConfig
    graph: Graph  # fabric; with `remote = "node"` its last endpoints are the memories of its hosts
    exchange: Exchange = alone  # function by which ranks, which each read their own NPUs' work, exchange objects
    force: bool = False  # whether to build what needs more memory than is free, too
    optical: OpticalSwitches = NO_SWITCHES

    @classmethod
    def of(cls, config: RunConfig, exchange: Exchange = alone, *, force: bool = False) -> Self:
        """Return the reader of a configuration, whose fabric is built.

        Args:
            config: Configuration of the run.
            exchange: Exchange of values between ranks.
            force: Whether to build a fabric that takes too much memory.
        """
        graph = config.topology.graph
        if not isinstance(graph, Graph):
            source = config.topology.source()
            # before it is built, which could fill the memory
            resource_checks.check_fabric(source, force=force)
            graph = topologies.build(source, in_parts=bool(config.optical))
        network = config.network
        graph, switches = with_circuits(graph, config.optical, network.mtu + network.header)
        try:
            graph = with_host_memories(graph) if config.memory.remote == "node" else graph
        except TopologyError as error:
            raise ConfigError(f'[memory] remote: found "node", but {error}; expected "npu" or "pool"') from None
        graph = fabric.with_tiers(graph, config.network.tiers or {})
        graph = with_listed_paths(graph, network.source_routes, network.routing)
        return cls(config, graph, exchange, force, switches)

    def work(self, own_npus: NDArray[np.bool_] | None = None) -> LoadedWorkload:
        """Read the traces of a run file, check them against each other, and build the program.

        `own_npus`: bool[npus], True = the NPU belongs to this rank; None = all do. TraceError, WorkloadError and
        ConfigError refuse wrong traces.
        """
        if self.config.jobs:
            return self._work_of_jobs(own_npus)
        graph, memories = self.graph, self._memories()
        hosts = len(memories) if self.config.memory.remote == "node" else 0  # they come after the NPUs that have traces
        own = None if own_npus is None else own_npus[: graph.npus - hosts]
        traces = self.traces(np.arange(graph.npus - hosts, dtype=np.int32), own)
        if memories:
            traces = with_memory_nodes(_with_idle(traces, hosts, own_npus), memories, graph.host, self.exchange)
        work = self._work_of(traces)
        parts = SharedParts(work.settings)
        built = parts.build(work, graph, self.exchange, memory_nodes=memories)
        program = parts.program(built.trace_of_rank, built.groups, built.chooser, self.exchange)
        operators = _operator_sources([work], self.exchange)
        frameworks = ((traces.framework, traces.dispatch_sms, traces.leaves_sms),)
        loaded = list(traces.traces), traces.trace_of_npu, program, work.settings, frameworks, operators, memories
        return LoadedWorkload(*loaded)

    def _memories(self) -> tuple[int, ...]:
        """Return the endpoints that are remote memories: those of a pool, or the memories of hosts."""
        if self.config.memory.remote != "node":
            return self.config.memory.remote_npus
        return tuple(range(self.graph.npus - len(np.unique(self.graph.host)), self.graph.npus))

    def _work_of_jobs(self, own_npus: NDArray[np.bool_] | None) -> LoadedWorkload:
        """Return the work of [[jobs]]; the argument is that of `work`."""
        config, graph, exchange = self.config, self.graph, self.exchange
        is_here = np.ones(graph.npus, np.bool_) if own_npus is None else own_npus
        trace_of_npu = np.where(is_here, IDLE, ELSEWHERE).astype(np.int32)
        jobs: list[FabricJob] = []
        kinds: list[JobWork] = []
        traces: list[TraceTable] = []
        frameworks: list[tuple[str, int, bool]] = []
        works: list[WorkOfRanks] = []
        placed = placements(config.jobs, graph)
        for single, section, places in zip(config.single_jobs(), config.jobs, placed, strict=True):
            is_own = np.any([is_here[npus] for npus in places], axis=0)  # of any copy
            alone_there = replace(self, config=single)
            try:
                ranks = repeated(alone_there.traces(places[0], is_own), section.iterations)
                works.append(alone_there._work_of(ranks))  # noqa: SLF001 - of this class
            except (ConfigError, WorkloadError, TraceError) as error:
                raise ConfigError(f'job "{section.name}": {error}') from None
            for name, begin_ps, npus in zip(section.names, section.begins_ps, places, strict=True):
                trace_of_rank = np.where(is_here[npus], ranks.trace_of_npu, ELSEWHERE)
                pairs = section.traffic.queue_pairs if section.traffic is not None else ""
                jobs.append(FabricJob(name, works[-1]._replace(trace_of_rank=trace_of_rank), npus, begin_ps, pairs))
                trace_of_npu[npus] = np.where(trace_of_rank >= 0, trace_of_rank + len(traces), trace_of_rank)
            traces += ranks.traces
            frameworks.append((ranks.framework, ranks.dispatch_sms, ranks.leaves_sms))
            kinds += [JobWork(section.traffic is not None, single.training(section.iterations))] * section.repeat
        program = build_jobs(jobs, graph, is_here, exchange)
        copied = frozenset[str]().union(*(work.settings.copied for work in works))
        operators = _operator_sources(works, exchange)
        settings = replace(works[0].settings, copied=copied)
        memories = config.memory.remote_npus
        loaded = traces, trace_of_npu, program, settings, tuple(frameworks), operators, memories, tuple(kinds)
        return LoadedWorkload(*loaded)

    def _work_of(self, traces: TraceSet) -> WorkOfRanks:
        """Return the work of the traces of one job."""
        section = self.config.workload
        named = section.groups or (section.traces and workload.groups_of(section.traces))
        serves = any(self.exchange(any(names_requests(trace) for trace in traces.traces)))
        # A message stays whole without a library that divides it, on a queue pair of its own, where an NPU has one
        # mover for all messages, or sends one at a time, and where its packets take all ports in any case.
        network = self.config.network
        divides = section.traffic is None and not self.config.system.one_at_a_time
        divides &= network.queue_pairs == "pair" and network.p2p_share == 1
        divides &= network.nic_ports != "all" or not network.model.has_packets
        return WorkOfRanks(
            traces.traces,
            traces.trace_of_npu,
            traces.npus,
            read_groups(named) if named else {},
            self.compute_model(serves=serves, npus=int(np.count_nonzero(traces.trace_of_npu != IDLE))),
            replace(self.collective_settings(), copied=traces.copied, divides_sends=divides),
            traces.example_npu,
            traces.families,
        )

    def traces(self, npus: Int32, own_npus: NDArray[np.bool_] | None) -> TraceSet:
        """Return traces of files, of messages without a model, or of the run file's model.

        npus: int32[ranks], NPU of each rank; own_npus: bool[ranks], whether it belongs to this rank of MPI, None = all
        do.
        """
        section, count = self.config.workload, len(npus)
        if section.traces is not None:
            return workload.load_set(section.traces, count, strict=section.strict, own=own_npus, exchange=self.exchange)
        if section.trace_set is not None:
            traces = _given(section.trace_set, count)
        elif section.traffic is not None:
            traces = traffic_traces(section.traffic, self.graph, npus, force=self.force)
        else:
            traces = self.config.generated_traces(count, self.graph)
        # a set of fewer traces leaves the last NPUs idle
        trace_of_npu = np.full(count, IDLE, np.int32)
        trace_of_npu[: traces.npus] = traces.trace_of_npu
        if own_npus is not None:
            trace_of_npu[~own_npus] = ELSEWHERE
        return replace(traces, trace_of_npu=trace_of_npu)

    def settings(self, *, record_nodes: bool = True, record_flows: bool = True) -> pdes.Settings:
        """Return the engine's settings of the network, whatever the NPUs do; refuse contradictory values.

        Args:
            record_nodes: Whether results have a row per trace node.
            record_flows: Whether results have a row per message.
        """
        config = self.config
        records = {"record_nodes": record_nodes, "record_flows": record_flows}
        return network_settings(config.network, config.system, seed=config.engine.seed, **records)

    def fitted_settings(self, *, records: bool = True) -> pdes.Settings:
        """Return `settings`; refuse what does not suit the fabric.

        Args:
            records: Whether results have rows of trace nodes and messages.
        """
        return fabric.fitted(self.graph, self.settings(record_nodes=records, record_flows=records))

    def collective_settings(self) -> CollectiveSettings:
        """Return the settings of collectives on the fabric."""
        system = self.config.system
        return CollectiveSettings(
            defaults_on(self.graph) | system.collectives,
            self.config.workload.all_gather_size,
            splits=system.splits,
            dataset_splits=system.dataset_splits,
            chains=system.phases_per_dimension or 1,
            dimension_order=system.dimension_order,
            most_bytes=resource_checks.schedule_bytes(force=self.force),
        )

    def compute_model(self, *, serves: bool, npus: int) -> ComputeModel:
        """Return the model of durations.

        Args:
            serves: Whether the traces serve requests, which sets operators' default pace.
            npus: The number of NPUs that have traces, for the slowest of which a step waits.
        """
        if self.config.workload.traffic is not None:
            return ComputeModel(host_flops=OPS_PER_S)
        compute, memory, remote = self.config.compute, self.config.memory, None
        if memory.remote is not None:
            remote = RemoteMemory(
                latency_ps=memory.remote_latency,
                bandwidth_Bps=_bytes_per_s(memory.remote_bandwidth),
                is_there=memory.remote != "none",
            )
        return ComputeModel(
            model=compute.model,
            peak_flops=compute.peak_flops,
            memory_bandwidth_Bps=_bytes_per_s(memory.bandwidth),
            memory_latency_ps=memory.latency,
            times=self._compute_times(serves=serves, npus=npus),
            remote=remote,
            unit_ps=self.config.network.own_keys.unit_ps,
        )

    def _compute_times(self, *, serves: bool, npus: int) -> ComputeTimes | None:
        """Return the times of operators on the run file's GPU; None without GPU. serves, npus: see `compute_model`."""
        section = self.config.compute
        if section.gpu is None:
            # keys that would have no effect are refused
            beside = next((key for key in ("tables", "scale_from", "efficiency") if getattr(section, key)), None)
            if beside is not None:
                raise ConfigError(f'[compute] {beside} is set without gpu; expected gpu = "h100", or no {beside}')
            return None
        if section.scale_from is not None and not section.tables:
            raise ConfigError("[compute] scale_from is set without tables; expected tables that have rows of it")
        pace = section.pace or ("serving" if serves else "step")
        return ComputeTimes(
            find_gpu(section.gpu),
            read_tables(section.tables),
            vendor_tables=section.vendor_tables,
            scale_from=None if section.scale_from is None else find_gpu(section.scale_from),
            efficiencies=Efficiencies(**section.efficiency),
            pace=IN_STEPS.among(npus) if pace == "step" else _PACES[pace],
        )

    def interference(self, work: LoadedWorkload) -> tuple[float | None, tuple[float, ...]]:
        """Return compute_slowdown, None if jobs differ, and then that of each job, else ().

        It is 1 without a GPU or without a known framework.

        Args:
            work: The workload that was read.
        """
        config = self.config
        if config.system.compute_slowdown is not None:
            return config.system.compute_slowdown, ()
        singles = list(zip(work.frameworks, config.single_jobs(), strict=True))
        computing = {framework for framework, single in singles if single.workload.traffic is None} or {("", 0, True)}
        slowdown_of = {known: self._slowdown(known, work.memories) for known in sorted(computing)}
        if len(set(slowdown_of.values())) == 1:
            return min(slowdown_of.values()), ()
        # jobs that only send messages compute nothing
        of_entry = [1.0 if single.workload.traffic else slowdown_of[framework] for framework, single in singles]
        entries = zip(of_entry, config.jobs, strict=True)
        return None, tuple(slowdown for slowdown, job in entries for _ in range(job.repeat))

    def _slowdown(self, known: tuple[str, int, bool], memories: Sequence[int]) -> float:
        """Return the default of compute_slowdown for an entry of LoadedWorkload.frameworks."""
        compute, (framework, dispatch_sms, leaves_sms) = self.config.compute, known
        if not framework or compute.gpu is None:
            return 1.0
        from nadi.workload.generators.training import channels_on, compute_slowdown

        in_a_row = compute.pace in {None, "step"}  # the default pace of training steps
        gpu, channels = find_gpu(compute.gpu), channels_on(self.graph, memories)
        return compute_slowdown(
            cast("Framework", framework),
            gpu,
            channels,
            in_a_row=in_a_row,
            dispatch_sms=dispatch_sms,
            leaves_sms=leaves_sms,
        )


def _operator_sources(works: Sequence[WorkOfRanks], exchange: Exchange) -> OperatorSources:
    """Return the sources of the operators of all ranks, gathered by `exchange`, each operator once."""
    known = [work.compute.times for work in works if work.compute is not None and work.compute.times is not None]
    if not known:
        return OperatorSources({}, "")
    own = {operator: source for times in known for operator, source in times.sources().items()}
    sources = {operator: source for part in exchange(own) for operator, source in part.items()}
    return OperatorSources(dict(Counter(sources.values())), known[0].vendor_tables)


def _with_idle(traces: TraceSet, count: int, is_own_npu: NDArray[np.bool_] | None) -> TraceSet:
    """Return traces with `count` more NPUs, which are idle; is_own_npu: bool[npus], with these, None = all."""
    is_own = np.ones(count, bool) if is_own_npu is None else is_own_npu[len(is_own_npu) - count :]
    rest = np.where(is_own, IDLE, ELSEWHERE).astype(np.int32)
    return replace(traces, trace_of_npu=np.concatenate([traces.trace_of_npu, rest])) if count else traces


def _given(traces: TraceSet | str, num_npus: int) -> TraceSet:
    """Return traces that Python gave; refuse those of more NPUs than the fabric has.

    A text stands for the traces in a process that did not get them, as one that reads the run's results.
    """
    if isinstance(traces, str):
        raise ConfigError(f"[workload] trace_set: {traces:.100}; no file holds them, so only that process has them")
    if traces.npus > num_npus:
        raise ConfigError(
            f"[workload] trace_set: traces of {traces.npus} NPUs; expected at most {num_npus}, as the fabric has"
        )
    return traces


def _bytes_per_s(bandwidth_bps: int | None) -> float | None:
    """Return a bandwidth in bytes per second, or None."""
    return None if bandwidth_bps is None else bandwidth_bps / BITS_PER_BYTE


class WorkCounts(NamedTuple):
    """Counts of the trace nodes that the NPUs of a rank, or of all ranks, run."""

    nodes: int  # number of trace nodes
    timed: int  # number of compute and memory nodes
    collectives: int  # number of collective nodes
    remote: int  # number of nodes with a remote tensor in a run whose [memory] has no remote memory
    remote_npus: int  # number of NPUs that run such nodes
    times: DurationSources  # sources of the durations of compute and memory nodes
    first_remote: str  # file and node of the first such node; "" if there are no such nodes


def count(work: LoadedWorkload, *, has_remote_memory: bool, has_gpu: bool, model: str) -> WorkCounts:
    """Count the trace nodes of this rank's NPUs.

    Args:
        work: The workload that was read.
        has_remote_memory: Whether the run has [memory] remote.
        has_gpu: Whether the run has [compute] gpu.
        model: Value of [compute] model.
    """
    program = work.program
    npus = np.bincount(program.trace_of_npu[program.trace_of_npu >= 0], minlength=len(program.trace_ptr) - 1)
    # nodes of a trace count once for each NPU that has it
    users = np.repeat(npus, np.diff(program.trace_ptr))
    kind = program.node_kind
    remote, remote_npus, first = 0, 0, ""
    computed = np.zeros(3, np.int64)  # nodes with computed durations, by source; some may be of other types
    for number, table in enumerate(work.traces):
        running = int(np.count_nonzero(work.trace_of_npu == number))
        if not running:
            continue
        rows = np.flatnonzero(table.tensor_loc)
        if len(rows) and not has_remote_memory:
            first = first or f"{table.path}: node {table.node_id[rows[0]]}"
            remote += running * len(rows)
            remote_npus += running
        is_open = (table.duration_micros == 0) | (model == "roofline")
        by_operators = is_open & (table.operators > 0) & has_gpu
        rest = is_open & ~by_operators
        masks = by_operators, rest & (table.num_ops > 0), rest & (table.tensor_size > 0)
        computed += [np.count_nonzero(mask) for mask in masks]
    return WorkCounts(
        nodes=int(users.sum()),
        timed=int(users[(kind == COMPUTE) | (kind == MEMORY)].sum()),
        collectives=int(users[kind == COLLECTIVE].sum()),
        remote=remote,
        remote_npus=remote_npus,
        times=DurationSources(*computed.tolist()),
        first_remote=first,
    )


def total(counts_of_ranks: Sequence[WorkCounts]) -> WorkCounts:
    """Return the counts of all ranks together.

    Args:
        counts_of_ranks: Counts of each rank.
    """
    nodes, timed, collectives, remote, remote_npus, times, first_remote = zip(*counts_of_ranks, strict=True)
    sources = DurationSources(*map(sum, zip(*times, strict=True)))
    first = next(filter(None, first_remote), "")
    return WorkCounts(sum(nodes), sum(timed), sum(collectives), sum(remote), sum(remote_npus), sources, first)


def remote_tensors(counts: WorkCounts) -> str:
    """Return a warning if tensors are in remote memories that the run does not have, else "".

    Args:
        counts: Counts of trace nodes.
    """
    if not counts.remote:
        return ""
    return (
        f"{counts.remote:,} trace nodes on {counts.remote_npus:,} NPUs have a tensor that is not in local memory "
        f"(tensor_loc other than 0, first in {counts.first_remote}); without [memory] remote they are treated as "
        "local"
    )


def why_no_time(counts: WorkCounts, work: LoadedWorkload, model: str, traces: str) -> str:
    """Return why a run takes no time, should it take none.

    Args:
        counts: Counts of trace nodes.
        work: The workload that was read.
        model: Value of [compute] model.
        traces: Path of [workload] traces, for the text.
    """
    if counts.nodes == 0:
        files = "the trace is" if len(work.traces) == 1 else f"all {len(work.traces)} traces are"
        return f"no NPU has anything to do: {files} without nodes ({work.traces[0].path if work.traces else traces})"
    reasons = []
    if counts.timed and model == "trace":
        reasons.append(f'{counts.timed:,} compute and memory nodes have no duration, and [compute] model is "trace"')
    elif counts.timed:
        reasons.append(
            f"{counts.timed:,} compute and memory nodes have neither a duration nor, for a roofline, num_ops or "
            "tensor_size"
        )
    if counts.collectives:
        reasons.append(f"{counts.collectives:,} collectives have no other member to send to")
    others = counts.nodes - counts.timed - counts.collectives
    if others:
        reasons.append(f"{others:,} nodes are of types that take no time")
    return f"the run takes no time: {'; '.join(reasons)}"
