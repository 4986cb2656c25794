"""Ranks that each build their own part of one program: what one has found, all get to know."""

from collections.abc import Callable
from typing import Any, TypeVar

from workload.errors import WorkloadError, first_of

T = TypeVar("T")

Exchange = Callable[[Any], list[Any]]
"""Takes this rank's value, which can be pickled, and returns the values of all ranks in rank order.

All ranks call it equally often and in the same order, also when one has nothing to say.
"""


def alone(value: T) -> list[T]:
    """The exchange of a run of one rank."""
    return [value]


def agree(exchange: Exchange, work: Callable[[], T]) -> T:
    """Do something on every rank, and return what came of it on this one.

    Raises:
        WorkloadError: work failed on a rank. All ranks raise the same error.
    """
    error = None
    try:
        result = work()
    except WorkloadError as found:
        error = found
    errors = [found for found in exchange(error) if found is not None]
    if errors:
        raise first_of(errors)
    return result
