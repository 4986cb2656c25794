"""Building of networks from user input: topologies, machines and clusters, by name or file.

A network is written as a spec ("fat-tree:k=16,rate=100Gbps"), as a table with the same keys ({"name": "fat-tree",
"k": 16}), or as the path of a file: TOML if it is TOML or ends in .toml, a kind of file that a builder reads, else
SimAI's text. The name of a topology may be FILE.py, and that of a machine FILE.toml. The name may be that of a
cluster ("selene:gpus=1024") or the file of one, whose other keys are "gpus" and parameters of its topology.
"""

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from nadi import inputs
from nadi.inputs import plug_ins
from nadi.inputs.documents import checked
from nadi.inputs.limits import MAX_CABLES, MAX_NODES, MAX_NPUS
from nadi.topologies.clusters import find, is_cluster
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.machines import is_machine, machine
from nadi.topologies.parameters import Form, Parameters, parse_pairs, suggest
from nadi.topologies.table_routing import refuse_parts


@dataclass(frozen=True)
class TopologyParameter:
    """One parameter of a topology, for help."""

    name: str  # key of the parameter
    form: str  # notation of its value: "rate, as 400Gbps"
    default: str | None  # default as the user would write it; None = required, "" = derived from the others
    help: str  # description of the parameter


@dataclass(frozen=True)
class Topology:
    """A topology that can be built."""

    name: str  # name as users write it
    summary: str  # description in one line
    arguments: type[Parameters]  # model of its parameters
    build: Callable[[Any, str], Graph]  # builder of the network
    extent: Callable[[Any, str], Extent] | None = None  # function that returns the size from the parameters, or None
    # function that estimates the size from the file, without checking it; used if `extent` is None
    estimate: Callable[[Any], Extent | None] | None = None

    def parameters(self) -> tuple[TopologyParameter, ...]:
        """Return its parameters, in the order of the model."""
        return tuple(_parameter(key, field) for key, field in self.arguments.model_fields.items())


def topologies() -> Mapping[str, Topology]:
    """Return all topologies by name, in the order of their names, without those in files of the user's."""
    return {name: topology_of(name) for name in _names()}


def _names() -> list[str]:
    """Return the names of all topologies and machines, sorted."""
    return sorted({*plug_ins.names("topology"), *plug_ins.names("machine")})


def is_topology(name: object) -> bool:
    """Return whether a name, without parameters, is that of a topology or machine, or of a file that holds one.

    Args:
        name: The text before the colon of a spec, or a value of another type, which is no name.
    """
    return isinstance(name, str) and (is_machine(name) or name in _names() or plug_ins.is_file("topology", name))


def topology_of(name: str) -> Topology:
    """Return the topology or machine of a name or file; TopologyError for another name."""
    if is_machine(name):
        own = machine(name)
        return Topology(name, own.summary, own.arguments, own.build, own.extent)
    module = plug_ins.module("topology", name, TopologyError)
    summary, optional = (module.__doc__ or "").partition("\n")[0], ("extent", "estimate")
    return Topology(name, summary, module.Arguments, module.build, *(getattr(module, each, None) for each in optional))


def parse_spec(spec: str) -> dict[str, object]:
    """Return the values of a spec ("ring:npus=8") or path: "name" and parameters as text; TopologyError if unknown.

    Args:
        spec: The text of a topology as users write it, or a path.
    """
    name, _, rest = spec.strip().partition(":")
    if not is_topology(name) and not is_cluster(name):
        return _parse_path(spec)
    pairs = parse_pairs(spec, rest)
    if "name" in pairs:
        raise TopologyError.at(spec, "key 'name' occurs twice", "it once")
    return {"name": name, **pairs}


def names_cluster(name: object, keys: Container[str]) -> bool:
    """Return whether a name with parameters of these keys is a cluster's.

    A machine and the cluster of it may share a name: `npus` is a parameter of machines, `gpus` of clusters.
    """
    return is_cluster(name) and not ("npus" in keys and is_topology(name))


