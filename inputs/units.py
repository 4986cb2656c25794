"""Factors between units, and parsing and formatting of rates, times, sizes and compute rates in the notation of users.

Decimal prefixes (k, M, G, T, P) are powers of 1000, binary ones (Ki, Mi, Gi, Ti, Pi) powers of 1024; `b` is a bit and
`B` a byte. All arithmetic is exact: a value that is no whole number of the base unit is an error, never rounded.
The engine, which does not import this folder, has its factors in pdes/core/state.py.
"""

import re
from fractions import Fraction
from typing import TypeGuard

from nadi.inputs.errors import InputError
from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_DELAY_PS, Bounds, beyond

PS_PER_NS = 10**3
PS_PER_US = 10**6
PS_PER_MS = 10**9
PS_PER_S = 10**12
US_PER_S = 10**6
NS_PER_S = 10**9
BITS_PER_BYTE = 8
# picoseconds that a byte takes at 1 bit/s: divided by a rate in bit/s, the picoseconds per byte at that rate. It is a
# float because products with int64 byte counts would overflow
PS_PER_BYTE_AT_1_BPS = float(BITS_PER_BYTE * PS_PER_S)
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
"""The unit in which Nadi shows GPU memory: HBM has binary sizes, so an "80 GB" A100 has 81,920 MiB in nvidia-smi."""


GBPS = 10**9  # bits per second of 1 Gbps
NS = 10**3  # picoseconds of 1 ns
_PREFIX = (
    {"": 1} | {p: 1000**i for i, p in enumerate("kMGTP", 1)} | {f"{p}i": 1024**i for i, p in enumerate("KMGTP", 1)}
)
_PREFIX["K"] = 1000
_TIME_PS = {"ps": 1, "ns": PS_PER_NS, "us": PS_PER_US, "µs": PS_PER_US, "ms": PS_PER_MS, "s": PS_PER_S}
_DECIMAL = r"(?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,2})?"
_NUMBER = rf"\s*+([0-9]++\.(?![0-9])|{_DECIMAL})\s*+"
_RATE = re.compile(_NUMBER + r"([kKMGTP]?i?)(b|bit|B)(?:ps|/s)\s*")
_BYTES = re.compile(_NUMBER + r"([kKMGTP]?i?)B\s*")
_TIME = re.compile(_NUMBER + r"(ps|ns|us|µs|ms|s)\s*")
_FLOPS = re.compile(_NUMBER + r"([kMGTP]?)(?:FLOPS|FLOP/s|flops|flop/s)\s*")
MAX_FLOPS = 1e24  # maximum floating-point operations per second of one accelerator
_LIMIT = 2**63
_LONGEST_TEXT = 60


def parse_rate(text: object) -> int:
    """Return bits per second, from "400Gbps", "50GiB/s"; InputError for 0, fractions, and beyond 63 bits.

    Args:
        text: The text of the user; a value of another type is refused.
    """
    match = _RATE.fullmatch(text) if _isshort(text) else None
    if match is None or match[2] not in _PREFIX:
        raise InputError(f"{short(text)} is not a rate; expected a number and a unit, as 400Gbps or 50GB/s")
    bps = _whole(text, Fraction(match[1]) * _PREFIX[match[2]] * (8 if match[3] == "B" else 1), "bit per second")
    if bps == 0:
        raise InputError(f"rate {text!r} is zero; expected more than 0")
    return bps


def parse_link_rate(text: object) -> int:
    """Return the bits per second of a link; InputError if the text is no rate, or out of the bounds of links.

    Args:
        text: The text of the user; a value of another type is refused.
    """
    return parse_rate_within(text, LINK_RATE_BPS)


def parse_rate_within(text: object, bounds: Bounds) -> int:
    """Return bits per second within bounds; InputError if the text is no rate, or out of bounds.

    Args:
        text: The text of the user; a value of another type is refused.
        bounds: The smallest and the largest rate in bits per second.
    """
    rate_bps = parse_rate(text)
    if beyond(rate_bps, bounds):
        raise InputError(f"rate {text!r}; expected {format_rate(bounds.minimum)} to {format_rate(bounds.maximum)}")
    return rate_bps


def parse_delay(text: object) -> int:
    """Return the delay of a link or switch in ps; InputError if the text is no time, or above the maximum delay.

    Args:
        text: The text of the user, or 0.
    """
    return parse_time_within(text, LONGEST_DELAY_PS)


def parse_time_within(text: object, longest_ps: int) -> int:
    """Return picoseconds up to `longest_ps`; InputError if the text is no time, or a longer one.

    Args:
        text: The text of the user, or 0.
        longest_ps: The longest time that is allowed, in picoseconds.
    """
    time_ps = parse_time(text)
    if time_ps > longest_ps:
        raise InputError(f"time {text!r}; expected at most {format_time(longest_ps)}")
    return time_ps


