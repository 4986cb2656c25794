"""Check of recorded times that no common clock explains, such as a collective that ends before a member begins it."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import UNKNOWN, WHOLE, Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import NOTE, WARNING, Example, Finding
from nadi.et.schema import CollectiveCommType
from nadi.inputs.arrays import Int64

LOOKS_FOR = "recorded times that show that the NPUs' clocks disagree"


_ALL_WAIT_FOR_ALL = (
    CollectiveCommType.ALL_REDUCE,
    CollectiveCommType.ALL_GATHER,
    CollectiveCommType.ALL_TO_ALL,
    CollectiveCommType.REDUCE_SCATTER,
    CollectiveCommType.BARRIER,
)
_RESOLUTION_MICROS = 1  # largest difference that rounding explains: times of traces are whole microseconds
_MAX_EXAMPLES = 20


class TraceCheck(Check):
    """Finds when each collective of a group begins last and ends first, among nodes with a time and a duration.

    Methods yield a Finding per problem, with examples.
    """

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._last_begin: dict[int, Int64] = {}  # int64[2, collectives] by group: time, and NPU
        self._first_end: dict[int, Int64] = {}  # the same
        self._messages: list[Int64] = []  # rows as _add_messages describes them
        self._timed = 0  # number of traces with start times
        self._untimed = 0  # number of traces without them

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Collect the times of a trace, to compare at the end; traces without start times are skipped.

        Args:
            checked: The trace to check.
        """
        if not self.sources.is_complete:
            return ()
        has_times = bool(np.any(checked.table.start_time_micros > 0))
        if len(checked.collectives.row) + len(checked.messages.row):
            self._timed += has_times
            self._untimed += not has_times
        if has_times:
            self._add_collectives(checked)
            self._add_messages(checked)
        return ()

    def end(self) -> Iterable[Finding]:
        """Return collectives and messages that no common clock explains."""
        yield from self._collectives()
        yield from self._received_before_sent()
        if self._timed and self._untimed:
            text = f"{self._timed} traces have start times, {self._untimed} have not"
            yield Finding(NOTE, "some traces have no start times", self._untimed, (Example("", None, text),))

    def _add_collectives(self, checked: CheckedTrace) -> None:
        """Update the last begin and first end of each group with the collectives of a trace."""
        table, colls = checked.table, checked.collectives
        users = self.sources.users[checked.trace]
        for group in np.unique(colls.group).tolist():
            at = np.flatnonzero((colls.group == group) & (colls.dims == WHOLE))
            row = colls.row[at]
            counts = np.isin(colls.kind[at], _ALL_WAIT_FOR_ALL) & (table.duration_micros[row] > 0)
            # Values that change neither the last begin nor the first end
            begin = np.where(counts, table.start_time_micros[row], -1)
            end = np.where(counts, table.start_time_micros[row] + table.duration_micros[row], np.iinfo(np.int64).max)
            numbers = self.context.communicators.of(table, group, users)
            for number, npu in zip(*np.unique(numbers[numbers != UNKNOWN], return_index=True), strict=True):
                self._merge(int(number), int(users[numbers != UNKNOWN][npu]), begin, end)

    def _merge(self, group_number: int, npu: int, begin_micros: Int64, end_micros: Int64) -> None:
        """Update times and NPUs of the last begin and the first end of a group's collectives, with those of one NPU."""
        last = np.stack([begin_micros, np.full(len(begin_micros), npu)])
        first = np.stack([end_micros, np.full(len(end_micros), npu)])
        if group_number in self._last_begin:
            # Members may have unequal numbers of collectives, which another check reports
            n = min(len(begin_micros), self._last_begin[group_number].shape[1])
            old_last, old_first = self._last_begin[group_number][:, :n], self._first_end[group_number][:, :n]
            last = np.where(last[0, :n] > old_last[0], last[:, :n], old_last)
            first = np.where(first[0, :n] < old_first[0], first[:, :n], old_first)
        self._last_begin[group_number], self._first_end[group_number] = last, first

    def _collectives(self) -> Iterable[Finding]:
        """Yield the collectives that end at a member before another begins them."""
        found: list[tuple[int, int, int]] = []
        count = 0
        for number, last in self._last_begin.items():
            # Positive: a member has ended before the last one began, which no collective that waits for all can do
            gap = last[0] - self._first_end[number][0] - _RESOLUTION_MICROS
            wrong = np.flatnonzero((gap > 0) & (last[0] >= 0))
            count += len(wrong)
            found += [(int(gap[k]), number, int(k)) for k in wrong[np.argsort(-gap[wrong])][:_MAX_EXAMPLES].tolist()]
        examples = []
        for gap, number, k in sorted(found, reverse=True)[:_MAX_EXAMPLES]:
            early, late = int(self._first_end[number][1, k]), int(self._last_begin[number][1, k])
            name = self.context.communicators.names[number]
            text = (
                f'group "{name}", collective {k}: NPU {early} ends it {gap + _RESOLUTION_MICROS} us before '
                f"NPU {late} begins it"
            )
            examples.append(Example("", None, text))
        if count:
            yield Finding(WARNING, "collectives end at a member before another begins them", count, tuple(examples))

    def _add_messages(self, checked: CheckedTrace) -> None:
        """Store sender, receiver, tag, place, direction, begin and end of each message."""
        table, m = checked.table, checked.messages
        has_time = (table.duration_micros[m.row] > 0) & (m.peer >= 0)
        if not np.any(has_time):
            return
        row = m.row[has_time]
        begin = table.start_time_micros[row]
        end = begin + table.duration_micros[row]
        own = [m.tag[has_time], m.seq[has_time], m.is_send[has_time], begin, end]
        shifts = self.sources.shifts(checked.trace).tolist()
        for npu, shift in zip(self.sources.users[checked.trace].tolist(), shifts, strict=True):
            peer, me = m.peer[has_time].astype(np.int64) + shift, np.full(len(row), npu)
            source, target = (np.where(m.is_send[has_time], a, b) for a, b in ((me, peer), (peer, me)))
            self._messages.append(np.stack([source, target, *own], axis=1).astype(np.int64))

    def _received_before_sent(self) -> Iterable[Finding]:
        """Yield the messages that are received before their send begins."""
        if not self._messages:
            return
        rows = np.concatenate(self._messages)
        # By sender, receiver, tag, number and direction: a receive comes directly before its send
        rows = rows[np.lexsort(rows[:, 4::-1].T)]
        is_pair = np.all(rows[1:, :4] == rows[:-1, :4], axis=1) & (rows[1:, 4] == 1) & (rows[:-1, 4] == 0)
        receive, send = rows[:-1][is_pair], rows[1:][is_pair]
        # Begin of the send, and end of the receive
        early = send[:, 5] - receive[:, 6]
        wrong = np.flatnonzero(early > _RESOLUTION_MICROS)
        examples = tuple(
            Example(
                "",
                None,
                f"NPU {send[i, 0]} to NPU {send[i, 1]}, tag {send[i, 2]}: message {send[i, 3]} is received "
                f"{early[i]} us before its send begins",
            )
            for i in wrong[np.argsort(-early[wrong])][:_MAX_EXAMPLES].tolist()
        )
        if len(wrong):
            yield Finding(WARNING, "messages are received before they are sent", len(wrong), examples)
