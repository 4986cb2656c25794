"""Streams as numbers: each event is three tokens, what it is, how large, and which events before it it waits for.

Values are logarithms in quarters of an octave, counted from the middle one of their stream, so that traces of small and
of large models look alike; what is left within a quarter is kept as the mean of each token and value. Distances of
parents are exact up to 8, then in half octaves.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from et.synthesis.schedule import Schedule
from et.synthesis.streams import COMPUTE, HOST, RECEIVE, Operation, Stream, StreamEvent, away

Int32 = NDArray[np.int32]

UNKNOWN, END = 0, 1
FIELDS = ("what", "value", "parents")
_STEPS_PER_OCTAVE = 4
_MOST_STEPS = 80
NOTHING, _MIDDLE = 1, 2 + _MOST_STEPS
VALUES = _MIDDLE + _MOST_STEPS + 1
"""Tokens of values: unknown, no value, and from -80 to 80 quarters of an octave."""
_EXACT = 8
_MOST_PARENTS = 4


class Middles(NamedTuple):
    """log2 of the middle value of a stream: microseconds, and bytes."""

    micros: float
    bytes: float


class Token(NamedTuple):
    """What an event is, as a token: how many roles the turn has gone on, and the operation."""

    turn: int
    operation: Operation


@dataclasses.dataclass(frozen=True)
class Words:
    """The tokens that a set of streams uses; 0 stands for any other one.

    Attributes:
        what: by number from 2 on; 1 is the end.
        parents: patterns of distances, by number from 1 on.
        rest: mean of what is left of log2(value) within its quarter, by token and value token.
        schedule: the order of their messages.
    """

    what: tuple[Token, ...]
    parents: tuple[tuple[int, ...], ...]
    rest: dict[tuple[int, int], float]
    schedule: Schedule

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many tokens each field has."""
        return len(self.what) + 2, VALUES, len(self.parents) + 1


def is_time(operation: Operation) -> bool:
    """Whether its value is microseconds."""
    return operation.kind in {COMPUTE, HOST}


def middles_of(events: Sequence[StreamEvent]) -> Middles:
    """The middle values of a stream."""
    found = []
    for timed in (True, False):
        own = [event.value for event in events if is_time(event.operation) == timed and event.value > 0]
        found.append(float(np.median(np.log2(own))) if own else 0.0)
    return Middles(*found)


def words_of(streams: Sequence[Stream]) -> Words:
    """The tokens that streams use."""
    what: dict[Token, int] = {}
    parents: dict[tuple[int, ...], int] = {}
    left: dict[tuple[int, int], list[float]] = defaultdict(list)
    for stream in streams:
        middles = middles_of(stream.events)
        for token, event in zip(_turns(stream), stream.events, strict=True):
            number = what.setdefault(token, len(what) + 2)
            parents.setdefault(pattern(event.parents), len(parents) + 1)
            value, rest = _value(event, middles)
            left[number, value].append(rest)
    rests = {key: float(np.mean(values)) for key, values in left.items()}
    return Words(tuple(what), tuple(parents), rests, Schedule(streams))


def encode(words: Words, stream: Stream) -> Int32:
    """int32[events + 1, 3]: the tokens of a stream, with the end."""
    what = {token: number for number, token in enumerate(words.what, 2)}
    parents = {distances: number for number, distances in enumerate(words.parents, 1)}
    middles = middles_of(stream.events)
    rows = [
        (what.get(token, UNKNOWN), _value(event, middles)[0], parents.get(pattern(event.parents), UNKNOWN))
        for token, event in zip(_turns(stream), stream.events, strict=True)
    ]
    return np.array([*rows, (END, NOTHING, UNKNOWN)], np.int32)


def exponent(words: Words, what: int, value: int) -> float | None:
    """log2 of a value above the middle of its stream; None = the event has none."""
    if value in {UNKNOWN, NOTHING}:
        return None
    return (value - _MIDDLE) / _STEPS_PER_OCTAVE + words.rest.get((what, value), 0.0)


def pattern(parents: Sequence[int]) -> tuple[int, ...]:
    """Distances of the nearest parents, as they are told apart."""
    return tuple(sorted({_rounded(distance) for distance in parents[:_MOST_PARENTS]}))


def _rounded(distance: int) -> int:
    return distance if distance <= _EXACT else round(2 ** (round(2 * math.log2(distance)) / 2))


def _value(event: StreamEvent, middles: Middles) -> tuple[int, float]:
    """The token of an event's value, and what is left."""
    if event.value <= 0 or event.operation.kind == RECEIVE:
        return NOTHING, 0.0
    above = math.log2(event.value) - (middles.micros if is_time(event.operation) else middles.bytes)
    steps = min(max(round(_STEPS_PER_OCTAVE * above), -_MOST_STEPS), _MOST_STEPS)
    return _MIDDLE + steps, above - steps / _STEPS_PER_OCTAVE


def _turns(stream: Stream) -> list[Token]:
    before = [0, *(event.role for event in stream.events[:-1])]
    roles = stream.layout.roles
    return [
        Token(away(roles, event.role - role), event.operation)
        for role, event in zip(before, stream.events, strict=True)
    ]
