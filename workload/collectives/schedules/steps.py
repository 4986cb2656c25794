"""All steps of a schedule as arrays, with members, lanes, peers and bytes as they are."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.collectives.plans.plan import NONE, Step
from workload.collectives.schedules.packed import Schedules

Int64 = NDArray[np.int64]
_REDUCE = Step._fields.index("reduce")


class ScheduleSteps(NamedTuple):
    """Steps of all lanes of all members, in order; lanes are numbered through.

    Attributes:
        member_ptr: int64[M+1], lanes of a member.
        row: int64[L], of the columns `lane_*`.
        first: int64[L+1], steps of a lane.
        lane: int64[S].
        src: int64[S], member.
        dst: int64[S], to which it sends, -1 = to none.
        to: int64[S], lane.
        receives: bool[S].
        reduces: bool[S], what it receives is added to what is there.
        after: int64[S], lane, -1 = none.
        after_step: int64[S].
        bytes: int64[S], payload of what is sent.
    """

    member_ptr: Int64
    row: Int64
    first: Int64
    lane: Int64
    src: Int64
    dst: Int64
    to: Int64
    receives: NDArray[np.bool_]
    reduces: NDArray[np.bool_]
    after: Int64
    after_step: Int64
    bytes: Int64


def all_steps(s: Schedules, index: int, size_bytes: int) -> ScheduleSteps:
    """Of a schedule.

    Args:
        s: as packed.
        index: of the schedule.
        size_bytes: the whole buffer.
    """
    members = range(int(s.members[index]))
    member_ptr, steps = [0], 0
    found: list[ScheduleSteps] = []
    for me in members:
        own = _steps_of(s, index, me, size_bytes)
        lanes = member_ptr[-1]
        found.append(
            own._replace(
                first=own.first[:-1] + steps,
                lane=own.lane + lanes,
                after=np.where(own.after >= 0, own.after + lanes, NONE),
            )
        )
        member_ptr.append(lanes + len(own.row))
        steps += len(own.lane)
    whole = ScheduleSteps(*(np.concatenate(column) for column in zip(*found, strict=True)))
    ptr = np.array(member_ptr, np.int64)
    to = np.where(whole.dst >= 0, whole.to + ptr[np.maximum(whole.dst, 0)], NONE)
    return whole._replace(member_ptr=ptr, first=np.append(whole.first, steps), to=to)


def _steps_of(s: Schedules, index: int, me: int, size_bytes: int) -> ScheduleSteps:
    """Those of a member, with its own lanes from 0 on."""
    relative = bool(s.relative[index])
    n, plan = int(s.members[index]), int(s.plan_of[s.plan_of_ptr[index] + (0 if relative else me)])
    row = np.arange(s.plan_ptr[plan], s.plan_ptr[plan + 1])
    first = s.lane_ptr[s.plan_ptr[plan] : s.plan_ptr[plan + 1] + 1].astype(np.int64)
    lane = np.repeat(np.arange(len(row)), np.diff(first))
    steps = slice(int(first[0]), int(first[-1]))
    line_size, line_begin, place = np.full(len(row), n), np.full(len(row), NONE), np.full(len(row), me)
    part, parts = s.lane_part[row].astype(np.int64), s.lane_parts[row].astype(np.int64)
    seen = np.flatnonzero(s.lane_view[row] >= 0)
    if len(seen):
        view = s.view_base[index] + s.lane_view[row[seen]]
        at = s.view_at[s.view_ptr[view] + me].astype(np.int64)
        line_size[seen], place[seen] = s.view_size[view], at % s.view_size[view]
        line_begin[seen] = s.view_ptr[view] + at - place[seen]
        part[seen] = part[seen] * s.view_parts[view] + s.view_part[s.view_ptr[view] + me]
        parts[seen] *= s.view_parts[view]
    peer, chunks = s.send_peer[steps].astype(np.int64), s.lane_chunks[row].astype(np.int64)
    shift = np.zeros(len(row), np.int64)
    if relative:
        shift = place * (chunks // line_size)
        far = (place[lane] + peer) % line_size[lane]
        begin = line_begin[lane]
        inside = s.view_member[np.maximum(begin, 0) + far] if len(seen) else far
        peer = np.where(peer >= 0, np.where(begin >= 0, inside, far), NONE)
    chunk = part[lane] * chunks[lane] + (shift[lane] + s.send_chunk[steps]) % chunks[lane]
    data = _bytes(chunk, s.send_count[steps].astype(np.int64), (parts * chunks)[lane], size_bytes)
    wire = -(-data * s.lane_wire_num[row[lane]] // s.lane_wire_den[row[lane]])
    none = np.zeros(0, np.int64)
    return ScheduleSteps(
        member_ptr=none,
        row=row.astype(np.int64),
        first=first - first[0],
        lane=lane,
        src=np.full(len(lane), me),
        dst=peer,
        to=s.send_lane[steps].astype(np.int64),
        receives=s.recv_peer[steps] >= 0,
        reduces=s.steps[steps, _REDUCE] != 0,
        after=s.dep_lane[steps].astype(np.int64),
        after_step=s.dep_step[steps].astype(np.int64),
        bytes=np.where(peer >= 0, wire, 0),
    )


def _bytes(chunk: Int64, count: Int64, pieces: Int64, size_bytes: int) -> Int64:
    """Of chunks in a row, of so many pieces of the buffer; pieces times bytes are below 2^62 (program.building)."""
    return (chunk + count) * size_bytes // pieces - chunk * size_bytes // pieces
