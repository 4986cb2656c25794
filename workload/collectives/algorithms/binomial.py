"""Binomial tree: each member that has the data sends it to one more, so that their number doubles.

Reduce and gather are the tree backwards; scatter and gather move only the data of the members below (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4). The parent of
member m is m without its lowest set bit; its subtree contains its number with any of the bits below that bit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from inputs.units import PS_PER_S
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Lane, Plans, each_its_own

NAME = "binomial"
KINDS = ("broadcast", "reduce", "scatter", "gather")
ONE_WAY = True


class BinomialBranch(NamedTuple):
    """A child and its subtree: members child .. child + size - 1."""

    child: int
    size: int


def parent(member: int) -> int:
    """Return the parent of a member other than 0."""
    return member & (member - 1)


def branches(member: int, members: int) -> list[BinomialBranch]:
    """Return the subtrees of a member's children, the largest first."""
    below = member & -member if member else 1 << (members - 1).bit_length()
    subtrees = []
    while below > 1:
        below >>= 1
        if member + below < members:
            subtrees.append(BinomialBranch(member + below, min(below, members - member - below)))
    return subtrees


def plan(kind: str, members: int) -> Plans:
    """Return lanes that receive, then send to branches, the largest first; or that receive from branches, then send."""
    in_parts = kind in {"scatter", "gather"}
    make = _outwards if kind in {"broadcast", "scatter"} else _inwards
    lanes = (make(member, members, in_parts=in_parts) for member in range(members))
    return each_its_own(members if in_parts else 1, lanes)


def extent(kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`; inwards, inner members have two lanes."""
    inner = max(0, members - 2) // 2 if kind in {"reduce", "gather"} else 0
    return PlanExtent(2 * (members - 1), members + inner, members, 1 + (inner > 0))


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return log2(n)(a + S/B) for a power of two, or log2(n) a + (n-1) S/nB for scatter and gather.

    For other numbers it is the slowest path through the tree, where sends to several branches follow each other.
    """
    in_parts = kind in {"scatter", "gather"}
    unit_ps = size_bytes / bytes_per_s * PS_PER_S

    def message_ps(branch: BinomialBranch) -> float:
        return branch.size / members * unit_ps if in_parts else unit_ps

    walk = _out_ps if kind in {"broadcast", "scatter"} else _in_ps
    return walk(members, latency_ps, message_ps)


def _out_ps(size: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Return the time until all of a tree of `size` members have the root's data."""

    @functools.cache
    def below_ps(size: int) -> float:
        sent_ps = last_ps = 0.0
        for branch in branches(0, size):
            sent_ps += message_ps(branch)
            last_ps = max(last_ps, sent_ps + latency_ps + below_ps(branch.size))
        return last_ps

    return below_ps(size)


def _in_ps(size: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Return the time until the root of a tree of `size` members has the data of all."""

    @functools.cache
    def below_ps(size: int) -> float:
        heads = sorted((below_ps(branch.size) + latency_ps, message_ps(branch)) for branch in branches(0, size))
        end_ps = 0.0
        for head_ps, length_ps in heads:
            end_ps = max(end_ps, head_ps) + length_ps
        return end_ps

    return below_ps(size)


def _outwards(member: int, members: int, *, in_parts: bool) -> list[Lane]:
    lane = Lane(blocking=True)
    if member:
        lane.step(receive_from=parent(member), **_received(member, _size(member, members), in_parts=in_parts))
    for branch in branches(member, members):
        lane.step(send_to=branch.child, **_sent(branch.child, branch.size, in_parts=in_parts))
    return [lane]


def _inwards(member: int, members: int, *, in_parts: bool) -> list[Lane]:
    sink, below = Lane(blocking=True), branches(member, members)
    for branch in reversed(below):
        received = _received(branch.child, branch.size, in_parts=in_parts)
        sink.step(receive_from=branch.child, reduce=not in_parts, **received)
    if member == 0:
        return [sink]
    sent = _sent(member, _size(member, members), in_parts=in_parts)
    if not below:
        return [Lane(blocking=True).step(send_to=parent(member), **sent)]
    return [sink, Lane(blocking=True).step(send_to=parent(member), after=(0, len(below) - 1), **sent)]


def _size(member: int, members: int) -> int:
    """Return the number of members of the branch whose first member is `member`."""
    return min(member & -member, members - member)


def _sent(first: int, size: int, *, in_parts: bool) -> dict[str, Any]:
    return {"send": first, "send_count": size} if in_parts else {}


def _received(first: int, size: int, *, in_parts: bool) -> dict[str, Any]:
    return {"receive": first, "receive_count": size} if in_parts else {}
