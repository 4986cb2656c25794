"""Schedules: collective algorithms as arrays, as docs/reference/interfaces.md describes them."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from workload import collectives
from workload.collectives.plans.plan import (
    MAX_CONNECTIONS,
    MAX_SHARES,
    NONE,
    SHARE_STEP,
    Attributes,
    LaneSteps,
    Plan,
    Plans,
    Step,
)
from workload.collectives.uneven.all_to_all_v import NAME as UNEVEN
from workload.collectives.uneven.all_to_all_v import all_to_all_v, units
from workload.errors import WorkloadError
from workload.pointers import pointers
from workload.shape import Shape

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

DONE_AT_ONCE = -1
SharesOf = dict[int, tuple[float, str]]
"""By connection: into how many shares the line rate is cut, and for what."""
Float64 = NDArray[np.float64]
_PIECE_STEPS = 1 << 19
"""How many are checked at a time."""
_PAUSE = Step(NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, reduce=False)


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
        steps: int32[steps, 10], a row for each step, whose columns have names of their own (below).
        launch_ps: int64[S], from when a collective is ready until its first step.
        regions: int32[S], buffers that chunk numbers run over, one after another.
        view_base: int32[S], where the views of a schedule begin among all V.
        lane_plain: bool[LN], the lane has no view, works on the whole buffer in the schedule's chunks, and a byte of
            data is a byte on the wire.
        lane_view: int32[LN], view of the schedule by which peers and relative chunks are counted, -1 = the group.
        lane_part: int32[LN], which of lane_parts equal parts of the buffer.
        lane_parts: int32[LN].
        lane_chunks: int32[LN], into how many the lane's part is cut.
        lane_latency_ps: int64[LN], from when a step is ready until its send is posted.
        lane_wire_num: int32[LN], payload bytes per lane_wire_den bytes of data, rounded up for each message.
        lane_wire_den: int32[LN].
        lane_phase: int32[LN], lanes of a member with the same number are one phase; -1 = none.
        lane_gate: int32[LN], dimension of which the phase needs a token; -1 = none.
        view_size: int32[V], members of a line.
        view_parts: int32[V], into how many parts a lane's part is cut once more.
        view_ptr: int64[V+1], the n members of a view in the next three columns.
        view_member: int32[], the lines one after another.
        view_at: int32[], by member: where in view_member it stands; its place in its line is view_at % view_size.
        view_part: int32[], by member.
        lane_arrangement: int32[LN], of the schedule, in which the lane sees the pieces of a region, -1 = as they are.
        lane_blocking: int32[LN], 1 = a step ends no sooner than what it sends has left.
        aggregators: int32[S], so many of the members, the last, are in switches.
        lane_connection: int32[LN], by which of the member's connections to a peer the lane sends.
        lane_shares: float64[LN], the connection is driven at 1 / lane_shares of its port's line rate; a multiple of
            workload.collectives.plans.plan.SHARE_STEP.
        lane_begins: int32[LN], 1 = the delay of endpoints passes before the lane's first send.
        arrangement_base: int32[S], where the arrangements of a schedule begin among all L.
        arrangement_ptr: int64[L+1], the pieces of an arrangement.
        arrangement_piece: int32[], which piece of the buffer is where the lane sees piece 0, 1, ...
        uneven: bool[S], an all-to-all with other bytes for each pair: a closed form of its kind is not its own.
    """

    members: Int32
    chunks: Int32
    relative: NDArray[np.bool_]
    plan_of_ptr: Int64
    plan_of: Int32
    plan_ptr: Int32
    lane_ptr: Int32
    steps: Int32
    launch_ps: Int64
    regions: Int32
    view_base: Int32
    lane_plain: NDArray[np.bool_]
    lane_view: Int32
    lane_part: Int32
    lane_parts: Int32
    lane_chunks: Int32
    lane_latency_ps: Int64
    lane_wire_num: Int32
    lane_wire_den: Int32
    lane_phase: Int32
    lane_gate: Int32
    view_size: Int32
    view_parts: Int32
    view_ptr: Int64
    view_member: Int32
    view_at: Int32
    view_part: Int32
    lane_arrangement: Int32
    lane_blocking: Int32
    aggregators: Int32
    lane_connection: Int32
    lane_shares: Float64
    lane_begins: Int32
    arrangement_base: Int32
    arrangement_ptr: Int64
    arrangement_piece: Int32
    uneven: NDArray[np.bool_]

    @property
    def dep_lane(self) -> Int32:
        """int32[steps]: lane of the same member that must have done more than dep_step steps, -1 = none."""
        return self.steps[:, 0]

    @property
    def dep_step(self) -> Int32:
        """int32[steps]."""
        return self.steps[:, 1]

    @property
    def send_peer(self) -> Int32:
        """int32[steps]: -1 = no send."""
        return self.steps[:, 2]

    @property
    def send_lane(self) -> Int32:
        """int32[steps]: lane of the receiver."""
        return self.steps[:, 3]

    @property
    def send_chunk(self) -> Int32:
        """int32[steps]."""
        return self.steps[:, 4]

    @property
    def send_count(self) -> Int32:
        """int32[steps]."""
        return self.steps[:, 5]

    @property
    def recv_peer(self) -> Int32:
        """int32[steps]: -1 = no receive.

        In a lane with several senders messages are taken as they come, and those of a sender go to the chunks of the
        steps that name it.
        """
        return self.steps[:, 6]

    @property
    def recv_chunk(self) -> Int32:
        """int32[steps]."""
        return self.steps[:, 7]

    @property
    def recv_count(self) -> Int32:
        """int32[steps]."""
        return self.steps[:, 8]

    @property
    def reduce(self) -> NDArray[np.bool_]:
        """bool[steps]: received data is added to the chunk, else it replaces it."""
        return self.steps[:, 9] != 0


