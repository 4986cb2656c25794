"""What one collective of one group takes at any size: played where that is quick, else told by sizes that were played.

A size is played if that takes few packets. One between two played sizes, at most twice as large and done the same way,
is read off the line between them where the lines through the next played sizes on either side say the same within half
a percent. A large one is estimated: by the line through the largest two of three sizes, each half of the next, that are
quickly played and done the same way, where the lower two foretell the third within one percent and the third is not
below an eighth of it; else it is played too, or, if it is very large, told by the formula.

`Effort` says how many packets are quickly played. Where many sizes will be asked in no certain order (a planner's, by
several processes), none is read off its neighbours, so that what one takes does not depend on which were asked before.
"""

from bisect import bisect
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from nadi.simulation.closed_forms.collective import ClosedForm

_AGREE = 0.005
_FORETELLS = 0.01
_LARGEST_STEP = 2
_POINTS = 3


class Effort(NamedTuple):
    """How much is played.

    Attributes:
        quick_packets: that are played: a million take a second or so.
        most_packets: that are played where no smaller sizes tell.
        most_halvings: from a size to the largest that tells it.
        off_neighbours: sizes are read off the line between played ones.
    """

    quick_packets: int
    most_packets: int
    most_halvings: int
    off_neighbours: bool


OF_A_RUN = Effort(1 << 20, 1 << 22, 3, off_neighbours=True)
OF_PLANS = Effort(1 << 19, 1 << 20, 6, off_neighbours=False)
OF_CHANGES = Effort(1 << 18, 1 << 20, 4, off_neighbours=True)
"""Of a change to a fabric (nadi.insight.explanation.what_if): what counts is by how much it changes what a collective
takes."""


class CurveRequest(NamedTuple):
    """What a curve asks about a size (bytes).

    Attributes:
        way: how the collective is done, "" = in one way only.
        packets: about how many there are.
        play: its time, played.
        formula: its time as the formula says.
    """

    way: Callable[[int], str]
    packets: Callable[[int], float]
    play: Callable[[int], ClosedForm]
    formula: Callable[[int], ClosedForm]


class Curve:
    """Times by size of one collective.

    Args:
        ask: what it asks.
        is_exact: the formula is that of an idle network, so that it stands for what is not quickly played.
        effort: how much is played.
    """

    def __init__(self, ask: CurveRequest, *, is_exact: bool, effort: Effort = OF_A_RUN) -> None:
        self._ask, self._is_exact, self._effort = ask, is_exact, effort
        self._known: dict[int, ClosedForm] = {}
        self._played: dict[str, list[tuple[int, float]]] = {}

    def at(self, size_bytes: int) -> ClosedForm:
        """The time of a size."""
        if size_bytes not in self._known:
            between = self._between(size_bytes) if self._effort.off_neighbours else None
            self._known[size_bytes] = between or self._new(size_bytes)
        return self._known[size_bytes]

    def _new(self, size_bytes: int) -> ClosedForm:
        packets = self._ask.packets(size_bytes)
        if packets <= self._effort.quick_packets:
            return self.play(size_bytes)
        if self._is_exact:
            return self._ask.formula(size_bytes)
        found = self._beyond(size_bytes)
        if found:
            return found
        return self.play(size_bytes) if packets <= self._effort.most_packets else self._ask.formula(size_bytes)

    def play(self, size_bytes: int) -> ClosedForm:
        """The time of a size, played whatever is known of others."""
        found = self._ask.play(size_bytes)
        points = self._played.setdefault(self._ask.way(size_bytes), [])
        points.insert(bisect(points, (size_bytes, 0.0)), (size_bytes, found.time_ps))
        self._known[size_bytes] = found
        return found

    def _between(self, size_bytes: int) -> ClosedForm | None:
        """Off the line between two played sizes; None where the next ones on either side say something else."""
        points = self._played.get(self._ask.way(size_bytes), [])
        after = bisect(points, (size_bytes, 0.0))
        if not 2 <= after <= len(points) - 2:
            return None
        four = points[after - 2 : after + 2]
        if any(b[0] > _LARGEST_STEP * a[0] for a, b in pairwise(four)):
            return None
        below, between, above = (_line(a, b, size_bytes) for a, b in pairwise(four))
        if max(abs(below - between), abs(above - between)) > _AGREE * between:
            return None
        return ClosedForm(between, is_played=False)

    def _exact(self, size_bytes: int) -> ClosedForm:
        known = self._known.get(size_bytes)
        return known if known is not None and known.is_played else self.play(size_bytes)

    def _beyond(self, size_bytes: int) -> ClosedForm | None:
        """By the line through three smaller sizes; None where they do not lie on one, or are done another way."""
        most, quick = self._effort.most_halvings, self._effort.quick_packets
        halvings = 1
        while halvings < most and self._ask.packets(size_bytes >> halvings) > quick:
            halvings += 1
        if self._ask.packets(size_bytes >> halvings) > quick:
            return None
        sizes = [size_bytes >> (halvings + more) for more in reversed(range(_POINTS))]
        way = self._ask.way(size_bytes)
        if any(self._ask.way(size) != way for size in sizes):
            return None
        low, middle, high = ((size, self._exact(size).time_ps) for size in sizes)
        if abs(_line(low, middle, high[0]) - high[1]) > _FORETELLS * high[1]:
            return None
        return ClosedForm(_line(middle, high, size_bytes), is_played=False)


def _line(a: tuple[int, float], b: tuple[int, float], size_bytes: int) -> float:
    """The line through two points, at a size."""
    return a[1] + (b[1] - a[1]) * (size_bytes - a[0]) / (b[0] - a[0])
