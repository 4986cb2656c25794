"""Clusters by name: fabric, network settings, accelerator and hosts set together from published figures.

One TOML file a cluster, found by looking into this folder; `topologies.clusters.cluster` says what stands in one.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import inputs
from topologies.clusters.cluster import Cluster
from topologies.errors import TopologyError
from topologies.validation import checked, suggest

__all__ = ["Cluster", "clusters", "find"]


@functools.cache
def clusters() -> Mapping[str, Cluster]:
    """All clusters by name, in the order of their names.

    Raises:
        TopologyError: a file of this folder is wrong.
    """
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return {path.stem: _read(path) for path in files}


def find(name: str) -> Cluster:
    """The cluster of this name.

    Raises:
        TopologyError: there is none; the nearest and all known names are said.
    """
    known = clusters()
    if name not in known:
        raise TopologyError(f"unknown cluster {name!r}; {suggest(name, known)}")
    return known[name]


def _read(path: Path) -> Cluster:
    tree = inputs.parse_toml(path.read_text(encoding="utf-8"))
    return checked(Cluster, {"name": path.stem, **tree}, path.name)
