"""Congestion control: how fast and how much a queue pair may send. One file each, found here.

A file holds TITLE (the paper), SIGNALS (what it must be told: "ecn", "cnp", "rtt", "telemetry"), PARAMETERS, perhaps
ASCENDING (pairs of parameters of which the first is below the second), and a hook
`update(address, q, event, now, a, b, c)` that keeps row q of `cc`, which it sees as a kind of row of its own
(CongestionState of pdes/core/rows/nic.py and what the algorithm adds), as it does the row of its parameters, `par`:

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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pdes.core.errors import RunError
from pdes.core.rows.row import Word, WordKind


class Allowed(NamedTuple):
    """What a parameter may be: from the least to the most, or `special`, a value with a meaning of its own."""

    least: float
    most: float
    special: float | None = None
    whole: bool = False

    def allows(self, value: float) -> bool:
        """Whether it may be this; never NaN."""
        return value == self.special or (self.least <= value <= self.most and (not self.whole or value == int(value)))

    def expected(self, factor: float = 1.0) -> str:
        """What it may be, in words; factor: of the alias in whose unit."""
        special = "" if self.special is None else f"{self.special / factor:g}, or "
        whole = "a whole number from " if self.whole else ""
        return f"{special}{whole}{self.least / factor:g} to {self.most / factor:g}"


SHARE = Allowed(0.0, 1.0)
SWITCH = Allowed(0.0, 1.0, whole=True)
"""Off or on."""
RATE_BPS = Allowed(1e6, 1e15)
"""Rates at which a queue pair may be paced: those of links."""
STEP_BPS = Allowed(0.0, 1e15)
"""What a rate grows by."""
TIME_PS = Allowed(1.0, 1e18)
"""Whole picoseconds; two of the longest and the longest run stay below INF (pdes/core/state.py)."""
TIME_OR_0_PS = Allowed(1.0, 1e18, special=0.0)
DELAY_PS = Allowed(0.0, 1e18)
PACKETS = Allowed(0.0, 2.0**22)
"""The largest window is half of what sequence numbers tell apart (pdes/core/packet.py, HALF_PSN)."""
WINDOW_PACKETS = Allowed(1e-6, 2.0**22)
FACTOR = Allowed(0.0, 1e6)
COUNT = Allowed(0.0, 1e6)
WHOLE_COUNT = Allowed(0.0, 1e6, whole=True)


@dataclass(frozen=True)
class ControlParameter(Word):
    """A number that an algorithm takes, a word of its `ControlParameters`; its name is as in the paper, with its unit.

    Attributes:
        meaning: what it is, and where the default comes from.
        default: used unless the run says otherwise.
        range: what else it may be.
        aliases: names of the same in other simulators, each with what their number is multiplied by.
    """

    default: float = 0.0
    range: Allowed = SHARE
    aliases: Mapping[str, float] = field(default_factory=dict)


def parameter(default: float, allowed: Allowed, meaning: str, aliases: Mapping[str, float] | None = None) -> Any:
    """Declare a parameter, a word of a row."""
    return ControlParameter(WordKind.FLOAT, meaning, default=default, range=allowed, aliases=aliases or {})


@dataclass(frozen=True)
class Control:
    """The congestion control of a run: its hook (None = a static window only), signals and parameter values."""

    name: str
    update: Callable | None
    signals: frozenset[str]
    values: tuple[float, ...]


NO_CONTROL = Control("none", None, frozenset(), ())


def names() -> list[str]:
    """Every congestion control that a run may name."""
    return ["none", *sorted(module.name for module in pkgutil.iter_modules(__path__))]


def parameters(name: str) -> Mapping[str, ControlParameter]:
    """Parameters of the congestion control of that name, in the order of `Control.values`."""
    return importlib.import_module(f"{__name__}.{name}").PARAMETERS if name != "none" else {}


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
    own = parameters(name)
    values = {each: its.default for each, its in own.items()}
    known = {key: (each, by) for each, its in own.items() for key, by in {each: 1.0, **its.aliases}.items()}
    for key, value in overrides.items():
        if key not in known:
            raise RunError(f"{name} has no parameter {key!r}; expected one of {', '.join(own)}")
        each, factor = known[key]
        if not own[each].range.allows(value * factor):
            raise RunError(f"{name}: {key} is {value:g}; expected {own[each].range.expected(factor)}")
        values[each] = value * factor
    for low, high in getattr(module, "ASCENDING", ()):
        if values[low] >= values[high]:
            raise RunError(f"{name}: {low} is {values[low]:g}; expected less than {high}, {values[high]:g}")
    return Control(name, module.update, frozenset(module.SIGNALS), tuple(values.values()))
