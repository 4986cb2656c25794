"""The contract between Nadi and a model of the network; each file of this folder declares one as `NETWORK`.

Nadi asks a model for its capabilities and never for its name. Only two things run: the engine (`pdes.run`), which sends
packets or, with the hooks of `MessageHooks`, whole messages; and, for a model without links,
`nadi.simulation.closed_forms`, where each collective and message takes its time alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdes.core.setting import settings_of


def keys_with(more: str) -> frozenset[str]:
    """Return the keys of [network] that every model takes, and more, which are separated by spaces."""
    return frozenset({"fidelity", "endpoint_delay", "reduction_bandwidth", *more.split()})


PATH_KEYS = keys_with("send_latency mtu header ack window cut_through nvlink_framing p2p_share")
"""Keys of [network] of every model whose messages have the headers of packets."""


@dataclass(frozen=True)
class NoOwnKeys:
    """The keys of a model that has none of its own."""


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
    contends: bool = True  # whether messages wait for each other, or share links; `congestion_aware` chooses


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A model of the network with its keys, its capabilities, and what it refuses."""

    name: str  # value of [network] fidelity
    title: str  # what a message does, and what it waits for
    use: str  # questions that the model answers
    keys: frozenset[str] = keys_with("")  # keys of [network] that have an effect, those of `own` included
    own: type = NoOwnKeys  # dataclass of the settings (pdes.core.setting) that are keys of this model alone
    hooks: tuple[MessageHooks, ...] = (MessageHooks(),)  # two if `congestion_aware` is a key
    has_packets: bool = False  # packets in queues, with transport, congestion control and rendezvous
    several_workers: bool = False  # threads, processes and ranks may share a run
    has_links: bool = True  # messages cross links and fill their counters; without, all take their time alone
    # key of [[faults]] that the model refuses -> the reason, and what it expects; None = it takes no faults
    refused_faults: Mapping[str, str] | None = None
    max_link_rate_bps: int | None = None  # maximum rate of a link; None = that of the fabric

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.keys | {setting.key for setting in settings_of(self.own)})

    @property
    def has_headers(self) -> bool:
        """Whether messages have headers and acknowledgements, and on an idle network the times of packets."""
        return all(hooks.alone_ps is None for hooks in self.hooks)
