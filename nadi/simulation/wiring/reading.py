"""Workload of a run file: traces, collectives and the program of the NPUs."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import workload
from et import TraceTable, read_groups
from inputs.units import BITS_PER_BYTE
from nadi.configuration.from_model import trace_set
from nadi.configuration.sections import RunConfig
from nadi.errors import ConfigError
from nadi.simulation.trace_decoding.compiled import use_compiled_decoder
from nadi.simulation.wiring.affordable import schedule_bytes
from nadi.simulation.wiring.building import host_memories, memory_nodes
from topologies import Graph
from workload import CollectiveSettings, ComputeModel, Program
from workload.collectives import defaults_on
from workload.compute import ALONE, IN_SERVING, IN_STEPS, ComputeTimes, Efficiencies, find_gpu, read_tables
from workload.errors import Exchange, alone
from workload.generators.inference.request_names import names_requests
from workload.program.memory_pool import with_memory_nodes
from workload.program.remote import RemoteMemory
from workload.trace_sets.rank_traces import ELSEWHERE, IDLE

_PACES = {"step": IN_STEPS, "serving": IN_SERVING, "alone": ALONE}


class LoadedWorkload(NamedTuple):
    """Work of all NPUs, or of this rank's NPUs.

    Attributes:
        traces: Distinct trace files.
        trace_of_npu: int32[npus], trace of each NPU, -1 = none, -2 = another rank's.
        program: Program for the engine.
        collectives: Algorithms and options of collectives.
        framework: Framework whose training steps the traces are, "" = not known.
    """

    traces: list[TraceTable]
    trace_of_npu: NDArray[np.int32]
    program: Program
    collectives: CollectiveSettings
    framework: str

    def opens(self, file: Path) -> bool:
        """Return whether this rank may open a file, which is False for traces that only other ranks have."""
        if not file.name.endswith(workload.TRACE_ENDINGS) or not np.any(self.trace_of_npu == ELSEWHERE):
            return True
        npu = workload.npu_of(file)
        if npu is None or npu >= len(self.trace_of_npu):
            return str(file) in {table.path for table in self.traces}
        return bool(self.trace_of_npu[npu] != ELSEWHERE)


def read_work(
    config: RunConfig,
    graph: Graph,
    own: NDArray[np.bool_] | None = None,
    exchange: Exchange = alone,
    *,
    force: bool = False,
) -> LoadedWorkload:
    """Read the traces of a run file, check them against each other, and build the program.

    Args:
        config: Configuration of the run file.
        graph: Fabric of the run.
        own: bool[npus], True = the NPU belongs to this rank; None = all do.
        exchange: Function by which ranks exchange objects.
        force: True = also build plans of collectives that need more memory than is free.

    Raises:
        TraceError, WorkloadError: The traces are wrong, or plans need more memory than is free.
        ConfigError: There are traces of more NPUs than the fabric has, or only another process has the traces.
    """
    use_compiled_decoder()
    servers = memory_nodes(config, graph)
    traces = _trace_set(config, graph, own, exchange)
    if servers:
        traces = with_memory_nodes(traces, servers, graph.host, exchange)
    named = config.workload.groups or (config.workload.traces and workload.groups_of(config.workload.traces))
    groups = read_groups(named) if named else {}
    collectives = replace(collective_settings(config, graph, force=force), copied=traces.copied)
    program = workload.build_program(
        traces.traces,
        traces.trace_of_npu,
        graph.npus,
        groups,
        compute_model(config, serves=any(exchange(any(names_requests(trace) for trace in traces.traces)))),
        collectives,
        fabric=graph,
        exchange=exchange,
        example_npu=traces.example_npu,
        families=traces.families,
        memory_nodes=servers,
    )
    return LoadedWorkload(list(traces.traces), traces.trace_of_npu, program, collectives, traces.framework)


def collective_settings(config: RunConfig, graph: Graph, *, force: bool = False) -> CollectiveSettings:
    """Return the settings of collectives on a fabric; force: allow plans that need more memory than is free.

    Raises:
        WorkloadError: A kind, algorithm or parameter does not exist.
    """
    system = config.system
    return CollectiveSettings(
        defaults_on(graph) | system.collectives,
        config.workload.all_gather_size,
        splits=system.splits,
        dataset_splits=system.dataset_splits,
        chains=system.phases_per_dimension or 1,
        dimension_order=system.dimension_order,
        most_bytes=schedule_bytes(force=force),
    )


def _trace_set(config: RunConfig, graph: Graph, own: NDArray[np.bool_] | None, exchange: Exchange) -> workload.TraceSet:
    """Return the traces of files or of the run file's model; memories of hosts, the last endpoints, have no traces."""
    section, npus = config.workload, graph.npus - len(host_memories(config, graph))
    own_npus = None if own is None else own[:npus]
    if section.trace_set is not None:
        traces = _given(section.trace_set, npus, own_npus)
    elif section.traces is None:
        traces = trace_set(config, npus, own_npus)
    else:
        traces = workload.load_set(section.traces, npus, strict=section.strict, own=own_npus, exchange=exchange)
    is_own = np.ones(graph.npus - npus, bool) if own is None else own[npus:]
    rest = np.where(is_own, IDLE, ELSEWHERE).astype(np.int32)
    return replace(traces, trace_of_npu=np.concatenate([traces.trace_of_npu, rest])) if len(rest) else traces


