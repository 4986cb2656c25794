"""NPUs that wait for each other in a circle, over collectives of several groups and messages."""

from collections.abc import Iterable

from et.checking.check import Check, CheckContext
from et.checking.finding import ERROR, NOTE, Example, Finding
from et.checking.looked import CheckedTrace
from et.checking.waits import WaitingNode, Waits, deadlocks, waits_of
from et.checks.collectives import collective
from et.schema import NodeType

NAME = "deadlocks"
LOOKS_FOR = "NPUs that wait for each other for ever, over collectives, messages and dependencies, with the way around"

_MOST_EDGES = 8_000_000
_MOST_TOLD = 20
_LONGEST_PATH_SHOWN = 12


class Look(Check):
    """Keeps what all traces wait for, up to _MOST_EDGES: a circle may go through any of them."""

    def __init__(self, around: CheckContext) -> None:
        super().__init__(around)
        self._waits: dict[int, Waits] = {}
        self._edges = 0

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """Keeps what the nodes of a trace wait for."""
        if not self.sources.whole or self.sources.npus < 2:
            return ()
        self._edges += len(looked.table) + len(looked.table.dep)
        if self._edges > _MOST_EDGES:
            self._waits.clear()
        else:
            users = self.sources.users[looked.trace]
            self._waits[looked.trace] = waits_of(looked, self.around.communicators, users)
        return ()

    def end(self) -> Iterable[Finding]:
        """Circles of all NPUs together, one way around for each."""
        found = None
        if self._edges <= _MOST_EDGES:
            waits = [self._waits.get(trace) for trace in range(len(self.sources.files))]
            found = deadlocks(self.sources, waits, _MOST_EDGES)
        if found is None:
            text = f"more than {_MOST_EDGES:,} nodes and dependencies"
            yield Finding(NOTE, "deadlocks of several NPUs were not looked for", 1, (Example("", None, text),))
        elif found:
            told = tuple(self._told(places) for places in found[:_MOST_TOLD])
            yield Finding(ERROR, "NPUs wait for each other for ever", len(found), told)

    def _told(self, places: list[WaitingNode]) -> Example:
        words = [self._word(place) for place in places]
        if len(words) > _LONGEST_PATH_SHOWN:
            words = [*words[:_LONGEST_PATH_SHOWN], f"... ({len(words) - _LONGEST_PATH_SHOWN} more)"]
        first = places[0]
        looked = self.around.again(first.trace)
        way = " -> ".join([*words, f"NPU {first.npu} node {looked.node(first.row)}"])
        return Example(looked.table.path, looked.node(first.row), f"each waits for the next: {way}")

    def _word(self, place: WaitingNode) -> str:
        looked = self.around.again(place.trace)
        table, row = looked.table, place.row
        what = str(table.names[row])
        if table.type[row] == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
            group = table.group_names[table.group[row]]
            what = f'{collective(int(table.comm_type[row]), int(table.comm_size[row]))}, group "{group}"'
        elif table.type[row] == NodeType.COMM_SEND_NODE:
            what = f"send to NPU {self._peer(looked, place, int(table.comm_dst[row]))}"
        elif table.type[row] == NodeType.COMM_RECV_NODE:
            what = f"receive from NPU {self._peer(looked, place, int(table.comm_src[row]))}"
        return f"NPU {place.npu} node {looked.node(row)} ({what})"

    def _peer(self, looked: CheckedTrace, place: WaitingNode, written: int) -> int:
        users, shifts = self.sources.users[looked.trace], self.sources.shifts(looked.trace)
        return written + int(shifts[users == place.npu][0])
