"""Schedules: collective algorithms as arrays, in the layout of docs/reference/interfaces.md."""

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int32, Int64, pointers
from nadi.workload import collectives
from nadi.workload.collectives import kernel_times
from nadi.workload.collectives.plans.plan import (
    IDLE,
    NONE,
    SHARE_STEP,
    Attributes,
    Plan,
    Plans,
    Step,
    step_table,
)
from nadi.workload.collectives.schedules import checks
from nadi.workload.collectives.uneven import NAME as UNEVEN, all_to_all_v, units
from nadi.workload.errors import WorkloadError
from nadi.workload.kept import KeptResults
from nadi.workload.shape import GroupShape

DONE_AT_ONCE = -1


class Schedules(NamedTuple):
    """S schedules with P different plans of LN lanes.

    The columns `lane_*` are the fields of plans.plan.Attributes, one entry per lane; -1 = none, chunks are never None.
    The columns of `steps` are the fields of plans.plan.Step, and attributes of the schedules under the same names.
    """

    members: Int32  # int32[S], number of members n
    chunks: Int32  # int32[S], number of chunks of the buffer
    relative: NDArray[np.bool_]  # bool[S], whether all members share one plan
    plan_of_ptr: Int64  # int64[S+1], plan_of[plan_of_ptr[s]:plan_of_ptr[s+1]] are the plans of s, 1 or n of them
    plan_of: Int32  # int32[], numbers of plans
    plan_ptr: Int32  # int32[P+1], first lane of each plan
    lane_ptr: Int32  # int32[LN+1], first step of each lane
    steps: Int32  # int32[steps, 10], one row per step
    launch_ps: Int64  # int64[S], time from when a collective is ready until its first step
    regions: Int32  # int32[S], number of buffers that chunk numbers run over
    view_base: Int32  # int32[S], first view of a schedule among all V
    # bool[LN], whether the lane has no view, works on the whole buffer in the schedule's chunks, and sends one byte on
    # the wire per byte of data
    lane_plain: NDArray[np.bool_]
    lane_view: Int32  # int32[LN]
    lane_part: Int32  # int32[LN]
    lane_parts: Int32  # int32[LN]
    lane_chunks: Int32  # int32[LN]
    lane_latency_ps: Int64  # int64[LN]
    lane_wire_num: Int32  # int32[LN], numerator of Attributes.wire
    lane_wire_den: Int32  # int32[LN], denominator of Attributes.wire
    lane_phase: Int32  # int32[LN]
    lane_gate: Int32  # int32[LN]
    view_size: Int32  # int32[V], number of members of a line
    view_parts: Int32  # int32[V], number of parts into which the view cuts a lane's part
    view_ptr: Int64  # int64[V+1], first of the n entries of a view in the next three columns
    view_member: Int32  # int32[], members, line by line
    view_at: Int32  # int32[], index in view_member of each member; its place in its line is view_at % view_size
    view_part: Int32  # int32[], part of each member
    lane_arrangement: Int32  # int32[LN]
    lane_blocking: Int32  # int32[LN]
    aggregators: Int32  # int32[S], number of members, the last ones, that are in switches
    lane_connection: Int32  # int32[LN]
    lane_shares: Float64  # float64[LN]; a multiple of plans.plan.SHARE_STEP
    lane_begins: Int32  # int32[LN]
    arrangement_base: Int32  # int32[S], first arrangement of a schedule among all L
    arrangement_ptr: Int64  # int64[L+1], first piece of each arrangement
    arrangement_piece: Int32  # int32[], the piece of the buffer that the lane sees as piece 0, 1, ...
    # bool[S], whether pairs exchange different numbers of bytes, so that no closed form applies
    uneven: NDArray[np.bool_]
    # int32[], parallel to plan_of: first entry of the member's list in peer_list. The columns send_peer, recv_peer and
    # send_lane of its plan are indices from there; -1 = they name members and lanes themselves.
    list_first: Int32
    peer_list: Int32  # int32[], lists of the members of shared plans: a member's peers, then lanes of these

    def __getattr__(self, name: str) -> Int32:
        """Return int32[steps]: a column of `steps`, by its name in plans.plan.Step, as send_peer; reduce is 0 or 1."""
        if name not in Step._fields:
            raise AttributeError(name)
        return self.steps[:, Step._fields.index(name)]

    def named(self, entry: int | Int64, peers: Int32) -> Int32:
        """Return the members, or lanes, that values of send_peer, recv_peer or send_lane name; -1 stays -1.

        Args:
            entry: The index in plan_of of the member whose steps have the values, or of the members, int64[len(peers)].
            peers: The values of one of the columns send_peer, recv_peer or send_lane, int32[].
        """
        first, named = np.broadcast_to(self.list_first[entry], len(peers)), np.array(peers)
        in_list = (first >= 0) & (named >= 0)
        named[in_list] = self.peer_list[first[in_list] + named[in_list]]
        return named

    def lists(self, index: int) -> tuple[Int32, Int32]:
        """Return the lists of a schedule: the first entry of each member's list, and all lists in a row.

        Args:
            index: The number of the schedule.
        """
        begin, end = self.plan_of_ptr[index : index + 2].tolist()
        first, later = self.list_first[begin:end], self.list_first[end:]
        if first[0] < 0:
            return first, self.peer_list[:0]
        return first - first[0], self.peer_list[first[0] : np.append(later[later >= 0], len(self.peer_list))[0]]


