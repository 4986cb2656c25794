"""Schedules read back: steps with absolute members, lanes, peers and chunks, and the buffer of each lane."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nadi.et.arrays import Int32, Int64
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
        """Return the bytes of consecutive chunks of a whole buffer of size_bytes; chunk: absolute, in any region."""
        first, pieces = self.part * self.chunks + chunk % self.chunks, self.parts * self.chunks
        return (first + count) * size_bytes // pieces - first * size_bytes // pieces

    def wire_bytes(self, chunk: int, count: int, size_bytes: int) -> int:
        """Return the payload in bytes of a message of chunks."""
        return -(-self.bytes(chunk, count, size_bytes) * self.wire[0] // self.wire[1])


class _MemberSteps(NamedTuple):
    """The steps of one member, lane by lane, with absolute peers and chunks."""

    rows: range  # rows of the member's lanes in the columns `lane_*`
    first: Int64  # int64[lanes + 1], first step of each lane
    steps: Int32  # int32[steps, 10], one row per step, as in Schedules.steps
    part: Int64  # int64[lanes], number of the lane's part of the buffer
    parts: Int64  # int64[lanes], number of equal parts of the buffer


def unpack(schedules: Schedules, index: int) -> list[list[list[Step]]]:
    """Return the steps of each lane of each member of schedule number `index`, with absolute peers and chunks."""
    lanes_of_members = []
    for me in range(int(schedules.members[index])):
        own = _member_steps(schedules, index, me)
        steps = [Step._make((*row[:-1], bool(row[-1]))) for row in own.steps.tolist()]
        lanes_of_members.append([steps[begin:end] for begin, end in pairwise(own.first.tolist())])
    return lanes_of_members


def buffers(schedules: Schedules, index: int) -> list[list[Buffer]]:
    """Return the buffer of each lane of each member of schedule number `index`."""
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
    rows = _rows(schedules, index, member)
    lanes = slice(rows.start, rows.stop)
    first = schedules.lane_ptr[rows.start : rows.stop + 1].astype(np.int64)
    steps = schedules.steps[first[0] : first[-1]].copy()
    part, parts = schedules.lane_part[lanes].astype(np.int64), schedules.lane_parts[lanes].astype(np.int64)
    line_size, line_begin, place = (np.full(len(rows), v) for v in (int(schedules.members[index]), NONE, member))
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


def _rows(schedules: Schedules, index: int, member: int) -> range:
    """Return the lanes of a member of schedule number `index` as rows of the columns `lane_*`."""
    plan = int(schedules.plan_of[schedules.plan_of_ptr[index] + (0 if schedules.relative[index] else member)])
    return range(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1]))
