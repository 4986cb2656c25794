"""Models of the network, one file each, and the contract between these and Nadi: name, keys, capabilities and hooks.

The name of a model, a value of `[network] fidelity`, is that of its file (`inputs.plug_ins`), which declares it as
`NETWORK`. Nadi asks a model for its capabilities and never for its name. Only two things run: the engine (`pdes.run`),
which sends packets or, with the hooks of `MessageHooks`, whole messages; and, for a model without links,
`nadi.simulation.closed_forms`, where each collective and message takes its time alone.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

from nadi.inputs import plug_ins
from nadi.pdes.core import RunError, setting, settings_of
from nadi.pdes.core.plug_ins import check_hook
from nadi.pdes.core.state import PS_PER_BYTE_AT_1_BPS

MAX_MESSAGE_BYTES = 1 << 40
NO_PAUSES = "nothing pauses links at this level; expected another fault"  # of a fault that pauses links


class MessageReport(NamedTuple):
    """What a message has done, first to last in order of time."""

    time_ps: int
    message: int  # number of the message, as `post` returned it
    has_arrived: bool  # True: its last byte is in at its receiver; False: its last byte has left its sender


class Network(Protocol):
    """What every model does: it moves messages.

    Times are in picoseconds since the network was opened. A message that begins, or a link that changes, changes the
    times of messages under way (models whose messages contend); nobody else does, so that reports are final.
    """

    now_ps: int  # messages are posted at this time
    grid_ps: int  # now_ps is a multiple of it

    def post(self, src: int, dst: int, size_bytes: int) -> int:
        """Let NPU src send size_bytes to NPU dst now; return the number of the message, of which the first has 0."""

    def next_event_ps(self) -> int | None:
        """Return a time before which nothing happens; None = nothing is left."""

    def advance(self, until_ps: int) -> list[MessageReport]:
        """Do all that happens before until_ps, rounded up to the grid; now_ps is then this time."""


def check_message(npus: int, src: int, dst: int, size_bytes: int) -> None:
    """Raise ValueError if no message of size_bytes can go from NPU src to NPU dst, of `npus`."""
    if not 0 <= src < npus or not 0 <= dst < npus or src == dst:
        raise ValueError(f"message from npu {src} to npu {dst}: expected two different numbers from 0 to {npus - 1}")
    if not 0 < size_bytes <= MAX_MESSAGE_BYTES:
        raise ValueError(f"message of {size_bytes} bytes: expected 1 to {MAX_MESSAGE_BYTES}")


def keys_with(more: str) -> frozenset[str]:
    """Return the keys of [network] that every model takes, and more, which are separated by spaces."""
    return frozenset({"fidelity", "endpoint_delay", "reduction_bandwidth", *more.split()})


PATH_KEYS = keys_with("send_latency mtu header ack window cut_through tiers nvlink_framing p2p_share queue_pairs")
"""Keys of [network] of every model whose messages have the headers of packets."""


@dataclass(frozen=True)
class OwnKeys:
    """The keys of one model, none unless its file adds fields (pdes.core), and what their values decide."""

    coupled: ClassVar[Mapping[str, str]] = {}  # values of keys of a run whose collectives are coupled flows

    @property
    def unit_ps(self) -> int:
        """Unit in ps to which times at message level are rounded down."""
        return 1

    def couples(self, _num_messages: float) -> bool:
        """Return whether collectives are coupled flows in a run; by default, none are.

        Args:
            _num_messages: Approximate number of messages of the run.
        """
        return False


@dataclass(frozen=True, eq=False)
class MessageHooks:
    """How a model moves whole messages, if at all: the hooks that the engine calls.

    Events (pdes/messages/events.py) move a message: LEFT when its last byte has left its sender, ARRIVE when it has
    arrived, STEP when it is to leave a node. `alone_ps(psb, delay_ps, forwarding_ps, size_bytes, resolution_ps)` takes
    float64[k] ps per byte and int64[k] delays of the links of a path, int64[] latencies of its switches and int64[m]
    bytes, and returns int64[m].
    """

    name: str = "none"
    act: Callable | None = None  # hook (world_address, message, now_ps) that moves a message on from its node
    # time of messages on an idle path; None = messages have headers and acknowledgements, and the times of packets
    alone_ps: Callable | None = None
    settle: Callable | None = None  # hook (world_address, kind, now_ps) for events that are not of one message
    contends: bool = True  # whether messages wait for each other, or share links
    overload: str = ""  # if not: the end of a warning that links would have to carry more than they can
    chosen_by: Mapping[str, Any] = field(default_factory=dict)  # values of own keys with which the engine calls these


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A model of the network with its keys, its capabilities, and what it refuses."""

    name: str  # value of [network] fidelity
    title: str  # what a message does, and what it waits for
    use: str  # questions that the model answers
    keys: frozenset[str] = keys_with("")  # keys of [network] that have an effect, those of `own` included
    own: type[OwnKeys] = OwnKeys  # keys of this model alone
    # key -> what it needs besides this model, in words of run files, and whether the section [network] meets that
    conditions: Mapping[str, tuple[str, Callable[[Any], bool]]] = field(default_factory=dict)
    hooks: tuple[MessageHooks, ...] = (MessageHooks(),)  # several if its own keys choose between them
    has_packets: bool = False  # packets in queues, with transport, congestion control and rendezvous
    several_workers: bool = False  # threads, processes and ranks may share a run
    has_links: bool = True  # messages cross links and fill their counters; without, all take their time alone
    # key of [[faults]] that the model refuses -> the reason, and what it expects; None = it takes no faults
    refused_faults: Mapping[str, str] | None = None
    max_link_rate_bps: int | None = None  # maximum rate of a link; None = that of the fabric

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.keys | {setting.key for setting in settings_of(self.own)})

    def hooks_with(self, own: OwnKeys) -> MessageHooks:
        """Return the hooks that the engine calls with these values of the model's own keys."""
        return next(
            hooks for hooks in self.hooks if all(getattr(own, key) == value for key, value in hooks.chosen_by.items())
        )

    @property
    def has_headers(self) -> bool:
        """Whether messages have headers and acknowledgements, and on an idle network the times of packets."""
        return all(hooks.alone_ps is None for hooks in self.hooks)


