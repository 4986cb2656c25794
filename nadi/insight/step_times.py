"""Time of a training step by axis of parallelism, from the names of trace nodes.

At each moment an NPU is computing (a compute node of the accelerator runs) or waiting. The cause of a wait follows from
the next compute node: its parent that finished last delayed it; the latest parent of that node delayed that node; and
so on back to the moment when the accelerator fell idle. The time from when a node could begin until it finished belongs
to that node. After the last compute node, the node that finished last takes its place. For communication, the time

- before the sender has begun to send (of a receive) is `bubble`: waiting for a neighbour in the pipeline;
- before the last member has begun (of a collective) is `bubble` where the axis crosses stages (pp, embedding, world);
  else it belongs to the communication that made the last member late (`divided`), or to the
  axis itself if computation made it late;
- after that is exposed time of its axis.

Time of host and memory nodes is `other`; the rest, after an NPU's last node, is `idle`. The columns add up to the run.
"""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et import NodeType, TraceTable
from nadi.inputs.arrays import Int8, Int32, Int64, positions_in_sorted, spans
from nadi.insight.node_times import NodeRows, row_blocks
from nadi.pdes import KeptRows, Results
from nadi.simulation.schemas import COMMUNICATION_AXES as AXES, STEP_CATEGORIES as CATEGORIES
from nadi.workload import Exchange, Program, alone
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, CPU_LANE, RECV, SEND
from nadi.workload.program import receive_key

_UNNAMED, _BUBBLE, _OTHER = (CATEGORIES.index(name) for name in ("unnamed", "bubble", "other"))
_COMPUTE, _IDLE = CATEGORIES.index("compute"), CATEGORIES.index("idle")
_CROSSES_STAGES = np.isin(CATEGORIES, ("pp", "embedding", "world"))
_NONE = -1
_COMMUNICATION = (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE, NodeType.COMM_COLL_NODE)
_SEQ_BITS = 20  # bits of a collective's place in a key of group and place
_SEQ_MASK = (1 << _SEQ_BITS) - 1


class Segments(NamedTuple):
    """Activities and waits of NPUs: s segments that do not overlap on an NPU."""

    npu: Int64  # int64[s], NPU of each segment
    begin_ps: Int64  # int64[s], begin in picoseconds
    until_ps: Int64  # int64[s], end in picoseconds
    category: Int64  # int64[s], row of `STEP_CATEGORIES`
    last: Int64  # int64[s], last NPU to arrive, for a wait in a collective; else -1
    # int64[s], for such a wait the previous collective of the group, at which the members last met; else 0
    met_ps: Int64


class DividedWaits(NamedTuple):
    """The w waits in collectives, divided among their causes."""

    npu: Int64  # int64[w], the NPU that waited
    category: Int64  # int64[w], the axis of the collective
    share_ps: Int64  # int64[w, categories], picoseconds that add up to each wait


