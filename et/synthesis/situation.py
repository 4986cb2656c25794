"""How far a stream has come and what is planned, as numbers that a model is told at every event."""

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from et.synthesis.classes import FIRST, MOST_CLASSES, NOTHING, key_of
from et.synthesis.conditions import Wanted
from et.synthesis.schedule import Plan, Planned
from et.synthesis.streams import RECEIVE, SEND, Operation, StreamEvent, taking_part
from et.synthesis.tokens import END, UNKNOWN, Words

OF_SITUATION = 27
OF_CLASS = 7
_GROWING = {
    "_sent",
    "_taken",
    "_passes",
    "_in_pass",
    "_parts",
    "_in_part",
    "_sizes",
    "_events",
    "_classes",
    "_last",
    "_had",
    "of_role",
    "on_the_way",
}


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
        self._parts, self._in_part = [0] * roles, [0] * roles
        self._left = [self._bag(role) for role in range(roles)]
        self._sizes = [left.total() for left in self._left]
        self._events = [self._planned(role).events for role in range(roles)]
        self._classes: dict[Operation, int] = defaultdict(int)
        self._last: dict[tuple[int, Operation], int] = {}
        self._had: Counter[tuple[int, Operation, int]] = Counter()
        self._above = {key: _above_middle(means) for key, means in wanted.table.items()}
        self.role = 0
        self.done = 0
        self.of_role = [0] * roles
        self.on_the_way: dict[tuple[int, int], int] = defaultdict(int)

    def copy(self) -> Self:
        """One that goes on by itself; what is planned is the same."""
        found = copy.copy(self)
        for name, value in vars(self).items():
            if name in _GROWING:
                setattr(found, name, copy.copy(value))
            elif name == "_left":
                setattr(found, name, [left.copy() for left in value])
        return found

    def _bag(self, role: int) -> Counter[tuple[Operation, int]]:
        """What is in the part of a role's pass that it has come to."""
        parts = self._planned(role).parts[self._parts[role] :]
        return Counter({(operation, token): many for operation, token, many in (parts[0] if parts else ())})

    def _planned(self, role: int) -> Planned:
        return self.plan[role][self._passes[role]]

    def classes_of(self, role: int, operation: Operation) -> dict[int, int]:
        """Tokens of values that such an event of a role may have next by the plan, and how many have each.

        Classes are numbered as they come first; so of those that have not come the next one.
        """
        own = {token: many for (other, token), many in self._left[role].items() if other == operation and many > 0}
        seen = FIRST + self._classes[key_of(operation)]
        new = min((token for token in own if token >= seen), default=0)
        return {token: many for token, many in own.items() if token < seen or token == new}

    def operations_of(self, role: int) -> set[Operation]:
        """What a role may do next by the plan, but for messages."""
        return {operation for (operation, _), many in self._left[role].items() if many > 0}

    def left_of(self, role: int) -> int:
        """Events that are left of a role's pass by the plan; less than 0 where it has more."""
        return self._events[role] - self._in_pass[role]

    def coming_of(self, role: int) -> Operation | None:
        """The message that ends a role's pass."""
        return self._planned(role).after

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

    def is_done(self, role: int) -> bool:
        """Whether a role has nothing left by the plan."""
        return self.coming_of(role) is None and self.left_of(role) <= 0

    def numbers(self) -> list[float]:
        """OF_SITUATION numbers and one for each operation that was learned, most of them from 0 to 2."""
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
            *self._of_bag(),
        ]

    def _of_bag(self) -> list[float]:
        """How many of each operation are left of the part."""
        many: Counter[Operation] = Counter()
        for (operation, _), left in self._left[self.role].items():
            many[operation] += max(left, 0)
        return [math.log2(many[operation] + 1) / 4 for operation in self._words.operations]

    def of_values(self, what: int) -> NDArray[np.float32]:
        """float32[classes, OF_CLASS]: of each class what is told of it before such an event; 0 of those not left.

        How many the part has left, if it is new, how large it is against all, how many of those left are smaller and
        how many larger, how large it is against the role's last such event, and how often the role has had it.
        """
        found = np.zeros((FIRST + MOST_CLASSES, OF_CLASS), np.float32)
        if what in {UNKNOWN, END}:
            return found
        token = self._words.what[what - 2]
        role = (self.role + token.turn) % self._wanted.layout.roles
        key = key_of(token.operation)
        left = self.classes_of(role, token.operation)
        sizes = {value: self._above[key][value - FIRST] for value in left if value != NOTHING}
        last = self._last.get((role, key))
        for value, many in left.items():
            is_new = value >= FIRST + self._classes[key]
            found[value, :2] = math.log2(many + 1) / 4, is_new
        for value, own in sizes.items():
            smaller, larger = (
                sum(other < own for other in sizes.values()),
                sum(other > own for other in sizes.values()),
            )
            against_last = 0.0 if last is None else own - self._above[key][last - FIRST]
            often = math.log2(self._had[role, key, value] + 1) / 6
            found[value, 2:] = own, smaller / len(sizes), larger / len(sizes), against_last, often
        return found

    def _of_plan(self) -> list[float]:
        roles, role = self._wanted.layout.roles, self.role
        left, coming = self.left_of(role), self.coming_of(role)
        return [
            math.log2(max(left, 0) + 1) / 6,
            min(max(left, -4), 8) / 8,
            1.0 if left <= 0 else 0.0,
            math.log2(self._in_pass[role] + 1) / 6,
            math.log2(self._events[role] + 1) / 6,
            1.0 if coming is None else 0.0,
            1.0 if coming is not None and coming.kind == SEND else 0.0,
            0.0 if coming is None else math.copysign(1.0, coming.roles_away),
            1.0 if self.is_there(role) else 0.0,
            *(1.0 if roles > more and self.can_go_on((role + more) % roles) else 0.0 for more in (1, 2, 3)),
            min(len(self.plan[role]) - 1 - self._passes[role], 8) / 8,
            math.log2(max(self._sizes[role] - self._in_part[role], 0) + 1) / 6,
            math.log2(max(len(self._planned(role).parts) - self._parts[role], 0) + 1) / 6,
        ]

    def push(self, what: int, value: int) -> None:
        """Take in the next event: what it is, and its class."""
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
        self._push_planned(operation, value)
        if value > NOTHING:
            key = key_of(operation)
            self._classes[key] = max(self._classes[key], value - FIRST + 1)
            if value - FIRST < len(self._above.get(key, ())):
                self._last[self.role, key] = value
            self._had[self.role, key, value] += 1
        for role in taking_part(layout, StreamEvent(self.role, operation, 0, ())):
            self.of_role[role] += 1

    def _push_planned(self, operation: Operation, value: int) -> None:
        """Go on in the part and the pass of the role whose turn it is."""
        role = self.role
        self._left[role][operation, value] -= 1
        self._in_part[role] += 1
        if operation.kind in {SEND, RECEIVE}:
            self._in_pass[role] = self._in_part[role] = self._parts[role] = 0
            self._passes[role] = min(self._passes[role] + 1, len(self.plan[role]) - 1)
            self._events[role] = self._planned(role).events
        elif self._in_part[role] >= self._sizes[role]:
            self._in_part[role] = 0
            self._parts[role] += 1
        else:
            return
        self._left[role] = self._bag(role)
        self._sizes[role] = self._left[role].total()


def _above_middle(means: Sequence[float]) -> list[float]:
    logs = [math.log2(mean) for mean in means]
    return [(each - sum(logs) / len(logs)) / 4 for each in logs]
