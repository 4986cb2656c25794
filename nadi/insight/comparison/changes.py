"""How far values are from those of the first run."""

from collections.abc import Sequence


def relative(values: Sequence[float | None]) -> list[float | None]:
    """Each value over the first, less 1; None where either is missing, or the first is 0 and the other is not."""
    return [_relative(values[0], value) for value in values]


def difference(values: Sequence[float | None]) -> list[float | None]:
    """Each value less the first; None where either is missing."""
    first = values[0]
    return [None if first is None or value is None else value - first for value in values]


def size(values: Sequence[float | None]) -> float:
    """The greatest distance from the first value, what is missing counts as 0: by this rows are ranked."""
    first = values[0] or 0.0
    return max(abs((value or 0.0) - first) for value in values)


def _relative(first: float | None, value: float | None) -> float | None:
    if first is None or value is None or (first == 0 and value != 0):
        return None
    return value / first - 1 if first else 0.0
