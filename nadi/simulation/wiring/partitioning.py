"""From a run file to weights and partitions: what `nadi partition` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import partition
from nadi.configuration.sections import NetworkSection, RunConfig
from nadi.errors import ConfigError
from nadi.launching.gather import ALONE, RankGather
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
SHARED_MEMORY_SYNC_US = 1.0
MPI_SYNC_US = 15.0
"""Seen on one machine of two cores, 2026-11-21; between the nodes of a cluster it depends on their network."""


@dataclass(frozen=True, eq=False)
class Load:
    """The work of a run.

    Attributes:
        weights: of nodes and links.
        source: where they come from, in words.
        duration_ps: simulated time in which anything is under way, None = not known. Windows jump over the rest.
        mean_packet_bytes: on the wire, data and acknowledgements together.
    """

    weights: TrafficWeights
    source: str
    duration_ps: int | None
    mean_packet_bytes: float


def expected_load(config: RunConfig, graph: Graph, *, force: bool = False) -> Load:
    """What the traces of a run file will send over its fabric; force: see nadi.simulation.wiring.reading.read_work.

    Raises:
        TraceError, WorkloadError: the traces are wrong.
    """
    return traffic_load(graph, read_work(config, graph, force=force).program, config.network)


def traffic_load(graph: Graph, program: Program, network: NetworkSection, ranks: RankGather = ALONE) -> Load:
    """What the traffic of a program will do to the fabric; of several ranks' programs together, on each of them."""
    fabric, running, _ = with_reducers(graph, program, acting=ranks.rank == 0)
    found = merge(ranks.exchange(traffic(running)))
    weights = partition.expected(fabric, *found, mtu_bytes=network.mtu)
    weights = folded_weights(weights, graph, program)
    source = f"{found.messages.sum():,} messages of {found.bytes.sum() / 1e9:,.3f} GB between {len(found.src):,} pairs"
    return Load(weights, source, None, _mean_packet_bytes(found, network))


def uniform_load(graph: Graph) -> Load:
    """What traffic from everywhere to everywhere would do."""
    return Load(partition.uniform(graph), "traffic from everywhere to everywhere", None, 0.0)


def measured_load(folder: Path, graph: Graph) -> Load:
    """What an earlier run sent.

    Raises:
        ConfigError: the folder holds no such run.
        PartitionError: the run was on a fabric with another number of links.
    """
    try:
        links = read_table(folder, LINKS, ["tx_packets"])
        summary = read_summary(folder) if links is not None else None
        busy_ps = _busy_ps(summary) if summary is not None else 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, KeyError):  # as of whole messages, which need no windows
            reason = f"summary.json has no {error.args[0]}, as that of a run of packets has"
        raise ConfigError(f"--weights {folder}: {reason}; expected the results of an earlier run") from None
    if links is None:
        raise ConfigError(f"--weights {folder}: found no {LINKS.file}; expected the results of an earlier run")
    sent = links.column("tx_packets").to_numpy()
    return Load(partition.from_links(graph, sent), f"packets sent in {folder}", busy_ps, 0.0)


def _busy_ps(summary: Mapping[str, Any]) -> int:
    """Simulated time in which anything was under way."""
    return min(int(summary["finish_time_ps"]), summary["windows"] * summary["settled"]["lookahead_ps"])


def divide(
    graph: Graph, parts: int, method: str, load: Load, network: NetworkSection, sync_us: float = SHARED_MEMORY_SYNC_US
) -> tuple[Partition, PartitionReport]:
    """One partition and what it promises, where meeting at the end of a window takes `sync_us`.

    Raises:
        PartitionError: unknown method, or more parts than the fabric can have.
    """
    smallest_bytes = max(1, min(network.header, network.ack))
    if network.nvlink_framing and np.any(graph.node_kind == NVSWITCH):
        smallest_bytes = min(smallest_bytes, FLIT_BYTES)
    found = partition.partition(graph, parts, method=method, weights=load.weights, smallest_bytes=smallest_bytes)
    said = partition.report(
        graph,
        found,
        load.weights,
        duration_ps=load.duration_ps,
        mean_packet_bytes=load.mean_packet_bytes,
        hop_ns=HOP_NS,
        sync_us=sync_us,
    )
    return found, said


def compare(
    graph: Graph, parts: int, load: Load, network: NetworkSection
) -> tuple[dict[str, PartitionReport], dict[str, PartitionError]]:
    """What each method promises, and why those that cannot divide this fabric cannot.

    Raises:
        PartitionError: no method can.
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


def _mean_packet_bytes(found: Traffic, network: NetworkSection) -> float:
    """On the wire, of data packets and as many acknowledgements; messages of a pair taken to be of equal size."""
    messages = np.maximum(found.messages, 1)
    packets = int((messages * np.maximum(-(-found.bytes // (messages * network.mtu)), 1)).sum())
    payload = int(found.bytes.sum()) / max(packets, 1)
    return (payload + network.header + network.ack) / 2
