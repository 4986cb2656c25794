"""How messages cross the network, where not as packets. One file each, found here.

A file holds TITLE, a hook `act(address, message, now, ...)` that has a message go on from where it is, and
`alone_ps(psb, delay_ps, forwarding_ps, size_bytes, resolution_ps)`, what messages take on an idle path: float64[k] ps
per byte and int64[k] delays of its links, int64[] latencies of its switches, int64[m] bytes -> int64[m]. A message
goes on by events (events.py): LEFT when its last byte has left its sender, ARRIVE when it is in, STEP when it is
to go on from a node. Packets stand in the rest of the engine.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pdes.core.errors import RunError
from pdes.core.setting import setting
from pdes.core.units import PS_PER_BYTE_AT_1_BPS


@dataclass(frozen=True)
class Fidelity:
    """The model of a run; act and alone_ps are None for packets.

    A message that is added to what is there takes three times its bytes at reduction_bandwidth_bps longer (two reads
    and a write). congestion_aware: LINKS_ARE_BUSY of the module, if it says so. is_closed_form: collectives and
    messages take what they would alone on the network of packets. send_latency_ps and acknowledged are of packets only.
    """

    name: str = setting("packet", "how the network is modelled", is_given=False)
    act: Callable | None = setting(None, "has a message go on", is_given=False)
    alone_ps: Callable | None = setting(None, "what messages take on an idle path", is_given=False)
    endpoint_delay_ps: int = setting(0, "before a collective's first step, and before a receiver acts on a message")
    reduction_bandwidth_bps: float | None = setting(
        None, "of the memory in which what is received is added; without, adding takes no time"
    )
    resolution_ps: int = setting(1, "analytical: times of transfers and reductions are cut to multiples of it")
    congestion_aware: bool = setting(
        True, "analytical: a link sends one message at a time, whole; false: none waits for another"
    )
    send_latency_ps: int = setting(0, "from when a message is posted until its first packet may be sent")
    acknowledged: bool = setting(
        False, "a message counts, at both ends, when its last acknowledgement is back; else when its last byte is in"
    )
    is_closed_form: bool = setting(False, "nothing crosses the network", is_given=False)

    @property
    def reduction_psb(self) -> float:
        """Picoseconds per byte of the memory in which what is received is added; 0 = no time."""
        return PS_PER_BYTE_AT_1_BPS / self.reduction_bandwidth_bps if self.reduction_bandwidth_bps else 0.0


PACKET = Fidelity("packet")


def names() -> list[str]:
    """Every model that a run may name."""
    return ["packet", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def fidelity(name: str, **parameters: Any) -> Fidelity:
    """The model of that name.

    Raises:
        RunError: there is none.
    """
    if name not in names():
        raise RunError(f"fidelity {name!r}; expected one of {', '.join(names())}")
    if name == "packet":
        return Fidelity(name, **parameters)
    module = importlib.import_module(f"{__name__}.{name}")
    busy = getattr(module, "LINKS_ARE_BUSY", True)
    return Fidelity(name, module.act, module.alone_ps, congestion_aware=busy, **parameters)
