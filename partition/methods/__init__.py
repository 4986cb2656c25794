"""Methods of assigning clusters to parts: modules of this folder and of installed packages, and files of users.

A module has a docstring whose first line describes it, and
`assign(graph, clusters, parts) -> int32[clusters.number]`: the part of each cluster, for 2 <= parts <= clusters.number.
`partition.owners` fills empty parts, and numbers the parts.
"""

from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from nadi.inputs import plug_ins
from nadi.inputs.arrays import Int32
from nadi.partition.clusters import Clusters
from nadi.partition.weights import PartitionError
from nadi.topologies import Graph

DEFAULT_METHOD = "auto"
_KIND = "partition method"


class Method(Protocol):
    """Interface of a module of this folder."""

    __doc__: str | None

    @staticmethod
    def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
        """Return int32[clusters.number]: the part of each cluster.

        Args:
            graph: The fabric (`Graph`).
            clusters: Clusters of nodes to divide among the parts.
            parts: Number of parts.
        """


def methods() -> dict[str, Method]:
    """Return all methods by name, without those in files of the user's."""
    return {name: method(name) for name in plug_ins.names(_KIND)}


def method(name: str) -> Method:
    """Return the method of a name or file; PartitionError if it is none."""
    return cast("Method", plug_ins.module(_KIND, name, PartitionError))
