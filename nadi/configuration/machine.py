"""Sections of a run file that say what work runs on: [topology], [compute], [memory], [energy] and [[faults]]."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainSerializer,
    StrictInt,
    field_validator,
    model_validator,
)

from nadi.configuration import values
from nadi.configuration.conditions import GPU, MODELLED, NUM_OPS, OPERATORS, OWN_REMOTE, TENSORS, WHOLE_MESSAGES, needs
from nadi.configuration.values import FilePath, GivenGraph, OptionalFlops, OptionalRate, Section, Time
from nadi.errors import ConfigError
from nadi.inputs.errors import InputError
from nadi.inputs.limits import LONGEST_PS, MAX_NODES
from nadi.inputs.units import format_rate, format_time, parse_delay, parse_link_rate, parse_time_within
from nadi.topologies import parse_pairs, parse_spec
from nadi.topologies.clusters import find
from nadi.workload import ComputeModel
from nadi.workload.compute import find_gpu

PLACES = ("link", "switch", "npu")
LINK_CHANGES = ("state", "rate", "added_latency", "error_rate")
NPU_CHANGES = ("slowdown", "pause_storm")
ALLOWED = {"link": LINK_CHANGES, "switch": ("state", "rate", "added_latency"), "npu": NPU_CHANGES}
"""Allowed changes per kind of place."""
MAX_SLOWDOWN = 1000.0  # maximum factor by which a fault extends computation
FOREVER = 1 << 62  # time in picoseconds after the end of any run


class TopologySection(Section):
    """The fabric: exactly one of spec, name, file and cluster, or a fabric that Python gives."""

    spec: Annotated[str | None, values.SPEC] = Field(
        None, description='topology with parameters, "fat-tree:k=4,rate=100Gbps"'
    )
    name: Annotated[str | None, values.TOPOLOGY] = Field(
        None, description="name of a topology; params has its parameters"
    )
    params: Annotated[dict[str, Any], values.PARAMS] = Field(
        {}, description="parameters of the topology name, or replacements of spec's parameters"
    )
    file: Annotated[FilePath | None, values.FILE] = Field(
        None, description="path of a network file, as `nadi topology build` writes it"
    )
    graph: GivenGraph = Field(
        None, description="fabric that Python gives (docs/reference/python.md); results contain a text"
    )
    cluster: Annotated[str | None, values.CLUSTER] = Field(
        None, description='cluster by name or file, with parameters of its fabric: "selene:rate=100Gbps"'
    )
    gpus: int | None = Field(None, ge=1, le=MAX_NODES, description="number of GPUs of the cluster; default: all")

    @field_validator("cluster")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        """Refuse names of clusters that are not known."""
        if name is not None:
            find(name)
        return name

    @model_validator(mode="after")
    def _exactly_one_source(self) -> Self:
        """Refuse sections without exactly one fabric, or with keys that do not belong to it."""
        given = [key for key in ("spec", "name", "file", "cluster", "graph") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"found {found} of spec, name, file and cluster; expected exactly one, as --cluster NAME")
        beside = next((key for key in ("file", "graph") if self.params and getattr(self, key) is not None), None)
        if beside is not None:
            raise ValueError(f"params are set beside {beside}; expected name or spec beside them")
        if self.gpus is not None and self.cluster is None:
            raise ValueError("gpus is set without cluster; expected cluster beside it")
        if self.cluster is not None:
            find(self.cluster).with_parameters(self.params).topology(self.gpus)
        return self

    def source(self) -> str | dict[str, Any]:
        """Return the argument for `topologies.build`: a specification, a path, or a table."""
        if self.graph is not None:
            raise ConfigError(f"[topology] graph: {self.graph!s:.100}; no file holds it, so only that process has it")
        if self.cluster is not None:
            name, _, rest = self.cluster.partition(":")
            own = {"name": name, **parse_pairs(self.cluster, rest)}
            return own | ({"gpus": self.gpus} if self.gpus else {}) | self.params
        if self.name is not None:
            return {"name": self.name, **self.params}
        if self.spec is not None and self.params:
            return parse_spec(self.spec) | self.params
        return self.spec or str(self.file)


class ComputeSection(Section):
    """Durations of compute nodes."""

    model: Literal["auto", "trace", "roofline"] = Field(
        ComputeModel.model,
        description='source of durations: "trace" = the trace\'s durations; "roofline" = operators, or num_ops and '
        'tensor_size; "auto" = what the node has',
    )
    peak_flops: Annotated[OptionalFlops, needs(MODELLED, NUM_OPS)] = Field(
        None, description='floating-point operations per second, "312TFLOPS"'
    )
    gpu: Annotated[str | None, values.GPU, needs(MODELLED, GPU)] = Field(
        None,
        description="GPU that runs operators: a name (`nadi workload gpus` lists them) or the path of a TOML file; "
        'with parameters as "h100:power=500W,memory=2.4TB/s"',
    )
    tables: Annotated[tuple[str, ...], values.TABLES, needs(MODELLED, OPERATORS)] = Field(
        (), description="tables of measured times of operators: names, or paths of CSV or Parquet files"
    )
    vendor_tables: Annotated[bool, needs(MODELLED, OPERATORS)] = Field(
        True,
        description="whether operators that `tables` does not have take their times from NVIDIA's measured tables; "
        "they need the package aiconfigurator-core",
    )
    scale_from: Annotated[str | None, values.GPU, needs(MODELLED, OPERATORS)] = Field(
        None, description="GPU whose measured times are scaled if the tables have no times of gpu"
    )
    efficiency: Annotated[
        dict[Literal["gemm", "attention", "memory", "optimizer"], FiniteFloat], needs(MODELLED, GPU)
    ] = Field(
        {},
        description="share of the GPU's rates that a class of operators reaches; defaults: docs/explanation/compute.md",
    )

    pace: Annotated[Literal["step", "serving", "alone"] | None, needs(MODELLED, OPERATORS)] = Field(
        None,
        description="pace of operators: as in a training step, as in a server that replays CUDA graphs, or as alone in "
        "a benchmark; default: serving if the traces name requests, else step",
    )

    @field_validator("gpu", "scale_from")
    @classmethod
    def _known_gpu(cls, value: str | None) -> str | None:
        """Refuse names of GPUs that are not known, unless they are files."""
        if value is not None and not value.partition(":")[0].strip().endswith(".toml"):  # run_file.py resolves paths
            find_gpu(value)
        return value


class MemorySection(Section):
    """Memory of an NPU."""

    latency: Annotated[Time, needs(MODELLED)] = Field(0, description="latency of each memory node")
    bandwidth: Annotated[OptionalRate, needs(MODELLED, TENSORS)] = Field(
        None, description='bandwidth of memory nodes and of the roofline, "2.04TB/s"'
    )
    remote: Literal["npu", "node", "pool", "none"] | None = Field(
        None,
        description="memory of remote tensors (tensor_loc other than 0): one per NPU, one per host, NPUs of the fabric "
        "that serve tensors over the network, or no such memory; default: remote tensors count as local",
    )
    remote_npus: tuple[Annotated[int, Field(ge=0, le=MAX_NODES)], ...] = Field(
        (), description="NPUs without traces that form the memory pool"
    )
    remote_sharers: Annotated[int, needs(WHOLE_MESSAGES, OWN_REMOTE)] = Field(
        1, ge=1, le=MAX_NODES, description="consecutive NPUs that share a remote memory and wait for each other there"
    )
    remote_latency: Time = Field(0, description="latency of each access to remote memory")
    remote_bandwidth: OptionalRate = Field(None, description='bandwidth of remote memory, "64GB/s"')

    @model_validator(mode="after")
    def _remote_is_complete(self) -> Self:
        """Refuse keys of remote memory that contradict each other."""
        if self.remote in {None, "none"} and (self.remote_latency or self.remote_bandwidth is not None):
            key = "remote_latency" if self.remote_latency else "remote_bandwidth"
            raise ValueError(f'{key} is set without remote = "npu", "node" or "pool"; expected both or neither')
        if (self.remote == "pool") != bool(self.remote_npus):
            raise ValueError('expected remote = "pool" and remote_npus together, as remote_npus = [64, 65]')
        return self


class EnergySection(Section):
    """Source of powers and prices."""

    table: Annotated[FilePath | None, values.FILE] = Field(
        None, description="TOML file of powers and prices that replace the default ones"
    )


def _rate(value: object) -> int:
    """Return a link's rate in bits per second, above 0."""
    try:
        return parse_link_rate(value)
    except InputError as error:
        raise ValueError(f'{error}; a link that carries nothing has state = "down"') from None


