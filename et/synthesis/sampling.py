"""New streams, event by event, of which only those that can happen are drawn.

What a model may not say is left out of the draw: a receive before its send, a group that the layout lacks, a parent
before the first event, an end long before or after the length that is wanted. So streams are valid by construction.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from et.errors import TraceError
from et.synthesis.conditions import Wanted
from et.synthesis.layout import Layout
from et.synthesis.streams import COLLECTIVE, RECEIVE, SEND, Event, away, taking_part
from et.synthesis.tokens import END, UNKNOWN, Token, Words, exponent, is_time

Floats = NDArray[np.float64]

_EARLIEST, _LATEST = 0.9, 1.1
"""Of the length that is wanted: where a stream may end, and where it must."""
_TEMPERATURE = 0.8
_LEAST = 1e-3
"""Tokens less likely than this are not drawn: so many draws would else leave the beaten track somewhere."""
_JITTER_OCTAVES = 0.05
_LARGEST = 2.0**50


class State(Protocol):
    """A stream that a model makes, as far as it has come."""

    def probabilities(self, field: int, event: Sequence[int]) -> Floats:
        """Of the tokens of the next event's next field, after those of its fields that stand already."""

    def push(self, event: Sequence[int]) -> None:
        """Take in the next event."""


class Model(Protocol):
    """What streams are drawn from: et.synthesis.counts.Counts, or et.synthesis.recurrent.Recurrent."""

    def start(self, wanted: Wanted) -> State:
        """Before the first event of a stream that is to be made."""


class Drawn(NamedTuple):
    """An event that was drawn: its role, the token of its value, and how far away its parents are."""

    role: int
    what: int
    value: int
    parents: tuple[int, ...]


class _Rules:
    """What may come next."""

    def __init__(self, words: Words, wanted: Wanted) -> None:
        self._words = words
        self._layout = wanted.layout
        self._wanted = wanted.events
        self._on_the_way: dict[tuple[int, int], int] = defaultdict(int)
        self._least = np.array([max(distances, default=0) for distances in words.parents])
        self.role = 0
        self.done = 0
        self.of_role = [0] * wanted.layout.roles

    def may_be(self) -> Floats:
        """float64[what]: 1 where an event may be."""
        found = np.zeros(self._words.sizes[0])
        found[END] = self.done >= _EARLIEST * self._wanted and not any(self._on_the_way.values())
        if self.done < _LATEST * self._wanted:
            found[2:] = [self._may(token) for token in self._words.what]
        elif any(self._on_the_way.values()):
            found[2:] = [token.operation.kind == RECEIVE and self._may(token) for token in self._words.what]
        return found

    def _may(self, token: Token) -> bool:
        roles = self._layout.roles
        if away(roles, token.turn) != token.turn:
            return False
        role = (self.role + token.turn) % roles
        operation = token.operation
        if operation.kind in {SEND, RECEIVE}:
            distance = operation.roles_away
            if away(roles, distance) != distance or not distance:
                return False
            return operation.kind == SEND or self._on_the_way[(role + distance) % roles, role] > 0
        return operation.kind != COLLECTIVE or self._layout.family(role, operation.slot) is not None

    def may_wait_for(self, what: int) -> Floats:
        """float64[parents]: 1 where a pattern has no parent before the first event of the role."""
        role = (self.role + self._words.what[what - 2].turn) % self._layout.roles
        found = np.zeros(self._words.sizes[2])
        found[1:] = self._least <= self.of_role[role]
        return found

    def push(self, drawn: Drawn) -> None:
        """Note what has happened."""
        token = self._words.what[drawn.what - 2]
        self.role, self.done = drawn.role, self.done + 1
        operation = token.operation
        other = (drawn.role + operation.roles_away) % self._layout.roles
        if operation.kind == SEND:
            self._on_the_way[drawn.role, other] += 1
        elif operation.kind == RECEIVE:
            self._on_the_way[other, drawn.role] -= 1
        for role in taking_part(self._layout, Event(drawn.role, operation, 0, ())):
            self.of_role[role] += 1


def draw(model: Model, words: Words, wanted: Wanted, generator: np.random.Generator) -> list[Drawn]:
    """Draw the events of a stream.

    Args:
        model: what it is drawn from.
        words: of the streams that the model has learned.
        wanted: what the stream is to be.
        generator: by which it is drawn.

    Raises:
        TraceError: there is nothing that may come next; it has no event that the layout allows.
    """
    state, rules = model.start(wanted), _Rules(words, wanted)
    found: list[Drawn] = []
    while True:
        what = _drawn(state.probabilities(0, ()), rules.may_be(), generator)
        if what == END:
            return found
        any_value = np.ones(words.sizes[1])
        any_value[UNKNOWN] = 0
        value = _drawn(state.probabilities(1, (what,)), any_value, generator)
        parents = _drawn(state.probabilities(2, (what, value)), rules.may_wait_for(what), generator)
        role = (rules.role + words.what[what - 2].turn) % wanted.layout.roles
        drawn = Drawn(role, what, value, words.parents[parents - 1])
        found.append(drawn)
        rules.push(drawn)
        state.push((what, value, parents))


def _drawn(chances: Floats, may_be: Floats, generator: np.random.Generator) -> int:
    allowed = chances * may_be
    if not may_be.any():
        raise TraceError("synthesis: nothing that was learned may come next, expected a layout like those learned from")
    if not allowed.any():
        allowed = may_be
    allowed = np.where(allowed >= _LEAST * allowed.max(), allowed, 0) ** (1 / _TEMPERATURE)
    return int(generator.choice(len(allowed), p=allowed / allowed.sum()))


def events_of(drawn: Sequence[Drawn], words: Words, wanted: Wanted, generator: np.random.Generator) -> list[Event]:
    """Events with sizes and times: those of a token and a value are equal, up to 3.5 % off what was learned.

    Their means are those wanted. A receive is as large as the send that it takes.
    """
    off: dict[tuple[int, int], float] = {}
    values = np.zeros(len(drawn))
    timed = np.array([is_time(words.what[each.what - 2].operation) for each in drawn], np.bool_)
    for place, each in enumerate(drawn):
        above = exponent(words, each.what, each.value)
        if above is not None:
            key = (each.what, each.value)
            if key not in off:
                off[key] = generator.uniform(-_JITTER_OCTAVES, _JITTER_OCTAVES)
            values[place] = 2.0 ** (above + off[key])
    for own, mean in ((timed, wanted.mean_micros), (~timed, wanted.mean_bytes)):
        is_there = own & (values > 0)
        if is_there.any():
            values[is_there] *= mean / values[is_there].mean()
    values = np.where(values > 0, np.clip(np.rint(values), 1, _LARGEST), 0)
    return [
        Event(each.role, words.what[each.what - 2].operation, int(value), each.parents)
        for each, value in zip(drawn, values.tolist(), strict=True)
    ]


def complete(layout: Layout, events: Sequence[Event]) -> bool:
    """Whether all that is sent is received, and nothing before it is sent."""
    on_the_way: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        other = (event.role + event.operation.roles_away) % layout.roles
        if event.operation.kind == SEND:
            on_the_way[event.role, other] += 1
        elif event.operation.kind == RECEIVE:
            on_the_way[other, event.role] -= 1
            if on_the_way[other, event.role] < 0:
                return False
    return not any(on_the_way.values())
