"""What a stream is asked to be and how far it has come, as numbers that a model is told at every event."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from et.synthesis.layout import SetLayout
from et.synthesis.schedule import Pass, Plan, messages_of, passes_of
from et.synthesis.streams import RECEIVE, SEND, Operation, Stream, StreamEvent, taking_part
from et.synthesis.tokens import END, UNKNOWN, Words, is_time

CONDITIONS = 10
OF_SITUATION = 25
BITS_EACH = 16
"""What it costs to say one number, when models are compared with one that is not told them."""
MICROS = "micros"
_SLOTS_TOLD = ("own, inner 0", "own, outer 0", "own, whole 0", "own, inner 1")


class Wanted(NamedTuple):
    """What a stream is to be.

    Attributes:
        layout: roles, ranks and groups.
        events: how many, about.
        messages: how many there are, by sender and receiver.
        passes: events of each kind of pass, about.
        role_events: events of each role's turns, about.
        totals: microseconds of each role's nodes, by "micros" and the role; bytes of all events of a kind, by the kind
            and, of collectives, the slot of their groups.
    """

    layout: SetLayout
    events: int
    messages: Mapping[tuple[int, int], int]
    passes: Mapping[Pass, int]
    role_events: tuple[int, ...]
    totals: Mapping[tuple[str, int | str], float]

    @property
    def sends(self) -> int:
        """Messages of all roles."""
        return sum(self.messages.values())

    @property
    def told_bits(self) -> int:
        """What it costs to say all that a model is told of it."""
        return BITS_EACH * (CONDITIONS + len(self.messages) + len(self.passes))

    @property
    def period(self) -> float:
        """Events between two messages of a role, about."""
        return self.events / (2 * self.sends + 1)

    def conditions(self) -> list[float]:
        """CONDITIONS numbers about as large as 1; sizes and times are not among them."""
        layout = self.layout
        own = {each.slot: each for each in layout.families if len(each.roles) == 1}
        sizes = [math.log2(own[slot].size) / 3 if slot in own else -0.5 for slot in _SLOTS_TOLD]
        of_all = [math.log2(self.events) / 10, math.log2(self.sends + 1) / 5, math.log2(self.period) / 5]
        of_all += [len(layout.families) / 20]
        return [*of_all, layout.roles / 4, math.log2(layout.width) / 3, *sizes]


def wanted_of(stream: Stream) -> Wanted:
    """What a stream is."""
    totals: dict[tuple[str, int | str], float] = defaultdict(float)
    for event in stream.events:
        totals[total_of(event.role, event.operation)] += event.value if event.operation.kind != RECEIVE else 0
    many = Counter(event.role for event in stream.events)
    of_roles = tuple(many[role] for role in range(stream.layout.roles))
    return Wanted(stream.layout, len(stream.events), messages_of(stream), passes_of(stream), of_roles, dict(totals))


def total_of(role: int, operation: Operation) -> tuple[str, int | str]:
    """Which of the totals an event counts to."""
    return (MICROS, role) if is_time(operation) else (operation.kind, operation.slot)


class Situation:
    """How far a stream has come, and what is planned.

    Attributes:
        plan: passes of each role.
        role: whose turn it is.
        done: events.
        of_role: events of each role.
        on_the_way: messages sent and not received yet, by sender and receiver.
    """

    def __init__(self, words: Words, wanted: Wanted) -> None:
        roles = wanted.layout.roles
        self._words = words
        self._wanted = wanted
        self._in_turn = 0
        self._sent, self._taken = [0] * roles, [0] * roles
        self._passes, self._in_pass = [0] * roles, [0] * roles
        self.plan: Plan = words.schedule.plan(roles, wanted.messages, wanted.passes, wanted.events)
        self.role = 0
        self.done = 0
        self.of_role = [0] * roles
        self.on_the_way: dict[tuple[int, int], int] = defaultdict(int)

    def left_of(self, role: int) -> int:
        """Events that are left of a role's pass by the plan; less than 0 where it has more."""
        return self.plan[role][self._passes[role]].events - self._in_pass[role]

    def coming_of(self, role: int) -> Operation | None:
        """The message that ends a role's pass."""
        return self.plan[role][self._passes[role]].after

    def is_there(self, role: int) -> bool:
        """Whether the message that ends a role's pass can happen."""
        coming = self.coming_of(role)
        if coming is None:
            return False
        sender = (role + coming.roles_away) % self._wanted.layout.roles
        return coming.kind == SEND or self.on_the_way[sender, role] > 0

    def can_go_on(self, role: int) -> bool:
        """Whether a role has something to do by the plan."""
        return self.left_of(role) > 0 or self.is_there(role)

    def numbers(self) -> list[float]:
        """OF_SITUATION numbers, most of them from 0 to 2."""
        roles, events, role = self._wanted.layout.roles, self._wanted.events, self.role
        left = events - self.done
        arriving = sum(many for (_, other), many in self.on_the_way.items() if other == role)
        of_each = roles / max(self._wanted.sends, 1)
        elsewhere = sum(self.on_the_way.values()) - arriving
        return [
            self.done / events,
            math.log2(abs(left) + 1) / 10,
            1.0 if left <= 0 else 0.0,
            role / roles,
            self.of_role[role] * roles / events,
            min(arriving, 4) / 4,
            min(elsewhere, 4) / 4,
            math.log2(self._in_turn + 1) / 6,
            self._sent[role] * of_each,
            self._taken[role] * of_each,
            (self._sent[role] - self._taken[role]) / 4,
            (roles - 1 - role) / 4,
            *self._of_plan(),
        ]

    def _of_plan(self) -> list[float]:
        roles, role = self._wanted.layout.roles, self.role
        left, coming = self.left_of(role), self.coming_of(role)
        return [
            math.log2(max(left, 0) + 1) / 6,
            min(max(left, -4), 8) / 8,
            1.0 if left <= 0 else 0.0,
            math.log2(self._in_pass[role] + 1) / 6,
            math.log2(self.plan[role][self._passes[role]].events + 1) / 6,
            1.0 if coming is None else 0.0,
            1.0 if coming is not None and coming.kind == SEND else 0.0,
            0.0 if coming is None else math.copysign(1.0, coming.roles_away),
            1.0 if self.is_there(role) else 0.0,
            *(1.0 if roles > more and self.can_go_on((role + more) % roles) else 0.0 for more in (1, 2, 3)),
            min(len(self.plan[role]) - 1 - self._passes[role], 8) / 8,
        ]

    def push(self, what: int) -> None:
        """Take in what the next event is."""
        self.done += 1
        if what in {UNKNOWN, END}:
            return
        token = self._words.what[what - 2]
        layout, operation = self._wanted.layout, token.operation
        self._in_turn = self._in_turn + 1 if token.turn == 0 else 0
        self.role = (self.role + token.turn) % layout.roles
        other = (self.role + operation.roles_away) % layout.roles
        self._in_pass[self.role] += 1
        if operation.kind == SEND:
            self._sent[self.role] += 1
            self.on_the_way[self.role, other] += 1
        elif operation.kind == RECEIVE:
            self._taken[self.role] += 1
            self.on_the_way[other, self.role] -= 1
        if operation.kind in {SEND, RECEIVE}:
            self._in_pass[self.role] = 0
            self._passes[self.role] = min(self._passes[self.role] + 1, len(self.plan[self.role]) - 1)
        for role in taking_part(layout, StreamEvent(self.role, operation, 0, ())):
            self.of_role[role] += 1
