"""Traffic: bytes and messages between all pairs of NPUs over a whole run, computed before the run.

Traces define the sends, schedules the messages of collectives; neither depends on time. Steps of a plan are summed by
peer before they are applied to the NPUs that run it, so that the cost of a ring of 16,384 members is that of its 16,384
pairs.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int32, Int64, spans, sums
from nadi.workload.collectives.schedules.packed import Schedules
from nadi.workload.node_kinds import COLLECTIVE, SEND
from nadi.workload.program.program import Program

_PEER_BIAS = 1 << 20  # more than any NPU number
_MAX_PENDING = 1 << 22  # Number of unsummed pairs above which they are summed
_MIN_PAIRS = 1 << 10  # Minimum number of sampled pairs per schedule and size
_GOLDEN = (math.sqrt(5) - 1) / 2  # Reciprocal of the golden ratio, whose multiples mod 1 are evenly spread


class Traffic(NamedTuple):
    """Bytes and messages of p pairs of NPUs, by src and then dst, each pair once."""

    src: Int32  # int32[p], sending NPU
    dst: Int32  # int32[p], receiving NPU
    # int64[p], payload in bytes. If a lane's bytes on the wire differ from those of its data and its chunks differ by a
    # byte, less than a byte per message may be missing.
    bytes: Int64
    messages: Int64  # int64[p], number of messages, including empty ones


class _Part(NamedTuple):
    """Columns of Traffic in any order, with repeated pairs; int64 or int32 NPUs."""

    src: NDArray[np.integer]  # Senders
    dst: NDArray[np.integer]  # Receivers
    bytes: Int64  # Bytes that each sender sends to the receiver
    messages: Int64  # Number of messages


def traffic(program: Program) -> Traffic:
    """Return the traffic of the NPUs that have a trace.

    Args:
        program: The work of all NPUs as arrays.
    """
    # NPUs with a negative trace_of_npu contribute nothing; `merge` sums the traffic of a program's parts on all ranks.
    pairs = _Pairs()
    users = _Users(program)
    for part in _sends(program, users):
        pairs.add(part)
    for part, _ in _collectives(program, users):
        pairs.add(part)
    return pairs.total()


class PairSample(NamedTuple):
    """A sample of the pairs of a program, not summed: a pair may occur more than once."""

    src: Int64  # int64[p], sending NPU
    dst: Int64  # int64[p], receiving NPU
    bytes: Int64  # int64[p], payload of the pair in bytes
    messages: Int64  # int64[p], number of messages
    weight: NDArray[np.float64]  # float64[p], number of pairs that each represents


def sample(program: Program, max_pairs: int) -> PairSample:
    """Return a sample of the pairs of NPUs that exchange messages, for NPUs that have a trace.

    Args:
        program: The work of all NPUs as arrays.
        max_pairs: The approximate number of pairs of the sample.
    """
    # Weighted sums estimate those of `traffic`, exactly if NPUs with the same work send the same amounts.
    users = _Users(program)
    parts = [(part, 1.0) for part in _sends(program, users)]
    parts += list(_collectives(program, users, max_pairs))
    src, dst, size_bytes, messages = (
        np.concatenate(column).astype(np.int64) for column in zip(*(part for part, _ in parts), strict=True)
    )
    weight = np.concatenate([np.full(len(part.src), weight) for part, weight in parts])
    return PairSample(src, dst, size_bytes, messages, weight)


class _Pairs:
    """Collector of unsummed pairs in any order, which sums them when they exceed _MAX_PENDING."""

    def __init__(self) -> None:
        self._parts: list[Traffic | _Part] = []
        self._pending = 0

    def add(self, part: _Part) -> None:
        """Add unsummed pairs, and sum all pairs if there are too many.

        Args:
            part: The pairs with their bytes and messages.
        """
        self._parts.append(part)
        self._pending += len(part.src)
        if self._pending > _MAX_PENDING:
            self._parts = [self.total()]
            self._pending = 0

    def total(self) -> Traffic:
        return merge(self._parts)


def merge(parts: Sequence[Traffic | _Part]) -> Traffic:
    """Return the sum of several traffics.

    Args:
        parts: The traffics; pairs may occur more than once.
    """
    if not parts:
        empty = np.zeros(0, np.int64)
        return Traffic(empty.astype(np.int32), empty.astype(np.int32), empty, empty.copy())
    src, dst, size_bytes, messages = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    # Both NPUs in one number, which sorts by src and then by dst
    key, size_bytes, messages = sums(src << 32 | dst, size_bytes, messages)
    return Traffic((key >> 32).astype(np.int32), (key & (2**32 - 1)).astype(np.int32), size_bytes, messages)


class _Users:
    """The NPUs that run each trace."""

    def __init__(self, program: Program) -> None:
        """Sort the NPUs of a program by trace."""
        # NPUs without a trace here (below 0) come first, before the begin of trace 0, and so belong to none
        by_trace = np.argsort(program.trace_of_npu, kind="stable")
        self._npu = by_trace
        self._ptr = np.searchsorted(program.trace_of_npu[by_trace], np.arange(len(program.trace_ptr)))

    def spread(self, traces: Int64) -> tuple[Int64, Int64]:
        """Return row of an entry and NPU, for every NPU that runs the trace of each entry.

        Args:
            traces: The trace of each entry, int64[].
        """
        row, at = spans(self._ptr[traces], np.diff(self._ptr)[traces])
        return row, self._npu[at]


def _sends(program: Program, npus_of_traces: _Users) -> Iterator[_Part]:
    """Yield the pairs of a program's sends with their bytes and messages."""
    rows = np.flatnonzero(program.node_kind == SEND)
    # One number for each (trace, peer), so that one sum covers all traces; the bias makes peers positive
    key = _trace_of(program, rows) << 21 | (program.node_peer[rows].astype(np.int64) + _PEER_BIAS)
    key, size_bytes, messages = sums(key, program.node_bytes[rows], np.ones(len(rows), np.int64))
    row, npu = npus_of_traces.spread(key >> 21)
    peer = (key & (2**21 - 1)) - _PEER_BIAS
    yield _Part(npu, program.peers(npu, peer[row]), size_bytes[row], messages[row])


