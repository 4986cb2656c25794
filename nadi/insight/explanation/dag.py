"""An acyclic graph of moments, whose longest paths give the times of the moments.

A vertex is a moment. An edge u -> v with weight w means that v is at least w after u. The time of a vertex is the
maximum over its incoming edges, and `begin` for a vertex without incoming edges. The evaluation goes level by level, so
that it takes a few array operations per level.
"""

from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Float64, Int64, spans
from nadi.inputs.errors import NadiError


class CyclicError(NadiError, ValueError):
    """An order of the moments does not exist."""


class Edges(NamedTuple):
    """E edges."""

    source: Int64  # int64[E], vertex at the begin
    target: Int64  # int64[E], vertex at the end
    weight: Float64  # float64[E], minimum delay in picoseconds


class Dag:
    """A graph of moments (vertices) and waits (E edges), to find the longest paths.

    `edges` are sorted by level of their target, `place` holds the former index of each.
    """

    def __init__(self, vertices: int, edges: Edges, begin: Float64) -> None:
        """Sort the vertices; begin: float64[vertices], time of one without incoming edges. Refuse cycles."""
        self._begin = begin
        level = _levels(vertices, edges)
        # edges by level of their end, so that each level needs those before it only
        self.place = np.lexsort((edges.target, level[edges.target]))
        self.edges = Edges(edges.source[self.place], edges.target[self.place], edges.weight[self.place])
        target = self.edges.target
        self._first = np.flatnonzero(np.diff(target, prepend=-1))
        self._heads = target[self._first]
        of_head = level[self._heads]
        self._ends = np.searchsorted(of_head, np.arange(1, int(of_head.max(initial=0)) + 2))

    def times(self, weight: Float64 | None = None) -> Float64:
        """Return float64[vertices], picoseconds; weight: float64[E], sorted as `edges`, None = their own weights."""
        weight = self.edges.weight if weight is None else weight
        time = self._begin.copy()
        source, first = self.edges.source, np.append(self._first, len(self.edges.source))
        begin = 0
        for end in self._ends.tolist():
            if end > begin:
                low, high = first[begin], first[end]
                arrivals = time[source[low:high]] + weight[low:high]
                # all vertices of a level at once
                time[self._heads[begin:end]] = np.maximum.reduceat(arrivals, first[begin:end] - low)
            begin = end
        return time

    def path(self, last: int, time: Float64) -> list[int]:
        """Return the edges, as indices, of a longest path to the vertex `last`, in order; time: result of `times()`."""
        weight = self.edges.weight
        found: list[int] = []
        at = last
        order = np.argsort(self._heads, kind="stable")
        heads, first = self._heads[order], np.append(self._first, len(weight))
        while True:
            place = int(np.searchsorted(heads, at))
            if place == len(heads) or heads[place] != at:
                return found[::-1]
            low, high = first[order[place]], first[order[place] + 1]
            # the incoming edge that arrived last; of several, the first
            edge = int(low + np.argmax(time[self.edges.source[low:high]] + weight[low:high]))
            found.append(edge)
            at = int(self.edges.source[edge])


def _levels(num_vertices: int, edges: Edges) -> Int64:
    """Return int64[vertices]: number of edges on the path with most edges to each vertex."""
    order = np.argsort(edges.source, kind="stable")
    target = edges.target[order]
    ptr = np.searchsorted(edges.source[order], np.arange(num_vertices + 1))
    missing = np.bincount(edges.target, minlength=num_vertices)
    level, now = np.zeros(num_vertices, np.int64), np.flatnonzero(missing == 0)
    number, seen = 0, 0
    while len(now):
        level[now] = number
        seen, number = seen + len(now), number + 1
        count = ptr[now + 1] - ptr[now]
        reached = target[spans(ptr[now], count)[1]]
        reached, times = np.unique(reached, return_counts=True)
        # a vertex is reached when the last of its incoming edges has been followed
        missing[reached] -= times
        now = reached[missing[reached] == 0]
    if seen < num_vertices:
        raise CyclicError(f"{num_vertices - seen:,} of {num_vertices:,} moments wait for each other")
    return level
