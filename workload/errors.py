"""The error of the workload stage."""

import sys
from collections.abc import Iterable

NOBODY = sys.maxsize  # Value of WorkloadError.npu for errors that are in no trace; larger than any NPU's number


class WorkloadError(ValueError):
    """The user's traces, groups or settings are wrong.

    The message is one line: file and node (or setting), value found, value expected.

    Attributes:
        npu: NPU whose trace is wrong; NOBODY if the error is in no trace.
    """

    exit_code = 2

    def __init__(self, text: str, npu: int = NOBODY) -> None:
        super().__init__(text)
        self.npu = npu


def first_of(errors: Iterable[WorkloadError]) -> WorkloadError:
    """Return the error of the NPU with the smallest number, so that several ranks report the same error as one rank."""
    return min(errors, key=lambda error: error.npu)
