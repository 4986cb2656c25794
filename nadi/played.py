"""What is played on an idle network (nadi.idle_fabric), and what would take too long."""

from typing import NamedTuple

import numpy as np

from nadi.idle_fabric import Play, together
from nadi.idle_paths import Key, fabric_of
from pdes.settings import Settings
from topologies import Graph
from topologies.aggregators import with_aggregators
from workload import Program
from workload.collectives import Choice
from workload.sends import has_gates, message_count, packet_count, pairs
from workload.tree import trees_of

_MOST_MESSAGES = 1 << 21
_MOST_PAIRS = 1 << 14
"""Of members, and messages among them, that are played where there is a formula: a second or two to lay them out."""
_MOST_PACKETS = 1 << 23
_MOST_PACKETS_OF_ESTIMATES = 1 << 26
"""That are played where a formula is exact, and where it is an estimate: about a microsecond each."""
_FEW_PAIRS = 64
_PACKETS_A_PAIR = 64
"""That take as long to play as the way of a pair to find, where there are more than a few."""


class Group(NamedTuple):
    """A collective of a group.

    Attributes:
        choice: its algorithm.
        schedule: of the program.
        members: NPUs.
        size_bytes: the whole buffer.
    """

    choice: Choice
    schedule: int
    members: list[int]
    size_bytes: int


class Played:
    """Collectives of a program on an idle network.

    Args:
        most_packets: that may be played in all where there are formulas.
    """

    def __init__(self, most_packets: int = _MOST_PACKETS_OF_ESTIMATES) -> None:
        self.packets_left = most_packets
        self._found_ps: dict[tuple[int, int, Key], float] = {}
        self._known: set[tuple[int, int]] = set()

    def time_ps(self, graph: Graph, program: Program, settings: Settings, group: Group) -> float | None:
        """The steps of a group's collective on its members' own ports; None where its formula must do."""
        s, (choice, schedule, members, size_bytes) = program.schedules, group
        must = not choice.has_formula or bool(s.uneven[schedule])
        if not must and not self._may_be_played(program, settings, group):
            return None
        complete = graph
        if choice.trees:
            switches = trees_of(graph, np.array(members), choice.trees)[1]
            members = [*members, *range(graph.npus, graph.npus + len(switches))]
            complete = with_aggregators(graph, switches)
        ends = pairs(s, schedule, len(members) ** 2 if must else _MOST_PAIRS)
        if ends is None:
            return None
        if not must and len(ends) > _FEW_PAIRS:
            if self.packets_left <= 0:
                return None
            self.packets_left -= _PACKETS_A_PAIR * len(ends)
        fabric = fabric_of(complete, settings, members, ends, size_bytes)
        key = schedule, size_bytes, fabric.key
        if key not in self._found_ps:
            play = Play(s, schedule, size_bytes, fabric)
            if not must:
                if play.packets > self.packets_left:
                    return None
                self.packets_left -= play.packets
            self._found_ps[key] = play.time_ps()
            self._known.add((schedule, size_bytes))
        return self._found_ps[key]

    def _may_be_played(self, program: Program, settings: Settings, group: Group) -> bool:
        """As far as that can be told before it is laid out."""
        s, schedule = program.schedules, group.schedule
        if settings.phases_per_dimension and has_gates(s, schedule):
            return False
        messages = message_count(s, schedule)
        if messages > _MOST_MESSAGES:
            return False
        packets = packet_count(s, schedule, group.size_bytes, settings.mtu_bytes)
        packets /= together(int(packets), messages)
        if packets > (_MOST_PACKETS if group.choice.is_exact else _MOST_PACKETS_OF_ESTIMATES):
            return False
        return packets <= self.packets_left or (schedule, group.size_bytes) in self._known
