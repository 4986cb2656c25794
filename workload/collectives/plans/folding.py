"""Rounds of pairwise exchange among a power of two of members, and the folding of the remaining members into them.

Of n members the first p, the largest power of two, exchange. Each of the r other members, a guest, gives its data to
the member p before it, its host, and gets the result back at the end.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own


class FoldingRound(NamedTuple):
    """One round of one member; ranges of chunks are (begin, end)."""

    peer: int  # member that sends and receives in this round
    send: tuple[int, int]  # range of chunks to send
    receive: tuple[int, int]  # range of chunks to receive
    reduce: bool  # whether received chunks are added


def power_below(members: int) -> int:
    """Return p, the largest power of two that does not exceed `members`."""
    return 1 << (members.bit_length() - 1)


def halving(me: int, n: int) -> list[FoldingRound]:
    """Return rounds of a reduce-scatter, the farthest peer first: the half with the peer's block is sent."""
    return [turn._replace(send=turn.receive, receive=turn.send, reduce=True) for turn in reversed(doubling(me, n))]


def doubling(member: int, members: int) -> list[FoldingRound]:
    """Return a member's rounds of an all-gather, the nearest peer first: each exchanges all blocks of both so far."""
    rounds = []
    for distance in (1 << k for k in range(members.bit_length() - 1)):
        own, other = ((node & -distance, (node & -distance) + distance) for node in (member, member ^ distance))
        rounds.append(FoldingRound(member ^ distance, own, other, reduce=False))
    return rounds


def exchanged(members: int, chunks: int, rounds_of: Callable[[int], Sequence[FoldingRound]]) -> Plans:
    """Return plans of an all-reduce, or of any kind if the number of members is a power of two."""
    # The plan has a lane per round, because the peers differ; a host has one more lane for its guest. rounds_of:
    # function that returns the rounds of a member below p, the highest power of two up to `members`.
    core = power_below(members)
    lanes = [_core(rounds_of(me), chunks, core + me if core + me < members else None) for me in range(core)]
    to_lane = len(lanes[0])
    for guest in range(core, members):
        host = guest - core
        all_chunks: dict[str, Any] = {"send_count": chunks, "receive_count": chunks}
        lanes.append([Lane(blocking=True).step(send_to=host, to_lane=to_lane - 1, receive_from=host, **all_chunks)])
    return each_its_own(chunks, lanes)


def extent(members: int, rounds: int) -> PlanExtent:
    """Return the number of steps and lanes of `exchanged`; rounds: of a member, without folding to a power of two."""
    core = power_below(members)
    guests = members - core
    return PlanExtent(core * rounds + 3 * guests, core * rounds + 2 * guests, members, rounds + (guests > 0))


def _core(rounds: Sequence[FoldingRound], chunks: int, guest_member: int | None) -> list[Lane]:
    """Return the lanes of a member below p: its rounds, on `chunks` chunks, and one more for its guest, None = none."""
    lanes = []
    for i, exchange in enumerate(rounds):
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
