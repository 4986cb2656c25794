"""Quantities as people read them: a few digits and a fitting unit. Exact texts are those of topologies.units."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from topologies.units import format_bytes

_DIGITS = 6
_DECIMALS = 3
_KI = 1024
_RATES = (("Tb/s", 10**12), ("Gb/s", 10**9), ("Mb/s", 10**6), ("kb/s", 10**3), ("b/s", 1))
_AMOUNTS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class Unit(NamedTuple):
    """A unit of time: its name, and its picoseconds."""

    name: str
    ps: int


NS, US, MS, S = Unit("ns", 10**3), Unit("µs", 10**6), Unit("ms", 10**9), Unit("s", 10**12)


def time_unit(times_ps: Iterable[float]) -> Unit:
    """The unit for a column or table of times: the largest that their median reaches; zeros do not count."""
    found = sorted(time_ps for time_ps in times_ps if time_ps > 0)
    return _unit_of(found[len(found) // 2]) if found else US


def in_unit(time_ps: float, unit: Unit) -> str:
    """A time in a unit, to three decimals; what is too small for these has two digits of its own."""
    value = time_ps / unit.ps
    small = 0 < value < 10 ** (1 - _DECIMALS)
    return f"{value:.{1 - math.floor(math.log10(value))}f}" if small else f"{value:,.{_DECIMALS}f}"


def time_text(time_ps: float) -> str:
    """A time in its own unit, to six digits: 65.9104 ms."""
    unit = _unit_of(time_ps)
    return f"{_number(time_ps / unit.ps)} {unit.name}" if time_ps else "0 s"


def rate_text(rate_bps: float) -> str:
    """A rate, to six digits: 25.6 Tb/s."""
    return _with_unit(rate_bps, _RATES)


def size_text(size_bytes: int) -> str:
    """The exact size: 64 KiB, 1 GiB, 1.5 MB, 12 B."""
    text = format_bytes(size_bytes)
    digits = text.rstrip("BKMGTPki")
    return f"{digits} {text[len(digits) :]}"


def buffer_text(size_bytes: int) -> str:
    """A size of a buffer: 64 KiB where it is a whole number below 1,024 of a binary unit, else as `amount_text`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        whole, rest = divmod(size_bytes, _KI**power)
        if rest == 0 and 0 < whole < _KI:
            return f"{whole} {unit}"
    return amount_text(size_bytes)


def amount_text(size_bytes: float) -> str:
    """Bytes that were moved, to two decimals: 33.58 MB."""
    for unit, size in _AMOUNTS:
        if size_bytes >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def _unit_of(time_ps: float) -> Unit:
    return next((unit for unit in (S, MS, US) if time_ps >= unit.ps), NS)


def _with_unit(value: float, units: Iterable[tuple[str, int]]) -> str:
    name, size = next((unit for unit in units if value >= unit[1]), ("b/s", 1))
    return f"{_number(value / size)} {name}"


def _number(value: float) -> str:
    """To six digits, without an exponent and without zeros at the end."""
    if value == 0:
        return "0"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(value)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def figure_text(form: str, value: float | None) -> str:
    """A figure as people read it, by its form (time, share, bytes, count, rate, or any other number); "-" is none."""
    if value is None or math.isnan(value):
        return "-"
    forms = {
        "time": time_text,
        "share": lambda share: f"{share:.1%}",
        "bytes": amount_text,
        "count": lambda count: f"{count:,.0f}",
        "rate": lambda rate: f"{rate:,.0f}",
    }
    return forms.get(form, lambda number: f"{number:,.4g}")(value)