def format_spec(values: Mapping[str, object]) -> str:
    """Return the spec ("ring:npus=8") of a topology's values by key, "name" and parameters; for a file, its path.

    Args:
        values: The values of a topology by key, with its "name".
    """
    others = {key: value for key, value in values.items() if key != "name"}
    if others.keys() == {"path"} and values.get("name") in {"file", "simai", *_readers().values()}:
        return str(others["path"])
    pairs = ",".join(f"{key}={_format_value(value)}" for key, value in others.items())
    return f"{values.get('name')}:{pairs}" if pairs else str(values.get("name"))


def spec_with_gpus(spec: str, gpus: int, gpus_per_host: int = 0) -> str:
    """Return the spec of some GPUs of a cluster, machine or topology, in place of the number that it has.

    Args:
        spec: The text of a cluster or topology as users write it, with parameters.
        gpus: The number of GPUs.
        gpus_per_host: The number of these in each host of a cluster; 0 = as it has.
    """
    values = parse_spec(spec)
    of_cluster = names_cluster(values["name"], values)
    chosen = {"gpus" if of_cluster else "npus": gpus}
    if gpus_per_host and of_cluster:
        chosen["gpus_per_host"] = gpus_per_host
    return format_spec({**{each: value for each, value in values.items() if each not in chosen}, **chosen})


def with_paths(spec: str, replace_path: Callable[[str], str]) -> str | None:
    """Return a spec such as "simai:path=F" with each path replaced by what the function returns for it.

    The result is None if `spec` names neither a topology nor a cluster, so that all of it may be a path.

    Args:
        spec: The text of a topology as users write it, or a path.
        replace_path: A function from a path to the path that takes its place.
    """
    name, colon, rest = spec.strip().partition(":")
    if not is_topology(name) and name not in plug_ins.names("cluster"):
        return None
    parts = [part.partition("=") for part in rest.split(",")]
    changed = [
        f"{key}={replace_path(value.strip())}"
        if value.strip() and key.strip() in path_parameters(name)
        else key + equals + value
        for key, equals, value in parts
    ]
    name = plug_ins.with_path("machine", plug_ins.with_path("topology", name, replace_path), replace_path)
    return name + colon + ",".join(changed)


@functools.cache
def path_parameters(topology: str = "") -> frozenset[str]:
    """Return the names of the parameters that are paths.

    Args:
        topology: The name of one of Nadi's own topologies; with any other text, the parameters are those of all of
            them, which takes longer: each is imported.
    """
    own = plug_ins.own_files("topology")
    return frozenset(
        key
        for name in ({topology} & own.keys() or own)
        for key, field in plug_ins.own_module("topology", name).Arguments.model_fields.items()
        if _form(field.metadata, field.annotation).is_path
    )


def build(topology: str | Path | Mapping[str, object], *, in_parts: bool = False) -> Graph:
    """Build the network of a spec, path or table (of a run file; its key "name" selects the topology).

    Paths are relative to the current directory. Raises TopologyError: the input is invalid; the text is one line.

    Args:
        topology: The spec, path or table of the network.
        in_parts: Whether NPUs may be without a path to each other, until optical switches connect them.
    """
    builder, arguments, label = _read(topology)
    _extent(builder, arguments, label)
    graph = builder.build(arguments, label)
    # other builders refuse it themselves
    if getattr(arguments, "spines", None) == 0 and not in_parts:
        refuse_parts(label, graph.npus, graph.routing)
    return graph


def extent(topology: str | Path | Mapping[str, object]) -> Extent | None:
    """Return the size of the network of a spec, path or table, without building it; approximate for a file.

    Returns None if the file cannot be read twice, or is invalid, which building it reports. Raises TopologyError: its
    parameters are invalid, or it is larger than the maximum.

    Args:
        topology: The spec, path or table of the network, as for `build`.
    """
    builder, arguments, label = _read(topology)
    size = _extent(builder, arguments, label)
    return size or (builder.estimate(arguments) if builder.estimate else None)


