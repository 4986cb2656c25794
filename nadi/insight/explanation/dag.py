"""Moments and what must lie between them: an acyclic graph whose longest ways are times.

A vertex is a moment. An edge u -> v with weight w says that v is no sooner than w after u. The time of a vertex is the
largest of those over its edges, and of one without edges its `begin`. Vertices are gone through level by level, so that
an evaluation is a few array operations for each level.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class CyclicError(ValueError):
    """The moments cannot be put in order."""

    exit_code = 1


class Edges(NamedTuple):
    """E edges.

    Attributes:
        source, target: int64[E], vertices.
        weight: float64[E], picoseconds.
    """

    source: Int64
    target: Int64
    weight: Float64


class Dag:
    """A graph of moments.

    Attributes:
        edges: in the order of evaluation: by level of their target, then by target.
        place: int64[E], where each edge stood in what was given.
    """

    def __init__(self, vertices: int, edges: Edges, begin: Float64) -> None:
        """Put the vertices in order.

        Args:
            vertices: how many.
            edges: in any order.
            begin: float64[vertices], the time of a vertex without edges.

        Raises:
            CyclicError: there is a cycle.
        """
        self._vertices, self._begin = vertices, begin
        level = _levels(vertices, edges)
        self.place = np.lexsort((edges.target, level[edges.target]))
        self.edges = Edges(edges.source[self.place], edges.target[self.place], edges.weight[self.place])
        target = self.edges.target
        self._first = np.flatnonzero(np.diff(target, prepend=-1))
        self._heads = target[self._first]
        of_head = level[self._heads]
        self._ends = np.searchsorted(of_head, np.arange(1, int(of_head.max(initial=0)) + 2))

    def times(self, weight: Float64 | None = None) -> Float64:
        """float64[vertices], picoseconds; weight: float64[E], as `edges` has them, None = theirs."""
        weight = self.edges.weight if weight is None else weight
        time = self._begin.copy()
        source, first = self.edges.source, np.append(self._first, len(self.edges.source))
        begin = 0
        for end in self._ends.tolist():
            if end > begin:
                low, high = first[begin], first[end]
                arrivals = time[source[low:high]] + weight[low:high]
                time[self._heads[begin:end]] = np.maximum.reduceat(arrivals, first[begin:end] - low)
            begin = end
        return time

    def path(self, last: int, time: Float64, weight: Float64 | None = None) -> list[int]:
        """Edges, as numbers of `edges`, of a longest way to a vertex, the first one first.

        Args:
            last: where it ends.
            time: of `times(weight)`.
            weight: as there.
        """
        weight = self.edges.weight if weight is None else weight
        found: list[int] = []
        at = last
        order = np.argsort(self._heads, kind="stable")
        heads, first = self._heads[order], np.append(self._first, len(weight))
        while True:
            place = int(np.searchsorted(heads, at))
            if place == len(heads) or heads[place] != at:
                return found[::-1]
            low, high = first[order[place]], first[order[place] + 1]
            edge = int(low + np.argmax(time[self.edges.source[low:high]] + weight[low:high]))
            found.append(edge)
            at = int(self.edges.source[edge])


def _levels(vertices: int, edges: Edges) -> Int64:
    """int64[vertices]: edges on the way with most edges to each."""
    order = np.argsort(edges.source, kind="stable")
    target = edges.target[order]
    ptr = np.searchsorted(edges.source[order], np.arange(vertices + 1))
    missing = np.bincount(edges.target, minlength=vertices)
    level, now = np.zeros(vertices, np.int64), np.flatnonzero(missing == 0)
    number, seen = 0, 0
    while len(now):
        level[now] = number
        seen, number = seen + len(now), number + 1
        count = ptr[now + 1] - ptr[now]
        begin = np.repeat(ptr[now] - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
        reached = target[begin + np.arange(count.sum())]
        reached, times = np.unique(reached, return_counts=True)
        missing[reached] -= times
        now = reached[missing[reached] == 0]
    if seen < vertices:
        raise CyclicError(f"{vertices - seen:,} of {vertices:,} moments wait for each other")
    return level
