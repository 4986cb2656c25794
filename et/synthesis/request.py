"""What a new trace set should contain: layout, length, messages, contents of passes, sizes and times."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from et.synthesis.classes import ClassTable, classify
from et.synthesis.layout import SetLayout
from et.synthesis.parts import Parts, parts_of
from et.synthesis.schedule import Messages, Pass, messages_of, spans_of
from et.synthesis.streams import COMPUTE, HOST, RECEIVE, Operation, Stream

MICROS = "micros"
TotalKey = tuple[str, int | str]


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
    """Return the request that describes a stream."""
    classified = classify(stream)
    totals: dict[TotalKey, float] = defaultdict(float)
    passes: dict[Pass, list[Parts]] = defaultdict(list)
    for role, (events, classes) in enumerate(zip(stream.roles, classified.classes, strict=True)):
        for event in events:
            totals[total_of(role, event.operation)] += event.value if event.operation.kind != RECEIVE else 0
        for kind, begin, end in spans_of(stream, role):
            own = [
                (event.operation, number) for event, number in zip(events[begin:end], classes[begin:end], strict=True)
            ]
            passes[kind].append(parts_of(own))
    count = sum(map(len, stream.roles))
    return SynthesisRequest(stream.layout, count, messages_of(stream), dict(passes), classified.table, dict(totals))


def total_of(role: int, operation: Operation) -> TotalKey:
    """Return the key of the total that an event adds to."""
    return (MICROS, role) if operation.kind in {COMPUTE, HOST} else (operation.kind, operation.slot)