class ScheduleSet:
    """Collects the schedules that a program needs, each once: by kind, algorithm with its parameters, and members.

    For algorithms that need the shape of the group on the fabric, that and the buffer's size stand in for the members.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        """An empty set; most_bytes: what all its schedules may take, None = whatever they do."""
        self._most_bytes, self._bytes = most_bytes, 0
        self._index: dict[object, int] = {}
        self._plans: list[Plans] = []
        self._shares: dict[object, SharesOf] = {}

    def add(self, kind: str, algorithm: str, members: int, shape: Shape | None = None, size_bytes: int = 0) -> int:
        """Number of the schedule, DONE_AT_ONCE (-1) for a group of one.

        Args:
            kind: see workload.kinds.KINDS.
            algorithm: name, or name and parameters as `ring:channels=2`.
            members: n.
            shape: of the group; only algorithms that need it look at it.
            size_bytes: the whole buffer; likewise.

        Raises:
            WorkloadError: unknown kind, algorithm or parameter, an algorithm that does not do this kind, no shape
                for one that needs it, or more memory than the set may take.
        """
        chosen = collectives.choose(kind, algorithm)
        key: object = (kind, chosen, members)
        if chosen.needs_shape and members > 1:
            shape = chosen.on(kind, shape)
            key = (kind, chosen, shape, chosen.size_class(kind, shape, size_bytes))
        if key not in self._index:
            if chosen.needs_shape and members == 1:
                self._index[key] = DONE_AT_ONCE
                return DONE_AT_ONCE
            self._afford(chosen, kind, members, shape, size_bytes)
            made = chosen.plan(kind, members, shape, size_bytes)  # also for one member: the arguments are checked
            if members == 1:
                self._index[key] = DONE_AT_ONCE
                return DONE_AT_ONCE
            what = f"algorithm {algorithm} for {kind} of {members}"
            shares = self._shares.setdefault(shape if chosen.needs_shape else members, {})
            self._plans.append(_checked(made, what, kind, shares))
            self._index[key] = len(self._plans) - 1
        return self._index[key]

    def _afford(
        self, chosen: collectives.AlgorithmChoice, kind: str, members: int, shape: Shape | None, size: int
    ) -> None:
        """Count what a schedule will take, before it is made."""
        if self._most_bytes is None:
            return
        found = chosen.extent(kind, members, shape, size)
        self._bytes += found.memory_bytes
        if self._bytes > self._most_bytes:
            raise WorkloadError(
                f"algorithm {chosen.name} for {kind} of {members:,} members: its {found.steps:,} steps would take "
                f"about {found.memory_bytes / 1e9:,.1f} GB of memory, {self._most_bytes / 1e9:,.1f} GB are "
                "free; expected another algorithm, fewer members, or --force"
            )

    def add_uneven(self, matrix_bytes: Int64, algorithm: str, shape: Shape | None) -> int:
        """Number of the schedule of an all-to-all with these bytes; matrices that are multiples of another share it.

        Args:
            matrix_bytes: int64[n, n], from member (row) to member (column).
            algorithm: one of workload.collectives.uneven_algorithms, with parameters if it has any.
            shape: of the group, None = not known; only algorithms that need it look at it. Those that go by the size
                share no schedule between multiples.

        Raises:
            WorkloadError: as workload.collectives.choose_uneven and
                workload.collectives.uneven.all_to_all_v.all_to_all_v.
        """
        if len(matrix_bytes) == 1:
            return DONE_AT_ONCE
        chosen, cut = collectives.choose_uneven(algorithm), units(matrix_bytes)
        stands = shape if chosen else shape and shape.host
        unit_bytes = cut.unit_bytes if chosen else 0
        key = (algorithm, stands, unit_bytes, hashlib.blake2b(cut.sent.tobytes(), digest_size=16).digest())
        if key not in self._index:
            made = chosen.plan_uneven(cut, shape) if chosen else all_to_all_v(cut.sent, algorithm, shape and shape.host)
            self._plans.append(_checked(made, f"algorithm {algorithm} for {UNEVEN} of {len(cut.sent)}", "all-to-all"))
            self._index[key] = len(self._plans) - 1
        return self._index[key]

    def pieces(self, schedule: int) -> int:
        """The most that a schedule multiplies the buffer with: its finest chunks, or bytes on the wire."""
        return _pieces(self._plans[schedule])

    def aggregators(self, schedule: int) -> int:
        """How many of a schedule's members are in switches."""
        return self._plans[schedule].aggregators

    def chunks(self, schedule: int) -> int:
        """Into how many chunks a schedule cuts the buffer."""
        return self._plans[schedule].chunks

    def pack(self) -> Schedules:
        """All schedules so far as arrays."""
        return pack(self._plans)


