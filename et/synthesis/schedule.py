"""The order of messages of each role, and the contents of the passes between them, as bags without an order.

A *pass* is the work of a role between two of its messages: the forward pass of a micro-batch from its receive to its
send, or the rest of a step after the last message. The next message is learned by counting what followed the same
situation of a role: its last messages, how many more it has sent to each other role than received from it, and which
messages remain. Pipeline schedules follow such rules, so the order also fits other numbers of micro-batches.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from nadi.et.synthesis.streams import RECEIVE, SEND, Operation, Stream, is_message, signed_distance

# The contents of a pass as bags: operations with classes and their counts, without an order.
#
# A long pass repeats something, usually layers. It is divided into parts that all end with the same operation and
# class, the *landmark* of the pass: the one with which the fewest bits describe the contents of the parts and the order
# of their events (minimum description length: Rissanen, Automatica 14, 1978). So the method needs no definition of a
# layer.

ClassifiedOperation = tuple[Operation, int]  # an operation and the class of its value
Bag = tuple[tuple[Operation, int, int], ...]  # operation, class (`et.synthesis.templates`) and count, ascending
Parts = tuple[Bag, ...]
_MANY_PARTS = 4  # number of parts from which a stretched pass has more or fewer parts instead of larger or smaller ones
_TOLERANCE = 0.05  # relative deviation from the wanted number of events that needs no change of parts


def divisions_of(pass_events: Sequence[ClassifiedOperation]) -> list[list[int]]:
    """Return the possible divisions of a pass into parts, each as the end of every part.

    There is one for each possible landmark (a repeated event), and the division into one part.

    Args:
        pass_events: The events of the pass in order.
    """
    landmarks = [None, *(each for each, count in Counter(pass_events).items() if count > 1)]
    divisions = []
    for landmark in landmarks:
        ends = [at for at, event in enumerate(pass_events, 1) if event == landmark]
        divisions.append(ends if not pass_events or ends[-1:] == [len(pass_events)] else [*ends, len(pass_events)])
    return divisions


def ends_of_parts(pass_events: Sequence[ClassifiedOperation]) -> list[int]:
    """Return the division of a pass that takes fewest bits to describe.

    Args:
        pass_events: The events of the pass in order.
    """
    distinct = len(set(pass_events))
    return min(divisions_of(pass_events), key=lambda ends: _bits(parts_of(pass_events, ends), distinct))


def parts_of(pass_events: Sequence[ClassifiedOperation], ends: Sequence[int] | None = None) -> Parts:
    """Return the bag of each part of a pass.

    Args:
        pass_events: The events of the pass in order.
        ends: The number of events up to the end of each part; None = those of `ends_of_parts`.
    """
    ends = ends_of_parts(pass_events) if ends is None else ends
    parts = (Counter(pass_events[begin:end]) for begin, end in zip([0, *ends], ends, strict=False))
    return tuple(tuple(sorted((*each, count) for each, count in part.items())) for part in parts)


def events_in(parts: Iterable[Bag]) -> int:
    """Return the number of events in parts.

    Args:
        parts: Bags of events.
    """
    return sum(count for bag in parts for _, _, count in bag)


def stretched(parts: Parts, factor: float) -> Parts:
    """Return parts with more or fewer events: with other numbers of parts first, then with larger parts.

    Args:
        parts: The parts of a pass.
        factor: The wanted number of events, relative to the number in `parts`.
    """
    target = factor * events_in(parts)
    if len(parts) >= _MANY_PARTS:
        count = max(round(factor * len(parts)), 1)
        # Repeat or omit parts evenly
        parts = tuple(parts[number * len(parts) // count] for number in range(count))
    remaining = target / max(events_in(parts), 1)
    return parts if abs(remaining - 1) <= _TOLERANCE else tuple(_scaled(bag, remaining) for bag in parts)


def _bits(parts: Parts, num_distinct_events: int) -> float:
    """Return the bits that describe parts and one order of their events.

    Each distinct bag is described once, then the runs of equal bags; numbers are in Elias's gamma code.
    """
    distinct = set(parts)
    # Equal layers in a row are one run, which costs the bits of its length only: layers are cheap landmarks
    runs = [len(list(run)) for _, run in groupby(parts)]
    bits: float = _gamma_bits(len(runs) + 1) + sum(_gamma_bits(run) + math.log2(len(distinct)) for run in runs)
    for bag in distinct:
        bits += _gamma_bits(len(bag) + 1) + sum(
            math.log2(num_distinct_events) + _gamma_bits(count) for *_, count in bag
        )
    for bag in parts:  # log2 of the number of orders of its events
        counts = [count for *_, count in bag]
        bits += (math.lgamma(sum(counts) + 1) - sum(math.lgamma(count + 1) for count in counts)) / math.log(2)
    return bits


def _scaled(bag: Bag, factor: float) -> Bag:
    """Return a bag with `factor` times the count of each class; the sum is the nearest integer, at least 1."""
    exact = [factor * count for _, _, count in bag]
    counts = [int(count) for count in exact]
    # The largest remainders are rounded up
    missing = max(round(sum(exact)), 1) - sum(counts)
    for at in sorted(range(len(bag)), key=lambda at: counts[at] - exact[at])[:missing]:
        counts[at] += 1
    pairs = zip(bag, counts, strict=True)
    return tuple((operation, number, count) for (operation, number, _), count in pairs if count)


def _gamma_bits(number: int) -> int:
    """Return the bits of a number of at least 1 in Elias's gamma code."""
    return 2 * int(math.log2(number)) + 1


