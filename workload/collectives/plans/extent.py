"""The size of a collective's plans before they are built, and the division of a plan into parts and stripes."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int32
from nadi.workload.collectives.plans.plan import AT_ONCE, IDLE, NONE, PLAIN, Attributes, Plan, Plans, Step

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
        """Return the extent of consecutive parts: each has all lanes, and one more lane that waits for the others.

        Args:
            splits: The number of equal parts of the buffer.
        """
        if splits == 1 or self.lanes == 0:
            return self
        width = self.widest or -(-self.lanes // self.plans)
        # Every member gets as many lanes as the widest plan, and each part of several lanes a lane that waits for them
        idle, joins = self.plans * width - self.lanes, width if width > 1 else 0
        return PlanExtent(
            splits * (self.steps + idle + self.plans * joins), splits * self.plans * (width + (joins > 0)), self.plans
        )


def total(extents: Iterable[PlanExtent], plans: int) -> PlanExtent:
    """Return the sum of several extents of the same plans.

    Args:
        extents: The extents to add up, of lanes that the same members have.
        plans: The number of plans.
    """
    parts = list(extents)
    widest = max(extent.widest for extent in parts)
    return PlanExtent(sum(extent.steps for extent in parts), sum(extent.lanes for extent in parts), plans, widest)


def of_any(members: int) -> PlanExtent:
    """Return a bound for an algorithm without `extent`: every member sends to and receives from every other, twice.

    Args:
        members: The number of members of the group.
    """
    return PlanExtent(_MESSAGES_OF_A_PAIR * members * (members - 1), members * members, members)


def of_chains(members: int, channels: int, chunks: int) -> PlanExtent:
    """Return the extent of chains that forward each chunk while the next one arrives.

    Args:
        members: The number of members of the group.
        channels: The number of parallel chains.
        chunks: The number of chunks per channel.
    """
    if members == 1:
        return PlanExtent(0, channels)
    # A member at an end only sends or only receives, a step per chunk. One inside receives chunk k and sends chunk k -
    # 1 in one step, so it has one step more than chunks.
    steps = _CHAIN_ENDS * chunks + (members - _CHAIN_ENDS) * (chunks + 1)
    return PlanExtent(channels * steps, channels * members, members)


# A collective in parts: the buffer is cut, and each part is a collective of its own, one after another.
#
# With several chains, that many parts run at a time: at each member, part s begins when part s - chains is done there.
# ASTRA-sim calls these numbers preferred-dataset-splits and active-chunks-per-dimension.


# Kinds in which each member owns a part of the buffer
OWNED = ("reduce-scatter", "scatter", "all-gather", "gather", "all-to-all")


def in_parts(plans: Plans, kind: str, splits: int, chains: int) -> Plans:
    """Return the plans of a collective in parts; each part is a collective of its own.

    Args:
        plans: The plans of one part.
        kind: The kind of collective, one of workload.KINDS.
        splits: The number of equal parts of the buffer.
        chains: The number of parts that run at a time.
    """
    width = max(len(plan) for plan in plans.plans)
    if splits == 1 or width == 0:
        return plans
    arrangements, row_of = _arrangements(plans, kind, splits)
    repeated = [_repeated(plan, width, splits, chains) for plan in plans.plans]
    attributes = [_attributes(plans, i, width, splits, chains, row_of) for i in range(len(plans.plans))]
    return plans._replace(plans=tuple(repeated), attributes=tuple(attributes), arrangements=tuple(arrangements))


def in_stripes(plans: Plans, kind: str, stripes: int) -> Plans:
    """Return the plans of equal stripes side by side, each with connections of its own.

    Connections at less than the line rate keep their numbers: all parts share them.

    Args:
        plans: The plans of one part.
        kind: The kind of collective, one of workload.KINDS.
        stripes: The number of equal stripes of the buffer.
    """
    if stripes == 1 or not any(plans.plans):
        return plans
    cut = in_parts(plans, kind, stripes, stripes)
    # Lanes come part by part: of six lanes in two stripes, lane * 2 // 6 is 0, 0, 0, 1, 1, 1. A connection number per
    # stripe keeps messages of different stripes apart, so that each can take a NIC of its own.
    attributes = [
        tuple(
            a._replace(connection=a.connection * stripes + lane * stripes // len(own)) if a.shares == 1 else a
            for lane, a in enumerate(own)
        )
        for own in cut.attributes
    ]
    return cut._replace(attributes=tuple(attributes))


def _repeated(lanes_of_part: Plan, width: int, splits: int, chains: int) -> Plan:
    """Return the lanes of all splits of one member; all members have `width` per split, as messages name the lane."""
    # chains: number of splits that run at a time.
    lanes: list[tuple[Step, ...]] = []
    ends = [AT_ONCE] * chains  # (lane, step) that ends each part; part s begins after part s - chains
    for _ in range(splits):
        # `ends` begins with as many entries as chains, so that ends[-chains] belongs to the part `chains` before this
        # one, or is AT_ONCE for the first parts
        base, after = len(lanes), ends[-chains]
        own = [*(steps or (IDLE,) for steps in lanes_of_part), *[(IDLE,)] * (width - len(lanes_of_part))]
        for steps in own:
            # Only the first step of a lane can be the first of its part: the others follow it in the lane, or wait for
            # such a lane
            first, *others = (step.moved(base) for step in steps)
            lanes.append((first.waiting(after) if first.dep_lane == NONE else first, *others))
        last = [(base + i, len(steps) - 1) for i, steps in enumerate(own)]
        if width > 1:
            lanes.append(tuple(IDLE.waiting(end) for end in last))
            # One lane of idle steps stands for "all lanes have ended", since a step waits for one other step only
            last = [(base + width, width - 1)]
        ends.append(last[0])
    return tuple(lanes)


def _attributes(
    plans: Plans, plan_number: int, width: int, splits: int, chains: int, row_of: dict[int, int]
) -> tuple[Attributes, ...]:
    """Return the attributes of the lanes of all splits of a plan; row_of: new row of each arrangement of a part."""
    # width: lanes of a part; chains: number of splits that run at a time.
    # if there are several lanes, one more waits for all
    idle = [PLAIN] * (width + (width > 1) - len(plans.plans[plan_number]))
    own = [*plans.attributes_of(plan_number), *idle]
    begin = [*(not steps or steps[0].dep_lane == NONE for steps in plans.plans[plan_number]), *(False for _ in idle)]
    phases = 1 + max(a.phase for row in range(len(plans.plans)) for a in plans.attributes_of(row))
    return tuple(
        a._replace(
            part=s * a.parts + a.part,
            parts=splits * a.parts,
            chunks=a.chunks or plans.chunks,
            phase=NONE if a.phase == NONE else s * phases + a.phase,
            arrangement=row_of[a.arrangement],
            begins=a.begins or (s >= chains and begins),
        )
        for s in range(splits)
        for a, begins in zip(own, begin, strict=True)
    )


def _arrangements(plans: Plans, kind: str, splits: int) -> tuple[list[Int32], dict[int, int]]:
    """Return the arrangements of the parts' lanes, a piece per split and owner, and the new row of each arrangement."""
    if kind not in OWNED and not plans.arrangements:
        return [], {NONE: NONE}
    owners = plans.members - plans.aggregators if kind in OWNED else 1
    # Without an arrangement, the pieces of a part are its owners in order
    of_part = {NONE: np.arange(owners, dtype=np.int32), **dict(enumerate(plans.arrangements))}
    arrangements, row_of = [], {}
    for row, arrangement in of_part.items():
        pieces_per_owner = len(arrangement) // owners
        place, piece = np.divmod(arrangement, pieces_per_owner)
        split = np.arange(splits, dtype=np.int32)[:, None]
        # In the whole buffer, an owner's piece of part s comes after its pieces of parts 0 .. s-1
        # For two owners and two splits: [0, 2, 1, 3]. Part 0 works on pieces 0 and 2, the first halves of both owners'
        # data, and part 1 on pieces 1 and 3.
        arrangements.append(((place * splits + split) * pieces_per_owner + piece).astype(np.int32).reshape(-1))
        row_of[row] = len(arrangements) - 1
    return arrangements, row_of
