"""How large and how long the events of a stream are: a few classes for each operation, numbered as they first come.

Traces repeat few sizes and times. Those of one operation that are within a sixteenth of an octave (4 %), or 1 byte or
microsecond, of each other are a class; a stream says of each event its class, and a table what each class means.
Numbers go by first appearance, so that streams of small and of large models, whose tables differ, are alike. Where an
operation would have more than MOST_CLASSES, as measured times may, its classes are wider.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from et.synthesis.streams import RECEIVE, Operation, Stream, StreamEvent

NOTHING, FIRST = 1, 2
"""Tokens of values: of events without one, and of the first class."""
MOST_CLASSES = 32
_WIDTH_OCTAVES = 1 / 16

Table = Mapping[Operation, tuple[float, ...]]
"""Mean value of each class of an operation, bytes or microseconds; of sends, of all directions together."""


class Valued(NamedTuple):
    """The classes of a stream.

    Attributes:
        table: what they mean.
        tokens: of each event, NOTHING or FIRST and its class.
    """

    table: Table
    tokens: list[int]


@cache
def key_of(operation: Operation) -> Operation:
    """Under which operation the table has its classes."""
    return operation._replace(roles_away=0)


def has_value(event: StreamEvent) -> bool:
    """Whether an event has a size or time of its own; a receive is as large as its send."""
    return event.value > 0 and event.operation.kind != RECEIVE


def valued(stream: Stream) -> Valued:
    """The classes of a stream."""
    values: dict[Operation, set[int]] = defaultdict(set)
    for event in stream.events:
        if has_value(event):
            values[key_of(event.operation)].add(event.value)
    bins = {key: _bins(own) for key, own in values.items()}
    numbers: dict[Operation, dict[int, int]] = defaultdict(dict)
    sums: dict[Operation, list[list[int]]] = defaultdict(list)
    tokens = []
    for event in stream.events:
        if not has_value(event):
            tokens.append(NOTHING)
            continue
        key = key_of(event.operation)
        place = bins[key][event.value]
        number = numbers[key].setdefault(place, len(numbers[key]))
        if number == len(sums[key]):
            sums[key].append([])
        sums[key][number].append(event.value)
        tokens.append(FIRST + number)
    return Valued({key: tuple(sum(own) / len(own) for own in lists) for key, lists in sums.items()}, tokens)


def _bins(values: set[int]) -> dict[int, int]:
    """The class of each value, ascending."""
    width = _WIDTH_OCTAVES
    while True:
        found: dict[int, int] = {}
        last, number = -1.0, -1
        for value in sorted(values):
            if value > last:
                last, number = max(value * 2**width, value + 1), number + 1
            found[value] = number
        if number < MOST_CLASSES:
            return found
        width *= 2
