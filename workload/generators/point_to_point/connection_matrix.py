"""htsim's connection matrices (.cm), read and made into traces: flows with start times or triggers, links that fail.

    Nodes 128
    Connections 2
    Triggers 1
    0->64 id 1 start 0 size 2000000 send_done_trigger 1
    0->65 id 2 trigger 1 size 2000000
    trigger id 1 oneshot

A start is in picoseconds. A trigger starts flows when flows that name it are done, at their sender (send_done_trigger,
when all is acknowledged) or receiver: `oneshot` after one flow, `barrier` after `count` flows. Source:
ConnectionMatrix::load (connection_matrix.cpp).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.et import Block, TraceColumns, TraceTable
from nadi.inputs.limits import LONGEST_PS, MAX_BYTES, MAX_NPUS
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.trace_set import TraceSet

_EXPECTED = "a connection matrix of htsim (Nodes, Connections, then flows)"
_COUNTS = {"Nodes": "nodes", "Connections": "flows", "Triggers": "triggers", "Failures": "failures"}
_ENDS = re.compile(r"(\d{1,9})->(\d{1,9})")
_FLOW_WORDS = {  # words of a flow and the maxima of their numbers
    "id": 2**32 - 1,
    "start": LONGEST_PS,
    "size": MAX_BYTES,
    "trigger": 2**32 - 1,
    "send_done_trigger": 2**32 - 1,
    "recv_done_trigger": 2**32 - 1,
    "prio": 2**32 - 1,
}
_TRIGGER_KINDS = ("oneshot", "multishot", "barrier")
_SWITCH_TYPES = ("TOR", "AGG", "CORE")
_MAX_FLOWS = 1 << 22  # tags of messages have 24 bits, and triggers between NPUs need some


class HtsimFlow(NamedTuple):
    """A flow of a matrix."""

    place: str  # file and line, for messages
    src: int  # number of the sending node
    dst: int  # number of the receiving node
    bytes: int  # size in bytes
    flow_id: int  # number of the flow in the file, 0 = none
    start_ps: int  # start in picoseconds; -1 = by a trigger
    trigger: int  # trigger that starts the flow, 0 = none
    send_done: int  # trigger that the flow fires when its sender has all acknowledgements, 0 = none
    recv_done: int  # trigger that the flow fires when its receiver has all bytes, 0 = none


class FailedLink(NamedTuple):
    """An uplink that carries nothing."""

    place: str  # file and line, for messages
    switch_type: str  # TOR, AGG or CORE
    switch: int  # number of the switch among those of its type
    link: int  # number of the uplink


class ConnectionMatrix(NamedTuple):
    """The content of a file."""

    path: Path  # path of the file
    nodes: int  # number of nodes
    flows: tuple[HtsimFlow, ...]  # flows in the order of the file
    counts: dict[int, int]  # number of activations after which each trigger fires
    failures: tuple[FailedLink, ...]  # links that fail


def read_connections(path: Path) -> ConnectionMatrix:
    """Return the content of a file. Raises WorkloadError: it cannot be read, or a line or count is wrong.

    Args:
        path: The path of the file.
    """
    with inputs.refusing(path, _EXPECTED, WorkloadError, UnicodeDecodeError):
        text = inputs.read_text(path)
    header = dict.fromkeys(_COUNTS.values(), 0)
    flows: list[HtsimFlow] = []
    counts: dict[int, int] = {}
    failures: list[FailedLink] = []
    triggers = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"{path}: line {number}"
        if words[0] in _COUNTS:
            maximum = MAX_NPUS if words[0] == "Nodes" else _MAX_FLOWS
            header[_COUNTS[words[0]]] = _whole(place, words[0], words[1:], maximum)
        elif words[0] == "trigger":
            _read_trigger(place, words[1:], counts)
            triggers += 1
        elif words[0] == "failure":
            failures.append(_failure(place, words[1:]))
        else:
            flows.append(_flow(place, words, header["nodes"]))
    found = {"flows": len(flows), "triggers": triggers, "failures": len(failures)}
    for word, name in _COUNTS.items():
        if name in found and found[name] != header[name]:
            raise WorkloadError(f"{path}: {found[name]} {name}; expected {header[name]}, as {word} has it")
    if header["nodes"] < 2 or not flows:
        raise WorkloadError(f"{path}: {header['nodes']} nodes and {len(flows)} flows; expected {_EXPECTED}")
    return ConnectionMatrix(path, header["nodes"], tuple(flows), counts, tuple(failures))


def _flow(place: str, words: Sequence[str], nodes: int) -> HtsimFlow:
    """Return the flow of a line."""
    ends = _ENDS.fullmatch(words[0])
    if ends is None:
        raise WorkloadError(f"{place}: found {words[0][:40]!r}; expected SRC->DST, trigger or failure")
    src, dst = int(ends[1]), int(ends[2])
    if max(src, dst) >= nodes or src == dst:
        raise WorkloadError(f"{place}: flow from {src} to {dst}; expected two different nodes below Nodes {nodes}")
    found: dict[str, int] = {}
    for word, value in _pairs(place, words[1:], ("addon",)):
        if word not in _FLOW_WORDS or word in found:
            kind = "a second" if word in found else "unknown"
            raise WorkloadError(f"{place}: {kind} {word[:40]!r}; expected each once of {', '.join(_FLOW_WORDS)}")
        # htsim reads a start as a floating-point number
        text = value.removesuffix(".0") if word == "start" else value
        found[word] = _whole(place, word, [text], _FLOW_WORDS[word])
    if not found.get("size"):
        raise WorkloadError(f"{place}: no size, which htsim takes for a flow without end; expected a size in bytes")
    if ("start" in found) == ("trigger" in found):
        raise WorkloadError(
            f"{place}: found {'both' if 'start' in found else 'neither'} of start and trigger; expected one"
        )
    numbers = (found.get(word, 0) for word in ("trigger", "send_done_trigger", "recv_done_trigger"))
    return HtsimFlow(place, src, dst, found["size"], found.get("id", 0), found.get("start", -1), *numbers)


def _read_trigger(place: str, words: Sequence[str], counts: dict[int, int]) -> None:
    """Add to `counts` the number of activations of the trigger of a line."""
    kinds = [word for word in words if word in _TRIGGER_KINDS]
    found = {}
    for word, value in _pairs(place, words, _TRIGGER_KINDS):
        if word not in {"id", "count"} or word in found:
            raise WorkloadError(
                f"{place}: found {word[:40]!r}; expected id, count and one of {', '.join(_TRIGGER_KINDS)}"
            )
        found[word] = _whole(place, word, [value], 2**32 - 1)
    if len(kinds) != 1 or not found.get("id") or found["id"] in counts:
        raise WorkloadError(f"{place}: expected an id of its own above 0 and one of {', '.join(_TRIGGER_KINDS)}")
    if kinds == ["barrier"] and not found.get("count"):
        raise WorkloadError(f"{place}: barrier without count; expected the number of flows that it waits for")
    counts[found["id"]] = found["count"] if kinds == ["barrier"] else 1


def _failure(place: str, words: Sequence[str]) -> FailedLink:
    """Return the link that fails of a line."""
    found = dict(_pairs(place, words, ()))
    kind = found.pop("switch_type", "")
    if kind not in _SWITCH_TYPES or set(found) != {"switch_id", "link_id"}:
        raise WorkloadError(
            f"{place}: expected switch_type {'|'.join(_SWITCH_TYPES)}, switch_id and link_id, each once"
        )
    numbers = (_whole(place, word, [found[word]], MAX_NPUS) for word in ("switch_id", "link_id"))
    return FailedLink(place, kind, *numbers)


def _pairs(place: str, words: Sequence[str], alone: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word and the word behind it, without the words that stand alone."""
    rest = [word for word in words if word not in alone]
    if len(rest) % 2:
        raise WorkloadError(f"{place}: nothing behind {rest[-1][:40]!r}; expected words with a value each")
    yield from zip(rest[::2], rest[1::2], strict=True)


