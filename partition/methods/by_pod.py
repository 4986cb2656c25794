"""Whole pods, equally many per part; switches without a pod spread evenly.

If there are more parts than pods, a pod's leaves with their NPUs are divided among its parts by weight, and so are its
other switches: every part has switches of each tier. So no part consists of switches alone, whose packets all leave it,
and on several nodes of a cluster every part is ready to send after a similar share of its work
(docs/explanation/performance.md).
"""

import numpy as np

from nadi.inputs.arrays import Float64, Int32, Int64
from nadi.partition.methods import Clusters
from nadi.partition.weights import PartitionError
from nadi.topologies import Graph

NAME = "by-pod"


def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
    """Return int32[clusters], parts by the pod of a cluster's first node in one; PartitionError: it has none.

    Args:
        graph: The fabric (`Graph`).
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    pod_of = np.full(clusters.number, -1, np.int64)
    # backwards, so that the first node of a cluster is written last
    in_pod = np.flatnonzero(graph.pod >= 0)[::-1]
    if not len(in_pod):
        raise PartitionError(f"{graph.name}: no pods; expected another method than {NAME}")
    pod_of[clusters.of_node[in_pod]] = graph.pod[in_pod]  # the last one written is the first node's
    part = np.empty(clusters.number, np.int32)
    without = np.flatnonzero(pod_of < 0)
    # five switches and two parts: 0 0 0 1 1
    part[without] = np.arange(len(without)) * parts // max(len(without), 1)
    pods, pod = np.unique(pod_of[pod_of >= 0], return_inverse=True)
    place = pod.reshape(-1).astype(np.float64)
    if len(pods) < parts:
        has_npus = np.zeros(clusters.number, bool)
        has_npus[clusters.of_node[: graph.npus]] = True
        # two tiers per pod, leaves with NPUs and other switches: each is spread over the pod's parts by itself
        place += _middles(2 * pod.reshape(-1) + has_npus[pod_of >= 0], clusters.weight[pod_of >= 0])
    # pod p of P: with P = 8 and 4 parts, pods 0 and 1 are in part 0; with P = 2 and 4 parts, the first half of pod 0 is
    part[pod_of >= 0] = place * parts // len(pods)
    return part


def _middles(tiers: Int64, weights: Int64) -> Float64:
    """Return the middle of each cluster within its tier's total weight, from 0 to 1."""
    middle = np.empty(len(tiers))
    for number in np.unique(tiers):
        here = tiers == number
        middle[here] = (np.cumsum(weights[here]) - weights[here] / 2) / weights[here].sum()
    return middle
