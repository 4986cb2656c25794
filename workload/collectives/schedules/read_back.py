"""Schedules read back, member by member: steps with absolute peers and chunks, and the buffer of each lane."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.collectives.plans.plan import NONE, Step
from workload.collectives.schedules.packed import Schedules


class Buffer(NamedTuple):
    """The part of the buffer S that a lane of one member works on, cut into chunks."""

    part: int  # number of the part
    parts: int  # number of equal parts of the buffer
    chunks: int  # number of chunks of the part
    wire: tuple[int, int]  # (numerator, denominator) of bytes on the wire per byte of data
    arrangement: NDArray[np.int32] | None = (
        None  # int32[pieces], the piece of the region that the lane sees as piece 0, 1, ...; None = buffer order
    )

    def bytes(self, chunk: int, count: int, size_bytes: int) -> int:
        """Return the bytes of consecutive chunks of a whole buffer of size_bytes; chunk: absolute, in any region."""
        first, pieces = self.part * self.chunks + chunk % self.chunks, self.parts * self.chunks
        return (first + count) * size_bytes // pieces - first * size_bytes // pieces

    def wire_bytes(self, chunk: int, count: int, size_bytes: int) -> int:
        """Return the payload in bytes of a message of chunks."""
        return -(-self.bytes(chunk, count, size_bytes) * self.wire[0] // self.wire[1])


def unpack(schedules: Schedules, index: int) -> list[list[list[Step]]]:
    """Return the steps of each lane of each member, with absolute peers and chunks."""
    s = schedules
    members = range(int(s.members[index]))
    if not s.relative[index]:
        return [_lanes(s, _plan_of(s, index, me)) for me in members]
    plan = _plan_of(s, index, 0)
    lanes = list(enumerate(_lanes(s, plan), start=int(s.plan_ptr[plan])))
    return [[_absolute(s, index, row, me, steps) for row, steps in lanes] for me in members]


def buffers(schedules: Schedules, index: int) -> list[list[Buffer]]:
    """Return the buffer of each lane of each member."""
    rows = lane_rows(schedules, index)
    return [[_buffer(schedules, index, row, me) for row in own] for me, own in enumerate(rows)]


def lane_rows(schedules: Schedules, index: int) -> list[range]:
    """Return the lanes of each member as rows of the columns `lane_*`."""
    s = schedules
    plans = (_plan_of(s, index, me) for me in range(int(s.members[index])))
    return [range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])) for plan in plans]


def _plan_of(s: Schedules, index: int, member: int) -> int:
    return int(s.plan_of[s.plan_of_ptr[index] + (0 if s.relative[index] else member)])


def _lanes(schedules: Schedules, plan: int) -> list[list[Step]]:
    ptr = schedules.lane_ptr[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1] + 1].tolist()
    rows = schedules.steps[ptr[0] : ptr[-1]].tolist()
    steps = [Step._make((*row[:-1], bool(row[-1]))) for row in rows]
    return [steps[a - ptr[0] : b - ptr[0]] for a, b in pairwise(ptr)]


def _buffer(s: Schedules, index: int, row: int, me: int) -> Buffer:
    part, parts, view = int(s.lane_part[row]), int(s.lane_parts[row]), int(s.lane_view[row])
    if view >= 0:
        view += int(s.view_base[index])
        inner = int(s.view_parts[view])
        part, parts = part * inner + int(s.view_part[s.view_ptr[view] + me]), parts * inner
    wire = int(s.lane_wire_num[row]), int(s.lane_wire_den[row])
    arrangement = None
    if s.lane_arrangement[row] >= 0:
        own = int(s.arrangement_base[index] + s.lane_arrangement[row])
        arrangement = s.arrangement_piece[s.arrangement_ptr[own] : s.arrangement_ptr[own + 1]]
    return Buffer(part, parts, int(s.lane_chunks[row]), wire, arrangement)


def _absolute(s: Schedules, index: int, row: int, me: int, steps: list[Step]) -> list[Step]:
    """Return the steps of lane `row` with the peers and chunks of member `me`."""
    line = list(range(int(s.members[index])))
    place = me
    if s.lane_view[row] >= 0:
        view = int(s.view_base[index] + s.lane_view[row])
        size, at = int(s.view_size[view]), int(s.view_at[s.view_ptr[view] + me])
        place = at % size
        line = s.view_member[s.view_ptr[view] + at - place :][:size].tolist()
    chunks = int(s.lane_chunks[row])
    shift = place * (chunks // len(line))

    def peer(p: int) -> int:
        return NONE if p == NONE else line[(place + p) % len(line)]

    def chunk(c: int) -> int:
        return NONE if c == NONE else c // chunks * chunks + (shift + c) % chunks

    return [
        Step(
            dep_lane,
            dep_step,
            peer(receiver),
            to_lane,
            chunk(send),
            send_count,
            peer(sender),
            chunk(recv),
            recv_count,
            reduce,
        )
        for dep_lane, dep_step, receiver, to_lane, send, send_count, sender, recv, recv_count, reduce in steps
    ]