def _given(traces: workload.TraceSet | str, npus: int, own: NDArray[np.bool_] | None) -> workload.TraceSet:
    """Return traces that Python gave, for a fabric that may have more NPUs."""
    if isinstance(traces, str):
        raise ConfigError(f"[workload] trace_set: {traces:.100}; no file holds them, so only that process has them")
    if traces.npus > npus:
        raise ConfigError(
            f"[workload] trace_set: traces of {traces.npus} NPUs; expected at most {npus}, as the fabric has"
        )
    trace_of_npu = np.full(npus, IDLE, np.int32)
    trace_of_npu[: traces.npus] = traces.trace_of_npu
    if own is not None:
        trace_of_npu[~own] = ELSEWHERE
    return replace(traces, trace_of_npu=trace_of_npu)


def compute_model(config: RunConfig, *, serves: bool) -> ComputeModel:
    """Return the model of durations.

    Args:
        config: Configuration of the run.
        serves: True = the traces serve requests, which sets the pace of operators unless the run file names one.

    Raises:
        WorkloadError: A GPU or a table is unknown or wrong.
    """
    bandwidth_bps = config.memory.bandwidth
    return ComputeModel(
        model=config.compute.model,
        peak_flops=config.compute.peak_flops,
        memory_bandwidth_Bps=None if bandwidth_bps is None else bandwidth_bps / BITS_PER_BYTE,
        memory_latency_ps=config.memory.latency,
        times=_compute_times(config, serves=serves),
        remote=_remote_memory(config),
    )


def _remote_memory(config: RunConfig) -> RemoteMemory | None:
    memory = config.memory
    if memory.remote is None:
        return None
    bandwidth_bps = memory.remote_bandwidth
    return RemoteMemory(
        latency_ps=memory.remote_latency,
        bandwidth_Bps=None if bandwidth_bps is None else bandwidth_bps / BITS_PER_BYTE,
        is_there=memory.remote != "none",
    )


def _compute_times(config: RunConfig, *, serves: bool) -> ComputeTimes | None:
    section = config.compute
    if section.gpu is None:
        beside = next((key for key in ("tables", "scale_from", "efficiency") if getattr(section, key)), None)
        if beside is not None:
            raise ConfigError(f'[compute] {beside} is set without gpu; expected gpu = "h100", or no {beside}')
        return None
    if section.scale_from is not None and not section.tables:
        raise ConfigError("[compute] scale_from is set without tables; expected tables that have rows of it")
    return ComputeTimes(
        find_gpu(section.gpu),
        read_tables(section.tables),
        vendor_tables=section.vendor_tables,
        scale_from=None if section.scale_from is None else find_gpu(section.scale_from),
        efficiencies=Efficiencies(**section.efficiency),
        pace=_PACES[section.pace or ("serving" if serves else "step")],
    )