def _extent(topology: Topology, arguments: Parameters, label: str) -> Extent | None:
    """Return the size of a network, None = unknown before it is built; TopologyError if the engine cannot hold it."""
    size = topology.extent(arguments, label) if topology.extent else None
    if size and size.npus <= MAX_NPUS:
        for unit, count, maximum in (("nodes", size.nodes, MAX_NODES), ("cables", size.cables, MAX_CABLES)):
            if count > maximum:
                raise TopologyError.at(label, f"{count} {unit}", f"at most {maximum}")
    return size


def _read(topology: str | Path | Mapping[str, object]) -> tuple[Topology, Parameters, str]:
    """Return the topology, its parameters, and the label (a spec) of a network; TopologyError if they are invalid."""
    values = topology if isinstance(topology, Mapping) else parse_spec(str(topology))
    label = format_spec(values)
    if "name" not in values:
        raise TopologyError(f"topology {label!r}: key 'name' is missing; known: {', '.join(_names())}")
    if names_cluster(values["name"], values):
        values = find(str(values["name"])).table({key: value for key, value in values.items() if key != "name"})
    name = values["name"]
    if not isinstance(name, str) or not is_topology(name):
        raise TopologyError(f"unknown topology {name!r}; {suggest(str(name), {*_names(), *plug_ins.names('cluster')})}")
    builder = topology_of(name)
    others = {key: value for key, value in values.items() if key != "name"}
    return builder, checked(builder.arguments, others, label, TopologyError), label


def _parse_path(path_text: str) -> dict[str, object]:
    """Return the values of a file's network: "name" of the topology that reads it, and "path"."""
    path = path_text.strip()
    kind = inputs.kind_of(path)
    if path.endswith(".toml") or (kind is not None and kind.key in {"fabric", "toml", "run-file"}):
        return {"name": "file", "path": path}
    builder = _readers().get(Path(path).suffix, kind and _readers().get(kind.key))
    if builder and Path(path).is_file():
        return {"name": builder, "path": path}
    if Path(path).is_file() or (kind is not None and kind.key == "fifo"):
        return {"name": "simai", "path": path}
    name = path.partition(":")[0]
    if kind is not None and ":" not in path:
        expected = f"the file of a fabric, or one of {', '.join(sorted({*_names(), *plug_ins.names('cluster')}))}"
        raise TopologyError(inputs.complaint(path, kind, expected))
    raise TopologyError(
        f"unknown topology {name!r}, and no such file; {suggest(name, {*_names(), *plug_ins.names('cluster')})}"
    )


@functools.cache
def _readers() -> Mapping[str, str]:
    """Return the topology by the ending or kind (`inputs.kinds`) of the files that it reads, its FILES."""
    found: dict[str, str] = {}
    for name in (*plug_ins.own_files("topology"), *plug_ins.installed_names("topology")):
        with suppress(plug_ins.PlugInError):  # what is wrong in a package is told to who names it
            found = dict.fromkeys(getattr(plug_ins.module("topology", name), "FILES", ()), name) | found
    return found


def _format_value(value: object) -> str:
    """Return a parameter's value as a spec writes it: "4x4" for a list of sizes."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ("x" if all(isinstance(entry, int) for entry in value) else "_").join(map(str, value))
    return str(value)


def _parameter(name: str, field: FieldInfo) -> TopologyParameter:
    """Return the help of a topology's parameter, a field of its model."""
    form = _form(field.metadata, field.annotation)
    default = None
    if not field.is_required():
        default = "" if field.default in {None, ()} else form.show(field.default)
    return TopologyParameter(name, form.text, default, field.description or "")


def _form(metadata: Sequence[object], annotation: object) -> Form:
    """Return the `Form` in the annotation of a field: its own, or that of the type beside None."""
    for entry in metadata:
        if isinstance(entry, Form):
            return entry
    for argument in get_args(annotation):
        for entry in getattr(argument, "__metadata__", ()):
            if isinstance(entry, Form):
                return entry
    return Form("whole number")