class ScheduleSet:
    """Collects the schedules that a program needs, one per kind, algorithm with its parameters, and number of members.

    For algorithms that need the group's shape, the shape and the class of the buffer size replace the number of
    members.
    """

    def __init__(self, max_bytes: int | None = None, kept: KeptResults | None = None) -> None:
        """Make an empty set.

        Args:
            max_bytes: The memory in bytes that its schedules may take; None = no limit.
            kept: The schedules that several sets have in common; None = this set builds its own.
        """
        self._kept = kept
        self._most_bytes, self._bytes = max_bytes, 0
        # An entry is an index of `_distinct`: two schedules share one if their plans differ in no more than the time
        # before their first step. -1 = the plans have no steps.
        self._distinct: list[checks.BuiltSchedule] = []
        self._entries: dict[object, int] = {}  # by what the plans depend on: kind, algorithm, members, size, shape
        self._number: dict[tuple[int, int], int] = {}  # of a schedule, by entry and time before the first step
        self._uneven: dict[object, int] = {}
        self._plans: list[checks.SharedPlans] = []
        self._pieces: list[int] = []  # what `pieces` returns, by schedule
        self._shares: dict[object, checks.SharesOf] = {}
        # By kind, algorithm, members and class of sizes: the entries of different shapes, and their contents
        self._of_shapes: dict[object, list[int]] = {}
        self._by_content: dict[object, int] = {}

    def add(
        self,
        kind: str,
        algorithm: str,
        members: int,
        shape: GroupShape | None = None,
        size_bytes: int = 0,
        stripes: int = 1,
    ) -> int:
        """Return the number of a schedule, after adding it if it is new; DONE_AT_ONCE (-1) for a group of one.

        Raises WorkloadError: unknown kind, algorithm or parameter, an algorithm that does not implement the kind, a
        missing shape, or more memory than the set may take.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            algorithm: The algorithm as users write it, with parameters if any, such as `ring:channels=2`.
            members: The number of members of the group.
            shape: The positions of the group's members on the fabric, for algorithms that need them; None = unknown.
            size_bytes: The size of the whole buffer in bytes, for algorithms that need it.
            stripes: The number of stripes of the buffer over parallel NICs (workload.shape.stripes_of).
        """
        chosen = collectives.choose(kind, algorithm).striped(kind, stripes)
        key: tuple[object, ...] = (kind, chosen, members)
        launch_ps = None
        by_shape = chosen.needs_shape or (shape is not None and chosen.pays(shape.accelerator))
        if by_shape and members > 1:
            shape = chosen.on(kind, shape)
            key = (kind, chosen, shape, chosen.size_class(kind, shape, size_bytes))
            launch_ps = chosen.launch_ps(kind, shape, size_bytes)
        if key not in self._entries:
            entry = DONE_AT_ONCE
            if members > 1 or not chosen.needs_shape:
                self._check_memory(chosen, kind, members, shape, size_bytes)
            if members > 1:
                label = f"algorithm {algorithm} for {kind} of {members}"

                def build() -> checks.BuiltSchedule:
                    """Return the schedule, which begins at once if sizes of a class differ in when they begin."""
                    shares: checks.SharesOf = {}
                    plans = checks.checked(chosen.plan(kind, members, shape, size_bytes), label, kind, shares)
                    return checks.BuiltSchedule(
                        checks.shared(plans if launch_ps is None else plans._replace(launch_ps=0)), shares
                    )

                built = (
                    self._kept.get(key, build, checks.BuiltSchedule.bytes_of)
                    if self._kept and chosen.is_fixed
                    else build()
                )
                checks.add_shares(built.shares, label, self._shares.setdefault(shape if by_shape else members, {}))
                entry = self._entry((kind, chosen, members, key[3:]), built)
            elif not chosen.needs_shape:
                chosen.plan(kind, members)  # which checks the arguments
            self._entries[key] = entry
        return self._schedule(self._entries[key], launch_ps)

    def _entry(self, family: object, new: checks.BuiltSchedule) -> int:
        """Return the entry of plans, after adding them unless an entry of another shape has the same plans."""
        # Members on the first GPUs of their hosts do the same as members on the second ones: NPUs then share traces.
        # family: kind, algorithm, number of members and class of sizes. One shape alone is compared with nothing.
        earlier = self._of_shapes.setdefault(family, [])
        if len(earlier) == 1:
            self._by_content[family, _content(self._distinct[earlier[0]])] = earlier[0]
        content = (family, _content(new)) if earlier else None
        if content in self._by_content:
            return self._by_content[content]
        earlier.append(len(self._distinct))
        self._distinct.append(new)
        if content is not None:
            self._by_content[content] = earlier[-1]
        return earlier[-1]

    def _schedule(self, entry: int, launch_ps: int | None) -> int:
        """Return the number of the schedule of an entry with this time before its first step; None = as planned."""
        if entry == DONE_AT_ONCE:
            return DONE_AT_ONCE
        steps = self._distinct[entry].shared
        launch_ps = steps.plans.launch_ps if launch_ps is None else launch_ps
        if (entry, launch_ps) not in self._number:
            new = steps._replace(plans=steps.plans._replace(launch_ps=launch_ps))
            self._number[entry, launch_ps] = self._append(new)
        return self._number[entry, launch_ps]

    def _check_memory(
        self, chosen: collectives.AlgorithmChoice, kind: str, members: int, shape: GroupShape | None, size_bytes: int
    ) -> None:
        """Add the memory of a schedule to the total, and refuse the schedule if the total exceeds the limit."""
        # The arguments are those of `add`, with the algorithm that it has chosen.
        if self._most_bytes is None:
            return
        extent = chosen.extent(kind, members, shape, size_bytes)
        self._bytes += extent.memory_bytes
        if self._bytes > self._most_bytes:
            raise WorkloadError(
                f"algorithm {chosen.name} for {kind} of {members:,} members: its {extent.steps:,} steps would take "
                f"about {extent.memory_bytes / 1e9:,.1f} GB of memory, {self._most_bytes / 1e9:,.1f} GB are "
                "free; expected another algorithm, fewer members, or --force"
            )

    def add_uneven(self, matrix_bytes: Int64, algorithm: str, shape: GroupShape | None) -> int:
        """Return the number of the schedule of an all-to-all with split sizes; multiples of a matrix share a schedule.

        Algorithms that need the group's shape also depend on the size, so that multiples have schedules of their own.
        Raises WorkloadError: as workload.collectives.choose_uneven and uneven.all_to_all_v.

        Args:
            matrix_bytes: The bytes from member (row) to member (column), int64[n, n].
            algorithm: One of workload.collectives.uneven_algorithms, with parameters if any.
            shape: The positions of the group's members on the fabric; None = unknown.
        """
        if len(matrix_bytes) == 1:
            return DONE_AT_ONCE
        chosen, cut = collectives.choose_uneven(algorithm), units(matrix_bytes)
        pays = chosen is None and shape is not None and kernel_times.has_times(shape.accelerator)
        location = shape if chosen or pays else shape and shape.host
        unit_bytes = cut.unit_bytes if chosen or pays else 0
        key = (algorithm, location, unit_bytes, hashlib.blake2b(cut.sent.tobytes(), digest_size=16).digest())
        if key not in self._uneven:
            plans = (
                chosen.plan_uneven(cut, shape) if chosen else all_to_all_v(cut.sent, algorithm, shape and shape.host)
            )
            if shape and pays:
                mean_bytes = int(matrix_bytes.sum()) // len(matrix_bytes)
                plans = kernel_times.timed(plans, shape, kernel_times.protocol_of("all-to-all", shape, mean_bytes))
            label = f"algorithm {algorithm} for {UNEVEN} of {len(cut.sent)}"
            self._uneven[key] = self._append(checks.shared(checks.checked(plans, label, "all-to-all")))
        return self._uneven[key]

    def _append(self, new: checks.SharedPlans) -> int:
        """Add the plans of a schedule, and return its number."""
        plans = new.plans
        factor = plans.chunks
        for a in set().union(*plans.attributes):
            parts = a.parts * (plans.views[a.view].parts if a.view >= 0 else 1)
            factor = max(factor, parts * (a.chunks or plans.chunks), *a.wire)
        self._plans.append(new)
        self._pieces.append(factor)
        return len(self._plans) - 1

    def pieces(self, schedule: int) -> int:
        """Return the largest factor by which a schedule multiplies sizes: its finest chunks, or the wire factor.

        Args:
            schedule: The number of the schedule.
        """
        return self._pieces[schedule]

    def aggregators(self, schedule: int) -> int:
        """Return the number of a schedule's members that are in switches.

        Args:
            schedule: The number of the schedule.
        """
        return self._plans[schedule].plans.aggregators

    def chunks(self, schedule: int) -> int:
        """Return the number of chunks of a schedule's buffer.

        Args:
            schedule: The number of the schedule.
        """
        return self._plans[schedule].plans.chunks

    def pack(self) -> Schedules:
        """Return all schedules so far as arrays."""
        return _packed(self._plans)


