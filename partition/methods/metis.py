"""METIS: few packets over the cut, parts of equal work.

Multilevel k-way partitioning (Karypis and Kumar, "Multilevel k-way partitioning scheme for irregular graphs", 1998),
and recursive bisection, which does better with few clusters per part. METIS optimises the cut before the last few per
cent of balance; with few clusters that is a large imbalance, so moves away from the heaviest part follow. The better
result of the two is used.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from nadi.inputs.arrays import Int32, Int64
from nadi.partition.methods import Clusters
from nadi.topologies import Graph

_SEED = 1  # seed of METIS, so that equal input gives equal parts
_TRIALS = 4  # partitionings of which METIS keeps the best
_LARGEST_SUM = 2**30  # METIS adds weights in 32 bits
_ABOUT_EQUAL = 1.02  # ratio of loads up to which the cut decides between two results
_LEVEL = 1.05  # ratio to the mean load above which clusters move away from a part


def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
    """Return int32[clusters], parts by METIS; vertex weights are events, edge weights packets plus one.

    Args:
        graph: The fabric, which METIS does not need.
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    import pymetis  # noqa: PLC0415 - only for several parts

    del graph
    adjacency = pymetis.CSRAdjacency(clusters.ptr.tolist(), clusters.neighbour.tolist())
    # plus one: links without packets keep neighbours together, too
    vertex, edge = scaled(clusters.weight), scaled(clusters.packets + 1)
    results = []
    # neither way is always better, and METIS takes little time beside a run
    for recursive in (False, True):
        options = pymetis.Options(seed=_SEED, ncuts=_TRIALS)
        with _without_standard_output():
            result = pymetis.part_graph(
                parts, adjacency, vweights=vertex.tolist(), eweights=edge.tolist(), recursive=recursive, options=options
            )
        results.append(levelled(np.array(result.vertex_part, np.int32), clusters, parts))
    return better(results, clusters, parts)


@contextmanager
def _without_standard_output() -> Iterator[None]:
    """Discard what METIS prints about parts without vertices: it would come before the document of `--json`."""
    flush_c_streams = ctypes.CDLL(None).fflush
    # what waits in buffers so far is not from METIS
    flush_c_streams(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        flush_c_streams(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def better(assignments: list[Int32], clusters: Clusters, parts: int) -> Int32:
    """Return the assignment with the lightest heaviest part; among similar ones, that with the fewest cut packets.

    Args:
        assignments: int32[clusters] each, the part of each cluster.
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    loads = [np.bincount(part, clusters.weight, minlength=parts).max() for part in assignments]
    light = [part for part, load in zip(assignments, loads, strict=True) if load <= _ABOUT_EQUAL * min(loads)]
    return min(light, key=lambda part: _cut(clusters, part))


def levelled(assignment: Int32, clusters: Clusters, parts: int) -> Int32:
    """Return int32[clusters], parts after moves from those heavier than _LEVEL times the mean, each the best one.

    Args:
        assignment: int32[clusters], the part of each cluster.
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    assignment = assignment.copy()
    load = np.bincount(assignment, clusters.weight, minlength=parts)
    while load.max() > _LEVEL * load.mean():
        heaviest = int(np.argmax(load))
        inside = np.flatnonzero(assignment == heaviest)
        weight = clusters.weight[inside].astype(np.float64)
        # the heavier of both parts after each possible move; the best move makes it lightest
        # [clusters of the heaviest part, parts]
        heavier = np.maximum(load[heaviest] - weight[:, None], load + weight[:, None])
        heavier[:, heaviest] = np.inf
        move, to = np.unravel_index(np.argmin(heavier), heavier.shape)
        if heavier[move, to] >= load[heaviest]:
            break
        assignment[inside[move]] = to
        load[heaviest] -= weight[move]
        load[to] += weight[move]
    return assignment


def scaled(weights: Int64) -> Int32:
    """Return the weights as int32, at least 1, scaled so that their sum stays within 32 bits."""
    total = float(weights.sum(dtype=np.float64)) + len(weights)
    factor = min(1.0, (_LARGEST_SUM - len(weights)) / total)
    return np.maximum(weights * factor, 1).astype(np.int32)


def _cut(clusters: Clusters, assignment: Int32) -> int:
    """Return the packets between parts of an assignment, int32[clusters]; each direction counts twice."""
    src = np.repeat(assignment, np.diff(clusters.ptr))
    return int(clusters.packets[src != assignment[clusters.neighbour]].sum())
