"""The host's time as one sequence of pieces: at each moment one operator or call has it.

Threads of a training step take turns: the main thread waits while autograd's thread goes backward. Where several
have something open, the one has the time that began last; it is what the others wait for. So the pieces add up to the
time that passed, and one after another they take as long as they took, on however many threads.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

NOBODY = -1


class HostSpan(NamedTuple):
    """A stretch of the host's time that something asks for.

    Attributes:
        start_ns: when it began.
        end_ns: when it was over.
        owner: whose it is, a number from 0.
    """

    start_ns: int
    end_ns: int
    owner: int


class HostPiece(NamedTuple):
    """A stretch of the host's time that somebody has had.

    Attributes:
        start_ns: when it began.
        end_ns: when it was over; equal to start_ns for an owner who never had any time.
        owner: whose it was; NOBODY: nothing was open.
        is_first: the owner's first piece.
    """

    start_ns: int
    end_ns: int
    owner: int
    is_first: bool


def pieces(spans: Sequence[HostSpan], begin_ns: int, end_ns: int) -> list[HostPiece]:
    """Give every moment from begin_ns to end_ns to the span that began last of those that are open, else to nobody.

    Args:
        spans: within begin_ns .. end_ns, outer ones before inner ones that begin with them.
        begin_ns: first moment.
        end_ns: last moment.

    Returns:
        Pieces in order without gaps between them, at least one for each span.
    """
    ordered = sorted(range(len(spans)), key=lambda i: spans[i].start_ns)
    starts = [spans[i].start_ns for i in ordered]
    open_spans: list[tuple[int, int]] = []  # (-place in order, span): the last to begin is the first of the heap
    seen: set[int] = set()
    made: list[HostPiece] = []
    now, place = begin_ns, 0
    while now < end_ns or place < len(ordered):
        while place < len(ordered) and starts[place] <= now:
            if open_spans and place and starts[place] == starts[place - 1]:
                _give(made, seen, now, now, ordered[place - 1])  # began with another within it: a piece of no time
            heapq.heappush(open_spans, (-place, ordered[place]))
            place += 1
        while open_spans and spans[open_spans[0][1]].end_ns <= now:
            over = heapq.heappop(open_spans)[1]
            if over not in seen:
                _give(made, seen, now, now, over)
        until = starts[place] if place < len(ordered) else end_ns
        owner = NOBODY
        if open_spans:
            owner = open_spans[0][1]
            until = min(until, spans[owner].end_ns)
        _give(made, seen, now, max(until, now), owner)
        if until <= now and not open_spans and place >= len(ordered):
            break
        now = max(until, now)
    for _, over in sorted(open_spans, reverse=True):
        if over not in seen:
            _give(made, seen, now, now, over)
    return made


def _give(made: list[HostPiece], seen: set[int], start_ns: int, end_ns: int, owner: int) -> None:
    """Append a piece, or make the last one longer."""
    if owner in seen and start_ns == end_ns:
        return
    if made and made[-1].owner == owner:
        made[-1] = made[-1]._replace(end_ns=end_ns)
        return
    if owner == NOBODY and start_ns == end_ns:
        return
    made.append(HostPiece(start_ns, end_ns, owner, owner not in seen))
    seen.add(owner)
