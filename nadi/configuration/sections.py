"""Sections of a run file that say where and how work runs; `run_config` puts all sections together.

Each section is a model, and its fields are the keys. Values carry units as people write them.
"""

import functools
from typing import Annotated, Any, Literal, Optional, Self

from pydantic import (
    BeforeValidator,
    Field,
    FiniteFloat,
    ModelWrapValidatorHandler,
    PydanticUserError,
    SerializerFunctionWrapHandler,
    StrictBool,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nadi.configuration import MAX_RESENDS, MAX_RETRIES, MAX_SEED, MAX_WORKERS, named_files
from nadi.configuration.conditions import (
    ASKED,
    BALANCED,
    CLASSES,
    CONTROL,
    DIVIDED,
    DOWN,
    ECN,
    FABRIC_KEYS,
    FAULTS,
    FLOWLETS,
    GPU,
    JOBS,
    MODELLED,
    NODES,
    NOTIFIED,
    NUM_OPS,
    OPERATORS,
    OWN_REMOTE,
    PACKETS,
    PFC,
    QUEUED,
    QUEUES,
    SELECTIVE,
    SHARED,
    SIMULATED,
    TENSORS,
    TIMEOUTS,
    TRIMMING,
    WEIGHTED,
    WHOLE_MESSAGES,
    Needs,
    needs,
)
from nadi.configuration.values import (
    BufferSize,
    BufferSizeFromZero,
    BufferSizeOrAuto,
    ChoiceOrAuto,
    CountOrUnlimited,
    EcnByRate,
    FactorOrAuto,
    FilePath,
    GivenGraph,
    MessageSize,
    Moment,
    OptionalFlops,
    OptionalRate,
    PacketSize,
    PacketsOrAuto,
    Percentage,
    Section,
    SizeOrAuto,
    SizeOrUnlimited,
    Time,
    TimeAboveZero,
    TimeOrAuto,
    WallTime,
    Weight,
)
from nadi.errors import ConfigError
from nadi.inputs.limits import MAX_NODES
from nadi.inputs.units import format_bytes, format_time
from nadi.launching.workers import Backend, Workers
from nadi.partition import DEFAULT_METHOD
from nadi.pdes import Faults, Fidelity, NetworkModel, RunError, Setting, Settings, SharedBuffer, fidelity, settings_of
from nadi.topologies import parse_pairs, parse_spec
from nadi.topologies.clusters import find
from nadi.workload import CollectiveSettings, ComputeModel
from nadi.workload.compute import find_gpu

WEIGHT_SOURCES = ("traces", "fabric")  # words that [engine] weights accepts besides a folder
_KEYS_OF_MODELS = tuple(model.own for model in fidelity.networks().values())
SETTINGS: dict[str, Setting] = {
    setting.key: setting
    for owner in (*_KEYS_OF_MODELS, Settings, SharedBuffer, Fidelity, Faults, Workers)
    for setting in settings_of(owner)
    if setting.is_given
}
"""Settings of the engine, by key."""
_SHARED_BUFFER = {setting.key: setting for setting in settings_of(SharedBuffer)}


def given_default(key: str) -> Any:  # noqa: ANN401 - of any type
    """Return the engine's default as users would write it: a word, a formatted number, or the name of an object."""
    return _default_of(SETTINGS[key])


def _default_of(setting: Setting) -> Any:  # noqa: ANN401 - of any type
    if setting.unset and not setting.default:
        return setting.unset
    show = {"_ps": format_time, "_bytes": format_bytes}.get(setting.unit)
    return show(setting.default) if show else getattr(setting.default, "name", setting.default)


def _engine(key: str, **limits: Any) -> Any:  # noqa: ANN401 - as pydantic's Field
    """Return the field of a key that is a setting of the engine, which declares default and meaning."""
    setting = SETTINGS[key]
    is_number = isinstance(setting.default, int)  # parsed sizes and times are numbers, even if users write a word
    return Field(setting.default if is_number else given_default(key), description=setting.doc, **limits)


def _engine_if(key: str, **limits: Any) -> Any:  # noqa: ANN401 - as pydantic's Field
    """Return the field of an engine setting that some networks lack; its value is None on those."""
    return Field(None, description=SETTINGS[key].doc, **limits)


class TopologySection(Section):
    """The fabric: exactly one of spec, name, file and cluster, or a fabric that Python gives."""

    spec: Annotated[str | None, named_files.SPEC] = Field(
        None, description='topology with parameters, "fat-tree:k=4,rate=100Gbps"'
    )
    name: Annotated[str | None, named_files.TOPOLOGY] = Field(
        None, description="name of a topology; params has its parameters"
    )
    params: Annotated[dict[str, Any], named_files.PARAMS] = Field(
        {}, description="parameters of the topology name, or replacements of spec's parameters"
    )
    file: Annotated[FilePath | None, named_files.FILE] = Field(
        None, description="path of a network file, as `nadi topology build` writes it"
    )
    graph: GivenGraph = Field(
        None, description="fabric that Python gives (docs/reference/python.md); results contain a text"
    )
    cluster: Annotated[str | None, named_files.CLUSTER] = Field(
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


class SystemSection(Section):
    """Algorithms and scheduling of collectives."""

    collectives: Annotated[dict[str, str], named_files.ALGORITHMS] = Field(
        {}, description='algorithm per kind, all-reduce = "ring"; other kinds use the default'
    )
    concurrent_collectives: StrictBool = _engine("concurrent_collectives")
    one_at_a_time: StrictBool = _engine("one_at_a_time")
    tick: Annotated[Time, needs(PACKETS)] = _engine("tick")
    splits: int = Field(
        CollectiveSettings.splits,
        ge=1,
        le=1024,
        description="number of parts into which algorithms of several dimensions split a buffer",
    )
    dataset_splits: int = Field(
        CollectiveSettings.dataset_splits,
        ge=1,
        le=1024,
        description="number of successive collectives into which a buffer is split",
    )
    dimension_order: Literal["baseline", "bandwidth-aware", "themis"] = Field(
        CollectiveSettings.dimension_order, description="order in which the splits use the dimensions"
    )
    scheduling: Annotated[Literal["fifo", "lifo", "priority"], needs(SIMULATED, QUEUED)] = _engine("scheduling")
    phases_per_dimension: CountOrUnlimited = _engine("phases_per_dimension")
    collectives_in_flight: Annotated[CountOrUnlimited, needs(PACKETS)] = _engine("collectives_in_flight")
    rendezvous: Annotated[SizeOrUnlimited, needs(PACKETS)] = _engine("rendezvous")
    rendezvous_control: Annotated[MessageSize, needs(PACKETS, ASKED)] = _engine("rendezvous_control")
    compute_slowdown: FactorOrAuto = Field(None, ge=1, le=1000, description=SETTINGS["compute_slowdown"].doc)


PFC_KEYS = ("pfc_headroom", "pfc_resume_offset")
ECN_KEYS = ("ecn_kmin", "ecn_kmax", "ecn_pmax", "ecn_by_rate")
_WITHOUT_DEFAULT = ("class_weights", "ecn_by_rate")  # keys of shared buffers that are set or are not


def _known_fidelity(name: object) -> object:
    """Return the value of [network] fidelity; refuse unknown ones."""
    if known_model(name) is None:
        *others, last = map(repr, fidelity.networks())
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("literal_error", "Input should be {known}", {"known": known})
    return name


class _NetworkModelSection(Section):
    """The model of the network."""

    fidelity: Annotated[str, BeforeValidator(_known_fidelity), named_files.FIDELITY] = _engine("fidelity")


def _of_model(setting: Setting) -> tuple[Any, Any]:
    """Return type and field of a key that one model of the network declares; its value is None with other models."""
    kind = TimeAboveZero if setting.unit == "_ps" else StrictBool if setting.type is bool else setting.type
    return Optional[kind], Field(None, description=setting.doc)  # noqa: UP045 - the type is a value


_OF_MODELS: Any = {setting.key: _of_model(setting) for owner in _KEYS_OF_MODELS for setting in settings_of(owner)}
_KeysOfModels: Any = create_model("_KeysOfModels", __base__=_NetworkModelSection, **_OF_MODELS)


class NetworkSection(_KeysOfModels):  # type: ignore[misc] # a class that pydantic creates
    """Packets, queues, transport, switches and congestion control.

    Validation settles `switch`. Keys without effect get their defaults, whatever the user set: those of another model
    of the network, those of shared buffers with output queues and vice versa, and those of PFC and ECN without PFC and
    ECN. Keys of shared buffers and those that one model declares (`_KeysOfModels`) are None in that case. Results omit
    keys of another model of the network. Keys that a model in a user's file declares are in a class of their own
    (`network_section`).
    """

    endpoint_delay: Time = _engine("endpoint_delay")
    reduction_bandwidth: OptionalRate = _engine("reduction_bandwidth")
    send_latency: Time = _engine("send_latency")
    acknowledged: StrictBool = _engine("acknowledged")
    mtu: PacketSize = _engine("mtu")
    header: PacketSize = _engine("header")
    ack: PacketSize = _engine("ack")
    window: SizeOrAuto = _engine("window")
    queue_limit: Annotated[SizeOrUnlimited, needs(QUEUES)] = _engine("queue_limit")
    cut_through: StrictBool = _engine("cut_through")
    rto: TimeOrAuto = _engine("rto")
    max_retries: Annotated[int, needs(TIMEOUTS)] = _engine("max_retries", ge=1, le=MAX_RETRIES)
    max_resends: Annotated[int, needs(SHARED, TRIMMING)] = _engine("max_resends", ge=1, le=MAX_RESENDS)
    detection_time: Annotated[Moment, needs(DOWN)] = _engine("detection_time")
    nvlink_framing: StrictBool = _engine("nvlink_framing")
    nvlink: Literal["messages", "closed-form"] = Field(
        "messages",
        description="network of collectives whose members one NVLink domain joins: messages over its links, or the "
        "time that the collective takes alone",
    )
    flows: tuple[str, ...] = Field(
        (),
        description='traffic that is flows on the links of the packets: names of groups ("tp"), "p2p" for '
        'point-to-point messages, "all" for collectives of all NPUs',
    )
    p2p_share: float = _engine("p2p_share", ge=0.001, le=1)
    queue_pairs: Annotated[Literal["pair", "message"], needs(NODES)] = _engine("queue_pairs")
    switch: Literal["output-queued", "shared-buffer"] = _engine("switch")
    buffer: Annotated[BufferSize | None, needs(SHARED)] = _engine_if("buffer")
    pfc: Annotated[StrictBool | None, needs(SHARED)] = _engine_if("pfc")
    pfc_alpha: Annotated[float | None, needs(SHARED)] = _engine_if("pfc_alpha", ge=1 / 1024, le=1024)
    pfc_headroom: Annotated[BufferSizeOrAuto | None, needs(SHARED, PFC)] = _engine_if("pfc_headroom")
    pfc_resume_offset: Annotated[BufferSizeFromZero | None, needs(SHARED, PFC)] = _engine_if("pfc_resume_offset")
    ecn: Annotated[StrictBool | None, needs(SHARED)] = _engine_if("ecn")
    ecn_kmin: Annotated[BufferSizeFromZero | None, needs(SHARED, ECN)] = _engine_if("ecn_kmin")
    ecn_kmax: Annotated[BufferSizeFromZero | None, needs(SHARED, ECN)] = _engine_if("ecn_kmax")
    ecn_pmax: Annotated[float | None, needs(SHARED, ECN)] = _engine_if("ecn_pmax", ge=0, le=1)
    ecn_by_rate: Annotated[EcnByRate | None, needs(SHARED, ECN)] = _engine_if("ecn_by_rate")
    trimming: Annotated[StrictBool | None, needs(SHARED)] = _engine_if("trimming")
    class_weights: Annotated[tuple[Weight, ...] | None, needs(SHARED, CLASSES, WEIGHTED)] = _engine_if(
        "class_weights", min_length=2, max_length=2
    )
    discipline: Annotated[str | None, named_files.DISCIPLINE, needs(SHARED, CLASSES)] = _engine_if("discipline")
    p2p_class: Annotated[Literal[0, 1] | None, needs(SHARED)] = _engine_if("p2p_class")
    congestion_control: Annotated[str, named_files.CONTROL] = _engine("congestion_control")
    congestion: Annotated[dict[str, FiniteFloat], needs(CONTROL)] = Field(
        {}, description="parameters of the congestion control"
    )
    cnp_interval: Annotated[Time, needs(NOTIFIED)] = _engine("cnp_interval")
    load_balancing: Annotated[str, named_files.BALANCING, Needs((BALANCED,), whatever_model=True)] = _engine(
        "load_balancing"
    )
    flowlet_gap: Annotated[Time, needs(FLOWLETS)] = _engine("flowlet_gap")
    selective_repeat: ChoiceOrAuto = _engine("selective_repeat")
    reorder: Annotated[PacketsOrAuto, needs(SELECTIVE)] = _engine("reorder")

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: object) -> object:
        """Choose the switches, and add the defaults of keys that depend on model, switches, PFC and ECN."""
        if not isinstance(given, dict):
            return given
        values = {key: value for key, value in given.items() if value is not None}
        model = known_model(values.get("fidelity", fidelity.REFERENCE))
        if model is not None:
            values = {each.key: _default_of(each) for each in settings_of(model.own)} | values
        if model is None or not fidelity.accepts(model, "switch"):
            if values.get("switch") == "auto":
                del values["switch"]
            return values
        if values.get("switch", "auto") == "auto":
            shares = values.get("congestion_control", "none") != "none" or any(key in values for key in FABRIC_KEYS)
            values["switch"] = "shared-buffer" if shares else "output-queued"
        if values["switch"] == "shared-buffer":
            defaults = {key: given_default(key) for key in FABRIC_KEYS if key not in _WITHOUT_DEFAULT}
            for switch, dependent_keys in (("pfc", PFC_KEYS), ("ecn", ECN_KEYS)):
                if (defaults | values)[switch] is not True:
                    defaults = {key: value for key, value in defaults.items() if key not in dependent_keys}
            values = defaults | values
        return values

    @model_validator(mode="wrap")
    @classmethod
    def _with_defaults(cls, given: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Set keys without effect to their defaults, after their values were validated."""
        section = read(given)
        fields = cls.model_fields
        without = {key: fields[key].default for key in section.model_fields_set if not section.has(key)}
        return section.model_copy(update=without) if without else section

    def has(self, key: str) -> bool:
        """Return whether a key has an effect with the section's model of the network, its switches, PFC and ECN."""
        if not fidelity.accepts(self.model, key):
            return False
        if key == "queue_limit":
            return self.switch == "output-queued"
        if key in FABRIC_KEYS and self.switch == "output-queued":
            return False
        return (self.pfc is True or key not in PFC_KEYS) and (self.ecn is True or key not in ECN_KEYS)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse contradictions between keys of shared buffers."""
        if self.switch == "output-queued":
            return self
        if self.cut_through:
            raise ValueError('cut_through = true with switch = "shared-buffer"; expected cut_through = false')
        if self.trimming and self.pfc:
            raise ValueError("trimming = true with pfc = true; expected pfc = false, or no trimming")
        if (self.ecn_kmin or 0) > (self.ecn_kmax or 0):
            low, high = format_bytes(self.ecn_kmin or 0), format_bytes(self.ecn_kmax or 0)
            raise ValueError(f"ecn_kmin = {low} is above ecn_kmax = {high}; expected ecn_kmin <= ecn_kmax")
        return self

    @model_serializer(mode="wrap")
    def _own_keys(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the section's keys without those that belong to other models of the network."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if fidelity.accepts(self.model, key)}

    @property
    def model(self) -> NetworkModel:
        """Model of the network, with its capabilities."""
        model = known_model(self.fidelity)
        assert model is not None, "validation has found it"  # noqa: S101 - for mypy
        return model

    @property
    def own_keys(self) -> Any:  # noqa: ANN401 - of the model's class
        """Values of the keys that only this model of the network has, as pdes.Fidelity takes them."""
        return self.model.own(**self.engine_settings(self.model.own))

    @property
    def several_workers(self) -> bool:
        """Whether threads, processes and ranks may share a run."""
        return self.model.several_workers and not self.flows


@functools.cache
def network_section(model: NetworkModel) -> type[NetworkSection]:
    """Return the section [network] of runs with a model: with the keys that only a model in a user's file declares.

    Raises ConfigError: the section has another key of this name, or the type of a key is unknown.
    """
    keys = {setting.key: setting for setting in settings_of(model.own)}
    for key in keys.keys() & NetworkSection.__annotations__.keys():
        raise ConfigError(f"key {key} of model {model.name}: [network] has another of this name; expected a new name")
    new = {key: setting for key, setting in keys.items() if SETTINGS.get(key) != setting}
    try:
        fields: Any = {key: _of_model(setting) for key, setting in new.items()}
        return create_model("NetworkSection", __base__=NetworkSection, **fields) if new else NetworkSection
    except (NameError, TypeError, PydanticUserError) as error:
        raise ConfigError(f"a type of keys of model {model.name} is none of TOML; expected int, str, ...") from error


def known_model(name: object) -> NetworkModel | None:
    """Return the model of the network with a name or file; None if there is none, ConfigError if the file is wrong."""
    try:
        return fidelity.network(name) if isinstance(name, str) else None
    except RunError as error:
        raise ConfigError(str(error)) from error


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
    gpu: Annotated[str | None, named_files.GPU, needs(MODELLED, GPU)] = Field(
        None, description="GPU that runs operators: a name (`nadi workload gpus` lists them) or the path of a TOML file"
    )
    tables: Annotated[tuple[str, ...], named_files.TABLES, needs(MODELLED, OPERATORS)] = Field(
        (), description="tables of measured times of operators: names, or paths of CSV or Parquet files"
    )
    vendor_tables: Annotated[bool, needs(MODELLED, OPERATORS)] = Field(
        True,
        description="whether operators that `tables` does not have take their times from NVIDIA's measured tables; "
        "they need the package aiconfigurator-core",
    )
    scale_from: Annotated[str | None, named_files.GPU, needs(MODELLED, OPERATORS)] = Field(
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
        if value is not None and not value.endswith(".toml"):  # run_file.py resolves paths
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


class EngineSection(Section):
    """Workers and partition of the engine."""

    seed: int = _engine("seed", ge=0, le=MAX_SEED)
    backend: Annotated[Backend, needs(DIVIDED)] = _engine("backend")
    workers: Annotated[int, needs(DIVIDED)] = _engine("workers", ge=1, le=MAX_WORKERS)
    share_memory: Annotated[bool, needs(DIVIDED)] = _engine("share_memory")
    lps_per_worker: Annotated[int, needs(DIVIDED)] = _engine("lps_per_worker", ge=1, le=MAX_WORKERS)
    partitioner: Annotated[str, named_files.PARTITIONER, needs(DIVIDED)] = Field(
        DEFAULT_METHOD, description="method that divides the fabric; docs/explanation/parallel.md lists the methods"
    )
    weights: Annotated[str, named_files.results_or(*WEIGHT_SOURCES), needs(DIVIDED)] = Field(
        "traces", description='source of the weights for the division: "traces", "fabric" or an earlier run\'s folder'
    )
    checkpoint: Annotated[WallTime, needs(SIMULATED)] = Field(
        0,
        description='wall time between two checkpoints in the folder of results, "30min"; "off": none. `nadi run '
        "--resume DIR` continues from the newest",
    )
    reuse: Annotated[Literal["exact", "off"], needs(PACKETS)] = Field(
        "exact",
        description='"exact": collectives of NVLink domains and periods of the run that repeat are simulated once, '
        'with the same results; "off": each packet is simulated',
    )
    fast_forward: Annotated[Percentage, needs(PACKETS)] = Field(
        0.0,
        description='"1%": periods of the run, such as micro-batches, that differ by no more than this are counted as '
        'alike, and only some simulated; the results are then estimates, with a bound of their error; "off": none',
    )

    @model_validator(mode="after")
    def _fast_forward_is_possible(self) -> Self:
        """Refuse fast_forward where no period is found."""
        if self.fast_forward and self.reuse == "off":
            raise ValueError('fast_forward is set with reuse = "off"; expected reuse = "exact"')
        if self.fast_forward and self.backend == "processes" and self.workers > 1:
            raise ValueError('fast_forward is set with backend = "processes"; expected threads of one process')
        return self


class EnergySection(Section):
    """Source of powers and prices."""

    table: Annotated[FilePath | None, named_files.FILE] = Field(
        None, description="TOML file of powers and prices that replace the default ones"
    )


class OutputSection(Section):
    """Files that a run writes."""

    dir: Annotated[FilePath | None, named_files.OUTPUT_FOLDER] = Field(
        None, description="folder of the results; --out overrides it; without both, the run writes no files"
    )
    nodes: Literal["all", "none"] = Field("all", description="nodes.parquet, a row per trace node and NPU")
    flows: Literal["auto", "all", "none"] = Field(
        "auto",
        description='flows.parquet, a row per message; "auto": in runs of more than 4,194,304 messages, those of '
        "collectives that are replayed have no rows",
    )
    report: bool = Field(default=False, description="report.html, a page of the run, as --report writes it")
    sample: Annotated[TimeAboveZero | None, needs(PACKETS)] = Field(
        None,
        description="interval of samples.parquet, which has the bytes that each link sent and the longest queue at its "
        "port in each such interval; default: no samples",
    )
    alone: Annotated[bool, needs(JOBS)] = Field(
        default=False,
        description="simulate each of [[jobs]] alone, too: results show what it lost to the others",
    )
    without_faults: Annotated[bool, needs(FAULTS)] = Field(
        default=False,
        description="simulate the run without its [[faults]], too: results show what these cost",
    )
