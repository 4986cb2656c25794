"""Split sizes of uneven all-to-alls that do not add up: within a node, and between what members send and expect.

What members send and expect is compared by sums of hashes, of sends less those of receives, for each collective.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from et.checking.check import Check, CheckContext
from et.checking.communicators import UNKNOWN
from et.checking.finding import ERROR, Example, Finding
from et.checking.hashing import mixed
from et.checking.looked import UNEVEN, CheckedTrace
from et.order import occurrence

NAME = "splits"
LOOKS_FOR = "split sizes that do not cut comm_size into whole bytes, are not one for each member, or do not match"

Int64 = NDArray[np.int64]

_MOST_TOLD = 20


class Look(Check):
    """Gathers, for each group and place in it, the hashes of who sends whom how much."""

    def __init__(self, around: CheckContext) -> None:
        super().__init__(around)
        self._excess: dict[tuple[int, int], int] = {}
        self._example: dict[tuple[int, int], Example] = {}
        self._silent: set[tuple[int, int]] = set()

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """What a node says by itself; what it says of others is gathered."""
        table, colls = looked.table, looked.collectives
        uneven = np.flatnonzero(colls.size == UNEVEN)
        if len(uneven) == 0:
            return
        seq = occurrence(colls.group)
        users = self.sources.users[looked.trace]
        numbers = {
            group: self.around.communicators.of(table, group, users)
            for group in np.unique(colls.group[uneven]).tolist()
        }
        for at in uneven.tolist():
            row = int(colls.row[at])
            said = _Said(looked, row)
            text = said.complaint()
            of_users = numbers[int(colls.group[at])]
            counts = {len(self.around.communicators.members[n]) for n in set(of_users.tolist()) - {UNKNOWN}}
            if text:
                yield self._finding("split sizes do not cut comm_size into whole bytes", looked, row, text)
            elif self.sources.whole and counts and (counts != {len(said.inward)} or said.wrong_lengths()):
                text = f"{said.lengths()} split sizes, but the group has {max(counts)} members"
                yield self._finding("split sizes are not one for each member", looked, row, text)
            elif self.sources.whole:
                self._gather(said, of_users, users, int(seq[at]))

    def end(self) -> Iterable[Finding]:
        """Collectives of which somebody expects something else than it is sent."""
        unread = bool(self.around.unread)
        wrong = [key for key, sum_ in self._excess.items() if sum_ % 2**64 and key not in self._silent]
        if wrong and not unread:
            told = tuple(self._example[key] for key in wrong[:_MOST_TOLD])
            yield Finding(ERROR, "all-to-alls have members that expect other bytes than are sent", len(wrong), told)

    def _gather(self, said: "_Said", numbers: Int64, users: Int64, seq: int) -> None:
        """Add the hashes of a node for each of its users."""
        for number, npu in zip(numbers.tolist(), users.tolist(), strict=True):
            if number == UNKNOWN:
                continue
            key = number, seq
            members = self.around.communicators.members[number]
            me = np.full(len(members), npu)
            if not said.has_outward:
                self._silent.add(key)
                continue
            sends = mixed(me, members, said.sent_bytes).sum(dtype=np.uint64)
            takes = mixed(members, me, said.taken_bytes).sum(dtype=np.uint64)
            self._excess[key] = self._excess.get(key, 0) + int(sends) - int(takes)
            name = self.around.communicators.names[number]
            text = f'group "{name}", collective {seq}: in_split_size and out_split_size of its members do not match'
            self._example.setdefault(key, Example(said.path, said.node, text))

    def _finding(self, what: str, looked: CheckedTrace, row: int, text: str) -> Finding:
        return Finding(ERROR, what, 1, (Example(looked.table.path, looked.node(row), text),))


class _Said:
    """What a node says: in_split_size in a unit of which all together are comm_size, out_split_size in the same."""

    def __init__(self, looked: CheckedTrace, row: int) -> None:
        table = looked.table
        self.path, self.node = table.path, looked.node(row)
        self.inward = table.split_sizes[table.in_split_size[row]]
        self.outward = table.split_sizes[table.out_split_size[row]]
        self.size = int(table.comm_size[row])
        self.unit = sum(self.inward)
        self.has_outward = len(self.outward) > 0 and self.unit > 0

    @property
    def sent_bytes(self) -> Int64:
        """To each member."""
        return np.array([number * self.size // self.unit for number in self.inward], np.int64)

    @property
    def taken_bytes(self) -> Int64:
        """From each member."""
        return np.array([number * self.size // self.unit for number in self.outward], np.int64)

    def complaint(self) -> str:
        """What is wrong with the node by itself."""
        if self.size < 0:
            return ""  # the check of sizes says so
        if self.size > 0 and self.unit == 0:
            return f"in_split_size is all 0, but comm_size {self.size}"
        broken = [number for number in self.inward if number * self.size % max(self.unit, 1)]
        return f"in_split_size has {broken[0]} of {self.unit} in comm_size {self.size}" if broken else ""

    def wrong_lengths(self) -> bool:
        """Whether both lists have another number of entries."""
        return bool(self.outward) and len(self.outward) != len(self.inward)

    def lengths(self) -> str:
        """How many there are."""
        return f"{len(self.inward)} and {len(self.outward)}" if self.wrong_lengths() else str(len(self.inward))
