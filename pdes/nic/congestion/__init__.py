"""Congestion control: the rate and window of a queue pair. One file per algorithm, found by `inputs.plug_ins`.

A file holds TITLE (the paper), SIGNALS (the feedback it needs: "ecn", "cnp", "rtt", "telemetry"), PARAMETERS, perhaps
ASCENDING (pairs of parameters whose first must be below the second), and a hook
`update(world_address, pair, event, now_ps, a, b, c)` that updates row `pair` of `cc`, which it views as a row kind
of its own (`CongestionState` plus the algorithm's words), and likewise its parameters, `par`:

    CC_START          a new queue pair: all words are 0 but line_ps_per_byte and last_seq; sets window_packets and
                      pace_ps_per_byte
    CC_SENT   a, b    a packet of `a` bytes on the wire with sequence number b begins to leave now
    CC_ACK    a, b, c an acknowledgement: packets newly acknowledged; 1 if it echoes a congestion mark; round-trip
                      time in ps, -1 unknown. With telemetry, `carried` holds that of the packet
    CC_CNP            a congestion notification packet
    CC_LOSS   a, b, c a loss: LOSS_NAK, LOSS_TIMEOUT or LOSS_TRIMMED; 1 if the last switch trimmed the packet; the
                      round-trip time of a trimmed packet that was sent once with coalesced acknowledgements, else -1
    CC_REST           nothing is under way in the fabric now; only where the file says FORGETS = True. What no longer
                      has an effect gets the value that it had at first, such as a timer that changes nothing, so that
                      states with equal futures are equal (pdes/reuse/recurrence.py). Nothing else may change

Kernels call the hook by its address, so a run compiles only the algorithm it uses. The hook makes up for elapsed timers
at its next call: nothing reads the row in between.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from nadi.inputs import plug_ins
from nadi.pdes.core import RunError
from nadi.pdes.core.plug_ins import module_of as checked_module
from nadi.pdes.core.rows import Word, WordKind
from nadi.pdes.core.rows.network import CongestionState


class Allowed(NamedTuple):
    """The allowed values of a parameter: `minimum` to `maximum`, or `special`, a value with a meaning of its own."""

    minimum: float
    maximum: float
    special: float | None = None
    is_integer: bool = False

    def allows(self, value: float) -> bool:
        """Return whether a value is allowed; NaN never is."""
        # NaN compares as false with everything, so it falls through both conditions
        return value == self.special or (
            self.minimum <= value <= self.maximum and (not self.is_integer or value == int(value))
        )

    def expected(self, factor: float = 1.0) -> str:
        """Return the allowed values in words; factor: size of the unit in which they are written."""
        special = "" if self.special is None else f"{self.special / factor:g}, or "
        integer = "a whole number from " if self.is_integer else ""
        return f"{special}{integer}{self.minimum / factor:g} to {self.maximum / factor:g}"


SHARE = Allowed(0.0, 1.0)
SWITCH = Allowed(0.0, 1.0, is_integer=True)  # 0 = off, 1 = on
RATE_BPS = Allowed(1e6, 1e15)  # rates at which a queue pair may be paced, in bit/s: those of links
STEP_BPS = Allowed(0.0, 1e15)  # increments of a rate in bit/s
TIME_PS = Allowed(1.0, 1e18)  # whole ps; two of the longest times and the longest run stay below INF (state.py)
TIME_OR_0_PS = Allowed(1.0, 1e18, special=0.0)
DELAY_PS = Allowed(0.0, 1e18)
PACKETS = Allowed(0.0, 2.0**22)  # up to the largest window, half of what sequence numbers distinguish (HALF_PSN)
WINDOW_PACKETS = Allowed(1e-6, 2.0**22)
FACTOR = Allowed(0.0, 1e6)
COUNT = Allowed(0.0, 1e6)
WHOLE_COUNT = Allowed(0.0, 1e6, is_integer=True)


@dataclass(frozen=True)
class ControlParameter(Word):
    """A number that an algorithm takes, a word of its `ControlParameters`; named as in the paper, with its unit.

    Its meaning is a description and the source of the default.
    """

    default: float = 0.0
    range: Allowed = SHARE  # allowed values
    aliases: Mapping[str, float] = field(default_factory=dict)  # name in other simulators -> factor from their unit


def parameter(default: float, allowed: Allowed, meaning: str, aliases: Mapping[str, float] | None = None) -> Any:
    """Declare a parameter as a word of a row.

    Args:
        default: Value where users give none.
        allowed: Values that users may give.
        meaning: Meaning of the parameter, in one line.
        aliases: Words that users may write in place of a value; None = no such words.
    """
    return ControlParameter(WordKind.FLOAT, meaning, default=default, range=allowed, aliases=aliases or {})


@dataclass(frozen=True)
class Control:
    """The congestion control of a run: hook (None = a static window only), signals and parameter values."""

    name: str
    update: Callable | None
    signals: frozenset[str]
    values: tuple[float, ...]
    state: type[CongestionState] = CongestionState  # row of a queue pair, with the algorithm's own words
    forgets: bool = False  # the hook knows CC_REST


KIND = "congestion control"
SIGNALS = frozenset({"ecn", "cnp", "rtt", "telemetry"})  # that switches and receivers can send
_EVENT_PARAMETERS = 7  # of update
NO_CONTROL = Control("none", None, frozenset(), ())


def names() -> list[str]:
    """Return the names of all congestion controls that a run may use."""
    return plug_ins.names(KIND)


def module_of(name: str) -> ModuleType:
    """Return the module of a congestion control other than "none"; RunError if there is none of this name or file."""
    # the hook compiles, but its declarations are plain Python that nothing has checked yet
    module = checked_module(KIND, name, "update", _EVENT_PARAMETERS)
    signals, own = module.SIGNALS, module.PARAMETERS
    if isinstance(signals, str) or not SIGNALS.issuperset(signals):
        raise RunError(f"{name}: SIGNALS is {signals!r}; expected some of {', '.join(sorted(SIGNALS))}, as ('rtt',)")
    if not isinstance(own, Mapping) or not all(isinstance(value, ControlParameter) for value in own.values()):
        raise RunError(f"{name}: PARAMETERS is {own!r:.60}; expected `declared` of a ControlParameters, or {{}}")
    return module


def parameters(name: str) -> Mapping[str, ControlParameter]:
    """Return the parameters of a congestion control, in the order of `Control.values`.

    Args:
        name: Name of the algorithm, or path of a plug-in; "none" = no congestion control.
    """
    declared: Mapping[str, ControlParameter] = module_of(name).PARAMETERS if name != "none" else {}
    return declared


def control(name: str, overrides: Mapping[str, float] | None = None) -> Control:
    """Return the control of a name or of a user's file with `overrides`, values by parameter or alias.

    Raises RunError if one of them is wrong.
    """
    overrides = dict(overrides or {})
    if name == "none":
        if overrides:
            raise RunError(f"congestion control none has no parameter {next(iter(overrides))!r}")
        return NO_CONTROL
    module = module_of(name)
    own = parameters(name)
    # in the order of the declaration, which is the order of the words of the row `par`
    values = {word: declared.default for word, declared in own.items()}
    # an alias is the parameter in another unit
    units = {key: (word, factor) for word in own for key, factor in {word: 1.0, **own[word].aliases}.items()}
    for key, value in overrides.items():
        if key not in units:
            raise RunError(f"{name} has no parameter {key!r}; expected one of {', '.join(own)}")
        word, factor = units[key]
        if not own[word].range.allows(value * factor):
            raise RunError(f"{name}: {key} is {value:g}; expected {own[word].range.expected(factor)}")
        values[word] = value * factor
    for low, high in getattr(module, "ASCENDING", ()):
        if values[low] >= values[high]:
            raise RunError(f"{name}: {low} is {values[low]:g}; expected less than {high}, {values[high]:g}")
    states = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, CongestionState)]
    # the class that the file declares; CongestionState itself, which the file may import, is the base of it
    state = next((kind for kind in states if kind is not CongestionState), CongestionState)
    forgets = bool(getattr(module, "FORGETS", False))
    return Control(name, module.update, frozenset(module.SIGNALS), tuple(values.values()), state, forgets)
