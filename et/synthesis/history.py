"""What has come before in a stream, and what came next when it last looked like this.

Traces repeat layers and micro-batches, each trace its own. So besides what it remembers, a model is told what followed
the last time that the same last 1, 4 or 12 events had been seen in this very stream, what value the same operation had
last, and for whom it then waited.
"""

import copy
from collections.abc import Sequence
from typing import Self

REACHES = (12, 4, 1)
COPIES = len(REACHES) + 1
_NONE = (0, 0, 0)


class History:
    """Grows by one event's three tokens at a time."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, int]] = []
        self._next_of: list[dict[tuple[tuple[int, int, int], ...], int]] = [{} for _ in REACHES]
        self._value: dict[int, int] = {}
        self._parents: dict[tuple[int, int], int] = {}

    def copy(self) -> Self:
        """One that goes on by itself."""
        found = copy.copy(self)
        for name, value in vars(self).items():
            setattr(found, name, copy.copy(value) if name != "_next_of" else [each.copy() for each in value])
        return found

    def push(self, event: Sequence[int]) -> None:
        """Take in the next event."""
        what, value, parents = event
        for reach, next_of in zip(REACHES, self._next_of, strict=True):
            if len(self._events) >= reach:
                next_of[tuple(self._events[-reach:])] = len(self._events)
        self._events.append((what, value, parents))
        self._value[what] = value
        self._parents[what, value] = parents

    def followers(self) -> list[int]:
        """The three tokens that followed what the stream ends with, for each reach; 0 where that is new."""
        found: list[int] = []
        for reach, next_of in zip(REACHES, self._next_of, strict=True):
            at = next_of.get(tuple(self._events[-reach:])) if len(self._events) >= reach else None
            found += _NONE if at is None else self._events[at]
        return found

    def value_of(self, what: int) -> int:
        """The value that such an event had last; 0 = there was none."""
        return self._value.get(what, 0)

    def parents_of(self, what: int, value: int) -> int:
        """For whom such an event waited last; 0 = there was none."""
        return self._parents.get((what, value), 0)

    def values_of(self, what: int) -> list[int]:
        """COPIES values that such an event may copy: of followers that are such events, and its last; 0 = none."""
        followers = self.followers()
        pairs = zip(followers[::3], followers[1::3], strict=True)
        return [*(value if other == what else 0 for other, value in pairs), self.value_of(what)]
