"""Times of collectives and messages on an idle fabric, computed once per kind and process."""

from bisect import bisect, insort
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.pdes import Settings
from nadi.pdes.wire import window_packets
from nadi.simulation.closed_forms.advancing.equivalence import CollectiveKeys, MessageKeys
from nadi.simulation.closed_forms.advancing.run import MessageTimes
from nadi.simulation.closed_forms.collective import ClosedForm, busiest_member_ps, closed_form
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.simulation.closed_forms.lone_message import message_times
from nadi.simulation.closed_forms.position import GroupPositions, used_links
from nadi.topologies import Graph
from nadi.workload import KINDS, CollectiveSettings, Program, collective_program, collectives
from nadi.workload.collectives.schedules import (
    DONE_AT_ONCE,
    KeptResults,
    Schedules,
    ScheduleSet,
    message_count,
    packet_count,
)
from nadi.workload.node_kinds import MEMORY_LANE
from nadi.workload.shape import shape_of, stripes_of

_MAX_INTERPOLATION_ERROR = 0.005  # relative difference at which neighbouring lines no longer confirm an interpolation
_MAX_EXTRAPOLATION_ERROR = 0.01  # relative error of the prediction of the third size at which extrapolation is rejected
# minimum rise of an extrapolation per byte, in rises of the formula: below it, the sizes simulated are so small that
# latencies hide their bytes
_MIN_RISE = 0.5
_MAX_STEP = 2  # maximum ratio of neighbouring sizes between which a curve interpolates
_POINTS = 3  # number of sizes that an extrapolation simulates
# maximum number of messages of a simulated all-to-all with split sizes; a larger one takes the time of its busiest
# member
_MAX_SIMULATED_UNEVEN_MESSAGES = 1 << 19
_NOTHING_SIMULATED = 0  # maximum number of packets to simulate that leaves every collective to its formula
_MAX_FOLLOWED = 64  # maximum number of members of a group of which all paths are followed; that takes 0.1 s
# Number of plans that one curve keeps. A curve also keeps the time of every size, so it needs few plans again; an NCCL
# plan for 8 members takes about 3 MB with the paths of its messages.
_MAX_KEPT_PLANS = 16


class Effort(NamedTuple):
    """Limits on the packets that a curve simulates."""

    # maximum number of packets of a size that is always simulated; a million packets take about a second
    max_quick_packets: int
    max_packets: int  # maximum number of packets of a size that is simulated if smaller sizes do not predict its time
    max_halvings: int  # maximum number of halvings from a size to the largest size that predicts its time
    # True = the curve interpolates between simulated sizes; False = the time of a size does not depend on sizes
    # requested before, which a planner that runs in several processes needs
    interpolates: bool
    # maximum number of messages that are flows, about 2 us each, where neither packets nor smaller sizes give the time
    max_flows: int = 1 << 14


RUN_EFFORT = Effort(1 << 20, 1 << 22, 3, interpolates=True, max_flows=1 << 18)  # effort of a simulation run
PLANNER_EFFORT = Effort(1 << 19, 1 << 20, 6, interpolates=False)
# effort of the rows of `nadi collective`, of which each plays its closed form anyway (`isolated`)
SWEEP_EFFORT = Effort(1 << 26, 1 << 26, 3, interpolates=False, max_flows=1 << 22)
# effort of changes to a fabric (nadi.insight.explanation), which need only the relative change of a time
WHAT_IF_EFFORT = Effort(1 << 18, 1 << 20, 4, interpolates=True)


class CurveSource(NamedTuple):
    """Functions of the buffer size in bytes from which a curve computes times."""

    # returns the variant of the algorithm for a size, "" = the algorithm has one variant only
    variant: Callable[[int], str]
    packets: Callable[[int], float]  # returns the approximate number of packets of a size
    simulate: Callable[[int], ClosedForm]  # returns the time of a size from simulating its steps
    formula: Callable[[int], ClosedForm]  # returns the time of a size from the algorithm's formula
    estimate: Callable[[int], ClosedForm]  # returns the time of a size from flows, or from the formula if they are many
    has_formula: bool  # False = the algorithm has none, and `formula` simulates


