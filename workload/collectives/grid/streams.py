"""Plans over several dimensions: the splits of the buffer in parallel, each a chain of phases along lines.

Of n members in k dimensions, split s works on part s of the buffer. A reduce-scatter leaves each member the part of its
split that its digits choose, the first dimension as the highest digit; an all-gather is the reverse. In order that
member m then owns part m of the buffer, the lanes see its pieces in another order (Plans.arrangements). An all-to-all
sends the whole split in each dimension: of the n blocks, those with digit q go to the peer with digit q, and the lanes
see them as consecutive. Its data moves from the input through one scratch region after another to the output.

Tables do not grow with the number of members: lines and parts are views. Only if an algorithm of one dimension has a
plan per member (trees, stars), every member of the group gets a plan.
"""

import functools
from collections.abc import Sequence

import numpy as np

from nadi.inputs.arrays import Int32
from nadi.workload.collectives.grid.phases import WHOLE, GridPhase, Levels, chosen, phases
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import (
    AT_ONCE,
    IDLE,
    NONE,
    PLAIN,
    Attributes,
    Lane,
    LineView,
    Plans,
    Step,
    each_its_own,
    everyone_alike,
    lines,
)
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.errors import WorkloadError

LaneRows = list[tuple[Attributes, Sequence[Step]]]  # lanes of a phase, whose steps number lanes and regions within it
_MAX_STEPS = 1 << 21  # maximum number of steps of all members


def plans(levels: Levels, kind: str, orders_of_splits: Sequence[tuple[int, ...]], algorithms: str) -> Plans:
    """Return the steps of each member of a group.

    Raises WorkloadError: an unsuitable algorithm, or too many steps because an algorithm has a plan per member.

    Args:
        levels: The members as places of a grid.
        kind: The kind of collective: an all-reduce, one of its halves, an all-to-all, or WHOLE.
        orders_of_splits: The order of the dimensions in each split of the buffer (`phases.orders`).
        algorithms: The algorithms of the phases, one name or one per dimension, separated by "/" (`phases.chosen`).
    """
    return _Maker(levels, kind, orders_of_splits, algorithms).plans()


