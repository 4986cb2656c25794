"""Times of collectives and messages on an idle fabric, computed once per kind and process."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.simulation.closed_forms.advancing.folded_program import CollectiveKeys, MessageKeys
from nadi.simulation.closed_forms.advancing.run import MessageTimes
from nadi.simulation.closed_forms.collective import ClosedForm, busiest_member_ps, closed_form
from nadi.simulation.closed_forms.curves import RUN_EFFORT, Curve, CurveSource, Effort
from nadi.simulation.closed_forms.lone_message import message_times
from nadi.simulation.closed_forms.playing.played import PlayedCollectives
from nadi.simulation.closed_forms.position import GroupPositions
from pdes import Settings
from topologies import Graph
from workload import KINDS, CollectiveSettings, Program, collectives
from workload.collectives.schedules.packed import DONE_AT_ONCE, Schedules, ScheduleSet
from workload.collectives.schedules.sends import message_count, packet_count
from workload.shape import shape_of

Int64 = NDArray[np.int64]

# maximum number of messages of a played all-to-all with split sizes; a larger one takes the time of its busiest member
_MAX_PLAYED_UNEVEN_MESSAGES = 1 << 19
_NOTHING_PLAYED = 0  # maximum number of packets to play that leaves every collective to its formula
# Number of plans that one curve keeps. A curve also keeps the time of every size, so it needs few plans again; an NCCL
# plan for 8 members takes about 3 MB with the paths of its messages.
_MAX_KEPT_PLANS = 16


class ClosedFormCosts(NamedTuple):
    """Closed forms of K collectives."""

    time_ps: Int64  # int64[K], time of each collective in picoseconds
    # bool[K], True = the steps were played; False = a formula or other sizes give the time
    is_played: NDArray[np.bool_]


class _Plan(NamedTuple):
    """Schedule of a collective for one class of buffer sizes."""

    schedules: Schedules  # packed schedules that hold this plan only
    number: int  # number of the schedule in `schedules`
    played: PlayedCollectives  # times that were played with this plan
    by_formula: PlayedCollectives  # paths of the plan's messages, for formulas


class CollectiveCosts:
    """Closed forms on one fabric, kept per kind, algorithm, size and position of the group.

    Args:
        planned_on: Fabric whose rates the algorithms use to choose their plans; None = `graph`. It differs from `graph`
            if links are slow, because NCCL does not know that when it plans.
    """

    def __init__(
        self, graph: Graph, settings: Settings, effort: Effort = RUN_EFFORT, planned_on: Graph | None = None
    ) -> None:
        self._effort = effort
        self._planned_on = planned_on or graph
        self.standing = GroupPositions(graph)
        self._graph, self._settings = graph, settings
        self._curves: dict[tuple[str, str, bytes], Curve] = {}

    def of_collectives(
        self, program: Program, how: CollectiveSettings, keys: CollectiveKeys, kinds: NDArray[np.int8]
    ) -> ClosedFormCosts:
        """Return the times of K collectives of a program.

        `kinds`: int8[K], index in workload.KINDS of each collective.
        """
        members_of_group = np.split(program.group_member.astype(np.int64), program.group_ptr[1:-1])
        groups = [members_of_group[group] for group in keys.group.tolist()]
        forms = []
        positions = self.standing.keys(groups)
        columns = (keys.schedule.tolist(), keys.bytes.tolist(), kinds.tolist())
        for schedule, size_bytes, kind, members, position in zip(*columns, groups, positions, strict=True):
            if program.schedules.uneven[schedule]:
                forms.append(self._uneven(program, schedule, members, size_bytes))
                continue
            key = KINDS[kind], how.algorithm_of(KINDS[kind]), position
            if key not in self._curves:
                self._curves[key] = self.curve(program, *key[:2], members)
            forms.append(self._curves[key].at(size_bytes))
        times = np.array([round(form.time_ps) for form in forms], np.int64)
        return ClosedFormCosts(times, np.array([form.is_played for form in forms], np.bool_))

    def curve(self, program: Program, kind: str, algorithm: str, members: Int64) -> Curve:
        """Return the curve of times over buffer sizes of one kind of collective on one group.

        `program`: Any program of the fabric; the curve replaces its schedules.
        `members`: int64[n], NPUs of the group.
        """
        chosen = collectives.choose(kind, algorithm)
        shape = shape_of(self._planned_on, members, trees=chosen.trees) if chosen.needs_shape else None
        is_even = self._planned_on is self._graph  # formulas are exact only if all links of a kind have one rate
        plans: dict[object, _Plan] = {}

        def plan_of(size_bytes: int) -> _Plan:
            size_class = chosen.size_class(kind, shape, size_bytes) if shape else 0
            if size_class not in plans:
                if len(plans) >= _MAX_KEPT_PLANS:
                    del plans[next(iter(plans))]  # the oldest
                schedules = ScheduleSet()
                number = schedules.add(kind, algorithm, len(members), shape, size_bytes)
                by_formula = PlayedCollectives(_NOTHING_PLAYED)
                plans[size_class] = _Plan(schedules.pack(), number, PlayedCollectives(), by_formula)
            return plans[size_class]

        def evaluate(size_bytes: int, *, play: bool) -> ClosedForm:
            plan = plan_of(size_bytes)
            planned, played = program._replace(schedules=plan.schedules), plan.played if play else plan.by_formula
            return closed_form(
                self._graph, planned, self._settings, kind, algorithm, plan.number, members, size_bytes, played
            )

        def packets(size_bytes: int) -> float:
            plan = plan_of(size_bytes)
            if plan.number == DONE_AT_ONCE:
                return 0.0
            return packet_count(plan.schedules, plan.number, size_bytes, self._settings.mtu_bytes)

        def variant(size_bytes: int) -> str:
            return chosen.describe(kind, shape, size_bytes) if shape else ""

        source = CurveSource(variant, packets, partial(evaluate, play=True), partial(evaluate, play=False))
        return Curve(source, is_exact=chosen.is_exact and is_even, effort=self._effort)

    def _uneven(self, program: Program, schedule: int, members: Int64, size_bytes: int) -> ClosedForm:
        """Return the time of an all-to-all with split sizes; its schedule is valid for this program only."""
        graph, settings = self._graph, self._settings
        if message_count(program.schedules, schedule) > _MAX_PLAYED_UNEVEN_MESSAGES:
            busiest_ps = busiest_member_ps(graph, program, settings, schedule, members, size_bytes)
            return ClosedForm(busiest_ps, is_played=False)
        return closed_form(graph, program, settings, "all-to-all", "direct", schedule, members, size_bytes)

    def of_messages(self, keys: MessageKeys) -> MessageTimes:
        """Return the times of messages between two NPUs."""
        return message_times(self._graph, self._settings, keys)
