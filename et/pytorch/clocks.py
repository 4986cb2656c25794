"""Clocks of ranks, and how long a collective's members waited for the last of them.

All members leave an all-reduce, all-gather, reduce-scatter, all-to-all or barrier at nearly the same moment, however
late one of them came. So the ends of the same collective on two ranks, on their own clocks, are apart by what the
clocks are: the median over all collectives that two ranks share. Ranks that share none are joined over others.

Members do not leave at the very same moment, and in the same order each time, so an offset that is not several times
as large as single collectives differ is not one of clocks; nor is one between processes of the same host.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from et.schema import CollectiveCommType

TOGETHER = frozenset(
    {
        CollectiveCommType.ALL_REDUCE,
        CollectiveCommType.ALL_GATHER,
        CollectiveCommType.REDUCE_SCATTER,
        CollectiveCommType.ALL_TO_ALL,
        CollectiveCommType.BARRIER,
    }
)
"""Kinds of which no member can leave before the last one has come."""


_TIMES_SPREAD = 4
_RESOLUTION_NS = 1000
"""Two times may be so far off, since Kineto counts microseconds."""


@dataclass(frozen=True, slots=True)
class CollectiveIntervals:
    """When a rank was in a collective, on its own clock."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class ClockOffsets:
    """What to add to a rank's times to have those of the first rank.

    Attributes:
        offset_ns: by rank.
        spread_ns: by rank, median distance of single collectives' offsets from it.
        collectives: by rank, how many the offset is the median of.
        unknown: ranks that share no collective with the others, taken as they are.
    """

    offset_ns: dict[int, int] = field(default_factory=dict)
    spread_ns: dict[int, int] = field(default_factory=dict)
    collectives: dict[int, int] = field(default_factory=dict)
    unknown: tuple[int, ...] = ()

    def believed(self, hosts: Mapping[int, str]) -> dict[int, int]:
        """The offsets that are taken: 0 where they are no larger than chance, or all ranks are on one host.

        Args:
            hosts: by rank the host's name, "" = not known.
        """
        if len(set(hosts.values())) == 1 and "" not in hosts.values():
            return dict.fromkeys(self.offset_ns, 0)
        return {
            rank: offset_ns if abs(offset_ns) > _TIMES_SPREAD * self.spread_ns[rank] else 0
            for rank, offset_ns in self.offset_ns.items()
        }


def estimate(ranks: Sequence[int], instances: Sequence[Mapping[int, CollectiveIntervals]]) -> ClockOffsets:
    """Find the offsets.

    Args:
        ranks: all of them; the clock of the first is everybody's.
        instances: collectives of kinds in TOGETHER, by rank when each was in it.
    """
    clocks = ClockOffsets({ranks[0]: 0}, {ranks[0]: 0}, {ranks[0]: 0})
    left = [rank for rank in ranks if rank != ranks[0]]
    while left:
        found = []
        for rank in left:
            apart = {
                known: [some[known].end_ns - some[rank].end_ns for some in instances if rank in some and known in some]
                for known in clocks.offset_ns
            }
            best = max(apart, key=lambda known: (len(apart[known]), -known))
            if apart[best]:
                found.append((rank, best, apart[best]))
        if not found:
            break
        for rank, known, some in found:
            middle = round(statistics.median(some))
            clocks.offset_ns[rank] = clocks.offset_ns[known] + middle
            clocks.spread_ns[rank] = round(statistics.median(abs(value - middle) for value in some))
            clocks.collectives[rank] = len(some)
            left.remove(rank)
    for rank in left:
        clocks.offset_ns[rank], clocks.spread_ns[rank], clocks.collectives[rank] = 0, 0, 0
    return ClockOffsets(clocks.offset_ns, clocks.spread_ns, clocks.collectives, tuple(left))


def waited_ns(
    kind: int, instance: Mapping[int, CollectiveIntervals], offset_ns: Mapping[int, int], root: int | None
) -> dict[int, int]:
    """How long each rank was in a collective before the last one it needs had come.

    A rank that leaves before that, as its clock has it, was not waiting for it as far as times tell: 0.

    Args:
        kind: CollectiveCommType.
        instance: by rank when it was in it.
        offset_ns: of the clocks.
        root: of a broadcast, reduce, gather or scatter, if it is known and there.
    """
    early = early_ns(kind, instance, offset_ns, root)
    waited = {}
    for rank, needed in _needed_ns(kind, instance, offset_ns, root).items():
        taken = instance[rank]
        waited[rank] = 0 if rank in early else min(needed - offset_ns[rank], taken.end_ns) - taken.start_ns
    return waited


def early_ns(
    kind: int, instance: Mapping[int, CollectiveIntervals], offset_ns: Mapping[int, int], root: int | None
) -> dict[int, int]:
    """By rank that leaves a collective before one that it needs has come, how long before; a sign of wrong clocks."""
    needed = _needed_ns(kind, instance, offset_ns, root)
    before = {rank: needed[rank] - taken.end_ns - offset_ns[rank] for rank, taken in instance.items()}
    return {rank: early for rank, early in before.items() if early > _RESOLUTION_NS}


def _needed_ns(
    kind: int, instance: Mapping[int, CollectiveIntervals], offset_ns: Mapping[int, int], root: int | None
) -> dict[int, int]:
    """By rank, when all had come whom it needs, itself among them."""
    came = {rank: taken.start_ns + offset_ns[rank] for rank, taken in instance.items()}
    if kind in TOGETHER:
        return dict.fromkeys(came, max(came.values()))
    if kind in {CollectiveCommType.BROADCAST, CollectiveCommType.SCATTER}:
        return {rank: max(at, came.get(root, at) if root is not None else at) for rank, at in came.items()}
    return {rank: max(came.values()) if rank == root else at for rank, at in came.items()}
