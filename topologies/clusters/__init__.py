"""Clusters: fabric, network settings, accelerator and hosts together, by name or in a file of the user's.

A TOML file describes a cluster; those of this folder and of installed packages have names.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from nadi import inputs
from nadi.inputs import plug_ins
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.limits import MEMORY_RATE_BPS
from nadi.inputs.units import parse_bytes, parse_rate_within
from nadi.topologies.graph import TopologyError
from nadi.topologies.parameters import Count, Parameters, parse_count, parse_pairs, suggest


def _from(folder: Path, value: object) -> object:
    """Return a value of a cluster's file, in which paths of modules count from `folder`."""
    if isinstance(value, dict):
        return {key: _from(folder, inner) for key, inner in value.items()}
    return plug_ins.with_path("topology", value, lambda path: str(folder / path)) if isinstance(value, str) else value


_MAX_NAMED = 12  # numbers of GPUs that a message lists
_INSTEAD = {  # parameters of fabrics that express the same quantity: giving the first removes the others
    "oversubscription": ("spines", "spines_per_pod", "uplinks"),
    "core_oversubscription": ("cores_per_plane",),
    "spines": ("oversubscription",),
    "spines_per_pod": ("oversubscription",),
    "cores_per_plane": ("core_oversubscription",),
}
_MemoryRate = Annotated[int, BeforeValidator(lambda value: parse_rate_within(value, MEMORY_RATE_BPS))]
_Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Size(Parameters):
    """Parameters of the fabric for some numbers of GPUs: for exactly `gpus`, or for all up to `most`."""

    gpus: Count | None = Field(None, description="only number of GPUs that this entry covers; params are complete")
    most: Count | None = Field(
        None, description="maximum number of GPUs, in whole servers; npus, gpus_per_host are added"
    )
    gpus_per_host: Count | None = Field(
        None, description="accelerators in use of each server; those of the cluster if not given"
    )
    params: dict[str, object] = Field(
        {}, description="parameters in addition to those of [fabric], or in place of them"
    )


class HostMemory(Parameters):
    """A server's own memory and its link to the GPUs, for offload; None = not published."""

    memory: _Bytes | None = Field(None, description="memory of a server in bytes")
    memory_bandwidth: _MemoryRate | None = Field(None, description="memory bandwidth in bits per second, all sockets")
    pcie_rate: _MemoryRate | None = Field(None, description="PCIe rate to one GPU, each direction, in bits per second")


