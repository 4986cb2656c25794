"""The likeliest stream of a model that can happen.

Event by event, several streams are gone on with side by side, those that the model holds for the likeliest so far: beam
search (Lowerre, The HARPY speech recognition system, 1976). A token costs the model's own bits for it, before what
cannot happen is left out. So a stream whose part has used up what the model expects next pays for it, and one that was
a little less likely before takes its place. Drawn one by one instead, every stream takes the likelier of two classes,
and where that was wrong nothing leads back: all later events are in an order that was never learned.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from et.errors import TraceError
from et.synthesis.conditions import Wanted
from et.synthesis.sampling import Drawn, Floats, Rules, State, StreamModel
from et.synthesis.tokens import END, Words

WIDTH = 8
"""Streams side by side."""
_MARGIN_BITS = 25.0
"""Streams that are so much less likely than the likeliest are given up."""
_LEAST = 1e-3
"""Tokens so much less likely than the likeliest that may come are left out."""
_LEAST_CHANCE = 1e-6
"""What a token costs that the model holds for impossible and that alone may come next."""

_Chain = tuple["_Chain", Drawn] | None
"""The last event and those before it; streams share what they have in common."""


class Found(NamedTuple):
    """A stream that was found.

    Attributes:
        events: of all roles.
        is_whole: the model has ended it, it was not cut.
        bits: that the model needs for it, by its own chances before any were left out.
    """

    events: list[Drawn]
    is_whole: bool
    bits: float


class _Stream(NamedTuple):
    """A stream as far as it has come."""

    bits: float
    state: State
    rules: Rules
    events: _Chain


class _Next(NamedTuple):
    """An event that a stream may go on with: the bits with it, which stream, and the event's three tokens."""

    bits: float
    number: int
    event: tuple[int, int, int]


def streams_found(model: StreamModel, words: Words, wanted: Wanted, width: int = WIDTH) -> list[Found]:
    """Streams that have come to their end, those that the model has ended first, of these the likeliest.

    Args:
        model: what finds them likely.
        words: of the streams that the model has learned.
        wanted: what they are to be.
        width: how many are gone on with side by side.

    Raises:
        TraceError: there is nothing that may come next; no learned event is one that the layout allows.
    """
    streams = [_Stream(0.0, model.start(wanted), Rules(words, wanted), None)]
    found: list[Found] = []
    best = float("inf")
    while streams:
        nexts: list[_Next] = []
        for number, stream in enumerate(streams):
            if stream.rules.is_over():
                found.append(Found(_events(stream.events), is_whole=False, bits=stream.bits))
                continue
            for each in _nexts(stream, number):
                if each.event[0] != END:
                    nexts.append(each)
                    continue
                found.append(Found(_events(stream.events), is_whole=True, bits=each.bits))
                best = min(best, each.bits)
        nexts = sorted(nexts)[:width]
        most = min(best, nexts[0].bits + _MARGIN_BITS) if nexts else 0.0
        streams = _gone_on(streams, [each for each in nexts if each.bits < most], words)
    if not found:
        raise TraceError("synthesis: nothing that was learned may come next, expected a layout like those learned from")
    return sorted(found, key=lambda each: (not each.is_whole, each.bits))


def _nexts(stream: _Stream, number: int) -> Iterator[_Next]:
    """What a stream may go on with."""
    state, rules = stream.state, stream.rules
    for what, of_what in _likely(state.probabilities(0, ()), rules.may_be()):
        bits = stream.bits + of_what
        if what == END:
            yield _Next(bits, number, (END, 0, 0))
            continue
        for value, of_value in _likely(state.probabilities(1, (what,)), rules.may_be_worth(what)):
            chances = state.probabilities(2, (what, value))
            for parents, of_parents in _likely(chances, rules.may_wait_for(what)):
                yield _Next(bits + of_value + of_parents, number, (what, value, parents))


def _likely(chances: Floats, may_be: Floats) -> list[tuple[int, float]]:
    """Tokens that may come, and the bits that the model needs for each."""
    allowed = chances * may_be
    if not allowed.any():
        allowed = may_be
    kept = np.flatnonzero((allowed > 0) & (allowed >= _LEAST * allowed.max()))
    bits = -np.log2(np.maximum(chances[kept], _LEAST_CHANCE))
    return list(zip(kept.tolist(), bits.tolist(), strict=True))


def _gone_on(streams: Sequence[_Stream], nexts: Sequence[_Next], words: Words) -> list[_Stream]:
    """The streams with their next events; where one goes on in several ways, the last takes what it has."""
    left = Counter(each.number for each in nexts)
    found = []
    for bits, number, event in nexts:
        _, state, rules, events = streams[number]
        left[number] -= 1
        if left[number]:
            state, rules = state.copy(), rules.copy()
        what, value, parents = event
        rules.push(what, value)
        found.append(_Stream(bits, state, rules, (events, Drawn(rules.role, what, value, words.parents[parents - 1]))))
        state.push(event)
    return found


def _events(chain: _Chain) -> list[Drawn]:
    found = []
    while chain is not None:
        chain, event = chain
        found.append(event)
    return found[::-1]