class _Maker:
    """Builds the plans; the arguments are those of `plans`."""

    def __init__(self, levels: Levels, kind: str, streams: Sequence[tuple[int, ...]], algorithms: str) -> None:
        """Lay out the streams of a collective of a kind; each is the order in which a split passes the dimensions."""
        self.levels, self.kind, self.algorithms = levels, kind, algorithms
        self.streams = [phases(kind, order) for order in streams]
        self.inner: dict[GridPhase, Plans] = {}  # plans of one line
        for phase in (phase for stream in self.streams for phase in stream):
            self.inner[phase] = chosen(levels, phase, algorithms).plan(phase.kind, levels.extent[phase.dimension])
        self.views: list[LineView] = []
        self._view_of: dict[object, int] = {}
        self._map_regions()
        self._lay_out(streams)

    def plans(self) -> Plans:
        """Return the plans: one for all members if that is so for each phase, else one per member."""
        launch_ps = max(plan.launch_ps for plan in self.inner.values())
        if all(plan.relative for plan in self.inner.values()):
            lanes = self._lanes([[self._along_lines(s, phase) for phase in own] for s, own in enumerate(self.streams)])
            return everyone_alike(
                self.levels.members, 1, lanes, views=self.views, regions=self.regions, launch_ps=launch_ps,
                arrangements=self.arrangements,
            )  # fmt: skip
        self._check_steps()
        lanes_of_members = (
            self._lanes([[self._of_member(m, s, phase) for phase in own] for s, own in enumerate(self.streams)], m)
            for m in range(self.levels.members)
        )
        return each_its_own(
            1, lanes_of_members, regions=self.regions, launch_ps=launch_ps, arrangements=self.arrangements
        )

    def _map_regions(self) -> None:
        """Map the regions of each phase to regions of the schedule, by the phase's number in the stream."""
        self.region_of: list[list[int]] = []
        self.regions = 2 if self.kind == "all-to-all" else 1
        count = len(self.streams[0])
        for number in range(count):
            max_regions = max(self.inner[stream[number]].regions for stream in self.streams)
            # Regions 0 and 1 of a phase are its input and output. The first phase reads the schedule's input (0), the
            # last one writes its output (1), and one scratch region lies between each two phases.
            ends = [0]
            if self.kind == "all-to-all":
                is_last = number == count - 1
                ends = [self.region_of[-1][1] if number else 0, 1 if is_last else self.regions]
                self.regions += not is_last
            more = max(0, max_regions - len(ends))
            self.region_of.append([*ends, *range(self.regions, self.regions + more)])
            self.regions += more

    def _lay_out(self, orders_of_splits: Sequence[tuple[int, ...]]) -> None:
        """Set the arrangements, and the row of each dimension (all-to-all) or of all dimensions (-1 = buffer order)."""
        splits, dimensions = len(orders_of_splits), range(len(self.levels.extent))
        self.arrangements: list[Int32] = []
        self.arrangement_of = [NONE] * len(dimensions)
        if self.kind == "all-to-all":
            for d in dimensions:
                first = (d, *(e for e in reversed(dimensions) if e != d))
                self.arrangement_of[d] = self._arrangement([first] * splits)
        elif self.kind not in {"all-reduce", WHOLE}:
            self.arrangement_of = [self._arrangement(orders_of_splits)] * len(dimensions)

    def _arrangement(self, orders_of_splits: Sequence[Sequence[int]]) -> int:
        """Return the row of an arrangement that orders the blocks of each split's members by their digits."""
        n, splits = self.levels.members, len(orders_of_splits)
        arrangement = np.empty(n * splits, np.int32)
        for s, order in enumerate(orders_of_splits):
            # Member m's piece of split s is piece m * splits + s of the buffer; the lane sees it at the place of m's
            # digits
            arrangement[s * n + self.levels.part(order)] = np.arange(n, dtype=np.int32) * splits + s
        if np.array_equal(arrangement, np.arange(n * splits)):
            return NONE
        for row, known in enumerate(self.arrangements):
            if np.array_equal(known, arrangement):
                return row
        self.arrangements.append(arrangement)
        return len(self.arrangements) - 1

    def _along_lines(self, split: int, phase: GridPhase) -> LaneRows:
        """Return the lanes of a phase of a split, by number, for all members, with views."""
        inner = self.inner[phase]
        rows: LaneRows = []
        for own, steps in zip(inner.attributes_of(0), inner.plans[0], strict=True):
            view, chunks = self._view(phase, own, inner), own.chunks or inner.chunks
            rows.append((self._named(own, split, phase, view=view, chunks=chunks, begins=_begins(steps)), steps))
        return rows

    def _view(self, phase: GridPhase, lane: Attributes, line_plans: Plans) -> int:
        """Return the row of a lane's view: the dimension's lines in the order of the lane's own view, and the parts."""
        # phase: phase of the lane; lane: those of the lane; line_plans: plans of the phase on one line.
        of_view = (phase.kind, lane.view) if lane.view >= 0 else NONE
        key = phase.dimension, phase.earlier, lane.part, lane.parts, of_view
        if key not in self._view_of:
            table, place = self.levels.lines(phase.dimension), self.levels.digit[phase.dimension]
            part = self.levels.part(phase.earlier) * lane.parts + lane.part
            parts = self.levels.parts(phase.earlier) * lane.parts
            if lane.view >= 0:
                view = line_plans.views[lane.view]
                # int[lines of the dimension, members of a line] in the order of the lane's own view
                table = table[:, view.member].reshape(-1, view.size)
                part, parts = part * view.parts + view.part[place], parts * view.parts
            self._view_of[key] = len(self.views)
            self.views.append(lines(table, part, parts))
        return self._view_of[key]

    def _named(self, attributes: Attributes, split: int, phase: GridPhase, **replacements: int | None) -> Attributes:
        """Return the attributes of a lane with its split and dimension, and with some replaced."""
        gate, arrangement = self.levels.named[phase.dimension], self.arrangement_of[phase.dimension]
        named = attributes._replace(part=split, parts=len(self.streams), gate=gate, arrangement=arrangement)
        return named._replace(**replacements)  # type: ignore[arg-type]

    def _of_member(self, member: int, split: int, phase: GridPhase) -> LaneRows:
        """Return the lanes of a phase of a split, by number, for one member, with absolute peers and chunks."""
        levels, d = self.levels, phase.dimension
        place = int(levels.digit[d, member])
        lanes, buffers_of_places, attributes = self._unpacked[phase.kind, d]
        parts_of_split = levels.parts(phase.earlier)
        part, parts = (
            split * parts_of_split + int(levels.part(phase.earlier)[member]),
            len(self.streams) * parts_of_split,
        )
        table, line_of = self._tables[d]
        line = [*table[line_of[member]].tolist(), NONE]  # peer -1 stays -1
        rows: LaneRows = []
        for own, buffer, steps in zip(attributes[place], buffers_of_places[place], lanes[place], strict=True):
            named = self._named(own, split, phase)._replace(
                view=NONE,
                part=part * buffer.parts + buffer.part,
                parts=parts * buffer.parts,
                chunks=buffer.chunks,
                begins=_begins(steps),
            )
            moved = [s._replace(send_peer=line[s.send_peer], recv_peer=line[s.recv_peer]) for s in steps]
            rows.append((named, moved))
        max_lanes = max(len(own) for own in lanes)
        return rows + [(self._named(PLAIN, split, phase), ())] * (max_lanes - len(rows))

    @functools.cached_property
    def _tables(self) -> list[tuple[Int32, Int32]]:
        """For each dimension its lines, and the line of each member."""
        tables = []
        for d in range(len(self.levels.extent)):
            table = self.levels.lines(d)
            line = np.empty(self.levels.members, np.int32)
            line[table] = np.arange(len(table), dtype=np.int32)[:, None]
            tables.append((table, line))
        return tables

    @functools.cached_property
    def _unpacked(self) -> dict[tuple[str, int], tuple[list, list, list]]:
        """Steps, buffers and attributes of each lane of each place in a line, by kind and dimension."""
        unpacked = {}
        for phase, inner in self.inner.items():
            if (phase.kind, phase.dimension) not in unpacked:
                packed = pack([inner])
                rows = [inner.attributes_of(0 if inner.relative else i) for i in range(inner.members)]
                unpacked[phase.kind, phase.dimension] = unpack(packed, 0), buffers(packed, 0), rows
        return unpacked

    def _check_steps(self) -> None:
        """Refuse plans per member that are too large for memory."""
        steps = 0
        for inner in (self.inner[phase] for stream in self.streams for phase in stream):
            steps_of_line = sum(len(lane) for plan in inner.plans for lane in plan)
            steps_of_line *= inner.members if inner.relative else 1
            steps += steps_of_line * (self.levels.members // inner.members)
        if steps > _MAX_STEPS:
            raise WorkloadError(
                f"algorithms {self.algorithms!r}: {steps} steps, because one has a plan for each member; "
                f"expected at most {_MAX_STEPS}"
            )

    def _lanes(self, rows_of_streams: list[list[LaneRows]], member: int | None = None) -> list[Lane]:
        """Return the lanes of all splits, whose phases follow each other; member: None = all members."""
        # rows_of_streams: lanes of each phase of each split.
        lanes: list[Lane] = []
        for s, rows_of_phases in enumerate(rows_of_streams):
            end = AT_ONCE
            for number, rows in enumerate(rows_of_phases):
                phase, regions = self.streams[s][number], self.region_of[number]
                mark = s * len(rows_of_phases) + number
                # An all-to-all begins with a member's own block in the output already; scratch regions do not have it
                if self.kind == "all-to-all" and regions[:2] != [0, 1]:
                    lanes.append(self._own_copy(s, phase, mark, member, regions, end))
                    end = (len(lanes) - 1, 0)
                end = _append_phase(lanes, rows, mark, regions, end, joined=member is not None or len(rows) > 1)
        return lanes

    def _own_copy(
        self,
        split: int,
        phase: GridPhase,
        phase_number: int,
        member: int | None,
        regions: Sequence[int],
        after: tuple[int, int],
    ) -> Lane:
        """Return a lane that copies, in a phase of an all-to-all, a member's own blocks from one region to the next."""
        # after: (lane, step) that must be done before; member: None = all members.
        size = self.levels.extent[phase.dimension]
        place = 0 if member is None else int(self.levels.digit[phase.dimension, member])
        view = self._view(phase, PLAIN, self.inner[phase]) if member is None else NONE
        own = self._named(PLAIN, split, phase, chunks=size, begins=True, view=view)._replace(phase=phase_number)
        return Lane(**own._asdict()).copy(regions[0] * size + place, to=regions[1] * size + place, after=after)


def _append_phase(
    lanes: list[Lane],
    rows: LaneRows,
    number_of_phase: int,
    regions: Sequence[int],
    after: tuple[int, int],
    *,
    joined: bool,
) -> tuple[int, int]:
    """Add the lanes of a phase, which begins after the step `after`, and return the (lane, step) that completes it."""
    # lanes: those of earlier phases; rows: lanes of the phase; regions: region of the schedule for each region of the
    # phase; joined: whether one more lane waits for all lanes of the phase.
    base = len(lanes)
    for attributes, steps in rows:
        lane = Lane(**attributes._replace(phase=number_of_phase)._asdict())
        chunks = attributes.chunks or 1
        for number, step in enumerate(steps):
            moved = step.moved(base)
            if not number and step.dep_lane == NONE:
                moved = moved.waiting(after)
            send, receive = (
                NONE if chunk == NONE else regions[chunk // chunks] * chunks + chunk % chunks
                for chunk in (step.send_chunk, step.recv_chunk)
            )
            lane.add(moved._replace(send_chunk=send, recv_chunk=receive))
        lanes.append(lane)
    ends = [(base + i, len(steps) - 1) for i, (_, steps) in enumerate(rows) if steps]
    if not joined:
        return ends[0]
    join = Lane(phase=number_of_phase, gate=rows[0][0].gate)
    for end in ends or [after]:
        join.add(IDLE.waiting(end))
    lanes.append(join)
    return len(lanes) - 1, len(join.steps) - 1


def _begins(steps: Sequence[Step]) -> bool:
    """Return whether a lane of a phase begins with it; each phase is a collective of its own."""
    return not steps or steps[0].dep_lane == NONE


def extent(levels: Levels, kind: str, orders_of_splits: Sequence[tuple[int, ...]], algorithms: str) -> PlanExtent:
    """Return a bound of the steps and lanes of `grid.plans`, with a lane that waits for the others of each phase.

    Args:
        levels: The members as places of a grid.
        kind: The kind of collective: an all-reduce, one of its halves, an all-to-all, or WHOLE.
        orders_of_splits: The order of the dimensions in each split of the buffer (`phases.orders`).
        algorithms: The algorithms of the phases, one name or one per dimension, separated by "/" (`phases.chosen`).
    """
    members = levels.members
    of_stream: dict[tuple[int, ...], list[tuple[int, PlanExtent]]] = {}
    for order in dict.fromkeys(orders_of_splits):
        of_stream[order] = []
        for phase in phases(kind, order):
            size = levels.extent[phase.dimension]
            of_stream[order].append((size, chosen(levels, phase, algorithms).extent(phase.kind, size)))
    is_alike = all(of_phase.plans == 1 for own in of_stream.values() for _, of_phase in own)
    steps = lanes = 0
    for order in orders_of_splits:
        for size, of_phase in of_stream[order]:
            times = 1 if is_alike else members // size * (size if of_phase.plans == 1 else 1)
            plans = 1 if is_alike else members
            steps += times * (of_phase.steps + of_phase.lanes) + plans
            lanes += times * of_phase.lanes + 2 * plans
    return PlanExtent(steps, lanes, 1 if is_alike else members)
