"""The nodes of one rank: what its host does, piece by piece, what that launches, and the dependencies.

- Each operator of the host is a node of the CPU, and so is each launch and each blocking call. A node takes the time
  until the next one begins; what an operator does after it has called another is a node "NAME (continued)". Times are
  cut at whole microseconds of the step, so that they add up.
- A kernel, copy or memset is a node of the device. It comes after its launch, after the earlier work of its stream, and
  after the work that its stream awaits.
- A blocking call comes after the work that it awaits, and takes only the time that remained after that work.
- A collective has its size. Its duration_micros is the time that it was under way, less the waiting for other ranks.
"""

import bisect
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nadi.et.pytorch import comm_calls, comms
from nadi.et.pytorch.comms import Comms, DeviceWork, StreamOrder
from nadi.et.pytorch.host_trace import HostOp, Links
from nadi.et.pytorch.kineto import KinetoTrace
from nadi.et.pytorch.nodes import Node, add_beginnings
from nadi.et.schema import NodeType

# The host's time as one sequence of pieces: at each moment one operator or call owns it.
#
# Threads of a training step alternate: the main thread waits while autograd's thread runs the backward pass. Where
# several have something open, the one that began last owns the time, because the others wait for it. So the pieces add
# up to the time that passed, on however many threads.

NO_OWNER = -1


class HostSpan(NamedTuple):
    """A stretch of the host's time that one owner claims."""

    start_ns: int  # begin of the span
    end_ns: int  # end of the span
    owner: int  # number of the owner, from 0


class HostPiece(NamedTuple):
    """A stretch of the host's time that one owner got."""

    start_ns: int  # begin of the piece
    end_ns: int  # end of the piece; equal to start_ns for an owner that got no time
    owner: int  # number of the owner, or NO_OWNER where no span was open
    is_first: bool  # whether the piece is the owner's first one


def pieces(spans: Sequence[HostSpan], begin_ns: int, end_ns: int) -> list[HostPiece]:
    """Give every moment to the open span that began last, or to NO_OWNER where none is open.

    The pieces are in order without gaps between them, at least one per span.

    Args:
        spans: Spans within the period, in any order, but outer ones before inner ones that begin at the same time.
        begin_ns: The begin of the period.
        end_ns: The end of the period.
    """
    ordered = sorted(range(len(spans)), key=lambda i: spans[i].start_ns)
    starts = [spans[i].start_ns for i in ordered]
    open_spans: list[tuple[int, int]] = []  # (-place in order, span): the last to begin is the first of the heap
    seen: set[int] = set()
    result: list[HostPiece] = []
    now, place = begin_ns, 0
    while now < end_ns or place < len(ordered):
        while place < len(ordered) and starts[place] <= now:
            if open_spans and place and starts[place] == starts[place - 1]:
                _append(result, seen, now, now, ordered[place - 1])  # an inner span begins with it: a piece of no time
            heapq.heappush(open_spans, (-place, ordered[place]))
            place += 1
        while open_spans and spans[open_spans[0][1]].end_ns <= now:
            over = heapq.heappop(open_spans)[1]
            if over not in seen:
                _append(result, seen, now, now, over)
        # The owner changes at the next begin of a span, or when the owner's span ends
        until = starts[place] if place < len(ordered) else end_ns
        owner = NO_OWNER
        if open_spans:
            owner = open_spans[0][1]
            until = min(until, spans[owner].end_ns)
        _append(result, seen, now, max(until, now), owner)
        if until <= now and not open_spans and place >= len(ordered):
            break
        now = max(until, now)
    for _, over in sorted(open_spans, reverse=True):
        if over not in seen:
            _append(result, seen, now, now, over)
    return result


def _append(host_pieces: list[HostPiece], seen_owners: set[int], start_ns: int, end_ns: int, owner: int) -> None:
    """Append a piece of an owner, or make the last one longer; `seen_owners` have a piece already."""
    if owner in seen_owners and start_ns == end_ns:
        return
    if host_pieces and host_pieces[-1].owner == owner:
        host_pieces[-1] = host_pieces[-1]._replace(end_ns=end_ns)
        return
    if owner == NO_OWNER and start_ns == end_ns:
        return
    host_pieces.append(HostPiece(start_ns, end_ns, owner, owner not in seen_owners))
    seen_owners.add(owner)


