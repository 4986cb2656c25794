"""Binomial tree: those that have the data each pass it on to one more, so that they double.

Reduce and gather are the tree backwards; scatter and gather move only what is for, or from, the members below (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4).
"""

import functools
from collections.abc import Callable
from typing import Any

from inputs.units import PS_PER_S
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Lane, Plans, each_its_own
from workload.collectives.trees.binomial import BinomialBranch, branches, parent

NAME = "binomial"
KINDS = ("broadcast", "reduce", "scatter", "gather")
ONE_WAY = True


def plan(kind: str, members: int) -> Plans:
    """Outwards: one lane that receives, then sends to the largest branch first. Inwards: a sink, then a send."""
    in_parts = kind in {"scatter", "gather"}
    make = _outwards if kind in {"broadcast", "scatter"} else _inwards
    lanes = (make(member, members, in_parts=in_parts) for member in range(members))
    return each_its_own(members if in_parts else 1, lanes)


def extent(kind: str, members: int) -> PlanExtent:
    """Steps and lanes of `plan`: inwards those that pass something on have two."""
    inner = max(0, members - 2) // 2 if kind in {"reduce", "gather"} else 0
    return PlanExtent(2 * (members - 1), members + inner, members, 1 + (inner > 0))


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Of a power of two log2(n)(a + S/B), or log2(n) a + (n-1) S/nB for scatter and gather.

    Of other numbers the slowest way through the tree: sends to several branches follow each other.
    """
    in_parts = kind in {"scatter", "gather"}
    unit_ps = size_bytes / bytes_per_s * PS_PER_S

    def message_ps(branch: BinomialBranch) -> float:
        return branch.size / members * unit_ps if in_parts else unit_ps

    walk = _out_ps if kind in {"broadcast", "scatter"} else _in_ps
    return walk(members, latency_ps, message_ps)


def _out_ps(size: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Until all of a tree of `size` members have what its root has."""

    @functools.cache
    def below_ps(size: int) -> float:
        sent_ps = last_ps = 0.0
        for branch in branches(0, size):
            sent_ps += message_ps(branch)
            last_ps = max(last_ps, sent_ps + latency_ps + below_ps(branch.size))
        return last_ps

    return below_ps(size)


def _in_ps(size: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Until the root of a tree of `size` members has what all have."""

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
    """Members of the branch that begins with one."""
    return min(member & -member, members - member)


def _sent(first: int, size: int, *, in_parts: bool) -> dict[str, Any]:
    return {"send": first, "send_count": size} if in_parts else {}


def _received(first: int, size: int, *, in_parts: bool) -> dict[str, Any]:
    return {"receive": first, "receive_count": size} if in_parts else {}
