"""Models of how messages cross the network other than as packets. One file each, found here.

A file holds TITLE, a hook `act(world_address, message, now_ps)` that moves a message on from its node, and
`alone_ps(psb, delay_ps, forwarding_ps, size_bytes, resolution_ps)`, the time of messages on an idle path: float64[k] ps
per byte and int64[k] delays of its links, int64[] latencies of its switches, int64[m] bytes -> int64[m]. Events move a
message (events.py): LEFT when its last byte has left its sender, ARRIVE when it has arrived, STEP when it is to leave
a node. The rest of the engine is the packet-level model. A file without `alone_ps` gives messages the headers and
acknowledgements of packets, and its times on an idle path are those of packets. A file may have a hook
`settle(world_address, kind, now_ps)` for events that are not of one message. The file's name is the value of
`[network] fidelity`, unless USER_NAME is another.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pdes.core.errors import RunError
from pdes.core.setting import setting
from pdes.core.state import PS_PER_BYTE_AT_1_BPS


@dataclass(frozen=True)
class Fidelity:
    """The model of a run; act, alone_ps and settle are None for packets.

    A reduction adds three times the message's bytes at reduction_bandwidth_bps (two reads and a write).
    congestion_aware: LINKS_ARE_BUSY of the module, if it has that. is_closed_form: collectives and messages take the
    time that they would take alone on the network of packets. send_latency_ps and acknowledged apply to packets only.
    """

    name: str = setting("packet", "model of the network", is_given=False)
    act: Callable | None = setting(None, "moves a message on", is_given=False)
    alone_ps: Callable | None = setting(None, "time of messages on an idle path", is_given=False)
    settle: Callable | None = setting(None, "ends flows and sets their rates", is_given=False)
    endpoint_delay_ps: int = setting(0, "delay of a collective's first step, and of a receiver's action on a message")
    reduction_bandwidth_bps: float | None = setting(
        None, "memory bandwidth of reductions; without it, reductions take no time"
    )
    resolution_ps: int = setting(1, "analytical: unit to which times of transfers and reductions are rounded down")
    congestion_aware: bool = setting(
        True, "analytical: a link sends one whole message at a time; false: messages do not wait for each other"
    )
    collectives: str = setting(
        "auto",
        'flow: "steps" = each message of a collective is a flow, "coupled" = each collective is one flow over all its '
        'links, "auto" = coupled if the run has more than 4,194,304 messages',
    )
    send_latency_ps: int = setting(0, "time from when a message is posted until its first packet may be sent")
    acknowledged: bool = setting(
        False,
        "a message is complete, at both ends, when its last acknowledgement is back, not when its last byte is in",
    )
    is_closed_form: bool = setting(False, "no message crosses the network", is_given=False)

    @property
    def is_message_level(self) -> bool:
        """Whether messages move as a whole."""
        return self.act is not None

    @property
    def has_headers(self) -> bool:
        """Whether messages have the headers, acknowledgements and closed forms of packets."""
        return self.alone_ps is None

    @property
    def reduction_psb(self) -> float:
        """Picoseconds per byte of the memory that reductions use; 0 = no time."""
        return PS_PER_BYTE_AT_1_BPS / self.reduction_bandwidth_bps if self.reduction_bandwidth_bps else 0.0


PACKET = Fidelity("packet")


def names() -> list[str]:
    """Return the names of all models that a run may use."""
    return ["packet", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def user_names() -> Mapping[str, bool]:
    """Return the values of [network] fidelity for these models; True = messages have the headers of packets."""
    modules = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    has_headers = {
        getattr(each, "USER_NAME", each.__name__.rpartition(".")[2]): not hasattr(each, "alone_ps") for each in modules
    }
    return dict(sorted(has_headers.items(), key=lambda item: (not item[1], item[0])))


def fidelity(name: str, **parameters: Any) -> Fidelity:
    """Return the model with a name; RunError if it is unknown."""
    if name not in names():
        raise RunError(f"fidelity {name!r}; expected one of {', '.join(names())}")
    if name == "packet":
        return Fidelity(name, **parameters)
    module = importlib.import_module(f"{__name__}.{name}")
    busy = getattr(module, "LINKS_ARE_BUSY", True)
    alone_ps, settle = (getattr(module, hook, None) for hook in ("alone_ps", "settle"))
    return Fidelity(name, module.act, alone_ps, settle, congestion_aware=busy, **parameters)
