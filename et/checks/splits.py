"""Check for split sizes of uneven all-to-alls that are inconsistent within a node, or between members.

Sent and expected bytes are compared by sums of hashes, of sends minus those of receives, for each collective.
"""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import UNEVEN, UNKNOWN, Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import ERROR, Example, Finding
from nadi.et.checking.matching import mixed
from nadi.et.order import occurrence
from nadi.inputs.arrays import Int64

LOOKS_FOR = "split sizes that do not divide comm_size into whole bytes, are not one per member, or do not match"


_MAX_EXAMPLES = 20


class TraceCheck(Check):
    """Collects, for each group and place in it, hashes of sender, receiver and bytes."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._excess: dict[tuple[int, int], int] = {}  # hashes of sent minus expected bytes, by group and number
        self._example: dict[tuple[int, int], Example] = {}  # the first member's node
        self._incomparable: set[tuple[int, int]] = set()  # collectives with a member that lacks out_split_size

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Return problems within a node, and collect what members send and expect.

        Args:
            checked: The trace to check.
        """
        table, colls = checked.table, checked.collectives
        uneven = np.flatnonzero(colls.size == UNEVEN)
        if len(uneven) == 0:
            return
        seq = occurrence(colls.group)
        users = self.sources.users[checked.trace]
        numbers = {
            group: self.context.communicators.of(table, group, users)
            for group in np.unique(colls.group[uneven]).tolist()
        }
        for at in uneven.tolist():
            row = int(colls.row[at])
            splits = _SplitSizes(checked, row)
            text = splits.complaint()
            of_users = numbers[int(colls.group[at])]
            # The sizes of the users' groups: a list of split sizes can fit only one
            counts = {len(self.context.communicators.members[n]) for n in set(of_users.tolist()) - {UNKNOWN}}
            if text:
                yield self._finding("split sizes do not divide comm_size into whole bytes", checked, row, text)
            elif self.sources.is_complete and counts and (counts != {len(splits.inward)} or splits.wrong_lengths()):
                text = f"{splits.lengths()} split sizes, but the group has {max(counts)} members"
                yield self._finding("split sizes are not one per member", checked, row, text)
            elif self.sources.is_complete:
                self._gather(splits, of_users, users, int(seq[at]))

    def end(self) -> Iterable[Finding]:
        """Return collectives with a member that expects other bytes than are sent."""
        unread = bool(self.context.unread)
        wrong = [key for key, sum_ in self._excess.items() if sum_ % 2**64 and key not in self._incomparable]
        if wrong and not unread:
            examples = tuple(self._example[key] for key in wrong[:_MAX_EXAMPLES])
            yield Finding(ERROR, "all-to-alls have members that expect other bytes than are sent", len(wrong), examples)

    def _gather(self, splits: "_SplitSizes", group_of_user: Int64, users: Int64, collective_index: int) -> None:
        """Add hashes of a node's split sizes, for each of its `users` (NPUs), to those of a collective of its group."""
        for number, npu in zip(group_of_user.tolist(), users.tolist(), strict=True):
            if number == UNKNOWN:
                continue
            key = number, collective_index
            members = self.context.communicators.members[number]
            me = np.full(len(members), npu)
            if not splits.has_outward:
                # Without out_split_size, a member does not say how much it expects
                self._incomparable.add(key)
                continue
            # Modulo 2^64, the sum over all members is 0 if each receives what the others send
            sends = mixed(me, members, splits.sent_bytes).sum(dtype=np.uint64)
            takes = mixed(members, me, splits.taken_bytes).sum(dtype=np.uint64)
            self._excess[key] = self._excess.get(key, 0) + int(sends) - int(takes)
            name = self.context.communicators.names[number]
            text = "in_split_size and out_split_size of its members do not match"
            text = f'group "{name}", collective {collective_index}: {text}'
            self._example.setdefault(key, Example(splits.path, splits.node, text))

    def _finding(self, what: str, checked: CheckedTrace, row: int, text: str) -> Finding:
        return Finding(ERROR, what, 1, (Example(checked.table.path, checked.node(row), text),))


class _SplitSizes:
    """Split sizes of a node; both lists use the unit that makes the sum of in_split_size comm_size."""

    def __init__(self, checked: CheckedTrace, row: int) -> None:
        table = checked.table
        self.path, self.node = table.path, checked.node(row)
        self.inward = table.split_sizes[table.in_split_size[row]]
        self.outward = table.split_sizes[table.out_split_size[row]]
        self.size = int(table.comm_size[row])
        self.unit = sum(self.inward)
        self.has_outward = len(self.outward) > 0 and self.unit > 0

    @property
    def sent_bytes(self) -> Int64:
        """Bytes sent to each member."""
        return np.array([number * self.size // self.unit for number in self.inward], np.int64)

    @property
    def taken_bytes(self) -> Int64:
        """Bytes received from each member."""
        return np.array([number * self.size // self.unit for number in self.outward], np.int64)

    def complaint(self) -> str:
        """Return what is wrong within the node, "" if nothing is."""
        if self.size < 0:
            return ""  # the check of sizes reports it
        if self.size > 0 and self.unit == 0:
            return f"in_split_size is all 0, but comm_size {self.size}"
        broken = [number for number in self.inward if number * self.size % max(self.unit, 1)]
        return f"in_split_size has {broken[0]} of {self.unit} in comm_size {self.size}" if broken else ""

    def wrong_lengths(self) -> bool:
        """Return whether the two lists have different lengths."""
        return bool(self.outward) and len(self.outward) != len(self.inward)

    def lengths(self) -> str:
        """Return the lengths of the lists as text."""
        return f"{len(self.inward)} and {len(self.outward)}" if self.wrong_lengths() else str(len(self.inward))