# The models of this folder, of installed packages and of users.

KIND = "network model"


def _own(name: str) -> NetworkModel:
    """Return the model that a file of this folder declares; found by name, as the file imports this module."""
    model: NetworkModel = plug_ins.own_module(KIND, name).NETWORK
    return model


PACKET = _own("packet")
REFERENCE = PACKET.name  # most detailed model, the default of runs
FASTEST = _own("closed-form").name  # model of plans and of the clock of serving
FLUID = _own("flow").name  # model whose solver of rates `nadi bench flow` measures


@cache
def networks() -> Mapping[str, NetworkModel]:
    """Return all models by name, those with more detail first, without those in files of the user's and wrong ones."""
    models = {name: _own(name) for name in plug_ins.own_files(KIND)}
    for name in plug_ins.installed_names(KIND):
        with suppress(RunError):  # who names it is told what is wrong
            models |= {name: _checked(name)}
    return dict(
        sorted(
            models.items(), key=lambda each: (not each[1].has_packets, not each[1].has_links, not each[1].has_headers)
        )
    )


def network(name: str) -> NetworkModel | None:
    """Return the model of a name or file, None if the name is unknown; RunError if a file or package holds no model."""
    is_outside = plug_ins.is_file(KIND, name) or name in plug_ins.installed_names(KIND)
    return _checked(name) if is_outside else networks().get(name)


def _checked(name: str) -> NetworkModel:
    """Return the model of a name or file; RunError if it is wrong."""
    model: NetworkModel = plug_ins.module(KIND, name, RunError).NETWORK
    if not isinstance(model, NetworkModel):
        raise RunError(f"{name}: NETWORK is {type(model).__name__}; expected a NetworkModel")
    for hook in (hook for hooks in model.hooks for hook in (hooks.act, hooks.settle) if hook is not None):
        check_hook(f"{name}: {hook.__name__}", hook, parameters=3)
    return model


def quoted(holds: Callable[[NetworkModel], bool]) -> str:
    """Return the names of the models for which a function holds, as '"packet" or "flow"'."""
    return " or ".join(f'"{model.name}"' for model in networks().values() if holds(model))


def accepts(model: NetworkModel, key: str) -> bool:
    """Return whether run files keep a key of [network] with a model; models with headers keep all keys of packets."""
    return key in model.keys or (model.has_headers and key in PACKET.keys)


@dataclass(frozen=True)
class Fidelity:
    """The model of a run with its parameters.

    `own` has the values of the model's own keys, an OwnKeys; None = their defaults.
    A reduction adds three times the message's bytes at reduction_bandwidth_bps (two reads and a write).
    """

    model: NetworkModel = setting(PACKET, "model of the network", is_given=False)
    endpoint_delay_ps: int = setting(0, "delay of a collective's first step, and of a receiver's action on a message")
    reduction_bandwidth_bps: float | None = setting(
        None, "memory bandwidth of reductions; without it, reductions take no time"
    )
    send_latency_ps: int = setting(0, "time from when a message is posted until its first packet may be sent")
    acknowledged: bool = setting(
        False,
        "a message is complete, at both ends, when its last acknowledgement is back, not when its last byte is in",
    )

    own: Any = setting(None, "keys of the model alone", is_given=False)

    def __post_init__(self) -> None:
        if self.own is None:
            object.__setattr__(self, "own", self.model.own())

    @property
    def name(self) -> str:
        """Name of the model, value of [network] fidelity."""
        return self.model.name

    @property
    def hooks(self) -> MessageHooks:
        """Hooks that move whole messages; without `act` for models that have none."""
        return self.model.hooks_with(self.own)

    @property
    def resolution_ps(self) -> int:
        """Unit to which times at message level are rounded down."""
        return self.own.unit_ps

    @property
    def reduction_psb(self) -> float:
        """Picoseconds per byte of the memory that reductions use; 0 = no time."""
        return PS_PER_BYTE_AT_1_BPS / self.reduction_bandwidth_bps if self.reduction_bandwidth_bps else 0.0


def fidelity(name: str, **parameters: Any) -> Fidelity:
    """Return the model with a name, of itself or of its hooks; RunError if it is unknown.

    Args:
        name: Name of a model, or of one of its hooks.
        **parameters: Settings of the model and fields of Fidelity, by name.
    """
    found = network(name)
    for model in networks().values() if found is None else [found]:
        for hooks in model.hooks:
            if found is model or name == hooks.name:
                names = {each.name for each in settings_of(model.own)} & parameters.keys()
                own = {**hooks.chosen_by, **{name: parameters.pop(name) for name in names}}
                return Fidelity(model, own=model.own(**own), **parameters)
    raise RunError(f"fidelity {name!r}; expected one of {', '.join(networks())}")
