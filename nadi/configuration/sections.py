"""Immutable, validated configuration of a run; nadi/configuration/run_file.py reads it from a run file.

Each section is a model, and its fields are the keys. Values carry units as people write them.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    StrictBool,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nadi.configuration import bounds, named_files
from nadi.configuration.faults import FaultSection
from nadi.errors import ConfigError
from nadi.launching.workers import Backend, Workers
from partition import DEFAULT_METHOD
from pdes import Faults, Fidelity, NetworkModel, Setting, Settings, SharedBuffer, fidelity, settings_of
from topologies import Graph, parse_spec
from topologies.bounds import LINK_RATE_BPS, LONGEST_PS, LONGEST_TIMEOUT_PS, MAX_BYTES, MAX_NODES, MEMORY_RATE_BPS
from topologies.clusters import find
from topologies.parameters import parse_pairs
from topologies.units import (
    format_bytes,
    format_flops,
    format_rate,
    format_time,
    parse_bytes_within,
    parse_flops,
    parse_rate_within,
    parse_time_within,
    short,
)
from workload import CollectiveSettings, ComputeModel, TraceSet
from workload.compute import find_gpu
from workload.generators.training import ParallelPlan, parallel_plan

WEIGHT_SOURCES = ("traces", "fabric")  # words that [engine] weights accepts besides a folder
_LONGEST_VALUE = 60  # maximum number of digits of a count


def _above_zero(parse: Callable[[object], int], word: str = "") -> BeforeValidator:
    """Return a validator of numbers above zero; a word, if there is one, stands for 0."""

    def parse_value(value: object) -> int:
        if word and value == word:
            return 0
        number = parse(value)
        if number == 0:
            alternative = f" or {word!r}" if word else ""
            raise ValueError(f"{value!r} is zero; expected more than 0{alternative}")
        return number

    return BeforeValidator(parse_value)


def _word_or(word: str, show: Callable[[int], str]) -> PlainSerializer:
    return PlainSerializer(lambda value: show(value) if value else word)


def _bytes_to(most: int) -> Callable[[object], int]:
    return lambda value: parse_bytes_within(value, most)


def _time_to(longest_ps: int) -> Callable[[object], int]:
    return lambda value: parse_time_within(value, longest_ps)


def _parse_path(value: object) -> Path:
    """Return a path from its text; raise ValueError if it is none."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{value!r} is not a path; expected text")
    return Path(value)


def _parse_count(value: object) -> int:
    """Return a count of collectives or phases."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_VALUE else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= bounds.MAX_COLLECTIVES_IN_FLIGHT:
        raise ValueError(f"{short(value)}; expected a whole number from 1 to {bounds.MAX_COLLECTIVES_IN_FLIGHT}")
    return number


def _parse_packets(value: object) -> int | str:
    """Return a number of packets that a receiver may hold out of order, or "auto"."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= bounds.MAX_WINDOW_PACKETS
    if not is_number and value != "auto":
        raise ValueError(f'{short(value)}; expected a whole number from 0 to {bounds.MAX_WINDOW_PACKETS}, or "auto"')
    return cast("int | str", value)


def _parse_choice(value: object) -> bool | str:
    """Return true, false or "auto"; raise ValueError for any other value."""
    if not isinstance(value, bool) and value != "auto":
        raise ValueError(f'{short(value)}; expected true, false or "auto"')
    return value


def _parse_ecn_by_rate(value: object) -> object:
    """Return the thresholds of links by rate, from {"400Gbps": ["800kB", "3200kB", 0.2]}."""
    if not isinstance(value, dict):
        return value
    rows = []
    for rate, own in value.items():
        if not isinstance(own, list | tuple) or len(own) != 3:
            raise ValueError(f'{rate}: found {short(own)}; expected kmin, kmax and pmax, as ["800kB", "3200kB", 0.2]')
        kmin, kmax = (parse_bytes_within(size, bounds.MAX_BUFFER_BYTES) for size in own[:2])
        pmax = own[2]
        if kmin > kmax:
            raise ValueError(f"{rate}: found kmin {format_bytes(kmin)} above kmax {format_bytes(kmax)}; expected less")
        if isinstance(pmax, bool) or not isinstance(pmax, int | float) or not 0 <= pmax <= 1:
            raise ValueError(f"{rate}: found pmax {short(pmax)}; expected a number from 0 to 1")
        rows.append((parse_rate_within(rate, LINK_RATE_BPS), kmin, kmax, float(pmax)))
    return tuple(rows)