def pack(schedules: list[Plans]) -> Schedules:
    """Schedules as arrays; equal plans of a schedule are held once, lanes without steps get one that does nothing."""
    plans: list[Plan] = []
    attributes: list[Attributes] = []
    plan_of: list[int] = []
    for schedule in schedules:
        known: dict[tuple[Plan, tuple[Attributes, ...]], int] = {}
        for i, plan in enumerate(schedule.plans):
            own = schedule.attributes_of(i)
            if (plan, own) not in known:
                known[plan, own] = len(plans)
                plans.append(plan)
                attributes += [a._replace(chunks=a.chunks or schedule.chunks) for a in own]
            plan_of.append(known[plan, own])
    lanes = [lane or (_PAUSE,) for lane in chain.from_iterable(plans)]
    views = [view for schedule in schedules for view in schedule.views]
    arrangements = [arrangement for schedule in schedules for arrangement in schedule.arrangements]
    chunks_of_lane = _chunks_of_lanes(schedules, plan_of, plans)
    return Schedules(
        members=np.array([s.members for s in schedules], np.int32),
        chunks=np.array([s.chunks for s in schedules], np.int32),
        relative=np.array([s.relative for s in schedules], np.bool_),
        plan_of_ptr=pointers([len(s.plans) for s in schedules]),
        plan_of=np.array(plan_of, np.int32),
        plan_ptr=pointers([len(p) for p in plans]).astype(np.int32),
        lane_ptr=pointers([len(lane) for lane in lanes]).astype(np.int32),
        steps=_table(lanes),
        launch_ps=np.array([s.launch_ps for s in schedules], np.int64),
        regions=np.array([s.regions for s in schedules], np.int32),
        view_base=pointers([len(s.views) for s in schedules])[:-1].astype(np.int32),
        **_lane_columns(attributes, chunks_of_lane),
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
    )