def pack(schedules: Sequence[Plans]) -> Schedules:
    """Return schedules as arrays; equal plans are stored once, lanes without steps get an empty step.

    Args:
        schedules: The plans of each schedule.
    """
    return _packed([checks.shared(plans) for plans in schedules])


def _packed(parts: Sequence[checks.SharedPlans]) -> Schedules:
    """Return schedules as arrays. Equal plans of different schedules are one if they refer to no view of their own."""
    schedules = [part.plans for part in parts]
    plans: list[Plan] = []
    attributes: list[Attributes] = []
    schedule_chunks: list[int] = []  # number of chunks of the buffer, by lane
    plan_of: list[int] = []
    known: dict[tuple[Plan, tuple[Attributes, ...], int, int], int] = {}
    by_object: dict[tuple[int, tuple[Attributes, ...], int, int], int] = {}  # the same without a look at the steps
    for number, schedule in enumerate(schedules):
        owner = number if schedule.views or schedule.arrangements else NONE
        for i, plan in enumerate(schedule.plans):
            own = schedule.attributes_of(i)
            same = id(plan), own, schedule.chunks, owner
            if same not in by_object:
                key = plan, own, schedule.chunks, owner
                if key not in known:
                    known[key] = len(plans)
                    plans.append(plan)
                    attributes += [a._replace(chunks=a.chunks or schedule.chunks) for a in own]
                    schedule_chunks += [schedule.chunks] * len(own)
                by_object[same] = known[key]
            plan_of.append(by_object[same])
    lanes = [lane or (IDLE,) for lane in chain.from_iterable(plans)]
    views = [view for schedule in schedules for view in schedule.views]
    arrangements = [arrangement for schedule in schedules for arrangement in schedule.arrangements]
    list_ptr = pointers([len(part.peer_list) for part in parts])
    return Schedules(
        members=np.array([s.members for s in schedules], np.int32),
        chunks=np.array([s.chunks for s in schedules], np.int32),
        relative=np.array([s.relative for s in schedules], np.bool_),
        plan_of_ptr=pointers([len(s.plans) for s in schedules]),
        plan_of=np.array(plan_of, np.int32),
        plan_ptr=pointers([len(p) for p in plans]).astype(np.int32),
        lane_ptr=pointers([len(lane) for lane in lanes]).astype(np.int32),
        steps=step_table(lanes),
        launch_ps=np.array([s.launch_ps for s in schedules], np.int64),
        regions=np.array([s.regions for s in schedules], np.int32),
        view_base=pointers([len(s.views) for s in schedules])[:-1].astype(np.int32),
        **_lane_columns(attributes, np.array(schedule_chunks, np.int32)),
        view_size=np.array([view.size for view in views], np.int32),
        view_parts=np.array([view.parts for view in views], np.int32),
        view_ptr=pointers([len(view.member) for view in views]),
        view_member=_joined([view.member for view in views]),
        view_at=_joined([view.at for view in views]),
        view_part=_joined([view.part for view in views]),
        aggregators=np.array([s.aggregators for s in schedules], np.int32),
        arrangement_base=pointers([len(s.arrangements) for s in schedules])[:-1].astype(np.int32),
        arrangement_ptr=pointers([len(arrangement) for arrangement in arrangements]),
        arrangement_piece=_joined(arrangements),
        uneven=np.array([s.uneven for s in schedules], np.bool_),
        list_first=_joined(
            [_moved(part.list_first, first) for part, first in zip(parts, list_ptr.tolist(), strict=False)]
        ),
        peer_list=_joined([part.peer_list for part in parts]),
    )


