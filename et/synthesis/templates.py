"""What a new trace set should contain, and the order and parents of its events, as in the closest learned part.

A planned part is a bag of events without an order. Its template is chosen among the learned parts with the closest
counts of operations: the one whose place in its pass and whose ratios of sizes and times are closest (nearest
neighbour: Cover and Hart, IEEE Trans. Information Theory 13, 1967). The sizes and times of the bag take the places
that the template gives to values of the same rank.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nadi.et.synthesis import schedule
from nadi.et.synthesis.schedule import Bag, Messages, Parts, Pass
from nadi.et.synthesis.streams import COMPUTE, HOST, RECEIVE, Operation, Parent, SetLayout, Stream, StreamEvent

# What a new trace set should contain: layout, length, messages, contents of passes, sizes and times.
#
# Most traces repeat few sizes and times. Values of one operation within a sixteenth of an octave (4 %), or within 1
# byte or microsecond, form one *class*; a table holds the mean of each class. Classes of an operation are numbered by
# their first appearance in the stream.

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
        for kind, begin, end in schedule.spans_of(stream, role):
            operations = (event.operation for event in events[begin:end])
            own = list(zip(operations, classes[begin:end], strict=True))
            passes[kind].append(schedule.parts_of(own))
    count = sum(map(len, stream.roles))
    return SynthesisRequest(
        stream.layout, count, schedule.messages_of(stream), dict(passes), classified.table, dict(totals)
    )


def total_of(role: int, operation: Operation) -> TotalKey:
    """Return the key of the total that an event adds to.

    Args:
        role: The role of the event, from 0.
        operation: The operation of the event.
    """
    return (MICROS, role) if operation.kind in {COMPUTE, HOST} else (operation.kind, operation.slot)


_PLACES = 2  # places from the start and from the end of a pass that are distinguished; others are the middle
_MISMATCH_OCTAVES = 0.1  # weight of one different property of the place, in octaves of mean difference between values


class Place(NamedTuple):
    """The place of a part in its stream."""

    before: Operation | None  # message that the pass follows
    earlier: Operation | None  # message before that one
    is_last_pass: bool  # whether no message like the one after the pass follows
    from_start: int  # parts before it in the pass, at most _PLACES
    from_end: int  # parts after it in the pass, at most _PLACES
    is_first_role: bool  # whether the part belongs to the first role
    is_last_role: bool  # whether the part belongs to the last role


class PlacedEvent(NamedTuple):
    """An event of a new stream: its operation, class, and parents."""

    operation: Operation  # operation of the event
    value_class: int  # class of its size or time; NO_VALUE = -1
    parents: tuple[Parent, ...]  # parents, the nearest first


class _Template(NamedTuple):
    """A learned part."""

    place: Place  # place of the part
    events: tuple[StreamEvent, ...]  # events of the part
    values: tuple[float, ...]  # log2 of each event's value, 0 for those without
    closing: StreamEvent | None  # message that ends the pass, if the part is its last


_Signature = tuple[tuple[Operation, int], ...]  # operations and their counts, ascending


class Templates:
    """All parts of learned streams, each with the order and the parents of its events."""

    def __init__(self, streams: Sequence[Stream], classes: Sequence[Sequence[Sequence[int]]]) -> None:
        """Learn from streams and the class of each event of each role of each stream."""
        self._by_landmark: dict[_Signature, list[_Template]] = defaultdict(list)  # parts of the passes' best divisions
        self._otherwise: dict[_Signature, list[_Template]] = defaultdict(list)  # parts of all other divisions
        self._found: dict[tuple[Bag, Place, Operation | None], _Template] = {}  # templates that were looked up before
        for stream, of_stream in zip(streams, classes, strict=True):
            for role, of_role in enumerate(of_stream):
                self._learn(stream, role, of_role)

    def _learn(self, stream: Stream, role: int, class_of_event: Sequence[int]) -> None:
        """Learn the parts of a role's passes, divided by every landmark, because similar passes may have others."""
        events = stream.roles[role]
        earlier: Operation | None = None
        for kind, begin, end in schedule.spans_of(stream, role):
            inside = events[begin:end]
            values = [math.log2(event.value) if event.value > 0 else 0.0 for event in inside]
            own = [(event.operation, number) for event, number in zip(inside, class_of_event[begin:end], strict=True)]
            landmark_ends = schedule.ends_of_parts(own)
            for ends in schedule.divisions_of(own):
                templates = self._by_landmark if ends == landmark_ends else self._otherwise
                for number, (first, last) in enumerate(zip([0, *ends], ends or [0], strict=False)):
                    place = place_of(kind, earlier, number, max(len(ends), 1), stream.layout.roles)
                    closing = events[end] if last == len(inside) and end < len(events) else None
                    part = inside[first:last]
                    signature = tuple(sorted(Counter(event.operation for event in part).items()))
                    templates[signature].append(_Template(place, tuple(part), tuple(values[first:last]), closing))
            earlier = kind.before

    def place_events(
        self, bag: Bag, place: Place, closing: Operation | None, class_means: ClassTable
    ) -> list[PlacedEvent]:
        """Return the events of a part in order, followed by the message that ends the pass.

        Args:
            bag: The operations of the part, with their classes and counts.
            place: The place of the part in its stream.
            closing: The message that ends the pass; None if the part is not the last one of its pass, or no message
                follows.
            class_means: The mean value of each class.
        """
        key = bag, place, closing
        if key not in self._found:
            self._found[key] = self._nearest(bag, place, closing, class_means)
        template = self._found[key]
        placed = _filled(bag, template, class_means)
        if closing is not None:
            own = template.closing
            parents = own.parents if own is not None and own.operation == closing else ()
            value_class = 0 if key_of(closing) in class_means else NO_VALUE
            placed.append(PlacedEvent(closing, value_class, parents))
        return placed

    def _nearest(self, bag: Bag, place: Place, closing: Operation | None, class_means: ClassTable) -> _Template:
        """Return the learned part with the most similar events, place and closing message."""
        counts: Counter[Operation] = Counter()
        for operation, _, count in bag:
            counts[operation] += count
        exact = tuple(sorted(counts.items()))
        values = _sorted_values(bag, class_means)
        candidates = self._by_landmark.get(exact) or self._otherwise.get(exact)
        if candidates is None:
            differences = {
                signature: ((counts - (others := Counter(dict(signature)))) + (others - counts)).total()
                for signature in self._by_landmark
            }
            smallest = min(differences.values())
            nearest = [signature for signature, difference in differences.items() if difference == smallest]
            candidates = [template for signature in nearest for template in self._by_landmark[signature]]
        return min(candidates, key=lambda template: _distance(template, values, place, closing))