def divided(segments: Segments, num_categories: int, stays: tuple[int, ...]) -> DividedWaits:
    """Divide all waits in collectives among the categories that made the last members late.

    An early member of a collective waits for the last one. The wait is due to whatever the last member did longer
    since the two last met: if its gradient communication took 3 ms longer, 3 ms of waiting in the next tensor-parallel
    collective belong to gradients, although the collective is tensor-parallel. The analysis therefore compares the
    times of both members by category since the previous collective of the same group, and divides the wait in
    proportion to the excess of the last member. The excess of categories in `stays` (longer computation, and time that
    no category explains) stays with the collective's own axis.

    Waits are divided in the order of their ends, so that earlier waits of a member count by their divided shares.

    Args:
        segments: Activities and waits of NPUs.
        num_categories: Number of categories.
        stays: Categories whose excess stays with the collective's own axis.
    """
    # by NPU and time, as `_Spent` searches them
    order = np.lexsort((segments.begin_ps, segments.npu))
    segments = Segments(*(column[order] for column in segments))
    first = np.searchsorted(segments.npu, np.arange(int(segments.npu.max(initial=-1)) + 2))
    waits = np.flatnonzero(segments.last >= 0)
    # in the order of their ends, on which the shares of later waits depend
    waits = waits[np.lexsort((segments.begin_ps[waits], segments.npu[waits], segments.until_ps[waits]))]
    spent = _Spent(segments, first, waits, num_categories)
    share_ps = np.zeros((len(waits), num_categories), np.int64)
    for number, at in enumerate(waits.tolist()):
        npu, last, category = int(segments.npu[at]), int(segments.last[at]), int(segments.category[at])
        begin_ps, until_ps = int(segments.begin_ps[at]), int(segments.until_ps[at])
        # an NPU that began before all had met last compares from its own begin
        met_ps = min(int(segments.met_ps[at]), begin_ps)
        more_ps = np.maximum(spent.between(last, met_ps, until_ps) - spent.between(npu, met_ps, begin_ps), 0)
        # longer computation has no axis of its own to blame
        more_ps[category] += more_ps[list(stays)].sum()
        more_ps[list(stays)] = 0
        if more_ps.any():
            share_ps[number] = np.floor(more_ps * ((until_ps - begin_ps) / more_ps.sum()))
        share_ps[number, category] += until_ps - begin_ps - share_ps[number].sum()  # also what rounding leaves
        spent.divide(at, share_ps[number])
    return DividedWaits(segments.npu[waits], segments.category[waits], share_ps)


class _Spent:
    """Time that NPUs spent per category between two moments; divided waits count by their shares."""

    def __init__(self, segments: Segments, first: Int64, waits: Int64, categories: int) -> None:
        # segments are sorted by NPU and begin; first: int64[npus + 1], first segment of each NPU
        self._segments, self._first, self._categories = segments, first, categories
        self._is_divided = np.zeros(len(segments.npu), np.bool_)
        self._row = np.full(len(segments.npu), -1)
        self._row[waits] = np.arange(len(waits))
        self._share = np.zeros((len(waits), categories))

    def between(self, npu: int, from_ps: int, until_ps: int) -> NDArray[np.float64]:
        """Return float64[categories], picoseconds that an NPU spent by category between two times.

        Args:
            npu: Number of the NPU.
            from_ps: First time in ps.
            until_ps: Second time in ps.
        """
        if npu + 1 >= len(self._first) or until_ps <= from_ps:
            return np.zeros(self._categories)
        low, high = int(self._first[npu]), int(self._first[npu + 1])
        # segments of an NPU do not overlap, so both ends are sorted
        low += int(np.searchsorted(self._segments.until_ps[low:high], from_ps, "right"))
        high = low + int(np.searchsorted(self._segments.begin_ps[low:high], until_ps))
        here = slice(low, high)
        begin_ps = np.maximum(self._segments.begin_ps[here], from_ps)
        time_ps = np.minimum(self._segments.until_ps[here], until_ps) - begin_ps
        is_divided = self._is_divided[here]
        # divided waits count by their shares, below
        of_category = np.where(is_divided, 0, time_ps)
        spent = np.bincount(self._segments.category[here], of_category, self._categories).astype(np.float64)
        if is_divided.any():
            spent += time_ps[is_divided] @ self._share[self._row[here][is_divided]]
        return spent

    def divide(self, segment: int, share_ps: Int64) -> None:
        """Count a wait, the number of a segment, by its shares (int64[categories]) from now on.

        Args:
            segment: Number of the segment that is a wait.
            share_ps: int64[categories], parts of the wait in ps.
        """
        self._share[self._row[segment]] = share_ps / share_ps.sum()
        self._is_divided[segment] = True


class StartTimes(NamedTuple):
    """Begin of communication at its other ends: of messages and of collectives, sorted by key."""

    sender: Int64  # int64[s], NPU that sends
    message: Int64  # int64[s], its peer, tag and place as one number
    sent_ps: Int64  # int64[s], begin of the send
    collective: Int64  # int64[c], group and place as one number
    ready_ps: Int64  # int64[c], begin of its last member
    last: Int64  # int64[c], this member's NPU, the lowest of several


