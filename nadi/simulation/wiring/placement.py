"""Placement of NPUs and nodes on workers: read the traces, weigh the fabric by them, and divide it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import partition
from nadi.configuration.sections import WEIGHT_SOURCES, RunConfig
from nadi.errors import ConfigError
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.workers import Workers
from nadi.launching.world import RankGather
from nadi.simulation.wiring.partitioning import (
    MPI_SYNC_US,
    SHARED_MEMORY_SYNC_US,
    Load,
    divide,
    measured_load,
    traffic_load,
    uniform_load,
)
from nadi.simulation.wiring.reading import LoadedWorkload, read_work
from topologies import Graph

MIN_SPEED_UP = 1.0
"""Predicted speed-up over one worker below which a line warns the user."""


def place(
    config: RunConfig, graph: Graph, workers: Workers, progress: Progress | NoProgress, *, force: bool = False
) -> tuple[LoadedWorkload, NDArray[np.int32] | None]:
    """Return the program of this rank's NPUs, and the LP of each node (None = there is one LP).

    On several ranks, each rank first reads the traces of an equal share of the NPUs and counts their traffic; rank 0
    divides the fabric; then each rank reads the traces of its own NPUs. If the weights do not come from traces, the
    first step is omitted, and a rank opens no files but those of its own NPUs. force: see read_work.

    Raises:
        TraceError, WorkloadError, PartitionError, ConfigError: The user's input is wrong.
    """
    check_division(config, graph)
    ranks = workers.ranks
    if workers.alone and ranks.size > 1:
        one_lp = np.zeros(graph.nodes, np.int32)
        return read_work(config, graph, workers.own_npus(one_lp, graph.npus), ranks.exchange, force=force), None
    if workers.lps == 1:
        return read_work(config, graph, force=force), None
    if ranks.size == 1:
        work = read_work(config, graph, force=force)
        load = _given_load(config, graph) or traffic_load(graph, work.program, config.network)
        return work, _owner(config, graph, workers, load, progress)
    load = _given_load(config, graph) or _trace_load(config, graph, ranks, force=force)
    own_result = _owner(config, graph, workers, load, progress) if ranks.rank == 0 else None
    owner = ranks.exchange(own_result)[0]
    return read_work(config, graph, workers.own_npus(owner, graph.npus), ranks.exchange, force=force), owner


def check_division(config: RunConfig, graph: Graph) -> None:
    """Refuse a partitioner or weights that do not exist, even if there is one worker, which needs neither.

    Raises:
        ConfigError: The method or the results of an earlier run do not exist.
        PartitionError: The results are from another fabric.
    """
    name = config.engine.partitioner
    if name not in partition.methods():
        known = ", ".join(partition.methods())
        raise ConfigError(f"[engine] partitioner: found {name!r}; expected one of {known}")
    if config.engine.weights not in WEIGHT_SOURCES:
        measured_load(Path(config.engine.weights), graph)


def _trace_load(config: RunConfig, graph: Graph, ranks: RankGather, *, force: bool) -> Load:
    """Return the load from the traces; each rank reads those of an equal share of the NPUs."""
    share = np.arange(graph.npus) * ranks.size // graph.npus == ranks.rank
    first = read_work(config, graph, share, ranks.exchange, force=force)
    return traffic_load(graph, first.program, config.network, ranks)


def _given_load(config: RunConfig, graph: Graph) -> Load | None:
    """Return the load if it does not come from the traces, else None."""
    weights = config.engine.weights
    if weights == "traces":
        return None
    return uniform_load(graph) if weights == "fabric" else measured_load(Path(weights), graph)


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
