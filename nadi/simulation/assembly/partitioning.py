"""Weights and partitions of a fabric, as `nadi partition` shows them, and placement of NPUs and nodes on workers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import partition
from nadi.configuration.sections import WEIGHT_SOURCES
from nadi.errors import ConfigError
from nadi.inputs.arrays import numpy_column
from nadi.launching.ranks import ALONE, RankGather
from nadi.launching.workers import Workers
from nadi.partition import Partition, PartitionError, PartitionReport, TrafficWeights
from nadi.pdes import Settings
from nadi.pdes.wire import FLIT_BYTES
from nadi.simulation.assembly import engine_inputs, weights_without_aggregators
from nadi.simulation.assembly.reading import LoadedWorkload
from nadi.simulation.earlier_run import read_summary, read_table
from nadi.simulation.schemas import LINKS
from nadi.topologies import NVSWITCH, Graph
from nadi.workload import Program
from nadi.workload.program.traffic import merge, traffic

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


class Division(NamedTuple):
    """How a run divides its fabric."""

    method: str  # name of the partition method
    weights: str  # source of the weights: "traces", "fabric" or the folder of an earlier run
    settings: Settings  # settings with the sizes of packets


Read = Callable[[NDArray[np.bool_] | None], LoadedWorkload]
"""Function that reads the work of these NPUs: bool[npus], None = all."""


def traffic_load(graph: Graph, program: Program, settings: Settings, ranks: RankGather = ALONE) -> Load:
    """Return the load of a program's (on ranks: all programs') traffic with packets and headers of `settings`.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        ranks: Exchange of values between ranks.
    """
    fabric, running, _ = engine_inputs(graph, program, counts_reducers=ranks.rank == 0)
    sent = merge(ranks.exchange(traffic(running)))
    weights = partition.expected(fabric, *sent, mtu_bytes=settings.mtu_bytes)
    weights = weights_without_aggregators(weights, graph, program)
    source = f"{sent.messages.sum():,} messages of {sent.bytes.sum() / 1e9:,.3f} GB between {len(sent.src):,} pairs"
    # data packets and acknowledgements, for messages of equal size per pair
    messages = np.maximum(sent.messages, 1)
    packets = int((messages * np.maximum(-(-sent.bytes // (messages * settings.mtu_bytes)), 1)).sum())
    # half of the packets are acknowledgements
    mean_packet_bytes = (int(sent.bytes.sum()) / max(packets, 1) + settings.header_bytes + settings.ack_bytes) / 2
    return Load(weights, source, None, mean_packet_bytes)


def measured_load(folder: Path, graph: Graph) -> Load:
    """Return the load that an earlier packet run recorded; PartitionError if it had a different number of links.

    Args:
        folder: Folder of the earlier run's results.
        graph: The fabric (`Graph`).
    """
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
    sent = numpy_column(links["tx_packets"])
    return Load(partition.from_links(graph, sent), f"packets sent in {folder}", busy_ps, 0.0)


def divide(
    graph: Graph, parts: int, method: str, load: Load, settings: Settings, sync_us: float = SHARED_MEMORY_SYNC_US
) -> tuple[Partition, PartitionReport]:
    """Return a partition of the fabric, and its report.

    Args:
        graph: The fabric (`Graph`).
        parts: Number of parts.
        method: Name of one of partition.methods.
        load: Expected traffic, with its source.
        settings: Settings with the sizes of packets.
        sync_us: Wall time in microseconds of a window's synchronisation.
    """
    smallest_bytes = max(1, settings.smallest_bytes)
    if settings.nvlink_framing and np.any(graph.node_kind == NVSWITCH):
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


def owner_by_traffic(graph: Graph, program: Program, workers: Workers) -> NDArray[np.int32] | None:
    """Return int32[nodes], the LP of each node, from dividing the fabric by a program's traffic; None = one LP.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        workers: Ranks, processes and threads of the run.
    """
    if workers.lps == 1:
        return None
    load = traffic_load(graph, program, Settings())
    owner = divide(graph, workers.lps, partition.DEFAULT_METHOD, load, Settings())[0].owner
    return workers.ranks.exchange(owner)[0]


def compare(
    graph: Graph, parts: int, load: Load, settings: Settings
) -> tuple[dict[str, PartitionReport], dict[str, PartitionError]]:
    """Return reports of methods that divide the fabric, and errors of others; the first if all fail.

    Args:
        graph: The fabric (`Graph`).
        parts: Number of parts.
        load: Expected traffic, with its source.
        settings: Settings with the sizes of packets.
    """
    reports, failures = {}, {}
    for name in partition.methods():
        try:
            reports[name] = divide(graph, parts, name, load, settings)[1]
        # some methods do not suit some fabrics, which is no reason to stop
        except PartitionError as error:
            failures[name] = error
    if not reports:
        raise next(iter(failures.values()))
    return reports, failures


def place(
    read: Read, graph: Graph, workers: Workers, division: Division
) -> tuple[LoadedWorkload, NDArray[np.int32] | None, str]:
    """Return the program of this rank's NPUs, the LP of each node (None = there is one LP), and a note on the latter.

    On several ranks, each rank first reads the traces of an equal share of the NPUs and counts their traffic; rank 0
    divides the fabric; then each rank reads the traces of its own NPUs. If the weights do not come from traces, the
    first step is omitted, and a rank opens no files but those of its own NPUs.

    Args:
        read: Function that reads the traces of some NPUs, bool[npus], None = all.
        graph: The fabric (`Graph`).
        workers: Ranks, processes and threads of the run.
        division: Method of division, and source of the weights.
    """
    try:
        partition.method(division.method)
    except PartitionError as error:
        raise ConfigError(f"[engine] partitioner: {error}") from None
    if division.weights not in WEIGHT_SOURCES:
        measured_load(Path(division.weights), graph)
    ranks = workers.ranks
    if ranks.size == 1:
        work = read(None)
        if workers.lps == 1:
            return work, None, ""
        load = _given_load(division.weights, graph) or traffic_load(graph, work.program, division.settings)
        return work, *_owner(graph, workers, load, division)
    owner, note = None, ""
    if not workers.alone:
        given_load = _given_load(division.weights, graph)
        if given_load is None:
            # ranks read equal shares first, as nobody knows the traffic yet
            share = np.arange(graph.npus) * ranks.size // graph.npus == ranks.rank
            first = read(share)
            given_load = traffic_load(graph, first.program, division.settings, ranks)
        divided = _owner(graph, workers, given_load, division) if ranks.rank == 0 else (None, "")
        owner, note = ranks.exchange(divided)[0]
    own_npus = workers.own_npus(np.zeros(graph.nodes, np.int32) if owner is None else owner, graph.npus)
    return read(own_npus), owner, note


def _given_load(weights: str, graph: Graph) -> Load | None:
    """Return the load of uniform traffic between all NPUs or of an earlier run; None = it comes from the traces."""
    if weights == "fabric":
        return Load(partition.uniform(graph), "traffic from everywhere to everywhere", None, 0.0)
    return None if weights == "traces" else measured_load(Path(weights), graph)


def _owner(graph: Graph, workers: Workers, load: Load, division: Division) -> tuple[NDArray[np.int32], str]:
    """Return the LP of each node after dividing the fabric, and a note if more workers will not pay, else ""."""
    sync_us = SHARED_MEMORY_SYNC_US if workers.ranks.size == 1 or workers.share_memory else MPI_SYNC_US
    divided, report = divide(graph, workers.lps, division.method, load, division.settings, sync_us)
    note = (
        f"{workers.total} workers will hardly pay: {report.mean_events_per_window:,.0f} events per window, "
        f"predicted speed-up {report.speed_up:.2f} over one"
    )
    return divided.owner, note if workers.total > 1 and report.speed_up < MIN_SPEED_UP else ""
