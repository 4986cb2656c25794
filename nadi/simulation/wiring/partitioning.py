"""Weights and partitions for a run file, as `nadi partition` shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import partition
from nadi.configuration.sections import NetworkSection, RunConfig
from nadi.errors import ConfigError
from nadi.launching.world import ALONE, RankGather
from nadi.simulation.schemas import LINKS
from nadi.simulation.wiring.earlier_run import read_summary, read_table
from nadi.simulation.wiring.in_network import folded_weights, with_reducers
from nadi.simulation.wiring.reading import read_work
from partition import Partition, PartitionError, PartitionReport, TrafficWeights
from pdes.wire import FLIT_BYTES
from topologies import NVSWITCH, Graph
from workload import Program
from workload.program.traffic import Traffic, merge, traffic

HOP_NS = 45.0
"""Wall time of one packet-hop in nanoseconds."""
SHARED_MEMORY_SYNC_US = 1.0
"""Wall time of a synchronisation of threads in microseconds."""
MPI_SYNC_US = 15.0
"""Wall time of a synchronisation of MPI ranks in microseconds. All three were measured on a machine of two cores,
2026-11-21; between the nodes of a cluster it depends on their network."""


@dataclass(frozen=True, eq=False)
class Load:
    """Work of a run.

    Attributes:
        weights: Weights of nodes and links.
        source: Description of where the weights come from.
        duration_ps: Simulated time in picoseconds during which something happens, None = not known; windows skip the
            rest.
        mean_packet_bytes: Mean size on the wire in bytes, data packets and acknowledgements together.
    """

    weights: TrafficWeights
    source: str
    duration_ps: int | None
    mean_packet_bytes: float


def expected_load(config: RunConfig, graph: Graph, *, force: bool = False) -> Load:
    """Return the load from the traces of a run file; force: see nadi.simulation.wiring.reading.read_work.

    Raises:
        TraceError, WorkloadError: The traces are wrong.
    """
    return traffic_load(graph, read_work(config, graph, force=force).program, config.network)


def traffic_load(graph: Graph, program: Program, network: NetworkSection, ranks: RankGather = ALONE) -> Load:
    """Return the load from the traffic of a program; on several ranks, of all ranks' programs together."""
    fabric, running, _ = with_reducers(graph, program, acting=ranks.rank == 0)
    sent = merge(ranks.exchange(traffic(running)))
    weights = partition.expected(fabric, *sent, mtu_bytes=network.mtu)
    weights = folded_weights(weights, graph, program)
    source = f"{sent.messages.sum():,} messages of {sent.bytes.sum() / 1e9:,.3f} GB between {len(sent.src):,} pairs"
    return Load(weights, source, None, _mean_packet_bytes(sent, network))


def uniform_load(graph: Graph) -> Load:
    """Return the load of uniform traffic between all NPUs."""
    return Load(partition.uniform(graph), "traffic from everywhere to everywhere", None, 0.0)


def measured_load(folder: Path, graph: Graph) -> Load:
    """Return the load that an earlier run recorded.

    Raises:
        ConfigError: The folder holds no results of a packet run.
        PartitionError: The run was on a fabric with a different number of links.
    """
    try:
        links = read_table(folder, LINKS, ["tx_packets"])
        summary = read_summary(folder) if links is not None else None
        busy_ps = _busy_ps(summary) if summary is not None else 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, KeyError):  # a run at message level needs no windows
            reason = f"summary.json has no {error.args[0]}, as that of a run of packets has"
        raise ConfigError(f"--weights {folder}: {reason}; expected the results of an earlier run") from None
    if links is None:
        raise ConfigError(f"--weights {folder}: found no {LINKS.file}; expected the results of an earlier run")
    sent = links.column("tx_packets").to_numpy()
    return Load(partition.from_links(graph, sent), f"packets sent in {folder}", busy_ps, 0.0)


def _busy_ps(summary: Mapping[str, Any]) -> int:
    """Return the simulated time in picoseconds during which something happened."""
    return min(int(summary["finish_time_ps"]), summary["windows"] * summary["settled"]["lookahead_ps"])


def divide(
    graph: Graph, parts: int, method: str, load: Load, network: NetworkSection, sync_us: float = SHARED_MEMORY_SYNC_US
) -> tuple[Partition, PartitionReport]:
    """Return one partition and its report, with synchronisations that take `sync_us` microseconds.

    Raises:
        PartitionError: The method does not exist, or the fabric cannot have this number of parts.
    """
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
    """Return the report of each method, and the errors of methods that cannot divide this fabric.

    Raises:
        PartitionError: All methods fail.
    """
    reports, failures = {}, {}
    for name in partition.methods():
        try:
            reports[name] = divide(graph, parts, name, load, network)[1]
        except PartitionError as error:
            failures[name] = error
    if not reports:
        raise next(iter(failures.values()))
    return reports, failures


def _mean_packet_bytes(sent: Traffic, network: NetworkSection) -> float:
    """Return the mean size of data packets and acknowledgements on the wire, for messages of equal size per pair."""
    messages = np.maximum(sent.messages, 1)
    packets = int((messages * np.maximum(-(-sent.bytes // (messages * network.mtu)), 1)).sum())
    payload = int(sent.bytes.sum()) / max(packets, 1)
    return (payload + network.header + network.ack) / 2