def _content(built: checks.BuiltSchedule) -> bytes:
    """Return the digest of the plans of a schedule."""
    if not built.content:
        digest = hashlib.blake2b(digest_size=16)
        for column in _packed([built.shared]):
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(column).data)
        built.content = digest.digest()
    return built.content


def appended(schedules: Schedules, more: Schedules) -> Schedules:
    """Return the schedules followed by others, which get the numbers after them.

    Args:
        schedules: The schedules that keep their numbers.
        more: The schedules to append, which have no views and no arrangements.
    """
    columns = {name: np.concatenate([getattr(schedules, name), getattr(more, name)]) for name in Schedules._fields}
    for name in ("plan_of_ptr", "plan_ptr", "lane_ptr"):
        before = getattr(schedules, name)
        columns[name] = np.concatenate([before, getattr(more, name)[1:] + before[-1]])
    columns["plan_of"] = np.concatenate([schedules.plan_of, more.plan_of + np.int32(len(schedules.plan_ptr) - 1)])
    columns["list_first"] = _joined([schedules.list_first, _moved(more.list_first, len(schedules.peer_list))])
    for name, own in (("view", "view_size"), ("arrangement", "arrangement_ptr")):
        rows = len(getattr(schedules, own)) - (name == "arrangement")
        base = getattr(schedules, f"{name}_base")
        columns[f"{name}_base"] = np.concatenate([base, np.full(len(more.members), rows, np.int32)])
    columns["view_ptr"], columns["arrangement_ptr"] = schedules.view_ptr, schedules.arrangement_ptr
    return Schedules(**columns)


