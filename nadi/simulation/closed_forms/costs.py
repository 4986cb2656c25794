"""What collectives and messages take on an idle fabric, each kind of them once for a process."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.simulation.closed_forms.advancing.folded_program import CollectiveKeys, MessageKeys
from nadi.simulation.closed_forms.advancing.run import MessageTimes
from nadi.simulation.closed_forms.collective import ClosedForm, closed_form, fullest_ps
from nadi.simulation.closed_forms.curves import OF_A_RUN, Curve, CurveRequest, Effort
from nadi.simulation.closed_forms.lone_message import message_times
from nadi.simulation.closed_forms.playing.played import PlayedCollectives
from nadi.simulation.closed_forms.standing import GroupPositions
from pdes import Settings
from topologies import Graph
from workload import KINDS, CollectiveSettings, Program, collectives
from workload.collectives.schedules.packed import DONE_AT_ONCE, Schedules, ScheduleSet
from workload.collectives.schedules.sends import message_count, packet_count
from workload.shape import shape_of

Int64 = NDArray[np.int64]

_MOST_UNEVEN = 1 << 19
"""Messages of an all-to-all with split sizes that are played; of a larger one what its fullest member takes."""
_NOTHING_PLAYED = 0
_PLANS_KEPT = 16
"""Plans that one curve remembers. Sizes that are asked often are remembered by their times, so few plans are needed
again, and each of NCCL's for 8 members takes some 3 MB with the paths of its messages."""


class ClosedFormCosts(NamedTuple):
    """Closed forms of K collectives.

    Attributes:
        time_ps: int64[K].
        is_played: bool[K], its steps were played; else it is told by a formula or by other sizes.
    """

    time_ps: Int64
    is_played: NDArray[np.bool_]


class _Plan(NamedTuple):
    """How a collective is done at the sizes of one class.

    Attributes:
        schedules: The plan, packed alone.
        number: Number of the schedule in `schedules`.
        played: Times of what is played by this plan.
        by_formula: Paths of the plan's messages, for formulas.
    """

    schedules: Schedules
    number: int
    played: PlayedCollectives
    by_formula: PlayedCollectives


class CollectiveCosts:
    """Closed forms on one fabric, kept by kind, algorithm, size and how the group stands.

    Args:
        graph: the fabric.
        settings: of packets and switches.
        effort: how much is played.
        planned_on: Fabric by whose rates algorithms choose their plans; None = `graph`. It differs from `graph` where
            links are slow, which NCCL does not know when it plans.
    """

    def __init__(
        self, graph: Graph, settings: Settings, effort: Effort = OF_A_RUN, planned_on: Graph | None = None
    ) -> None:
        self._effort = effort
        self._planned_on = planned_on or graph
        self.standing = GroupPositions(graph)
        self._graph, self._settings = graph, settings
        self._curves: dict[tuple[str, str, bytes], Curve] = {}

    def of_collectives(
        self, program: Program, how: CollectiveSettings, keys: CollectiveKeys, kinds: NDArray[np.int8]
    ) -> ClosedFormCosts:
        """What collectives of a program take.

        Args:
            program: with their schedules and groups.
            how: algorithms of the kinds.
            keys: K collectives.
            kinds: int8[K], rows of workload.KINDS.
        """
        groups = [
            program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].astype(np.int64)
            for group in keys.group.tolist()
        ]
        found = []
        stands = self.standing.keys(groups)
        columns = (keys.schedule.tolist(), keys.bytes.tolist(), kinds.tolist())
        for schedule, size_bytes, kind, members, stand in zip(*columns, groups, stands, strict=True):
            if program.schedules.uneven[schedule]:
                found.append(self._uneven(program, schedule, members, size_bytes))
                continue
            known = KINDS[kind], how.algorithm_of(KINDS[kind]), stand
            if known not in self._curves:
                self._curves[known] = self.curve(program, *known[:2], members)
            found.append(self._curves[known].at(size_bytes))
        times = np.array([round(each.time_ps) for each in found], np.int64)
        return ClosedFormCosts(times, np.array([each.is_played for each in found], np.bool_))

    def curve(self, program: Program, kind: str, algorithm: str, members: Int64) -> Curve:
        """Times of a kind on a group, by sizes.

        Args:
            program: any of the fabric.
            kind: see workload.KINDS.
            algorithm: its name, and parameters if any.
            members: int64[n], NPUs of the group.
        """
        chosen = collectives.choose(kind, algorithm)
        shape = shape_of(self._planned_on, members, trees=chosen.trees) if chosen.needs_shape else None
        is_even = self._planned_on is self._graph  # formulas are exact where the links of a kind are alike
        kept: dict[object, _Plan] = {}

        def plan(size_bytes: int) -> _Plan:
            sort = chosen.size_class(kind, shape, size_bytes) if shape else 0
            if sort not in kept:
                if len(kept) >= _PLANS_KEPT:
                    del kept[next(iter(kept))]  # the oldest
                schedules = ScheduleSet()
                number = schedules.add(kind, algorithm, len(members), shape, size_bytes)
                kept[sort] = _Plan(schedules.pack(), number, PlayedCollectives(), PlayedCollectives(_NOTHING_PLAYED))
            return kept[sort]

        def told(size_bytes: int, *, play: bool) -> ClosedForm:
            found = plan(size_bytes)
            return closed_form(
                self._graph,
                program._replace(schedules=found.schedules),
                self._settings,
                kind=kind,
                algorithm=algorithm,
                schedule=found.number,
                members=members,
                size_bytes=size_bytes,
                played=found.played if play else found.by_formula,
            )

        def packets(size_bytes: int) -> float:
            found = plan(size_bytes)
            if found.number == DONE_AT_ONCE:
                return 0.0
            return packet_count(found.schedules, found.number, size_bytes, self._settings.mtu_bytes)

        def way(size_bytes: int) -> str:
            return chosen.describe(kind, shape, size_bytes) if shape else ""

        ask = CurveRequest(way, packets, lambda size: told(size, play=True), lambda size: told(size, play=False))
        return Curve(ask, is_exact=chosen.is_exact and is_even, effort=self._effort)

    def _uneven(self, program: Program, schedule: int, members: Int64, size_bytes: int) -> ClosedForm:
        """An all-to-all with split sizes, of this program only."""
        graph, settings = self._graph, self._settings
        if message_count(program.schedules, schedule) > _MOST_UNEVEN:
            fullest = fullest_ps(graph, program, settings, schedule, members, size_bytes)
            return ClosedForm(fullest, is_played=False)
        return closed_form(
            graph,
            program,
            settings,
            kind="all-to-all",
            algorithm="direct",
            schedule=schedule,
            members=members,
            size_bytes=size_bytes,
            played=PlayedCollectives(),
        )

    def of_messages(self, keys: MessageKeys) -> MessageTimes:
        """What messages between two NPUs take."""
        return message_times(self._graph, self._settings, keys)