class Curve:
    """Times of one collective of one group by its size: simulated if that is quick, else derived from simulated sizes.

    A curve simulates a size that needs few packets. It interpolates a size between two simulated sizes that lie at most
    a factor of two apart and use the same variant of the algorithm, if the lines through the next simulated sizes on
    either side agree within half a percent. It extrapolates a large size: three smaller sizes, each half of the next,
    must take little time and use the same variant, the lower two must predict the third within one percent, the third
    must be at most `Effort.max_halvings` halvings below the large size, and their line must rise at least half as fast
    as the formula. Otherwise it simulates the size. If that is very large, or the algorithm's formula `is_exact` where
    all paths are alike, messages are flows, and the formula gives the time of too many of them.
    """

    def __init__(self, source: CurveSource, *, is_exact: bool, effort: Effort = RUN_EFFORT) -> None:
        """Start without known times; is_exact: the formula is exact if paths are alike; effort: limits of packets."""
        self._source, self._is_exact, self._effort = source, is_exact, effort
        self._known: dict[int, ClosedForm] = {}
        self._played: dict[str, list[tuple[int, float]]] = {}

    def at(self, size_bytes: int) -> ClosedForm:
        """Return the time of the collective with a buffer of `size_bytes`."""
        if size_bytes not in self._known:
            interpolated = self._interpolated(size_bytes) if self._effort.interpolates else None
            self._known[size_bytes] = interpolated or self._new(size_bytes)
        return self._known[size_bytes]

    def _new(self, size_bytes: int) -> ClosedForm:
        """Return the time of a buffer of `size_bytes` that does not depend on other requested sizes."""
        packets = self._source.packets(size_bytes)
        if packets <= self._effort.max_quick_packets:
            return self.simulate(size_bytes)
        if self._is_exact:
            return self._source.estimate(size_bytes)
        fallback = self.simulate if packets <= self._effort.max_packets else self._source.estimate
        return self._extrapolated(size_bytes) or fallback(size_bytes)

    def simulate(self, size_bytes: int) -> ClosedForm:
        """Play a buffer of `size_bytes` and return its time, whatever is known of other sizes."""
        form = self._known[size_bytes] = self._source.simulate(size_bytes)
        insort(self._played.setdefault(self._source.variant(size_bytes), []), (size_bytes, form.time_ps))
        return form

    def _interpolated(self, size_bytes: int) -> ClosedForm | None:
        """Return a time on the line between two simulated sizes; None if the neighbouring lines do not confirm it."""
        points = self._played.get(self._source.variant(size_bytes), [])
        # points[after - 1] and points[after] are the simulated sizes next below and above
        after = bisect(points, (size_bytes, 0.0))
        # the line between two points is believed if the lines on both sides agree
        if not 2 <= after <= len(points) - 2:
            return None
        four = points[after - 2 : after + 2]
        # points too far apart may hide a step between them
        if any(b[0] > _MAX_STEP * a[0] for a, b in pairwise(four)):
            return None
        below, between, above = (_line(a, b, size_bytes) for a, b in pairwise(four))
        if max(abs(below - between), abs(above - between)) > _MAX_INTERPOLATION_ERROR * between:
            return None
        return ClosedForm(between, is_simulated=False)

    def _extrapolated(self, size_bytes: int) -> ClosedForm | None:
        """Return the time of a buffer on the line through three smaller ones; None if they lie on no line."""
        most, quick = self._effort.max_halvings, self._effort.max_quick_packets
        if self._source.packets(size_bytes) > quick << most:  # half of the bytes are no less than half of the packets
            return None
        halvings = 1
        while halvings < most and self._source.packets(size_bytes >> halvings) > quick:
            halvings += 1
        if self._source.packets(size_bytes >> halvings) > quick:
            return None
        sizes = [size_bytes >> (halvings + more) for more in reversed(range(_POINTS))]
        variant = self._source.variant(size_bytes)
        if any(self._source.variant(size) != variant for size in sizes):
            return None
        for size in sizes:
            if size not in self._known or not self._known[size].is_simulated:
                self.simulate(size)
        low, middle, high = ((size, self._known[size].time_ps) for size in sizes)
        if abs(_line(low, middle, high[0]) - high[1]) > _MAX_EXTRAPOLATION_ERROR * high[1]:
            return None
        extrapolated_ps = _line(middle, high, size_bytes)
        if self._source.has_formula:
            rise_ps = self._source.formula(size_bytes).time_ps - self._source.formula(size_bytes // 2).time_ps
            if extrapolated_ps - _line(middle, high, size_bytes // 2) < _MIN_RISE * rise_ps:
                return None
        return ClosedForm(extrapolated_ps, is_simulated=False)


def _line(first_point: tuple[int, float], second_point: tuple[int, float], size_bytes: int) -> float:
    """Return the time in ps at `size_bytes` of the line through two points (size in bytes, time in ps)."""
    return first_point[1] + (second_point[1] - first_point[1]) * (size_bytes - first_point[0]) / (
        second_point[0] - first_point[0]
    )


class ClosedFormCosts(NamedTuple):
    """Closed forms of K collectives."""

    time_ps: Int64  # int64[K], time of each collective in picoseconds
    # bool[K], True = the steps were simulated; False = a formula or other sizes give the time
    is_simulated: NDArray[np.bool_]


class _Plan(NamedTuple):
    """Schedule of a collective for one class of buffer sizes."""

    schedules: Schedules  # packed schedules that hold this plan only
    number: int  # number of the schedule in `schedules`
    isolated: IsolatedCollectives  # times that were simulated with this plan
    by_formula: IsolatedCollectives  # paths of the plan's messages, for formulas
    by_flows: IsolatedCollectives  # times of the plan's messages as flows, or of formulas where they are too many


class CollectiveCosts:
    """Closed forms on one fabric, kept per kind, algorithm, size and position of the group.

    Algorithms choose their plans by the rates of `planned_on`; None = `graph`. It differs from `graph` if links are
    slow, because NCCL does not know that when it plans. Windows follow from it too, as by packets, and groups that use
    no slow link have its costs. `before`: Costs on a fabric that differs in the rates of some links only, bool[links];
    groups that use none of them have the same costs here.
    """

    def __init__(
        self,
        graph: Graph,
        settings: Settings,
        effort: Effort = RUN_EFFORT,
        planned_on: Graph | None = None,
        before: "tuple[CollectiveCosts, NDArray[np.bool_]] | None" = None,
    ) -> None:
        self._effort, self._before = effort, before
        self._planned_on = planned_on or graph
        self.positions = GroupPositions(graph)
        self.kept = KeptResults()  # schedules of curves, and schedules and shapes of programs on the fabric
        window_bytes = window_packets(self._planned_on, settings) * settings.mtu_bytes
        self._graph, self._settings = graph, replace(settings, window_bytes=window_bytes)
        self._is_slow = (graph.link_rate_bps != self._planned_on.link_rate_bps) | (
            graph.link_delay_ps != self._planned_on.link_delay_ps
        )
        self._uses_slow: dict[tuple[bytes, bool], bool] = {}  # of groups, by members and of_switches
        self._curves: dict[tuple[str, str, bytes], Curve] = {}

    def of_collectives(
        self, program: Program, collective_settings: CollectiveSettings, keys: CollectiveKeys, kinds: NDArray[np.int8]
    ) -> ClosedFormCosts:
        """Return the times of K collectives.

        Args:
            program: Work of all NPUs (`Program`).
            collective_settings: Algorithms of collectives that the user has chosen.
            keys: The collectives: group, schedule, bytes, and a trace row of an NPU that runs each.
            kinds: int8[K], index in workload.KINDS of each collective.
        """
        members_of_group = np.split(program.group_member.astype(np.int64), program.group_ptr[1:-1])
        groups = [members_of_group[group] for group in keys.group.tolist()]
        forms = []
        positions = self.positions.keys(groups)
        lanes = program.node_lane[program.trace_ptr[program.trace_of_npu[keys.npu]] + keys.row]
        columns = (keys.schedule.tolist(), keys.bytes.tolist(), kinds.tolist(), (lanes == MEMORY_LANE).tolist())
        for schedule, size_bytes, kind, is_copied, members, position in zip(*columns, groups, positions, strict=True):
            # split sizes have no curve over one size
            if program.schedules.uneven[schedule]:
                forms.append(self._uneven(program, schedule, members, size_bytes))
                continue
            key = KINDS[kind], collective_settings.algorithm_of(KINDS[kind], is_copied=is_copied), position
            if key not in self._curves:
                self._curves[key] = self._as_before(*key[:2], members) or self.curve(program, *key[:2], members)
            forms.append(self._curves[key].at(size_bytes))
        times = np.array([round(form.time_ps) for form in forms], np.int64)
        return ClosedFormCosts(times, np.array([form.is_simulated for form in forms], np.bool_))

    def of_group(
        self, collective_settings: CollectiveSettings, kind: str, members: Int64, size_bytes: int
    ) -> ClosedForm:
        """Return the time of a collective of a group, not by copy engines.

        Args:
            collective_settings: Algorithms of collectives that the user has chosen.
            kind: Kind of collective, one of workload.KINDS.
            members: int64[n], NPUs of the group's members.
            size_bytes: Size of the buffer in bytes.
        """
        key = kind, collective_settings.algorithm_of(kind), self.positions.keys([members])[0]
        if key not in self._curves:
            self._curves[key] = self.curve(collective_program("barrier", 1, 0), *key[:2], members)
        return self._curves[key].at(size_bytes)

    def _as_before(self, kind: str, algorithm: str, members: Int64) -> Curve | None:
        """Return the curve of the earlier costs if the group uses no link that has changed since, or None."""
        if self._before is None:
            return None
        costs, has_changed = self._before
        if self._may_use(has_changed, members, of_switches=bool(collectives.choose(kind, algorithm).trees)):
            return None
        return costs._curves.get((kind, algorithm, costs.positions.keys([members])[0]))  # noqa: SLF001 - of this class

    def _may_use(self, links: NDArray[np.bool_], members: Int64, *, of_switches: bool) -> bool:
        """Return whether a group may use one of some links, bool[links]; of_switches: argument of `used_links`."""
        if len(members) > _MAX_FOLLOWED or not links.any():
            return bool(links.any())
        return bool(np.any(links & used_links(self._graph, members.tolist(), of_switches=of_switches)))

    def _fabric_of(self, members: Int64, *, of_switches: bool) -> Graph:
        """Return the fabric of a group's collectives: that without slow links if the group certainly uses none."""
        key = members.tobytes(), of_switches
        if key not in self._uses_slow:
            self._uses_slow[key] = self._may_use(self._is_slow, members, of_switches=of_switches)
        return self._graph if self._uses_slow[key] else self._planned_on

    def curve(self, program: Program, kind: str, algorithm: str, members: Int64) -> Curve:
        """Return times by size of collectives of a kind on a group of NPUs, of any program on the fabric.

        Args:
            program: Work of all NPUs (`Program`).
            kind: Kind of collective, one of workload.KINDS.
            algorithm: Algorithm as users write it: its name or file, with parameters if any.
            members: int64[n], NPUs of the group's members.
        """
        chosen = collectives.choose(kind, algorithm)
        needs_shape = chosen.needs_shape or chosen.pays(self._planned_on.accelerator)
        shape = shape_of(self._planned_on, members, trees=chosen.trees) if needs_shape else None
        fabric = self._fabric_of(members, of_switches=bool(chosen.trees))
        is_even = fabric is self._planned_on  # formulas are exact only if all links of a kind have one rate
        stripes = stripes_of(self._planned_on, members)
        plans: dict[object, _Plan] = {}

        def plan_of(size_bytes: int) -> _Plan:
            """Return the plan for size_bytes, the size of the buffer; sizes of one class share its steps."""
            size_class = chosen.size_class(kind, shape, size_bytes) if shape else 0
            if size_class not in plans:
                if len(plans) >= _MAX_KEPT_PLANS:
                    del plans[next(iter(plans))]  # the oldest
                schedules = ScheduleSet(kept=self.kept)
                number = schedules.add(kind, algorithm, len(members), shape, size_bytes, stripes)
                by_formula = IsolatedCollectives(_NOTHING_SIMULATED)
                by_flows = IsolatedCollectives(_NOTHING_SIMULATED, max_flows=self._effort.max_flows)
                plans[size_class] = _Plan(schedules.pack(), number, IsolatedCollectives(), by_formula, by_flows)
            plan = plans[size_class]
            launch_ps = chosen.launch_ps(kind, shape, size_bytes) if shape else None
            if launch_ps is None or plan.number == DONE_AT_ONCE:
                return plan
            return plan._replace(schedules=plan.schedules._replace(launch_ps=np.array([launch_ps])))

        def evaluate(size_bytes: int, how: Callable[[_Plan], IsolatedCollectives]) -> ClosedForm:
            """Return the time of size_bytes; how: which of a plan's collectives has it."""
            plan = plan_of(size_bytes)
            planned = program._replace(schedules=plan.schedules)
            return closed_form(
                fabric, planned, self._settings, kind, algorithm, plan.number, members, size_bytes, how(plan)
            )

        def packets(size_bytes: int) -> float:
            """Return the approximate number of packets of a collective of size_bytes."""
            plan = plan_of(size_bytes)
            if plan.number == DONE_AT_ONCE:
                return 0.0
            return packet_count(plan.schedules, plan.number, size_bytes, self._settings.mtu_bytes)

        def variant(size_bytes: int) -> str:
            return chosen.describe(kind, shape, size_bytes) if shape else ""

        simulate, formula, estimate = (
            partial(evaluate, how=attrgetter(name)) for name in ("isolated", "by_formula", "by_flows")
        )
        source = CurveSource(variant, packets, simulate, formula, estimate, chosen.has_formula)
        return Curve(source, is_exact=chosen.is_exact and is_even, effort=self._effort)

    def _uneven(self, program: Program, schedule: int, members: Int64, size_bytes: int) -> ClosedForm:
        """Return the time of an all-to-all with split sizes; `schedule` is its number, valid for this program only."""
        graph, settings = self._fabric_of(members, of_switches=False), self._settings
        if message_count(program.schedules, schedule) > _MAX_SIMULATED_UNEVEN_MESSAGES:
            busiest_ps = busiest_member_ps(graph, program, settings, schedule, members, size_bytes)
            busiest_ps += float(program.schedules.launch_ps[schedule])
            return ClosedForm(busiest_ps, is_simulated=False)
        return closed_form(graph, program, settings, "all-to-all", "direct", schedule, members, size_bytes)

    def of_messages(self, keys: MessageKeys) -> MessageTimes:
        """Return the times of messages between two NPUs.

        Args:
            keys: The messages: sender, receiver, bytes, share and parts of each.
        """
        return message_times(self._graph, self._settings, keys)
