"""What a stream is asked to be and how far it has come, as numbers that a model is told at every event."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from et.synthesis.layout import Layout
from et.synthesis.streams import RECEIVE, SEND, Event, Operation, Stream, taking_part
from et.synthesis.tokens import END, UNKNOWN, Words, is_time

CONDITIONS = 10
OF_SITUATION = 14
BITS_EACH = 16
"""What it costs to say one of the conditions, when models are compared with one that is not told them."""
MICROS = "micros"
_SLOTS_TOLD = ("own, inner 0", "own, outer 0", "own, whole 0", "own, inner 1")


class Wanted(NamedTuple):
    """What a stream is to be.

    Attributes:
        layout: roles, ranks and groups.
        events: how many, about.
        sends: how many of them are messages, about.
        role_events: events of each role's turns, about.
        totals: microseconds of each role's nodes, by "micros" and the role; bytes of all events of a kind, by the kind
            and, of collectives, the slot of their groups.
    """

    layout: Layout
    events: int
    sends: int
    role_events: tuple[int, ...]
    totals: Mapping[tuple[str, int | str], float]

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
    sends = sum(event.operation.kind == SEND for event in stream.events)
    many = Counter(event.role for event in stream.events)
    of_roles = tuple(many[role] for role in range(stream.layout.roles))
    return Wanted(stream.layout, len(stream.events), sends, of_roles, dict(totals))


def total_of(role: int, operation: Operation) -> tuple[str, int | str]:
    """Which of the totals an event counts to."""
    return (MICROS, role) if is_time(operation) else (operation.kind, operation.slot)


class Situation:
    """How far a stream has come.

    Attributes:
        role: whose turn it is.
        done: events.
        of_role: events of each role.
        on_the_way: messages sent and not received yet, by sender and receiver.
    """

    def __init__(self, words: Words, wanted: Wanted) -> None:
        self._words = words
        self._wanted = wanted
        self._in_turn = 0
        self._sent, self._taken = [0] * wanted.layout.roles, [0] * wanted.layout.roles
        self._since_message = [0] * wanted.layout.roles
        self.role = 0
        self.done = 0
        self.of_role = [0] * wanted.layout.roles
        self.on_the_way: dict[tuple[int, int], int] = defaultdict(int)

    def numbers(self) -> list[float]:
        """OF_SITUATION numbers, most of them from 0 to 2."""
        roles, events = self._wanted.layout.roles, self._wanted.events
        left = events - self.done
        coming = sum(many for (_, other), many in self.on_the_way.items() if other == self.role)
        of_each = roles / max(self._wanted.sends, 1)
        elsewhere = sum(self.on_the_way.values()) - coming
        return [
            self.done / events,
            math.log2(abs(left) + 1) / 10,
            1.0 if left <= 0 else 0.0,
            self.role / roles,
            self.of_role[self.role] * roles / events,
            min(coming, 4) / 4,
            min(elsewhere, 4) / 4,
            math.log2(self._since_message[self.role] + 1) / 6,
            min(self._since_message[self.role] / self._wanted.period, 4) / 2,
            math.log2(self._in_turn + 1) / 6,
            self._sent[self.role] * of_each,
            self._taken[self.role] * of_each,
            (self._sent[self.role] - self._taken[self.role]) / 4,
            (roles - 1 - self.role) / 4,
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
        self._since_message[self.role] += 1
        if operation.kind == SEND:
            self._sent[self.role] += 1
            self.on_the_way[self.role, other] += 1
        elif operation.kind == RECEIVE:
            self._taken[self.role] += 1
            self.on_the_way[other, self.role] -= 1
        if operation.kind in {SEND, RECEIVE}:
            self._since_message[self.role] = 0
        for role in taking_part(layout, Event(self.role, operation, 0, ())):
            self.of_role[role] += 1