def _moment(value: object) -> int:
    return parse_time_within(value, LONGEST_PS)


_show_time = PlainSerializer(lambda ps: None if ps is None else format_time(ps))
_Moment = Annotated[int, BeforeValidator(_moment), _show_time]
_OptionalMoment = Annotated[int | None, BeforeValidator(_moment), _show_time]
_OptionalDelay = Annotated[int | None, BeforeValidator(parse_delay), _show_time]
_OptionalRate = Annotated[
    int | None, BeforeValidator(_rate), PlainSerializer(lambda bps: None if bps is None else format_rate(bps))
]


class FaultSection(BaseModel):
    """One entry of [[faults]]: a time, a place and a change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: _Moment = Field(description="time at which the fault begins")
    until: _OptionalMoment = Field(None, description="time at which the fault ends; default: never")
    link: StrictInt | str | None = Field(
        None, description='link by its ends, "leaf 0 - spine 1" or "12-40", or by number; both directions'
    )
    cable: StrictInt | None = Field(
        None, description="index from 0 among several cables between the two ends; default: all"
    )
    switch: StrictInt | str | None = Field(
        None, description='switch with all its links, by name "leaf 0" or node number; "leaf 0 to leaf 7": all these'
    )
    npu: StrictInt | str | None = Field(None, description='NPU, by number or as "npu 3"')
    state: Literal["down"] | None = Field(None, description="all packets are lost")
    rate: _OptionalRate = Field(None, description='rate during the fault, "50Gbps"')
    added_latency: _OptionalDelay = Field(None, description="delay in addition to the link's own")
    error_rate: float | None = Field(None, gt=0, le=1, description="probability that a packet is lost")
    slowdown: float | None = Field(None, ge=1, le=MAX_SLOWDOWN, description="factor by which computation takes longer")
    pause_storm: Literal[True] | None = Field(None, description="the NPU's NICs pause the links to them for ever (PFC)")

    @model_validator(mode="after")
    def _one_change_at_one_place(self) -> Self:
        """Refuse entries that do not make exactly one change at one place."""
        places = [key for key in PLACES if getattr(self, key) is not None]
        if len(places) != 1:
            raise ValueError(f"found {' and '.join(places) or 'none'} of link, switch and npu; expected exactly one")
        changes = [key for key in (*LINK_CHANGES, *NPU_CHANGES) if getattr(self, key) is not None]
        allowed = ALLOWED[places[0]]
        if len(changes) != 1 or changes[0] not in allowed:
            found = " and ".join(changes) or "nothing"
            raise ValueError(f"found {found} for a {places[0]}; expected exactly one of {', '.join(allowed)}")
        if self.cable is not None and not isinstance(self.link, str):
            raise ValueError('cable is set without two ends; expected link = "a-b" beside it')
        if self.until is not None and self.pause_storm:
            raise ValueError(f"found until {format_time(self.until)}; expected none, as a pause storm does not end")
        if self.until is not None and self.until <= self.at:
            raise ValueError(
                f"until {format_time(self.until)} is not after at {format_time(self.at)}; expected a later time"
            )
        return self

    @property
    def what(self) -> str:
        """Return the key of the change."""
        return next(key for key in (*LINK_CHANGES, *NPU_CHANGES) if getattr(self, key) is not None)

    @property
    def text(self) -> str:
        """Return place, change and time of the fault as a phrase: "leaf 0 down from 1ms to 2ms"."""
        key = next(key for key in PLACES if getattr(self, key) is not None)
        place, value = getattr(self, key), self.model_dump()[self.what]
        change = value if self.state else self.what.replace("_", " ") + ("" if value is True else f" {value}")
        until = "" if self.until is None else f" to {format_time(self.until)}"
        name = place if isinstance(place, str) else f"{key} {place}"
        return f"{name} {change} from {format_time(self.at)}{until}"

    @property
    def until_ps(self) -> int:
        """Return the end of the fault in picoseconds, or FOREVER."""
        return FOREVER if self.until is None else self.until
