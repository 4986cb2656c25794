"""How large the plans of a collective will be, before they are made: what every algorithm counts of its own."""

from collections.abc import Iterable
from typing import NamedTuple

_BASE_BYTES, _STEP_BYTES, _LANE_BYTES = 12_000, 110, 800
"""What plans take at most, from when they are made until they are arrays: within a factor of 2 of what every algorithm
took, 2026-11-22 (tests/workload/test_extent.py)."""
_MESSAGES_OF_A_PAIR = 4
_CHAIN_ENDS = 2


class PlanExtent(NamedTuple):
    """Size of the plans of one collective.

    Attributes:
        steps: of all plans.
        lanes: of all plans, with those that have nothing to do.
        plans: 1 where everyone is alike, else one for each member and aggregator.
        widest: lanes of the plan that has the most, 0 = plans have equally many.
    """

    steps: int
    lanes: int
    plans: int = 1
    widest: int = 0

    @property
    def memory_bytes(self) -> int:
        """About what is taken at most while plans are made and become arrays."""
        return _BASE_BYTES + _STEP_BYTES * self.steps + _LANE_BYTES * self.lanes

    def in_parts(self, splits: int) -> "PlanExtent":
        """Of `splits` parts one after another: in each plan as many lanes, and one that waits for each part."""
        if splits == 1 or self.lanes == 0:
            return self
        width = self.widest or -(-self.lanes // self.plans)
        idle, joins = self.plans * width - self.lanes, width if width > 1 else 0
        return PlanExtent(
            splits * (self.steps + idle + self.plans * joins), splits * self.plans * (width + (joins > 0)), self.plans
        )


def total(extents: Iterable[PlanExtent], plans: int) -> PlanExtent:
    """Of several that share so many plans."""
    found = list(extents)
    widest = max(each.widest for each in found)
    return PlanExtent(sum(each.steps for each in found), sum(each.lanes for each in found), plans, widest)


def of_any(members: int) -> PlanExtent:
    """A bound for an algorithm that counts nothing: everybody sends to and receives from everybody, there and back."""
    return PlanExtent(_MESSAGES_OF_A_PAIR * members * (members - 1), members * members, members)


def of_chains(members: int, channels: int, chunks: int) -> PlanExtent:
    """Chains in which a member passes on each chunk while it receives the next; chunks: of each channel."""
    if members == 1:
        return PlanExtent(0, channels)
    steps = _CHAIN_ENDS * chunks + (members - _CHAIN_ENDS) * (chunks + 1)
    return PlanExtent(channels * steps, channels * members, members)
