"""What a new trace set should contain: layout, length, messages, contents of passes, sizes and times.

Most traces repeat few sizes and times. Values of one operation within a sixteenth of an octave (4 %), or within 1 byte
or microsecond, form one *class*; a table holds the mean of each class. Classes of an operation are numbered by their
first appearance in the stream.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nadi.et.synthesis.layout import SetLayout
from nadi.et.synthesis.parts import Parts, parts_of
from nadi.et.synthesis.schedule import Messages, Pass, messages_of, spans_of
from nadi.et.synthesis.streams import COMPUTE, HOST, RECEIVE, Operation, Stream, StreamEvent

MICROS = "micros"
TotalKey = tuple[str, int | str]
NO_VALUE = -1  # class of events without a value of their own; a receive is as large as its send
_MAX_CLASSES = 32  # of one operation; classes widen where there would be more, as with measured times
_WIDTH_OCTAVES = 1 / 16

ClassTable = Mapping[Operation, tuple[float, ...]]
"""Mean value of each class of an operation, in bytes or microseconds; sends in all directions share one entry."""


class ClassifiedStream(NamedTuple):
    """The classes of a stream."""

    table: ClassTable  # mean value of each class
    # class of each event of each role, NO_VALUE or an index into the table's entry of its operation
    classes: list[list[int]]


def key_of(operation: Operation) -> Operation:
    """Return the operation whose table entry holds the classes of an operation.

    Args:
        operation: Any operation; sends of different distances have one key.
    """
    return operation._replace(roles_away=0)


def classify(stream: Stream) -> ClassifiedStream:
    """Return the classes of a stream's sizes and times: similar values of an operation are one class.

    Args:
        stream: The events of each role in order.
    """
    values: dict[Operation, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in (event for events in stream.roles for event in events if _has_value(event)):
        values[key_of(event.operation)][event.value].append(event.value)
    table: dict[Operation, tuple[float, ...]] = {}
    class_of: dict[tuple[Operation, int], int] = {}
    for key, own in values.items():
        bins = _bins(own)
        # Classes are numbered by first appearance, bins by size
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
    """Return the bin of each value; a bin spans up to a fixed ratio, which doubles until there are few bins."""
    width = _WIDTH_OCTAVES
    while True:
        bins: dict[int, int] = {}
        end, number = -1.0, -1
        for value in sorted(values):
            if value > end:
                # A bin reaches 4 % or 1 above its first value, whichever is more, so that small values share bins, too
                end, number = max(value * 2**width, value + 1), number + 1
            bins[value] = number
        if number < _MAX_CLASSES:
            return bins
        width *= 2


class SynthesisRequest(NamedTuple):
    """A request for a new stream."""

    layout: SetLayout  # roles, NPUs per role, and groups
    events: int  # approximate number of events of all roles
    messages: Messages  # number of messages by sender and receiver
    passes: Mapping[Pass, Sequence[Parts]]  # contents of the passes of each kind, in their order
    table: ClassTable  # mean value of each class
    # microseconds of each role's nodes, by MICROS and the role; bytes of all events of a kind, by the kind and, for
    # collectives, the slot of their group
    totals: Mapping[TotalKey, float]


def request_of(stream: Stream) -> SynthesisRequest:
    """Return the request for a trace set like the one that a stream describes.

    Args:
        stream: The events of each role in order.
    """
    classified = classify(stream)
    totals: dict[TotalKey, float] = defaultdict(float)
    passes: dict[Pass, list[Parts]] = defaultdict(list)
    for role, (events, classes) in enumerate(zip(stream.roles, classified.classes, strict=True)):
        for event in events:
            totals[total_of(role, event.operation)] += event.value if event.operation.kind != RECEIVE else 0
        for kind, begin, end in spans_of(stream, role):
            operations = (event.operation for event in events[begin:end])
            own = list(zip(operations, classes[begin:end], strict=True))
            passes[kind].append(parts_of(own))
    count = sum(map(len, stream.roles))
    return SynthesisRequest(stream.layout, count, messages_of(stream), dict(passes), classified.table, dict(totals))


def total_of(role: int, operation: Operation) -> TotalKey:
    """Return the key of the total that an event adds to.

    Args:
        role: The role of the event, from 0.
        operation: The operation of the event.
    """
    return (MICROS, role) if operation.kind in {COMPUTE, HOST} else (operation.kind, operation.slot)
