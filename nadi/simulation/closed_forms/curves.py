"""Time of one collective of one group by its size: played if that is quick, else derived from played sizes.

A curve plays a size that needs few packets. It interpolates a size between two played sizes that lie at most a factor
of two apart and use the same variant of the algorithm, if the lines through the next played sizes on either side agree
within half a percent. It extrapolates a large size: three smaller sizes, each half of the next, must play quickly and
use the same variant, the lower two must predict the third within one percent, and the third must be at most
`Effort.max_halvings` halvings below the large size. Otherwise it plays the size, or evaluates the formula if the size
is very large.

`Effort` sets the numbers of packets. With `interpolates=False` the time of a size does not depend on the sizes
requested before; a planner that runs in several processes needs that.
"""

from bisect import bisect, insort
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from nadi.simulation.closed_forms.collective import ClosedForm

_MAX_INTERPOLATION_ERROR = 0.005  # relative difference at which neighbouring lines no longer confirm an interpolation
_MAX_EXTRAPOLATION_ERROR = 0.01  # relative error of the prediction of the third size at which extrapolation is rejected
_MAX_STEP = 2  # maximum ratio of neighbouring sizes between which a curve interpolates
_POINTS = 3  # number of sizes that an extrapolation plays


class Effort(NamedTuple):
    """Limits on the packets that a curve plays."""

    # maximum number of packets of a size that is always played; a million packets take about a second
    max_quick_packets: int
    max_packets: int  # maximum number of packets of a size that is played if smaller sizes do not predict its time
    max_halvings: int  # maximum number of halvings from a size to the largest size that predicts its time
    interpolates: bool  # True = the curve interpolates between played sizes


RUN_EFFORT = Effort(1 << 20, 1 << 22, 3, interpolates=True)  # effort of a simulation run
PLANNER_EFFORT = Effort(1 << 19, 1 << 20, 6, interpolates=False)
"""Effort of the planner, whose results must not depend on the order of requests."""
WHAT_IF_EFFORT = Effort(1 << 18, 1 << 20, 4, interpolates=True)
"""Effort of changes to a fabric (nadi.insight.explanation.what_if), which need only the relative change of a time."""


class CurveSource(NamedTuple):
    """Functions of the buffer size in bytes from which a curve computes times."""

    # returns the variant of the algorithm for a size, "" = the algorithm has one variant only
    variant: Callable[[int], str]
    packets: Callable[[int], float]  # returns the approximate number of packets of a size
    play: Callable[[int], ClosedForm]  # returns the time of a size from playing its steps
    formula: Callable[[int], ClosedForm]  # returns the time of a size from the algorithm's formula


class Curve:
    """Times of one collective by size.

    Args:
        source: Functions that compute the time of one size.
        is_exact: True if the formula is exact on an idle network; it then replaces every size that does not play
            quickly.
    """

    def __init__(self, source: CurveSource, *, is_exact: bool, effort: Effort = RUN_EFFORT) -> None:
        self._source, self._is_exact, self._effort = source, is_exact, effort
        self._known: dict[int, ClosedForm] = {}
        self._played: dict[str, list[tuple[int, float]]] = {}

    def at(self, size_bytes: int) -> ClosedForm:
        """Return the time of a size."""
        if size_bytes not in self._known:
            interpolated = self._interpolated(size_bytes) if self._effort.interpolates else None
            self._known[size_bytes] = interpolated or self._new(size_bytes)
        return self._known[size_bytes]

    def _new(self, size_bytes: int) -> ClosedForm:
        """Return the time of a size that does not depend on other requested sizes."""
        packets = self._source.packets(size_bytes)
        if packets <= self._effort.max_quick_packets:
            return self.play(size_bytes)
        if self._is_exact:
            return self._source.formula(size_bytes)
        fallback = self.play if packets <= self._effort.max_packets else self._source.formula
        return self._extrapolated(size_bytes) or fallback(size_bytes)

    def play(self, size_bytes: int) -> ClosedForm:
        """Play a size and return its time, whatever is known of other sizes."""
        form = self._known[size_bytes] = self._source.play(size_bytes)
        insort(self._played.setdefault(self._source.variant(size_bytes), []), (size_bytes, form.time_ps))
        return form

    def _interpolated(self, size_bytes: int) -> ClosedForm | None:
        """Return the time on the line between two played sizes; None if the neighbouring lines do not confirm it."""
        points = self._played.get(self._source.variant(size_bytes), [])
        after = bisect(points, (size_bytes, 0.0))
        if not 2 <= after <= len(points) - 2:
            return None
        four = points[after - 2 : after + 2]
        if any(b[0] > _MAX_STEP * a[0] for a, b in pairwise(four)):
            return None
        below, between, above = (_line(a, b, size_bytes) for a, b in pairwise(four))
        if max(abs(below - between), abs(above - between)) > _MAX_INTERPOLATION_ERROR * between:
            return None
        return ClosedForm(between, is_played=False)

    def _extrapolated(self, size_bytes: int) -> ClosedForm | None:
        """Return the time on the line through three smaller sizes; None if they lie on no line or differ in variant."""
        most, quick = self._effort.max_halvings, self._effort.max_quick_packets
        halvings = 1
        while halvings < most and self._source.packets(size_bytes >> halvings) > quick:
            halvings += 1
        if self._source.packets(size_bytes >> halvings) > quick:
            return None
        sizes = [size_bytes >> (halvings + more) for more in reversed(range(_POINTS))]
        variant = self._source.variant(size_bytes)
        if any(self._source.variant(size) != variant for size in sizes):
            return None
        for size in sizes:
            if size not in self._known or not self._known[size].is_played:
                self.play(size)
        low, middle, high = ((size, self._known[size].time_ps) for size in sizes)
        if abs(_line(low, middle, high[0]) - high[1]) > _MAX_EXTRAPOLATION_ERROR * high[1]:
            return None
        return ClosedForm(_line(middle, high, size_bytes), is_played=False)


def _line(a: tuple[int, float], b: tuple[int, float], size_bytes: int) -> float:
    """Return the value at `size_bytes` of the line through two points."""
    return a[1] + (b[1] - a[1]) * (size_bytes - a[0]) / (b[0] - a[0])