def place_of(kind: Pass, earlier: Operation | None, part: int, num_parts: int, num_roles: int) -> Place:
    """Return the place of a part in its stream.

    Args:
        kind: The kind of the pass that has the part.
        earlier: The message before the one that the pass follows; None if it does not exist.
        part: The part's number in its pass, from 0.
        num_parts: The number of parts of the pass.
        num_roles: The number of roles of the stream.
    """
    from_start, from_end = min(part, _PLACES), min(num_parts - 1 - part, _PLACES)
    return Place(kind.before, earlier, kind.is_last, from_start, from_end, kind.role == 0, kind.role == num_roles - 1)


def _sorted_values(bag: Bag, class_means: ClassTable) -> dict[Operation, list[tuple[float, int]]]:
    """Return log2 of the mean value and the class of each event of a bag, ascending, by operation."""
    found: dict[Operation, list[tuple[float, int]]] = defaultdict(list)
    for operation, number, count in bag:
        value = 0.0 if number == NO_VALUE else math.log2(class_means[key_of(operation)][number])
        found[operation] += [(value, number)] * count
    return {operation: sorted(own) for operation, own in found.items()}


def _distance(
    template: _Template,
    values_of_operation: dict[Operation, list[tuple[float, int]]],
    place: Place,
    closing: Operation | None,
) -> tuple[bool, float]:
    """Return how much a template differs: in the message after it, and in octaves per event."""
    own_closing = None if template.closing is None else template.closing.operation
    octaves = 0.0
    for operation, targets in values_of_operation.items():
        pairs = zip(template.events, template.values, strict=True)
        own = sorted(value for event, value in pairs if event.operation == operation)
        if len(own) != len(targets):
            continue
        # Only ratios count: other sizes or faster devices shift all logarithms alike
        shift = (sum(own) - sum(value for value, _ in targets)) / len(own)
        octaves += sum(abs(value - other + shift) for (value, _), other in zip(targets, own, strict=True))
    mismatches = sum(own_property != other for own_property, other in zip(template.place, place, strict=True))
    return own_closing != closing, octaves / max(len(template.events), 1) + _MISMATCH_OCTAVES * mismatches


def _filled(bag: Bag, template: _Template, class_means: ClassTable) -> list[PlacedEvent]:
    """Return the events of a bag in the order of a template, with its parents."""
    at_of: dict[Operation, list[int]] = defaultdict(list)
    for at, event in enumerate(template.events):
        at_of[event.operation].append(at)
    placed: list[tuple[int, int, PlacedEvent]] = []
    for operation, values in _sorted_values(bag, class_means).items():
        own, count = at_of[operation], len(values)
        # If the counts differ, events share places or leave some free
        places = [own[i * len(own) // count] for i in range(count)] if own else [len(template.events)] * count
        by_value = sorted(range(count), key=lambda i: template.values[places[i]] if own else 0.0)
        for i, (_, number) in zip(by_value, values, strict=True):
            parents = template.events[places[i]].parents if own else ((operation, 0),)
            placed.append((places[i], i, PlacedEvent(operation, number, parents)))
    return [event for *_, event in sorted(placed)]
