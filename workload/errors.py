"""The error of the workload stage, and the exchange of values and errors between ranks."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nadi.inputs.errors import InputError

T = TypeVar("T")

NOBODY = sys.maxsize  # Value of WorkloadError.npu for errors that are in no trace; larger than any NPU's number
# Function that takes this rank's picklable value and returns the values of all ranks in rank order. All ranks call it
# the same number of times and in the same order, even without a value to share.
Exchange = Callable[[Any], list[Any]]


class WorkloadError(InputError):
    """The user's traces, groups or settings are wrong.

    The message is one line: file and node (or setting), value found, value expected.
    """

    def __init__(self, text: str, npu: int = NOBODY) -> None:
        super().__init__(text)
        self.npu = npu  # NPU whose trace is wrong; NOBODY if the error is in no trace


def first_of(errors: Iterable[WorkloadError]) -> WorkloadError:
    """Return the error of the NPU with the smallest number, so that several ranks report the same error as one rank.

    Args:
        errors: The errors of all ranks, at least one.
    """
    return min(errors, key=lambda error: error.npu)


def alone(value: T) -> list[T]:
    """Return the values of a run with one rank.

    Args:
        value: The value of the only rank.
    """
    return [value]


def agree(exchange: Exchange, work: Callable[[], T]) -> T:
    """Call `work` on every rank, and return this rank's result; after a failure all ranks raise the same error.

    Args:
        exchange: A function that gives all ranks the values of all.
        work: A function without arguments that may raise WorkloadError.
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
