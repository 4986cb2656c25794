"""Contiguous blocks of NPUs by number; a switch joins the part of most of its neighbours below it."""

import numpy as np

from nadi.inputs.arrays import Int32
from nadi.partition.methods import Clusters
from nadi.topologies import Graph


def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
    """Return int32[clusters], parts: equal numbers of NPUs, then switches by tier to the part with the fewest.

    Args:
        graph: The fabric (`Graph`).
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    cluster_of_npu = clusters.of_node[: graph.npus]
    npus = np.bincount(cluster_of_npu, minlength=clusters.number)
    mean = np.bincount(cluster_of_npu, np.arange(graph.npus), minlength=clusters.number) / np.maximum(npus, 1)
    part = np.full(clusters.number, -1, np.int32)
    blocks = np.flatnonzero(npus)
    blocks = blocks[np.argsort(mean[blocks], kind="stable")]
    # the middle of a cluster's NPUs decides, so that parts get equal numbers
    part[blocks] = (np.cumsum(npus[blocks]) - npus[blocks] / 2) * parts // graph.npus
    switches = np.zeros(parts, np.int64)
    src = np.repeat(np.arange(clusters.number), np.diff(clusters.ptr))
    while (part < 0).any():
        placed = part[clusters.neighbour] >= 0
        # switches next to those that have a part: first leaf switches, then the tiers above
        tier = np.unique(src[placed & (part[src] < 0)])
        # [clusters, parts] number of neighbours in each part; add.at counts repeated pairs
        votes = np.zeros((clusters.number, parts), np.int64)
        np.add.at(votes, (src[placed], part[clusters.neighbour[placed]]), 1)
        for switch in tier if len(tier) else np.flatnonzero(part < 0):
            # among equal votes, the part with the fewest switches so far
            best = np.flatnonzero(votes[switch] == votes[switch].max())
            part[switch] = best[np.argmin(switches[best])]
            switches[part[switch]] += 1
    return part
