"""Differences between values and that of the first run."""

from collections.abc import Sequence


def relative(values: Sequence[float | None]) -> list[float | None]:
    """Return each value over the first, minus 1; None where either is missing or only the first is 0."""
    return [_relative(values[0], value) for value in values]


def difference(values: Sequence[float | None]) -> list[float | None]:
    """Return each value minus the first; None where either is missing."""
    first = values[0]
    return [None if first is None or value is None else value - first for value in values]


def size(values: Sequence[float | None]) -> float:
    """Return the largest absolute difference from the first value, missing values being 0; rows are sorted by it."""
    first = values[0] or 0.0
    return max(abs((value or 0.0) - first) for value in values)


def _relative(first: float | None, value: float | None) -> float | None:
    if first is None or value is None or (first == 0 and value != 0):
        return None
    return value / first - 1 if first else 0.0
