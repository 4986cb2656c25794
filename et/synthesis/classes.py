"""Classes of sizes and times: most traces repeat few values.

Values of one operation within a sixteenth of an octave (4 %), or within 1 byte or microsecond, form one class; a table
holds the mean of each class. The classes of an operation are numbered by their first appearance in the stream.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from et.synthesis.streams import RECEIVE, Operation, Stream, StreamEvent

NO_VALUE = -1  # class of events without a value of their own; a receive is as large as its send
_MAX_CLASSES = 32
"""Maximum number of classes of one operation; where there would be more, as measured times may give, classes widen."""
_WIDTH_OCTAVES = 1 / 16

ClassTable = Mapping[Operation, tuple[float, ...]]
"""Mean value of each class of an operation, in bytes or microseconds; sends in all directions share one entry."""


class ClassifiedStream(NamedTuple):
    """The classes of a stream."""

    table: ClassTable  # mean value of each class
    # class of each event of each role, NO_VALUE or an index into the table's entry of its operation
    classes: list[list[int]]


def key_of(operation: Operation) -> Operation:
    """Return the operation whose table entry holds the classes of an operation."""
    return operation._replace(roles_away=0)


def classify(stream: Stream) -> ClassifiedStream:
    """Return the classes of a stream."""
    values: dict[Operation, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in (event for events in stream.roles for event in events if _has_value(event)):
        values[key_of(event.operation)][event.value].append(event.value)
    table: dict[Operation, tuple[float, ...]] = {}
    class_of: dict[tuple[Operation, int], int] = {}
    for key, own in values.items():
        bins = _bins(own)
        numbers: dict[int, int] = {}
        members: list[list[int]] = []
        for value, repeated in own.items():
            number = numbers.setdefault(bins[value], len(numbers))
            if number == len(members):
                members.append([])
            members[number] += repeated
            class_of[key, value] = number
        table[key] = tuple(sum(each) / len(each) for each in members)
    classes = [
        [class_of[key_of(event.operation), event.value] if _has_value(event) else NO_VALUE for event in events]
        for events in stream.roles
    ]
    return ClassifiedStream(table, classes)


def _has_value(event: StreamEvent) -> bool:
    return event.value > 0 and event.operation.kind != RECEIVE


def _bins(values: Mapping[int, object]) -> dict[int, int]:
    """Return the bin of each value, in ascending order of values."""
    width = _WIDTH_OCTAVES
    while True:
        bins: dict[int, int] = {}
        end, number = -1.0, -1
        for value in sorted(values):
            if value > end:
                end, number = max(value * 2**width, value + 1), number + 1
            bins[value] = number
        if number < _MAX_CLASSES:
            return bins
        width *= 2