IDLE = "(no operator)"
LEFT_OVER = "(left over from the step before)"
_WAITING_OPS = ("c10d::", "wait_tensor", "record_param_comms", "gloo:", "monitored")


@dataclass
class RankNodes:
    """The step of one rank, as nodes."""

    rank: int  # number of the rank
    path: Path  # path of the Kineto trace
    kineto: KinetoTrace  # the Kineto trace
    # begin and end of the step on the rank's own clock; the end is the later one of host and device
    begin_ns: int
    end_ns: int
    nodes: list[Node]  # all nodes of the step
    comms: Comms  # collectives and messages
    links: Links  # pairs of operators of Kineto and of the host trace
    work: DeviceWork  # operations of the device
    order: StreamOrder  # order of the streams
    node_of_comm: dict[int, int] = field(default_factory=dict)  # node of each call, by the call's place in comms.calls
    ops: int = 0  # number of operators of the host
    overlap_ns: int = 0  # time when kernels of several streams ran at once, without collectives
    thread_ns: int = 0  # time that threads of the host that execute calls take beside the calls, in nodes of their own

    def order_of(self, call_place: int) -> tuple[int, int]:
        """Return the sort key of a call: when a device executes it, otherwise when it was issued.

        Args:
            call_place: The place of the call in `comms.calls`.
        """
        comm = self.comms.calls[call_place]
        if comm.on_host >= 0:
            return (self.kineto.ops[comm.issuer].start_ns, call_place)
        return (self.nodes[self.node_of_comm[call_place]].start_ns, call_place)

    def linked_above(self, number: int) -> HostOp | None:
        """Return the host operator of an operator of Kineto, or of the nearest linked operator around it.

        Args:
            number: The number of an operator of Kineto; -1 = none.
        """
        return next((self.links.host[n] for n in self.kineto.enclosing(number) if n in self.links.host), None)


def rank_nodes(rank: int, kineto: KinetoTrace, links: Links, begin_ns: int, end_ns: int) -> RankNodes:
    """Make the nodes of what a rank's host calls in a period, and of everything that this launches.

    Args:
        rank: The number of the rank.
        kineto: The Kineto trace of the rank.
        links: The links from the operators of Kineto to those of the host trace.
        begin_ns: The begin of the period on the rank's own clock.
        end_ns: The end of the period on the rank's own clock.
    """
    return _Builder(rank, kineto, links, begin_ns, end_ns).build()