def _chunks_of_lanes(schedules: list[Plans], plan_of: list[int], plans: list[Plan]) -> Int64:
    """int64[LN]: into how many chunks the schedule of each lane cuts the buffer; its plans stand side by side."""
    chunks = np.zeros(len(plans), np.int64)
    chunks[plan_of] = np.repeat(
        np.array([s.chunks for s in schedules], np.int64), np.array([len(s.plans) for s in schedules], np.int64)
    )
    return np.repeat(chunks, np.array([len(plan) for plan in plans], np.int64))


def _lane_columns(attributes: list[Attributes], chunks: Int64) -> dict[str, NDArray[Any]]:
    """Columns of the lanes; chunks: int64[LN], of their schedules."""
    rows = [
        (a.view, a.part, a.parts, a.chunks or 0, *a.wire, a.phase, a.gate, a.arrangement, a.blocking, a.begins)
        for a in attributes
    ]
    names = (
        "view",
        "part",
        "parts",
        "chunks",
        "wire_num",
        "wire_den",
        "phase",
        "gate",
        "arrangement",
        "blocking",
        "begins",
    )
    table = np.array(rows, np.int32).reshape(-1, len(names))
    columns: dict[str, NDArray[Any]] = {
        f"lane_{name}": np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)
    }
    columns["lane_latency_ps"] = np.array([a.latency_ps for a in attributes], np.int64)
    columns["lane_connection"] = np.array([a.connection for a in attributes], np.int32)
    columns["lane_shares"] = np.round(np.array([a.shares for a in attributes], np.float64) / SHARE_STEP) * SHARE_STEP
    columns["lane_plain"] = (
        (columns["lane_view"] < 0)
        & (columns["lane_parts"] == 1)
        & (columns["lane_chunks"] == chunks)
        & (columns["lane_wire_num"] == columns["lane_wire_den"])
    )
    return columns


def _table(lanes: Sequence[Sequence[Step]]) -> Int32:
    """int32[steps, 10]: the steps of all lanes; where they stand one behind the other, the same memory."""
    if lanes and all(isinstance(lane, LaneSteps) for lane in lanes):
        own = cast("Sequence[LaneSteps]", lanes)
        if all(lane.follows(before) for before, lane in pairwise(own)):
            return np.frombuffer(own[0].through(own[-1]), np.int32).reshape(-1, len(Step._fields))
    table = np.empty((sum(map(len, lanes)), len(Step._fields)), np.int32)
    flat, at = table.reshape(-1), 0
    for lane in lanes:
        words = _words(lane)
        flat[at : at + len(words)] = words
        at += len(words)
    return table


def _words(lane: Sequence[Step]) -> memoryview:
    if isinstance(lane, LaneSteps):
        return lane.words()
    return np.fromiter(chain.from_iterable(lane), np.int32).data


def _joined(columns: Sequence[Int32]) -> Int32:
    return np.concatenate([np.zeros(0, np.int32), *columns])


def _pieces(plans: Plans) -> int:
    """See ScheduleSet.pieces."""
    found = plans.chunks
    for attributes in set(plans.attributes):
        for a in attributes:
            parts = a.parts * (plans.views[a.view].parts if a.view >= 0 else 1)
            found = max(found, parts * (a.chunks or plans.chunks), *a.wire)
    return found


