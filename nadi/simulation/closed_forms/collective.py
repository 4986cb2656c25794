"""What a collective takes on an idle network: its steps played there, or the algorithm's formula.

A formula gets the path's own latency and rate. A message of b bytes between two NPUs is a train of packets: every
packet adds header_bytes, each link adds its delay, each switch its latency, and all but the slowest link the time of
the last packet once more (store and forward; with cut-through switches that of the header only). Where an NPU sends and
receives over the same cable, the acknowledgements of what it receives take turns with the packets that it sends. How
often messages follow one another is the algorithm's part of the form. Messages at message level take what their model
says. What passes at the ends of messages is part of the path's latency, but for reductions, which formulas leave out.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import topologies
import workload
from inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.simulation.closed_forms.lone_message import Hop, train, ways_of
from nadi.simulation.closed_forms.playing.played import Group, Paths, PlayedCollectives
from pdes import Settings
from pdes.wire import acknowledgement_bytes, wire_bytes
from topologies import Graph
from topologies.routing import next_links
from workload import Program, Schedules, collectives
from workload.collectives.schedules.sends import most_bytes, offsets, peer, peers_of_members, usual_message
from workload.collectives.trees.aggregators import AggregatorTree
from workload.shape import Shape, shape_of

Int64 = NDArray[np.int64]

_MOST_SENDS = 1024
"""Whose paths are looked at, or as many as there are members if they are more."""
_MOST_HOPS = 1 << 16
"""Of their paths: half a second to find them."""
_FEW_SENDS = 32
_GOLDEN, _SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


class ClosedForm(NamedTuple):
    """What a collective takes on an idle network.

    Attributes:
        time_ps: picoseconds.
        is_played: its steps were played; else it is what the formula says.
    """

    time_ps: float
    is_played: bool


def closed_form(
    graph: Graph,
    program: Program,
    settings: Settings,
    *,
    kind: str,
    algorithm: str,
    schedule: int,
    members: Int64,
    size_bytes: int,
    played: PlayedCollectives | None = None,
) -> ClosedForm:
    """A collective on an idle network.

    The steps are played (nadi/simulation/closed_forms/playing). Where that would take too long, the algorithm's
    formula stands.

    Where the members' paths differ, a formula's rate is the slowest path's, and its latency the longest one's; of a
    ring the mean of all but the fastest: a chunk that goes round n members takes n - 1 of its paths. An algorithm that
    knows the fabric asks it itself.

    Args:
        graph: the network.
        program: with the schedule.
        settings: packets and switching.
        kind: see workload.KINDS.
        algorithm: its name, and parameters if any.
        schedule: number of the schedule, -1 = a group of one.
        members: int[n], NPUs of the group.
        size_bytes: the whole buffer S.
        played: what has been played of this program; more is added. None = this collective alone is.
    """
    if schedule < 0:
        return ClosedForm(0.0, is_played=True)
    chosen = collectives.choose(kind, algorithm)
    group = Group(chosen, schedule, members.tolist(), size_bytes)
    played = played or PlayedCollectives()
    found_ps = played.time_ps(graph, program, settings, group)
    if found_ps is not None:
        return ClosedForm(found_ps, is_played=True)
    if chosen.needs_shape:
        shape = _on_the_wire(shape_of(graph, members, trees=chosen.trees), settings, framed=settings.nvlink_framing)
        found_ps = workload.closed_form(kind, algorithm, len(members), size_bytes, 0.0, 0.0, shape)
        return ClosedForm(found_ps + settings.fidelity.endpoint_delay_ps, is_played=False)
    data, payload = usual_message(program.schedules, schedule, size_bytes)
    known = schedule, tuple(group.members)
    if known not in played.paths:
        one_way = bool(getattr(chosen.module, "ONE_WAY", False))
        played.paths[known] = _paths(graph, settings, program.schedules, schedule, group.members, one_way=one_way)
    paths = played.paths[known]
    trains = [train(graph, path.links, math.ceil(payload), settings, both_ways=path.both_ways) for path in paths]
    serial_ps = max(t.serial_ps for t in trains)
    whole_ps = max(t.total_ps for t in trains)
    if _is_ring(program.schedules, schedule):
        n, alike = len(members), [path.alike for path in paths]
        mean_ps = sum(count * t.total_ps for count, t in zip(alike, trains, strict=True)) / sum(alike)
        whole_ps = (n * mean_ps - min(t.total_ps for t in trains)) / (n - 1)
    latency_ps = max(0.0, whole_ps - serial_ps)
    bytes_per_s = data / serial_ps * PS_PER_S if data and serial_ps else float("inf")
    found_ps = workload.closed_form(kind, algorithm, len(members), size_bytes, latency_ps, bytes_per_s)
    return ClosedForm(found_ps + settings.fidelity.endpoint_delay_ps, is_played=False)


def fullest_ps(
    graph: Graph, program: Program, settings: Settings, schedule: int, members: Int64, size_bytes: int
) -> float:
    """Picoseconds of the most that a member sends or receives in an all-to-all with split sizes, as one message.

    Args:
        graph: the network.
        program: with the schedule.
        settings: packets and switching.
        schedule: number of the schedule, -1 = a group of one.
        members: int[n], NPUs of the group.
        size_bytes: of the buffer.
    """
    if schedule < 0:
        return 0.0
    fullest_bytes = most_bytes(program.schedules, schedule, size_bytes)
    if fullest_bytes == 0:
        return 0.0
    paths = (
        topologies.route(graph, int(members[src]), int(members[dst]))
        for src, dst, _ in _sends(program.schedules, schedule, _FEW_SENDS)
    )
    return min(train(graph, links, fullest_bytes, settings).total_ps for links in paths)


def _paths(
    graph: Graph, settings: Settings, s: Schedules, schedule: int, npus: list[int], *, one_way: bool
) -> list[Paths]:
    """Those of the messages of a schedule, each kind once; one_way: nothing comes in meanwhile."""
    known: dict[tuple[tuple[Hop, ...], bool], Paths] = {}
    few = [topologies.route(graph, npus[src], npus[dst]) for src, dst, _ in _sends(s, schedule, _FEW_SENDS)]
    hops = sum(map(len, few)) / len(few)
    sends = _sends(s, schedule, max(len(few), min(max(len(npus), _MOST_SENDS), int(_MOST_HOPS / hops))))
    routes = [topologies.route(graph, npus[src], npus[dst]) for src, dst, _ in sends]
    for (src, _, sender), links, way in zip(sends, routes, ways_of(graph, settings, routes), strict=True):
        answers = not one_way and sender != src and not settings.fidelity.alone_ps
        both_ways = answers and links[0] == min(next_links(graph, npus[src], npus[sender]))
        before = known.get((way, both_ways), Paths(links, both_ways, 0))
        known[way, both_ways] = before._replace(alike=before.alike + 1)
    return list(known.values())


def _on_the_wire(shape: Shape, settings: Settings, *, framed: bool) -> Shape:
    """The shape with the rates that are left for payload in full packets; NVLink is what joins the NPUs of a host.

    Inside a host and between hosts as much goes the other way, and is acknowledged.
    """
    if settings.fidelity.alone_ps:
        return shape

    def payload_bps(rate_bps: int, *, framed: bool, answered: bool = True) -> int:
        on_wire = float(wire_bytes(settings.mtu_bytes, framed, settings))
        on_wire += int(acknowledgement_bytes(framed, settings)) if answered else 0
        return int(rate_bps * settings.mtu_bytes / on_wire)

    rates = tuple(payload_bps(rate, framed=False, answered=False) for rate in shape.rate_bps)
    return shape._replace(
        line_bps=shape.lines_bps,
        rate_bps=rates,
        inside_bps=payload_bps(shape.inside_bps, framed=framed),
        outside_bps=payload_bps(shape.outside_bps, framed=False),
        trees=tuple(
            branch._replace(tree=_tree_on_the_wire(branch.tree, settings, framed=framed)) for branch in shape.trees
        ),
    )


def _tree_on_the_wire(tree: AggregatorTree, settings: Settings, *, framed: bool) -> AggregatorTree:
    """The tree with the rates that are left for payload; all links but one of a way add the last packet's time."""
    flits = np.array(tree.nvlink) & framed
    full = wire_bytes(settings.mtu_bytes, flits, settings).astype(np.float64)
    answer = acknowledgement_bytes(flits, settings)
    rate = np.array(tree.rate_bps)
    packet_ps = BITS_PER_BYTE * PS_PER_S * full / np.maximum(rate, 1) * np.maximum(np.array(tree.links) - 1, 0)
    return tree._replace(
        rate_bps=tuple((rate * settings.mtu_bytes / full).astype(np.int64).tolist()),
        both_ways_bps=tuple((rate * settings.mtu_bytes / (full + answer)).astype(np.int64).tolist()),
        latency_ps=tuple((np.array(tree.latency_ps) + packet_ps).astype(np.int64).tolist()),
    )


