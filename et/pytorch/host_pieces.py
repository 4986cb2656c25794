"""The host's time as one sequence of pieces: at each moment one operator or call owns it.

Threads of a training step alternate: the main thread waits while autograd's thread runs the backward pass. Where
several have something open, the one that began last owns the time, because the others wait for it. So the pieces add
up to the time that passed, on however many threads.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

NO_OWNER = -1


class HostSpan(NamedTuple):
    """A stretch of the host's time that one owner claims."""

    start_ns: int  # begin of the span
    end_ns: int  # end of the span
    owner: int  # number of the owner, from 0


class HostPiece(NamedTuple):
    """A stretch of the host's time that one owner got."""

    start_ns: int  # begin of the piece
    end_ns: int  # end of the piece; equal to start_ns for an owner that got no time
    owner: int  # number of the owner, or NO_OWNER where no span was open
    is_first: bool  # whether the piece is the owner's first one


def pieces(spans: Sequence[HostSpan], begin_ns: int, end_ns: int) -> list[HostPiece]:
    """Give every moment to the open span that began last, or to NO_OWNER where none is open.

    The pieces are in order without gaps between them, at least one per span.

    Args:
        spans: Spans within the period, in any order, but outer ones before inner ones that begin at the same time.
        begin_ns: The begin of the period.
        end_ns: The end of the period.
    """
    ordered = sorted(range(len(spans)), key=lambda i: spans[i].start_ns)
    starts = [spans[i].start_ns for i in ordered]
    open_spans: list[tuple[int, int]] = []  # (-place in order, span): the last to begin is the first of the heap
    seen: set[int] = set()
    result: list[HostPiece] = []
    now, place = begin_ns, 0
    while now < end_ns or place < len(ordered):
        while place < len(ordered) and starts[place] <= now:
            if open_spans and place and starts[place] == starts[place - 1]:
                _append(result, seen, now, now, ordered[place - 1])  # an inner span begins with it: a piece of no time
            heapq.heappush(open_spans, (-place, ordered[place]))
            place += 1
        while open_spans and spans[open_spans[0][1]].end_ns <= now:
            over = heapq.heappop(open_spans)[1]
            if over not in seen:
                _append(result, seen, now, now, over)
        # The owner changes at the next begin of a span, or when the owner's span ends
        until = starts[place] if place < len(ordered) else end_ns
        owner = NO_OWNER
        if open_spans:
            owner = open_spans[0][1]
            until = min(until, spans[owner].end_ns)
        _append(result, seen, now, max(until, now), owner)
        if until <= now and not open_spans and place >= len(ordered):
            break
        now = max(until, now)
    for _, over in sorted(open_spans, reverse=True):
        if over not in seen:
            _append(result, seen, now, now, over)
    return result


def _append(host_pieces: list[HostPiece], seen_owners: set[int], start_ns: int, end_ns: int, owner: int) -> None:
    """Append a piece of an owner, or make the last one longer; `seen_owners` have a piece already."""
    if owner in seen_owners and start_ns == end_ns:
        return
    if host_pieces and host_pieces[-1].owner == owner:
        host_pieces[-1] = host_pieces[-1]._replace(end_ns=end_ns)
        return
    if owner == NO_OWNER and start_ns == end_ns:
        return
    host_pieces.append(HostPiece(start_ns, end_ns, owner, owner not in seen_owners))
    seen_owners.add(owner)
