"""Walk of a trace: each node starts when its parents are done, as in a simulation, and nodes run concurrently.

Communication is nonblocking; the operations of a group, or with a peer and tag, start in the order of the trace, and
the player polls them for completion. Compute and memory nodes take no time, or sleep for the duration in the trace, one
at a time per lane.
"""

import heapq
import time
from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.studies.replay.steps import ReplayOperation, ReplaySteps
from nadi.workload.node_kinds import COMPUTE, MEMORY

Bytes = NDArray[np.uint8]


class Transport(Protocol):
    """The library that executes single operations."""

    def begin(self, operation: ReplayOperation) -> Any:  # noqa: ANN401 - its own
        """Start an operation and return the argument of `is_done`."""

    def is_done(self, started: Any) -> bool:  # noqa: ANN401 - its own
        """Return whether an operation is complete on this rank.

        Args:
            started: The value that `begin` returned.
        """


class OperationTimes(NamedTuple):
    """Start and duration of each node: int64[n] nanoseconds, on a clock that starts with the replay."""

    start_ns: Int64
    duration_ns: Int64


class _Player:
    """State of the replay of one rank's trace."""

    def __init__(self, steps: ReplaySteps, transport: Transport, *, sleeps: bool) -> None:
        self._steps = steps
        self._transport = transport
        self._sleeps = sleeps
        self._waits_for = steps.parents.tolist()
        # Ascending rows are a heap already. The row decides among ready nodes: ranks with equal traces act alike.
        self._ready = [row for row, parents in enumerate(self._waits_for) if parents == 0]
        self._started: list[tuple[int, Any]] = []
        self._sleeping: list[tuple[int, int]] = []
        self._lanes: dict[int, deque[int]] = {}
        self._channel_of = {row: number for number, rows in steps.channel.items() for row in rows}
        self._next = dict.fromkeys(steps.channel, 0)
        # communication rows whose parents are done, but which wait for an earlier row of their channel
        self._held: set[int] = set()
        self._left = len(steps.kind)
        self._start, self._end = np.zeros(self._left, np.int64), np.zeros(self._left, np.int64)
        self._zero = time.perf_counter_ns()

    def play(self) -> OperationTimes:
        """Replay all nodes."""
        while self._left:
            while self._ready:
                self._take(heapq.heappop(self._ready))
            now = self._now()
            while self._sleeping and self._sleeping[0][0] <= now:
                self._wake(heapq.heappop(self._sleeping)[1])
            self._started = [(row, started) for row, started in self._started if not self._finish_if_done(row, started)]
            if not self._ready:
                time.sleep(0)  # yields the core to gloo's threads and to other ranks of this machine
        return OperationTimes(self._start, self._end - self._start)

    def _now(self) -> int:
        return time.perf_counter_ns() - self._zero

    def _take(self, row: int) -> None:
        """Process a row whose parents are done."""
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
        """Start the rows of a channel that are ready, in the order of the trace."""
        rows = self._steps.channel[channel]
        # MPI and gloo match collectives of a group by the order of calls. If one rank began B before A and another A
        # before B, both would wait for ever, or exchange wrong data.
        while self._next[channel] < len(rows) and rows[self._next[channel]] in self._held:
            row = rows[self._next[channel]]
            self._held.discard(row)
            self._next[channel] += 1
            self._start[row] = self._now()
            self._started.append((row, self._transport.begin(self._steps.operations[row])))

    def _finish_if_done(self, row: int, started: Any) -> bool:  # noqa: ANN401 - the transport's
        """Return whether an operation is complete; if so, finish its row."""
        if not self._transport.is_done(started):
            return False
        self._finish(row)
        return True

    def _sleep(self, row: int) -> None:
        """Start the sleep of a compute or memory node."""
        self._start[row] = self._now()
        heapq.heappush(self._sleeping, (int(self._start[row] + self._steps.duration_ns[row]), row))

    def _wake(self, row: int) -> None:
        """End a sleep and start the next one of its lane."""
        lane = self._lanes[int(self._steps.lane[row])]
        lane.popleft()
        self._finish(row)
        if lane:
            self._sleep(lane[0])

    def _finish(self, row: int) -> None:
        """Record the end of a row and release its children."""
        self._end[row] = self._now()
        self._left -= 1
        steps = self._steps
        for child in steps.child[steps.child_ptr[row] : steps.child_ptr[row + 1]].tolist():
            self._waits_for[child] -= 1
            if self._waits_for[child] == 0:
                heapq.heappush(self._ready, child)


def play(steps: ReplaySteps, transport: Transport, *, sleeps: bool) -> OperationTimes:
    """Replay the trace of one rank.

    Args:
        steps: The operations of this rank and their dependencies.
        transport: The library that sends messages and runs collectives.
        sleeps: Whether compute and memory nodes sleep for their duration.
    """
    return _Player(steps, transport, sleeps=sleeps).play()


class Buffers:
    """A pool of byte arrays by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def take(self, size: int) -> Bytes:
        """Return an array that no other operation uses.

        Args:
            size: The number of bytes.
        """
        free = self._free.get(size)
        if free:
            return free.pop()
        array = np.empty(size, np.uint8)
        array[:] = 0  # touches every page, so that the operating system maps it now
        return array

    def give(self, *arrays: Bytes) -> None:
        """Return arrays to the pool."""
        for array in arrays:
            self._free.setdefault(len(array), []).append(array)
