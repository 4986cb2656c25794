"""The error of this stage."""

import sys
from collections.abc import Iterable

NOBODY = sys.maxsize


class WorkloadError(ValueError):
    """The user's traces, groups or settings are wrong.

    The text is one line: file and node (or setting), what was found, what was expected.

    Attributes:
        npu: in whose trace it was found, NOBODY if in none.
    """

    exit_code = 2

    def __init__(self, text: str, npu: int = NOBODY) -> None:
        super().__init__(text)
        self.npu = npu


def first_of(errors: Iterable[WorkloadError]) -> WorkloadError:
    """Which of several errors to tell: that of the least NPU, so that all ranks tell what one alone would."""
    return min(errors, key=lambda error: error.npu)
