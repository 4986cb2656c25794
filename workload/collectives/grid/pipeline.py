"""What streams take on an idle fabric of which each dimension does one phase at a time."""

import heapq
from collections.abc import Sequence

from workload.collectives.grid.levels import Levels
from workload.collectives.grid.phases import phase_ps, phases


def idle_ps(levels: Levels, kind: str, streams: Sequence[tuple[int, ...]], algorithms: str, size_bytes: int) -> float:
    """Picoseconds of a collective whose splits take the dimensions as `streams` says."""
    every = [
        [
            (phase.dimension, phase_ps(levels, phase, algorithms, size_bytes / len(streams)))
            for phase in phases(kind, order)
        ]
        for order in streams
    ]
    return pipelined_ps(every)


def pipelined_ps(streams: Sequence[Sequence[tuple[int, float]]]) -> float:
    """When the last stream ends, if a dimension does one phase at a time, in the order in which they become ready.

    Of equal streams that come through each dimension once, that is the first one's phases, and of each further stream
    the longest phase.

    Args:
        streams: of each, its phases: dimension and picoseconds.
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
