"""What a stream is asked to be, as numbers that a model is told at every event."""

import math
from typing import NamedTuple

from et.synthesis.layout import Layout
from et.synthesis.streams import Stream
from et.synthesis.tokens import is_time

CONDITIONS = 8
OF_PROGRESS = 3
BITS_EACH = 16
"""What it costs to say one of the conditions, when models are compared with one that is not told them."""


class Wanted(NamedTuple):
    """What a stream is to be.

    Attributes:
        layout: roles, ranks and groups.
        events: how many, about.
        mean_micros: of compute and host nodes that take any time.
        mean_bytes: of all other events that have a size.
    """

    layout: Layout
    events: int
    mean_micros: float
    mean_bytes: float


def conditions_of(layout: Layout, events: int) -> list[float]:
    """CONDITIONS numbers about as large as 1."""
    own = {each.slot: each for each in layout.families if len(each.roles) == 1}
    sizes = [
        math.log2(own[slot].size) / 3 if slot in own else -0.5
        for slot in ("own, inner 0", "own, outer 0", "own, whole 0", "own, inner 1")
    ]
    return [math.log2(events) / 10, layout.roles / 4, math.log2(layout.width) / 3, len(layout.families) / 20, *sizes]


def progress_of(done: int, events: int) -> list[float]:
    """OF_PROGRESS numbers: how far a stream has come."""
    left = events - done
    return [done / events, math.log2(abs(left) + 1) / 10, 1.0 if left <= 0 else 0.0]


def wanted_of(stream: Stream) -> Wanted:
    """What a stream is."""

    means = []
    for timed in (True, False):
        own = [event.value for event in stream.events if is_time(event.operation) == timed and event.value > 0]
        means.append(sum(own) / len(own) if own else 0.0)
    return Wanted(stream.layout, len(stream.events), *means)