class _SentMessages:
    """The begin of each message, found by its sender and its number."""

    def __init__(self, begun: StartTimes) -> None:
        self._messages, number = np.unique(begun.message, return_inverse=True)
        self._key = begun.sender * len(self._messages) + number.reshape(-1)  # ascends, as senders and messages do
        self._sent_ps = np.append(begun.sent_ps, 0)

    def begin_ps(self, sender: Int64, message: Int64) -> Int64:
        """Return int64[k], the begin of each message; 0 = nobody sends it.

        Args:
            sender: int64[k], NPU that sends each message.
            message: int64[k], key of each message.
        """
        # numbers instead of keys, so that sender and message fit into one word
        number = positions_in_sorted(self._messages, message)
        key = np.where(number >= 0, sender * len(self._messages) + number, _NONE)
        return self._sent_ps[positions_in_sorted(self._key, key)]


def names_an_axis(traces: Sequence[TraceTable], exchange: Exchange = alone) -> bool:
    """Return whether the name of any communication on any rank contains its axis of parallelism; all ranks call.

    Args:
        traces: The distinct traces of this rank.
        exchange: Function that gives every rank's value to all ranks.
    """
    axes = _axes(traces)
    return any(exchange(bool(np.any((axes > 0) & (axes != _UNNAMED)))))


def step_times(
    program: Program, traces: Sequence[TraceTable], trace_of_npu: Int32, results: Results, exchange: Exchange = alone
) -> Int64:
    """Return int64[npus, len(CATEGORIES)] picoseconds, 0 for NPUs of other ranks.

    Args:
        program: Work of all NPUs (`Program`).
        traces: The distinct traces of this rank.
        trace_of_npu: int32[npus], index of each NPU's trace, below 0 = none.
        results: Results of the engine.
        exchange: Function that gives every rank's value to all ranks.
    """
    kept = results.kept_rows or KeptRows(np.arange(program.npus), np.arange(len(program.group_ptr) - 1))
    begun = _merged(exchange(_begun(program, results, kept)))
    sent = _SentMessages(begun)
    nodes = _FileNodes(traces)
    first_row = np.cumsum([0, *(len(trace.type) for trace in traces)])[:-1]

    def blocks() -> Iterator[Segments]:
        for rows in row_blocks(program, results.npu_node_ptr):
            file_row = first_row[trace_of_npu[rows.npu]] + rows.row
            yield _Block(program, rows, results, nodes, file_row, kept).segments(begun, sent)

    total = np.zeros((program.npus, len(CATEGORIES)), np.int64)
    segments = _joined(list(blocks()))
    np.add.at(total, (segments.npu, segments.category), segments.until_ps - segments.begin_ps)
    own = program.trace_of_npu >= 0
    if any(exchange(bool((segments.last >= 0).any()))):  # waits move to the communication that made members late
        waits = divided(_joined(exchange(segments)), len(CATEGORIES), stays=(_COMPUTE, _IDLE))
        here = own[waits.npu]
        npu, category, share_ps = waits.npu[here], waits.category[here], waits.share_ps[here]
        np.add.at(total, npu, share_ps)
        np.subtract.at(total, (npu, category), share_ps.sum(axis=1))
    total[own, _IDLE] = results.finish_time_ps - total[own].sum(axis=1)
    return total if results.kept_rows is None else total[results.kept_rows.like]


def _joined(parts: Sequence[Segments]) -> Segments:
    """Return the segments of all parts."""
    none = Segments(*(np.zeros(0, np.int64) for _ in Segments._fields))
    return Segments(*(np.concatenate(column) for column in zip(none, *parts, strict=True)))


