"""Whose communication made the members of a collective late.

A member that comes early to a collective waits for the last one. What it waits for is what the last member did more of
since the two last met: if gradients of the last member took 3 ms longer, 3 ms of waiting in the next tensor-parallel
collective are theirs, though the collective is tensor-parallel. So the time of both since the collective of the same
group before this one is compared, category by category, and the wait is divided in proportion to what the last member
has more of. What it computed for longer, or what no category explains, stays with the collective's own axis.

Waits are divided in the order in which they end, so that a member's earlier waits count as what they were divided into.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Segments(NamedTuple):
    """What NPUs did or waited for, s segments that do not overlap on an NPU.

    Attributes:
        npu: int64[s].
        begin_ps, until_ps: int64[s].
        category: int64[s], row of `STEP_CATEGORIES`.
        last: int64[s], of a wait for the other members of a collective: the NPU of the last one; -1 of all else.
        met_ps: int64[s], of such a wait: when the members last met, at the collective of their group before; else 0.
    """

    npu: Int64
    begin_ps: Int64
    until_ps: Int64
    category: Int64
    last: Int64
    met_ps: Int64


class DividedWaits(NamedTuple):
    """Waits, w of them, and what they were for.

    Attributes:
        npu: int64[w], the NPU that waited.
        category: int64[w], the axis of the collective.
        share_ps: int64[w, categories], picoseconds that add up to each wait.
    """

    npu: Int64
    category: Int64
    share_ps: Int64


def divided(segments: Segments, categories: int, stays: tuple[int, ...]) -> DividedWaits:
    """Divide all waits among the categories that made the last members late.

    Args:
        segments: Of all NPUs.
        categories: Number of categories.
        stays: Categories of the last member that do not explain a wait: it stays with the collective's axis.
    """
    order = np.lexsort((segments.begin_ps, segments.npu))
    segments = Segments(*(column[order] for column in segments))
    first = np.searchsorted(segments.npu, np.arange(int(segments.npu.max(initial=-1)) + 2))
    waits = np.flatnonzero(segments.last >= 0)
    waits = waits[np.lexsort((segments.begin_ps[waits], segments.npu[waits], segments.until_ps[waits]))]
    spent = _Spent(segments, first, waits, categories)
    share_ps = np.zeros((len(waits), categories), np.int64)
    for number, at in enumerate(waits.tolist()):
        npu, last, category = int(segments.npu[at]), int(segments.last[at]), int(segments.category[at])
        begin_ps, until_ps = int(segments.begin_ps[at]), int(segments.until_ps[at])
        met_ps = min(int(segments.met_ps[at]), begin_ps)
        more_ps = np.maximum(spent.between(last, met_ps, until_ps) - spent.between(npu, met_ps, begin_ps), 0)
        more_ps[category] += more_ps[list(stays)].sum()
        more_ps[list(stays)] = 0
        share_ps[number] = _in_proportion(until_ps - begin_ps, more_ps, category)
        spent.divide(at, share_ps[number])
    return DividedWaits(segments.npu[waits], segments.category[waits], share_ps)


class _Spent:
    """How long NPUs spent on each category between two moments, waits as far as they are divided."""

    def __init__(self, segments: Segments, first: Int64, waits: Int64, categories: int) -> None:
        """Know the segments, sorted by NPU and begin; first: int64[npus + 1], where those of each NPU begin."""
        self._segments, self._first, self._categories = segments, first, categories
        self._is_divided = np.zeros(len(segments.npu), np.bool_)
        self._row = np.full(len(segments.npu), -1)
        self._row[waits] = np.arange(len(waits))
        self._share = np.zeros((len(waits), categories))

    def between(self, npu: int, from_ps: int, until_ps: int) -> NDArray[np.float64]:
        """float64[categories], picoseconds."""
        if npu + 1 >= len(self._first) or until_ps <= from_ps:
            return np.zeros(self._categories)
        low, high = int(self._first[npu]), int(self._first[npu + 1])
        low += int(np.searchsorted(self._segments.until_ps[low:high], from_ps, "right"))
        high = low + int(np.searchsorted(self._segments.begin_ps[low:high], until_ps))
        here = slice(low, high)
        begin_ps = np.maximum(self._segments.begin_ps[here], from_ps)
        time_ps = np.minimum(self._segments.until_ps[here], until_ps) - begin_ps
        is_divided = self._is_divided[here]
        of_category = np.where(is_divided, 0, time_ps)
        spent = np.bincount(self._segments.category[here], of_category, self._categories).astype(np.float64)
        if is_divided.any():
            spent += time_ps[is_divided] @ self._share[self._row[here][is_divided]]
        return spent

    def divide(self, at: int, share_ps: Int64) -> None:
        """From now on a wait counts as what it was divided into."""
        self._share[self._row[at]] = share_ps / share_ps.sum()
        self._is_divided[at] = True


def _in_proportion(time_ps: int, weight: NDArray[np.float64], category: int) -> Int64:
    """int64[categories] that add up to time_ps; what rounding leaves, and all without weights, is the category's."""
    whole = weight.sum()
    share_ps = np.floor(weight * (time_ps / whole)).astype(np.int64) if whole > 0 else np.zeros(len(weight), np.int64)
    share_ps[category] += time_ps - share_ps.sum()
    return share_ps