def _lane_columns(attributes: list[Attributes], schedule_chunks: Int32) -> dict[str, NDArray[Any]]:
    """Return the columns of the lanes; schedule_chunks: int32[LN], number of chunks of the lanes' schedules."""
    types = {"latency_ps": np.int64, "shares": np.float64}
    columns: dict[str, NDArray[Any]] = {
        f"lane_{name}": np.array([getattr(a, name) for a in attributes], types.get(name, np.int32))
        for name in Attributes._fields
        if name != "wire"
    }
    for i, side in enumerate(("num", "den")):
        columns[f"lane_wire_{side}"] = np.array([a.wire[i] for a in attributes], np.int32)
    columns["lane_shares"] = np.round(columns["lane_shares"] / SHARE_STEP) * SHARE_STEP
    columns["lane_plain"] = (
        (columns["lane_view"] < 0)
        & (columns["lane_parts"] == 1)
        & (columns["lane_chunks"] == schedule_chunks)
        & (columns["lane_wire_num"] == columns["lane_wire_den"])
    )
    return columns


def _moved(list_first: Int32, before: int) -> Int32:
    """Return the column with `before` entries of other lists before those of its own."""
    return np.where(list_first >= 0, list_first + before, NONE).astype(np.int32)


def _joined(columns: Sequence[Int32]) -> Int32:
    return np.concatenate([np.zeros(0, np.int32), *columns])
