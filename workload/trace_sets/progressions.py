"""Short form of lists of numbers, for lists of NPUs that are nested arithmetic progressions.

A list consists of entries, each a number or a *progression* `{"first": f, "repeat": [[count, step], ...]}`: `count`
numbers with differences `step` that begin with f, nested so that the last pair of `repeat` changes fastest. [8 9 24 25]
is f = 8, [[2, 16], [2, 1]].
"""

import math
from collections.abc import Sequence

import numpy as np

from nadi.et.arrays import Int64

_SHORTEST = 3  # Minimum number of numbers of a progression


def shortened(numbers: Sequence[int]) -> list[object]:
    """Return a list of numbers as JSON: numbers and {"first", "repeat"} for arithmetic progressions."""
    values = np.asarray(numbers, np.int64)
    steps = _steps(values)
    if steps is not None and len(values) >= _SHORTEST:
        return [_entry(int(values[0]), steps)]
    entries: list[object] = []
    at = 0
    while at < len(values):
        length = _run(values[at:])
        if length >= _SHORTEST:
            entries.append(_entry(int(values[at]), [[length, int(values[at + 1] - values[at])]]))
        else:
            length = 1
            entries.append(int(values[at]))
        at += length
    return entries


def numbers_of(entries: object, limit: int) -> Int64:
    """Return numbers from entries as parsed from JSON: at most `limit` of them, and each below it in absolute value."""
    if not isinstance(entries, list):
        raise ValueError(f"found {_short(entries)}, expected a list of numbers and progressions")  # noqa: TRY004
    parts = [np.zeros(0, np.int64)]
    for entry in entries:
        parts.append(_numbers(entry, limit))
        if sum(map(len, parts)) > limit:
            raise ValueError(f"more than {limit} numbers, expected at most so many")
    return np.concatenate(parts)


def _entry(first: int, steps: list[list[int]]) -> dict[str, object]:
    return {"first": first, "repeat": steps}


def _run(values: Int64) -> int:
    """Return the length of the arithmetic progression at the beginning of the values."""
    if len(values) < 2:
        return len(values)
    breaks = np.flatnonzero(np.diff(values) != values[1] - values[0])
    return int(breaks[0]) + 1 if len(breaks) else len(values)


def _steps(values: Int64) -> list[list[int]] | None:
    """Return [count, step] of nested progressions with these values, the last changing fastest; None without any."""
    if len(values) <= 1:
        return [] if len(values) else None
    length = _run(values)
    if len(values) % length:
        return None
    rows = values.reshape(-1, length)
    if np.any(rows - rows[:, :1] != rows[0] - rows[0, 0]):
        return None
    outer = _steps(rows[:, 0])
    return None if outer is None else [*outer, [length, int(values[1] - values[0])]]


def _numbers(entry: object, limit: int) -> Int64:
    """Return the numbers, all below a limit, of one entry of a shortened list: a number or a "first" with "repeat"."""
    if _is_number(entry, limit):
        return np.array([entry], np.int64)
    if type(entry) is int:
        raise ValueError(f"found {entry}, expected a number below {limit}")
    if not isinstance(entry, dict) or set(entry) != {"first", "repeat"}:
        raise ValueError(f'found {_short(entry)}, expected a number or {{"first": 0, "repeat": [[2, 1]]}}')
    first, repeat = entry["first"], entry["repeat"]
    if not _is_number(first, limit) or not isinstance(repeat, list) or not all(_is_pair(p, limit) for p in repeat):
        raise ValueError(f"found {_short(entry)}, expected numbers below {limit} and pairs [count, step]")
    if math.prod(count for count, _ in repeat) > limit:
        raise ValueError(f"found {_short(entry)}, expected at most {limit} numbers")
    values = np.array([first], np.int64)
    for count, step in repeat:
        values = (values[:, None] + np.arange(count) * step).reshape(-1)
    return values


def _is_pair(pair: object, most: int) -> bool:
    """Return whether a JSON value is [count, step] of a progression of numbers below a limit."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    count, step = pair
    return type(count) is int and 1 <= count <= most and _is_number(step, most)


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and -most < value < most


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."
