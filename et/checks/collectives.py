"""Members of a group that do not issue the same collectives in the same order: somebody would wait for ever.

Of each member and group only a digest is kept. Where two differ, the traces are opened again to say which collective.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from et.checking.check import Check, CheckContext
from et.checking.communicators import UNKNOWN
from et.checking.finding import ERROR, NOTE, Example, Finding
from et.checking.looked import UNEVEN, WHOLE, CheckedTrace
from et.schema import CollectiveCommType
from et.summary import collective_name

NAME = "collectives"
LOOKS_FOR = "collectives on which the members of a group disagree: missing, in another order, kind or size"

Int64 = NDArray[np.int64]

_MOST_GROUPS_TOLD = 20


class Look(Check):
    """Gathers rows of (group, NPU, digest)."""

    def __init__(self, around: CheckContext) -> None:
        super().__init__(around)
        self._rows: list[Int64] = []

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """A digest of what the trace issues in each group, for each of its users."""
        if not self.sources.whole:
            return
        colls, users = looked.collectives, self.sources.users[looked.trace]
        some_dims = np.count_nonzero(colls.dims != WHOLE)
        if some_dims:
            row = int(colls.row[np.argmax(colls.dims != WHOLE)])
            example = Example(looked.table.path, looked.node(row), "its group depends on the fabric")
            what = "collectives are of some dimensions only, and not compared"
            yield Finding(NOTE, what, int(some_dims), (example,))
        for group in np.unique(colls.group[colls.dims == WHOLE]).tolist():
            at = (colls.group == group) & (colls.dims == WHOLE)
            words = colls.kind[at].tobytes() + colls.size[at].tobytes()
            digest = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little", signed=True)
            numbers = self.around.communicators.of(looked.table, group, users)
            rows = np.stack([numbers, users, np.full(len(users), digest)], axis=1)
            self._rows.append(rows[numbers != UNKNOWN])

    def end(self) -> Iterable[Finding]:
        """Groups of which a member issues nothing, or something else than the first one."""
        rows = np.concatenate([np.zeros((0, 3), np.int64), *self._rows])
        if len(rows) == 0:
            return
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        first = np.flatnonzero(np.diff(rows[:, 0], prepend=-1))
        least, most = (pick.reduceat(rows[:, 2], first) for pick in (np.minimum, np.maximum))
        differing, lacking = [], []
        for begin, end, is_alike in zip(first, [*first[1:], len(rows)], least == most, strict=True):
            of_group = rows[begin:end]
            absent = self._absent(of_group)
            if absent is not None:
                lacking.append((of_group, absent))
            elif not is_alike:
                differing.append(of_group)
        if lacking:
            told = tuple(self._told_absence(*found) for found in lacking[:_MOST_GROUPS_TOLD])
            yield Finding(ERROR, "groups have members that issue none of their collectives", len(lacking), told)
        if differing:
            told = tuple(self._told_difference(of_group) for of_group in differing[:_MOST_GROUPS_TOLD])
            yield Finding(ERROR, "groups have members that issue other collectives", len(differing), told)

    def _absent(self, of_group: Int64) -> int | None:
        """A member that does not use the group, and whose trace could be read."""
        members = self.around.communicators.members[int(of_group[0, 0])]
        if len(of_group) == len(members) and np.array_equal(np.sort(members), of_group[:, 1]):
            return None
        absent: list[int] = np.setdiff1d(members, of_group[:, 1]).tolist()
        for npu in absent:
            place = self.sources.place(npu) if npu < self.sources.npus else None
            if place is None or place[0] not in self.around.unread:
                return npu
        return None

    def _told_absence(self, of_group: Int64, absent: int) -> Example:
        number, npu = int(of_group[0, 0]), int(of_group[0, 1])
        path, nodes, words = self._issued(number, npu)
        place = self.sources.place(absent) if absent < self.sources.npus else None
        state = "no trace" if place is None else f"a trace without one ({self.sources.files[place[0]]})"
        name = self.around.communicators.names[number]
        text = f'group "{name}": {words[0]}, the first of {len(words)}, but member NPU {absent} has {state}'
        return Example(path, nodes[0], text)

    def _told_difference(self, of_group: Int64) -> Example:
        number, npu = int(of_group[0, 0]), int(of_group[0, 1])
        other = int(of_group[np.argmax(of_group[:, 2] != of_group[0, 2]), 1])
        path, nodes, words = self._issued(number, npu)
        other_path, other_nodes, other_words = self._issued(number, other)
        where = f'group "{self.around.communicators.names[number]}"'
        order = "; the same ones come in another order" if Counter(words) == Counter(other_words) else ""
        for k, (mine, others) in enumerate(zip(words, other_words, strict=False)):
            if mine != others:
                text = (
                    f"{where}: collective {k} on NPU {npu} is {mine}, but on NPU {other} {others} "
                    f"({other_path}: node {other_nodes[k]}){order}"
                )
                return Example(path, nodes[k], text)
        longer = (path, nodes, words) if len(words) > len(other_words) else (other_path, other_nodes, other_words)
        k = min(len(words), len(other_words))
        text = (
            f"{where}: {longer[2][k]}, collective {k}: NPU {npu} issues {len(words)} of them, "
            f"but NPU {other} {len(other_words)}"
        )
        return Example(longer[0], longer[1][k], text)

    def _issued(self, number: int, npu: int) -> tuple[str, list[int], list[str]]:
        """File, ids of nodes, and kinds and sizes of what an NPU issues in a group."""
        place = self.sources.place(npu)
        if place is None:
            raise RuntimeError(f"NPU {npu} has issued collectives, but has no trace")
        looked = self.around.again(place[0])
        colls, me = looked.collectives, np.array([npu])
        is_group = [
            self.around.communicators.of(looked.table, group, me)[0] == number
            for group in range(len(looked.table.group_names))
        ]
        at = np.flatnonzero(np.array(is_group)[colls.group] & (colls.dims == WHOLE))
        words = [collective(int(colls.kind[i]), int(colls.size[i])) for i in at.tolist()]
        return looked.table.path, [looked.node(int(colls.row[i])) for i in at.tolist()], words


def collective(kind: int, size: int) -> str:
    """Kind and size in words."""
    name = collective_name(kind)
    if kind == CollectiveCommType.BARRIER:
        return name
    return f"{name} with split sizes" if size == UNEVEN else f"{name} of {'unknown size' if size < 0 else f'{size} B'}"