def _checked(plans: Plans, what: str, kind: str = "", shares: SharesOf | None = None) -> Plans:
    """The plans, if their peers, lanes and chunks exist. The oracle checks that they do what they promise."""
    if len(plans.plans) != (1 if plans.relative else plans.members) or plans.chunks < 1:
        raise WorkloadError(
            f"{what}: {len(plans.plans)} plans and {plans.chunks} chunks, expected one plan or one each"
        )
    if plans.regions < (2 if kind == "all-to-all" else 1) or plans.launch_ps < 0:
        least = 2 if kind == "all-to-all" else 1
        raise WorkloadError(
            f"{what}: {plans.regions} regions, launch after {plans.launch_ps} ps; expected {least} and 0 or more"
        )
    for view in plans.views:
        if len(view.member) != plans.members:
            raise WorkloadError(f"{what}: a view of {len(view.member)} members, expected all {plans.members}")
    for arrangement in plans.arrangements:
        if not np.array_equal(np.sort(arrangement), np.arange(len(arrangement))):
            raise WorkloadError(f"{what}: an arrangement of {len(arrangement)} pieces, expected each once")
    attributes = [plans.attributes_of(i) for i in range(len(plans.plans))]
    if [len(own) for own in attributes] != [len(plan) for plan in plans.plans]:
        raise WorkloadError(f"{what}: lanes and attributes differ in number, expected one each")
    for one in dict.fromkeys(chain.from_iterable(attributes)):
        _check_attributes(plans, one, what)
    _check_shares(plans, attributes, what, {} if shares is None else shares)
    for some in _in_pieces(plans.plans):
        _check_steps(plans, some, attributes[some.start : some.stop], what)
    return plans


def _in_pieces(plans: Sequence[Plan]) -> Iterator[range]:
    """Rows of plans, in pieces of some PIECE_STEPS steps."""
    first = steps = 0
    for i, plan in enumerate(plans):
        steps += sum(len(lane) for lane in plan)
        if steps >= _PIECE_STEPS or i == len(plans) - 1:
            yield range(first, i + 1)
            first, steps = i + 1, 0


def _check_attributes(plans: Plans, lane: Attributes, what: str) -> None:
    if not -1 <= lane.view < len(plans.views) or (lane.view >= 0 and not plans.relative):
        raise WorkloadError(
            f"{what}: a lane with view {lane.view}, expected one of {len(plans.views)} in relative plans"
        )
    if not -1 <= lane.arrangement < len(plans.arrangements):
        raise WorkloadError(
            f"{what}: a lane with arrangement {lane.arrangement}, expected one of {len(plans.arrangements)}"
        )
    if not 0 <= lane.part < lane.parts or (lane.chunks is not None and lane.chunks < 1):
        raise WorkloadError(
            f"{what}: a lane with part {lane.part} of {lane.parts} in {lane.chunks} chunks, expected one"
        )
    if min(lane.wire) < 1 or lane.latency_ps < 0 or min(lane.phase, lane.gate) < -1:
        raise WorkloadError(f"{what}: a lane with {lane}, expected a wire factor above 0 and no negative times")
    if not 0 <= lane.connection < MAX_CONNECTIONS:
        raise WorkloadError(
            f"{what}: a lane with connection {lane.connection}, expected one of 0 .. {MAX_CONNECTIONS - 1}"
        )
    if not 1 <= lane.shares <= MAX_SHARES:
        raise WorkloadError(f"{what}: a lane with {lane.shares} shares of a line rate, expected 1 .. {MAX_SHARES}")
    chunks, size = lane.chunks or plans.chunks, _line(plans, lane)
    if plans.relative and chunks > 1 and chunks % size:
        members = "the members" if size == plans.members else f"the {size} members of a line"
        raise WorkloadError(f"{what}: {chunks} chunks, expected 1 or a multiple of {members}")


