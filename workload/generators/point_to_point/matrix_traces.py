"""The flows of a connection matrix as traces: a send and a receive for each, and waits for starts and triggers.

A wait until a start is a computation of as many operations as picoseconds, on NPUs or hosts of OPS_PER_S operations
per second (traces.py), because durations in traces are whole microseconds.

A flow that a trigger starts waits for the flows that fire the trigger: for the send if its sender is theirs, for the
receive if its sender is their receiver. If it is neither, the NPU that knows of the end sends a message of one byte,
where htsim takes no time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from nadi.et import Block, TraceColumns, TraceTable
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.point_to_point.connection_matrix import ConnectionMatrix, HtsimFlow
from nadi.workload.trace_sets.trace_set import TraceSet


class _Signal(NamedTuple):
    """A message of one byte by which a trigger reaches another NPU."""

    src: int
    dst: int
    trigger: int


class FlowTraces(NamedTuple):
    """The traces of a connection matrix."""

    traces: TraceSet  # trace of each node, idle ones without
    signals: int  # number of messages of one byte between NPUs for triggers


def flow_traces(matrix: ConnectionMatrix, *, waits_on_host: bool = False) -> FlowTraces:
    """Return the traces of a matrix; waits_on_host: hosts wait for starts, not NPUs.

    Raises WorkloadError: triggers do not fit the flows, or flows wait in a ring.
    """
    firing = _firing(matrix)
    try:
        order = list(
            TopologicalSorter({i: firing.get(flow.trigger, ()) for i, flow in enumerate(matrix.flows)}).static_order()
        )
    except CycleError as error:
        flow = matrix.flows[error.args[1][0]]
        raise WorkloadError(f"{flow.place}: the flow waits for itself by triggers; expected no ring") from None
    builder = _Traces(matrix, firing, waits_on_host=waits_on_host)
    for i in sorted(range(len(matrix.flows)), key=lambda i: matrix.flows[i].start_ps):
        builder.receive(i)
        if not matrix.flows[i].trigger:
            builder.send_at_start(i)
    for i in order:
        if matrix.flows[i].trigger:
            builder.send_by_trigger(i)
    return FlowTraces(TraceSet.of(builder.tables()), len(builder.signals))


def _firing(matrix: ConnectionMatrix) -> dict[int, list[int]]:
    """Return the flows that fire each trigger that starts flows, after a check of their number."""
    firing = defaultdict(list)
    for i, flow in enumerate(matrix.flows):
        for trigger in {flow.send_done, flow.recv_done} - {0}:
            firing[trigger].append(i)
    for flow in matrix.flows:
        expected, found = matrix.counts.get(flow.trigger, 0), len(firing[flow.trigger])
        if flow.trigger and expected != (found or -1):
            told = f"{expected}, as its line says" if flow.trigger in matrix.counts else "a line of the trigger"
            raise WorkloadError(f"{flow.place}: {found} flows fire trigger {flow.trigger}; expected {told}")
    return firing


class _Traces:
    """The traces of all nodes while they are made."""

    def __init__(self, matrix: ConnectionMatrix, firing: dict[int, list[int]], *, waits_on_host: bool) -> None:
        self._matrix, self._firing, self._waits_on_host = matrix, firing, waits_on_host
        self._blocks: dict[int, Block] = defaultdict(Block)
        self._sends: dict[int, int] = {}  # row of each flow's send
        self._receives: dict[int, int] = {}  # row of each flow's receive
        self._waits: dict[int, tuple[int, list[int]]] = {}  # last start of each node in ps, and its row
        self.signals: dict[_Signal, int] = {}  # receiver's row of each signal

    def receive(self, i: int) -> None:
        """Add the receive of a flow."""
        flow = self._matrix.flows[i]
        self._receives[i] = self._blocks[flow.dst].recv(
            self._name(i, f"from{flow.src}"), flow.bytes, peer=flow.src, tag=i
        )

    def send_at_start(self, i: int) -> None:
        """Add the send of a flow with a start; the flows of a node come in the order of their starts."""
        flow = self._matrix.flows[i]
        now_ps, waited = self._waits.get(flow.src, (0, []))
        if flow.start_ps > now_ps:
            name = self._name(i, "wait")
            block, gap_ps = self._blocks[flow.src], flow.start_ps - now_ps
            waited = [block.comp(name, num_ops=gap_ps, is_cpu_op=self._waits_on_host, after=waited)]
            self._waits[flow.src] = flow.start_ps, waited
        self._send(i, waited)

    def send_by_trigger(self, i: int) -> None:
        """Add the send of a flow behind the flows that fire its trigger."""
        flow = self._matrix.flows[i]
        after, ends = [], defaultdict(list)
        for fired in self._firing[flow.trigger]:
            first = self._matrix.flows[fired]
            by_sender = first.send_done == flow.trigger
            if flow.src == first.src and by_sender:
                after.append(self._sends[fired])
            elif flow.src == first.dst:
                after.append(self._receives[fired])
            elif by_sender:
                ends[first.src].append(self._sends[fired])
            else:
                ends[first.dst].append(self._receives[fired])
        self._send(i, [*after, *self._signalled(flow, ends.items())])

    def _signalled(self, flow: HtsimFlow, ends: Iterable[tuple[int, list[int]]]) -> Iterator[int]:
        """Yield the rows in which a flow's sender learns that the rows of other nodes are done."""
        for node, rows in ends:
            signal = _Signal(node, flow.src, flow.trigger)
            if signal not in self.signals:
                tag, name = len(self._matrix.flows) + len(self.signals), f"trigger{flow.trigger}"
                self._blocks[node].send(f"{name}/to{flow.src}", 1, peer=flow.src, tag=tag, after=rows)
                self.signals[signal] = self._blocks[flow.src].recv(f"{name}/from{node}", 1, peer=node, tag=tag)
            yield self.signals[signal]

    def _send(self, i: int, after: list[int]) -> None:
        flow = self._matrix.flows[i]
        name = self._name(i, f"to{flow.dst}")
        self._sends[i] = self._blocks[flow.src].send(name, flow.bytes, peer=flow.dst, tag=i, after=after)

    def _name(self, i: int, what: str) -> str:
        return f"flow{self._matrix.flows[i].flow_id or i}/{what}"

    def tables(self) -> list[TraceTable | None]:
        """Return the trace of each node, None for nodes without flows."""
        tables: list[TraceTable | None] = [None] * self._matrix.nodes
        for node, block in self._blocks.items():
            columns = TraceColumns(node, f"{self._matrix.path}: node {node}")
            columns.stamp(block)
            tables[node] = columns.table()
        return tables
