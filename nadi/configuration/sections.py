"""Sections of a run file that say how work runs: [network], [system], [engine] and [output].

Each section is a model, and its fields are the keys. Values carry units as people write them. `run_config` puts all
sections together.
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
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nadi.configuration import MAX_LANES, MAX_RESENDS, MAX_RETRIES, MAX_SEED, MAX_WORKERS, conditions as when, values
from nadi.configuration.conditions import CLASS_KEYS, CREDIT_KEYS, FABRIC_KEYS, Needs, needs
from nadi.configuration.values import Section
from nadi.errors import ConfigError
from nadi.inputs.units import format_bytes, format_time
from nadi.launching.workers import Backend, Workers
from nadi.partition import DEFAULT_METHOD
from nadi.pdes import (
    Faults,
    Fidelity,
    NetworkModel,
    RunError,
    Setting,
    Settings,
    SharedBuffer,
    fidelity,
    settings_of,
    wire,
)
from nadi.pdes.wire import CreditSwitch
from nadi.workload import CollectiveSettings

WEIGHT_SOURCES = ("traces", "fabric")  # words that [engine] weights accepts besides a folder
_KEYS_OF_MODELS = tuple(model.own for model in fidelity.networks().values())
SETTINGS: dict[str, Setting] = {
    setting.key: setting
    for owner in (*_KEYS_OF_MODELS, Settings, SharedBuffer, CreditSwitch, Fidelity, Faults, Workers)
    for setting in settings_of(owner)
    if setting.is_given
}
"""Settings of the engine, by key."""


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


class SystemSection(Section):
    """Algorithms and scheduling of collectives."""

    collectives: Annotated[dict[str, str], values.ALGORITHMS] = Field(
        {}, description='algorithm per kind, all-reduce = "ring"; other kinds use the default'
    )
    concurrent_collectives: StrictBool = _engine("concurrent_collectives")
    one_at_a_time: StrictBool = _engine("one_at_a_time")
    tick: Annotated[values.TickOrAuto, needs(when.PACKETS)] = Field(None, description=SETTINGS["tick"].doc)
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
    scheduling: Annotated[Literal["fifo", "lifo", "priority"], needs(when.SIMULATED, when.QUEUED)] = _engine(
        "scheduling"
    )
    phases_per_dimension: values.CountOrUnlimited = _engine("phases_per_dimension")
    collectives_in_flight: Annotated[values.CountOrUnlimited, needs(when.PACKETS)] = _engine("collectives_in_flight")
    rendezvous: Annotated[values.SizeOrUnlimited, needs(when.PACKETS)] = _engine("rendezvous")
    rendezvous_control: Annotated[values.MessageSize, needs(when.PACKETS, when.ASKED)] = _engine("rendezvous_control")
    compute_slowdown: values.FactorOrAuto = Field(None, ge=1, le=1000, description=SETTINGS["compute_slowdown"].doc)


PFC_KEYS = ("pfc_headroom", "pfc_resume_offset", "pfc_classes", "pfc_rising_classes")
ECN_KEYS = ("ecn_kmin", "ecn_kmax", "ecn_pmax", "ecn_by_rate", "ecn_by_class", "ecn_last_hop")
# keys that only switches with shared buffers have, and that ask for these; the others change how packets are trimmed
_CHOOSING_KEYS = set(FABRIC_KEYS) - {"trim_last_hop", "trim_share", "trimmed_size"} | {"classes"}
MAX_DENIED = 4096  # planes, spines and paths that a run file may deny
# keys of switches that are set or are not
_WITHOUT_DEFAULT = ("class_weights", "pfc_classes", "pfc_rising_classes", "ecn_by_rate", "ecn_by_class", "lane_weights")
_ANY_SWITCH = {"latency", "cut_through", "load_balancing"}  # keys of tiers that do not ask for shared buffers


def _known_fidelity(name: object) -> object:
    """Return the value of [network] fidelity; refuse unknown ones."""
    if known_model(name) is None:
        *others, last = map(repr, fidelity.networks())
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("literal_error", "Input should be {known}", {"known": known})
    return name


class _NetworkModelSection(Section):
    """The model of the network."""

    fidelity: Annotated[str, BeforeValidator(_known_fidelity), values.FIDELITY] = _engine("fidelity")


def _of_model(setting: Setting) -> tuple[Any, Any]:
    """Return type and field of a key that one model of the network declares; its value is None with other models."""
    kind = values.TimeAboveZero if setting.unit == "_ps" else StrictBool if setting.type is bool else setting.type
    return Optional[kind], Field(None, description=setting.doc)  # noqa: UP045 - the type is a value


_OF_MODELS: Any = {setting.key: _of_model(setting) for owner in _KEYS_OF_MODELS for setting in settings_of(owner)}
_KeysOfModels: Any = create_model("_KeysOfModels", __base__=_NetworkModelSection, **_OF_MODELS)


class TierSection(Section):
    """The switches with one word in their names; keys that are not given are those of [network]."""

    latency: values.Time | None = None  # forwarding latency, in place of that of the fabric
    cut_through: StrictBool | None = None
    load_balancing: str | None = None
    buffer: values.BufferSize | None = None
    pfc: StrictBool | None = None
    pfc_alpha: float | None = Field(None, ge=1 / 1024, le=1024)
    pfc_headroom: values.BufferSizeOrAuto | None = None
    pfc_resume_offset: values.BufferSizeFromZero | None = None
    ecn: StrictBool | None = None
    ecn_kmin: values.BufferSizeFromZero | None = None
    ecn_kmax: values.BufferSizeFromZero | None = None
    ecn_pmax: float | None = Field(None, ge=0, le=1)
    trimming: StrictBool | None = None
    trim_threshold: values.BufferSizeOrAuto | None = None
    trim_share: float | None = Field(None, ge=0, le=1)

    @model_serializer(mode="wrap")
    def _given(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys that are given."""
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if value is not None}