def _is_ring(s: Schedules, schedule: int) -> bool:
    """Everyone sends to the next."""
    return bool(s.relative[schedule]) and len(offsets(s, schedule)) == 1


def _sends(s: Schedules, schedule: int, most: int) -> list[tuple[int, int, int]]:
    """Messages: sender, receiver, who sends to that sender (itself where nobody does).

    All of them, or so many spread over the group.
    """
    n = int(s.members[schedule])
    if s.relative[schedule]:
        far = offsets(s, schedule)
        if n * len(far) <= most:
            ends = [(m, *each) for m in range(n) for each in far]
        else:
            members = [k % n for k in range(most)] if most >= n else _spread(n, most)
            ends = [(m, *far[which]) for m, which in zip(members, _spread(len(far), most, _SILVER), strict=True)]
        return [(m, peer(s, schedule, view, m, one), peer(s, schedule, view, m, -one)) for m, view, one in ends]
    peers = peers_of_members(s, schedule)
    sender_of = {dst: src for src in range(n) for dst in peers[src]}
    everyone = [(src, dst, sender_of.get(src, src)) for src in range(n) for dst in peers[src]]
    return everyone if len(everyone) <= most else [everyone[i] for i in _spread(len(everyone), most)]


def _spread(length: int, count: int, by: float = _GOLDEN) -> list[int]:
    """So many places below a length, evenly over it in the end and in every part of them, in step with no period.

    Multiples of an irrational number (Knuth, volume 3, section 6.4): every so-manieth place would meet the size of a
    host.
    """
    return [int(k * by % 1.0 * length) for k in range(count)]