def _whole(place: str, word: str, values: Sequence[str], maximum: int) -> int:
    """Return the one value of a word as a whole number."""
    text = " ".join(values)
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= maximum):
        raise WorkloadError(f"{place}: {word} is {text[:40]!r}; expected a whole number from 0 to {maximum}")
    return int(text)


# The flows of a connection matrix as traces: a send and a receive for each, and waits for starts and triggers.
#
# A wait until a start is a computation of as many operations as picoseconds, on NPUs or hosts of OPS_PER_S operations
# per second (traces.py), because durations in traces are whole microseconds.
#
# A flow that a trigger starts waits for the flows that fire the trigger: for the send if its sender is theirs, for the
# receive if its sender is their receiver. If it is neither, the NPU that knows of the end sends a message of one byte,
# where htsim takes no time.


class _Signal(NamedTuple):
    """A message of one byte that carries a trigger to another NPU."""

    src: int  # NPU that sends the message
    dst: int  # NPU that receives the message
    trigger: int  # number of the trigger


class FlowTraces(NamedTuple):
    """The traces of a connection matrix."""

    traces: TraceSet  # trace of each node, idle ones without
    signals: int  # number of messages of one byte between NPUs for triggers


def flow_traces(matrix: ConnectionMatrix, *, waits_on_host: bool = False) -> FlowTraces:
    """Return the traces of a connection matrix.

    Raises WorkloadError: triggers do not fit the flows, or flows wait in a ring.

    Args:
        matrix: The connection matrix.
        waits_on_host: Whether hosts wait for the starts of flows; else NPUs do.
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
    # In the order of starts, since a node's waits follow each other: starts at 5 and 8 µs are waits of 5 and then 3 µs
    for i in sorted(range(len(matrix.flows)), key=lambda i: matrix.flows[i].start_ps):
        builder.receive(i)
        if not matrix.flows[i].trigger:
            builder.send_at_start(i)
    # A send waits for rows of flows that fire its trigger: those must have been added before
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
        # -1 differs also from 0: a trigger that has neither a line nor a flow that fires it is refused as well
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
        """Add the receive of a flow.

        Args:
            i: The index of the flow in the matrix.
        """
        flow = self._matrix.flows[i]
        self._receives[i] = self._blocks[flow.dst].recv(
            self._name(i, f"from{flow.src}"), flow.bytes, peer=flow.src, tag=i
        )

    def send_at_start(self, i: int) -> None:
        """Add the send of a flow with a start; flows of a node must be added in the order of their starts.

        Args:
            i: The index of the flow in the matrix.
        """
        flow = self._matrix.flows[i]
        now_ps, waited = self._waits.get(flow.src, (0, []))
        if flow.start_ps > now_ps:
            name = self._name(i, "wait")
            block, gap_ps = self._blocks[flow.src], flow.start_ps - now_ps
            waited = [block.comp(name, num_ops=gap_ps, is_cpu_op=self._waits_on_host, after=waited)]
            self._waits[flow.src] = flow.start_ps, waited
        self._send(i, waited)

    def send_by_trigger(self, i: int) -> None:
        """Add the send of a flow behind the flows that fire its trigger.

        Args:
            i: The index of the flow in the matrix.
        """
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
                # Tags below the number of flows are those of the flows
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
