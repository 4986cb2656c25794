"""Check that members of a group issue the same collectives in the same order; otherwise they would wait for ever.

Only a digest is kept per member and group. Where two differ, the traces are opened again to find the collective.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from nadi.et.checking import UNEVEN, UNKNOWN, WHOLE, Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import ERROR, NOTE, Example, Finding
from nadi.et.checking.matching import are_alike, first_difference, sequence_digests
from nadi.et.reader import collective_name
from nadi.et.schema import CollectiveCommType
from nadi.inputs.arrays import Int64

LOOKS_FOR = "collectives on which the members of a group disagree: missing, in another order, kind or size"


_MAX_GROUPS_SHOWN = 20


class TraceCheck(Check):
    """Collects rows of group, NPU, and two words of a digest of the collectives that the NPU issues in the group."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._rows: list[Int64] = []

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Store a digest of the trace's collectives in each group, for each of its users.

        Args:
            checked: The trace to check.
        """
        if not self.sources.is_complete:
            return
        colls, users = checked.collectives, self.sources.users[checked.trace]
        # A group along some dimensions depends on the fabric, which a check of traces does not know
        some_dims = np.count_nonzero(colls.dims != WHOLE)
        if some_dims:
            row = int(colls.row[np.argmax(colls.dims != WHOLE)])
            example = Example(checked.table.path, checked.node(row), "its group depends on the fabric")
            what = "collectives are over some dimensions only, and not compared"
            yield Finding(NOTE, what, int(some_dims), (example,))
        whole = colls.dims == WHOLE
        group_of, columns = colls.group[whole], [colls.kind[whole], colls.size[whole]]
        # Equal digests mean equal sequences of kinds and sizes, so that traces need not be kept
        digests = sequence_digests(group_of, columns, len(checked.table.group_names)).view(np.int64)
        for group in np.unique(group_of).tolist():
            numbers = self.context.communicators.of(checked.table, group, users)
            rows = np.column_stack([numbers, users, np.broadcast_to(digests[group], (len(users), 2))])
            self._rows.append(rows[numbers != UNKNOWN])

    def end(self) -> Iterable[Finding]:
        """Return groups with a member that issues no collectives, or others than the first member."""
        rows = np.concatenate([np.zeros((0, 4), np.int64), *self._rows])
        if len(rows) == 0:
            return
        # By group, then NPU
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        first = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))
        differing, lacking = [], []
        for begin, end, is_equal in zip(first, [*first[1:], len(rows)], are_alike(rows[:, 2:], first), strict=True):
            of_group = rows[begin:end]
            absent = self._absent(of_group)
            if absent is not None:
                lacking.append((of_group, absent))
            elif not is_equal:
                differing.append(of_group)
        if lacking:
            examples = tuple(self._absence_example(*found) for found in lacking[:_MAX_GROUPS_SHOWN])
            yield Finding(ERROR, "groups have members that issue none of their collectives", len(lacking), examples)
        if differing:
            examples = tuple(self._difference_example(of_group) for of_group in differing[:_MAX_GROUPS_SHOWN])
            yield Finding(ERROR, "groups have members that issue other collectives", len(differing), examples)

    def _absent(self, group_rows: Int64) -> int | None:
        """Return a member that does not use the group although its trace can be read, or None."""
        members = self.context.communicators.members[int(group_rows[0, 0])]
        # The usual case, which needs no search
        if len(group_rows) == len(members) and np.array_equal(np.sort(members), group_rows[:, 1]):
            return None
        absent: list[int] = np.setdiff1d(members, group_rows[:, 1]).tolist()
        for npu in absent:
            place = self.sources.place(npu) if npu < self.sources.npus else None
            if place is None or place[0] not in self.context.unread:
                return npu
        return None

    def _absence_example(self, group_rows: Int64, absent_npu: int) -> Example:
        """Return the example of an NPU that issues none of a group's collectives (rows: group, NPU that does)."""
        number, npu = int(group_rows[0, 0]), int(group_rows[0, 1])
        path, nodes, words = self._issued(number, npu)
        place = self.sources.place(absent_npu) if absent_npu < self.sources.npus else None
        state = "no trace" if place is None else f"a trace without one ({self.sources.files[place[0]]})"
        name = self.context.communicators.names[number]
        text = f'group "{name}": {words[0]}, the first of {len(words)}, but member NPU {absent_npu} has {state}'
        return Example(path, nodes[0], text)

    def _difference_example(self, group_rows: Int64) -> Example:
        """Return the first collective of a group that two of its members issue differently."""
        number, npu = int(group_rows[0, 0]), int(group_rows[0, 1])
        # The first member whose digest differs from the first member's
        other = int(group_rows[np.argmax(np.any(group_rows[:, 2:] != group_rows[0, 2:], axis=1)), 1])
        path, nodes, words = self._issued(number, npu)
        other_path, other_nodes, other_words = self._issued(number, other)
        group = f'group "{self.context.communicators.names[number]}"'
        order = "; both issue the same ones in another order" if Counter(words) == Counter(other_words) else ""
        k = first_difference(words, other_words)
        if k < min(len(words), len(other_words)):
            text = (
                f"{group}: collective {k} on NPU {npu} is {words[k]}, but on NPU {other} {other_words[k]} "
                f"({other_path}: node {other_nodes[k]}){order}"
            )
            return Example(path, nodes[k], text)
        # One sequence begins with the other: show the first collective that only the longer one has
        longer = (path, nodes, words) if len(words) > len(other_words) else (other_path, other_nodes, other_words)
        text = (
            f"{group}: {longer[2][k]}, collective {k}: NPU {npu} issues {len(words)} of them, "
            f"but NPU {other} {len(other_words)}"
        )
        return Example(longer[0], longer[1][k], text)

    def _issued(self, group_number: int, npu: int) -> tuple[str, list[int], list[str]]:
        """Return file, node ids, and kinds and sizes of the collectives that an NPU issues in a group."""
        place = self.sources.place(npu)
        if place is None:
            raise RuntimeError(f"NPU {npu} has issued collectives, but has no trace")
        checked = self.context.reopened(place[0])
        colls, me = checked.collectives, np.array([npu])
        is_group = [
            self.context.communicators.of(checked.table, group, me)[0] == group_number
            for group in range(len(checked.table.group_names))
        ]
        at = np.flatnonzero(np.array(is_group)[colls.group] & (colls.dims == WHOLE))
        words = [collective(int(colls.kind[i]), int(colls.size[i])) for i in at.tolist()]
        return checked.table.path, [checked.node(int(colls.row[i])) for i in at.tolist()], words


def collective(kind: int, size_bytes: int) -> str:
    """Return kind and size of a collective in words.

    Args:
        kind: The kind of a collective, a CollectiveCommType.
        size_bytes: The size in bytes; below 0 = unknown, or UNEVEN.
    """
    name = collective_name(kind)
    if kind == CollectiveCommType.BARRIER:
        return name
    return (
        f"{name} with split sizes"
        if size_bytes == UNEVEN
        else f"{name} of {'unknown size' if size_bytes < 0 else f'{size_bytes} B'}"
    )
