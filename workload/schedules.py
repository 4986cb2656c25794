"""Schedules: collective algorithms as arrays, as docs/interfaces.md describes them."""

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload import collectives
from workload.errors import WorkloadError
from workload.plans import Plan, Plans, Step

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

DONE_AT_ONCE = -1


class Schedules(NamedTuple):
    """S schedules with P different plans of LN lanes.

    Attributes:
        members: int32[S], n.
        chunks: int32[S], into how many chunks the buffer is cut.
        relative: bool[S], one plan for all members.
        plan_of_ptr: int64[S+1], plan_of[plan_of_ptr[s]:plan_of_ptr[s+1]] are the plans of s, 1 or n of them.
        plan_of: int32[], plans.
        plan_ptr: int32[P+1], lanes of a plan.
        lane_ptr: int32[LN+1], steps of a lane.
        dep_lane: int32[steps], lane of the same member that must have done more than dep_step steps, -1 = none.
        dep_step: int32[steps].
        send_peer: int32[steps], -1 = no send.
        send_lane: int32[steps], lane of the receiver.
        send_chunk: int32[steps].
        send_count: int32[steps].
        recv_peer: int32[steps], -1 = no receive. In a lane with several senders messages are taken as they come, and
            those of a sender go to the chunks of the steps that name it.
        recv_chunk: int32[steps].
        recv_count: int32[steps].
        reduce: bool[steps], received data is added to the chunk, else it replaces it.
    """

    members: Int32
    chunks: Int32
    relative: NDArray[np.bool_]
    plan_of_ptr: Int64
    plan_of: Int32
    plan_ptr: Int32
    lane_ptr: Int32
    dep_lane: Int32
    dep_step: Int32
    send_peer: Int32
    send_lane: Int32
    send_chunk: Int32
    send_count: Int32
    recv_peer: Int32
    recv_chunk: Int32
    recv_count: Int32
    reduce: NDArray[np.bool_]


class ScheduleSet:
    """Collects the schedules that a program needs, each (kind, algorithm, members) once."""

    def __init__(self) -> None:
        self._index: dict[tuple[str, str, int], int] = {}
        self._plans: list[Plans] = []

    def add(self, kind: str, algorithm: str, members: int) -> int:
        """Number of the schedule, DONE_AT_ONCE (-1) for a group of one.

        Raises:
            WorkloadError: unknown kind or algorithm, or an algorithm that does not do this kind.
        """
        key = (kind, algorithm, members)
        if key not in self._index:
            made = collectives.plan(kind, algorithm, members)  # also for one member: the names are checked
            self._index[key] = DONE_AT_ONCE if members == 1 else len(self._plans)
            if members > 1:
                self._plans.append(_checked(made, f"algorithm {algorithm} for {kind} of {members}"))
        return self._index[key]

    def chunks(self, schedule: int) -> int:
        """Into how many chunks a schedule cuts the buffer."""
        return self._plans[schedule].chunks

    def pack(self) -> Schedules:
        """All schedules so far as arrays."""
        return pack(self._plans)


def pack(schedules: list[Plans]) -> Schedules:
    """Schedules as arrays; equal plans of a schedule are held once."""
    plans: list[Plan] = []
    plan_of: list[int] = []
    for schedule in schedules:
        known: dict[Plan, int] = {}
        for plan in schedule.plans:
            if plan not in known:
                known[plan] = len(plans)
                plans.append(plan)
            plan_of.append(known[plan])
    lanes = list(chain.from_iterable(plans))
    columns = _columns(list(chain.from_iterable(lanes)))
    return Schedules(
        members=np.array([s.members for s in schedules], np.int32),
        chunks=np.array([s.chunks for s in schedules], np.int32),
        relative=np.array([s.relative for s in schedules], np.bool_),
        plan_of_ptr=_ptr([len(s.plans) for s in schedules]),
        plan_of=np.array(plan_of, np.int32),
        plan_ptr=_ptr([len(p) for p in plans]).astype(np.int32),
        lane_ptr=_ptr([len(lane) for lane in lanes]).astype(np.int32),
        reduce=columns.pop("reduce").astype(np.bool_),
        **columns,
    )


def _columns(steps: list[Step]) -> dict[str, Int32]:
    table = np.fromiter(chain.from_iterable(steps), np.int32).reshape(-1, len(Step._fields))
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(Step._fields)}


def _ptr(counts: list[int]) -> Int64:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def _checked(plans: Plans, what: str) -> Plans:
    """The plans, if their peers, lanes and chunks exist. The oracle checks that they do what they promise."""
    if len(plans.plans) != (1 if plans.relative else plans.members) or plans.chunks < 1:
        raise WorkloadError(
            f"{what}: {len(plans.plans)} plans and {plans.chunks} chunks, expected one plan or one each"
        )
    if plans.relative and plans.chunks > 1 and plans.chunks % plans.members:
        raise WorkloadError(f"{what}: {plans.chunks} chunks, expected 1 or a multiple of the members")
    steps = _columns([step for plan in plans.plans for lane in plan for step in lane])
    for side in ("send", "recv"):
        peer, chunk, count = (steps[f"{side}_{field}"] for field in ("peer", "chunk", "count"))
        used = peer >= 0
        if np.any(peer >= plans.members) or (plans.relative and np.any(peer == 0)):
            raise WorkloadError(f"{what}: {side} peer {peer.max()}, expected another of the members")
        if np.any(used & ((chunk < 0) | (count < 1) | (chunk + count > plans.chunks))):
            raise WorkloadError(f"{what}: {side} of a chunk that is not there, expected 0 .. {plans.chunks - 1}")
    return plans
