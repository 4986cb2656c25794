"""Bruck's algorithms: ceil(log2 n) rounds for any number of members.

All-to-all: a block for the member j places on takes the hops of the bits of j: in round k all blocks with bit k travel
in one message, packed into scratch space. All-gather doubles the blocks of each member (Bruck, Ho, Kipnis, Upfal and
Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997).
Reduce-scatter is the all-gather backwards (Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
2024). Plans of all-to-all copy n blocks for each of n members: suited to hundreds of members, not thousands.
"""

from itertools import pairwise

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.exchanges import gathered, near_first, reduced, rounds_ps, spreading_extent
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own

KINDS = ("all-to-all", "all-gather", "reduce-scatter")

_LIST, _OUT, _IN = 2, 3, 4  # scratch regions of all-to-all: blocks by distance, packed sends, packed receives


def plan(kind: str, members: int) -> Plans:
    """Return the steps of each member: a lane per round, because the peers differ.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    if kind == "all-to-all":
        return each_its_own(members, [_to_all(me, members) for me in range(members)], regions=5)
    make = gathered if kind == "all-gather" else reduced
    return make(members, near_first(members))


def extent(kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    if kind != "all-to-all":
        return spreading_extent(members, near_first(members))
    rounds = (members - 1).bit_length()
    # The numbers 0 .. n-1 with bit k are ceil((n - 2^k) / 2^(k+1)) runs of consecutive ones. A round copies each run
    # twice, into the message and out of it, and sends one message.
    moved = sum(2 * -(-(members - (1 << k)) // (2 << k)) + 1 for k in range(rounds))
    # Copies besides the rounds: n at the end, and one at the beginning, or two for each member but 0
    steps = members * (moved + 1 + members) + members - 1 if rounds else 0
    return PlanExtent(steps, rounds * members, members)


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return the ps ceil(log2 n) a + (n-1) S/nB of n members, a latency a and S bytes at a rate B.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
    """
    # All-to-all sends (number of one bits in 0 .. n-1) S/nB, for powers of two log2(n) S/2B, in place of the second
    # term.
    if kind != "all-to-all":
        return rounds_ps(members, near_first(members), size_bytes, latency_ps, bytes_per_s)
    blocks = sum(place.bit_count() for place in range(members))
    return (members - 1).bit_length() * latency_ps + blocks * size_bytes / members / bytes_per_s * PS_PER_S


def _to_all(member: int, members: int) -> list[Lane]:
    """Return the lanes of one member, number `member`, in an all-to-all."""
    lanes: list[Lane] = []
    for k in range((members - 1).bit_length()):
        distance = 1 << k
        # For n = 7 and k = 1 the edges are 2, 4, 6, 7. Of the ranges between them, 2 .. 3, 4 .. 5 and 6, every second
        # one has bit 1 set: 2, 3 and 6.
        edges = [*range(distance, members, distance), members]
        runs = [edge for i, edge in enumerate(pairwise(edges)) if i % 2 == 0]  # ranges of numbers with bit k
        count = sum(end - begin for begin, end in runs)
        lane = Lane()
        after = (k - 1, len(lanes[-1].steps) - 1) if k else (-1, -1)
        if k == 0:
            # The list begins with the member's own block: two copies rotate the buffer by the member's number
            lane.copy(member, to=_LIST * members, count=members - member)
            if member:
                lane.copy(0, to=_LIST * members + members - member, count=member)
        place = 0
        for begin, end in runs:
            # Blocks with bit k are not adjacent; a message is one range of chunks, so they are packed first
            lane.copy(_LIST * members + begin, to=_OUT * members + place, count=end - begin, after=after)
            after, place = (-1, -1), place + end - begin
        lane.step(
            send_to=(member + distance) % members,
            to_lane=k,
            send=_OUT * members,
            send_count=count,
            receive_from=(member - distance) % members,
            receive=_IN * members,
            receive_count=count,
        )
        place = 0
        for begin, end in runs:
            lane.copy(_IN * members + place, to=_LIST * members + begin, count=end - begin)
            place += end - begin
        lanes.append(lane)
    for far in range(members if lanes else 0):
        # The block at index `far` came from the member that many places before: put it at that member's place
        lanes[-1].copy(_LIST * members + far, to=members + (member - far) % members)
    return lanes