Messages = Mapping[tuple[int, int], int]  # number of messages by sender and receiver
Context = tuple[object, ...]
_Following = dict[Context, Counter[Operation]]
_Shares = Counter[tuple[int, Operation, Operation]]
_MAXIMUM_AHEAD = 16  # messages sent beyond those received; a context counts no further
_REACH = 32  # maximum number of earlier messages that a context holds
_FEW = 4  # remaining messages of one operation that a context counts exactly
_NEAREST_STREAMS = 3  # learned streams, those with the closest shares of passes, that are searched before all


class Pass(NamedTuple):
    """A kind of pass; the first fields matter most where a kind must replace another."""

    role: int  # role that does the pass
    after: Operation | None  # message that ends the pass; None for the last pass of the role
    before: Operation | None  # message that the pass follows; None for the first pass of the role
    is_last: bool  # whether no message like `after` follows in this role


class PlannedPass(NamedTuple):
    """A pass of a plan: its kind, and the contents of its parts."""

    kind: Pass  # kind of the pass
    parts: Parts  # contents of the pass, part by part

    @property
    def events(self) -> int:
        """Number of events without the message that ends the pass."""
        return events_in(self.parts)


Plan = list[list[PlannedPass]]  # the passes of each role; the last one of each has no message after it


def spans_of(stream: Stream, role: int) -> list[tuple[Pass, int, int]]:
    """Return the passes of a role, with the begin and end of each pass's events.

    The message that ends a pass is not among its events.

    Args:
        stream: The events of each role in order.
        role: A role, from 0.
    """
    operations = [event.operation for event in stream.roles[role]]
    remaining = Counter(filter(is_message, operations))
    before: Operation | None = None
    begin = 0
    spans = []
    for at, operation in enumerate(operations):
        if is_message(operation):
            remaining[operation] -= 1
            spans.append((Pass(role, operation, before, remaining[operation] == 0), begin, at))
            before, begin = operation, at + 1
    return [*spans, (Pass(role, None, before, is_last=True), begin, len(operations))]


def messages_of(stream: Stream) -> Counter[tuple[int, int]]:
    """Return the number of messages from each role to each other role.

    Args:
        stream: The events of each role in order.
    """
    return Counter(
        (role, (role + event.operation.roles_away) % stream.layout.roles)
        for role, events in enumerate(stream.roles)
        for event in events
        if event.operation.kind == SEND
    )


