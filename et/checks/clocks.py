"""Recorded times that cannot be of one clock: a collective that is over before a member begins it, and the like."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from et.checking.check import Check, CheckContext
from et.checking.communicators import UNKNOWN
from et.checking.finding import NOTE, WARNING, Example, Finding
from et.checking.looked import WHOLE, CheckedTrace
from et.schema import CollectiveCommType

NAME = "clocks"
LOOKS_FOR = "recorded times of which the NPUs' clocks disagree"

Int64 = NDArray[np.int64]

_ALL_WAIT_FOR_ALL = (
    CollectiveCommType.ALL_REDUCE,
    CollectiveCommType.ALL_GATHER,
    CollectiveCommType.ALL_TO_ALL,
    CollectiveCommType.REDUCE_SCATTER,
    CollectiveCommType.BARRIER,
)
_RESOLUTION_MICROS = 1
"""Times of traces are whole microseconds, each rounded by itself."""
_MOST_TOLD = 20


class Look(Check):
    """Gathers, of nodes with a time and a duration, when a group's collective begins last and ends first."""

    def __init__(self, around: CheckContext) -> None:
        super().__init__(around)
        self._last_begin: dict[int, Int64] = {}
        self._first_end: dict[int, Int64] = {}
        self._messages: list[Int64] = []
        self._timed = 0
        self._untimed = 0

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """Adds the times of a trace; one without start times says nothing."""
        if not self.sources.whole:
            return ()
        has_times = bool(np.any(looked.table.start_time_micros > 0))
        if len(looked.collectives.row) + len(looked.messages.row):
            self._timed += has_times
            self._untimed += not has_times
        if has_times:
            self._add_collectives(looked)
            self._add_messages(looked)
        return ()

    def end(self) -> Iterable[Finding]:
        """Collectives and messages that no common clock explains."""
        yield from self._collectives()
        yield from self._received_before_sent()
        if self._timed and self._untimed:
            text = f"{self._timed} traces have start times, {self._untimed} have none"
            yield Finding(NOTE, "some traces have no start times", self._untimed, (Example("", None, text),))

    def _add_collectives(self, looked: CheckedTrace) -> None:
        table, colls = looked.table, looked.collectives
        users = self.sources.users[looked.trace]
        for group in np.unique(colls.group).tolist():
            at = np.flatnonzero((colls.group == group) & (colls.dims == WHOLE))
            row = colls.row[at]
            counts = np.isin(colls.kind[at], _ALL_WAIT_FOR_ALL) & (table.duration_micros[row] > 0)
            begin = np.where(counts, table.start_time_micros[row], -1)
            end = np.where(counts, table.start_time_micros[row] + table.duration_micros[row], np.iinfo(np.int64).max)
            numbers = self.around.communicators.of(table, group, users)
            for number, npu in zip(*np.unique(numbers[numbers != UNKNOWN], return_index=True), strict=True):
                self._merge(int(number), int(users[numbers != UNKNOWN][npu]), begin, end)

    def _merge(self, number: int, npu: int, begin: Int64, end: Int64) -> None:
        """Rows of time and NPU for each collective of a group."""
        last = np.stack([begin, np.full(len(begin), npu)])
        first = np.stack([end, np.full(len(end), npu)])
        if number in self._last_begin:
            n = min(len(begin), self._last_begin[number].shape[1])
            old_last, old_first = self._last_begin[number][:, :n], self._first_end[number][:, :n]
            last = np.where(last[0, :n] > old_last[0], last[:, :n], old_last)
            first = np.where(first[0, :n] < old_first[0], first[:, :n], old_first)
        self._last_begin[number], self._first_end[number] = last, first

    def _collectives(self) -> Iterable[Finding]:
        found: list[tuple[int, int, int]] = []
        count = 0
        for number, last in self._last_begin.items():
            gap = last[0] - self._first_end[number][0] - _RESOLUTION_MICROS
            wrong = np.flatnonzero((gap > 0) & (last[0] >= 0))
            count += len(wrong)
            found += [(int(gap[k]), number, int(k)) for k in wrong[np.argsort(-gap[wrong])][:_MOST_TOLD].tolist()]
        examples = []
        for gap, number, k in sorted(found, reverse=True)[:_MOST_TOLD]:
            early, late = int(self._first_end[number][1, k]), int(self._last_begin[number][1, k])
            name = self.around.communicators.names[number]
            text = (
                f'group "{name}", collective {k}: NPU {early} ends it {gap + _RESOLUTION_MICROS} us before '
                f"NPU {late} begins it"
            )
            examples.append(Example("", None, text))
        if count:
            yield Finding(WARNING, "collectives end at a member before another begins them", count, tuple(examples))

    def _add_messages(self, looked: CheckedTrace) -> None:
        """Rows of sender, receiver, tag, place, direction, begin and end."""
        table, m = looked.table, looked.messages
        has_time = (table.duration_micros[m.row] > 0) & (m.peer >= 0)
        if not np.any(has_time):
            return
        row = m.row[has_time]
        begin = table.start_time_micros[row]
        own: list[Int64] = [m.tag[has_time], m.seq[has_time].astype(np.int64), m.is_send[has_time].astype(np.int64)]
        own += [begin, begin + table.duration_micros[row]]
        shifts = self.sources.shifts(looked.trace).tolist()
        for npu, shift in zip(self.sources.users[looked.trace].tolist(), shifts, strict=True):
            peer, me = m.peer[has_time] + shift, np.full(len(row), npu)
            source, target = (np.where(m.is_send[has_time], a, b) for a, b in ((me, peer), (peer, me)))
            self._messages.append(np.stack([source, target, *own], axis=1).astype(np.int64))

    def _received_before_sent(self) -> Iterable[Finding]:
        if not self._messages:
            return
        rows = np.concatenate(self._messages)
        rows = rows[np.lexsort(rows[:, 4::-1].T)]
        is_pair = np.all(rows[1:, :4] == rows[:-1, :4], axis=1) & (rows[1:, 4] == 1) & (rows[:-1, 4] == 0)
        receive, send = rows[:-1][is_pair], rows[1:][is_pair]
        early = send[:, 5] - receive[:, 6]
        wrong = np.flatnonzero(early > _RESOLUTION_MICROS)
        examples = tuple(
            Example(
                "",
                None,
                f"NPU {send[i, 0]} to NPU {send[i, 1]}, tag {send[i, 2]}: message {send[i, 3]} is received "
                f"{early[i]} us before its send begins",
            )
            for i in wrong[np.argsort(-early[wrong])][:_MOST_TOLD].tolist()
        )
        if len(wrong):
            yield Finding(WARNING, "messages are received before they are sent", len(wrong), examples)
