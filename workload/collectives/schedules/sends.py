"""Schedules read back: steps with absolute members, peers and chunks, and the messages that they send."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int32, Int64
from nadi.workload.collectives.plans.plan import NONE, Step
from nadi.workload.collectives.schedules.packed import Schedules


class Buffer(NamedTuple):
    """The part of the buffer S that a lane of one member works on, cut into chunks."""

    part: int  # number of the part
    parts: int  # number of equal parts of the buffer
    chunks: int  # number of chunks of the part
    wire: tuple[int, int]  # (numerator, denominator) of bytes on the wire per byte of data
    # int32[pieces], the piece of the region that the lane sees as piece 0, 1, ...; None = buffer order
    arrangement: Int32 | None = None

    def bytes(self, chunk: int, count: int, size_bytes: int) -> int:
        """Return the bytes of consecutive chunks.

        Args:
            chunk: The number of the first chunk, in any region.
            count: The number of chunks.
            size_bytes: The size of the whole buffer in bytes.
        """
        first, pieces = self.part * self.chunks + chunk % self.chunks, self.parts * self.chunks
        return (first + count) * size_bytes // pieces - first * size_bytes // pieces

    def wire_bytes(self, chunk: int, count: int, size_bytes: int) -> int:
        """Return the payload in bytes of a message of consecutive chunks.

        Args:
            chunk: The number of the first chunk, in any region.
            count: The number of chunks.
            size_bytes: The size of the whole buffer in bytes.
        """
        return -(-self.bytes(chunk, count, size_bytes) * self.wire[0] // self.wire[1])


class _MemberSteps(NamedTuple):
    """The steps of one member, lane by lane, with absolute peers and chunks."""

    rows: range  # rows of the member's lanes in the columns `lane_*`
    first: Int64  # int64[lanes + 1], first step of each lane
    steps: Int32  # int32[steps, 10], one row per step, as in Schedules.steps
    part: Int64  # int64[lanes], number of the lane's part of the buffer
    parts: Int64  # int64[lanes], number of equal parts of the buffer


def unpack(schedules: Schedules, index: int) -> list[list[list[Step]]]:
    """Return the steps of each lane of each member of a schedule, with absolute peers and chunks.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
    """
    lanes_of_members = []
    for me in range(int(schedules.members[index])):
        own = _member_steps(schedules, index, me)
        steps = [Step._make((*row[:-1], bool(row[-1]))) for row in own.steps.tolist()]
        lanes_of_members.append([steps[begin:end] for begin, end in pairwise(own.first.tolist())])
    return lanes_of_members


def buffers(schedules: Schedules, index: int) -> list[list[Buffer]]:
    """Return the buffer of each lane of each member of a schedule.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
    """
    buffers_of_members = []
    for me in range(int(schedules.members[index])):
        own = _member_steps(schedules, index, me)
        of_member = []
        for row, part, parts in zip(own.rows, own.part.tolist(), own.parts.tolist(), strict=True):
            arrangement = None
            if schedules.lane_arrangement[row] >= 0:
                first = schedules.arrangement_ptr[schedules.arrangement_base[index] + schedules.lane_arrangement[row] :]
                arrangement = schedules.arrangement_piece[first[0] : first[1]]
            wire = int(schedules.lane_wire_num[row]), int(schedules.lane_wire_den[row])
            of_member.append(Buffer(part, parts, int(schedules.lane_chunks[row]), wire, arrangement))
        buffers_of_members.append(of_member)
    return buffers_of_members


def _member_steps(schedules: Schedules, index: int, member: int) -> _MemberSteps:
    """Return the steps of a member of schedule number `index`."""
    # All members share the plan of a relative schedule
    plan = int(schedules.plan_of[schedules.plan_of_ptr[index] + (0 if schedules.relative[index] else member)])
    rows = range(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1]))
    lanes = slice(rows.start, rows.stop)
    first = schedules.lane_ptr[rows.start : rows.stop + 1].astype(np.int64)
    steps = schedules.steps[first[0] : first[-1]].copy()
    part, parts = schedules.lane_part[lanes].astype(np.int64), schedules.lane_parts[lanes].astype(np.int64)
    line_size, line_begin, place = (np.full(len(rows), v) for v in (int(schedules.members[index]), NONE, member))
    # Lanes with a view count peers within a line of the view, and work on the part that the view gives the member
    with_view = np.flatnonzero(schedules.lane_view[lanes] >= 0)
    if len(with_view):
        view = schedules.view_base[index] + schedules.lane_view[lanes][with_view]
        at = schedules.view_at[schedules.view_ptr[view] + member].astype(np.int64)
        line_size[with_view], place[with_view] = schedules.view_size[view], at % schedules.view_size[view]
        line_begin[with_view] = schedules.view_ptr[view] + at - place[with_view]
        part[with_view] = (
            part[with_view] * schedules.view_parts[view] + schedules.view_part[schedules.view_ptr[view] + member]
        )
        parts[with_view] *= schedules.view_parts[view]
    if schedules.relative[index]:
        lane = np.repeat(np.arange(len(rows)), np.diff(first))
        chunks = schedules.lane_chunks[lanes].astype(np.int64)
        # Peers and chunks of relative plans are counted from the member: add its place, modulo the line and the region
        shift, chunks, begin = (place * (chunks // line_size))[lane], chunks[lane], line_begin[lane]
        for side in ("send", "recv"):
            peer, chunk = (steps[:, Step._fields.index(f"{side}_{field}")] for field in ("peer", "chunk"))
            peer_member = (place[lane] + peer) % line_size[lane]
            if len(with_view):
                peer_member = np.where(
                    begin >= 0, schedules.view_member[np.maximum(begin, 0) + peer_member], peer_member
                )
            peer[:] = np.where(peer >= 0, peer_member, NONE)
            chunk[:] = np.where(chunk >= 0, chunk // chunks * chunks + (shift + chunk) % chunks, NONE)
    else:
        entry = int(schedules.plan_of_ptr[index]) + member
        for field in ("send_peer", "send_lane", "recv_peer"):
            column = steps[:, Step._fields.index(field)]
            column[:] = schedules.named(entry, column)
    return _MemberSteps(rows, first - first[0], steps, part, parts)


# Senders, receivers and sizes of a schedule's messages, counted without going through the steps of each member.


def message_count(schedules: Schedules, index: int) -> int:
    """Return the number of messages of a schedule.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
    """
    peers = [schedules.send_peer[_steps(schedules, plan)] for plan in _plans(schedules, index)]
    sent = sum(int(np.count_nonzero(each >= 0)) for each in peers)
    return sent * (int(schedules.members[index]) if schedules.relative[index] else 1)


def packet_count(schedules: Schedules, index: int, size_bytes: int, mtu_bytes: int) -> float:
    """Return the approximate number of packets of a schedule; message sizes are shares of the buffer.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        size_bytes: The size of the whole buffer in bytes.
        mtu_bytes: The maximum payload of a packet in bytes.
    """
    payload = np.concatenate(
        [message_sizes(schedules, index, plan, size_bytes)[:, 1] for plan in _plans(schedules, index)]
    )
    packets = float(np.maximum(1, payload / mtu_bytes).sum())
    return packets * (int(schedules.members[index]) if schedules.relative[index] else 1)


def message_sizes(schedules: Schedules, index: int, plan: int, size_bytes: int) -> NDArray[np.float64]:
    """Return float64[sends, 2]: data and payload in bytes of all messages of a plan, not rounded.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        plan: The row of the plan among all plans.
        size_bytes: The size of the whole buffer in bytes.
    """
    lanes = slice(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1]))
    bounds = schedules.lane_ptr[lanes.start : lanes.stop + 1]
    pieces = schedules.lane_parts[lanes].astype(np.int64) * schedules.lane_chunks[lanes]
    viewed = np.flatnonzero(schedules.lane_view[lanes] >= 0)
    pieces[viewed] *= schedules.view_parts[schedules.view_base[index] + schedules.lane_view[lanes][viewed]]
    steps = slice(int(bounds[0]), int(bounds[-1]))
    sends = schedules.send_peer[steps] >= 0
    lane_of_send = np.repeat(np.arange(len(pieces)), np.diff(bounds))[sends]
    # A lane's chunk is one of parts * chunks equal pieces of the buffer
    data = schedules.send_count[steps][sends] * (size_bytes / pieces)[lane_of_send]
    wire = schedules.lane_wire_num[lanes] / schedules.lane_wire_den[lanes]
    return np.stack([data, data * wire[lane_of_send]], axis=1)


def usual_message(schedules: Schedules, index: int, size_bytes: int) -> tuple[float, float]:
    """Return data and payload in bytes of a schedule's median message.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        size_bytes: The size of the whole buffer in bytes.
    """
    sizes = np.concatenate(
        [message_sizes(schedules, index, plan, size_bytes) for plan in sorted(set(_plans(schedules, index)))]
    )
    data, payload = sizes[np.argsort(sizes[:, 0])[(len(sizes) - 1) // 2]].tolist()
    return data, payload


def pairs(schedules: Schedules, index: int, max_pairs: int) -> set[tuple[int, int]] | None:
    """Return (sender, receiver) of all messages of a schedule; None if there are too many.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        max_pairs: The maximum number of pairs; the result is None for more.
    """
    members = int(schedules.members[index])
    if schedules.relative[index]:
        peer_offsets = offsets(schedules, index)
        if members * len(peer_offsets) > max_pairs:
            return None
        return {(m, peer(schedules, index, view, m, offset)) for m in range(members) for view, offset in peer_offsets}
    peers = peers_of_members(schedules, index)
    return {(m, p) for m in range(members) for p in peers[m]} if sum(map(len, peers)) <= max_pairs else None


def connections_of_pairs(schedules: Schedules, index: int, group: Int64) -> list[list[int]]:
    """Return the number of connections of each member to each receiver in another group, such as a host.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        group: int64[n], the number of each member's group; members from n on, which are in switches, have none.
    """
    found: list[set[tuple[int, int]]] = [set() for _ in range(len(group))]  # of each member: receiver and connection
    for plan, members in _members_of_plans(schedules, index, len(group)):
        for lane in range(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1])):
            sent = np.unique(schedules.send_peer[schedules.lane_ptr[lane] : schedules.lane_ptr[lane + 1]])
            sent, connection = sent[sent >= 0], int(schedules.lane_connection[lane])
            view = int(schedules.view_base[index] + schedules.lane_view[lane]) if schedules.lane_view[lane] >= 0 else -1
            for me in members:
                if schedules.relative[index]:
                    peers = [peer(schedules, index, view, me, int(offset)) for offset in sent]
                else:
                    peers = schedules.named(int(schedules.plan_of_ptr[index]) + me, sent).tolist()
                found[me] |= {(each, connection) for each in peers if each < len(group) and group[each] != group[me]}
    return [list(Counter(receiver for receiver, _ in own).values()) for own in found]


def _members_of_plans(schedules: Schedules, index: int, count: int) -> Iterator[tuple[int, range]]:
    """Yield each plan of the first `count` members of a schedule with its members."""
    first = int(schedules.plan_of_ptr[index])
    if schedules.relative[index]:
        yield int(schedules.plan_of[first]), range(count)
        return
    for me in range(count):
        yield int(schedules.plan_of[first + me]), range(me, me + 1)


def peers_of_members(schedules: Schedules, index: int) -> list[list[int]]:
    """Return the members to which each member sends.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule, which has a plan per member.
    """
    numbers = (np.unique(schedules.send_peer[_steps(schedules, plan)]) for plan in _plans(schedules, index))
    peers = (schedules.named(entry, own) for entry, own in enumerate(numbers, start=schedules.plan_of_ptr[index]))
    return [sorted(p for p in own.tolist() if p >= 0) for own in peers]


def offsets(schedules: Schedules, index: int) -> list[tuple[int, int]]:
    """Return the peers to which each member sends, as (view, offset): the member `offset` places after it in a view.

    A view is a line of some members of the group; views are numbered over all schedules, and -1 is the whole group.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule, which has one plan for all members.
    """
    pairs: set[tuple[int, int]] = set()
    plan = _plans(schedules, index)[0]
    for lane in range(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1])):
        peers = np.unique(schedules.send_peer[schedules.lane_ptr[lane] : schedules.lane_ptr[lane + 1]])
        view = int(schedules.view_base[index] + schedules.lane_view[lane]) if schedules.lane_view[lane] >= 0 else -1
        pairs |= {(view, p) for p in peers[peers > 0].tolist()}  # -1: the step sends nothing
    return sorted(pairs)


def peer(schedules: Schedules, index: int, view: int, member: int, offset: int) -> int:
    """Return the member that is a number of places after another one.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        view: The row of the view in whose lines places are counted, among the views of all schedules; -1 = in the
            group.
        member: The number of the member from which places are counted.
        offset: The number of places.
    """
    if view < 0:
        return (member + offset) % int(schedules.members[index])
    size, first = int(schedules.view_size[view]), int(schedules.view_ptr[view])
    at = int(schedules.view_at[first + member])
    # The line begins at at - at % size; places wrap around at its end
    return int(schedules.view_member[first + at - at % size + (at + offset) % size])


def most_bytes(schedules: Schedules, index: int, size_bytes: int) -> int:
    """Return the maximum bytes that a member of a schedule sends or receives, if all lanes use all the buffer.

    Args:
        schedules: The schedules as arrays.
        index: The number of the schedule.
        size_bytes: The size of the whole buffer in bytes.
    """
    max_chunks = 0
    for plan in _plans(schedules, index):
        steps = _steps(schedules, plan)
        for ends, count in ((schedules.send_peer, schedules.send_count), (schedules.recv_peer, schedules.recv_count)):
            max_chunks = max(max_chunks, int(count[steps][ends[steps] >= 0].sum()))
    return max_chunks * size_bytes // int(schedules.chunks[index])


def _plans(schedules: Schedules, index: int) -> list[int]:
    """Return the numbers of the plans of a relative schedule, a plan for each of its members or one for all."""
    return schedules.plan_of[schedules.plan_of_ptr[index] : schedules.plan_of_ptr[index + 1]].tolist()


def _steps(schedules: Schedules, plan: int) -> slice:
    """Return the slice of all steps of a plan, by its number."""
    begin, end = schedules.lane_ptr[schedules.plan_ptr[plan : plan + 2]].tolist()
    return slice(begin, end)
