"""Errors for wrong traces and group files."""

from collections.abc import Iterator
from contextlib import contextmanager

from nadi.inputs.errors import InputError

NOT_STRICT = "[workload] strict = false in the run file, or --set workload.strict=false"
"""Settings by which read_trace drops meaningless dependencies."""


class TraceError(InputError):
    """A trace or group file is wrong; one line has file, byte or node id, the value found, and the expected one."""


class StrictTraceError(TraceError):
    """Dependencies of a trace are meaningless, and strict=False would drop them."""

    def __init__(self, problem: str, drops: str) -> None:
        super().__init__(problem, drops)
        self.problem = problem  # file, node, what was found, what was expected
        self.drops = drops  # clause about what strict=False drops, such as "drops such dependencies"

    def __str__(self) -> str:
        """Name the key of a run file, which most commands that read traces strictly have."""
        return f"{self.problem}; {NOT_STRICT}, {self.drops}"


@contextmanager
def advising(option: str) -> Iterator[None]:
    """Name a command's own option in errors of strict reading.

    Args:
        option: The option, such as "--from chakra:strict=false".
    """
    try:
        yield
    except StrictTraceError as error:
        raise TraceError(f"{error.problem}; {option} {error.drops}") from error
