"""What is played on an idle network (`idle_fabric`), and what would take too long."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

import topologies
from nadi.simulation.closed_forms.playing.alike import smaller
from nadi.simulation.closed_forms.playing.idle_fabric import PreparedSchedule, together
from nadi.simulation.closed_forms.playing.idle_paths import IdleFabric, Key, Pair, fabric_of, with_own_ties
from pdes import Settings
from topologies import Graph
from topologies.aggregators import with_aggregators
from workload import Program, Schedules
from workload.collectives import AlgorithmChoice
from workload.collectives.schedules.sends import has_gates, message_count, packet_count, pairs
from workload.collectives.trees.aggregators import trees_of

_MOST_MESSAGES = 1 << 21
_MOST_MESSAGES_ELSE = 1 << 19
"""That are played where a formula is an estimate and messages are packets, and else: to lay out two million takes
longer than to simulate them, and half a gigabyte."""
_MOST_PAIRS = 1 << 14
"""Of members of all groups like one that are played where there is a formula: a second or two to lay them out."""
_MOST_PACKETS = 1 << 23
_MOST_PACKETS_OF_ESTIMATES = 1 << 26
"""That are played where a formula is exact, and where it is an estimate: about a microsecond each."""
_MOST_HOPS = 1 << 18
"""Of the paths of these pairs, there and back: two seconds to find them."""
_FEW_PAIRS = 8
_ALL = 1 << 62
"""Pairs, or bytes of a message."""


class Group(NamedTuple):
    """A collective of a group.

    Attributes:
        choice: its algorithm.
        schedule: of the program.
        members: NPUs.
        size_bytes: the whole buffer.
    """

    choice: AlgorithmChoice
    schedule: int
    members: list[int]
    size_bytes: int


class Paths(NamedTuple):
    """Paths of a group's messages that look the same.

    Attributes:
        links: of one of them.
        both_ways: while a message goes there, its sender acknowledges another over the same cable.
        alike: how many there are.
    """

    links: list[int]
    both_ways: bool
    alike: int


class PlayedCollectives:
    """Collectives of a program on an idle network, each once. Whether one is played depends on nothing but itself.

    Attributes:
        paths: by schedule and members, kept for formulas (nadi.simulation.closed_forms.collective).

    Args:
        most_packets: of a collective that has a formula; None = as many as for a row of a table.
    """

    def __init__(self, most_packets: int | None = None) -> None:
        self._most_packets = most_packets
        self._found_ps: dict[tuple[int, int, Key], float] = {}
        self.paths: dict[tuple[int, tuple[int, ...]], list[Paths]] = {}
        self._fabrics: dict[tuple[int, tuple[int, ...]], IdleFabric] = {}

    def time_ps(self, graph: Graph, program: Program, settings: Settings, group: Group) -> float | None:
        """The steps of a group's collective on its members' own ports; None where its formula must do."""
        s, (choice, schedule, members, size_bytes) = program.schedules, group
        must = not choice.has_formula or bool(s.uneven[schedule])
        if not must and settings.phases_per_dimension and has_gates(s, schedule):
            return None  # the player knows no tokens
        ends = pairs(s, schedule, _ALL if must else _MOST_PAIRS // (graph.npus // len(members)))
        if ends is None or (not must and _hops(graph, members, ends) > _MOST_HOPS):
            return None
        known = schedule, tuple(members)
        if known not in self._fabrics:
            self._fabrics[known] = _fabric(graph, settings, s, group, ends)
        fabric = self._fabrics[known]
        s, fabric = smaller(s, schedule, size_bytes, fabric) or (s, fabric)
        if not must and self._takes_long(s, fabric, group):
            return None
        key = schedule, size_bytes, fabric.key
        if key not in self._found_ps:
            self._found_ps[key] = PreparedSchedule(s, schedule, size_bytes, fabric).time_ps()
        return self._found_ps[key]

    def _takes_long(self, s: Schedules, fabric: IdleFabric, group: Group) -> bool:
        messages = message_count(s, group.schedule)
        if messages > (_MOST_MESSAGES_ELSE if fabric.is_whole or group.choice.is_exact else _MOST_MESSAGES):
            return True
        most_packets = self._most_packets
        if most_packets is None:
            most_packets = _MOST_PACKETS if group.choice.is_exact else _MOST_PACKETS_OF_ESTIMATES
        packets = packet_count(s, group.schedule, group.size_bytes, fabric.mtu_bytes)
        return packets / together(int(packets), messages, fabric.window_packets) > most_packets


def _hops(graph: Graph, npus: list[int], ends: Collection[Pair]) -> float:
    """About how many links there are in the paths of all pairs, there and back; aggregators are near."""
    between = [pair for pair in ends if max(pair) < len(npus)]
    some = sorted(between)[:: 1 + len(between) // _FEW_PAIRS]
    found = [len(topologies.route(graph, npus[src], npus[dst])) for src, dst in some]
    return 2 * len(ends) * sum(found) / max(1, len(found))


def _fabric(graph: Graph, settings: Settings, s: Schedules, group: Group, ends: Collection[Pair]) -> IdleFabric:
    """Of a group: members on their own ports, and the aggregators of its trees."""
    members, complete = group.members, graph
    if s.aggregators[group.schedule]:
        switches = trees_of(graph, np.array(members), group.choice.trees)[1]
        members = [*members, *range(graph.npus, graph.npus + len(switches))]
        complete = with_aggregators(graph, switches)
    fabric = fabric_of(complete, settings, members, ends)
    return with_own_ties(fabric) if len(group.members) < graph.npus else fabric
