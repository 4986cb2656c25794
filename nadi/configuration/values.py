"""Values of run files as users write them, with units, and the base class of sections."""

import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from nadi.configuration import MAX_BUFFER_BYTES, MAX_COLLECTIVES_IN_FLIGHT, MAX_WINDOW_PACKETS, MAX_WIRE_BYTES
from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_PS, LONGEST_TIMEOUT_PS, MAX_BYTES, MEMORY_RATE_BPS
from nadi.inputs.units import (
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
from nadi.pdes import settings_of
from nadi.topologies import Graph
from nadi.workload import TraceSet

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
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_COLLECTIVES_IN_FLIGHT:
        raise ValueError(f"{short(value)}; expected a whole number from 1 to {MAX_COLLECTIVES_IN_FLIGHT}")
    return number


def _parse_packets(value: object) -> int | str:
    """Return a number of packets that a receiver may hold out of order, or "auto"."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WINDOW_PACKETS
    if not is_number and value != "auto":
        raise ValueError(f'{short(value)}; expected a whole number from 0 to {MAX_WINDOW_PACKETS}, or "auto"')
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
        kmin, kmax = (parse_bytes_within(size, MAX_BUFFER_BYTES) for size in own[:2])
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


_WALL_S = {"s": 1, "min": 60, "h": 3600}
_WALL_TIME = re.compile(r"(\d{1,9})\s*(s|min|h)")


def _parse_wall_time(value: object) -> int:
    """Return a wall time in seconds, 0 for "off"."""
    if value in ("off", 0):
        return 0
    match = _WALL_TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{short(value)} is no wall time; expected one such as 90s, 30min or 2h, or off")
    return int(match[1]) * _WALL_S[match[2]]


def _wall_time_text(value: int) -> str:
    """Return a wall time in the largest unit that divides it."""
    unit = next(name for name in ("h", "min", "s") if value % _WALL_S[name] == 0)
    return f"{value // _WALL_S[unit]}{unit}" if value else "off"


_PERCENTAGE = re.compile(r"(\d{1,2}(?:\.\d{1,3})?)\s*%")
_MOST_PERCENT = 10


def _parse_percentage(value: object) -> float:
    """Return the share that a percentage is, 0 for "off"."""
    if value in ("off", 0):
        return 0.0
    match = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) <= _MOST_PERCENT:
        raise ValueError(f'{short(value)}; expected a percentage above 0% and at most {_MOST_PERCENT}%, or "off"')
    return float(match[1]) / 100


def _percentage_text(value: float) -> str:
    """Return the notation of `_parse_percentage`."""
    return f"{100 * value:.3g}%" if value else "off"


FilePath = Annotated[Path, BeforeValidator(_parse_path)]
WallTime = Annotated[int, PlainValidator(_parse_wall_time), PlainSerializer(_wall_time_text)]  # seconds
Percentage = Annotated[float, PlainValidator(_parse_percentage), PlainSerializer(_percentage_text)]  # as a share
PacketSize = Annotated[int, _above_zero(_bytes_to(MAX_WIRE_BYTES)), PlainSerializer(format_bytes)]
MessageSize = Annotated[int, _above_zero(_bytes_to(MAX_BUFFER_BYTES)), PlainSerializer(format_bytes)]
BufferSize = Annotated[int, _above_zero(_bytes_to(MAX_BUFFER_BYTES)), PlainSerializer(format_bytes)]
BufferSizeFromZero = Annotated[int, BeforeValidator(_bytes_to(MAX_BUFFER_BYTES)), PlainSerializer(format_bytes)]
BufferSizeOrAuto = Annotated[int, _above_zero(_bytes_to(MAX_BUFFER_BYTES), "auto"), _word_or("auto", format_bytes)]
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


class Section(BaseModel):
    """A section of the run file: immutable; unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def engine_settings(self, owner: type, keys: Container[str] | None = None) -> dict[str, Any]:
        """Return the settings of an engine class that the section sets, by name; "auto" leaves the engine's default.

        Args:
            owner: The class of the engine.
            keys: The keys of the section that have an effect; None = all.
        """
        given = [each for each in settings_of(owner) if each.is_given and (keys is None or each.key in keys)]
        values = {setting.name: getattr(self, setting.key, None) for setting in given}
        return {name: value for name, value in values.items() if value is not None and value != "auto"}


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