def _line(plans: Plans, lane: Attributes) -> int:
    """How many members a lane can have as peers, with the own."""
    return plans.views[lane.view].size if lane.view >= 0 else plans.members


def _check_shares(plans: Plans, attributes: list[tuple[Attributes, ...]], what: str, shares: SharesOf) -> None:
    """A connection is driven at one rate; attributes: of the lanes of each plan; shares: of groups like this so far."""
    for lane, one in zip(chain.from_iterable(plans.plans), chain.from_iterable(attributes), strict=True):
        if lane.sends() if isinstance(lane, LaneSteps) else any(step.send_peer >= 0 for step in lane):
            known, other = shares.setdefault(one.connection, (one.shares, what))
            if known != one.shares:
                also = "" if other == what else f" in {other}"
                raise WorkloadError(
                    f"{what}: connection {one.connection} at 1/{one.shares:g} of the line rate, "
                    f"and at 1/{known:g}{also}, expected one rate"
                )


def _check_steps(plans: Plans, some: range, attributes_of: list[tuple[Attributes, ...]], what: str) -> None:
    lanes = [lane for i in some for lane in plans.plans[i]]
    attributes = list(chain.from_iterable(attributes_of))
    table = _table(lanes)
    steps = {name: table[:, i] for i, name in enumerate(Step._fields)}
    lengths = np.array([len(lane) for lane in lanes], np.int64)
    chunks = np.repeat(np.array([a.chunks or plans.chunks for a in attributes], np.int64), lengths)
    size = np.repeat(np.array([_line(plans, a) for a in attributes], np.int64), lengths)
    copies = (steps["send_peer"] < 0) & (steps["recv_peer"] < 0) & (steps["send_chunk"] >= 0)
    for side in ("send", "recv"):
        peer, chunk, count = (steps[f"{side}_{field}"] for field in ("peer", "chunk", "count"))
        used = (peer >= 0) | copies
        if np.any(peer >= size) or (plans.relative and np.any(peer == 0)):
            raise WorkloadError(f"{what}: {side} peer {peer.max()}, expected another of the members")
        wrong = used & (
            (chunk < 0) | (count < 1) | (chunk % chunks + count > chunks) | (chunk >= plans.regions * chunks)
        )
        if np.any(wrong):
            last = plans.regions * int(chunks[np.argmax(wrong)]) - 1
            raise WorkloadError(f"{what}: {side} of a chunk that is not there, expected 0 .. {last}")
    if np.any(copies & (steps["send_count"] != steps["recv_count"])):
        raise WorkloadError(f"{what}: a copy of chunks to another number of them, expected equal numbers")
    connection = np.repeat(np.array([a.connection for a in attributes], np.int64), lengths)
    if connection.any():
        view = np.repeat(np.array([a.view for a in attributes], np.int64), lengths)
        plan = np.repeat(np.arange(len(some)), [sum(len(lane) for lane in plans.plans[i]) for i in some])
        _check_connections(steps, plan * (len(plans.views) + 1) + view + 1, connection, what)


def _check_connections(steps: dict[str, NDArray[Any]], sender: Int64, connection: Int64, what: str) -> None:
    """What a lane gets from a peer comes over one connection, as only that keeps it in order.

    Args:
        steps: columns of all steps.
        sender: int64[steps], plan and view by which peers are counted.
        connection: int64[steps].
        what: for the message.
    """
    sends = steps["send_peer"] >= 0
    peer, lane = steps["send_peer"][sends].astype(np.int64), steps["send_lane"][sends].astype(np.int64)
    to = (sender[sends] * (peer.max(initial=0) + 1) + peer) * (lane.max(initial=0) + 1) + lane
    if len(np.unique(to)) < len(np.unique(to * MAX_CONNECTIONS + connection[sends])):
        raise WorkloadError(f"{what}: a lane that gets a peer's messages over several connections, expected one")