def parse_time(text: object) -> int:
    """Return picoseconds, from "1us", "0.0005ms" or 0; InputError for fractions of 1 ps and beyond 63 bits.

    Args:
        text: The text of the user, or 0.
    """
    if text == "0" or (type(text) is int and text == 0):
        return 0
    match = _TIME.fullmatch(text) if _isshort(text) else None
    if match is None:
        raise InputError(f"{short(text)} is not a time; expected a number >= 0 and a unit, as 500ns or 1us")
    return _whole(text, Fraction(match[1]) * _TIME_PS[match[2]], "ps")


def parse_bytes(text: object) -> int:
    """Return bytes, from "64KiB", "1MB", "512B" or a whole number; InputError for fractions and beyond 63 bits.

    Args:
        text: The text of the user, or a whole number of bytes.
    """
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text < _LIMIT:
        return text
    if _isshort(text) and text.strip().isdecimal():
        return _whole(text, Fraction(text), "byte")
    match = _BYTES.fullmatch(text) if _isshort(text) else None
    if match is None or match[2] not in _PREFIX:
        raise InputError(f"{short(text)} is not a size; expected a number >= 0 and a unit, as 64KiB or 1MB")
    return _whole(text, Fraction(match[1]) * _PREFIX[match[2]], "byte")


def parse_bytes_within(text: object, maximum: int) -> int:
    """Return bytes up to `maximum`. Raises InputError: the text is no size, or a larger one.

    Args:
        text: The text of the user, or a whole number of bytes.
        maximum: The largest size that is allowed, in bytes.
    """
    size_bytes = parse_bytes(text)
    if size_bytes > maximum:
        raise InputError(f"size {text!r}; expected at most {format_bytes(maximum)}")
    return size_bytes


def parse_flops(text: object) -> float:
    """Return operations per second, from "312TFLOPS" or "9.89e14FLOP/s"; InputError for 0 and beyond 10^24.

    Args:
        text: The text of the user; a value of another type is refused.
    """
    match = _FLOPS.fullmatch(text) if _isshort(text) else None
    rate = float(match[1]) * _PREFIX[match[2]] if match else 0.0
    if not 0 < rate <= MAX_FLOPS:
        raise InputError(
            f"{short(text)} is not a compute rate; expected a number > 0, at most {MAX_FLOPS:g}, and a unit, "
            "as 312TFLOPS"
        )
    return rate


def format_flops(rate: float) -> str:
    """Return a compute rate in the notation of `parse_flops`: 312TFLOPS.

    Args:
        rate: The rate in floating-point operations per second.
    """
    return f"{rate / 1e12:g}TFLOPS"


def format_rate(rate_bps: int) -> str:
    """Return the shortest exact text of a rate in the notation of `parse_rate`: 400Gbps, 429.4967296Gbps.

    Args:
        rate_bps: The rate in bits per second.
    """
    return _decimal(rate_bps, {"Tbps": 10**12, "Gbps": 10**9, "Mbps": 10**6, "kbps": 10**3, "bps": 1})


def format_time(time_ps: int) -> str:
    """Return the exact text of a time in the notation of `parse_time`: 1us, 936.25ns.

    Args:
        time_ps: The time in picoseconds.
    """
    return _decimal(time_ps, {"s": PS_PER_S, "ms": PS_PER_MS, "us": PS_PER_US, "ns": PS_PER_NS, "ps": 1})


def format_bytes(size_bytes: int) -> str:
    """Return the exact text of a size: in binary units if it is a multiple of one (64KiB), else decimal (1.5MB).

    Args:
        size_bytes: The size in bytes.
    """
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _PREFIX[unit[:2]] == 0:
            return f"{size_bytes // _PREFIX[unit[:2]]}{unit}"
    return _decimal(size_bytes, {"PB": 10**15, "TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1})


def _isshort(text: object) -> TypeGuard[str]:
    """Return whether a value is text short enough to parse: parsing unlimited digits takes unlimited time."""
    return isinstance(text, str) and len(text) <= _LONGEST_TEXT


def short(value: object) -> str:
    """Return a value as an error message quotes it.

    Args:
        value: The value to quote, of any type.
    """
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _whole(text: object, value: Fraction, unit: str) -> int:
    """Return a value that is a whole number; InputError, which quotes `text`, for fractions and beyond 63 bits."""
    if value.denominator != 1:
        raise InputError(f"{text!r} is no whole number of units of 1 {unit}")
    if value >= _LIMIT:
        raise InputError(f"{text!r} is too large; expected less than 2^63 times 1 {unit}")
    return int(value)


def _decimal(value: int, unit_sizes: dict[str, int]) -> str:
    """Return `value` in the largest unit that it reaches, without trailing zeros; unit_sizes: size by name."""
    unit = next(
        (u for u, size in unit_sizes.items() if value >= size), next(u for u, size in unit_sizes.items() if size == 1)
    )
    whole, part = divmod(value, unit_sizes[unit])
    digits = str(part).rjust(len(str(unit_sizes[unit])) - 1, "0").rstrip("0") if part else ""
    return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
