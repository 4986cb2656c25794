"""Rounded quantities with a fitting unit, for people to read; `inputs.units` formats exact ones."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from nadi.inputs.units import KIB, PS_PER_MS, PS_PER_NS, PS_PER_S, PS_PER_US, format_bytes

_DIGITS = 6
_DECIMALS = 3
_RATES = (("Tb/s", 10**12), ("Gb/s", 10**9), ("Mb/s", 10**6), ("kb/s", 10**3), ("b/s", 1))
_AMOUNTS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class TimeUnit(NamedTuple):
    """A unit of time: its name and its length in picoseconds."""

    name: str
    ps: int


NS, US, MS, S = TimeUnit("ns", PS_PER_NS), TimeUnit("µs", PS_PER_US), TimeUnit("ms", PS_PER_MS), TimeUnit("s", PS_PER_S)


def time_unit(times_ps: Iterable[float]) -> TimeUnit:
    """Return the unit for a column or table of times: the largest that the median of the nonzero times reaches.

    Args:
        times_ps: The times of the column in picoseconds.
    """
    nonzero = sorted(time_ps for time_ps in times_ps if time_ps > 0)
    return next((unit for unit in (S, MS, US) if nonzero[len(nonzero) // 2] >= unit.ps), NS) if nonzero else US


def in_unit(time_ps: float, unit: TimeUnit) -> str:
    """Return a time in a unit with three decimals, or with two significant digits if it is too small for these.

    Args:
        time_ps: The time in picoseconds.
        unit: The unit, as `time_unit` returns it.
    """
    value = time_ps / unit.ps
    small = 0 < value < 10 ** (1 - _DECIMALS)
    return f"{value:.{1 - math.floor(math.log10(value))}f}" if small else f"{value:,.{_DECIMALS}f}"


def time_text(time_ps: float) -> str:
    """Return a time in its largest unit with six digits, such as "65.9104 ms".

    Args:
        time_ps: The time in picoseconds.
    """
    unit = next((unit for unit in (S, MS, US) if time_ps >= unit.ps), NS)
    return f"{_number(time_ps / unit.ps)} {unit.name}" if time_ps else "0 s"


def rate_text(rate_bps: float) -> str:
    """Return a rate with six digits, such as "25.6 Tb/s".

    Args:
        rate_bps: The rate in bits per second.
    """
    name, size = next((unit for unit in _RATES if rate_bps >= unit[1]), _RATES[-1])
    return f"{_number(rate_bps / size)} {name}"


def size_text(size_bytes: int) -> str:
    """Return the exact size, such as "64 KiB", "1 GiB", "1.5 MB" or "12 B".

    Args:
        size_bytes: The size in bytes.
    """
    text = format_bytes(size_bytes)
    digits = text.rstrip("BKMGTPki")
    return f"{digits} {text[len(digits) :]}"


def buffer_text(size_bytes: int) -> str:
    """Return a buffer size in a binary unit if that is a whole number below 1,024 ("64 KiB"), else `amount_text`.

    Args:
        size_bytes: The size in bytes.
    """
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1):
        whole, rest = divmod(size_bytes, KIB**power)
        if rest == 0 and 0 < whole < KIB:
            return f"{whole} {unit}"
    return amount_text(size_bytes)


def amount_text(size_bytes: float) -> str:
    """Return an amount of data with two decimals, such as "33.58 MB".

    Args:
        size_bytes: The amount in bytes.
    """
    for unit, size in _AMOUNTS:
        if size_bytes >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def _number(value: float) -> str:
    """Return a number with six digits, without an exponent and without trailing zeros."""
    if value == 0:
        return "0"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(value)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def figure_text(form: str, value: float | None) -> str:
    """Return a figure formatted by its form (time, share, bytes, count, rate, or another number); "-" if missing.

    Args:
        value: The value in the base unit of its form; None if it is missing.
        form: The kind of quantity: time, share, bytes, count, rate, or another word for a plain number.
    """
    if value is None or math.isnan(value):
        return "-"
    whole, share = "{:,.0f}".format, "{:.1%}".format
    forms = {"time": time_text, "share": share, "bytes": amount_text, "count": whole, "rate": whole}
    return forms.get(form, "{:,.4g}".format)(value)