def _collectives(
    program: Program, npus_of_traces: _Users, max_pairs: int | None = None
) -> Iterator[tuple[_Part, float]]:
    """Yield the pairs of collectives by schedule and buffer size, each with the weight of its sampled calls."""
    # `max_pairs` is the approximate number of pairs of the sample, None = all pairs with weight 1.
    rows = np.flatnonzero((program.node_kind == COLLECTIVE) & (program.node_schedule >= 0))
    of_rows = (column[rows].astype(np.int64) for column in (program.node_schedule, program.node_bytes))
    group_slot = program.node_group[rows].astype(np.int64)
    (schedule, size_bytes, trace, slot), times = _distinct((*of_rows, _trace_of(program, rows), group_slot))
    # Calls of one schedule and size are a run of equal rows, and have the same bytes between the same member numbers
    starts = np.flatnonzero((np.diff(schedule, prepend=-1) != 0) | (np.diff(size_bytes, prepend=-1) != 0))
    known: dict[int, list[tuple[_Buffer, list[_Peer]]]] = {}
    share = None if max_pairs is None else max(max_pairs // max(len(starts), 1), _MIN_PAIRS)
    for begin, end in pairwise([*starts.tolist(), len(schedule)]):
        run = slice(begin, end)
        row, npu = npus_of_traces.spread(trace[run])
        at = program.slot_ptr[npu] + slot[run][row]
        calls = _Calls(
            npu,
            program.slot_member[at].astype(np.int64),
            program.group_ptr[program.slot_group[at]],
            times[run][row],
            int(schedule[begin]),
            int(size_bytes[begin]),
        )
        if program.schedules.relative[calls.schedule]:
            if calls.schedule not in known:
                known[calls.schedule] = _buffers(program.schedules, calls.schedule)
            peers_each = sum(len(peers) for _, peers in known[calls.schedule])
            sampled, weight = _sampled(calls, len(calls.npu) * peers_each, share)
            for buffer, peers in known[calls.schedule]:
                yield from ((part, weight) for part in _relative(program, sampled, buffer, peers))
        else:
            sent = _sent_by_members(program.schedules, calls)
            sampled, weight = _sampled(calls, int(np.diff(sent.ptr)[calls.member].sum()), share)
            yield _absolute(program, sampled, sent), weight


def _sampled(calls: "_Calls", pair_count: int, max_pairs: int | None) -> tuple["_Calls", float]:
    """Return evenly spread calls that send about `max_pairs` of pair_count pairs, and the calls per sampled call."""
    # The indices are multiples of an irrational number mod 1 (Knuth, volume 3, section 6.4). Every k-th call instead
    # could select the same member of each host, or never an aggregator.
    if max_pairs is None or pair_count <= max_pairs or len(calls.npu) == 0:
        return calls, 1.0
    count = -(-len(calls.npu) * max_pairs // pair_count)
    keep = np.unique((np.arange(count) * _GOLDEN % 1.0 * len(calls.npu)).astype(np.int64))
    sampled = calls._replace(
        npu=calls.npu[keep], member=calls.member[keep], group_begin=calls.group_begin[keep], times=calls.times[keep]
    )
    return sampled, len(calls.npu) / len(keep)


class _Calls(NamedTuple):
    """Calls of one schedule and size: NPU, member number, start of its group, and number of calls: int64[calls]."""

    npu: Int64  # NPU of each call
    member: Int64  # Number of the NPU in its group
    group_begin: Int64  # Place of the group's first member in Program.group_member
    times: Int64  # Number of equal calls
    schedule: int  # Number of the schedule
    size_bytes: int  # Size of the whole buffer


class _Sent(NamedTuple):
    """Messages that the members of a schedule send."""

    ptr: Int64  # int64[n+1], pointers to the peers of each member
    peer: Int64  # int64[], member numbers of the peers
    bytes: Int64  # int64[], total bytes to the peer
    messages: Int64  # int64[], number of messages to the peer


class _Buffer(NamedTuple):
    """A part of the buffer that some lanes of a relative plan share."""

    view: int  # Number of the view among those of all schedules, -1 = no view
    part: int  # Number of the part among `parts` equal parts of the buffer; the view may cut it further
    parts: int  # Number of equal parts of the buffer
    chunks: int  # Number of chunks of the part
    wire_num: int  # Bytes on the wire per wire_den bytes of data
    wire_den: int  # Bytes of data per wire_num bytes on the wire
    in_message: int  # Number of chunks per message if the wire factor is not 1; else 0 = any number


class _Peer(NamedTuple):
    """Messages from the lanes of one buffer to one peer."""

    offset: int  # Offset of the peer in the group, or in the member's line of the view
    messages: int  # Number of messages
    visits: int  # Number of times that each chunk is sent, except those of odd_chunk
    odd_chunk: Int64  # int64[], chunks that are sent a different number of times, counted from the member's own chunk
    odd_visits: Int64  # int64[], difference between their number of times and `visits`


def _buffers(schedules: Schedules, index: int) -> list[tuple[_Buffer, list[_Peer]]]:
    """Return the buffers of relative schedule `index`, each with the messages to each peer."""
    s, plan = schedules, schedules.plan_of[schedules.plan_of_ptr[index]]
    rows_of: dict[_Buffer, list[NDArray[np.integer]]] = {}
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        steps = slice(int(s.lane_ptr[lane]), int(s.lane_ptr[lane + 1]))
        sends = np.flatnonzero(s.send_peer[steps] >= 0) + steps.start
        view = int(s.lane_view[lane])
        wire = int(s.lane_wire_num[lane]), int(s.lane_wire_den[lane])
        # Bytes on the wire are rounded up message by message: at 128 for 120, 3 messages of 7 B are 3 x 8 and one of
        # 21 B is 23. Messages of different lengths stay apart, unless nothing is rounded (1 for 1).
        counts = np.zeros(len(sends), np.int64) if wire[0] == wire[1] else s.send_count[sends]
        for count in np.unique(counts).tolist():
            buffer = _Buffer(
                view + int(s.view_base[index]) if view >= 0 else -1,
                int(s.lane_part[lane]),
                int(s.lane_parts[lane]),
                int(s.lane_chunks[lane]),
                *wire,
                count,
            )
            rows_of.setdefault(buffer, []).append(sends[counts == count])
    return [(buffer, _peers(s, buffer.chunks, np.concatenate(rows))) for buffer, rows in rows_of.items()]


def _peers(schedules: Schedules, chunks: int, steps: NDArray[np.integer]) -> list[_Peer]:
    """Return the messages of steps (rows of Schedules.steps) by peer, on a part of `chunks` chunks."""
    # Most plans send all chunks equally often, except for one or a few.
    begin = schedules.send_chunk[steps].astype(np.int64)
    step, chunk = spans(begin, schedules.send_count[steps])
    key, visits = sums(
        schedules.send_peer[steps][step].astype(np.int64) * chunks + chunk % chunks, np.ones(len(step), np.int64)
    )
    offset, messages = np.unique(schedules.send_peer[steps], return_counts=True)
    # Keys of the peer at offset 3 with 8 chunks are 24 to 31; the end of the last peer is one offset further
    bounds = np.searchsorted(key, np.append(offset, offset[-1:] + 1).astype(np.int64) * chunks)
    peers = []
    for i in range(len(offset)):
        of_peer = slice(bounds[i], bounds[i + 1])
        peers.append(_peer(int(offset[i]), int(messages[i]), chunks, key[of_peer] % chunks, visits[of_peer]))
    return peers


def _peer(offset: int, messages: int, chunks: int, chunk_numbers: Int64, visits: Int64) -> _Peer:
    """Return the messages to the peer at an offset, given how often each of its sent chunks, of `chunks`, is sent."""
    number, count = np.unique(np.append(visits, 0), return_counts=True)
    count[0] += chunks - len(chunk_numbers) - 1  # visits are at least 1, so number[0] is 0
    usual = int(number[np.argmax(count)])
    if usual:
        every = np.zeros(chunks, np.int64)
        every[chunk_numbers] = visits
        chunk_numbers, visits = np.arange(chunks), every
    # The usual number of visits is stored once, the exceptions by chunk
    odd = visits != usual
    return _Peer(offset, messages, usual, chunk_numbers[odd], visits[odd] - usual)


def _relative(program: Program, calls: _Calls, buffer: _Buffer, peers: list[_Peer]) -> Iterator[_Part]:
    """Yield the pairs of the calls of a relative schedule, for messages from lanes of one buffer, by peer."""
    s = program.schedules
    n, place = int(s.members[calls.schedule]), calls.member
    # A plan of n members is written for member 0; member `place` counts its peers and chunks from its own
    part, parts, chunks = np.full(len(place), buffer.part, np.int64), buffer.parts, buffer.chunks
    if buffer.view >= 0:
        own = slice(int(s.view_ptr[buffer.view]), int(s.view_ptr[buffer.view + 1]))
        n, inner, at = int(s.view_size[buffer.view]), int(s.view_parts[buffer.view]), s.view_at[own][calls.member]
        place = (at % n).astype(np.int64)
        begin = own.start + at - place
        # The view cuts the lane's part once more: part 1 of 2, in 4 parts of the view, is one of 4 to 7 of 8
        part, parts = part * inner + s.view_part[own][calls.member], parts * inner
    first = part * chunks
    pieces = parts * chunks
    whole = _chunk_bytes(first, first + chunks, calls.size_bytes, pieces)
    own_chunk = place * chunks // n
    for peer in peers:
        if calls.size_bytes % pieces == 0:  # all chunks are equal
            visits = peer.visits * chunks + int(peer.odd_visits.sum())
            size_bytes = np.full(len(calls.npu), visits * (calls.size_bytes // pieces))
            if buffer.in_message:
                message = calls.size_bytes // pieces * buffer.in_message
                size_bytes[:] = peer.messages * -(-message * buffer.wire_num // buffer.wire_den)
        else:
            size_bytes = peer.visits * whole
            for chunk, visits in zip(peer.odd_chunk.tolist(), peer.odd_visits.tolist(), strict=True):
                begin_chunk = first + (own_chunk + chunk) % chunks
                size_bytes += visits * _chunk_bytes(begin_chunk, begin_chunk + 1, calls.size_bytes, pieces)
            size_bytes = -(-size_bytes * buffer.wire_num // buffer.wire_den)
        to = (place + peer.offset) % n
        if buffer.view >= 0:
            to = s.view_member[begin + to]
        dst = program.group_member[calls.group_begin + to]
        yield _Part(calls.npu, dst, size_bytes * calls.times, peer.messages * calls.times)


def _sent_by_members(schedules: Schedules, calls: _Calls) -> _Sent:
    """Return the messages between members of a schedule with one plan per member, for one call.

    Args:
        schedules: The schedules of collectives as arrays.
        calls: The calls of the schedule.
    """
    members = int(schedules.members[calls.schedule])
    first_entry = int(schedules.plan_of_ptr[calls.schedule])
    plan = schedules.plan_of[first_entry : first_entry + members]
    first = schedules.lane_ptr[schedules.plan_ptr[plan]]
    member, step = spans(first, schedules.lane_ptr[schedules.plan_ptr[plan + 1]] - first)
    sends = schedules.send_peer[step] >= 0
    member, step = member[sends], step[sends]
    lane = np.searchsorted(schedules.lane_ptr, step, side="right") - 1
    chunks = schedules.lane_chunks[lane].astype(np.int64)
    begin: Int64 = schedules.lane_part[lane] * chunks + schedules.send_chunk[step] % chunks
    size_bytes = _chunk_bytes(
        begin, begin + schedules.send_count[step], calls.size_bytes, chunks * schedules.lane_parts[lane]
    )
    size_bytes = -(-size_bytes * schedules.lane_wire_num[lane] // schedules.lane_wire_den[lane])
    peer = schedules.named(first_entry + member, schedules.send_peer[step])
    # One number per (member, peer), in the order of members, so that each member's peers are a range
    key, size_bytes, messages = sums(member * members + peer, size_bytes, np.ones(len(step), np.int64))
    return _Sent(np.searchsorted(key, np.arange(members + 1) * members), key % members, size_bytes, messages)


def _absolute(program: Program, calls: _Calls, sent: _Sent) -> _Part:
    """Return the pairs of the calls of a schedule with one plan per member, whose members' messages are `sent`."""
    call, at = spans(sent.ptr[calls.member], np.diff(sent.ptr)[calls.member])
    dst = program.group_member[calls.group_begin[call] + sent.peer[at]]
    times = calls.times[call]
    return _Part(calls.npu[call], dst, sent.bytes[at] * times, sent.messages[at] * times)


def _chunk_bytes(begin: Int64, end: Int64, size_bytes: int, chunks: int | Int64) -> Int64:
    """Return the bytes of chunks [begin, end)."""
    return end * size_bytes // chunks - begin * size_bytes // chunks


def _trace_of(program: Program, rows: Int64) -> Int64:
    return np.searchsorted(program.trace_ptr, rows, side="right").astype(np.int64) - 1


def _distinct(columns: tuple[Int64, ...]) -> tuple[list[Int64], Int64]:
    """Return distinct rows, sorted by the columns in order, and the number of times that each occurs."""
    # `lexsort` sorts by its last key first
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    is_first = np.zeros(len(order), np.bool_)
    is_first[:1] = True
    for column in ordered:
        is_first[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(is_first)
    return [column[first] for column in ordered], np.diff(first, append=len(order))
