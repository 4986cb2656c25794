"""What a file of a cluster holds, and the fabric of any number of its GPUs."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from topologies.bounds import MEMORY_RATE_BPS
from topologies.errors import TopologyError
from topologies.parameters import Count, Parameters, parse_count
from topologies.units import parse_bytes, parse_rate_within

_MOST_NAMED = 12
_INSTEAD = {
    "oversubscription": ("spines", "spines_per_pod", "uplinks"),
    "core_oversubscription": ("cores_per_plane",),
    "spines": ("oversubscription",),
    "spines_per_pod": ("oversubscription",),
    "cores_per_plane": ("core_oversubscription",),
}
"""Parameters of fabrics that say the same in another way: who gives the first takes back the others."""
_MemoryRate = Annotated[int, BeforeValidator(lambda value: parse_rate_within(value, MEMORY_RATE_BPS))]
_Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Size(Parameters):
    """Parameters of the fabric for some numbers of GPUs: for exactly `gpus`, or for all up to `most`."""

    gpus: Count | None = Field(None, description="for this number alone; params say all")
    most: Count | None = Field(None, description="for whole servers up to this number; npus, gpus_per_host are added")
    params: dict[str, object] = Field({}, description="beside those of [fabric], or in place of them")


class HostMemory(Parameters):
    """A server's own memory and its way to the GPUs, for offload; None = not published."""

    memory: _Bytes | None = Field(None, description="bytes of its memory")
    memory_bandwidth: _MemoryRate | None = Field(None, description="bits per second of its memory, all sockets")
    pcie_rate: _MemoryRate | None = Field(None, description="bits per second to one GPU, each direction")


