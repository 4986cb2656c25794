"""Ranks of an MPI run that fail together: all ranks raise an error of one rank, so that none waits for the others.

Every exchange carries the state of each rank. A rank that fails reports its error in its next exchange, and the others
raise that error. This requires that all ranks do the same exchanges (`together`); inside the engine's windows a failing
rank ends the others through MPI_Abort.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nadi.compiling import defect_text
from nadi.errors import exit_code_of
from nadi.inputs.errors import NadiError
from nadi.workload import Exchange, alone

# Function of this rank's value, which must be picklable; rank 0 gets the values of all ranks in rank order, others None
Gather = Callable[[Any], list[Any] | None]


class RankGather(NamedTuple):
    """This rank and its connections to the others."""

    exchange: Exchange  # Function that returns the values of all ranks on every rank
    gather: Gather  # Function that returns the values of all ranks on rank 0
    rank: int = 0  # Number of this rank
    size: int = 1  # Number of ranks
    communicator: Any = None  # Communicator of mpi4py, None = there are no other ranks


ALONE = RankGather(alone, alone)


class AgreedError(NadiError):
    """An error of one rank that all ranks raise."""

    agreed = True

    def __init__(self, text: str, exit_code: int, *, of_a_file: bool = False) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # exit code of the original error
        self.of_a_file = of_a_file  # True = a file could not be read or written, and the text is the reason


def ranks_of(communicator: Any) -> RankGather:  # noqa: ANN401 - mpi4py is optional
    """Return the ranks of an MPI communicator."""

    def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - whatever can be pickled
        return _exchange_or_raise(communicator, value, None)

    def gather(value: Any) -> list[Any] | None:  # noqa: ANN401 - whatever can be pickled
        _exchange_or_raise(communicator, None, None)
        gathered: list[Any] | None = communicator.gather(value)
        return gathered

    return RankGather(exchange, gather, communicator.Get_rank(), communicator.Get_size(), communicator)


@contextmanager
def together(ranks: RankGather) -> Iterator[None]:
    """Run a block with the same exchanges on all ranks; all ranks complete it, or all raise."""
    if ranks.communicator is None:
        yield
        return
    try:
        yield
    except AgreedError:
        raise
    except Exception as error:
        _exchange_or_raise(ranks.communicator, None, error)
        raise  # not reached: agreeing on an error raises it
    _exchange_or_raise(ranks.communicator, None, None)


def _exchange_or_raise(communicator: Any, value: Any, own_error: Exception | None) -> list[Any]:  # noqa: ANN401 - mpi4py is optional
    """Return the values of all ranks; raise the error of the lowest rank that has one."""
    own_failure = None if own_error is None else _failure(own_error, communicator.Get_rank())
    gathered = communicator.allgather((value, own_failure))
    for _, failure in gathered:
        if failure is not None:
            text, exit_code, of_a_file = failure
            raise AgreedError(text, exit_code, of_a_file=of_a_file) from own_error
    return [own_value for own_value, _ in gathered]


def _failure(error: Exception, rank: int) -> tuple[str, int, bool]:
    """Return the text, the exit code and whether the error concerns a file; a defect's text names rank and line."""
    if isinstance(error, OSError):
        return error.strerror or str(error), exit_code_of(error), True
    if hasattr(error, "exit_code"):
        return str(error), exit_code_of(error), False
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"rank {rank}: {defect_text(error)} ({where}); this is a defect", 1, False
