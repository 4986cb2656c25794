"""What may come next in a new stream, and the sizes and times of its events.

What a model may not say is left out: a receive before its send, a group that the layout lacks, a parent before the
first event, an end long before or after the length that is wanted. So streams are valid by construction.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from et.synthesis.classes import FIRST, NOTHING, key_of
from et.synthesis.conditions import Wanted, total_of
from et.synthesis.layout import SetLayout
from et.synthesis.situation import Situation
from et.synthesis.streams import COLLECTIVE, RECEIVE, SEND, Operation, StreamEvent, away
from et.synthesis.tokens import END, Token, Words

Floats = NDArray[np.float64]

_EARLIEST, _LATEST = 0.9, 1.1
"""Of the length that is wanted: where a stream may end, and where it must."""
_JITTER_OCTAVES = 0.05
_OF_TOTALS = 0.01
"""How far totals are from those wanted: as many messages of one size would else have the very size of the original."""
_LARGEST = 2.0**50


class State(Protocol):
    """A stream that a model makes, as far as it has come."""

    def probabilities(self, field: int, event: Sequence[int]) -> Floats:
        """Of the tokens of the next event's next field, after those of its fields that stand already."""

    def push(self, event: Sequence[int]) -> None:
        """Take in the next event."""

    def copy(self) -> Self:
        """One that goes on by itself."""


class StreamModel(Protocol):
    """What streams are made with: et.synthesis.counts.Counts, or et.synthesis.recurrent.Recurrent."""

    def bits(self, rows: NDArray[np.int32], wanted: Wanted) -> Floats:
        """float64[3]: bits of all tokens of a stream, by field."""

    def start(self, wanted: Wanted) -> State:
        """Before the first event of a stream that is to be made."""


class Drawn(NamedTuple):
    """An event of a new stream: its role, what it is, the token of its value, and how far away its parents are."""

    role: int
    what: int
    value: int
    parents: tuple[int, ...]


class Rules(Situation):
    """What may come next."""

    def __init__(self, words: Words, wanted: Wanted) -> None:
        super().__init__(words, wanted)
        self._least = np.array([max(distances, default=0) for distances in words.parents])

    def is_over(self) -> bool:
        """Whether the stream must end."""
        return self.done >= _LATEST * self._wanted.events

    def may_be(self) -> Floats:
        """float64[what]: 1 where an event may be."""
        found = np.zeros(self._words.sizes[0])
        next_of = {turn: self._planned_in(turn) for turn in {token.turn for token in self._words.what}}
        found[2:] = [token.operation in next_of[token.turn] and self._may(token) for token in self._words.what]
        found[END] = all(self.is_done(role) for role in range(self._wanted.layout.roles))
        if not found.any():
            found[2:] = [self._may(token) for token in self._words.what]
            found[END] = self.done >= _EARLIEST * self._wanted.events and not any(self.on_the_way.values())
        return found

    def _planned_in(self, turn: int) -> set[Operation]:
        """What the plan has next so many roles on: a role goes on until it waits, and what it has left comes next."""
        role = (self.role + turn) % self._wanted.layout.roles
        coming = self.coming_of(role)
        if turn and self.coming_of(self.role) is not None and self.can_go_on(self.role):
            return set()
        return {coming} if coming is not None and self.left_of(role) <= 0 else self.operations_of(role)

    def _may(self, token: Token) -> bool:
        layout, operation = self._wanted.layout, token.operation
        if away(layout.roles, token.turn) != token.turn:
            return False
        role = (self.role + token.turn) % layout.roles
        if operation.kind in {SEND, RECEIVE}:
            distance = operation.roles_away
            if away(layout.roles, distance) != distance or not distance:
                return False
            return operation.kind == SEND or self.on_the_way[(role + distance) % layout.roles, role] > 0
        return operation.kind != COLLECTIVE or layout.family(role, operation.slot) is not None

    def may_be_worth(self, what: int) -> Floats:
        """float64[value]: 1 where a value may be: a class that is left, or else any that such an event can have."""
        token = self._words.what[what - 2]
        found = np.zeros(self._words.sizes[1])
        planned = self.classes_of((self.role + token.turn) % self._wanted.layout.roles, token.operation)
        classes = len(self._wanted.table.get(key_of(token.operation), ()))
        if planned:
            found[list(planned)] = 1
        elif token.operation.kind != RECEIVE and classes:
            found[FIRST : FIRST + classes] = 1
        else:
            found[NOTHING] = 1
        return found

    def may_wait_for(self, what: int) -> Floats:
        """float64[parents]: 1 where a pattern has no parent before the first event of the role."""
        role = (self.role + self._words.what[what - 2].turn) % self._wanted.layout.roles
        found = np.zeros(self._words.sizes[2])
        found[1:] = self._least <= self.of_role[role]
        return found


def events_of(
    drawn: Sequence[Drawn], words: Words, wanted: Wanted, generator: np.random.Generator
) -> list[StreamEvent]:
    """Events with sizes and times: those of a class are equal, up to 3.5 % off what it means.

    Their totals are those wanted, to within 1 %. A receive is as large as the send that it takes.
    """
    off: dict[tuple[Operation, int], float] = {}
    values = np.zeros(len(drawn))
    own: dict[tuple[str, int | str], list[int]] = defaultdict(list)
    for place, each in enumerate(drawn):
        operation = words.what[each.what - 2].operation
        if each.value > NOTHING:
            key = key_of(operation)
            if (key, each.value) not in off:
                off[key, each.value] = generator.uniform(-_JITTER_OCTAVES, _JITTER_OCTAVES)
            values[place] = wanted.table[key][each.value - FIRST] * 2.0 ** off[key, each.value]
            own[total_of(each.role, operation)].append(place)
    has_value = values > 0
    for key_of_total, places in own.items():
        total = wanted.totals.get(key_of_total, 0.0) * generator.uniform(1 - _OF_TOTALS, 1 + _OF_TOTALS)
        values[places] *= total / values[places].sum()
    values = np.where(has_value, np.clip(np.rint(values), 1, _LARGEST), 0)
    return [
        StreamEvent(each.role, words.what[each.what - 2].operation, int(value), each.parents)
        for each, value in zip(drawn, values.tolist(), strict=True)
    ]


def received(layout: SetLayout, events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """The events, and at the end receives of what is still on the way, which happens where a stream was cut."""
    on_the_way: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        other = (event.role + event.operation.roles_away) % layout.roles
        if event.operation.kind == SEND:
            on_the_way[event.role, other] += 1
        elif event.operation.kind == RECEIVE:
            on_the_way[other, event.role] -= 1
    missing = [
        StreamEvent(role, Operation(RECEIVE, away(layout.roles, sender - role)), 0, (1,))
        for (sender, role), many in on_the_way.items()
        for _ in range(many)
    ]
    return [*events, *missing]
