"""The order of messages of each role, and the contents of the passes between them.

A *pass* is the work of a role between two of its messages: the forward pass of a micro-batch from its receive to its
send, or the rest of a step after the last message. The next message is learned by counting what followed the same
situation of a role: its last messages, how many more it has sent to each other role than received from it, and which
messages remain. Pipeline schedules follow such rules, so the order also fits other numbers of micro-batches.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nadi.et.synthesis.parts import Parts, events_in, stretched
from nadi.et.synthesis.streams import RECEIVE, SEND, Operation, Stream, is_message, signed_distance

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
