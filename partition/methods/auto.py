"""METIS, or pods cut evenly where that is better: the default.

METIS does well on any fabric, but with few clusters per part it leaves some parts a few per cent heavier, and makes
some parts of switches alone. Regular fabrics with pods divide evenly by construction.
"""

from nadi.inputs.arrays import Int32
from nadi.partition.methods import Clusters, by_pod, metis
from nadi.topologies import Graph


def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
    """Return int32[clusters], the parts by METIS or by pods, whichever is `better`; METIS without pods or if equal.

    Args:
        graph: The fabric (`Graph`).
        clusters: Clusters of nodes to divide among the parts.
        parts: Number of parts.
    """
    assignments = [metis.assign(graph, clusters, parts)]
    if (graph.pod >= 0).any():
        assignments.append(by_pod.assign(graph, clusters, parts))
    return metis.better(assignments, clusters, parts)
