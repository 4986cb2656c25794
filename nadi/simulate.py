"""From a run file's configuration to results: each stage called once, in order."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import pdes
import topologies
from et import TraceTable
from nadi import fabric
from nadi.config import NetworkSection, RunConfig
from nadi.errors import ConfigError
from nadi.fault_schedule import schedule
from nadi.gather import ALONE, Ranks
from nadi.placement import place
from nadi.progress import Progress, Silence
from nadi.workers import SERIAL, Workers
from nadi.world import together
from pdes.jit import cache_dir, is_warm, jit_enabled
from topologies import Graph
from workload import CollectiveSettings, Program


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
        workers: who ran it.
        results: times, counters, flows, links.
    """

    config: RunConfig
    graph: Graph
    traces: list[TraceTable]
    trace_of_npu: NDArray[np.int32]
    program: Program
    settings: pdes.Settings
    collectives: CollectiveSettings
    workers: Workers
    results: pdes.Results

    def peak_rss_bytes(self) -> int:
        """The most memory that this rank and the processes that it forked have had."""
        return pdes.peak_rss_bytes() + self.results.workers_rss_bytes


def simulate(config: RunConfig, progress: Progress | Silence, ranks: Ranks = ALONE) -> Simulation:
    """Run what a run file says; on several ranks, each its part.

    Args:
        config: the run file.
        progress: told what is going on.
        ranks: this rank and the others.

    Raises:
        TopologyError, TraceError, WorkloadError, PartitionError: the user's input is wrong (exit code 2).
        AgreedError: the same, on several ranks.
        pdes.RunError: the run failed (exit code 1).
    """
    with together(ranks):
        if ranks.size > 1 and config.engine.backend == "processes":
            raise ConfigError(f"[engine] backend: found processes on {ranks.size} MPI ranks; expected threads there")
        graph = topologies.build(config.topology.source())
        workers = Workers(
            ranks,
            config.engine.backend,
            config.engine.workers,
            config.engine.lps_per_worker,
            config.engine.share_memory,
        )
        work, owner = place(config, graph, workers, progress)
        settings = network_settings(
            config.network,
            seed=config.engine.seed,
            concurrent_collectives=config.system.collective_order == "concurrent",
            record_flows=config.output.flows == "all",
        )
        faults = schedule(
            config.faults, config.network.detection_time, graph, cut_through=config.network.switching == "cut-through"
        )
        if faults:
            settings = replace(settings, faults=faults)
        settings = fabric.fitted(graph, settings)
    results = run_program(graph, work.program, settings, progress, workers, owner)
    return Simulation(
        config, graph, work.traces, work.trace_of_npu, work.program, settings, work.collectives, workers, results
    )


def run_program(
    graph: Graph,
    program: Program,
    settings: pdes.Settings,
    progress: Progress | Silence,
    workers: Workers = SERIAL,
    owner: NDArray[np.int32] | None = None,
) -> pdes.Results:
    """Build worlds and run them; a word where kernels must be compiled first.

    Args:
        graph: the fabric.
        program: what the NPUs do, those of this rank at least.
        settings: of the packet network.
        progress: told what is going on.
        workers: who runs it.
        owner: int32[nodes], the LP of each node; None = one LP.

    Raises:
        pdes.RunError: the run failed.
    """
    if jit_enabled() and not is_warm():
        progress.say(f"compiling the kernels, once, into {cache_dir()} (up to half a minute)")
    return workers.run(graph, program, settings, progress, owner)


QUEUE_SAMPLES = 64
LOGGED_PAUSES = 1 << 16


def network_settings(
    network: NetworkSection,
    *,
    seed: int = 1,
    concurrent_collectives: bool = False,
    record_nodes: bool = True,
    record_flows: bool = True,
) -> pdes.Settings:
    """The engine's settings for a [network] section.

    Raises:
        ConfigError: no such congestion control or parameter of it, or the switches do not give what it needs.
    """
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
        switch=fabric.shared_buffer(network),
        control=fabric.control(network),
        cnp_interval_ps=network.cnp_interval,
        p2p_class=network.p2p_class or 0,
        flowlet_gap_ps=network.flowlet_gap,
        queue_samples=QUEUE_SAMPLES,
        logged_pauses=LOGGED_PAUSES,
        **fabric.transport(network),
    )
