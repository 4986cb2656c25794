"""Plans in log2 n rounds: pairwise exchanges of a power of two of members, and the spreading of blocks by distance.

Of n members the first p, the largest power of two, exchange. Each of the r other members, a guest, gives its data to
the member p before it, its host, and gets the result back at the end.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own


class FoldingRound(NamedTuple):
    """One round of one member; ranges of chunks are (begin, end)."""

    peer: int  # member that sends and receives in this round
    send: tuple[int, int]  # range of chunks to send
    receive: tuple[int, int]  # range of chunks to receive
    reduce: bool  # whether received chunks are added


def power_below(members: int) -> int:
    """Return p, the largest power of two that does not exceed `members`.

    Args:
        members: The number of members of the group, n.
    """
    return 1 << (members.bit_length() - 1)


def halving(me: int, n: int) -> list[FoldingRound]:
    """Return a member's rounds of a reduce-scatter, the farthest peer first: the half with the peer's block is sent.

    Args:
        me: The number of the member.
        n: The number of members, a power of two.
    """
    return [turn._replace(send=turn.receive, receive=turn.send, reduce=True) for turn in reversed(doubling(me, n))]


def doubling(member: int, members: int) -> list[FoldingRound]:
    """Return a member's rounds of an all-gather, the nearest peer first: each exchanges all blocks of both so far.

    Args:
        member: The number of the member.
        members: The number of members, a power of two.
    """
    rounds = []
    # node & -distance clears the bits below the distance: it is the first block of the node's aligned group. At
    # distance 4 member 5 has blocks 4 .. 7 and gets 0 .. 3 from member 1.
    for distance in (1 << k for k in range(members.bit_length() - 1)):
        own, other = ((node & -distance, (node & -distance) + distance) for node in (member, member ^ distance))
        rounds.append(FoldingRound(member ^ distance, own, other, reduce=False))
    return rounds


def exchanged(members: int, chunks: int, rounds_of: Callable[[int], Sequence[FoldingRound]]) -> Plans:
    """Return plans of an all-reduce, or of any kind if the number of members is a power of two.

    A member has a lane per round, because the peers differ; a host has one more lane for its guest.

    Args:
        members: The number of members of the group, n.
        chunks: The number of chunks of the buffer.
        rounds_of: A function that returns the rounds of a member below p, the largest power of two up to `members`.
    """
    core = power_below(members)
    lanes = [_core(rounds_of(me), chunks, core + me if core + me < members else None) for me in range(core)]
    to_lane = len(lanes[0])
    for guest in range(core, members):
        host = guest - core
        all_chunks: dict[str, Any] = {"send_count": chunks, "receive_count": chunks}
        lanes.append([Lane(blocking=True).step(send_to=host, to_lane=to_lane - 1, receive_from=host, **all_chunks)])
    return each_its_own(chunks, lanes)


def exchange_extent(members: int, rounds: int) -> PlanExtent:
    """Return the number of steps and lanes of `exchanged`.

    Args:
        members: The number of members of the group, n.
        rounds: The number of rounds of a member, without those that fold guests in and out.
    """
    core = power_below(members)
    guests = members - core
    return PlanExtent(core * rounds + 3 * guests, core * rounds + 2 * guests, members, rounds + (guests > 0))


def _core(rounds: Sequence[FoldingRound], chunks: int, guest_member: int | None) -> list[Lane]:
    """Return the lanes of a member below p: its rounds, on `chunks` chunks, and one more for its guest, None = none."""
    lanes = []
    for i, exchange in enumerate(rounds):
        # A host's first round waits for its guest's data, in the lane after those of the rounds
        after = (i - 1, 0) if i else (-1, -1) if guest_member is None else (len(rounds), 0)
        lane = Lane(blocking=True).step(
            send_to=exchange.peer,
            to_lane=i,
            send=exchange.send[0],
            send_count=exchange.send[1] - exchange.send[0],
            receive_from=exchange.peer,
            receive=exchange.receive[0],
            receive_count=exchange.receive[1] - exchange.receive[0],
            reduce=exchange.reduce,
            after=after,
        )
        lanes.append(lane)
    if guest_member is not None:
        lane = Lane(blocking=True).step(receive_from=guest_member, receive_count=chunks, reduce=True)
        lanes.append(lane.step(send_to=guest_member, send_count=chunks, after=(len(rounds) - 1, 0)))
    return lanes


# All-gather in rounds of one distance each, and reduce-scatter as its mirror image.
#
# A member keeps blocks in a list in scratch space: entry i is the block of the member order[i] places before it, its
# own block first. In a round every member sends entries from the front of its list to the member `distance` further on
# and appends what it receives. Messages are contiguous ranges of the list. Played backwards, with sums in place of
# copies, the rounds are a reduce-scatter: sent blocks come back and are added.


class SpreadingRound(NamedTuple):
    """One round."""

    distance: int  # distance to the member that receives
    blocks: int  # number of blocks to send, the first of the list
    held: int  # number of blocks in the list before the round
    aside: bool  # whether the last block of the list is not sent; it moves behind the received ones
    most: int  # maximum number of blocks of one message

    def pieces(self) -> list[tuple[int, int]]:
        """Return the first block and the number of blocks of each message."""
        return [(first, min(self.most, self.blocks - first)) for first in range(0, self.blocks, self.most)]

    def place(self) -> int:
        """Return the index in the list of the first received block."""
        return self.held - self.aside


def near_first(members: int) -> list[SpreadingRound]:
    """Return rounds of distances 1, 2, 4, ...: the list is ordered by distance (Bruck et al., 1997).

    Args:
        members: The number of members of the group, n.
    """
    # The last round sends only the blocks that are still missing: of 6 members 1, 2 and then 2 blocks, not 4
    steps = [1 << k for k in range((members - 1).bit_length())]
    return [SpreadingRound(d, min(d, members - d), d, aside=False, most=members) for d in steps]


def far_first(members: int, max_blocks: int) -> list[SpreadingRound]:
    """Return rounds of distances ..., 4, 2, 1: far messages have few blocks, and near messages many.

    Args:
        members: The number of members of the group, n.
        max_blocks: The maximum number of blocks of a message.
    """
    rounds, held = [], 1
    # Before the round of distance d the list holds the blocks at the multiples of 2d, and those with place + d < n are
    # sent. For n = 6 the list is [0], [0, 4], [0, 2, 4] and at last [0, 2, 4, 1, 3, 5]. At distance 2 the block at 4
    # stays aside, since no block is 6 places before a member.
    for k in reversed(range((members - 1).bit_length())):
        distance = 1 << k
        blocks = -(-(members - distance) // (2 * distance))
        rounds.append(SpreadingRound(distance, blocks, held, aside=blocks < held, most=max_blocks))
        held += blocks
    return rounds


def order(rounds: Iterable[SpreadingRound]) -> list[int]:
    """Return, for each entry of a member's list, how far before the member the block's owner is.

    Args:
        rounds: The rounds of every member, in order.
    """
    held = [0]
    for a_round in rounds:
        # The place of a block in the sender's list is `distance` farther from the receiver
        kept = held[: a_round.place()]
        held = kept + [place + a_round.distance for place in held[: a_round.blocks]] + held[a_round.place() :]
    return held


def gathered(members: int, rounds: Sequence[SpreadingRound]) -> Plans:
    """Return plans of an all-gather.

    Args:
        members: The number of members of the group, n.
        rounds: The rounds of every member, in order.
    """
    return _plans(members, rounds, lambda me, places: _gather(me, members, rounds, places, 0))


def reduced(members: int, rounds: Sequence[SpreadingRound]) -> Plans:
    """Return plans of a reduce-scatter.

    Args:
        members: The number of members of the group, n.
        rounds: The rounds of every member, in order.
    """
    return _plans(members, rounds, lambda me, places: _reduce(me, members, rounds, places))


def spreading_extent(members: int, rounds: Sequence[SpreadingRound]) -> PlanExtent:
    """Return the numbers of steps and lanes of plans of these rounds; consecutive blocks are copied in one step.

    Args:
        members: The number of members of the group, n.
        rounds: The rounds of every member, in order.
    """
    if not rounds:
        return PlanExtent(0, 0, members)
    places = order(rounds)
    # Blocks whose places follow each other are copied in one step, except at the member where they wrap around
    in_a_row = sum((far - behind) % members == 1 for far, behind in pairwise(places))
    steps_of_lane = 1 + sum(a_round.aside + len(a_round.pieces()) for a_round in rounds)
    steps = members * (steps_of_lane + len(places)) - in_a_row * (members - 1)
    return PlanExtent(steps, members * len(rounds), members)


def rounds_ps(
    members: int, rounds: Iterable[SpreadingRound], size_bytes: int, latency_ps: float, bytes_per_s: float
) -> float:
    """Return the time in picoseconds with one message at a time in each direction: a + (blocks) S/nB per message.

    Args:
        members: The number of members of the group, n.
        rounds: The rounds of every member, in order.
        size_bytes: The size of the whole buffer in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
    """
    block_ps = size_bytes / members / bytes_per_s * PS_PER_S
    return sum(latency_ps + count * block_ps for a_round in rounds for _, count in a_round.pieces())


def _plans(members: int, rounds: Sequence[SpreadingRound], lanes: Callable[[int, list[int]], list[Lane]]) -> Plans:
    places = order(rounds)
    return each_its_own(members, [lanes(me, places) for me in range(members)], regions=2)


def _gather(
    member: int, members: int, rounds: Sequence[SpreadingRound], places: list[int], first_lane: int
) -> list[Lane]:
    """Return a member's lanes of an all-gather, one per round, as peers differ; first_lane: number of the first."""
    # places: for each entry of the member's list, how far before the member the block's owner is (`order`).
    lanes: list[Lane] = []
    for a_round in rounds:
        lane = Lane()
        after = _end(lanes, first_lane)
        if not lanes:
            # Region 1, the list, begins at chunk number n
            lane.copy(member, to=members, after=after)
            after = (-1, -1)
        if a_round.aside:
            # Received blocks go directly behind the sent ones, where the list now has the block that is not sent: that
            # moves away first
            lane.copy(members + a_round.held - 1, to=members + a_round.held - 1 + a_round.blocks, after=after)
            after = (-1, -1)
        for first, count in a_round.pieces():
            lane.step(
                send_to=(member + a_round.distance) % members,
                to_lane=first_lane + len(lanes),
                send=members + first,
                send_count=count,
                receive_from=(member - a_round.distance) % members,
                receive=members + a_round.place() + first,
                receive_count=count,
                after=after,
            )
            after = (-1, -1)
        lanes.append(lane)
    if lanes:
        _copies(lanes[-1], [(members + place, (member - far) % members) for place, far in enumerate(places)])
    return lanes


