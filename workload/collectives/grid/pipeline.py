"""The time of streams on an idle fabric whose dimensions do one phase at a time each."""

import heapq
from collections.abc import Sequence

from workload.collectives.grid.levels import Levels
from workload.collectives.grid.phases import phase_ps, phases


def idle_ps(levels: Levels, kind: str, streams: Sequence[tuple[int, ...]], algorithms: str, size_bytes: int) -> float:
    """Return the time of a collective in picoseconds; streams: the order of dimensions of each split."""
    every = [
        [
            (phase.dimension, phase_ps(levels, phase, algorithms, size_bytes / len(streams)))
            for phase in phases(kind, order)
        ]
        for order in streams
    ]
    return pipelined_ps(every)


def pipelined_ps(streams: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Return the end of the last stream, if a dimension runs one phase at a time, in order of readiness.

    For equal streams that use each dimension once, this is the sum of one stream's phases, plus the longest phase for
    each further stream.

    Args:
        streams: Phases of each stream: dimension and picoseconds.
    """
    free: dict[int, float] = {}
    last = 0.0
    ready = [(0.0, 0, i) for i, stream in enumerate(streams) if stream]
    while ready:
        now, number, i = heapq.heappop(ready)
        dimension, phase = streams[i][number]
        end = free[dimension] = max(now, free.get(dimension, 0.0)) + phase
        last = max(last, end)
        if number + 1 < len(streams[i]):
            heapq.heappush(ready, (end, number + 1, i))
    return last
