"""Methods of assigning clusters to parts, one module each, found in this folder.

A module has `NAME`, as users write it, a docstring whose first line describes it, and
`assign(graph, clusters, parts) -> int32[clusters.number]`: the part of each cluster, for 2 <= parts <= clusters.number.
`partition.owners` fills empty parts, and numbers the parts.
"""

import difflib
import functools
import importlib
import pkgutil
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from partition.clusters import Clusters
from partition.errors import PartitionError
from topologies.graph import Graph, Int32

DEFAULT_METHOD = "auto"


class Method(Protocol):
    """Interface of a module of this folder."""

    NAME: str
    __doc__: str | None

    @staticmethod
    def assign(graph: Graph, clusters: Clusters, parts: int) -> Int32:
        """Return int32[clusters.number]: the part of each cluster."""


@functools.cache
def methods() -> dict[str, Method]:
    """Return all methods by name."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.NAME: cast("Method", module) for module in modules}


def method(name: str) -> Method:
    """Return the method with a name; PartitionError if it is unknown."""
    known = methods()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PartitionError(f"unknown method {name!r}; {hint}known: {', '.join(known)}")
    return known[name]
