"""Collectives played on an idle fabric (`idle_fabric`), and the limits above which a formula replaces the play."""

from typing import NamedTuple

import numpy as np

from nadi.pdes import Settings
from nadi.simulation.closed_forms.idle_fabric import IdleFabric, idle_fabric
from nadi.simulation.closed_forms.position import GroupPositions
from nadi.topologies import Graph
from nadi.topologies.endpoints import with_aggregators
from nadi.workload import Program, Schedules
from nadi.workload.collectives import AlgorithmChoice, trees_of
from nadi.workload.collectives.schedules import message_count, packet_count, pairs

# Maximum number of messages to play: the first if the formula is an estimate and messages are packets, the second
# otherwise. Laying out two million messages takes half a gigabyte.
_MAX_MESSAGES_OF_ESTIMATES, _MAX_MESSAGES = 1 << 21, 1 << 19
_MAX_PAIRS = 1 << 14  # maximum number of sender-receiver pairs to play if there is a formula; their paths take a second
# Maximum number of packets to play, about half a microsecond each: the first if the formula is exact, the second if it
# is an estimate.
_MAX_PACKETS, _MAX_PACKETS_OF_ESTIMATES = 1 << 23, 1 << 26
_UNLIMITED = 1 << 62


class Paths(NamedTuple):
    """Equal paths of a group's messages."""

    links: list[int]  # links of one of the paths, in order
    both_ways: bool  # True if the sender acknowledges another message over the same cable meanwhile
    multiplicity: int  # number of these paths


class PlayedCollectives:
    """Collectives of a program on an idle network, each played once, whatever others are played.

    `paths`: Distinct paths by schedule and members, for formulas. `max_packets`: Maximum number of packets to play for
    a collective that has a formula; None = the limits of this module. `positions`: Positions of groups, of which those
    with equal positions are played once; None = each group is played.
    """

    def __init__(self, max_packets: int | None = None, positions: GroupPositions | None = None) -> None:
        self._max_packets, self._positions = max_packets, positions
        self._times_ps: dict[tuple[int, int, object], float] = {}
        self.paths: dict[tuple[int, tuple[int, ...]], list[Paths]] = {}
        self.formulas_ps: dict[tuple[int, int, object], float] = {}  # times by formulas, which positions share too
        self._position_of: dict[tuple[int, ...], object] = {}
        self._fabrics: dict[tuple[int, object], IdleFabric] = {}

    def time_ps(
        self,
        graph: Graph,
        program: Program,
        settings: Settings,
        choice: AlgorithmChoice,
        schedule: int,
        members: list[int],
        size_bytes: int,
    ) -> float | None:
        """Return the time of a group's collective played on its own ports; None if its formula must be used.

        Args:
            graph: The fabric (`Graph`).
            program: Work of all NPUs (`Program`).
            settings: The engine's settings of the run (`pdes.Settings`).
            choice: Algorithm of the collective.
            schedule: Number of the schedule.
            members: NPUs of the group's members.
            size_bytes: Size of the buffer in bytes.
        """
        s = program.schedules
        # without a formula there is no other way, however long it takes
        must_play = not choice.has_formula or bool(s.uneven[schedule])
        if not must_play and self._takes_long(s, settings, schedule, size_bytes, is_exact=choice.is_exact):
            return None
        position = self.position(tuple(members))
        if (schedule, position) not in self._fabrics:
            ends = pairs(s, schedule, _UNLIMITED if must_play else _MAX_PAIRS)
            if ends is None:
                return None
            # switches that reduce act as further members
            if s.aggregators[schedule]:
                switches = trees_of(graph, np.array(members), choice.trees)[1]
                members = [*members, *range(graph.npus, graph.npus + len(switches))]
                graph = with_aggregators(graph, switches)
            self._fabrics[schedule, position] = idle_fabric(graph, settings, members, ends)
        key = schedule, size_bytes, position
        if key not in self._times_ps:
            self._times_ps[key] = self._fabrics[schedule, position].time_ps(s, schedule, size_bytes)
        return self._times_ps[key]

    def position(self, npus: tuple[int, ...]) -> object:
        """Return a key that groups of NPUs with equal positions share; without positions, that of these NPUs alone.

        Args:
            npus: NPUs of the group's members.
        """
        if npus not in self._position_of:
            self._position_of[npus] = self._positions.keys([np.array(npus)])[0] if self._positions else npus
        return self._position_of[npus]

    def _takes_long(self, s: Schedules, settings: Settings, schedule: int, size_bytes: int, *, is_exact: bool) -> bool:
        """Return whether a collective has more messages or packets than are played."""
        has_headers, packets = settings.fidelity.model.has_headers, float(message_count(s, schedule))
        if packets > (_MAX_MESSAGES_OF_ESTIMATES if has_headers and not is_exact else _MAX_MESSAGES):
            return True
        if has_headers:
            packets = packet_count(s, schedule, size_bytes, settings.mtu_bytes)
        limit = _MAX_PACKETS if is_exact else _MAX_PACKETS_OF_ESTIMATES
        return packets > (limit if self._max_packets is None else self._max_packets)