class _FileNodes:
    """Parents and axes of the nodes of all trace files."""

    def __init__(self, traces: Sequence[TraceTable]) -> None:
        parents = np.cumsum([0, *(len(trace.dep) for trace in traces)])
        ptr = [trace.dep_ptr[:-1] + first for trace, first in zip(traces, parents[:-1], strict=True)]
        self._ptr = np.concatenate([*ptr, parents[-1:]]).astype(np.int64)
        self._row = np.concatenate([np.zeros(0, np.int32), *(trace.dep for trace in traces)])
        self.axes = _axes(traces)

    def latest_parents(self, file_row: Int64, first_node: Int64, finish_ps: Int64) -> Int64:
        """Return int64[k]: the parent of each node that finished last (the lowest row of several); -1 = no parent.

        `file_row`: int64[k], row in the concatenation of all files.
        `first_node`: int64[k], index in finish_ps (int64[m], end of each node) of the first node of the NPU.
        """
        begin, count = self._ptr[file_row], np.diff(self._ptr)[file_row]
        found = np.full(len(file_row), _NONE, np.int64)
        has = np.flatnonzero(count)
        if len(has) == 0:
            return found
        starts = np.cumsum(count[has]) - count[has]
        file, at = spans(begin[has], count[has])
        parent = self._row[at] + first_node[has][file]
        latest_ps = np.maximum.reduceat(finish_ps[parent], starts)
        # of several that end last, the lowest row, so that the answer is unique
        late = np.where(finish_ps[parent] == np.repeat(latest_ps, count[has]), parent, len(finish_ps))
        found[has] = np.minimum.reduceat(late, starts)
        return found


