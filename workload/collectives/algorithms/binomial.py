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
    """A child of a member and the subtree below it, which consists of members child .. child + size - 1."""

    child: int  # number of the child
    size: int  # number of members of the subtree


def parent(member: int) -> int:
    """Return the parent of a member other than 0.

    Args:
        member: The number of a member, 1 or more; its parent lacks the lowest set bit of this number.
    """
    return member & (member - 1)


def branches(member: int, members: int) -> list[BinomialBranch]:
    """Return the subtrees of a member's children, the largest first.

    Args:
        member: The number of the member, 0 = root.
        members: The number of members of the group, n.
    """
    # The lowest set bit bounds the subtree; the root's is the power of two above the last member
    below = member & -member if member else 1 << (members - 1).bit_length()
    subtrees = []
    # Of 6 members the root has the children 4 (with 5), 2 (with 3) and 1. The subtree of 4 would have four members, 4
    # .. 7, but it ends with the group.
    while below > 1:
        below >>= 1
        if member + below < members:
            subtrees.append(BinomialBranch(member + below, min(below, members - member - below)))
    return subtrees


def plan(kind: str, members: int) -> Plans:
    """Return the lanes of each member.

    Members of a broadcast or scatter receive, then send to their branches, the largest first; members of a reduce or
    gather receive from their branches, then send to their parent.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    in_parts = kind in {"scatter", "gather"}
    return each_its_own(members if in_parts else 1, (_lanes(kind, member, members) for member in range(members)))


def extent(kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`; inwards, inner members have two lanes.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    # Besides the root, the members with children are the even numbers 2, 4, ... up to n - 2: below the lowest bit of an
    # odd number there is no other bit to set
    inner = max(0, members - 2) // 2 if kind in {"reduce", "gather"} else 0
    return PlanExtent(2 * (members - 1), members + inner, members, 1 + (inner > 0))


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return the time in picoseconds of the slowest path through the tree, on which sends to several branches follow.

    For n = 2^i members, latency a, S bytes and rate B: log2(n) (a + S/B); for scatter and gather log2(n) a + (n-1)
    S/nB.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
    """
    in_parts = kind in {"scatter", "gather"}
    unit_ps = size_bytes / bytes_per_s * PS_PER_S

    def message_ps(branch: BinomialBranch) -> float:
        """Return the time of a message to or from a `branch` at the members' rate: its parts, or the whole buffer."""
        return branch.size / members * unit_ps if in_parts else unit_ps

    # The two directions differ for unequal messages: a parent sends its largest subtree first, but receives it last
    walk = _out_ps if kind in {"broadcast", "scatter"} else _in_ps
    return walk(members, latency_ps, message_ps)


def _out_ps(members: int, latency_ps: float, message_ps: Callable[[BinomialBranch], float]) -> float:
    """Return the time in picoseconds until all members of a tree have the root's data.

    Args:
        members: The number of members of the tree.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        message_ps: A function that returns the sending time of a branch's message in picoseconds.
    """

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
    """Return the time in picoseconds until the root of a tree has the data of all members.

    Args:
        members: The number of members of the tree.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        message_ps: A function that returns the sending time of a branch's message in picoseconds.
    """

    @functools.cache
    def below_ps(members: int) -> float:
        """Return the ps until the root of a subtree of `members` members has their data."""
        heads = sorted((below_ps(branch.size) + latency_ps, message_ps(branch)) for branch in branches(0, members))
        end_ps = 0.0
        for head_ps, length_ps in heads:
            # The root receives one message at a time: a branch waits for its own data and for the branches before it
            end_ps = max(end_ps, head_ps) + length_ps
        return end_ps

    return below_ps(members)


def _lanes(kind: str, member: int, members: int) -> list[Lane]:
    """Return the lanes of member number `member` of `members` for a kind of collective."""
    in_parts = kind in {"scatter", "gather"}
    below, size = branches(member, members), min(member & -member, members - member)  # of the member's own branch

    def send(to: int, first: int, size: int) -> dict[str, Any]:
        """Return arguments of `Lane.step` that send the buffer, or `size` parts from part `first` on, `to` a member."""
        return {"send_to": to, **({"send": first, "send_count": size} if in_parts else {})}

    def receive(source: int, first: int, size: int) -> dict[str, Any]:
        """Return arguments of `Lane.step` that receive what `send` sends, here from member `source`."""
        return {"receive_from": source, **({"receive": first, "receive_count": size} if in_parts else {})}

    lane = Lane(blocking=True)
    if kind in {"broadcast", "scatter"}:
        if member:
            lane.step(**receive(parent(member), member, size))
        for branch in below:
            lane.step(**send(branch.child, branch.child, branch.size))
        return [lane]
    # Smallest subtree first: a leaf's data is there at once, that of the largest after log2(n) - 1 rounds
    for branch in reversed(below):
        lane.step(reduce=not in_parts, **receive(branch.child, branch.child, branch.size))
    if member == 0:
        return [lane]
    # The send waits for the last receive of the other lane: the parent needs the data of the whole subtree
    after = (0, len(below) - 1) if below else AT_ONCE
    sends = Lane(blocking=True).step(after=after, **send(parent(member), member, size))
    return [lane, sends] if below else [sends]
