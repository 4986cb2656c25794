"""Going through a trace: each node begins when its parents are done, as in a simulation, and as many at a time.

Communication begins without waiting for its end, the operations of a group and those with a peer and tag in the order
of the trace; it is asked again and again whether it is done. A compute or memory node takes no time, or, as a sleep,
the time that the trace says, one after another on each lane.
"""

import heapq
import time
from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nadi.studies.replay.steps import ReplayOperation, ReplaySteps
from workload.node_kinds import COMPUTE, MEMORY

Int64 = NDArray[np.int64]


class Transport(Protocol):
    """What does single operations."""

    def begin(self, operation: ReplayOperation) -> Any:  # noqa: ANN401 - its own
        """Begin an operation; gives what `is_done` takes."""

    def is_done(self, begun: Any) -> bool:  # noqa: ANN401 - its own
        """Whether an operation is complete on this rank."""


class OperationTimes(NamedTuple):
    """When each node began, and how long it took: int64[n] nanoseconds, on a clock that begins with the replay."""

    start_ns: Int64
    duration_ns: Int64


class _Player:
    def __init__(self, steps: ReplaySteps, transport: Transport, *, sleeps: bool) -> None:
        self._steps = steps
        self._transport = transport
        self._sleeps = sleeps
        self._waits_for = steps.parents.tolist()
        self._ready = [row for row, parents in enumerate(self._waits_for) if parents == 0]
        self._begun: list[tuple[int, Any]] = []
        self._sleeping: list[tuple[int, int]] = []
        self._lanes: dict[int, deque[int]] = {}
        self._channel_of = {row: number for number, rows in steps.channel.items() for row in rows}
        self._next = dict.fromkeys(steps.channel, 0)
        self._held: set[int] = set()
        self._left = len(steps.kind)
        self._start, self._end = np.zeros(self._left, np.int64), np.zeros(self._left, np.int64)
        self._zero = time.perf_counter_ns()

    def play(self) -> OperationTimes:
        """Do everything."""
        while self._left:
            while self._ready:
                self._take(heapq.heappop(self._ready))
            now = self._now()
            while self._sleeping and self._sleeping[0][0] <= now:
                self._wake(heapq.heappop(self._sleeping)[1])
            still = [(row, begun) for row, begun in self._begun if not self._was_done(row, begun)]
            self._begun = still
            if not self._ready:
                time.sleep(0)  # whoever else wants the core: threads of gloo, ranks of this machine
        return OperationTimes(self._start, self._end - self._start)

    def _now(self) -> int:
        return time.perf_counter_ns() - self._zero

    def _take(self, row: int) -> None:
        """A row whose parents are done."""
        kind = self._steps.kind[row]
        if row in self._channel_of:
            self._held.add(row)
            self._begin_next(self._channel_of[row])
        elif self._sleeps and kind in {COMPUTE, MEMORY}:
            lane = self._lanes.setdefault(int(self._steps.lane[row]), deque())
            lane.append(row)
            if len(lane) == 1:
                self._sleep(row)
        else:
            self._start[row] = self._now()
            self._finish(row)

    def _begin_next(self, channel: int) -> None:
        """Begin what of a channel may begin."""
        rows = self._steps.channel[channel]
        while self._next[channel] < len(rows) and rows[self._next[channel]] in self._held:
            row = rows[self._next[channel]]
            self._held.discard(row)
            self._next[channel] += 1
            self._start[row] = self._now()
            self._begun.append((row, self._transport.begin(self._steps.operations[row])))

    def _was_done(self, row: int, begun: Any) -> bool:  # noqa: ANN401 - the transport's
        if not self._transport.is_done(begun):
            return False
        self._finish(row)
        return True

    def _sleep(self, row: int) -> None:
        self._start[row] = self._now()
        heapq.heappush(self._sleeping, (int(self._start[row] + self._steps.duration_ns[row]), row))

    def _wake(self, row: int) -> None:
        lane = self._lanes[int(self._steps.lane[row])]
        lane.popleft()
        self._finish(row)
        if lane:
            self._sleep(lane[0])

    def _finish(self, row: int) -> None:
        self._end[row] = self._now()
        self._left -= 1
        steps = self._steps
        for child in steps.child[steps.child_ptr[row] : steps.child_ptr[row + 1]].tolist():
            self._waits_for[child] -= 1
            if self._waits_for[child] == 0:
                heapq.heappush(self._ready, child)


def play(steps: ReplaySteps, transport: Transport, *, sleeps: bool) -> OperationTimes:
    """Replay the trace of one rank; sleeps: compute and memory nodes take their time."""
    return _Player(steps, transport, sleeps=sleeps).play()
