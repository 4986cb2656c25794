"""Clusters assigned in rotation: nearly every link is cut. The worst case, for tests and comparison."""

import numpy as np

from nadi.inputs.arrays import Int32
from nadi.partition.methods import Clusters
from nadi.topologies import Graph


def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
    """Return int32[clusters], parts: cluster i belongs to part i mod parts.

    Args:
        graph: The fabric, which this method does not need.
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    del graph
    return (np.arange(clusters.number) % parts).astype(np.int32)