class _Builder:
    """Nodes of one rank while they are made.

    `number` is that of a device operation, `place` that of a call, `owner` the row of `_owners` of a piece of host
    time.
    """

    def __init__(self, rank: int, kineto: KinetoTrace, links: Links, begin_ns: int, end_ns: int) -> None:
        self._kineto, self._links = kineto, links
        self._begin_ns, self._end_ns = begin_ns, end_ns
        work = comms.device_work(kineto, begin_ns, end_ns)
        found = comms.find(kineto, links.host, work, begin_ns, end_ns)
        issued = ((found.calls[place].issuer, kernel) for kernel, places in found.of_kernel.items() for place in places)
        stream = {issuer: work.ops[kernel].stream for issuer, kernel in issued}
        # stream of the kernel that a collective launches, for the calls within its operator
        own: dict[int, int] = {}
        for place, call in enumerate(kineto.calls):
            issuer = next((number for number in kineto.enclosing(call.op) if number in stream), None)
            if issuer is not None:
                own[place] = stream[issuer]
        order = comms.stream_order(work, kineto, own)
        last_ns = max([end_ns, *(op.end_ns for op in work.ops)])
        self._step = RankNodes(rank, kineto.path, kineto, begin_ns, last_ns, [], found, links, work, order)
        self._owners: list[tuple[str, int]] = []  # "op", "call" or "wait", and its number
        self._node_of_launch: dict[int, int] = {}
        self._node_of_op: dict[int, int] = {}
        self._waits: dict[int, list[int]] = {}  # device ops for which each owner waits
        self._ends: list[tuple[int, int]] = []  # end of each node of the host, in order, and its number

    def build(self) -> RankNodes:
        """Return the nodes of the step."""
        step = self._step
        step.nodes.extend(self._device_node(number) for number in range(len(step.work.ops)))
        self._add_left_over()
        self._add_comms()
        host = self._host_pieces()
        issued = {place: self._issued_ns(place) for place in step.node_of_comm if step.comms.calls[place].kernel < 0}
        host = _split(host, sorted(issued.values()))
        self._add_host(host, self._host_waits(host))
        for place, at_ns in issued.items():
            step.nodes[step.node_of_comm[place]].after.extend(self._last_host_before(at_ns))
        add_beginnings(step, issued)
        for number in range(len(step.work.ops)):
            places = step.comms.of_kernel.get(number, [])
            nodes = [step.node_of_comm[place] for place in places] or [number]
            for node in nodes:
                step.nodes[node].after.extend(self._before_device(number))
        self._join_readers()
        step.overlap_ns = _overlap_ns(step)
        return step

    # the host's time

    def _host_pieces(self) -> list[HostPiece]:
        """Return pieces of operators, launches and blocking calls; `_owners` has the owner of each."""
        kineto, work = self._kineto, self._step.work
        begin_ns, end_ns = self._begin_ns, self._end_ns
        awaited, copies = comms.AwaitedOps(work, kineto.waits), comms.waited_copies(work)
        launching = {call.correlation for call in work.launches.values()}
        # Threads that only execute calls (gloo's) are not the host's sequence
        busy = {op.thread for i, op in enumerate(kineto.ops) if i not in self._step.comms.carriers}
        spans: list[HostSpan] = []
        # Sorted by begin; at equal begins the longer one comes first, as it encloses the other
        entries = [(op.start_ns, 0, -op.end_ns, i) for i, op in enumerate(kineto.ops)]
        entries += [(call.start_ns, 1, -call.end_ns, i) for i, call in enumerate(kineto.calls) if call.thread in busy]
        for start_ns, is_call, minus_end_ns, number in sorted(entries):
            if not begin_ns <= start_ns < end_ns:
                continue
            stop_ns = min(-minus_end_ns, end_ns)
            if not is_call:
                if number not in self._step.comms.carriers:
                    spans.append(self._span(start_ns, stop_ns, "op", number))
                    self._step.ops += 1
                continue
            call = kineto.calls[number]
            if call.correlation in copies:
                done = work.ops[copies[call.correlation]]
                # Until the copy begins the host is busy with the call; from then on it waits for the copy
                middle_ns = min(max(done.start_ns, start_ns), stop_ns)
                spans.append(self._span(start_ns, middle_ns, "call", number))
                self._waits[len(self._owners)] = [copies[call.correlation]]
                spans.append(self._span(middle_ns, stop_ns, "wait", number))
            elif call.correlation in launching:
                spans.append(self._span(start_ns, stop_ns, "call", number))
            elif comms.is_blocking(call) and (found := awaited.by(call)):
                self._waits[len(self._owners)] = found
                spans.append(self._span(start_ns, stop_ns, "wait", number))
        return pieces(spans, begin_ns, end_ns)

    def _span(self, start_ns: int, end_ns: int, what: str, number: int) -> HostSpan:
        self._owners.append((what, number))
        return HostSpan(start_ns, end_ns, len(self._owners) - 1)

    def _add_host(self, host: list[HostPiece], waits_of: Mapping[int, list[tuple[int, int]]]) -> None:
        """Add a node for each piece that takes a microsecond or is a parent; each comes after the one before.

        `waits_of` has the nodes that the host awaits in a piece, with their end times, by place of the piece.
        """
        step = self._step
        clock = 0  # microseconds of the step that nodes have taken
        last_piece = {piece.owner: place for place, piece in enumerate(host)}
        for place, piece in enumerate(host):
            # Ends are cut, not durations: ten pieces of 0.3 microseconds take 3 microseconds together, not 0 or 10
            until = (piece.end_ns - self._begin_ns) // 1000
            waits = list(waits_of.get(place, ()))
            if last_piece[piece.owner] == place and piece.owner != NO_OWNER:
                waits += [w for n in self._waits.get(piece.owner, ()) for w in self._nodes_and_end(n)]
            if until == clock and not waits and (piece.owner == NO_OWNER or not piece.is_first):
                continue
            node = self._host_node(piece, until - clock)
            if self._ends:
                node.after.append(self._ends[-1][1])
            if waits:
                node.after.extend(number for number, _ in waits)
                # A waiting node keeps only the time after what it awaits
                over = (max(over_ns for _, over_ns in waits) - self._begin_ns) // 1000
                node.micros = min(node.micros, max(until - over, 0))
            if piece.is_first and piece.owner != NO_OWNER:
                what, number = self._owners[piece.owner]
                if what == "op":
                    self._node_of_op[number] = len(step.nodes)
                elif what == "call":
                    self._node_of_launch[self._kineto.calls[number].correlation] = len(step.nodes)
            clock = until
            self._ends.append((piece.end_ns, len(step.nodes)))
            step.nodes.append(node)

    def _nodes_and_end(self, number: int) -> list[tuple[int, int]]:
        """Return the nodes of a device op, and when it ended."""
        places = self._step.comms.of_kernel.get(number, ())
        over_ns = self._step.work.ops[number].end_ns
        return [(self._step.node_of_comm[place], over_ns) for place in places] or [(number, over_ns)]

    def _host_waits(self, host: list[HostPiece]) -> dict[int, list[tuple[int, int]]]:
        """Return, by place of a piece, the nodes of host threads that the host awaits in it.

        Such a wait ends while nothing but annotations is open, or while an operator of communication is. A receive ends
        with the first such piece after it.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        starts = [piece.start_ns for piece in host]
        for place, node in self._step.node_of_comm.items():
            comm = self._step.comms.calls[place]
            if comm.on_host < 0 or comm.call.kind == comm_calls.SEND:
                continue
            at = bisect.bisect_left(starts, comm.end_ns) - 1
            if comm.call.kind == comm_calls.RECV:
                at = next((i for i in range(max(at, 0), len(host)) if self._may_wait(host[i])), -1)
                over_ns = host[at].end_ns if at >= 0 else 0
            else:
                over_ns = comm.end_ns
            if at >= 0 and self._may_wait(host[at]) and comm.end_ns <= host[at].end_ns:
                found.setdefault(at, []).append((node, over_ns))
        return found

    def _may_wait(self, piece: HostPiece) -> bool:
        """Return whether the host may wait in a piece: in annotations, in waiting operators, or where none is open."""
        if piece.owner == NO_OWNER:
            return True
        what, number = self._owners[piece.owner]
        op = self._kineto.ops[number]
        return what == "op" and (op.is_annotation or any(part in op.name for part in _WAITING_OPS))

    def _join_readers(self) -> None:
        """Make operators that use a tensor of a call on a host thread depend on that call.

        The host trace has the storage of each tensor; the first operator that begins after the call depends on it.
        """
        step = self._step
        open_calls: dict[int, list[tuple[int, int]]] = {}
        for place, node in step.node_of_comm.items():
            comm = step.comms.calls[place]
            host = self._links.host.get(comm.on_host)
            if host is not None and comm.call.kind >= 0:
                for storage in comm_calls.storages(host.inputs):
                    open_calls.setdefault(storage, []).append((comm.end_ns, node))
        if not open_calls:
            return
        for number, node in self._node_of_op.items():
            host = self._links.host.get(number)
            start_ns = self._kineto.ops[number].start_ns
            for storage in comm_calls.storages(host.inputs) & open_calls.keys() if host is not None else ():
                over = [call for call in open_calls[storage] if call[0] <= start_ns]
                step.nodes[node].after.extend(call for _, call in over)
                open_calls[storage] = [call for call in open_calls[storage] if call not in over]

    def _host_node(self, piece: HostPiece, micros: int) -> Node:
        """Return the node of a piece of host time that takes `micros`."""
        if piece.owner == NO_OWNER:
            return Node(IDLE, NodeType.COMP_NODE, piece.start_ns, micros, is_cpu_op=True)
        what, number = self._owners[piece.owner]
        source = self._kineto.ops[number] if what == "op" else self._kineto.calls[number]
        name = source.name if piece.is_first else f"{source.name} (continued)"
        node = Node(name, NodeType.COMP_NODE, piece.start_ns, micros, is_cpu_op=True)
        node.attributes.append(("tid", "int64", source.thread))
        if what == "op" and piece.is_first:
            node.attributes.extend(_record_id(self._links.host.get(number)))
        return node

    def _last_host_before(self, at_ns: int) -> list[int]:
        """Return the node of the host that ended last before a time."""
        place = bisect.bisect_right(self._ends, (at_ns, 1 << 62)) - 1
        return [self._ends[place][1]] if place >= 0 else []

    # the device

    def _device_node(self, number: int) -> Node:
        """Return the node of a device op; an op that executes a call shares the call's node."""
        op = self._step.work.ops[number]
        micros = op.end_ns // 1000 - op.start_ns // 1000
        node = Node(op.name, NodeType.COMP_NODE, op.start_ns, micros)
        node.attributes.append(("stream", "int64", op.stream))
        caller = self._step.linked_above(self._step.work.caller.get(number, -1))
        node.attributes.extend(_record_id(caller)[:1])
        return node

    def _before_device(self, number: int) -> list[int]:
        """Return the nodes that a device op comes after."""
        call = self._step.work.launches.get(number)
        launch = self._node_of_launch.get(call.correlation) if call is not None else None
        at_ns = self._step.work.ops[number].start_ns
        # Without a launch in the trace, it comes after what the host did before
        found = [launch] if launch is not None else self._last_host_before(at_ns)
        return found + [node for other in self._step.order.after[number] for node, _ in self._nodes_and_end(other)]

    def _add_left_over(self) -> None:
        """Add what an earlier step left for the streams to do; it comes first on them."""
        step = self._step
        for op in step.work.left_over:
            if comm_calls.kernel_kind(op.name) is not None:
                continue
            micros = (op.end_ns - self._begin_ns) // 1000
            later = [i for i, other in enumerate(step.work.ops) if other.stream == op.stream]
            for number in later[:1]:
                step.nodes[number].after.append(len(step.nodes))
            step.nodes.append(Node(LEFT_OVER, NodeType.COMP_NODE, self._begin_ns, micros))

    # collectives and messages

    def _add_comms(self) -> None:
        """Give a kernel's first call the kernel's node; all other calls get nodes of their own."""
        step = self._step
        for place, comm in enumerate(step.comms.calls):
            if comm.call.kind == comm_calls.UNKNOWN and comm.kernel < 0:
                continue
            first = comm.kernel >= 0 and step.comms.of_kernel[comm.kernel][0] == place
            if first:
                step.node_of_comm[place] = comm.kernel
                step.nodes[comm.kernel].name = comm.name
                continue
            start_ns = comm.start_ns or self._kineto.ops[comm.issuer].start_ns
            step.node_of_comm[place] = len(step.nodes)
            step.nodes.append(Node(comm.name, NodeType.COMP_NODE, start_ns, (comm.end_ns - comm.start_ns) // 1000))

    def _issued_ns(self, place: int) -> int:
        """Return when the host handed a call over: the issuing operator's end, but no later than the call's begin."""
        comm = self._step.comms.calls[place]
        if comm.issuer < 0:
            return comm.start_ns
        op = self._kineto.ops[comm.issuer]
        if comm.on_host < 0:
            return op.start_ns
        return max(min(op.end_ns, comm.start_ns), op.start_ns)


def _split(host_pieces: list[HostPiece], times_ns: list[int]) -> list[HostPiece]:
    """Return the pieces, cut at the given times."""
    result: list[HostPiece] = []
    for uncut in host_pieces:
        piece = uncut
        first, last = bisect.bisect_right(times_ns, piece.start_ns), bisect.bisect_left(times_ns, piece.end_ns)
        for at_ns in sorted(set(times_ns[first:last])):
            result.append(piece._replace(end_ns=at_ns))
            piece = piece._replace(start_ns=at_ns, is_first=False)
        result.append(piece)
    return result


def _record_id(op: HostOp | None) -> list[tuple[str, str, int]]:
    """Return the attribute that a node keeps of a host operator: its record function id."""
    return [("rf_id", "int64", op.rf_id)] if op is not None else []


def _overlap_ns(rank_nodes: RankNodes) -> int:
    """Return how long more than one stream computes."""
    edges = []
    for number, op in enumerate(rank_nodes.work.ops):
        if number not in rank_nodes.comms.of_kernel:
            edges += [(op.start_ns, 1), (op.end_ns, -1)]
    total = depth = since = 0
    # At one moment ends (-1) come before begins (1): kernels that follow each other do not overlap
    for at_ns, change in sorted(edges):
        if depth > 1:
            total += (depth - 1) * (at_ns - since)
        depth, since = depth + change, at_ns
    return total
