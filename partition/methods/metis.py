"""METIS: few packets over the cut, parts of equal work.

Multilevel k-way partitioning (Karypis and Kumar, "Multilevel k-way partitioning scheme for irregular graphs", 1998),
and recursive bisection, which does better where there are few clusters to a part. METIS looks at the cut before it
looks at the last few per cent of balance; where clusters are few these are many, so that moves from the heaviest part
follow. The better of the two is taken.
"""

import numpy as np
import pymetis
from numpy.typing import NDArray

from partition.clusters import Clusters
from topologies.graph import Graph

NAME = "metis"

_SEED = 1
_TRIALS = 4
_LARGEST_SUM = 2**30  # METIS adds weights up in 32 bits
_ABOUT_EQUAL = 1.02
_LEVEL = 1.05


def assign(graph: Graph, clusters: Clusters, parts: int) -> NDArray[np.int32]:
    """Clusters weighed by their events, edges by their packets and one."""
    del graph
    adjacency = pymetis.CSRAdjacency(clusters.ptr.tolist(), clusters.neighbour.tolist())
    vertex, edge = scaled(clusters.weight), scaled(clusters.packets + 1)
    found = []
    for recursive in (False, True):
        options = pymetis.Options(seed=_SEED, ncuts=_TRIALS)
        result = pymetis.part_graph(
            parts, adjacency, vweights=vertex.tolist(), eweights=edge.tolist(), recursive=recursive, options=options
        )
        found.append(levelled(np.array(result.vertex_part, np.int32), clusters, parts))
    return better(found, clusters, parts)


def better(found: list[NDArray[np.int32]], clusters: Clusters, parts: int) -> NDArray[np.int32]:
    """The one whose heaviest part is lightest; of those about as light, the first whose cut carries fewest packets."""
    loads = [np.bincount(part, clusters.weight, minlength=parts).max() for part in found]
    light = [part for part, load in zip(found, loads, strict=True) if load <= _ABOUT_EQUAL * min(loads)]
    return min(light, key=lambda part: _cut(clusters, part))


def levelled(part: NDArray[np.int32], clusters: Clusters, parts: int) -> NDArray[np.int32]:
    """int32[clusters]: while a part weighs more than _LEVEL times the mean, the move that lightens the pair most."""
    part = part.copy()
    load = np.bincount(part, clusters.weight, minlength=parts)
    while load.max() > _LEVEL * load.mean():
        heaviest = int(np.argmax(load))
        inside = np.flatnonzero(part == heaviest)
        weight = clusters.weight[inside].astype(np.float64)
        heavier = np.maximum(load[heaviest] - weight[:, None], load + weight[:, None])
        heavier[:, heaviest] = np.inf
        move, to = np.unravel_index(np.argmin(heavier), heavier.shape)
        if heavier[move, to] >= load[heaviest]:
            break
        part[inside[move]] = to
        load[heaviest] -= weight[move]
        load[to] += weight[move]
    return part


def scaled(weight: NDArray[np.int64]) -> NDArray[np.int32]:
    """int32[]: the weights, at least 1, in proportion such that their sum stays within 32 bits."""
    total = float(weight.sum(dtype=np.float64)) + len(weight)
    factor = min(1.0, (_LARGEST_SUM - len(weight)) / total)
    return np.maximum(weight * factor, 1).astype(np.int32)


def _cut(clusters: Clusters, part: NDArray[np.int32]) -> int:
    """Packets between parts, each direction twice."""
    src = np.repeat(part, np.diff(clusters.ptr))
    return int(clusters.packets[src != part[clusters.neighbour]].sum())
