"""The ranks of an MPI run: what one of them finds wrong all of them raise, so that none waits for the others.

Every exchange tells whether the rank is well. A rank that fails says so in place of its next exchange, and the others
raise what it says. That holds while all go through the same exchanges (`together`); inside the engine's windows a
failing rank ends the others through MPI_Abort.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nadi.launching.gather import RankGather


class AgreedError(Exception):
    """What all ranks raise because one of them found it.

    Attributes:
        exit_code: that of the first error.
        of_a_file: a file could not be read or written, the text is why.
    """

    agreed = True

    def __init__(self, text: str, exit_code: int, *, of_a_file: bool = False) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.of_a_file = of_a_file


def ranks_of(communicator: Any) -> RankGather:  # noqa: ANN401 - mpi4py is optional
    """The ranks of a communicator."""

    def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - whatever can be pickled
        return _agree(communicator, value, None)

    def gather(value: Any) -> list[Any] | None:  # noqa: ANN401 - whatever can be pickled
        _agree(communicator, None, None)
        gathered: list[Any] | None = communicator.gather(value)
        return gathered

    return RankGather(exchange, gather, communicator.Get_rank(), communicator.Get_size(), communicator)


@contextmanager
def together(ranks: RankGather) -> Iterator[None]:
    """A block in which all ranks do the same exchanges; all leave it well, or all raise.

    Raises:
        AgreedError: one of several ranks failed.
    """
    if ranks.communicator is None:
        yield
        return
    try:
        yield
    except AgreedError:
        raise
    except Exception as error:
        _agree(ranks.communicator, None, error)
        raise  # not reached: agreeing on an error raises it
    _agree(ranks.communicator, None, None)


def _agree(communicator: Any, value: Any, error: Exception | None) -> list[Any]:  # noqa: ANN401 - mpi4py is optional
    """All ranks' values; raises the error of the least rank that has one."""
    told = None if error is None else _told(error, communicator.Get_rank())
    found = communicator.allgather((value, told))
    for _, failure in found:
        if failure is not None:
            text, exit_code, of_a_file = failure
            raise AgreedError(text, exit_code, of_a_file=of_a_file) from error
    return [each for each, _ in found]


def _told(error: Exception, rank: int) -> tuple[str, int, bool]:
    """Text, exit code and whether it is of a file. What is not for the user to mend says on which rank it was."""
    if isinstance(error, OSError):
        return error.strerror or str(error), 1, True
    if hasattr(error, "exit_code"):
        return str(error), int(error.exit_code), False
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"rank {rank}: {type(error).__name__}: {error} ({where}); this is a defect", 1, False
