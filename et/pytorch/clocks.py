"""Clocks of ranks, and the time that members of a collective waited for the last one.

All members leave an all-reduce, all-gather, reduce-scatter, all-to-all or barrier at nearly the same moment, however
late one of them arrived. So the ends of the same collective on two ranks, each on its own clock, differ by the offset
of the clocks. The offset is the median over all collectives that two ranks share. Ranks without any use other ranks.

Members do not leave at exactly the same moment, and may leave in the same order each time. An offset therefore counts
only if it is several times the spread of single collectives; between processes of the same host it never counts.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nadi.et.pytorch.comms import Comm
from nadi.et.pytorch.kineto import RESOLUTION_NS
from nadi.et.schema import CollectiveCommType as Kind

# Kinds that no member can leave before the last one has arrived
TOGETHER = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.BARRIER})
_MIN_OFFSET_OF_SPREAD = 4  # smallest offset that counts, in spreads of single collectives; a choice for Nadi


@dataclass(frozen=True)
class ClockOffsets:
    """Offsets that convert a rank's times to the clock of the first rank."""

    offset_ns: dict[int, int] = field(default_factory=dict)  # offset of each rank
    spread_ns: dict[int, int] = field(default_factory=dict)  # median distance of single offsets from it
    collectives: dict[int, int] = field(default_factory=dict)  # number of collectives behind the rank's offset
    unknown: tuple[int, ...] = ()  # ranks that share no collective with the others; their times are used unchanged

    def significant(self, host_of_rank: Mapping[int, str]) -> dict[int, int]:
        """Return the offset to apply to each rank's times; 0 where it may be chance, or if all ranks are on one host.

        Args:
            host_of_rank: The name of the machine of each rank, "" = unknown.
        """
        if len(set(host_of_rank.values())) == 1 and "" not in host_of_rank.values():
            return dict.fromkeys(self.offset_ns, 0)
        return {
            rank: offset_ns if abs(offset_ns) > _MIN_OFFSET_OF_SPREAD * self.spread_ns[rank] else 0
            for rank, offset_ns in self.offset_ns.items()
        }


def estimate(ranks: Sequence[int], collectives: Sequence[Mapping[int, Comm]]) -> ClockOffsets:
    """Estimate the offsets of the ranks' clocks.

    Args:
        ranks: The ranks; offsets convert to the clock of the first one.
        collectives: The collectives of kinds in TOGETHER, each as the call of every member with its times.
    """
    clocks = ClockOffsets({ranks[0]: 0}, {ranks[0]: 0}, {ranks[0]: 0})
    left = [rank for rank in ranks if rank != ranks[0]]
    while left:
        # Ranks of one round do not count for each other, so that the result does not depend on the order of ranks
        found = []
        for rank in left:
            # The differences to each rank whose offset is known
            apart = {
                known: [
                    instance[known].end_ns - instance[rank].end_ns
                    for instance in collectives
                    if rank in instance and known in instance
                ]
                for known in clocks.offset_ns
            }
            # More collectives give a more reliable median
            best = max(apart, key=lambda known: (len(apart[known]), -known))
            if apart[best]:
                found.append((rank, best, apart[best]))
        if not found:
            break
        for rank, known, differences in found:
            middle = round(statistics.median(differences))
            clocks.offset_ns[rank] = clocks.offset_ns[known] + middle
            clocks.spread_ns[rank] = round(statistics.median(abs(value - middle) for value in differences))
            clocks.collectives[rank] = len(differences)
            left.remove(rank)
    for rank in left:
        clocks.offset_ns[rank], clocks.spread_ns[rank], clocks.collectives[rank] = 0, 0, 0
    return ClockOffsets(clocks.offset_ns, clocks.spread_ns, clocks.collectives, tuple(left))


def waited_and_early_ns(
    kind: int, instance: Mapping[int, Comm], offset_ns: Mapping[int, int], root: int | None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return how long each rank waited in a collective for the last rank that it needs, and who left too early.

    Ranks that leave before that arrival show that clocks are wrong: their waiting cannot be determined and counts as 0,
    and the second result has how long before they leave.

    Args:
        kind: The kind of the collective.
        instance: The call of each rank, with its times on the rank's own clock.
        offset_ns: The nanoseconds to add to each rank's times.
        root: The root's rank in a broadcast, reduce, gather or scatter; None if it is unknown.
    """
    waited, early = {}, {}
    for rank, needed_ns in _needed_ns(kind, instance, offset_ns, root).items():
        interval, own_needed_ns = instance[rank], needed_ns - offset_ns[rank]
        waited[rank] = min(own_needed_ns, interval.end_ns) - interval.start_ns
        if own_needed_ns - interval.end_ns > RESOLUTION_NS:
            waited[rank], early[rank] = 0, own_needed_ns - interval.end_ns
    return waited, early


def _needed_ns(
    kind: int, call_of_rank: Mapping[int, Comm], offset_ns: Mapping[int, int], root_rank: int | None
) -> dict[int, int]:
    """Return, by rank, when all ranks that it needs had begun the call; `offset_ns` is added to each rank's times."""
    arrived_ns = {rank: taken.start_ns + offset_ns[rank] for rank, taken in call_of_rank.items()}
    if kind in TOGETHER:
        return dict.fromkeys(arrived_ns, max(arrived_ns.values()))
    if kind in {Kind.BROADCAST, Kind.SCATTER}:
        return {
            rank: max(at, arrived_ns.get(root_rank, at) if root_rank is not None else at)
            for rank, at in arrived_ns.items()
        }
    return {rank: max(arrived_ns.values()) if rank == root_rank else at for rank, at in arrived_ns.items()}
