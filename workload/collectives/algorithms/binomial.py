"""Binomial tree: each member that has the data sends it to one more, so that their number doubles.

Reduce and gather are the tree backwards; scatter and gather move only the data of the members below (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4). The parent of
member m is m without its lowest set bit; its subtree contains its number with any of the bits below that bit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own

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
    """Return the subtrees of the children of member number `member` of `members`, the largest first."""
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
    return each_its_own(members if in_parts else 1, (_lanes(kind, member, members) for member in range(members)))


def extent(kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`; inwards, inner members have two lanes."""
    inner = max(0, members - 2) // 2 if kind in {"reduce", "gather"} else 0
    return PlanExtent(2 * (members - 1), members + inner, members, 1 + (inner > 0))


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return the ps log2(n)(a + S/B) of n = 2^i members, latency a, S bytes, rate B; parts: log2(n) a + (n-1) S/nB."""
    # For other numbers it is the slowest path through the tree, where sends to several branches follow each other.
    in_parts = kind in {"scatter", "gather"}
    unit_ps = size_bytes / bytes_per_s * PS_PER_S

    def message_ps(branch: BinomialBranch) -> float:
        return branch.size / members * unit_ps if in_parts else unit_ps

    walk = _out_ps if kind in {"broadcast", "scatter"} else _in_ps
    return walk(members, latency_ps, message_ps)


def _out_ps(members: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Return the ps until all members of a tree have the root's data; message_ps: time of a branch's message."""

    @functools.cache
    def below_ps(members: int) -> float:
        """Return the ps until all of a subtree of `members` members have the data of its root."""
        sent_ps = last_ps = 0.0
        for branch in branches(0, members):
            sent_ps += message_ps(branch)
            last_ps = max(last_ps, sent_ps + latency_ps + below_ps(branch.size))
        return last_ps

    return below_ps(members)


def _in_ps(members: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Return the time in ps until the root of a tree has the data of all members; message_ps: of a branch's message."""

    @functools.cache
    def below_ps(members: int) -> float:
        """Return the ps until the root of a subtree of `members` members has their data."""
        heads = sorted((below_ps(branch.size) + latency_ps, message_ps(branch)) for branch in branches(0, members))
        end_ps = 0.0
        for head_ps, length_ps in heads:
            end_ps = max(end_ps, head_ps) + length_ps
        return end_ps

    return below_ps(members)


def _lanes(kind: str, member: int, members: int) -> list[Lane]:
    """Return the lanes of member number `member` of `members` for a kind of collective."""
    in_parts = kind in {"scatter", "gather"}
    below, size = branches(member, members), min(member & -member, members - member)  # of the member's own branch

    def send(to: int, first: int, size: int) -> dict[str, Any]:
        return {"send_to": to, **({"send": first, "send_count": size} if in_parts else {})}

    def receive(source: int, first: int, size: int) -> dict[str, Any]:
        return {"receive_from": source, **({"receive": first, "receive_count": size} if in_parts else {})}

    lane = Lane(blocking=True)
    if kind in {"broadcast", "scatter"}:
        if member:
            lane.step(**receive(parent(member), member, size))
        for branch in below:
            lane.step(**send(branch.child, branch.child, branch.size))
        return [lane]
    for branch in reversed(below):
        lane.step(reduce=not in_parts, **receive(branch.child, branch.child, branch.size))
    if member == 0:
        return [lane]
    after = (0, len(below) - 1) if below else AT_ONCE
    sends = Lane(blocking=True).step(after=after, **send(parent(member), member, size))
    return [lane, sends] if below else [sends]