def _reduce(member: int, members: int, rounds: Sequence[SpreadingRound], places: list[int]) -> list[Lane]:
    """Return a member's lanes of a reduce-scatter, one per round in reverse.

    Args:
        member: The number of the member.
        members: The number of members of the group, n.
        rounds: The rounds of every member, in order.
        places: For each entry of the member's list, how far before the member the block's owner is (`order`).
    """
    lanes: list[Lane] = []
    for a_round in reversed(rounds):
        lane = Lane()
        after = _end(lanes, 0)
        if not lanes:
            _copies(lane, [((member - far) % members, members + place) for place, far in enumerate(places)])
        for first, count in a_round.pieces():
            lane.step(
                send_to=(member - a_round.distance) % members,
                to_lane=len(lanes),
                send=members + a_round.place() + first,
                send_count=count,
                receive_from=(member + a_round.distance) % members,
                receive=members + first,
                receive_count=count,
                reduce=True,
                after=after,
            )
            after = (-1, -1)
        if a_round.aside:
            lane.copy(members + a_round.held - 1 + a_round.blocks, to=members + a_round.held - 1)
        lanes.append(lane)
    if lanes:
        # Entry 0 of the list is the member's own block, to which every round has added
        lanes[-1].copy(members, to=member)
    return lanes


def _end(lanes: list[Lane], base: int) -> tuple[int, int]:
    """Return the last step of the previous lane."""
    return (base + len(lanes) - 1, len(lanes[-1].steps) - 1) if lanes else (-1, -1)


def _copies(lane: Lane, moves: Sequence[tuple[int, int]]) -> None:
    """Add to a lane copies of chunks (from, to), one step for each run of consecutive ones."""
    first = 0
    for i in range(1, len(moves) + 1):
        if i == len(moves) or moves[i] != (moves[i - 1][0] + 1, moves[i - 1][1] + 1):
            lane.copy(moves[first][0], to=moves[first][1], count=i - first)
            first = i
