"""The number of steps and lanes of a collective's plans, computed before the plans are built."""

from collections.abc import Iterable
from typing import NamedTuple

# Peak memory of plans while they are built and packed into arrays: within a factor of 2 of the measured use of every
# algorithm on 2026-11-22, see tests/workload/test_extent.py
_BASE_BYTES, _STEP_BYTES, _LANE_BYTES = 12_000, 110, 800
_MESSAGES_OF_A_PAIR = 4
_CHAIN_ENDS = 2


class PlanExtent(NamedTuple):
    """The size of the plans of one collective."""

    steps: int  # number of steps of all plans
    lanes: int  # number of lanes of all plans, empty lanes included
    plans: int = 1  # number of plans: 1 if all members share one, else one per member and aggregator
    widest: int = 0  # maximum number of lanes of a plan, 0 = all plans have equally many

    @property
    def memory_bytes(self) -> int:
        """Approximate peak memory in bytes while plans are built and packed."""
        return _BASE_BYTES + _STEP_BYTES * self.steps + _LANE_BYTES * self.lanes

    def in_parts(self, splits: int) -> "PlanExtent":
        """Return the extent of `splits` consecutive parts: each has all lanes, and one that waits for the others."""
        if splits == 1 or self.lanes == 0:
            return self
        width = self.widest or -(-self.lanes // self.plans)
        idle, joins = self.plans * width - self.lanes, width if width > 1 else 0
        return PlanExtent(
            splits * (self.steps + idle + self.plans * joins), splits * self.plans * (width + (joins > 0)), self.plans
        )


def total(extents: Iterable[PlanExtent], plans: int) -> PlanExtent:
    """Return the sum of several extents of the same plans; plans: number of plans."""
    parts = list(extents)
    widest = max(extent.widest for extent in parts)
    return PlanExtent(sum(extent.steps for extent in parts), sum(extent.lanes for extent in parts), plans, widest)


def of_any(members: int) -> PlanExtent:
    """Return a bound for an algorithm without `extent`: every member sends to and receives from every other, twice."""
    return PlanExtent(_MESSAGES_OF_A_PAIR * members * (members - 1), members * members, members)


def of_chains(members: int, channels: int, chunks: int) -> PlanExtent:
    """Return the extent of chains that forward each chunk while the next arrives; chunks: number per channel."""
    if members == 1:
        return PlanExtent(0, channels)
    steps = _CHAIN_ENDS * chunks + (members - _CHAIN_ENDS) * (chunks + 1)
    return PlanExtent(channels * steps, channels * members, members)