class NetworkSection(_KeysOfModels):  # type: ignore[misc] # a class that pydantic creates
    """Packets, queues, transport, switches and congestion control.

    Validation settles `switch`. Keys without effect get their defaults, whatever the user set: those of another model
    of the network, those of shared buffers with output queues and vice versa, and those of PFC and ECN without PFC and
    ECN. Keys of shared buffers and those that one model declares (`_KeysOfModels`) are None in that case. Results omit
    keys of another model of the network. Keys that a model in a user's file declares are in a class of their own
    (`network_section`).
    """

    endpoint_delay: values.Time = _engine("endpoint_delay")
    reduction_bandwidth: values.OptionalRate = _engine("reduction_bandwidth")
    send_latency: values.Time = _engine("send_latency")
    acknowledged: StrictBool = _engine("acknowledged")
    mtu: values.PacketSize = _engine("mtu")
    header: values.PacketSize = _engine("header")
    ack: values.PacketSize = _engine("ack")
    window: values.SizeOrAuto = _engine("window")
    queue_limit: Annotated[values.SizeOrUnlimited, needs(when.QUEUES)] = _engine("queue_limit")
    cut_through: StrictBool = _engine("cut_through")
    rto: values.TimeOrAuto = _engine("rto")
    max_retries: Annotated[int, needs(when.TIMEOUTS)] = _engine("max_retries", ge=1, le=MAX_RETRIES)
    max_resends: Annotated[int, needs(when.SHARED, when.TRIMMING)] = _engine("max_resends", ge=1, le=MAX_RESENDS)
    detection_time: Annotated[values.Moment, needs(when.DOWN)] = _engine("detection_time")
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
    queue_pairs: Annotated[Literal["pair", "message"], needs(when.NODES)] = _engine("queue_pairs")
    switch: Literal["output-queued", "shared-buffer", "credits"] = _engine("switch")
    buffer: Annotated[values.BufferSize | None, needs(when.SHARED)] = _engine_if("buffer")
    pfc: Annotated[StrictBool | None, needs(when.SHARED)] = _engine_if("pfc")
    pfc_alpha: Annotated[float | None, needs(when.SHARED)] = _engine_if("pfc_alpha", ge=1 / 1024, le=1024)
    pfc_headroom: Annotated[values.BufferSizeOrAuto | None, needs(when.SHARED, when.PFC)] = _engine_if("pfc_headroom")
    pfc_resume_offset: Annotated[values.BufferSizeFromZero | None, needs(when.SHARED, when.PFC)] = _engine_if(
        "pfc_resume_offset"
    )
    ecn: Annotated[StrictBool | None, needs(when.SHARED)] = _engine_if("ecn")
    ecn_kmin: Annotated[values.BufferSizeFromZero | None, needs(when.SHARED, when.ECN)] = _engine_if("ecn_kmin")
    ecn_kmax: Annotated[values.BufferSizeFromZero | None, needs(when.SHARED, when.ECN)] = _engine_if("ecn_kmax")
    ecn_pmax: Annotated[float | None, needs(when.SHARED, when.ECN)] = _engine_if("ecn_pmax", ge=0, le=1)
    ecn_by_rate: Annotated[values.EcnByRate | None, needs(when.SHARED, when.ECN)] = _engine_if("ecn_by_rate")
    ecn_by_class: Annotated[values.EcnByClass | None, needs(when.SHARED, when.ECN)] = _engine_if("ecn_by_class")
    tiers: dict[str, TierSection] | None = _engine_if("tiers")
    ecn_last_hop: Annotated[StrictBool | None, needs(when.SHARED, when.ECN)] = _engine_if("ecn_last_hop")
    trimming: Annotated[StrictBool | None, needs(when.SHARED)] = _engine_if("trimming")
    trim_threshold: Annotated[values.BufferSizeOrAuto | None, needs(when.SHARED, when.LOSSY)] = _engine_if(
        "trim_threshold"
    )
    trim_last_hop: Annotated[float | None, needs(when.SHARED, when.LOSSY, when.THRESHOLD)] = _engine_if(
        "trim_last_hop", ge=1 / 1024, le=1024
    )
    trim_share: Annotated[float | None, needs(when.SHARED, when.TRIMMING)] = _engine_if("trim_share", ge=0, le=1)
    trimmed_size: Annotated[values.PacketSizeOrAuto | None, needs(when.SHARED, when.TRIMMING)] = _engine_if(
        "trimmed_size"
    )
    pfc_classes: Annotated[tuple[values.DataClass, ...] | None, needs(when.SHARED, when.PFC)] = _engine_if(
        "pfc_classes", min_length=1, max_length=MAX_LANES
    )
    pfc_rising_classes: Annotated[int | None, needs(when.SHARED, when.PFC)] = _engine_if(
        "pfc_rising_classes", ge=1, le=MAX_LANES
    )
    class_weights: Annotated[
        tuple[values.WeightFromZero, ...] | None, needs(when.SHARED, when.CLASSES, when.WEIGHTED)
    ] = _engine_if("class_weights", min_length=2, max_length=MAX_LANES)
    discipline: Annotated[str | None, values.DISCIPLINE, needs(when.SHARED, when.CLASSES)] = _engine_if("discipline")
    p2p_class: Annotated[int | None, needs(when.CLASSED)] = _engine_if("p2p_class", ge=0, le=MAX_LANES - 1)
    classes: Annotated[dict[str, values.DataClass] | None, needs(when.CLASSED)] = Field(
        None,
        description='data class, or virtual lane, of traffic by name: of groups ("tp"), "p2p", "all" (collectives of '
        'all NPUs), a kind of collective ("all-reduce"), a job ("train"), one of the former of a job ("train/tp"), "*" '
        "(all else, 0 without it)",
    )
    virtual_lanes: Annotated[int | None, needs(when.CREDITS)] = _engine_if("virtual_lanes", ge=1, le=MAX_LANES)
    lane_buffer: Annotated[values.BufferSizeOrAuto | None, needs(when.CREDITS)] = _engine_if("lane_buffer")
    credit_unit: Annotated[values.PacketSize | None, needs(when.CREDITS)] = _engine_if("credit_unit")
    credit_return: Annotated[values.BufferSizeFromZero | None, needs(when.CREDITS)] = _engine_if("credit_return")
    credit_frame: Annotated[values.PacketSize | None, needs(when.CREDITS)] = _engine_if("credit_frame")
    lane_weights: Annotated[tuple[values.Weight, ...] | None, needs(when.CREDITS, when.SEVERAL_LANES)] = _engine_if(
        "lane_weights", min_length=1, max_length=MAX_LANES
    )
    high_lanes: Annotated[int | None, needs(when.CREDITS, when.SEVERAL_LANES)] = _engine_if(
        "high_lanes", ge=0, le=MAX_LANES - 1
    )
    high_limit: Annotated[values.BufferSizeFromZero | None, needs(when.CREDITS, when.HIGH_LANES)] = _engine_if(
        "high_limit"
    )
    congestion_control: Annotated[str, values.CONTROL] = _engine("congestion_control")
    congestion: Annotated[dict[str, FiniteFloat], needs(when.CONTROL)] = Field(
        {}, description="parameters of the congestion control"
    )
    cnp_interval: Annotated[values.Time, needs(when.NOTIFIED)] = _engine("cnp_interval")
    cnp_delay: Annotated[values.Time, needs(when.NOTIFIED)] = _engine("cnp_delay")
    receiver_credits: StrictBool = _engine("receiver_credits")
    credit_window: Annotated[values.SizeOrAuto, needs(when.RECEIVER_CREDITS)] = _engine("credit_window")
    oversubscription: Annotated[float, needs(when.RECEIVER_CREDITS)] = _engine("oversubscription", ge=1, le=1000)
    load_balancing: Annotated[str, values.BALANCING, Needs((when.BALANCED,), whatever_model=True)] = _engine(
        "load_balancing"
    )
    routing: Annotated[str, values.ROUTING] = _engine("routing")
    source_routes: Annotated[values.FilePath | None, values.FILE, needs(when.LISTED)] = Field(
        None, description='file of the paths of pairs of NPUs that `routing = "source"` takes'
    )
    routing_delay: Annotated[values.Time, needs(when.READS_QUEUES, when.ECMP)] = _engine("routing_delay")
    flowlet_gap: Annotated[values.Time, needs(when.FLOWLETS)] = _engine("flowlet_gap")
    grade_thresholds: Annotated[values.Thresholds, needs(when.GRADES)] = _engine("grade_thresholds")
    entropy: Annotated[str, values.ENTROPY] = _engine("entropy")
    paths: Annotated[values.Paths, needs(when.SPREAD)] = _engine("paths")
    denied_paths: Annotated[tuple[str, ...] | None, needs(when.DENYING)] = _engine_if(
        "denied_paths", min_length=1, max_length=MAX_DENIED
    )
    nic_ports: Annotated[Literal["one", "first", "hash", "all"], needs(when.ALL_PORTS)] = _engine("nic_ports")
    selective_repeat: values.ChoiceOrAuto = _engine("selective_repeat")
    reorder: Annotated[values.PacketsOrAuto, needs(when.SELECTIVE)] = _engine("reorder")
    delivery: Literal["auto", "rud", "rod"] = _engine("delivery")
    ack_every: Annotated[values.BufferSizeFromZero, needs(when.RUD)] = _engine("ack_every")
    sleek: Annotated[StrictBool, needs(when.SELECTIVE)] = _engine("sleek")

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: object) -> object:
        """Choose the switches, and add the defaults of keys that depend on model, switches, PFC and ECN."""
        if not isinstance(given, dict):
            return given
        settled = {key: value for key, value in given.items() if value is not None}
        model = known_model(settled.get("fidelity", fidelity.REFERENCE))
        if model is not None:
            settled = {each.key: _default_of(each) for each in settings_of(model.own)} | settled
        if model is None or not fidelity.accepts(model, "switch"):
            if settled.get("switch") == "auto":
                del settled["switch"]
            return settled
        if settled.get("switch", "auto") == "auto":
            shares = settled.get("congestion_control", "none") != "none" or not settled.keys().isdisjoint(
                _CHOOSING_KEYS
            )
            shares = shares or _has_shared_tiers(settled.get("tiers"))
            settled["switch"] = "shared-buffer" if shares else "output-queued"
        if settled["switch"] == "credits":
            keys = (*CREDIT_KEYS, "p2p_class")
            settled = {key: given_default(key) for key in keys if key not in _WITHOUT_DEFAULT} | settled
        if settled["switch"] == "shared-buffer":
            defaults = {key: given_default(key) for key in FABRIC_KEYS if key not in _WITHOUT_DEFAULT}
            for switch, dependent_keys in (("pfc", PFC_KEYS), ("ecn", ECN_KEYS)):
                if (defaults | settled)[switch] is not True:
                    defaults = {key: value for key, value in defaults.items() if key not in dependent_keys}
            settled = defaults | settled
        return settled

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
        if key in CREDIT_KEYS or key in CLASS_KEYS:
            return self.switch == "credits" or (key in CLASS_KEYS and self.switch == "shared-buffer")
        if key in FABRIC_KEYS and self.switch != "shared-buffer":
            return False
        return (self.anywhere("pfc") or key not in PFC_KEYS) and (self.anywhere("ecn") or key not in ECN_KEYS)

    def anywhere(self, key: str) -> bool:
        """Return whether a key of shared buffers is true for the switches of any tier.

        Args:
            key: Name of the key.
        """
        return self.at_tier("", key) is True or any(self.at_tier(tier, key) is True for tier in self.tiers or {})

    def at_tier(self, tier: str, key: str) -> Any:  # noqa: ANN401 - of any type
        """Return the value of a key at the switches of a tier.

        Args:
            tier: Word of the tier; "" = the value of all tiers without one of their own.
            key: Name of the key.
        """
        own = getattr((self.tiers or {}).get(tier), key, None)
        return getattr(self, key) if own is None else own

    @property
    def balancings(self) -> list[str]:
        """Rules of load balancing of the switches, and of tiers of them."""
        return list(dict.fromkeys(self.at_tier(tier, "load_balancing") for tier in ("", *(self.tiers or {}))))

    @model_validator(mode="after")
    def _either_switches_or_senders_choose(self) -> Self:
        """Refuse detours beside entropies of senders: switches would overwrite what the sender must learn about."""
        if wire.detours.known(self.routing).reorders and self.entropy != wire.entropy.FIXED.name:
            raise ValueError(f'routing = "{self.routing}" with entropy = "{self.entropy}"; expected one of them')
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse contradictions between keys of shared buffers, or of credits."""
        if self.switch == "output-queued":
            return self
        if self.cut_through:
            raise ValueError(f'cut_through = true with switch = "{self.switch}"; expected cut_through = false')
        lanes = MAX_LANES if self.switch == "shared-buffer" else self.virtual_lanes or 1
        for key, number in {"p2p_class": self.p2p_class or 0, **(self.classes or {})}.items():
            if number >= lanes:
                raise ValueError(f"{key} = {number} with {lanes} classes or lanes; expected one of them")
        if (self.pfc_rising_classes or 1) > 1 and self.pfc_classes:
            raise ValueError(f"pfc_rising_classes = {self.pfc_rising_classes} with pfc_classes; expected one of them")
        lossy = next((tier for tier, own in (self.tiers or {}).items() if own.pfc is False), None)
        if (self.pfc_rising_classes or 1) > 1 and lossy:
            raise ValueError(f"tiers.{lossy}: pfc = false with pfc_rising_classes; expected PFC at all switches")
        if 0 in (self.class_weights or ()) and self.discipline == "weighted":
            raise ValueError('class_weights: found 0 with discipline = "weighted"; expected discipline = "ets"')
        if self.switch == "credits" and self.lane_weights and len(self.lane_weights) != lanes:
            raise ValueError(f"lane_weights has {len(self.lane_weights)} weights for {lanes} virtual lanes")
        if self.switch == "credits" and (self.high_lanes or 0) >= lanes:
            raise ValueError(f"high_lanes = {self.high_lanes} of {lanes} virtual lanes; expected fewer")
        return self

    @model_validator(mode="after")
    def _tiers_fit_together(self) -> Self:
        """Refuse keys of PFC or ECN of the switches, or of a tier, without it, and thresholds of ECN that fall."""
        for tier, own in {"": TierSection(), **(self.tiers or {})}.items():
            word = f"tiers.{tier}: " if tier else ""
            if self.switch != "shared-buffer":
                self._check_other_switches(word, own)
                continue
            if own.cut_through:
                raise ValueError(f'{word}cut_through = true with switch = "shared-buffer"; expected false')
            pauses, marks = bool(self.at_tier(tier, "pfc")), bool(self.at_tier(tier, "ecn"))
            unused = PFC_KEYS * (not pauses) + ECN_KEYS * (not marks)
            lost = next((key for key in unused if getattr(own, key, None) is not None), None)
            if lost:
                raise ValueError(f"{word}found {lost} with {lost[:3]} = false; expected {lost[:3]} = true")
            if pauses and self.at_tier(tier, "trimming"):
                raise ValueError(f"{word}trimming = true with pfc = true; expected pfc = false, or no trimming")
            if pauses and self.at_tier(tier, "trim_threshold"):
                raise ValueError(f"{word}trim_threshold with pfc = true; expected pfc = false, or no trim_threshold")
            least, most = (self.at_tier(tier, key) or 0 for key in ("ecn_kmin", "ecn_kmax"))
            if least > most:
                low, high = format_bytes(least), format_bytes(most)
                raise ValueError(f"{word}ecn_kmin = {low} is above ecn_kmax = {high}; expected ecn_kmin <= ecn_kmax")
        return self

    def _check_other_switches(self, word: str, own: TierSection) -> None:
        """Refuse keys of a tier that its switches do not have, as they share no buffer; word: begin of the message."""
        shared = next((key for key in own.model_fields_set - _ANY_SWITCH if getattr(own, key) is not None), None)
        if shared and self.model.has_packets:
            raise ValueError(f'{word}found {shared} with switch = "{self.switch}"; expected "shared-buffer"')
        if own.cut_through and self.switch == "credits":
            raise ValueError(f'{word}cut_through = true with switch = "credits"; expected false')

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
        return self.model.several_workers and not self.flows and not wire.detours.known(self.routing).publish


def _has_shared_tiers(tiers: object) -> bool:
    """Return whether some tier, as given, has a key of shared buffers."""
    owns = tiers.values() if isinstance(tiers, dict) else ()
    given = [own.model_fields_set if isinstance(own, TierSection) else own for own in owns]
    return any(set(keys) - _ANY_SWITCH for keys in given if isinstance(keys, dict | set))


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


class EngineSection(Section):
    """Workers and partition of the engine."""

    seed: int = _engine("seed", ge=0, le=MAX_SEED)
    backend: Annotated[Backend, needs(*when.DIVIDED)] = _engine("backend")
    workers: Annotated[values.WorkersOrAuto, needs(*when.DIVIDED)] = Field(
        None, description=SETTINGS["workers"].doc, ge=1, le=MAX_WORKERS
    )
    share_memory: Annotated[bool, needs(*when.DIVIDED)] = _engine("share_memory")
    lps_per_worker: Annotated[values.WorkersOrAuto, needs(*when.DIVIDED)] = Field(
        None, description=SETTINGS["lps_per_worker"].doc, ge=1, le=MAX_WORKERS
    )
    partitioner: Annotated[str, values.PARTITIONER, needs(*when.DIVIDED)] = Field(
        DEFAULT_METHOD, description="method that divides the fabric; docs/explanation/parallel.md lists the methods"
    )
    weights: Annotated[str, values.results_or(*WEIGHT_SOURCES), needs(*when.DIVIDED)] = Field(
        "traces", description='source of the weights for the division: "traces", "fabric" or an earlier run\'s folder'
    )
    checkpoint: Annotated[values.WallTime, needs(when.SIMULATED)] = Field(
        0,
        description='wall time between two checkpoints in the folder of results, "30min"; "off": none. `nadi run '
        "--resume DIR` continues from the newest",
    )
    reuse: Annotated[Literal["exact", "off"], needs(when.PACKETS)] = Field(
        "exact",
        description='"exact": collectives of NVLink domains and periods of the run that repeat are simulated once, '
        'with the same results; "off": each packet is simulated',
    )
    fast_forward: Annotated[values.Percentage, needs(when.PACKETS)] = Field(
        0.0,
        description='"1%": periods of the run, such as micro-batches, that differ by no more than this are counted as '
        'alike, and only some simulated; the results are then estimates, with a bound of their error; "off": none',
    )

    @model_validator(mode="after")
    def _fast_forward_is_possible(self) -> Self:
        """Refuse fast_forward where no period is found."""
        if self.fast_forward and self.reuse == "off":
            raise ValueError('fast_forward is set with reuse = "off"; expected reuse = "exact"')
        if self.fast_forward and self.backend == "processes" and (self.workers or 1) > 1:
            raise ValueError('fast_forward is set with backend = "processes"; expected threads of one process')
        return self


class OutputSection(Section):
    """Files that a run writes."""

    dir: Annotated[values.FilePath | None, values.OUTPUT_FOLDER] = Field(
        None, description="folder of the results; --out overrides it; without both, the run writes no files"
    )
    nodes: Literal["all", "none"] = Field("all", description="nodes.parquet, a row per trace node and NPU")
    flows: Literal["auto", "all", "none"] = Field(
        "auto",
        description='flows.parquet, a row per message; "auto": in runs of more than 4,194,304 messages, those of '
        "collectives that are replayed have no rows",
    )
    report: bool = Field(default=False, description="report.html, a page of the run, as --report writes it")
    sample: Annotated[values.TimeAboveZero | None, needs(when.PACKETS)] = Field(
        None,
        description="interval of samples.parquet, which has the bytes that each link sent and the longest queue at its "
        "port in each such interval; default: no samples",
    )
    alone: Annotated[bool, needs(when.JOBS)] = Field(
        default=False,
        description="simulate each of [[jobs]] alone, too: results show what it lost to the others",
    )
    without_faults: Annotated[bool, needs(when.FAULTS)] = Field(
        default=False,
        description="simulate the run without its [[faults]], too: results show what these cost",
    )
