"""Congestion control: how fast and how much a queue pair may send. One file each, found here.

A file holds TITLE (the paper), SIGNALS (what it must be told: "ecn", "cnp", "rtt", "telemetry"), PARAMETERS, perhaps
ASCENDING (pairs of parameters of which the first is below the second), and a hook
`update(address, q, event, now, a, b, c)` that keeps row q of `cc`, which it sees as a kind of row of its own
(CongestionState of pdes/core/rows/nic.py and what the algorithm adds):

    CC_START          a new queue pair: all words are 0 but line_ps_per_byte and last_seq; sets window_packets and
                      pace_ps_per_byte
    CC_SENT   a, b    a packet of `a` bytes on the wire with sequence number b begins to leave now
    CC_ACK    a, b, c an acknowledgement: packets newly acknowledged; 1 if it echoes a congestion mark; round-trip
                      time in ps, -1 unknown. With telemetry, `carried` holds what the packet has met
    CC_CNP            a congestion notification packet
    CC_LOSS   a       a loss: LOSS_NAK, LOSS_TIMEOUT or LOSS_TRIMMED

It is called by its address, so a run compiles the one that it uses. What happens by a timer is caught up with at the
next call: nothing reads the row in between.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdes.core.errors import RunError

SIGNALS = ("ecn", "cnp", "rtt", "telemetry")

SHARE = (0.0, 1.0)
SWITCH = (0.0, 1.0)
"""Of a whole number: off or on."""
RATE_BPS = (1e6, 1e15)
"""Rates at which a queue pair may be paced: those of links."""
STEP_BPS = (0.0, 1e15)
"""What a rate grows by."""
TIME_PS = (1.0, 1e18)
"""Whole picoseconds; two of the longest and the longest run stay below INF (pdes/core/state.py)."""
DELAY_PS = (0.0, 1e18)
PACKETS = (0.0, 2.0**22)
"""The largest window is half of what sequence numbers tell apart (pdes/core/packet.py, HALF_PSN)."""
WINDOW_PACKETS = (1e-6, 2.0**22)
FACTOR = (0.0, 1e6)
COUNT = (0.0, 1e6)


@dataclass(frozen=True)
class Parameter:
    """A number that an algorithm takes.

    Attributes:
        name: as in the paper, with its unit.
        default: used unless the run says otherwise.
        doc: what it is, and where the default comes from.
        aliases: names of the same in other simulators, each with what their number is multiplied by.
        range: the least and the most that it may be.
        special: one value more, with a meaning of its own: 0 for "none".
        whole: only whole numbers.
    """

    name: str
    default: float
    doc: str
    aliases: Mapping[str, float] | None = None
    range: tuple[float, float] = SHARE
    special: float | None = None
    whole: bool = False

    def allows(self, value: float) -> bool:
        """Whether it may be this; never NaN."""
        least, most = self.range
        return value == self.special or (least <= value <= most and (not self.whole or value == int(value)))

    def expected(self, factor: float = 1.0) -> str:
        """What it may be, in words; factor: of the alias in whose unit."""
        least, most = (bound / factor for bound in self.range)
        special = "" if self.special is None else f"{self.special / factor:g}, or "
        return f"{special}{'a whole number from ' if self.whole else ''}{least:g} to {most:g}"


@dataclass(frozen=True)
class Control:
    """The congestion control of a run: its hook (None = a static window only), signals and parameter values.

    shares: some queue pairs are driven at a share of their port's line rate (pdes/nic/driven.py).
    """

    name: str
    update: Callable | None
    signals: frozenset[str]
    values: tuple[float, ...]
    shares: bool = False


NO_CONTROL = Control("none", None, frozenset(), ())


def names() -> list[str]:
    """Every congestion control that a run may name."""
    return ["none", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def control(name: str, overrides: Mapping[str, float] | None = None) -> Control:
    """The congestion control of that name.

    Args:
        name: of `names`.
        overrides: values of parameters, by their names or aliases.

    Raises:
        RunError: no such algorithm, no such parameter, or a value that it cannot have.
    """
    overrides = dict(overrides or {})
    if name not in names():
        raise RunError(f"congestion control {name!r}; expected one of {', '.join(names())}")
    if name == "none":
        if overrides:
            raise RunError(f"congestion control none has no parameter {next(iter(overrides))!r}")
        return NO_CONTROL
    module = importlib.import_module(f"{__name__}.{name}")
    values = {parameter.name: parameter.default for parameter in module.PARAMETERS}
    known = {parameter.name: (parameter.name, 1.0) for parameter in module.PARAMETERS}
    for parameter in module.PARAMETERS:
        known |= {alias: (parameter.name, factor) for alias, factor in (parameter.aliases or {}).items()}
    for key, value in overrides.items():
        if key not in known:
            raise RunError(f"{name} has no parameter {key!r}; expected one of {', '.join(values)}")
        own, factor = known[key]
        parameter = next(parameter for parameter in module.PARAMETERS if parameter.name == own)
        if not parameter.allows(value * factor):
            raise RunError(f"{name}: {key} is {value:g}; expected {parameter.expected(factor)}")
        values[own] = value * factor
    for low, high in getattr(module, "ASCENDING", ()):
        if values[low] >= values[high]:
            raise RunError(f"{name}: {low} is {values[low]:g}; expected less than {high}, {values[high]:g}")
    return Control(name, module.update, frozenset(module.SIGNALS), tuple(values.values()))
