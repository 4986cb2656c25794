"""Quiescent moments of a run, what is noted of a period from one, and lengths of periods that are nearly equal."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nadi.pdes.core import Int64
from nadi.pdes.reuse.observed_buffers import ObservedBuffers

SAMPLES = 3  # periods that are compared before the run goes forward by others that are nearly like them
MAX_SAMPLES = 8  # latest periods that tell how long others are


@dataclass(eq=False)
class Moment:
    """A quiescent moment."""

    earliest_ps: int  # time of its earliest event
    key: tuple[Any, ...]  # equal for moments with the same future, if the traces continue alike
    shape: tuple[
        Any, ...
    ]  # equal for moments with nearly the same future, if the words `approximate` are nearly the same
    approximate: Int64  # times since the moment, and counts of ties
    low: list[Int64]  # by LP: first row of each NPU that is not done
    high: list[Int64]  # by LP: row behind the last one of which something has happened
    kept: list[Any]  # records that the key names


@dataclass(eq=False)
class Notes:
    """What is known of a period while it is noted."""

    begin: Moment
    steps: list[Int64]  # by LP: trace rows of each NPU in a period
    length_ps: int
    flags: list[Any]  # by LP: flags of the rows [low, high) at its begin
    counts: list[Int64]  # by LP: counters then
    links: list[Any]  # by LP: rows of the outgoing links then
    dropped: list[Int64]  # by LP: dropped packets by link then
    buffers: list[ObservedBuffers]  # by LP: what its shared buffers had counted then
    reuse: dict[str, int]  # counts of the records then
    recorded: list[tuple[int, int]]  # by LP: blocks of flow records that it had


class Steady:
    """Finds stretches of a run that are nearly equal, for fast-forward."""

    def __init__(self) -> None:
        """Begin without a moment."""
        self._last: dict[tuple[Any, ...], Moment] = {}  # the last moment of each shape
        self._lengths_ps: dict[tuple[Any, ...], list[int]] = {}  # of the latest periods between these
        self._recent_ps: list[int] = []

    def earlier(self, moment: Moment, tolerance: float) -> Moment | None:
        """Return an earlier moment near this one, if the latest periods were equal but for a part `tolerance`."""
        last = self._last.get(moment.shape)
        lengths_ps = self.add(moment, moment.earliest_ps - last.earliest_ps if last else 0)
        if last is None or len(lengths_ps) < SAMPLES or max(lengths_ps) - min(lengths_ps) > tolerance * min(lengths_ps):
            return None
        return last if self.is_near(last, moment, tolerance) else None

    def add(self, moment: Moment, length_ps: int) -> list[int]:
        """Add a moment at the end of a period that is length_ps long, 0 = of none; return the latest lengths."""
        self._last[moment.shape] = moment
        self._recent_ps = self._lengths_ps.setdefault(moment.shape, [])
        self._recent_ps += [length_ps] if length_ps else []
        del self._recent_ps[:-MAX_SAMPLES]
        return self._recent_ps

    def is_near(self, earlier: Moment, moment: Moment, tolerance: float) -> bool:
        """Return whether `moment` differs from `earlier` by at most a part `tolerance` of the time between them."""
        if not tolerance or earlier.shape != moment.shape:
            return False
        most_ps = tolerance * (moment.earliest_ps - earlier.earliest_ps)
        return bool(np.abs(moment.approximate - earlier.approximate).max(initial=0) <= most_ps)

    def mean_and_spread_ps(self, length_ps: int) -> tuple[int, int]:
        """Return how long the latest periods, and one that is length_ps long, are on average, and differ at most."""
        lengths_ps = [*self._recent_ps, length_ps]
        return sum(lengths_ps) // len(lengths_ps), max(lengths_ps) - min(lengths_ps)
