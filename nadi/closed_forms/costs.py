"""What collectives and messages take on an idle fabric, each kind of them once for a process."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import topologies
from nadi.closed_form import ClosedForm, closed_form, fullest_ps, train
from nadi.closed_forms.standing import Standing
from nadi.played import Played
from pdes.closed_form_run import CollectiveKeys, MessageKeys, MessageTimes
from pdes.settings import Settings
from topologies import Graph
from workload import KINDS, CollectiveSettings, Program
from workload.sends import message_count

Int64 = NDArray[np.int64]

_MOST_UNEVEN = 1 << 19
"""Messages of an all-to-all with split sizes that are played; of a larger one what its fullest member takes."""
_KNOWN = tuple[str, str, int, bytes]


class Costed(NamedTuple):
    """Closed forms of K collectives.

    Attributes:
        time_ps: int64[K].
        is_played: bool[K], its steps were played; else a formula says it.
    """

    time_ps: Int64
    is_played: NDArray[np.bool_]


class CollectiveCosts:
    """Closed forms on one fabric, kept by kind, algorithm, size and how the group stands.

    Args:
        graph: the fabric.
        settings: of packets and switches.
    """

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self.standing = Standing(graph)
        self._graph, self._settings = graph, settings
        self._known: dict[_KNOWN, ClosedForm] = {}

    def of_collectives(
        self, program: Program, how: CollectiveSettings, keys: CollectiveKeys, kinds: NDArray[np.int8]
    ) -> Costed:
        """What collectives of a program take.

        Args:
            program: with their schedules and groups.
            how: algorithms of the kinds.
            keys: K collectives.
            kinds: int8[K], rows of workload.KINDS.
        """
        played = Played()
        groups = [
            program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].astype(np.int64)
            for group in keys.group.tolist()
        ]
        found = []
        stands = self.standing.keys(groups)
        columns = (keys.schedule.tolist(), keys.bytes.tolist(), kinds.tolist())
        for schedule, size_bytes, kind, members, stand in zip(*columns, groups, stands, strict=True):
            if program.schedules.uneven[schedule]:
                found.append(self._uneven(program, schedule, members, size_bytes, played))
                continue
            algorithm = how.algorithm_of(KINDS[kind])
            known = KINDS[kind], algorithm, size_bytes, stand
            if known not in self._known:
                self._known[known] = closed_form(
                    self._graph,
                    program,
                    self._settings,
                    kind=KINDS[kind],
                    algorithm=algorithm,
                    schedule=schedule,
                    members=members,
                    size_bytes=size_bytes,
                    played=played,
                )
            found.append(self._known[known])
        times = np.array([round(each.time_ps) for each in found], np.int64)
        return Costed(times, np.array([each.is_played for each in found], np.bool_))

    def _uneven(self, program: Program, schedule: int, members: Int64, size_bytes: int, played: Played) -> ClosedForm:
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
            played=played,
        )

    def of_messages(self, keys: MessageKeys) -> MessageTimes:
        """What messages between two NPUs take."""
        times = np.zeros((3, len(keys.src)), np.int64)
        model = self._settings.fidelity
        for i, (src, dst, size_bytes) in enumerate(zip(*(column.tolist() for column in keys), strict=True)):
            alone = train(self._graph, topologies.route(self._graph, src, dst), size_bytes, self._settings)
            left_ps = alone.serial_ps + model.send_latency_ps
            if model.acknowledged:
                left_ps = alone.total_ps - model.endpoint_delay_ps
            times[:, i] = round(alone.serial_ps), round(left_ps), round(alone.total_ps)
        return MessageTimes(*times)