class Cluster(Parameters):
    """A cluster by name. `network` and `system` are keys of the run file's sections, as a user would write them."""

    name: str  # name as users write it
    summary: str = ""  # description in one line; "" = none
    source: str = ""  # source of the figures in one line, "" = unknown; the file's comments give it per value
    gpu: str  # name of the accelerator, which the compute model may know too, "h800"
    gpus_per_host: Count  # number of accelerators of a server
    gpus: Count  # published number of accelerators, which is also the default
    fabric: dict[str, object]  # name of a topology and the parameters that all sizes share
    # further parameters of the topology, by number of GPUs; the first entry that fits applies. Empty if the topology's
    # own rules suffice, such as an oversubscription: then any number up to `gpus` is allowed.
    sizes: tuple[Size, ...] = ()
    network: dict[str, object] = Field({})  # keys of [network], defaults of a run on this cluster
    system: dict[str, object] = Field({})  # keys of [system], likewise
    compute: dict[str, object] = Field({})  # keys of [compute]; by default the gpu
    memory: dict[str, object] = Field({})  # keys of [memory]
    host: HostMemory = HostMemory()  # memory of a server
    # parameters of the fabric that users give with the name, in place of those of `fabric` and `sizes`
    parameters: dict[str, object] = Field({})
    # source of constants that `nadi calibrate` fitted: files, rows, errors, factors on cited values; no run reads it
    calibration: dict[str, object] = Field({})

    def topology(self, gpus: int | None = None) -> dict[str, object]:
        """Return the table of its fabric for a number of its GPUs (None = all), as `topologies.build` takes it.

        Raises TopologyError: the cluster has no fabric of that size; the text gives the allowed sizes, and the nearest.

        Args:
            gpus: The number of GPUs in use; None means all.
        """
        count = self.gpus if gpus is None else gpus
        size = next((size for size in self._all_sizes() if self._fits(count, size)), None)
        if size is None:
            raise TopologyError(f"gpus = {count} of {self.name}; expected {self._counts(count)}")
        own: dict[str, object] = {}
        if size.most is not None:
            own = {"npus": count}
            if "gpus_per_host" in _parameters_of(str(self.fabric.get("name", ""))):
                own["gpus_per_host"] = min(self._per_host(size), count)
        table = _replaced({**self.fabric, **own, **size.params}, self.parameters)
        if "nics_per_host" in table and count < self.gpus_per_host:
            # half of a server's GPUs bring half of its NICs: all of them would double the network's share per GPU
            table["nics_per_host"] = max(1, parse_count(table["nics_per_host"]) * count // self.gpus_per_host)
        return table

    def with_parameters(self, parameters: Mapping[str, object]) -> "Cluster":
        """Return the cluster with other parameters of its fabric; "gpus" is their number (TopologyError: no count).

        Args:
            parameters: Values of the topology's parameters by key, and "gpus" for the number of GPUs.
        """
        others = {key: value for key, value in parameters.items() if key != "gpus"}
        update: dict[str, object] = {"parameters": _replaced(self.parameters, others)}
        if "gpus" in parameters:
            try:
                update |= {"gpus": parse_count(parameters["gpus"]), "sizes": self._all_sizes()}
            except TopologyError as error:
                raise TopologyError(f"{self.name}: gpus: {error}") from None
        return self.model_copy(update=update)

    def table(self, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the table of its fabric with "gpus" and parameters of the topology that are given with its name.

        Raises TopologyError: as `topology`; gpus is no count; or npus or name are given too.

        Args:
            parameters: Values of the topology's parameters by key, and "gpus" for the number of GPUs.
        """
        for key in ("npus", "name"):
            if key in parameters:
                expected = "gpus" if key == "npus" else "none"
                raise TopologyError.at(self.name, f"{key} is given with a cluster", expected)
        return self.with_parameters(parameters).topology()

    def defaults(self) -> dict[str, dict[str, object]]:
        """Return the defaults that it sets in the sections of a run file other than [topology], by section."""
        compute = self.compute or {"gpu": self.gpu}
        return {"network": self.network, "system": self.system, "compute": compute, "memory": self.memory}

    @property
    def collectives(self) -> dict[str, str]:
        """Algorithms of [system] collectives by kind; other kinds use the fabric's default."""
        specs = self.system.get("collectives", {})
        return {str(kind): str(spec) for kind, spec in specs.items()} if isinstance(specs, dict) else {}

    @property
    def most_gpus(self) -> int:
        """Number of GPUs of its largest fabric."""
        return max(size.most or size.gpus or 0 for size in self._all_sizes())

    def described(self) -> dict[str, object]:
        """Return its content as JSON values, in the units of its file."""
        known = self.model_dump(mode="json", exclude={"sizes", "parameters", "calibration"}, exclude_none=True)
        return known | {"most_gpus": self.most_gpus}

    def _all_sizes(self) -> tuple[Size, ...]:
        """Return the sizes, or one entry for any number of GPUs up to those of the cluster."""
        return self.sizes or (Size(most=self.gpus),)

    def _per_host(self, size: Size) -> int:
        """Return the accelerators in use of each server in the fabric of a size."""
        return size.gpus_per_host or self.gpus_per_host

    def _fits(self, count: int, size: Size) -> bool:
        """Return whether a size covers `count` GPUs: exactly, or in whole servers up to its maximum."""
        per_host = self._per_host(size)
        in_servers = count <= per_host or count % per_host == 0
        return count == size.gpus or (size.most is not None and count <= size.most and in_servers)

    def _counts(self, gpus: int) -> str:
        """Return a text with the allowed numbers of GPUs, and those next to a number."""
        exact = [size.gpus for size in self._all_sizes() if size.gpus is not None]
        largest: dict[int, int] = {}  # by GPUs per host, ascending maximum
        for size in self._all_sizes():
            if size.most is not None:
                per_host = self._per_host(size)
                largest[per_host] = max(size.most, largest.get(per_host, 0))
        ranges = [f"1 to {per_host}, or a multiple of {per_host} up to {most}" for per_host, most in largest.items()]
        valid = list(exact)
        for per_host, most in largest.items():
            lower = max(gpus // per_host, 1) * per_host
            valid += (count for count in (lower, lower + per_host, most) if count <= most)
        if exact:
            ranges = [*ranges, f"one of {', '.join(map(str, exact[:_MAX_NAMED]))}"]
        below = max((count for count in valid if count <= gpus), default=None)
        above = min((count for count in valid if count > gpus), default=None)
        nearest = " and ".join(str(count) for count in (below, above) if count is not None)
        return f"{' or '.join(ranges)}; nearest: {nearest}"


def _replaced(defaults: Mapping[str, object], parameters: Mapping[str, object]) -> dict[str, object]:
    """Return parameters with others in their place, without those that express the same quantity."""
    without = {key for given in parameters for key in _INSTEAD.get(given, ())}
    return {key: value for key, value in defaults.items() if key not in without} | dict(parameters)


def _parameters_of(builder: str) -> Sequence[str]:
    """Return the names of a topology's parameters; none for a machine or an unknown topology."""
    try:
        return tuple(plug_ins.module("topology", builder, TopologyError).Arguments.model_fields)
    except TopologyError:
        return ()


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

    Args:
        text: The name or file of a cluster, with parameters after a colon, if there are any.
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
    """Return whether a name, without parameters, is that of a cluster or of a file that describes one.

    Args:
        name: The text before the colon, or a value of another type, which is no name.
    """
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
