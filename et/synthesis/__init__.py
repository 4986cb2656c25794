"""Learning from trace sets, and generation of traces like theirs that are valid and repeat nothing of the originals.

`learn` learns from sets whose nodes have durations, `generate` makes a new set. docs/explanation/synthetic-traces.md
describes the method and its limits.
"""

import dataclasses
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nadi.et.synthesis import streams, templates
from nadi.et.synthesis.schedule import Schedule
from nadi.et.synthesis.streams import Groups, Operation, SetLayout, Stream, StreamEvent, TraceSetFields, stream_of
from nadi.et.synthesis.templates import MICROS, PlacedEvent, SynthesisRequest, Templates, TotalKey, request_of
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int32
from nadi.inputs.errors import NadiError

_ATTEMPTS = 16  # times that values are drawn before a set that repeats originals is refused
# Maximum relative deviation of a class from its mean, but at least 1 microsecond or byte, so that small values change;
# and of totals, because otherwise equal numbers of messages would have the very size of an original.
_CLASS_JITTER, _TOTAL_JITTER = 0.035, 0.01
IN_A_ROW = 8  # consecutive sizes or times that count as a repetition of an original
_LARGEST = 2.0**50  # maximum of a generated size or time, far above real ones


class SynthesisError(NadiError, ValueError):
    """No traces that are valid and new were generated."""


class Originals:
    """Names, and sequences of eight sizes or times, of the traces that were learned from."""

    def __init__(self, tables: Iterable[TraceTable]) -> None:
        self._traits = {trait for table in tables for trait in _traits(table)}

    def found_in(self, tables: Sequence[TraceTable]) -> str:
        """Return a description of the first name or sequence that other traces repeat of the originals; "" for none.

        Args:
            tables: The new traces, one for each role.
        """
        for number, table in enumerate(tables):
            for trait in _traits(table):
                if trait in self._traits:
                    is_name = isinstance(trait, str)
                    what = f'the name "{trait}"' if is_name else f"{', '.join(map(str, trait))} in a row"
                    return f"trace {number}: {what}"
        return ""


def _traits(table: TraceTable) -> Iterator[str | tuple[int, ...]]:
    """Yield the names in a trace, and all sequences of eight sizes of messages, and of times of nodes."""
    yield from table.names
    yield from table.group_names[1:]
    for column in (table.comm_size, table.duration_micros):
        # Nodes without a size or time are skipped, so that a sequence is found whatever nodes are between its values
        values = column[column > 0].tolist()
        yield from (tuple(values[at : at + IN_A_ROW]) for at in range(len(values) - IN_A_ROW + 1))


class Learned(NamedTuple):
    """What was learned from trace sets."""

    schedule: Schedule  # order of messages
    templates: Templates  # order and parents of the events between messages
    requests: list[SynthesisRequest]  # SynthesisRequest that describes each learned stream
    originals: Originals  # names and values that new traces must not repeat


@dataclasses.dataclass(frozen=True, eq=False)
class Generated:
    """A new trace set, with the fields of a `TraceSetFields`."""

    traces: list[TraceTable]  # trace of each role
    trace_of_npu: Int32  # int32[npus], role of each NPU
    example_npu: Int32  # int32[roles], first NPU of each role
    families: Mapping[str, Groups]  # groups by name


def learn(trace_sets: Sequence[TraceSetFields]) -> Learned:
    """Learn from trace sets whose compute nodes have durations.

    Args:
        trace_sets: One or more trace sets.
    """
    learned = [streams.stream_of(each) for each in trace_sets]
    of_parts = Templates(learned, [templates.classify(stream).classes for stream in learned])
    originals = Originals(table for each in trace_sets for table in each.traces)
    return Learned(Schedule(learned), of_parts, list(map(templates.request_of, learned)), originals)


def generate(learned: Learned, request: SynthesisRequest, seed: int) -> Generated:
    """Return a new trace set as requested, none of whose sequences of eight sizes or times is in the originals.

    Args:
        learned: The result of `learn`.
        request: The contents of the new trace set, such as one of `learned.requests`, changed or not.
        seed: The seed of all random numbers.
    """
    generator = np.random.default_rng(seed)
    events = ordered_events(learned, request)
    # The order is fixed; only the values are drawn again
    for _ in range(_ATTEMPTS):
        layout = request.layout
        tables = streams.traces_of(Stream(layout, with_values(events, request, generator)))
        repeated = learned.originals.found_in(tables)
        if not repeated:
            roles = np.arange(layout.roles, dtype=np.int32)
            used = {name for table in tables for name in table.group_names}
            families = {name: groups for name, groups in layout.families_by_name().items() if name in used}
            examples = (roles * layout.width).astype(np.int32)
            return Generated(tables, np.repeat(roles, layout.width), examples, families)
    raise SynthesisError(f"synthesis: {repeated} is an original's, expected nothing of the originals")


