"""The order of messages of each role, and what is in the passes between them.

A *pass* is what a role does from one of its messages to the next: the forward pass of a micro-batch from its receive to
its send, what is left of a step after the last message. Which message comes next is learned by counting what followed
the same situation of a role: its last message, how many more it has sent to each other role than taken from it, and
which messages are left. That is what pipeline schedules go by, so that other numbers of micro-batches follow.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from et.synthesis.classes import Valued
from et.synthesis.parts import Parts, events_in, parts_of, stretched
from et.synthesis.streams import RECEIVE, SEND, Operation, Stream, away

Messages = Mapping[tuple[int, int], int]
"""How many, by sender and receiver."""
Context = tuple[object, ...]
_Following = dict[Context, Counter[Operation]]
_Shares = Counter[tuple[int, Operation, Operation]]
_MOST_AHEAD = 16
_REACH = 32
_FEW = 4
_MOST_NEAREST = 3


class Pass(NamedTuple):
    """A kind of pass.

    Attributes:
        role: whose.
        before: the message that it follows; None = it is the role's first.
        after: the message that ends it; None = there is none after it.
        is_last: no such message comes after that one.
    """

    role: int
    before: Operation | None
    after: Operation | None
    is_last: bool


class Planned(NamedTuple):
    """A pass that is to come: what is in its parts, and the message that ends it."""

    parts: Parts
    after: Operation | None

    @property
    def events(self) -> int:
        """How many it has, without that message."""
        return events_in(self.parts)


Plan = list[list[Planned]]
"""The passes of each role; the last of each is ended by no message."""


def messages_of(stream: Stream) -> dict[tuple[int, int], int]:
    """How many messages go from role to role."""
    found: Counter[tuple[int, int]] = Counter()
    for event in stream.events:
        if event.operation.kind == SEND:
            found[event.role, (event.role + event.operation.roles_away) % stream.layout.roles] += 1
    return dict(found)


def passes_of(stream: Stream, classes: Valued) -> dict[Pass, tuple[Parts, ...]]:
    """What is in the passes of each kind, in their order."""
    found: dict[Pass, list[Parts]] = defaultdict(list)
    for role in range(stream.layout.roles):
        own = [
            (event.operation, token)
            for event, token in zip(stream.events, classes.tokens, strict=True)
            if event.role == role
        ]
        left = Counter(operation for operation, _ in own if operation.kind in {SEND, RECEIVE})
        before: Operation | None = None
        inside: list[tuple[Operation, int]] = []
        for operation, token in own:
            if operation not in left:
                inside.append((operation, token))
                continue
            left[operation] -= 1
            found[Pass(role, before, operation, left[operation] == 0)].append(parts_of(inside))
            before, inside = operation, []
        found[Pass(role, before, None, is_last=True)].append(parts_of(inside))
    return {kind: tuple(own) for kind, own in found.items()}


class Schedule:
    """What message comes next, counted in streams.

    Schedules of as many roles may differ: interleaved stages run ahead by more. So first those streams are asked whose
    shares of kinds of passes are nearest to what is wanted, with the last messages before, then all streams.

    Args:
        streams: that it is learned from.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._next: _Following = defaultdict(Counter)
        self._lately: dict[object, list[tuple[_Following, int]]] = {}
        self._streams = [_Ordered.of(stream) for stream in streams]
        for stream in self._streams:
            _count(stream, self._next, 0)

    def plan(self, roles: int, messages: Messages, passes: Mapping[Pass, Sequence[Parts]], events: int) -> Plan:
        """The passes of each role: messages in an order in which they can happen.

        Args:
            roles: how many.
            messages: that are to be sent and received.
            passes: what is in the passes of each kind; others have what the most alike have. Where more or fewer of a
                kind are to come, their sequence is stretched.
            events: of all roles; passes are stretched to it.
        """
        kinds: list[list[tuple[Pass, Operation | None]]] = [[] for _ in range(roles)]
        before: list[Operation | None] = [None] * roles
        lines = _lines(roles, messages)
        known = self._nearest(roles, messages, passes)
        for role, operation in self._order(lines, known):
            kinds[role].append((Pass(role, before[role], operation, lines[role].left[operation] == 0), operation))
            before[role] = operation
        for role in range(roles):
            kinds[role].append((Pass(role, before[role], None, is_last=True), None))
        many = Counter(kind for own in kinds for kind, _ in own)
        so_far: Counter[Pass] = Counter()
        found: Plan = [[] for _ in range(roles)]
        for role, own in enumerate(kinds):
            for kind, after in own:
                alike = _most_alike(passes, kind)
                found[role].append(Planned(alike[so_far[kind] * len(alike) // many[kind]], after))
                so_far[kind] += 1
        planned = sum(each.events for own in found for each in own)
        stretch = (events - 2 * sum(messages.values())) / max(planned, 1)
        return [[each._replace(parts=stretched(each.parts, stretch)) for each in own] for own in found]

    def _nearest(
        self, roles: int, messages: Messages, passes: Mapping[Pass, Sequence[Parts]]
    ) -> "list[tuple[_Following, int]]":
        """What followed what in the streams whose kinds of passes have the nearest shares; in all, at the end."""
        shares = _shares({kind: len(own) for kind, own in passes.items()})
        alike = [
            (sum(abs(shares[key] - each.shares[key]) for key in {*shares, *each.shares}), number)
            for number, each in enumerate(self._streams)
            if each.roles == roles and each.messages.keys() == messages.keys()
        ]
        chosen = [number for _, number in sorted(alike)[:_MOST_NEAREST]]
        key = (roles, *chosen)
        if key not in self._lately:
            nearest, near = self._counted(chosen[:1]), self._counted(chosen)
            self._lately = {key: [(nearest, _REACH), (near, _REACH), (self._next, 0)]}
        return self._lately[key]

    def _counted(self, numbers: Sequence[int]) -> "_Following":
        found: _Following = defaultdict(Counter)
        for number in numbers:
            _count(self._streams[number], found, _REACH)
        return found

    def _order(
        self, lines: "Sequence[_Line]", known: "Sequence[tuple[_Following, int]]"
    ) -> Iterator[tuple[int, Operation]]:
        """Messages of all roles; each goes on until it has to wait."""
        on_the_way: Counter[tuple[int, int]] = Counter()
        while any(line.open() for line in lines):
            happened = False
            for line in lines:
                while line.open():
                    operation = _following(line, known)
                    if not _can_happen(line, operation, on_the_way):
                        break
                    happened = True
                    yield line.role, _happen(line, operation, on_the_way)
            if not happened:  # what was learned does not fit: any that can happen
                possible = (
                    (line, operation)
                    for line in lines
                    for operation in line.open()
                    if _can_happen(line, operation, on_the_way)
                )
                line, operation = next(possible)
                yield line.role, _happen(line, operation, on_the_way)


def _following(line: "_Line", known: "Sequence[tuple[_Following, int]]") -> Operation:
    """The likeliest next message of a role, of those that are left."""
    allowed = line.open()
    for following, reach in known:
        for context in line.contexts(reach):
            seen = following.get(context, Counter())
            likely = [operation for operation, _ in seen.most_common() if operation in allowed]
            if likely:
                return likely[0]
    return allowed[0]


class _Ordered(NamedTuple):
    """The messages of a stream in order, and its shares of kinds of passes."""

    roles: int
    messages: Messages
    order: list[tuple[int, Operation]]
    shares: "_Shares"

    @classmethod
    def of(cls, stream: Stream) -> "_Ordered":
        """Those of a stream."""
        order = [(each.role, each.operation) for each in stream.events if each.operation.kind in {SEND, RECEIVE}]
        before: dict[int, Operation] = {}
        kinds: Counter[Pass] = Counter()
        for role, operation in order:
            kinds[Pass(role, before.get(role), operation, is_last=False)] += 1
            before[role] = operation
        return cls(stream.layout.roles, messages_of(stream), order, _shares(kinds))


def _shares(kinds: Mapping[Pass, int]) -> "_Shares":
    """Of passes between two messages, by role and both."""
    found: _Shares = Counter()
    for kind, many in kinds.items():
        if kind.before is not None and kind.after is not None:
            found[kind.role, kind.before, kind.after] += many
    total = sum(found.values())
    return Counter({key: many / total for key, many in found.items()})


def _count(stream: _Ordered, following: "_Following", reach: int) -> None:
    """Count what follows what in a stream."""
    lines = _lines(stream.roles, stream.messages)
    for role, operation in stream.order:
        for context in lines[role].contexts(reach):
            following[context][operation] += 1
        lines[role].push(operation)


class _Line:
    """The messages of one role, as far as they have come."""

    def __init__(self, roles: int, channels: int, role: int, left: Counter[Operation]) -> None:
        self.roles = roles
        self.role = role
        self._channels = channels
        self.left = left
        self._all = tuple(left.values())
        self._before: tuple[int, ...] = ()
        self._ahead: Counter[int] = Counter()

    def open(self) -> list[Operation]:
        """Messages that are left, receives first."""
        return sorted(operation for operation, many in self.left.items() if many > 0)

    def contexts(self, reach: int) -> Iterator[Context]:
        """What the next message may depend on, the most exact first; with so many messages before it, at most."""
        ahead = tuple(sorted((other, min(max(many, -_MOST_AHEAD), _MOST_AHEAD)) for other, many in self._ahead.items()))
        place = (self.roles, self._channels, self.role, self._before[-1:])
        left = tuple(self.open())
        few = tuple(min(self.left[operation], _FEW) for operation in left)
        if reach:
            yield (*place, ahead, self._all, tuple(self.left[operation] for operation in left))
        while reach > 1:
            yield (*place, self._before[-reach:], ahead, left, few)
            yield (*place, self._before[-reach:], ahead, left)
            reach //= 2
        yield (*place, ahead, left)
        yield (*place, ahead)
        yield (*place, left)
        yield place

    def push(self, operation: Operation) -> None:
        """Take in the next message."""
        self.left[operation] -= 1
        self._before = (*self._before, _code(operation))[-_REACH:]
        self._ahead[operation.roles_away] += 1 if operation.kind == SEND else -1


def _lines(roles: int, messages: Messages) -> list[_Line]:
    left: list[Counter[Operation]] = [Counter() for _ in range(roles)]
    for (sender, receiver), many in messages.items():
        left[sender][Operation(SEND, away(roles, receiver - sender))] += many
        left[receiver][Operation(RECEIVE, away(roles, sender - receiver))] += many
    return [_Line(roles, len(messages), role, own) for role, own in enumerate(left)]


def _code(operation: Operation) -> int:
    """A message as a number: numbers are compared sooner."""
    return 2 * operation.roles_away + (operation.kind == SEND)


def _can_happen(line: _Line, operation: Operation, on_the_way: Mapping[tuple[int, int], int]) -> bool:
    other = (line.role + operation.roles_away) % line.roles
    return operation.kind == SEND or on_the_way[other, line.role] > 0


def _happen(line: _Line, operation: Operation, on_the_way: Counter[tuple[int, int]]) -> Operation:
    other = (line.role + operation.roles_away) % line.roles
    line.push(operation)
    if operation.kind == SEND:
        on_the_way[line.role, other] += 1
    else:
        on_the_way[other, line.role] -= 1
    return operation


def _most_alike(passes: Mapping[Pass, Sequence[Parts]], kind: Pass) -> Sequence[Parts]:
    """What passes of a kind have, or those of the kind most like it."""
    return max(
        passes.items(),
        key=lambda item: (
            item[0].role == kind.role,
            item[0].after == kind.after,
            item[0].before == kind.before,
            item[0].is_last == kind.is_last,
        ),
    )[1]
