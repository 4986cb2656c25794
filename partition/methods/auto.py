"""METIS, or pods cut evenly where that is better: the default.

METIS does well on any fabric, but where a part is a handful of clusters it leaves some parts a few per cent heavier,
and makes some of switches alone. Regular fabrics with pods divide evenly by construction.
"""

import numpy as np
from numpy.typing import NDArray

from partition.clusters import Clusters
from partition.methods import by_pod, metis
from topologies.graph import Graph

NAME = "auto"


def assign(graph: Graph, clusters: Clusters, parts: int) -> NDArray[np.int32]:
    """The better of both: see `better`; METIS where the fabric has no pods, or both are as good."""
    found = [metis.assign(graph, clusters, parts)]
    if (graph.pod >= 0).any():
        found.append(by_pod.assign(graph, clusters, parts))
    return metis.better(found, clusters, parts)