class _Block:
    """m trace nodes of a block of NPUs, with their times; k of them are given by their index, `node`: int64[k]."""

    def __init__(
        self, program: Program, rows: NodeRows, results: Results, nodes: _FileNodes, file_row: Int64, kept: KeptRows
    ) -> None:
        """Prepare the block; file_row: int64[m], row of each node in the concatenation of all files."""
        self._program, self._rows, self._nodes, self._file_row, self._kept = program, rows, nodes, file_row, kept
        self._start_ps, self._finish_ps = results.node_start_ps[rows.result], results.node_finish_ps[rows.result]
        kind = program.node_kind[rows.at]
        # work on the CPU does not occupy the accelerator
        is_compute = (kind == COMPUTE) & (program.node_lane[rows.at] != CPU_LANE)
        self._category = np.where(is_compute, 0, np.where(kind >= SEND, nodes.axes[file_row], _OTHER))
        self._first = np.arange(len(rows.row)) - rows.row
        self._begin_ps = program.begins_ps
        self._latest = np.full(len(rows.row), _NONE - 1, np.int64)

    def segments(self, begun: StartTimes, sent: _SentMessages) -> Segments:
        """Return the activities and waits of this block's NPUs that took time.

        Args:
            begun: Times at which members start collectives and messages.
            sent: Begins of messages by sender.
        """
        own = np.flatnonzero(self._category == _COMPUTE)
        own = own[np.lexsort((self._start_ps[own], self._rows.npu[own]))]
        npu, start_ps, finish_ps = self._rows.npu[own], self._start_ps[own], self._finish_ps[own]
        # computations that follow each other directly are one segment
        apart = (npu[1:] != npu[:-1]) | (start_ps[1:] != finish_ps[:-1])
        first, last = (np.flatnonzero(np.insert(apart, where, len(own) > 0)) for where in (0, len(apart)))
        parts = [self._segments(own[first], start_ps[first], finish_ps[last], self._category[own[first]])]
        node, from_ps, until_ps = self._gaps(own)
        # from each gap back along the chain of parents that ended last, until the gap is explained
        while len(node):
            parent = self._latest_parents(node)
            begin_ps = np.maximum(from_ps, np.where(parent >= 0, self._finish_ps[parent], 0))
            parts += self._shares(node, begin_ps, until_ps, begun, sent)
            goes_on = begin_ps > from_ps
            node, from_ps, until_ps = parent[goes_on], from_ps[goes_on], begin_ps[goes_on]
        segments = _joined(parts)
        takes_time = segments.until_ps > segments.begin_ps
        return Segments(*(column[takes_time] for column in segments))

    def _segments(self, node: Int64, begin_ps: Int64, until_ps: Int64, category: Int64 | Int8) -> Segments:
        """Return segments that are not waits for members of a collective."""
        none = np.full(len(node), _NONE)
        return Segments(self._rows.npu[node], begin_ps, until_ps, category.astype(np.int64), none, np.zeros_like(none))

    def _gaps(self, compute_nodes: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the nodes that delayed the accelerator, with begin and end of each delay; nodes in order of time."""
        npu, finish_ps = self._rows.npu, self._finish_ps
        is_first = np.diff(npu[compute_nodes], prepend=-1) != 0
        before_ps = (
            np.where(is_first, self._begin_ps[npu[compute_nodes]], np.append(0, finish_ps[compute_nodes][:-1]))
            if len(compute_nodes)
            else compute_nodes
        )
        cause = self._latest_parents(compute_nodes)
        at = np.flatnonzero((self._start_ps[compute_nodes] > before_ps) & (cause >= 0))
        # a cause that ended before the gap did not make it
        at = at[finish_ps[cause[at]] > before_ps[at]]
        ends, end_from_ps = self._ends(compute_nodes)
        return (
            np.concatenate([cause[at], ends]),
            np.concatenate([before_ps[at], end_from_ps]),
            np.concatenate([np.minimum(self._start_ps[compute_nodes][at], finish_ps[cause[at]]), finish_ps[ends]]),
        )

    def _ends(self, compute_nodes: Int64) -> tuple[Int64, Int64]:
        """Return the last node of each NPU and the end of its accelerator, where that is earlier."""
        npu = self._rows.npu
        first = np.flatnonzero(np.diff(npu, prepend=-1))
        latest_ps = np.maximum.reduceat(self._finish_ps, first) if len(first) else first
        latest = np.flatnonzero(self._finish_ps == np.repeat(latest_ps, np.diff(first, append=len(npu))))
        last = latest[np.flatnonzero(np.diff(npu[latest], append=-1))]
        # an NPU without computations is done when it begins
        done_ps = self._begin_ps.copy()
        np.maximum.at(done_ps, npu[compute_nodes], self._finish_ps[compute_nodes])
        from_ps = done_ps[npu[last]]
        later = self._finish_ps[last] > from_ps
        return last[later], from_ps[later]

    def _latest_parents(self, node: Int64) -> Int64:
        """Return int64[k]: the parent of each node that finished last."""
        asked = node[self._latest[node] < _NONE]
        self._latest[asked] = self._nodes.latest_parents(self._file_row[asked], self._first[asked], self._finish_ps)
        return self._latest[node]

    def _shares(
        self, node: Int64, begin_ps: Int64, until_ps: Int64, begun: StartTimes, sent: _SentMessages
    ) -> list[Segments]:
        """Return the segments of some nodes: bubbles, waits for members of collectives, and the time of their axes."""
        category = self._category[node]
        # before it, others had not begun: a bubble of the pipeline
        met_ps = np.clip(self._met_ps(node, begun, sent), begin_ps, until_ps)
        bubble = self._segments(node, begin_ps, met_ps, np.full(len(node), _BUBBLE))
        ready_ps = met_ps.copy()
        of = np.flatnonzero((self._program.node_kind[self._rows.at[node]] == COLLECTIVE) & ~_CROSSES_STAGES[category])
        npu, at = self._rows.npu[node[of]], self._rows.at[node[of]]
        keys = _collective(self._program, npu, at, self._kept)
        place = np.searchsorted(begun.collective, keys)
        ready_ps[of] = np.clip(begun.ready_ps[place], met_ps[of], until_ps[of])
        wait = self._segments(node[of], met_ps[of], ready_ps[of], category[of])
        last = np.where(begun.last[place] == npu, _NONE, begun.last[place])
        # the collective before it in the same group, if it is in the table
        is_next = (place > 0) & (begun.collective[np.maximum(place - 1, 0)] == keys - 1) & (keys & _SEQ_MASK > 0)
        before_ps = np.where(is_next, begun.ready_ps[np.maximum(place - 1, 0)], 0)
        wait = wait._replace(last=last, met_ps=before_ps)
        return [bubble, wait, self._segments(node, ready_ps, until_ps, category)]

    def _met_ps(self, node: Int64, begun: StartTimes, sent: _SentMessages) -> Int64:
        """Return int64[k]: the time until which the other ends had not begun; 0 where that wait is not a bubble."""
        program, at, npu = self._program, self._rows.at[node], self._rows.npu[node]
        kind = program.node_kind[at]
        found = np.zeros(len(node), np.int64)
        # a send waits for nobody, so only receives can
        of = np.flatnonzero(kind == RECV)
        peer = program.node_peer[at[of]].astype(np.int64)
        keys = receive_key(-peer, program.node_tag[at[of]], program.node_seq[at[of]])
        found[of] = sent.begin_ps(self._kept.like[program.peers(npu[of], peer)], keys)
        of = np.flatnonzero((kind == COLLECTIVE) & _CROSSES_STAGES[self._category[node]])
        keys = _collective(program, npu[of], at[of], self._kept)
        found[of] = begun.ready_ps[np.searchsorted(begun.collective, keys)] if len(of) else 0
        return found


def _axes(traces: Sequence[TraceTable]) -> Int8:
    """Return int8[n]: row of CATEGORIES for the communication nodes of all trace files; 0 for other nodes."""
    row_of = {name: CATEGORIES.index(name) for name in AXES}
    found = [np.zeros(0, np.int8)]
    for trace in traces:
        is_communication = np.isin(trace.type, _COMMUNICATION)
        # names of Nadi's own generators: ITEM/AXIS:...
        words = (name.rpartition("/")[2].partition(":")[0] for name in compress(trace.names, is_communication.tolist()))
        own = np.zeros(len(trace.type), np.int8)
        own[is_communication] = [row_of.get(word, _UNNAMED) for word in words]
        found.append(own)
    return np.concatenate(found)


def _begun(program: Program, results: Results, kept: KeptRows) -> StartTimes:
    """Return the begin of communication on this rank's NPUs."""
    parts = []
    for rows in row_blocks(program, results.npu_node_ptr):
        kind, start_ps = program.node_kind[rows.at], results.node_start_ps[rows.result]
        of = np.flatnonzero(kind == SEND)
        at = rows.at[of]
        # the key that the receive has, so that both ends find each other
        message = receive_key(program.node_peer[at], program.node_tag[at], program.node_seq[at])
        all_of = np.flatnonzero(kind == COLLECTIVE)
        collective = _collective(program, rows.npu[all_of], rows.at[all_of], kept)
        parts.append(StartTimes(rows.npu[of], message, start_ps[of], collective, start_ps[all_of], rows.npu[all_of]))
    return _merged(parts)


def _merged(parts: Sequence[StartTimes]) -> StartTimes:
    """Return the begin of communication in all parts, sorted by key; of a collective, that of its last member."""
    together = StartTimes(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in zip(*parts, strict=True)))
    order = np.lexsort((together.message, together.sender))
    by_key = np.lexsort((-together.last, together.ready_ps, together.collective))
    # the last row of each collective: the latest member, or the one with the smallest number of equally late ones
    last = by_key[np.flatnonzero(np.diff(together.collective[by_key], append=-1))]
    return StartTimes(
        *(column[order] for column in (together.sender, together.message, together.sent_ps)),
        *(column[last] for column in (together.collective, together.ready_ps, together.last)),
    )


def _collective(program: Program, npu: Int64, program_row: Int64, kept: KeptRows) -> Int64:
    """Return the group (or its representative) and the place as one number."""
    group = kept.group_like[program.slot_group[program.slot_ptr[npu] + program.node_group[program_row]]].astype(
        np.int64
    )
    return group << _SEQ_BITS | program.node_seq[program_row]
