"""Streams as numbers: each event is three tokens, what it is, how large, and which events before it it waits for.

Sizes and times are told by their class (et.synthesis.classes). Distances of parents are exact up to 8, then in half
octaves.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from et.synthesis.classes import FIRST, MOST_CLASSES, NOTHING, valued
from et.synthesis.schedule import Schedule
from et.synthesis.streams import Operation, Stream, away

Int32 = NDArray[np.int32]

UNKNOWN, END = 0, 1
FIELDS = ("what", "value", "parents")
VALUES = FIRST + MOST_CLASSES
"""Tokens of values: unknown, no value, and each class."""
_EXACT = 8
_MOST_PARENTS = 4


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
        operations: of all tokens.
        schedule: the order of their messages.
    """

    what: tuple[Token, ...]
    parents: tuple[tuple[int, ...], ...]
    operations: tuple[Operation, ...]
    schedule: Schedule

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many tokens each field has."""
        return len(self.what) + 2, VALUES, len(self.parents) + 1


def words_of(streams: Sequence[Stream]) -> Words:
    """The tokens that streams use, and what an event can be besides: each turn with each operation."""
    what: dict[Token, None] = {}
    parents: dict[tuple[int, ...], None] = {}
    for stream in streams:
        what.update(dict.fromkeys(_turns(stream)))
        parents.update(dict.fromkeys(pattern(event.parents) for event in stream.events))
    operations = dict.fromkeys(token.operation for token in what)
    turns = dict.fromkeys(token.turn for token in what)
    what.update(dict.fromkeys(Token(turn, operation) for turn in turns for operation in operations))
    return Words(tuple(what), tuple(parents), tuple(operations), Schedule(streams))


def encode(words: Words, stream: Stream) -> Int32:
    """int32[events + 1, 3]: the tokens of a stream, with the end."""
    what = {token: number for number, token in enumerate(words.what, 2)}
    parents = {distances: number for number, distances in enumerate(words.parents, 1)}
    rows = [
        (what.get(token, UNKNOWN), value, parents.get(pattern(event.parents), UNKNOWN))
        for token, value, event in zip(_turns(stream), valued(stream).tokens, stream.events, strict=True)
    ]
    return np.array([*rows, (END, NOTHING, UNKNOWN)], np.int32)


def pattern(parents: Sequence[int]) -> tuple[int, ...]:
    """Distances of the nearest parents, as they are told apart."""
    return tuple(sorted({_rounded(distance) for distance in parents[:_MOST_PARENTS]}))


def _rounded(distance: int) -> int:
    return distance if distance <= _EXACT else round(2 ** (round(2 * math.log2(distance)) / 2))


def _turns(stream: Stream) -> list[Token]:
    before = [0, *(event.role for event in stream.events[:-1])]
    roles = stream.layout.roles
    return [
        Token(away(roles, event.role - role), event.operation)
        for role, event in zip(before, stream.events, strict=True)
    ]
