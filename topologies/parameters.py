"""Parameters of topologies: the notation, checks and display of their values, one-line errors, counts of uplinks."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from nadi.inputs.limits import MAX_NODES
from nadi.inputs.units import format_rate, format_time, parse_delay, parse_link_rate, short
from nadi.topologies.dimension_routing import Dimension, format_dimensions, parse_dimensions
from nadi.topologies.graph import TopologyError

MAX_RATIO = 10**6  # maximum of an oversubscription; its inverse is the minimum
_RATIO = re.compile(r"[0-9]{0,9}\.?[0-9]{0,18}(?:[eE][+-]?[0-9]{1,2})?(?:/[0-9]{1,9})?")


class Parameters(BaseModel):
    """Base of every topology's parameters: immutable, unknown keys rejected. Each field has a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Form:
    """The notation of values of one kind: a word with an example, and the formatter of a default."""

    text: str  # word with an example
    show: Callable[[object], str] = str  # function that formats a default
    is_path: bool = False  # whether values are paths of files


def suggest(unknown: str, known_names: Iterable[str]) -> str:
    """Return a text with the known name nearest to an unknown one, if one is near, and all known names.

    Args:
        unknown: The name that the user wrote.
        known_names: All names that exist.
    """
    names = sorted(known_names)
    near = difflib.get_close_matches(unknown, names, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(names)}"


def parse_pairs(text: str, pairs_text: str, example: str = "ring:npus=8,rate=400Gbps") -> dict[str, str]:
    """Return the values by key of pairs_text, such as "rate=400Gbps,delay=1us" or "", a part of the text for messages.

    Raises TopologyError: a part is no key=value, or a key occurs twice.

    Args:
        text: The complete text of the user, for messages.
        pairs_text: The part with the pairs, "" for none.
        example: A text with parameters, for messages.
    """
    pairs: dict[str, str] = {}
    for part in pairs_text.split(",") if pairs_text.strip() else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value):
            raise TopologyError.at(text, f"{part!r} is no key=value", f"a form like {example}")
        if key in pairs:
            raise TopologyError.at(text, f"key {key!r} occurs twice", "it once")
        pairs[key] = value
    return pairs


def parse_count(value: object) -> int:
    """Return a whole number from 1 to the maximum number of nodes. Raises TopologyError: the value is anything else.

    Args:
        value: A whole number, or its text.
    """
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20 else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_NODES:
        raise TopologyError(f"{short(value)} is not a count; expected a whole number from 1 to {MAX_NODES}")
    return number


def parse_ratio(value: object) -> Fraction:
    """Return an exact ratio from 1/1000000 to 1000000, from 2, 1.5 or "1.5"; TopologyError for anything else.

    Args:
        value: A number or its text, also as a fraction such as "3/2".
    """
    text = short(value).strip("'")
    try:
        ratio = Fraction(text) if _RATIO.fullmatch(text) else Fraction(0)
    except (ValueError, ZeroDivisionError):
        ratio = Fraction(0)
    if isinstance(value, bool) or not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        raise TopologyError(f"{short(value)} is not a ratio; expected a number from 1/{MAX_RATIO} to {MAX_RATIO}")
    return ratio


def parse_sizes(value: object) -> tuple[int, ...]:
    """Return counts, fastest dimension first, from "4x4x4" or a list; TopologyError for anything else.

    Args:
        value: A text such as "4x4x4", or a list of whole numbers.
    """
    parts = value.split("x") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not parts:
        raise TopologyError(f"{value!r} is no list of sizes; expected a form like 4x4x4")
    return tuple(parse_count(part) for part in parts)


def parse_rates(value: object) -> tuple[int, ...]:
    """Return rates in bps, from "200GB/s_100GB/s" or a list. Raises TopologyError: an entry is no rate.

    Args:
        value: A text such as "200GB/s_100GB/s", or a list of such texts.
    """
    return tuple(parse_link_rate(part) for part in _entries(value))


def parse_times(value: object) -> tuple[int, ...]:
    """Return times in ps, from "50ns_2us" or a list. Raises TopologyError: an entry is no time.

    Args:
        value: A text such as "50ns_2us", or a list of such texts.
    """
    return tuple(parse_delay(part) for part in _entries(value))


def _entries(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else str(value).split("_")


def _join(show: Callable[..., str], separator: str) -> Callable[..., str]:
    return lambda values: separator.join(show(v) for v in values)


Count = Annotated[int, BeforeValidator(parse_count), Form("count")]
CountOrNone = Annotated[
    int, BeforeValidator(lambda value: 0 if str(value).strip() == "0" else parse_count(value)), Form("count")
]
Ratio = Annotated[Fraction, BeforeValidator(parse_ratio), Form("ratio")]
Rate = Annotated[int, BeforeValidator(parse_link_rate), Form("rate, as 400Gbps", format_rate)]
Time = Annotated[int, BeforeValidator(parse_delay), Form("time, as 500ns", format_time)]
Sizes = Annotated[tuple[int, ...], BeforeValidator(parse_sizes), Form("sizes, as 4x4x4", _join(str, "x"))]
Rates = Annotated[
    tuple[int, ...], BeforeValidator(parse_rates), Form("rates, as 200GB/s_50GB/s", _join(format_rate, "_"))
]
Times = Annotated[tuple[int, ...], BeforeValidator(parse_times), Form("times, as 50ns_2us", _join(format_time, "_"))]
Dimensions = Annotated[
    tuple[Dimension, ...],
    BeforeValidator(parse_dimensions),
    Form("dimensions, as Ring(4)_Switch(8)", format_dimensions),
]
FilePath = Annotated[str, Form("path", is_path=True)]
Name = Annotated[str, Form("name")]
Flag = Annotated[bool, Form("true or false", lambda value: str(value).lower())]


def uplink_count(
    arguments: Parameters, name: str, count_key: str, ratio_key: str, down_bps: int, uplink_bps: int
) -> int:
    """Return the number of switches above one: the given count, else that with down_bps = ratio x count x uplink_bps.

    Raises TopologyError: both are given, or the count is not whole; the text names the two keys.

    Args:
        arguments: The parameters of the topology.
        name: The name of the network, with which errors begin.
        count_key: The key of the parameter that holds the number of upper switches; its value None means not given.
        ratio_key: The key of the parameter that holds the oversubscription; its value None means 1.
        down_bps: The sum of the rates of one switch's links downwards, in bits per second.
        uplink_bps: The rate from one switch to each switch above it, in bits per second.
    """
    count: int | None = getattr(arguments, count_key)
    ratio: Fraction | None = getattr(arguments, ratio_key)
    if count is not None and ratio is not None:
        raise TopologyError.at(name, f"both {count_key} and {ratio_key} are given", "one of them")
    if count is not None:
        return count
    needed = down_bps / (ratio or Fraction(1)) / uplink_bps
    # exact fractions: in floating-point numbers 0.3 / 0.1 is 2.9999999999999996, which is no whole number
    if needed.denominator != 1:
        raise TopologyError.at(
            name, f"{ratio_key} = {ratio or 1} needs {float(needed):g} {count_key}", "a whole number"
        )
    return int(needed)
