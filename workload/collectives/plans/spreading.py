"""All-gather by rounds in which everybody sends to the member `distance` on, and reduce-scatter as its mirror image.

A member holds blocks in a list in scratch: place i is that of the member order[i] before it, the own one first. A round
sends places from the front and receives as many behind those it has. Messages are ranges of the list, so each is one.
Played backwards, with sums in place of copies, it is a reduce-scatter: what went forth comes back and is added.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from inputs.units import PS_PER_S
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Lane, Plans, each_its_own


class SpreadingRound(NamedTuple):
    """One distance.

    Attributes:
        distance: everybody sends to the member so far on.
        blocks: how many are sent, the first of the list.
        held: blocks in the list before.
        aside: whether the last of the list is not sent; it moves behind what comes.
        most: blocks in one message.
    """

    distance: int
    blocks: int
    held: int
    aside: bool
    most: int

    def pieces(self) -> list[tuple[int, int]]:
        """First block and number of blocks of each message."""
        return [(first, min(self.most, self.blocks - first)) for first in range(0, self.blocks, self.most)]

    def place(self) -> int:
        """Where in the list the first block comes that is received."""
        return self.held - self.aside


def near_first(members: int) -> list[SpreadingRound]:
    """Distances 1, 2, 4, ...: the list is in the order of the distance (Bruck et al., 1997)."""
    steps = [1 << k for k in range((members - 1).bit_length())]
    return [SpreadingRound(d, min(d, members - d), d, aside=False, most=members) for d in steps]


def far_first(members: int, most: int) -> list[SpreadingRound]:
    """Distances ..., 4, 2, 1: what is sent far goes alone, and messages grow on the way to the neighbours."""
    rounds, held = [], 1
    for k in reversed(range((members - 1).bit_length())):
        distance = 1 << k
        blocks = -(-(members - distance) // (2 * distance))
        rounds.append(SpreadingRound(distance, blocks, held, aside=blocks < held, most=most))
        held += blocks
    return rounds


def order(rounds: Iterable[SpreadingRound]) -> list[int]:
    """How far before a member those are whose blocks are in its list, place by place."""
    held = [0]
    for one in rounds:
        kept = held[: one.place()]
        held = kept + [place + one.distance for place in held[: one.blocks]] + held[one.place() :]
    return held


def gathered(members: int, rounds: Sequence[SpreadingRound]) -> Plans:
    """All-gather."""
    return _made(members, rounds, lambda me, places: _gather(me, members, rounds, places, 0))


def reduced(members: int, rounds: Sequence[SpreadingRound]) -> Plans:
    """Reduce-scatter."""
    return _made(members, rounds, lambda me, places: _reduce(me, members, rounds, places))


def all_reduced(members: int, rounds: Sequence[SpreadingRound]) -> Plans:
    """One after the other."""

    def both(me: int, places: list[int]) -> list[Lane]:
        first = _reduce(me, members, rounds, places)
        return first + _gather(me, members, rounds, places, len(first))

    return _made(members, rounds, both)


def extent(members: int, rounds: Sequence[SpreadingRound]) -> PlanExtent:
    """Steps and lanes of `gathered` and of `reduced`; copies of blocks in a row are one, but for a member in a row."""
    if not rounds:
        return PlanExtent(0, 0, members)
    places = order(rounds)
    in_a_row = sum((far - behind) % members == 1 for far, behind in pairwise(places))
    each = 1 + sum(one.aside + len(one.pieces()) for one in rounds)
    steps = members * (each + len(places)) - in_a_row * (members - 1)
    return PlanExtent(steps, members * len(rounds), members)


def rounds_ps(
    members: int, rounds: Iterable[SpreadingRound], size_bytes: int, latency_ps: float, bytes_per_s: float
) -> float:
    """Everybody sends and receives a message at a time: a + (blocks) S/nB for each."""
    block_ps = size_bytes / members / bytes_per_s * PS_PER_S
    return sum(latency_ps + count * block_ps for one in rounds for _, count in one.pieces())


def _made(members: int, rounds: Sequence[SpreadingRound], lanes: Callable[[int, list[int]], list[Lane]]) -> Plans:
    places = order(rounds)
    return each_its_own(members, [lanes(me, places) for me in range(members)], regions=2)


def _gather(me: int, n: int, rounds: Sequence[SpreadingRound], places: list[int], base: int) -> list[Lane]:
    """A lane per round, as peers differ; those before `base` are done first."""
    lanes: list[Lane] = []
    for one in rounds:
        lane = Lane()
        after = _end(lanes, base)
        if not lanes:
            lane.copy(me, to=n, after=after)
            after = (-1, -1)
        if one.aside:
            lane.copy(n + one.held - 1, to=n + one.held - 1 + one.blocks, after=after)
            after = (-1, -1)
        for first, count in one.pieces():
            lane.step(
                send_to=(me + one.distance) % n,
                to_lane=base + len(lanes),
                send=n + first,
                send_count=count,
                receive_from=(me - one.distance) % n,
                receive=n + one.place() + first,
                receive_count=count,
                after=after,
            )
            after = (-1, -1)
        lanes.append(lane)
    if lanes:
        _copies(lanes[-1], [(n + place, (me - far) % n) for place, far in enumerate(places)])
    return lanes


def _reduce(me: int, n: int, rounds: Sequence[SpreadingRound], places: list[int]) -> list[Lane]:
    lanes: list[Lane] = []
    for one in reversed(rounds):
        lane = Lane()
        after = _end(lanes, 0)
        if not lanes:
            _copies(lane, [((me - far) % n, n + place) for place, far in enumerate(places)])
        for first, count in one.pieces():
            lane.step(
                send_to=(me - one.distance) % n,
                to_lane=len(lanes),
                send=n + one.place() + first,
                send_count=count,
                receive_from=(me + one.distance) % n,
                receive=n + first,
                receive_count=count,
                reduce=True,
                after=after,
            )
            after = (-1, -1)
        if one.aside:
            lane.copy(n + one.held - 1 + one.blocks, to=n + one.held - 1)
        lanes.append(lane)
    if lanes:
        lanes[-1].copy(n, to=me)
    return lanes


def _end(lanes: list[Lane], base: int) -> tuple[int, int]:
    """The last step of the lane before; `base` lanes come before these, of which the last ends with a copy."""
    return (base + len(lanes) - 1, len(lanes[-1].steps) - 1) if lanes else (-1, -1)


def _copies(lane: Lane, moves: Sequence[tuple[int, int]]) -> None:
    """Copies of (from, to), those in a row at once."""
    first = 0
    for i in range(1, len(moves) + 1):
        if i == len(moves) or moves[i] != (moves[i - 1][0] + 1, moves[i - 1][1] + 1):
            lane.copy(moves[first][0], to=moves[first][1], count=i - first)
            first = i
