"""Pairs that exchange round after round among a power of two of members, and how the others join in.

Of n members the first p, the largest power of two, do the rounds. Each of the r others gives what it has to the member
p before it, its host, and gets the result back at the end.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Lane, Plans, each_its_own


class FoldingRound(NamedTuple):
    """A round of one member; begin and end of ranges of chunks.

    Attributes:
        peer: who sends and receives as well.
        send: range that is sent.
        receive: range that comes in.
        reduce: whether that is added.
    """

    peer: int
    send: tuple[int, int]
    receive: tuple[int, int]
    reduce: bool


def power_below(members: int) -> int:
    """The largest power of two of no more than `members`: p."""
    return 1 << (members.bit_length() - 1)


def exchanged(members: int, chunks: int, rounds: Callable[[int], Sequence[FoldingRound]]) -> Plans:
    """Plans of an all-reduce, or of any kind if the members are a power of two; rounds: of a member below p.

    A lane per round, because the peers differ; a host has one more for its guest.
    """
    core = power_below(members)
    lanes = [_core(rounds(me), chunks, core + me if core + me < members else None) for me in range(core)]
    to_lane = len(lanes[0])
    for guest in range(core, members):
        host = guest - core
        whole: dict[str, Any] = {"send_count": chunks, "receive_count": chunks}
        lanes.append([Lane(blocking=True).step(send_to=host, to_lane=to_lane - 1, receive_from=host, **whole)])
    return each_its_own(chunks, lanes)


def extent(members: int, rounds: int) -> PlanExtent:
    """Steps and lanes of `exchanged` in which members below p do so many rounds."""
    core = power_below(members)
    guests = members - core
    return PlanExtent(core * rounds + 3 * guests, core * rounds + 2 * guests, members, rounds + (guests > 0))


def _core(rounds: Sequence[FoldingRound], chunks: int, guest: int | None) -> list[Lane]:
    lanes = []
    for i, one in enumerate(rounds):
        after = (i - 1, 0) if i else (-1, -1) if guest is None else (len(rounds), 0)
        lane = Lane(blocking=True).step(
            send_to=one.peer,
            to_lane=i,
            send=one.send[0],
            send_count=one.send[1] - one.send[0],
            receive_from=one.peer,
            receive=one.receive[0],
            receive_count=one.receive[1] - one.receive[0],
            reduce=one.reduce,
            after=after,
        )
        lanes.append(lane)
    if guest is not None:
        lane = Lane(blocking=True).step(receive_from=guest, receive_count=chunks, reduce=True)
        lanes.append(lane.step(send_to=guest, send_count=chunks, after=(len(rounds) - 1, 0)))
    return lanes