class Schedule:
    """The order of messages, counted in streams.

    Schedules with the same number of roles may differ: interleaved stages send further ahead. So the order is looked up
    by the last messages, first in the streams whose shares of kinds of passes are closest, then in all streams.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = list(map(_message_order, streams))
        self._in_all = self._count(range(len(streams)), 0)  # what followed each context in all streams

    def plan(
        self, num_roles: int, message_counts: Messages, passes: Mapping[Pass, Sequence[Parts]], num_events: int
    ) -> Plan:
        """Return the passes of each role of a new stream, with the messages in an order that can happen.

        Kinds of passes without given contents take those of the most similar kind. If a kind has more or fewer passes
        than given, their sequence is stretched.

        Args:
            num_roles: The number of roles.
            message_counts: The number of messages by sender and receiver.
            passes: The contents of the passes of each kind, in order.
            num_events: The approximate number of events of all roles, messages included; passes are stretched to reach
                it.
        """
        of_role = _messages_by_role(num_roles, message_counts)
        kinds: list[list[Pass]] = [[] for _ in range(num_roles)]
        before: list[Operation | None] = [None] * num_roles
        shares = _shares(Counter({kind: len(own) for kind, own in passes.items()}))
        # Streams with the same roles and channels, those with the most similar shares of passes first
        by_distance = sorted(
            (sum(abs(shares[key] - each.shares[key]) for key in {*shares, *each.shares}), number)
            for number, each in enumerate(self._streams)
            if each.roles == num_roles and each.messages.keys() == message_counts.keys()
        )
        nearest = [number for _, number in by_distance[:_NEAREST_STREAMS]]
        for role, operation in _order(
            of_role,
            [(self._count(nearest[:1], _REACH), _REACH), (self._count(nearest, _REACH), _REACH), (self._in_all, 0)],
        ):
            kinds[role].append(Pass(role, operation, before[role], of_role[role].remaining[operation] == 0))
            before[role] = operation
        for role in range(num_roles):
            kinds[role].append(Pass(role, None, before[role], is_last=True))
        totals = Counter(kind for own in kinds for kind in own)
        so_far: Counter[Pass] = Counter()
        plan: Plan = [[] for _ in range(num_roles)]
        for role, own in enumerate(kinds):
            for kind in own:
                # Lists of bools compare like numbers: the first field that differs decides
                similar = max(passes, key=lambda other: [a == b for a, b in zip(other, kind, strict=True)])
                # Stretched evenly: of three given contents six passes take 0 0 1 1 2 2
                contents = passes[similar]
                plan[role].append(PlannedPass(kind, contents[so_far[kind] * len(contents) // totals[kind]]))
                so_far[kind] += 1
        planned = sum(each.events for own in plan for each in own)
        # Each message has two events, a send and a receive, outside the passes
        stretch = (num_events - 2 * sum(message_counts.values())) / max(planned, 1)
        return [[each._replace(parts=stretched(each.parts, stretch)) for each in own] for own in plan]

    def _count(self, stream_numbers: Sequence[int], reach: int) -> _Following:
        """Count what follows each context, with up to `reach` earlier messages, in some learned streams."""
        following: _Following = defaultdict(Counter)
        for stream in (self._streams[number] for number in stream_numbers):
            for role, operations in zip(_messages_by_role(stream.roles, stream.messages), stream.order, strict=True):
                for operation in operations:
                    for context in role.contexts(reach):
                        following[context][operation] += 1
                    role.push(operation)
        return following


class _MessageOrder(NamedTuple):
    """The messages of a stream, those of each role in order, and its shares of kinds of passes."""

    roles: int  # number of roles
    messages: Messages  # number of messages by sender and receiver
    order: list[list[Operation]]  # sends and receives of each role, in order
    shares: _Shares  # share of each kind of pass among those between two messages


def _message_order(stream: Stream) -> _MessageOrder:
    """Return the messages of each role in order, and the share of each kind of pass."""
    roles = stream.layout.roles
    order = [list(filter(is_message, (event.operation for event in events))) for events in stream.roles]
    kinds = Counter(kind for role in range(roles) for kind, *_ in spans_of(stream, role))
    return _MessageOrder(roles, messages_of(stream), order, _shares(kinds))


def _shares(count_of_pass: Counter[Pass]) -> _Shares:
    """Return the share of each role and pair of messages among the passes between two messages."""
    counts: _Shares = Counter()
    for kind, count in count_of_pass.items():
        if kind.before is not None and kind.after is not None:
            counts[kind.role, kind.before, kind.after] += count
    total = counts.total()
    return Counter({key: count / total for key, count in counts.items()})  # type: ignore[misc]


class _RoleMessages:
    """The messages of one role so far, and those that remain.

    `channels` is the number of pairs of roles that exchange messages. All roles share `in_flight`, the number of
    messages sent and not yet received, by sender and receiver.
    """

    def __init__(self, roles: int, channels: int, role: int, in_flight: Counter[tuple[int, int]]) -> None:
        self.role = role
        self.remaining: Counter[Operation] = Counter()
        self._roles, self._channels, self._in_flight = roles, channels, in_flight
        self._before: tuple[int, ...] = ()  # the last messages, each as a number
        self._ahead: Counter[int] = Counter()  # messages sent minus those received, by distance of the other role
        self._done: Counter[Operation] = Counter()  # messages so far, by operation

    def open(self) -> list[Operation]:
        """Return the operations that remain, receives first."""
        return sorted(operation for operation, count in self.remaining.items() if count > 0)

    def contexts(self, reach: int) -> Iterator[Context]:
        """Yield what the next message may depend on: with up to `reach` earlier messages, most specific first.

        Args:
            reach: The maximum number of earlier messages that a context holds.
        """
        ahead = tuple(
            sorted((other, min(max(count, -_MAXIMUM_AHEAD), _MAXIMUM_AHEAD)) for other, count in self._ahead.items())
        )
        place = (self._roles, self._channels, self.role, self._before[-1:])
        remaining = tuple(self.open())
        counts = tuple(self.remaining[operation] for operation in remaining)
        if reach:
            totals = tuple(count + self._done[operation] for operation, count in self.remaining.items())
            yield (*place, ahead, totals, counts)
        while reach > 1:
            yield (*place, self._before[-reach:], ahead, remaining, tuple(min(count, _FEW) for count in counts))
            yield (*place, self._before[-reach:], ahead, remaining)
            reach //= 2
        yield (*place, ahead, remaining)
        yield (*place, ahead)
        yield (*place, remaining)
        yield place

    def can_happen(self, operation: Operation) -> bool:
        """Return whether an operation is a send, or the receive of a message that has been sent.

        Args:
            operation: A send or receive of this role.
        """
        other = (self.role + operation.roles_away) % self._roles
        return operation.kind == SEND or self._in_flight[other, self.role] > 0

    def push(self, operation: Operation) -> None:
        """Record that the next message, an operation of this role, has happened.

        Args:
            operation: A send or receive of this role.
        """
        is_send = operation.kind == SEND
        other = (self.role + operation.roles_away) % self._roles
        self._in_flight[(self.role, other) if is_send else (other, self.role)] += 1 if is_send else -1
        self.remaining[operation] -= 1
        self._done[operation] += 1
        # Distance and direction as one number
        self._before = (*self._before, 2 * operation.roles_away + is_send)[-_REACH:]
        self._ahead[operation.roles_away] += 1 if is_send else -1


def _messages_by_role(num_roles: int, message_counts: Messages) -> list[_RoleMessages]:
    """Return the messages of each role, before the first one has happened."""
    in_flight: Counter[tuple[int, int]] = Counter()
    found = [_RoleMessages(num_roles, len(message_counts), role, in_flight) for role in range(num_roles)]
    for (sender, receiver), count in message_counts.items():
        found[sender].remaining[Operation(SEND, signed_distance(num_roles, receiver - sender))] += count
        found[receiver].remaining[Operation(RECEIVE, signed_distance(num_roles, sender - receiver))] += count
    return found


def _order(
    roles: Sequence[_RoleMessages], learned: Sequence[tuple[_Following, int]]
) -> Iterator[tuple[int, Operation]]:
    """Yield the messages of all roles, with the role's number; each role advances until it has to wait.

    `learned` has what followed contexts of a reach in other streams, best match first.
    """
    while any(role.open() for role in roles):
        has_happened = False
        for role in roles:
            while role.open() and role.can_happen(operation := _following(role, learned)):
                has_happened = True
                role.push(operation)
                yield role.role, operation
        if not has_happened:  # the learned order does not fit: take any message that can happen
            possible = ((role, each) for role in roles for each in role.open() if role.can_happen(each))
            role, operation = next(possible)
            role.push(operation)
            yield role.role, operation


def _following(role: _RoleMessages, learned: Sequence[tuple[_Following, int]]) -> Operation:
    """Return the most frequent next message of a role among those that remain."""
    allowed = role.open()
    for following, reach in learned:
        for context in role.contexts(reach):
            for operation, _ in following.get(context, Counter()).most_common():
                if operation in allowed:
                    return operation
    return allowed[0]
