"""Collectives played on an idle network (`idle_fabric`), and the limits above which a formula replaces the play."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

import topologies
from nadi.simulation.closed_forms.playing.idle_fabric import PreparedSchedule, packets_per_batch
from nadi.simulation.closed_forms.playing.idle_paths import IdleFabric, Key, Pair, fabric_of, with_port_ties
from nadi.simulation.closed_forms.playing.periodic_groups import smaller_group
from pdes import Settings
from topologies import Graph
from topologies.endpoints import with_aggregators
from workload import Program, Schedules
from workload.collectives import AlgorithmChoice
from workload.collectives.schedules.sends import has_gates, message_count, packet_count, pairs
from workload.collectives.trees.aggregators import trees_of

# Maximum number of messages to play: the first if the formula is an estimate and messages are packets, the second
# otherwise. Laying out two million messages takes half a gigabyte, and longer than simulating them.
_MAX_MESSAGES_OF_ESTIMATES, _MAX_MESSAGES = 1 << 21, 1 << 19
# Maximum number of sender-receiver pairs to play if there is a formula, over all groups of this size on the fabric
# together. Laying them out takes a second or two.
_MAX_PAIRS = 1 << 14
# Maximum number of packets to play, a microsecond each: the first if the formula is exact, the second if an estimate.
_MAX_PACKETS, _MAX_PACKETS_OF_ESTIMATES = 1 << 23, 1 << 26
_MAX_HOPS = 1 << 18  # maximum number of links on the paths of all pairs, there and back; finding them takes 2 s
_FEW_PAIRS = 8  # number of pairs that estimate the mean length of a path
_UNLIMITED = 1 << 62


class Group(NamedTuple):
    """A collective of one group."""

    choice: AlgorithmChoice  # algorithm of the collective
    schedule: int  # number of the schedule in the program
    members: list[int]  # NPUs of the group, in member order
    size_bytes: int  # size of the whole buffer in bytes


class Paths(NamedTuple):
    """Equal paths of a group's messages."""

    links: list[int]  # links of one of the paths, in order
    both_ways: bool  # True if the sender acknowledges another message over the same cable meanwhile
    multiplicity: int  # number of these paths


class PlayedCollectives:
    """Collectives of a program on an idle network, each played once, whatever others are played.

    `paths`: Distinct paths by schedule and members, for formulas. `max_packets`: Maximum number of packets to play for
    a collective that has a formula; None = the limits of this module.
    """

    def __init__(self, max_packets: int | None = None) -> None:
        self._max_packets = max_packets
        self._times_ps: dict[tuple[int, int, Key], float] = {}
        self.paths: dict[tuple[int, tuple[int, ...]], list[Paths]] = {}
        self._fabrics: dict[tuple[int, tuple[int, ...]], IdleFabric] = {}

    def time_ps(self, graph: Graph, program: Program, settings: Settings, group: Group) -> float | None:
        """Return the time of a group's collective played on its own ports; None if its formula must be used."""
        s, (choice, schedule, members, size_bytes) = program.schedules, group
        must_play = not choice.has_formula or bool(s.uneven[schedule])
        if not must_play and settings.phases_per_dimension and has_gates(s, schedule):
            return None  # the player does not model tokens
        ends = pairs(s, schedule, _UNLIMITED if must_play else _MAX_PAIRS // (graph.npus // len(members)))
        if ends is None or (not must_play and _hops(graph, members, ends) > _MAX_HOPS):
            return None
        group_key = schedule, tuple(members)
        if group_key not in self._fabrics:
            self._fabrics[group_key] = _fabric(graph, settings, s, group, ends)
        fabric = self._fabrics[group_key]
        s, fabric = smaller_group(s, schedule, size_bytes, fabric) or (s, fabric)
        if not must_play and self._takes_long(s, fabric, group):
            return None
        key = schedule, size_bytes, fabric.key
        if key not in self._times_ps:
            self._times_ps[key] = PreparedSchedule(s, schedule, size_bytes, fabric).time_ps()
        return self._times_ps[key]

    def _takes_long(self, s: Schedules, fabric: IdleFabric, group: Group) -> bool:
        """Return whether a group has more messages or packets than are played."""
        is_exact, messages = group.choice.is_exact, message_count(s, group.schedule)
        if messages > (_MAX_MESSAGES if fabric.is_message_level or is_exact else _MAX_MESSAGES_OF_ESTIMATES):
            return True
        max_packets = self._max_packets
        if max_packets is None:
            max_packets = _MAX_PACKETS if is_exact else _MAX_PACKETS_OF_ESTIMATES
        packets = packet_count(s, group.schedule, group.size_bytes, fabric.mtu_bytes)
        return packets / packets_per_batch(int(packets), messages, fabric.window_packets) > max_packets


def _hops(graph: Graph, npus: list[int], ends: Collection[Pair]) -> float:
    """Estimate the number of links on the paths of all pairs, there and back, from a sample of pairs of NPUs."""
    between = [pair for pair in ends if max(pair) < len(npus)]
    sampled = sorted(between)[:: 1 + len(between) // _FEW_PAIRS]
    lengths = [len(topologies.route(graph, npus[src], npus[dst])) for src, dst in sampled]
    return 2 * len(ends) * sum(lengths) / max(1, len(lengths))


def _fabric(graph: Graph, settings: Settings, s: Schedules, group: Group, ends: Collection[Pair]) -> IdleFabric:
    """Return the idle fabric of a group: its members on their own ports, and the aggregators of its trees."""
    members, complete = group.members, graph
    if s.aggregators[group.schedule]:
        switches = trees_of(graph, np.array(members), group.choice.trees)[1]
        members = [*members, *range(graph.npus, graph.npus + len(switches))]
        complete = with_aggregators(graph, switches)
    fabric = fabric_of(complete, settings, members, ends)
    return with_port_ties(fabric) if len(group.members) < graph.npus else fabric
