"""Check for NPUs that wait for each other in a cycle, through collectives of several groups and messages."""

from collections.abc import Iterable

from nadi.et.checking.check import Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import ERROR, NOTE, Example, Finding
from nadi.et.checking.waits import WaitingNode, Waits, deadlocks, unknown_waits, waits_of
from nadi.et.checks.collectives import collective
from nadi.et.order import cycle_text
from nadi.et.schema import NodeType

LOOKS_FOR = "NPUs that wait for each other for ever, over collectives, messages and dependencies, with the cycle"

_MAX_EDGES = 8_000_000
_MAX_EXAMPLES = 20


class TraceCheck(Check):
    """Stores the dependencies of all traces, up to _MAX_EDGES, because a cycle may pass through any of them."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._waits: dict[int, Waits] = {}  # dependencies of each trace
        self._edges = 0  # number of nodes and dependencies so far

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Store the dependencies of a trace, to search for cycles at the end.

        Args:
            checked: The trace to check.
        """
        if not self.sources.is_complete or self.sources.npus < 2:
            return ()
        self._edges += len(checked.table) + len(checked.table.dep)
        if self._edges > _MAX_EDGES:
            # Too large to search: a part of the traces would show no cycle through the others
            self._waits.clear()
        else:
            users = self.sources.users[checked.trace]
            self._waits[checked.trace] = waits_of(checked, self.context.communicators, users)
        return ()

    def end(self) -> Iterable[Finding]:
        """Return one cycle per set of NPUs that wait for each other."""
        found = None
        if self._edges <= _MAX_EDGES:
            users = enumerate(self.sources.users)
            # A trace that cannot be read waits for nothing, as far as is known
            waits = [self._waits.get(trace) or unknown_waits(own) for trace, own in users]
            found = deadlocks(self.sources, waits, _MAX_EDGES)
        if found is None:
            text = f"more than {_MAX_EDGES:,} nodes and dependencies"
            yield Finding(NOTE, "deadlocks of several NPUs were not searched", 1, (Example("", None, text),))
        elif found:
            examples = tuple(self._example(places) for places in found[:_MAX_EXAMPLES])
            yield Finding(ERROR, "NPUs wait for each other for ever", len(found), examples)

    def _example(self, cycle_nodes: list[WaitingNode]) -> Example:
        """Return the example of a cycle of nodes, where each node waits for the next."""
        texts = [self._place_text(place) for place in cycle_nodes]
        first = cycle_nodes[0]
        checked = self.context.reopened(first.trace)
        cycle = cycle_text(texts, f"NPU {first.npu} node {checked.node(first.row)}")
        return Example(checked.table.path, checked.node(first.row), f"each waits for the next: {cycle}")

    def _place_text(self, waiting_node: WaitingNode) -> str:
        """Return NPU, node and name or collective of a node that waits, as text."""
        checked = self.context.reopened(waiting_node.trace)
        table, row = checked.table, waiting_node.row
        what = str(table.names[row])
        if table.type[row] == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
            group = table.group_names[table.group[row]]
            what = f'{collective(int(table.comm_type[row]), int(table.comm_size[row]))}, group "{group}"'
        elif table.type[row] == NodeType.COMM_SEND_NODE:
            what = f"send to NPU {self._peer(checked, waiting_node, int(table.comm_dst[row]))}"
        elif table.type[row] == NodeType.COMM_RECV_NODE:
            what = f"receive from NPU {self._peer(checked, waiting_node, int(table.comm_src[row]))}"
        return f"NPU {waiting_node.npu} node {checked.node(row)} ({what})"

    def _peer(self, checked: CheckedTrace, place: WaitingNode, written: int) -> int:
        users, shifts = self.sources.users[checked.trace], self.sources.shifts(checked.trace)
        # Peers in a trace are those of its example NPU
        return written + int(shifts[users == place.npu][0])
