"""How the ranks of a run bring together what each has of it: every function here is called by all of them at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

from workload.trace_sets.exchange import Exchange, alone

Gather = Callable[[Any], list[Any] | None]
"""Takes this rank's value, which can be pickled; rank 0 gets the values of all ranks in rank order, others None."""


class RankGather(NamedTuple):
    """What a rank can say to the others.

    Attributes:
        exchange: to all of them.
        gather: to rank 0.
        rank: its own number.
        size: how many ranks there are.
        communicator: of mpi4py, None = no other ranks.
    """

    exchange: Exchange
    gather: Gather
    rank: int = 0
    size: int = 1
    communicator: Any = None


ALONE = RankGather(alone, alone)
