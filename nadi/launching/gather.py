"""Exchange of values between the ranks of a run; all ranks call each function at the same point."""

from collections.abc import Callable
from typing import Any, NamedTuple

from workload.errors import Exchange, alone

Gather = Callable[[Any], list[Any] | None]
"""Function of this rank's value, which must be picklable; rank 0 gets the values of all ranks in rank order, others
None."""


class RankGather(NamedTuple):
    """This rank and its connections to the others.

    Attributes:
        exchange: Function that returns the values of all ranks on every rank.
        gather: Function that returns the values of all ranks on rank 0.
        rank: Number of this rank.
        size: Number of ranks.
        communicator: Communicator of mpi4py, None = there are no other ranks.
    """

    exchange: Exchange
    gather: Gather
    rank: int = 0
    size: int = 1
    communicator: Any = None


ALONE = RankGather(alone, alone)
