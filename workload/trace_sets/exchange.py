"""Exchange of values and errors between ranks that each build their own part of one program."""

from collections.abc import Callable
from typing import Any, TypeVar

from workload.errors import WorkloadError, first_of

T = TypeVar("T")

Exchange = Callable[[Any], list[Any]]
"""Function that takes this rank's picklable value and returns the values of all ranks in rank order.

All ranks call it the same number of times and in the same order, even without a value to share.
"""


def alone(value: T) -> list[T]:
    """Return the values of a run with one rank."""
    return [value]


def agree(exchange: Exchange, work: Callable[[], T]) -> T:
    """Call `work` on every rank, and return this rank's result.

    Raises:
        WorkloadError: If `work` failed on a rank; all ranks raise the same error.
    """
    error = None
    try:
        result = work()
    except WorkloadError as raised:
        error = raised
    errors = [raised for raised in exchange(error) if raised is not None]
    if errors:
        raise first_of(errors)
    return result