class Cluster(Parameters):
    """A cluster by name. `network` and `system` are keys of the run file's sections, as a user would write them.

    Attributes:
        name: as users write it.
        summary: one line; "" = none.
        source: where its figures come from, one line, "" = not said; the file's comments say it value by value.
        gpu: what its accelerator is called, by the compute model too where that knows it, "h800".
        gpus_per_host: accelerators of a server.
        gpus: how many it has, as published; taken where no number is given.
        fabric: name of a topology and the parameters that all sizes share.
        sizes: what else the topology needs, by number of GPUs; the first that fits holds. None are needed where the
            topology's own rules say all, as an oversubscription: then any number up to `gpus` may be taken.
        network: keys of [network], defaults of a run on this cluster.
        system: keys of [system], likewise.
        compute: keys of [compute]; not given: the gpu.
        memory: keys of [memory].
        host: memory of a server.
        parameters: of the fabric, in place of those of `fabric` and `sizes`; users give them with the name.
    """

    name: str
    summary: str = ""
    source: str = ""
    gpu: str
    gpus_per_host: Count
    gpus: Count
    fabric: dict[str, object]
    sizes: tuple[Size, ...] = ()
    network: dict[str, object] = Field({})
    system: dict[str, object] = Field({})
    compute: dict[str, object] = Field({})
    memory: dict[str, object] = Field({})
    host: HostMemory = HostMemory()
    parameters: dict[str, object] = Field({})

    def topology(self, gpus: int | None = None) -> dict[str, object]:
        """The table of its fabric, as `topologies.build` takes it.

        Args:
            gpus: how many of its GPUs, the first ones; None = all.

        Raises:
            TopologyError: it has no fabric of so many; the text says of which, and the nearest.
        """
        count = self.gpus if gpus is None else gpus
        size = next((size for size in self._all_sizes() if self._fits(size, count)), None)
        if size is None:
            raise TopologyError(f"gpus = {count} of {self.name}; expected {self._counts(count)}")
        own: dict[str, object] = {}
        if size.most is not None:
            own = {"npus": count}
            if "gpus_per_host" in _parameters_of(str(self.fabric.get("name", "")).replace("-", "_")):
                own["gpus_per_host"] = min(self.gpus_per_host, count)
        table = _replaced({**self.fabric, **own, **size.params}, self.parameters)
        if "nics_per_host" in table and count < self.gpus_per_host:
            table["nics_per_host"] = max(1, parse_count(table["nics_per_host"]) * count // self.gpus_per_host)
        return table

    def with_parameters(self, parameters: Mapping[str, object]) -> "Cluster":
        """Return the cluster with other parameters of its fabric; "gpus" among them is how many GPUs are taken.

        Raises:
            TopologyError: gpus is no count.
        """
        others = {key: value for key, value in parameters.items() if key != "gpus"}
        update: dict[str, object] = {"parameters": _replaced(self.parameters, others)}
        if "gpus" in parameters:
            update |= {"gpus": self._count(parameters["gpus"]), "sizes": self._all_sizes()}
        return self.model_copy(update=update)

    def table(self, others: Mapping[str, object]) -> dict[str, object]:
        """The table of its fabric where "gpus" and parameters of the topology are given beside its name.

        Raises:
            TopologyError: as `topology`, gpus is no count, or npus or name stand beside it.
        """
        for key in ("npus", "name"):
            if key in others:
                expected = "gpus" if key == "npus" else "none"
                raise TopologyError(f"{self.name}: {key} stands beside a cluster; expected {expected}")
        return self.with_parameters(others).topology()

    def defaults(self) -> dict[str, dict[str, object]]:
        """What it sets in the sections of a run file beside [topology], by section."""
        compute = self.compute or {"gpu": self.gpu}
        return {"network": self.network, "system": self.system, "compute": compute, "memory": self.memory}

    @property
    def collectives(self) -> dict[str, str]:
        """Algorithms of [system] collectives by kind; kinds that it lacks take the fabric's default."""
        found = self.system.get("collectives", {})
        return {str(kind): str(spec) for kind, spec in found.items()} if isinstance(found, dict) else {}

    @property
    def most_gpus(self) -> int:
        """The largest number of GPUs that it has a fabric of."""
        return max(size.most or size.gpus or 0 for size in self._all_sizes())

    def described(self) -> dict[str, object]:
        """What JSON can hold of it, units as in its file's."""
        known = self.model_dump(mode="json", exclude={"sizes", "parameters"}, exclude_none=True)
        return known | {"most_gpus": self.most_gpus}

    def _all_sizes(self) -> tuple[Size, ...]:
        """The sizes, or one of any number of GPUs up to those of the cluster."""
        return self.sizes or (Size(most=self.gpus),)

    def _count(self, gpus: object) -> int:
        try:
            return parse_count(gpus)
        except TopologyError as error:
            raise TopologyError(f"{self.name}: gpus: {error}") from None

    def _fits(self, size: Size, count: int) -> bool:
        if size.most is None:
            return count == size.gpus
        return count <= size.most and (count <= self.gpus_per_host or count % self.gpus_per_host == 0)

    def _counts(self, near: int) -> str:
        """Which numbers of GPUs there are, and those next to one."""
        exact = [size.gpus for size in self._all_sizes() if size.gpus is not None]
        most = max((size.most for size in self._all_sizes() if size.most is not None), default=0)
        said = []
        valid: Sequence[int] = exact
        if most:
            said = [f"1 to {self.gpus_per_host}, or a multiple of {self.gpus_per_host} up to {most}"]
            lower = max(near // self.gpus_per_host, 1) * self.gpus_per_host
            valid = [*exact, *(count for count in (lower, lower + self.gpus_per_host, most) if count <= most)]
        if exact:
            said = [*said, f"one of {', '.join(map(str, exact[:_MOST_NAMED]))}"]
        below = max((count for count in valid if count <= near), default=None)
        above = min((count for count in valid if count > near), default=None)
        nearest = " and ".join(str(count) for count in (below, above) if count is not None)
        return f"{' or '.join(said)}; nearest: {nearest}"


def _replaced(table: Mapping[str, object], parameters: Mapping[str, object]) -> dict[str, object]:
    """Return a table with other parameters in it, without those that say the same in another way."""
    without = {key for given in parameters for key in _INSTEAD.get(given, ())}
    return {key: value for key, value in table.items() if key not in without} | dict(parameters)


def _parameters_of(builder: str) -> Sequence[str]:
    """Names of the parameters of a topology by its module; none of one that does not exist, as building it will say."""
    try:
        module = importlib.import_module(f"topologies.builders.{builder}")
    except ModuleNotFoundError:
        return ()
    return tuple(module.Arguments.model_fields)