def _show_ecn_by_rate(rows: tuple[tuple[int, int, int, float], ...] | None) -> dict[str, list[object]] | None:
    """Return the notation of `_parse_ecn_by_rate`."""
    if rows is None:
        return None
    return {format_rate(rate): [format_bytes(kmin), format_bytes(kmax), pmax] for rate, kmin, kmax, pmax in rows}


FilePath = Annotated[Path, BeforeValidator(_parse_path)]
PacketSize = Annotated[int, _above_zero(_bytes_to(bounds.MAX_WIRE_BYTES)), PlainSerializer(format_bytes)]
MessageSize = Annotated[int, _above_zero(_bytes_to(bounds.MAX_BUFFER_BYTES)), PlainSerializer(format_bytes)]
BufferSize = Annotated[int, _above_zero(_bytes_to(bounds.MAX_BUFFER_BYTES)), PlainSerializer(format_bytes)]
BufferSizeFromZero = Annotated[int, BeforeValidator(_bytes_to(bounds.MAX_BUFFER_BYTES)), PlainSerializer(format_bytes)]
BufferSizeOrAuto = Annotated[
    int, _above_zero(_bytes_to(bounds.MAX_BUFFER_BYTES), "auto"), _word_or("auto", format_bytes)
]
SizeOrAuto = Annotated[int, _above_zero(_bytes_to(MAX_BYTES), "auto"), _word_or("auto", format_bytes)]
SizeOrUnlimited = Annotated[int, _above_zero(_bytes_to(MAX_BYTES), "unlimited"), _word_or("unlimited", format_bytes)]
Moment = Annotated[int, BeforeValidator(_time_to(LONGEST_PS)), PlainSerializer(format_time)]
Time = Annotated[int, BeforeValidator(_time_to(LONGEST_TIMEOUT_PS)), PlainSerializer(format_time)]
TimeAboveZero = Annotated[int, _above_zero(_time_to(LONGEST_TIMEOUT_PS)), PlainSerializer(format_time)]
TimeOrAuto = Annotated[int, _above_zero(_time_to(LONGEST_TIMEOUT_PS), "auto"), _word_or("auto", format_time)]
PacketsOrAuto = Annotated[int | Literal["auto"], PlainValidator(_parse_packets)]
ChoiceOrAuto = Annotated[bool | Literal["auto"], PlainValidator(_parse_choice)]
CountOrUnlimited = Annotated[int, _above_zero(_parse_count, "unlimited"), _word_or("unlimited", str)]
EcnByRate = Annotated[
    tuple[tuple[int, int, int, float], ...], BeforeValidator(_parse_ecn_by_rate), PlainSerializer(_show_ecn_by_rate)
]
"""Rates in bits per second, each with its thresholds in bytes and its share of marked packets."""
FactorOrAuto = Annotated[
    float | None,
    BeforeValidator(lambda value: None if value == "auto" else value),
    PlainSerializer(lambda factor: "auto" if factor is None else factor),
]
"""A factor; None = "auto", settled from the model's framework."""
Weight = Annotated[int, Field(ge=1, le=65535)]
OptionalRate = Annotated[
    int | None,
    BeforeValidator(lambda value: parse_rate_within(value, MEMORY_RATE_BPS)),
    PlainSerializer(lambda bps: None if bps is None else format_rate(bps)),
]
OptionalFlops = Annotated[
    float | None,
    BeforeValidator(parse_flops),
    PlainSerializer(lambda rate: None if rate is None else format_flops(rate)),
]


_KEYS_OF_MODELS = tuple(model.own for model in fidelity.networks().values())
SETTINGS: dict[str, Setting] = {
    setting.key: setting
    for owner in (Settings, SharedBuffer, Fidelity, *_KEYS_OF_MODELS, Faults, Workers)
    for setting in settings_of(owner)
    if setting.is_given
}
"""Settings of the engine, by key."""
_SHARED_BUFFER = {setting.key: setting for setting in settings_of(SharedBuffer)}


def given_default(key: str) -> Any:  # noqa: ANN401 - of any type
    """Return the engine's default as users would write it: a word, a formatted number, or the name of an object."""
    setting = SETTINGS[key]
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


