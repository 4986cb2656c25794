"""The errors that a wrong trace or group file raises."""

from collections.abc import Iterator
from contextlib import contextmanager

NOT_STRICT = "[workload] strict = false in the run file, or --set workload.strict=false"
"""What has read_trace drop dependencies that make no sense."""


class TraceError(ValueError):
    """A trace or group file is not what it should be.

    The text is one line: file, byte offset or node id, what was found, what was expected.
    """

    exit_code = 2


class StrictTraceError(TraceError):
    """Dependencies of a trace make no sense, and reading it with strict=False drops them.

    Attributes:
        problem: File, node, what was found, what was expected.
        drops: What reading with strict=False drops, as a clause: "drops such dependencies".
    """

    def __init__(self, problem: str, drops: str) -> None:
        super().__init__(problem, drops)
        self.problem, self.drops = problem, drops

    def __str__(self) -> str:
        """Name the key of a run file, which most commands that read traces strictly have."""
        return f"{self.problem}; {NOT_STRICT}, {self.drops}"


@contextmanager
def advising(option: str) -> Iterator[None]:
    """Name a command's own option in errors that say how to read a trace that is not strictly right.

    Args:
        option: The option, as the user writes it: "--from chakra:strict=false".

    Raises:
        TraceError: A StrictTraceError of the block, with the option in its text.
    """
    try:
        yield
    except StrictTraceError as error:
        raise TraceError(f"{error.problem}; {option} {error.drops}") from error
