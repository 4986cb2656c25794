"""All steps of a schedule as arrays, with absolute members, lanes, peers and bytes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload.collectives.plans.plan import NONE, Step
from workload.collectives.schedules.packed import Schedules

Int64 = NDArray[np.int64]
_REDUCE = Step._fields.index("reduce")


class ScheduleSteps(NamedTuple):
    """Steps of all lanes of all members, in order; lanes are numbered consecutively over all members."""

    member_ptr: Int64  # int64[M+1], first lane of each member
    row: Int64  # int64[L], row of the lane in the columns `lane_*`
    first: Int64  # int64[L+1], first step of each lane
    lane: Int64  # int64[S], lane of the step
    src: Int64  # int64[S], member that runs the step
    dst: Int64  # int64[S], member to which the step sends, -1 = none
    to: Int64  # int64[S], lane that receives the message
    receives: NDArray[np.bool_]  # bool[S], whether the step receives
    reduces: NDArray[np.bool_]  # bool[S], whether received data is added
    after: Int64  # int64[S], lane whose step must be done first, -1 = none
    after_step: Int64  # int64[S], number of that step in its lane
    bytes: Int64  # int64[S], payload of the message in bytes


def all_steps(s: Schedules, index: int, size_bytes: int) -> ScheduleSteps:
    """Return the steps of a schedule, by its number, for a whole buffer of size_bytes."""
    members = range(int(s.members[index]))
    member_ptr, steps = [0], 0
    steps_of_members: list[ScheduleSteps] = []
    for me in members:
        of_member = _steps_of(s, index, me, size_bytes)
        lanes = member_ptr[-1]
        steps_of_members.append(
            of_member._replace(
                first=of_member.first[:-1] + steps,
                lane=of_member.lane + lanes,
                after=np.where(of_member.after >= 0, of_member.after + lanes, NONE),
            )
        )
        member_ptr.append(lanes + len(of_member.row))
        steps += len(of_member.lane)
    joined = ScheduleSteps(*(np.concatenate(column) for column in zip(*steps_of_members, strict=True)))
    ptr = np.array(member_ptr, np.int64)
    to = np.where(joined.dst >= 0, joined.to + ptr[np.maximum(joined.dst, 0)], NONE)
    return joined._replace(member_ptr=ptr, first=np.append(joined.first, steps), to=to)


def _steps_of(s: Schedules, index: int, me: int, size_bytes: int) -> ScheduleSteps:
    """Return the steps of a member, with its lanes numbered from 0."""
    relative = bool(s.relative[index])
    n, plan = int(s.members[index]), int(s.plan_of[s.plan_of_ptr[index] + (0 if relative else me)])
    row = np.arange(s.plan_ptr[plan], s.plan_ptr[plan + 1])
    first = s.lane_ptr[s.plan_ptr[plan] : s.plan_ptr[plan + 1] + 1].astype(np.int64)
    lane = np.repeat(np.arange(len(row)), np.diff(first))
    steps = slice(int(first[0]), int(first[-1]))
    line_size, line_begin, place = np.full(len(row), n), np.full(len(row), NONE), np.full(len(row), me)
    part, parts = s.lane_part[row].astype(np.int64), s.lane_parts[row].astype(np.int64)
    with_view = np.flatnonzero(s.lane_view[row] >= 0)
    if len(with_view):
        view = s.view_base[index] + s.lane_view[row[with_view]]
        at = s.view_at[s.view_ptr[view] + me].astype(np.int64)
        line_size[with_view], place[with_view] = s.view_size[view], at % s.view_size[view]
        line_begin[with_view] = s.view_ptr[view] + at - place[with_view]
        part[with_view] = part[with_view] * s.view_parts[view] + s.view_part[s.view_ptr[view] + me]
        parts[with_view] *= s.view_parts[view]
    peer, chunks = s.send_peer[steps].astype(np.int64), s.lane_chunks[row].astype(np.int64)
    shift = np.zeros(len(row), np.int64)
    if relative:
        shift = place * (chunks // line_size)
        place_in_line = (place[lane] + peer) % line_size[lane]
        begin = line_begin[lane]
        inside = s.view_member[np.maximum(begin, 0) + place_in_line] if len(with_view) else place_in_line
        peer = np.where(peer >= 0, np.where(begin >= 0, inside, place_in_line), NONE)
    chunk = part[lane] * chunks[lane] + (shift[lane] + s.send_chunk[steps]) % chunks[lane]
    end, pieces = chunk + s.send_count[steps], (parts * chunks)[lane]
    data = end * size_bytes // pieces - chunk * size_bytes // pieces  # pieces * bytes < 2^62 (program.building)
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
