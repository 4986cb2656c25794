"""Weights and partitions for a run file, as `nadi partition` shows them, and placement of NPUs and nodes on workers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import partition
from nadi.configuration.sections import WEIGHT_SOURCES, NetworkSection, RunConfig
from nadi.errors import ConfigError
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.workers import Workers
from nadi.launching.world import ALONE, RankGather
from nadi.simulation.schemas import LINKS
from nadi.simulation.wiring.earlier_run import read_summary, read_table
from nadi.simulation.wiring.in_network import folded_weights, with_reducers
from nadi.simulation.wiring.reading import LoadedWorkload, read_work
from partition import Partition, PartitionError, PartitionReport, TrafficWeights
from pdes.wire import FLIT_BYTES
from topologies import NVSWITCH, Graph
from workload import Program
from workload.program.traffic import merge, traffic

# Wall times, measured on a machine of two cores, 2026-11-21; between nodes of a cluster they depend on its network.
HOP_NS = 45.0  # of one packet-hop, in nanoseconds
SHARED_MEMORY_SYNC_US = 1.0  # of a synchronisation of threads, in microseconds
MPI_SYNC_US = 15.0  # of a synchronisation of MPI ranks, in microseconds
MIN_SPEED_UP = 1.0  # predicted speed-up over one worker below which a line warns the user


@dataclass(frozen=True, eq=False)
class Load:
    """Work of a run."""

    weights: TrafficWeights  # weights of nodes and links
    source: str  # description of where the weights come from
    # simulated time in picoseconds during which something happens, None = not known; windows skip the rest
    duration_ps: int | None
    mean_packet_bytes: float  # mean size on the wire in bytes, data packets and acknowledgements together


def expected_load(config: RunConfig, graph: Graph, *, force: bool = False) -> Load:
    """Return the load from the traces of a run file; force: see nadi.simulation.wiring.reading.read_work."""
    return traffic_load(graph, read_work(config, graph, force=force).program, config.network)


def traffic_load(graph: Graph, program: Program, network: NetworkSection, ranks: RankGather = ALONE) -> Load:
    """Return the load of a program's (on ranks: all programs') traffic with packets and headers of `network`."""
    fabric, running, _ = with_reducers(graph, program, counts_reducers=ranks.rank == 0)
    sent = merge(ranks.exchange(traffic(running)))
    weights = partition.expected(fabric, *sent, mtu_bytes=network.mtu)
    weights = folded_weights(weights, graph, program)
    source = f"{sent.messages.sum():,} messages of {sent.bytes.sum() / 1e9:,.3f} GB between {len(sent.src):,} pairs"
    # data packets and acknowledgements, for messages of equal size per pair
    messages = np.maximum(sent.messages, 1)
    packets = int((messages * np.maximum(-(-sent.bytes // (messages * network.mtu)), 1)).sum())
    mean_packet_bytes = (int(sent.bytes.sum()) / max(packets, 1) + network.header + network.ack) / 2
    return Load(weights, source, None, mean_packet_bytes)


def measured_load(folder: Path, graph: Graph) -> Load:
    """Return the load that an earlier packet run recorded; PartitionError if it had a different number of links."""
    busy_ps = 0
    try:
        links = read_table(folder, LINKS, ["tx_packets"])
        if links is not None:
            summary = read_summary(folder)
            # simulated time during which something happened
            busy_ps = min(int(summary["finish_time_ps"]), summary["windows"] * summary["settled"]["lookahead_ps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, KeyError):  # a run at message level needs no windows
            reason = f"summary.json has no {error.args[0]}, as that of a run of packets has"
        raise ConfigError(f"--weights {folder}: {reason}; expected the results of an earlier run") from None
    if links is None:
        raise ConfigError(f"--weights {folder}: found no {LINKS.file}; expected the results of an earlier run")
    sent = links.column("tx_packets").to_numpy()
    return Load(partition.from_links(graph, sent), f"packets sent in {folder}", busy_ps, 0.0)


def divide(
    graph: Graph, parts: int, method: str, load: Load, network: NetworkSection, sync_us: float = SHARED_MEMORY_SYNC_US
) -> tuple[Partition, PartitionReport]:
    """Return a partition into `parts` by `method`, and its report; `network` gives sizes, sync_us a synchronisation."""
    smallest_bytes = max(1, min(network.header, network.ack))
    if network.nvlink_framing and np.any(graph.node_kind == NVSWITCH):
        smallest_bytes = min(smallest_bytes, FLIT_BYTES)
    division = partition.partition(graph, parts, method=method, weights=load.weights, smallest_bytes=smallest_bytes)
    report = partition.report(
        graph,
        division,
        load.weights,
        duration_ps=load.duration_ps,
        mean_packet_bytes=load.mean_packet_bytes,
        hop_ns=HOP_NS,
        sync_us=sync_us,
    )
    return division, report


def compare(
    graph: Graph, parts: int, load: Load, network: NetworkSection
) -> tuple[dict[str, PartitionReport], dict[str, PartitionError]]:
    """Return reports of methods that divide the fabric into `parts`, and errors of others; the first if all fail."""
    reports, failures = {}, {}
    for name in partition.methods():
        try:
            reports[name] = divide(graph, parts, name, load, network)[1]
        except PartitionError as error:
            failures[name] = error
    if not reports:
        raise next(iter(failures.values()))
    return reports, failures


def place(
    config: RunConfig, graph: Graph, workers: Workers, progress: Progress | NoProgress, *, force: bool
) -> tuple[LoadedWorkload, NDArray[np.int32] | None]:
    """Return the program of this rank's NPUs, and the LP of each node (None = there is one LP).

    On several ranks, each rank first reads the traces of an equal share of the NPUs and counts their traffic; rank 0
    divides the fabric; then each rank reads the traces of its own NPUs. If the weights do not come from traces, the
    first step is omitted, and a rank opens no files but those of its own NPUs. force: build plans of collectives that
    need more memory than is free.
    """
    name = config.engine.partitioner
    try:
        partition.method(name)
    except PartitionError as error:
        raise ConfigError(f"[engine] partitioner: {error}") from None
    if config.engine.weights not in WEIGHT_SOURCES:
        measured_load(Path(config.engine.weights), graph)
    ranks = workers.ranks
    if ranks.size == 1:
        work = read_work(config, graph, force=force)
        if workers.lps == 1:
            return work, None
        load = _given_load(config, graph) or traffic_load(graph, work.program, config.network)
        return work, _owner(config, graph, workers, load, progress)
    owner = None
    if not workers.alone:
        given_load = _given_load(config, graph)
        if given_load is None:
            share = np.arange(graph.npus) * ranks.size // graph.npus == ranks.rank
            first = read_work(config, graph, share, ranks.exchange, force=force)
            given_load = traffic_load(graph, first.program, config.network, ranks)
        owner = ranks.exchange(_owner(config, graph, workers, given_load, progress) if ranks.rank == 0 else None)[0]
    own_npus = workers.own_npus(np.zeros(graph.nodes, np.int32) if owner is None else owner, graph.npus)
    return read_work(config, graph, own_npus, ranks.exchange, force=force), owner


def _given_load(config: RunConfig, graph: Graph) -> Load | None:
    """Return the load of uniform traffic between all NPUs or of an earlier run; None = it comes from the traces."""
    weights = config.engine.weights
    if weights == "fabric":
        return Load(partition.uniform(graph), "traffic from everywhere to everywhere", None, 0.0)
    return None if weights == "traces" else measured_load(Path(weights), graph)


def _owner(
    config: RunConfig, graph: Graph, workers: Workers, load: Load, progress: Progress | NoProgress
) -> NDArray[np.int32]:
    """Return the LP of each node after dividing the fabric; print a line if more than one worker will not pay."""
    sync_us = SHARED_MEMORY_SYNC_US if workers.ranks.size == 1 or workers.share_memory else MPI_SYNC_US
    division, report = divide(graph, workers.lps, config.engine.partitioner, load, config.network, sync_us)
    if workers.total > 1 and report.speed_up < MIN_SPEED_UP:
        progress.say(
            f"{workers.total} workers will hardly pay: {report.mean_events_per_window:,.0f} events per window, "
            f"predicted speed-up {report.speed_up:.2f} over one"
        )
    return division.owner
