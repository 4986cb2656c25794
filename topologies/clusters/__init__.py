"""Clusters: fabric, network settings, accelerator and hosts together, by name or in a file of the user's.

One TOML file describes a cluster; those of this folder have names. `topologies.clusters.cluster` defines their content.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import inputs
from inputs.documents import checked, read_toml
from topologies.clusters.cluster import Cluster
from topologies.errors import TopologyError
from topologies.parameters import parse_pairs, suggest

_SUFFIX = ".toml"


@functools.cache
def clusters() -> Mapping[str, Cluster]:
    """Return all named clusters, in the order of their names. Raises TopologyError: a file of this folder is wrong."""
    files = sorted(Path(__file__).parent.glob(f"*{_SUFFIX}"))
    return {path.stem: _read(path) for path in files}


def find(text: str) -> Cluster:
    """Return the cluster of a name or a file, with parameters of its fabric: "selene:rate=100Gbps", "mine.toml".

    Among the parameters, `gpus` is the default number of its GPUs. Raises TopologyError: the cluster is unknown (the
    text names the nearest and all known ones), its file is wrong, or a parameter is no key=value.
    """
    name, _, rest = text.strip().partition(":")
    known = clusters()
    if name in known:
        cluster = known[name]
    elif Path(name).suffix == _SUFFIX or is_cluster(name):
        cluster = _read(Path(name))
    else:
        raise TopologyError(f"unknown cluster {name!r}; {suggest(name, known)}, or a file that ends in {_SUFFIX}")
    pairs = parse_pairs(text, rest)
    return cluster.with_parameters(pairs).model_copy(update={"name": text.strip()}) if pairs else cluster


def is_cluster(name: object) -> bool:
    """Return whether a name, without parameters, is that of a cluster or of a file that describes one."""
    if not isinstance(name, str) or not name:
        return False
    if name in clusters():
        return True
    kind = inputs.kind_of(name)
    return kind is not None and kind.key == "cluster"


def with_path_from(folder: Path, cluster_text: str) -> str:
    """Return the text of a cluster (as `find` takes it) with its file's path, if relative, taken from `folder`."""
    name, colon, rest = cluster_text.partition(":")
    if name in clusters() or Path(name).suffix != _SUFFIX:
        return cluster_text
    return f"{(folder / name).absolute()}{colon}{rest}"


def _read(path: Path) -> Cluster:
    """Return the cluster that a TOML file describes. Raises TopologyError: the file is unreadable or wrong."""
    tree = read_toml(path, "the file of a cluster", TopologyError)
    label = path if path.parent != _FOLDER else path.name
    cluster = checked(Cluster, {"name": path.stem, **tree}, label, TopologyError)
    own_gpu = path.parent / cluster.gpu
    return cluster.model_copy(update={"gpu": str(own_gpu)}) if Path(cluster.gpu).suffix == _SUFFIX else cluster


_FOLDER = Path(__file__).parent
