"""Attribution of waits in collectives to the communication that made the last member late.

An early member of a collective waits for the last one. The wait is due to whatever the last member did longer since the
two last met: if its gradient communication took 3 ms longer, 3 ms of waiting in the next tensor-parallel collective
belong to gradients, although the collective is tensor-parallel. The analysis therefore compares the times of both
members by category since the previous collective of the same group, and divides the wait in proportion to the excess
of the last member. Longer computation, and time that no category explains, stays with the collective's own axis.

Waits are divided in the order of their ends, so that earlier waits of a member count by their divided shares.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Segments(NamedTuple):
    """Activities and waits of NPUs: s segments that do not overlap on an NPU."""

    npu: Int64  # int64[s], NPU of each segment
    begin_ps: Int64  # int64[s], begin in picoseconds
    until_ps: Int64  # int64[s], end in picoseconds
    category: Int64  # int64[s], row of `STEP_CATEGORIES`
    last: Int64  # int64[s], last NPU to arrive, for a wait in a collective; else -1
    # int64[s], for such a wait the previous collective of the group, at which the members last met; else 0
    met_ps: Int64


class DividedWaits(NamedTuple):
    """The w waits in collectives, divided among their causes."""

    npu: Int64  # int64[w], the NPU that waited
    category: Int64  # int64[w], the axis of the collective
    share_ps: Int64  # int64[w, categories], picoseconds that add up to each wait


def divided(segments: Segments, categories: int, stays: tuple[int, ...]) -> DividedWaits:
    """Divide waits among the categories that made last members late; those that `stays` explain are not divided."""
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
    """Time that NPUs spent per category between two moments; divided waits count by their shares."""

    def __init__(self, segments: Segments, first: Int64, waits: Int64, categories: int) -> None:
        # segments are sorted by NPU and begin; first: int64[npus + 1], first segment of each NPU
        self._segments, self._first, self._categories = segments, first, categories
        self._is_divided = np.zeros(len(segments.npu), np.bool_)
        self._row = np.full(len(segments.npu), -1)
        self._row[waits] = np.arange(len(waits))
        self._share = np.zeros((len(waits), categories))

    def between(self, npu: int, from_ps: int, until_ps: int) -> NDArray[np.float64]:
        """Return float64[categories], picoseconds."""
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
        """Count a wait by its shares from now on."""
        self._share[self._row[at]] = share_ps / share_ps.sum()
        self._is_divided[at] = True


def _in_proportion(time_ps: int, weight: NDArray[np.float64], category: int) -> Int64:
    """Return int64[categories] that add up to time_ps; `category` gets the rounding, and everything without weights."""
    whole = weight.sum()
    share_ps = np.floor(weight * (time_ps / whole)).astype(np.int64) if whole > 0 else np.zeros(len(weight), np.int64)
    share_ps[category] += time_ps - share_ps.sum()
    return share_ps
