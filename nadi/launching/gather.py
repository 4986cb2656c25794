"""Exchange of values between the ranks of a run; all ranks call each function at the same point."""

from collections.abc import Callable
from typing import Any, NamedTuple

from workload.errors import Exchange, alone

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
