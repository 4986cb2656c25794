"""From a run file's configuration to results: each stage called once, in order."""

import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import pdes
import topologies
import workload
from et import TraceTable, read_groups
from nadi.config import NetworkSection, RunConfig
from nadi.progress import Progress, Silence
from pdes.jit import cache_dir, is_warm, jit_enabled
from topologies import Graph
from workload import CollectiveSettings, ComputeModel, Program

BITS_PER_BYTE = 8


@dataclass(frozen=True, eq=False)
class Simulation:
    """A finished run: what went in and what came out.

    Attributes:
        config: of the run file.
        graph: the fabric.
        traces: distinct trace files.
        trace_of_npu: int32[npus], trace of each NPU, -1 = none.
        program: what the NPUs did.
        settings: settled choices of the packet network.
        collectives: how collectives were done.
        results: times, counters, flows, links.
    """

    config: RunConfig
    graph: Graph
    traces: list[TraceTable]
    trace_of_npu: NDArray[np.int32]
    program: Program
    settings: pdes.Settings
    collectives: CollectiveSettings
    results: pdes.Results


def simulate(config: RunConfig, progress: Progress | Silence) -> Simulation:
    """Run what a run file says.

    Args:
        config: the run file.
        progress: told what is going on.

    Raises:
        TopologyError, TraceError, WorkloadError: the user's input is wrong (exit code 2).
        pdes.RunError: the run failed (exit code 1).
    """
    graph = topologies.build(config.topology.source())
    collectives = CollectiveSettings(config.system.collectives, config.workload.all_gather_size)
    traces, trace_of_npu = workload.load_traces(config.workload.traces, graph.npus, strict=config.workload.strict)
    groups = read_groups(config.workload.groups) if config.workload.groups else {}
    program = workload.build_program(traces, trace_of_npu, graph.npus, groups, compute_model(config), collectives)
    settings = network_settings(
        config.network,
        seed=config.engine.seed,
        concurrent_collectives=config.system.collective_order == "concurrent",
        record_flows=config.output.flows == "all",
    )
    results = run_program(graph, program, settings, progress)
    return Simulation(config, graph, traces, trace_of_npu, program, settings, collectives, results)


def run_program(graph: Graph, program: Program, settings: pdes.Settings, progress: Progress | Silence) -> pdes.Results:
    """Build a world and run it, saying so where kernels must be compiled first.

    Raises:
        pdes.RunError: the run failed.
    """
    if jit_enabled() and not is_warm():
        progress.say(f"compiling the kernels, once, into {cache_dir()} (up to half a minute)")
    return pdes.run(pdes.build_world(graph, program, settings), progress=progress)


def compute_model(config: RunConfig) -> ComputeModel:
    """How durations are found."""
    bandwidth_bps = config.memory.bandwidth
    return ComputeModel(
        mode=config.compute.model,
        peak_flops=config.compute.peak_flops,
        memory_bandwidth_Bps=None if bandwidth_bps is None else bandwidth_bps / BITS_PER_BYTE,
        memory_latency_ps=config.memory.latency,
    )


def network_settings(
    network: NetworkSection,
    *,
    seed: int = 1,
    concurrent_collectives: bool = False,
    record_nodes: bool = True,
    record_flows: bool = True,
) -> pdes.Settings:
    """The engine's settings for a [network] section."""
    return pdes.Settings(
        mtu_bytes=network.mtu,
        header_bytes=network.header_bytes,
        ack_bytes=network.ack_bytes,
        window_bytes=network.window,
        queue_limit_bytes=network.queue_limit,
        cut_through=network.switching == "cut-through",
        cut_through_header_bytes=network.header_bytes,
        rto_ps=network.retransmit_timeout,
        max_retries=network.max_retries,
        seed=seed,
        concurrent_collectives=concurrent_collectives,
        record_nodes=record_nodes,
        record_flows=record_flows,
    )


def peak_rss_bytes() -> int:
    """The most memory that this process has had at once."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the process that started this one
        peak = re.search(r"VmHWM:\s*(\d+)", status.read_text())
        if peak:
            return int(peak[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # kilobytes, but bytes on macOS
