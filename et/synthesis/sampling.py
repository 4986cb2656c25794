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
from et.synthesis.conditions import Situation, Wanted, total_of
from et.synthesis.layout import SetLayout
from et.synthesis.streams import COLLECTIVE, RECEIVE, SEND, Operation, StreamEvent, away
from et.synthesis.tokens import END, NOTHING, Token, Words, exponent

Floats = NDArray[np.float64]

_EARLIEST, _LATEST = 0.9, 1.1
"""Of the length that is wanted: where a stream may end, and where it must."""
_TEMPERATURES = (0.5, 0.8, 0.5)
"""What an event is, and for whom it waits, is drawn more from what is likely than its value is: one event that makes no
sense there is followed by many."""
_LEAST = 1e-3
"""Tokens less likely than this are not drawn: so many draws would else leave the beaten track somewhere."""
_LEAST_SLACK, _SHARE_OF_SLACK = 1, 10
_JITTER_OCTAVES = 0.05
_OF_TOTALS = 0.01
"""How far totals are from those wanted: as many messages of one size would else have the very size of the original."""
_LARGEST = 2.0**50


class Draw(NamedTuple):
    """Events that were drawn; is_whole: the model has ended the stream, it was not cut."""

    events: list["Drawn"]
    is_whole: bool


class State(Protocol):
    """A stream that a model makes, as far as it has come."""

    def probabilities(self, field: int, event: Sequence[int]) -> Floats:
        """Of the tokens of the next event's next field, after those of its fields that stand already."""

    def push(self, event: Sequence[int]) -> None:
        """Take in the next event."""


class Model(Protocol):
    """What streams are drawn from: et.synthesis.counts.Counts, or et.synthesis.recurrent.Recurrent."""

    def bits(self, rows: NDArray[np.int32], wanted: Wanted) -> Floats:
        """float64[3]: bits of all tokens of a stream, by field."""

    def start(self, wanted: Wanted) -> State:
        """Before the first event of a stream that is to be made."""


class Drawn(NamedTuple):
    """An event that was drawn: its role, the token of its value, and how far away its parents are."""

    role: int
    what: int
    value: int
    parents: tuple[int, ...]


class _Rules(Situation):
    """What may come next."""

    def __init__(self, words: Words, wanted: Wanted) -> None:
        super().__init__(words, wanted)
        self._least = np.array([max(distances, default=0) for distances in words.parents])
        self._seen: dict[int, set[int]] = defaultdict(set)
        for token, value in words.rest:
            self._seen[token].add(value)

    def is_over(self) -> bool:
        """Whether the stream must end."""
        return self.done >= _LATEST * self._wanted.events

    def may_be(self) -> Floats:
        """float64[what]: 1 where an event may be."""
        found = np.zeros(self._words.sizes[0])
        found[END] = self.done >= _EARLIEST * self._wanted.events and not any(self.on_the_way.values())
        found[2:] = [self._may(token) for token in self._words.what]
        planned = found.copy()
        planned[END] = found[END] and all(self._may_be_done(role) for role in range(self._wanted.layout.roles))
        planned[2:] *= [self._is_planned(token) for token in self._words.what]
        return planned if planned.any() else found

    def _slack(self, role: int) -> int:
        """How many events a role's pass may be longer or shorter than planned."""
        return max(_LEAST_SLACK, (self.left_of(role) + self._in_pass[role]) // _SHARE_OF_SLACK)

    def _may_be_done(self, role: int) -> bool:
        """Whether a role may do nothing any more."""
        return self.coming_of(role) is None and self.left_of(role) <= self._slack(role)

    def _is_planned(self, token: Token) -> bool:
        """Whether the plan has such an event next: a role goes on until it waits, and sends and receives in order."""
        role = (self.role + token.turn) % self._wanted.layout.roles
        if token.turn and self.coming_of(self.role) is not None and self.can_go_on(self.role):
            return False
        left, slack = self.left_of(role), self._slack(role)
        if token.operation.kind in {SEND, RECEIVE}:
            return token.operation == self.coming_of(role) and left <= slack
        return left > -slack and (left > 0 or not token.turn)

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
        """float64[value]: 1 where a value may be: none where no such event had one, any where all had."""
        found = np.zeros(self._words.sizes[1])
        has_some = any(token != NOTHING for token in self._seen[what])
        found[NOTHING + 1 :] = has_some
        found[NOTHING] = NOTHING in self._seen[what]
        return found

    def may_wait_for(self, what: int) -> Floats:
        """float64[parents]: 1 where a pattern has no parent before the first event of the role."""
        role = (self.role + self._words.what[what - 2].turn) % self._wanted.layout.roles
        found = np.zeros(self._words.sizes[2])
        found[1:] = self._least <= self.of_role[role]
        return found


def draw(model: Model, words: Words, wanted: Wanted, generator: np.random.Generator) -> "Draw":
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
    while not rules.is_over():
        what = _drawn(state.probabilities(0, ()), rules.may_be(), _TEMPERATURES[0], generator)
        if what == END:
            return Draw(found, is_whole=True)
        value = _drawn(state.probabilities(1, (what,)), rules.may_be_worth(what), _TEMPERATURES[1], generator)
        waiting = rules.may_wait_for(what)
        parents = _drawn(state.probabilities(2, (what, value)), waiting, _TEMPERATURES[2], generator)
        role = (rules.role + words.what[what - 2].turn) % wanted.layout.roles
        drawn = Drawn(role, what, value, words.parents[parents - 1])
        found.append(drawn)
        rules.push(what)
        state.push((what, value, parents))
    return Draw(found, is_whole=False)


def _drawn(chances: Floats, may_be: Floats, temperature: float, generator: np.random.Generator) -> int:
    allowed = chances * may_be
    if not may_be.any():
        raise TraceError("synthesis: nothing that was learned may come next, expected a layout like those learned from")
    if not allowed.any():
        allowed = may_be
    allowed = np.where(allowed >= _LEAST * allowed.max(), allowed, 0) ** (1 / temperature)
    return int(generator.choice(len(allowed), p=allowed / allowed.sum()))


def events_of(
    drawn: Sequence[Drawn], words: Words, wanted: Wanted, generator: np.random.Generator
) -> list[StreamEvent]:
    """Events with sizes and times: those of a token and a value are equal, up to 3.5 % off what was learned.

    Their totals are those wanted, to within 1 %. A receive is as large as the send that it takes.
    """
    off: dict[tuple[int, int], float] = {}
    values = np.zeros(len(drawn))
    own: dict[tuple[str, int | str], list[int]] = defaultdict(list)
    for place, each in enumerate(drawn):
        above = exponent(words, each.what, each.value)
        if above is not None:
            key = (each.what, each.value)
            if key not in off:
                off[key] = generator.uniform(-_JITTER_OCTAVES, _JITTER_OCTAVES)
            values[place] = 2.0 ** (above + off[key])
            own[total_of(each.role, words.what[each.what - 2].operation)].append(place)
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