class Section(BaseModel):
    """A section of the run file: immutable; unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def engine_settings(owner: type, section: Section, keys: Container[str] | None = None) -> dict[str, Any]:
    """Return the settings of an engine class that a section sets, by name; "auto" leaves the engine's default.

    `keys`: Keys of the section that have an effect; None = all.
    """
    given = [each for each in settings_of(owner) if each.is_given and (keys is None or each.key in keys)]
    values = {setting.name: getattr(section, setting.key, None) for setting in given}
    return {name: value for name, value in values.items() if value is not None and value != "auto"}


def _parse_plan(value: object) -> ParallelPlan | None:
    """Return a parallel plan from its text or table."""
    if value is None or isinstance(value, ParallelPlan):
        return value
    if not isinstance(value, str | dict):
        raise ValueError(f'{short(value)} is no plan; expected text, as "tp8,pp4,dp32", or a table')  # noqa: TRY004 - pydantic's
    return parallel_plan(value)


PlanOfRun = Annotated[
    ParallelPlan | None,
    PlainValidator(_parse_plan),
    PlainSerializer(lambda plan: None if plan is None else str(plan)),
]
"""A parallel plan, parsed from text or a table; results contain its text."""


def _parse_lengths(value: object) -> str:
    """Return the text of request lengths after a check of its form."""
    from workload.generators.inference import Lengths

    Lengths.parse(value, "tokens")
    return str(value)


_Lengths = Annotated[str, BeforeValidator(_parse_lengths)]


def _given(kind: type) -> PlainValidator:
    """Return a validator of a value that Python gives, or of the text that represents the value in results."""

    def parse(value: object) -> object:
        if value is None or isinstance(value, kind) or (isinstance(value, str) and value):
            return value
        raise ValueError(f"found a {type(value).__name__}; expected a {kind.__name__}, which only Python can give")

    return PlainValidator(parse)


def _graph_text(value: Graph | str | None) -> str | None:
    return f"{value.name}, made in Python" if isinstance(value, Graph) else value


def _traces_text(value: TraceSet | str | None) -> str | None:
    return f"{len(value.traces)} traces, made in Python" if isinstance(value, TraceSet) else value


GivenGraph = Annotated[Graph | str | None, _given(Graph), PlainSerializer(_graph_text)]
GivenTraces = Annotated[TraceSet | str | None, _given(TraceSet), PlainSerializer(_traces_text)]


class WorkloadSection(Section):
    """Work of the NPUs: traces, or a model and a plan."""

    traces: Annotated[FilePath | None, named_files.TRACES] = Field(
        None,
        description='folder and prefix of the traces: "DIR/x" reads DIR/x.<npu>.et; or folder of a trace set, or of '
        "traces with one prefix",
    )
    trace_set: GivenTraces = Field(
        None, description="traces that Python gives instead of files (docs/reference/python.md); results contain a text"
    )
    model: Annotated[str | None, named_files.MODEL] = Field(
        None, description="name of a model (`nadi workload models`) or path of its file, instead of traces"
    )
    plan: PlanOfRun = Field(None, description='parallel plan of the model, "tp8,pp4,dp32"')
    framework: Literal["megatron", "deepspeed", "fsdp", "inference"] = Field(
        "megatron", description='framework of the training step; "inference" = the model is served, see [serving]'
    )
    groups: Annotated[FilePath | None, named_files.FILE] = Field(
        None,
        description="JSON file of the communicators in the traces; default: groups.json if traces is a folder",
    )
    all_gather_size: Literal["contribution", "total"] = Field(
        CollectiveSettings.all_gather_size,
        description="meaning of comm_size of all-gather and gather: one member's part, or the whole buffer",
    )
    strict: bool = Field(True, description="refuse dependencies on nodes that a trace lacks; false drops them")

    @model_validator(mode="after")
    def _traces_or_model(self) -> Self:
        """Refuse sections without exactly one source of work, or with keys that contradict it."""
        if (self.traces is None) == (self.model is None) and self.trace_set is None:
            found = "both" if self.traces is not None else "neither"
            raise ValueError(f"found {found} of traces and model; expected one of them")
        if self.trace_set is not None:
            beside = next((key for key in ("traces", "model", "groups") if getattr(self, key) is not None), None)
            if beside is not None:
                raise ValueError(f"{beside} is set beside trace_set; expected one of them")
        if (self.model is None) != (self.plan is None):
            if self.model is None:
                raise ValueError("found plan alone; expected model beside it")
            ranks = f"`nadi plan --model {self.model} --cluster NAME --gpus N` ranks them"
            raise ValueError(f'found model alone; expected plan, as "tp8,pp4,dp32" beside it ({ranks})')
        if self.groups is not None and self.model is not None:
            raise ValueError("groups are set beside model; expected traces beside them")
        return self


class ServingSection(Section):
    """Requests to a served model; all of them arrive at once."""

    batch: int = Field(1, ge=1, le=bounds.MAX_SEQUENCES, description="sequences that a replica runs at a time")
    requests: int = Field(
        0, ge=0, le=bounds.MAX_SEQUENCES, description="number of requests; 0 = as many as all replicas run at a time"
    )
    prompt: _Lengths = Field("1024", description="tokens per prompt: 1024, uniform:128-2048, lognormal:512,0.8")
    generate: _Lengths = Field("128", description="tokens generated per request, as for prompt")
    chunk: int = Field(
        0,
        ge=0,
        le=bounds.MAX_TOKENS,
        description="tokens per iteration with chunked prefill; 0 = whole prompts go first",
    )
    prompt_tokens: int = Field(
        8192, ge=1, le=bounds.MAX_TOKENS, description="maximum tokens of whole prompts per iteration"
    )
    kv_tokens: int = Field(
        0, ge=0, le=bounds.MAX_TOKENS, description="tokens that a replica's cache holds; 0 = the GPU's remaining memory"
    )
    seed: int = Field(1, ge=0, le=bounds.MAX_SEED, description="seed of random lengths")


class TopologySection(Section):
    """The fabric: exactly one of spec, name, file and cluster, or a fabric that Python gives."""

    spec: Annotated[str | None, named_files.SPEC] = Field(
        None, description='topology with parameters, "fat-tree:k=4,rate=100Gbps"'
    )
    name: str | None = Field(None, description="name of a topology; params has its parameters")
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
    scheduling: Literal["fifo", "lifo", "priority"] = _engine("scheduling")
    phases_per_dimension: CountOrUnlimited = _engine("phases_per_dimension")
    collectives_in_flight: CountOrUnlimited = _engine("collectives_in_flight")
    rendezvous: SizeOrUnlimited = _engine("rendezvous")
    rendezvous_control: MessageSize = _engine("rendezvous_control")
    compute_slowdown: FactorOrAuto = Field(None, ge=1, le=1000, description=SETTINGS["compute_slowdown"].doc)


PFC_KEYS = ("pfc_headroom", "pfc_resume_offset")
ECN_KEYS = ("ecn_kmin", "ecn_kmax", "ecn_pmax", "ecn_by_rate")
_WITHOUT_DEFAULT = ("class_weights", "ecn_by_rate")  # keys of shared buffers that are set or are not
FABRIC_KEYS = (*_SHARED_BUFFER, "p2p_class")  # keys that only switches with shared buffers have


def _known_fidelity(name: object) -> object:
    """Return the value of [network] fidelity; refuse unknown ones."""
    if known_model(name) is None:
        *others, last = map(repr, fidelity.networks())
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("literal_error", "Input should be {known}", {"known": known})
    return name


class _NetworkModelSection(Section):
    """The model of the network."""

    fidelity: Annotated[str, BeforeValidator(_known_fidelity)] = _engine("fidelity")


def _of_model(setting: Setting) -> tuple[Any, Any]:
    """Return type and field of a key that one model of the network declares; its value is None with other models."""
    kind = TimeAboveZero if setting.unit == "_ps" else StrictBool if setting.type is bool else setting.type
    return Optional[kind], _engine_if(setting.key)  # noqa: UP045 - the type is a value


_OF_MODELS: Any = {setting.key: _of_model(setting) for owner in _KEYS_OF_MODELS for setting in settings_of(owner)}
_KeysOfModels: Any = create_model("_KeysOfModels", __base__=_NetworkModelSection, **_OF_MODELS)


class NetworkSection(_KeysOfModels):  # type: ignore[misc] # a class that pydantic creates
    """Packets, queues, transport, switches and congestion control.

    Validation settles `switch`. Keys without effect get their defaults, whatever the user set: those of another model
    of the network, those of shared buffers with output queues and vice versa, and those of PFC and ECN without PFC and
    ECN. Keys of shared buffers and those that one model declares (`_KeysOfModels`) are None in that case. Results omit
    keys of another model of the network.
    """

    endpoint_delay: Time = _engine("endpoint_delay")
    reduction_bandwidth: OptionalRate = _engine("reduction_bandwidth")
    send_latency: Time = _engine("send_latency")
    acknowledged: StrictBool = _engine("acknowledged")
    mtu: PacketSize = _engine("mtu")
    header: PacketSize = _engine("header")
    ack: PacketSize = _engine("ack")
    window: SizeOrAuto = _engine("window")
    queue_limit: SizeOrUnlimited = _engine("queue_limit")
    cut_through: StrictBool = _engine("cut_through")
    rto: TimeOrAuto = _engine("rto")
    max_retries: int = _engine("max_retries", ge=1, le=bounds.MAX_RETRIES)
    detection_time: Moment = _engine("detection_time")
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
    queue_pairs: Literal["pair", "message"] = _engine("queue_pairs")
    switch: Literal["output-queued", "shared-buffer"] = _engine("switch")
    buffer: BufferSize | None = _engine_if("buffer")
    pfc: StrictBool | None = _engine_if("pfc")
    pfc_alpha: float | None = _engine_if("pfc_alpha", ge=1 / 1024, le=1024)
    pfc_headroom: BufferSizeOrAuto | None = _engine_if("pfc_headroom")
    pfc_resume_offset: BufferSizeFromZero | None = _engine_if("pfc_resume_offset")
    ecn: StrictBool | None = _engine_if("ecn")
    ecn_kmin: BufferSizeFromZero | None = _engine_if("ecn_kmin")
    ecn_kmax: BufferSizeFromZero | None = _engine_if("ecn_kmax")
    ecn_pmax: float | None = _engine_if("ecn_pmax", ge=0, le=1)
    ecn_by_rate: EcnByRate | None = _engine_if("ecn_by_rate")
    trimming: StrictBool | None = _engine_if("trimming")
    class_weights: tuple[Weight, ...] | None = _engine_if("class_weights", min_length=2, max_length=2)
    discipline: str | None = _engine_if("discipline")
    p2p_class: Literal[0, 1] | None = _engine_if("p2p_class")
    congestion_control: str = _engine("congestion_control")
    congestion: dict[str, FiniteFloat] = Field({}, description="parameters of the congestion control")
    cnp_interval: Time = _engine("cnp_interval")
    load_balancing: str = _engine("load_balancing")
    flowlet_gap: Time = _engine("flowlet_gap")
    selective_repeat: ChoiceOrAuto = _engine("selective_repeat")
    reorder: PacketsOrAuto = _engine("reorder")

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: object) -> object:
        """Choose the switches, and add the defaults of keys that depend on model, switches, PFC and ECN."""
        if not isinstance(given, dict):
            return given
        values = {key: value for key, value in given.items() if value is not None}
        model = known_model(values.get("fidelity", fidelity.REFERENCE))
        if model is not None:
            values = {each.key: given_default(each.key) for each in settings_of(model.own)} | values
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
        return fidelity.networks()[self.fidelity]

    @property
    def own_keys(self) -> Any:  # noqa: ANN401 - of the model's class
        """Values of the keys that only this model of the network has, as pdes.Fidelity takes them."""
        return self.model.own(**engine_settings(self.model.own, self))

    @property
    def several_workers(self) -> bool:
        """Whether threads, processes and ranks may share a run."""
        return self.model.several_workers and not self.flows


def known_model(name: object) -> NetworkModel | None:
    """Return the model of the network with a name; None if there is none."""
    return fidelity.networks().get(name) if isinstance(name, str) else None


class ComputeSection(Section):
    """Durations of compute nodes."""

    model: Literal["auto", "trace", "roofline"] = Field(
        ComputeModel.model,
        description='source of durations: "trace" = the trace\'s durations; "roofline" = operators, or num_ops and '
        'tensor_size; "auto" = what the node has',
    )
    peak_flops: OptionalFlops = Field(None, description='floating-point operations per second, "312TFLOPS"')
    gpu: Annotated[str | None, named_files.GPU] = Field(
        None, description="GPU that runs operators: a name (`nadi workload gpus` lists them) or the path of a TOML file"
    )
    tables: Annotated[tuple[str, ...], named_files.TABLES] = Field(
        (), description="tables of measured times of operators: names, or paths of CSV or Parquet files"
    )
    vendor_tables: bool = Field(
        True,
        description="whether operators that `tables` does not have take their times from NVIDIA's measured tables; "
        "they need the package aiconfigurator-core (`pip install nadi[measured]`)",
    )
    scale_from: Annotated[str | None, named_files.GPU] = Field(
        None, description="GPU whose measured times are scaled if the tables have no times of gpu"
    )
    efficiency: dict[Literal["gemm", "attention", "memory", "optimizer"], FiniteFloat] = Field(
        {},
        description="share of the GPU's rates that a class of operators reaches; defaults: docs/explanation/compute.md",
    )

    pace: Literal["step", "serving", "alone"] | None = Field(
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

    latency: Time = Field(0, description="latency of each memory node")
    bandwidth: OptionalRate = Field(None, description='bandwidth of memory nodes and of the roofline, "2.04TB/s"')
    remote: Literal["npu", "node", "pool", "none"] | None = Field(
        None,
        description="memory of remote tensors (tensor_loc other than 0): one per NPU, one per host, NPUs of the fabric "
        "that serve tensors over the network, or no such memory; default: remote tensors count as local",
    )
    remote_npus: tuple[Annotated[int, Field(ge=0, le=MAX_NODES)], ...] = Field(
        (), description="NPUs without traces that form the memory pool"
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

    seed: int = _engine("seed", ge=0, le=bounds.MAX_SEED)
    backend: Backend = _engine("backend")
    workers: int = _engine("workers", ge=1, le=bounds.MAX_WORKERS)
    share_memory: bool = _engine("share_memory")
    lps_per_worker: int = _engine("lps_per_worker", ge=1, le=bounds.MAX_WORKERS)
    partitioner: str = Field(
        DEFAULT_METHOD, description="method that divides the fabric; docs/explanation/parallel.md lists the methods"
    )
    weights: Annotated[str, named_files.results_or(*WEIGHT_SOURCES)] = Field(
        "traces", description='source of the weights for the division: "traces", "fabric" or an earlier run\'s folder'
    )
    reuse: Literal["exact", "off"] = Field(
        "exact",
        description='"exact": collectives of NVLink domains that repeat are simulated once and replayed, with the same '
        'results; "off": each packet is simulated',
    )


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


@dataclass(frozen=True)
class NamedKeys:
    """Keys that a user set. They do not change the meaning of a configuration, so any two objects are equal."""

    keys: frozenset[str] = field(default=frozenset(), compare=False)  # sections and keys, "network.mtu"


class RunConfig(Section):
    """Configuration of a run."""

    workload: WorkloadSection
    serving: ServingSection | None = None
    topology: TopologySection
    system: SystemSection = SystemSection()
    network: NetworkSection = NetworkSection()
    compute: ComputeSection = ComputeSection()
    memory: MemorySection = MemorySection()
    engine: EngineSection = EngineSection()
    output: OutputSection = OutputSection()
    energy: EnergySection | None = None
    faults: tuple[FaultSection, ...] = Field((), description="failures and slowdowns with their times")

    _named: NamedKeys = PrivateAttr(default=NamedKeys())

    @property
    def named(self) -> frozenset[str]:
        """Return the keys that the user set, "network.mtu", without those of a cluster; empty if unknown."""
        return self._named.keys

    def with_named(self, keys: Iterable[str]) -> Self:
        """Return the configuration with the keys that the user set."""
        config = self.model_copy()
        config._named = NamedKeys(frozenset(keys))  # noqa: SLF001 - of this class
        return config

    @model_validator(mode="after")
    def _serves(self) -> Self:
        """Refuse [serving] in runs that do not serve a model."""
        if self.serving is not None and (self.workload.framework != "inference" or self.workload.model is None):
            raise ValueError(
                '[serving] is set without a model that is served; expected [workload] framework = "inference"'
            )
        return self

    def settled(self) -> dict[str, Any]:
        """Return all values as in a run file, including defaults; for summary.json."""
        return self.model_dump(mode="json", exclude_none=True)
