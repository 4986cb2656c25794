"""Contiguous blocks of NPUs by number; a switch goes where most of its neighbours below it are."""

import numpy as np
from numpy.typing import NDArray

from partition.clusters import Clusters
from topologies.graph import Graph

NAME = "blocks"


def assign(graph: Graph, clusters: Clusters, parts: int) -> NDArray[np.int32]:
    """Equal numbers of NPUs; then switches, tier after tier, those with a tie to the part with the fewest of them."""
    cluster_of_npu = clusters.of_node[: graph.npus]
    npus = np.bincount(cluster_of_npu, minlength=clusters.number)
    mean = np.bincount(cluster_of_npu, np.arange(graph.npus), minlength=clusters.number) / np.maximum(npus, 1)
    part = np.full(clusters.number, -1, np.int32)
    blocks = np.flatnonzero(npus)
    blocks = blocks[np.argsort(mean[blocks], kind="stable")]
    part[blocks] = (np.cumsum(npus[blocks]) - npus[blocks] / 2) * parts // graph.npus
    switches = np.zeros(parts, np.int64)
    src = np.repeat(np.arange(clusters.number), np.diff(clusters.ptr))
    while (part < 0).any():
        placed = part[clusters.neighbour] >= 0
        tier = np.unique(src[placed & (part[src] < 0)])
        votes = np.zeros((clusters.number, parts), np.int64)
        np.add.at(votes, (src[placed], part[clusters.neighbour[placed]]), 1)
        for one in tier if len(tier) else np.flatnonzero(part < 0):
            most = np.flatnonzero(votes[one] == votes[one].max())
            part[one] = most[np.argmin(switches[most])]
            switches[part[one]] += 1
    return part
