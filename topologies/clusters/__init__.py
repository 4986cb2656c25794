"""Clusters: fabric, network settings, accelerator and hosts together, by name or in a file of the user's.

A TOML file describes a cluster; those of this folder and of installed packages have names.
`topologies.clusters.cluster` defines their content.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

from nadi import inputs
from nadi.inputs import plug_ins
from nadi.inputs.documents import checked, read_toml
from nadi.topologies.clusters.cluster import Cluster
from nadi.topologies.errors import TopologyError
from nadi.topologies.parameters import parse_pairs, suggest

_KIND = "cluster"


def clusters() -> Mapping[str, Cluster]:
    """Return all named clusters, in the order of their names. Raises TopologyError: a file of one is wrong."""
    return {name: _named(name) for name in plug_ins.names(_KIND)}


@functools.cache
def _named(name: str) -> Cluster:
    return _read(plug_ins.toml_file(_KIND, name, TopologyError))


def find(text: str) -> Cluster:
    """Return the cluster of a name or a file, with parameters of its fabric: "selene:rate=100Gbps", "mine.toml".

    Among the parameters, `gpus` is the default number of its GPUs. Raises TopologyError: the cluster is unknown (the
    text names the nearest and all known ones), its file is wrong, or a parameter is no key=value.
    """
    name, _, rest = text.strip().partition(":")
    known = plug_ins.names(_KIND)
    if name in known:
        cluster = _named(name)
    elif plug_ins.is_file(_KIND, name) or is_cluster(name):
        cluster = _read(Path(name))
    else:
        raise TopologyError(f"unknown cluster {name!r}; {suggest(name, known)}, or a file that ends in .toml")
    pairs = parse_pairs(text, rest)
    return cluster.with_parameters(pairs).model_copy(update={"name": text.strip()}) if pairs else cluster


def is_cluster(name: object) -> bool:
    """Return whether a name, without parameters, is that of a cluster or of a file that describes one."""
    if not isinstance(name, str) or not name:
        return False
    kind = inputs.kind_of(name)
    return name in plug_ins.names(_KIND) or (kind is not None and kind.key == "cluster")


def _read(path: Path) -> Cluster:
    """Return the cluster that a TOML file describes. Raises TopologyError: the file is unreadable or wrong."""
    tree = read_toml(path, "the file of a cluster", TopologyError)
    label = path.name if path in plug_ins.own_files(_KIND).values() else path
    cluster = checked(Cluster, {"name": path.stem, **tree}, label, TopologyError)
    gpu = plug_ins.with_path("GPU", cluster.gpu, lambda name: str(path.parent / name))
    named = {key: _from(path.parent, getattr(cluster, key)) for key in ("fabric", "network", "system")}
    return cluster.model_copy(update={"gpu": gpu, **named})


def _from(folder: Path, value: object) -> object:
    """Return a value of a cluster's file, in which paths of modules count from `folder`."""
    if isinstance(value, dict):
        return {key: _from(folder, inner) for key, inner in value.items()}
    return plug_ins.with_path("topology", value, lambda path: str(folder / path)) if isinstance(value, str) else value
