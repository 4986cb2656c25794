"""Which worker owns which node: reads the traces, weighs the fabric by them, divides it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import partition
from nadi.configuration.sections import WEIGHT_WORDS, RunConfig
from nadi.errors import ConfigError
from nadi.launching.gather import RankGather
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.workers import Workers
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

LEAST_SPEED_UP = 1.0


def place(
    config: RunConfig, graph: Graph, workers: Workers, progress: Progress | NoProgress, *, force: bool = False
) -> tuple[LoadedWorkload, NDArray[np.int32] | None]:
    """What this rank's NPUs do, and the LP of each node (None = there is one).

    On several ranks each reads the traces of an equal share of the NPUs to tell what they will send; rank 0 divides
    the fabric; then each reads those of its own NPUs. With weights that do not come from traces the first step is
    left out, and a rank opens no file but those of its own NPUs. force: see read_work.

    Raises:
        TraceError, WorkloadError, PartitionError, ConfigError: the user's input is wrong.
    """
    check_division(config, graph)
    ranks = workers.ranks
    if workers.alone and ranks.size > 1:
        every = np.zeros(graph.nodes, np.int32)
        return read_work(config, graph, workers.own_npus(every, graph.npus), ranks.exchange, force=force), None
    if workers.lps == 1:
        return read_work(config, graph, force=force), None
    if ranks.size == 1:
        work = read_work(config, graph, force=force)
        load = _given_load(config, graph) or traffic_load(graph, work.program, config.network)
        return work, _owner(config, graph, workers, load, progress)
    load = _given_load(config, graph) or _told_load(config, graph, ranks, force=force)
    found = _owner(config, graph, workers, load, progress) if ranks.rank == 0 else None
    owner = ranks.exchange(found)[0]
    return read_work(config, graph, workers.own_npus(owner, graph.npus), ranks.exchange, force=force), owner


def check_division(config: RunConfig, graph: Graph) -> None:
    """Refuse a partitioner or weights that do not exist, also where one worker has all and needs neither.

    Raises:
        ConfigError: there is no such method, or no results of an earlier run.
        PartitionError: these are of another fabric.
    """
    name = config.engine.partitioner
    if name not in partition.methods():
        known = ", ".join(partition.methods())
        raise ConfigError(f"[engine] partitioner: found {name!r}; expected one of {known}")
    if config.engine.weights not in WEIGHT_WORDS:
        measured_load(Path(config.engine.weights), graph)


def _told_load(config: RunConfig, graph: Graph, ranks: RankGather, *, force: bool) -> Load:
    """Weights by the traces, each rank reading those of an equal share of the NPUs."""
    share = np.arange(graph.npus) * ranks.size // graph.npus == ranks.rank
    first = read_work(config, graph, share, ranks.exchange, force=force)
    return traffic_load(graph, first.program, config.network, ranks)


def _given_load(config: RunConfig, graph: Graph) -> Load | None:
    """Weights that do not come from the traces."""
    weights = config.engine.weights
    if weights == "traces":
        return None
    return uniform_load(graph) if weights == "fabric" else measured_load(Path(weights), graph)


def _owner(
    config: RunConfig, graph: Graph, workers: Workers, load: Load, progress: Progress | NoProgress
) -> NDArray[np.int32]:
    """Divide the fabric among the LPs; a word where more workers than one will not pay."""
    sync_us = SHARED_MEMORY_SYNC_US if workers.ranks.size == 1 or workers.share_memory else MPI_SYNC_US
    found, said = divide(graph, workers.lps, config.engine.partitioner, load, config.network, sync_us)
    if workers.total > 1 and said.speed_up < LEAST_SPEED_UP:
        progress.say(
            f"{workers.total} workers will hardly pay: {said.mean_events_per_window:,.0f} events per window, "
            f"predicted speed-up {said.speed_up:.2f} over one"
        )
    return found.owner