def ordered_events(learned: Learned, request: SynthesisRequest) -> list[list[PlacedEvent]]:
    """Return the events of each role of a new stream, in an order that can happen.

    Args:
        learned: The result of `learn`.
        request: The contents of the new trace set.
    """
    layout = request.layout
    plan = learned.schedule.plan(layout.roles, request.messages, request.passes, request.events)
    queues: list[deque[PlacedEvent]] = []
    for role, passes in enumerate(plan):
        slots = {"", *(family.slot for family in layout.families if role in family.roles)}
        queue: deque[PlacedEvent] = deque()
        earlier: Operation | None = None
        for kind, parts in passes:
            for number, part in enumerate(parts or ((),)):
                # Operations of groups that the role does not have are left out
                bag = tuple(each for each in part if each[0].slot in slots)
                place = templates.place_of(kind, earlier, number, max(len(parts), 1), layout.roles)
                closing = kind.after if number >= len(parts) - 1 else None
                queue.extend(learned.templates.place_events(bag, place, closing, request.table))
            earlier = kind.before
        queues.append(queue)
    return in_possible_order(layout, queues)


def in_possible_order(layout: SetLayout, planned_events: Sequence[deque[PlacedEvent]]) -> list[list[PlacedEvent]]:
    """Return the events of each role such that collectives of several roles meet and nothing waits for itself.

    Roles advance until they wait for a send, or for the other roles of a collective. If all of them wait, the first
    such collective happens: roles that plan it for later do it now, and roles without it do it in addition.

    Args:
        layout: The roles, and the families of their groups.
        planned_events: The events of each role in the planned order; the queues are emptied.
    """
    done: list[list[PlacedEvent]] = [[] for _ in planned_events]
    in_flight: Counter[tuple[int, int]] = Counter()
    while any(planned_events):
        has_advanced = False
        for role, queue in enumerate(planned_events):
            while queue and _can_happen(layout, role, planned_events, in_flight):
                has_advanced = True
                operation = queue[0].operation
                other = (role + operation.roles_away) % layout.roles
                if operation.kind == streams.SEND:
                    in_flight[role, other] += 1
                elif operation.kind == streams.RECEIVE:
                    in_flight[other, role] -= 1
                value_class = queue[0].value_class
                for member in layout.roles_of(role, operation.slot):
                    done[member].append(planned_events[member].popleft()._replace(value_class=value_class))
        # All roles wait for each other: change the plan of one collective's members
        if not has_advanced:
            role = next(
                role
                for role, queue in enumerate(planned_events)
                if queue and queue[0].operation.kind == streams.COLLECTIVE
            )
            event = planned_events[role][0]
            for member in layout.roles_of(role, event.operation.slot):
                later = next((each for each in planned_events[member] if each.operation == event.operation), None)
                if later is not None:
                    planned_events[member].remove(later)
                planned_events[member].appendleft(later or event)
    return done


def _can_happen(
    layout: SetLayout, role: int, planned_events: Sequence[deque[PlacedEvent]], in_flight: Counter[tuple[int, int]]
) -> bool:
    """Return whether the next event of a role can happen; `in_flight` counts messages by (sender, receiver)."""
    operation = planned_events[role][0].operation
    if operation.kind == streams.RECEIVE:
        return in_flight[(role + operation.roles_away) % layout.roles, role] > 0
    members = layout.roles_of(role, operation.slot)
    return all(planned_events[member] and planned_events[member][0].operation == operation for member in members)


def with_values(
    events_of_role: Sequence[Sequence[PlacedEvent]], request: SynthesisRequest, generator: np.random.Generator
) -> list[list[StreamEvent]]:
    """Return the events of each role with sizes and times.

    Values of a class are equal and near the class's mean; each total is within 1 % of the requested one.

    Args:
        events_of_role: The events of each role in order.
        request: The means of the classes, and the totals.
        generator: The source of random numbers.
    """
    # One value per class, drawn once: equal sizes of an original stay equal in the new set
    drawn = {
        (key, number): max(mean + generator.uniform(-1, 1) * max(_CLASS_JITTER * mean, 1), 1)
        for key, means in request.table.items()
        for number, mean in enumerate(means)
    }
    values = [
        [drawn.get((templates.key_of(event.operation), event.value_class), 0.0) for event in events]
        for events in events_of_role
    ]
    sums: dict[TotalKey, float] = defaultdict(float)
    for role, events in enumerate(events_of_role):
        for event, value in zip(events, values[role], strict=True):
            sums[templates.total_of(role, event.operation)] += value
    scales = {
        key: request.totals.get(key, 0.0) * generator.uniform(1 - _TOTAL_JITTER, 1 + _TOTAL_JITTER) / total
        for key, total in sums.items()
        if total
    }
    generated: list[list[StreamEvent]] = []
    for role, events in enumerate(events_of_role):
        generated.append([])
        for event, value in zip(events, values[role], strict=True):
            scaled = value * scales.get(templates.total_of(role, event.operation), 0)
            number = round(min(max(scaled, 1), _LARGEST)) if scaled else 0
            generated[-1].append(StreamEvent(event.operation, number, event.parents))
    return generated
