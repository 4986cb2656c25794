"""Time of one collective on an idle network: its steps are simulated, or the algorithm's formula gives the time.

Steps are simulated as packets. Where these are too many, messages are flows, and where messages are too many, too, the
formula gives the time.

A formula takes the latency and rate of the path. A message of b bytes between two NPUs is a train of packets: every
packet adds header_bytes, each link adds its delay, each switch adds its latency, and every link except the slowest adds
the time of the last packet (store and forward) or of its header (cut-through). If an NPU sends and receives over the
same cable, acknowledgements of received packets alternate with the packets that it sends. The formula contributes the
number of messages in a row. At message level the message model gives the time of a message. The path's latency includes
the delays at both ends of a message, except for reductions, which formulas omit.
"""

import math
from typing import NamedTuple

import numpy as np

from nadi import topologies, workload
from nadi.inputs.arrays import Int64
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.pdes import Settings
from nadi.pdes.wire import acknowledgement_bytes, wire_bytes
from nadi.simulation.closed_forms.isolated import IsolatedCollectives, Paths
from nadi.simulation.closed_forms.lone_message import Way, train, ways_of
from nadi.topologies import Graph, next_links
from nadi.workload import Program, Schedules, collectives
from nadi.workload.collectives import AggregatorTree
from nadi.workload.collectives.schedules import most_bytes, offsets, peer, peers_of_members, usual_message
from nadi.workload.shape import GroupShape, parallel_links, shape_of

_FEW_MEMBERS = 64  # number of members up to which no plan is coarse (workload.collectives)
_MAX_SAMPLED_SENDS = 1024  # maximum number of messages whose paths a formula samples
_FEW_SAMPLED_SENDS = 32  # number of messages whose paths the time of the busiest member samples
_GOLDEN, _SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1  # irrational steps for `_spread`


class ClosedForm(NamedTuple):
    """Time of a collective on an idle network."""

    time_ps: float  # time of the collective in picoseconds
    is_simulated: bool  # True if packets were simulated, False if flows, a formula or an interpolation give the time


def closed_form(
    graph: Graph,
    program: Program,
    settings: Settings,
    kind: str,
    algorithm: str,
    schedule: int,
    members: Int64,
    size_bytes: int,
    isolated: IsolatedCollectives | None = None,
) -> ClosedForm:
    """Return the time of one collective on an idle network.

    The function simulates the steps (`isolated`), as packets or as flows. If both would take too long, it evaluates the
    algorithm's formula. If the members' paths differ, the formula uses the rate of the slowest path and the latency of
    the longest one. A ring uses the mean latency of all paths but the fastest, because a chunk that travels round n
    members takes n - 1 of the ring's paths. An algorithm that knows the fabric reads latencies and rates from the
    group's shape.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        kind: Kind of collective, one of workload.KINDS.
        algorithm: Algorithm as users write it: its name or file, with parameters if any.
        schedule: Number of the schedule, -1 = a group of one.
        members: int64[n], NPUs of the group's members.
        size_bytes: Size of the buffer in bytes.
        isolated: Collectives of this program that were already simulated; the function adds to them. None = an empty
            set.
    """
    if schedule < 0:
        return ClosedForm(0.0, is_simulated=True)
    chosen, npus = collectives.choose(kind, algorithm), members.tolist()
    isolated = isolated or IsolatedCollectives()
    how = graph, program, settings, chosen, schedule, npus, size_bytes
    is_coarse = len(npus) > _FEW_MEMBERS and chosen.may_be_coarse
    if not is_coarse or not chosen.is_coarse(kind, shape_of(graph, members, trees=chosen.trees), size_bytes):
        simulated_ps = isolated.time_ps(*how)
        if simulated_ps is not None:
            return ClosedForm(simulated_ps, is_simulated=True)
        flows_ps = isolated.flows_ps(*how)
        if flows_ps is not None:
            return ClosedForm(flows_ps, is_simulated=False)
    # groups with equal positions share a formula
    key = schedule, size_bytes, isolated.position(tuple(npus))
    if key not in isolated.formulas_ps:
        arguments = graph, program, settings, kind, algorithm, schedule, members, size_bytes, isolated
        isolated.formulas_ps[key] = formula_ps(*arguments) + settings.fidelity.endpoint_delay_ps
    return ClosedForm(isolated.formulas_ps[key], is_simulated=False)


def formula_ps(
    graph: Graph,
    program: Program,
    settings: Settings,
    kind: str,
    algorithm: str,
    schedule: int,
    members: Int64,
    size_bytes: int,
    isolated: IsolatedCollectives,
) -> float:
    """Return the time of a collective by its algorithm's formula, without the endpoint's delay, as `closed_form`."""
    chosen, npus = collectives.choose(kind, algorithm), members.tolist()
    pays = chosen.pays(graph.accelerator)
    launch_ps = float(program.schedules.launch_ps[schedule]) if pays else 0.0
    if chosen.needs_shape:
        switched = not np.any((graph.link_src < graph.npus) & (graph.link_dst < graph.npus))
        shape = shape_of(graph, members, trees=chosen.trees)
        shape = payload_rates(shape, settings, framed=settings.nvlink_framing, switched=switched)
        if pays:
            shape = _data_rates(shape, *usual_message(program.schedules, schedule, size_bytes))
        return launch_ps + workload.closed_form(kind, algorithm, len(members), size_bytes, 0.0, 0.0, shape)
    data, payload = usual_message(program.schedules, schedule, size_bytes)
    key = schedule, tuple(npus)
    if key not in isolated.paths:
        one_way = bool(getattr(chosen.module, "ONE_WAY", False))
        isolated.paths[key] = _paths(graph, settings, program.schedules, schedule, npus, one_way=one_way)
    paths = isolated.paths[key]
    trains = [train(graph, path.links, math.ceil(payload), settings, both_ways=path.both_ways) for path in paths]
    serial_ps = max(t.serial_ps for t in trains)
    slowest_ps = max(t.total_ps for t in trains)
    is_ring = program.schedules.relative[schedule] and len(offsets(program.schedules, schedule)) == 1
    if is_ring:  # every member sends to one peer, at the same distance
        n, counts = len(members), [path.multiplicity for path in paths]
        mean_ps = sum(count * t.total_ps for count, t in zip(counts, trains, strict=True)) / sum(counts)
        # the mean of all n hops but the fastest: a chunk passes n - 1 of them, and the worst chunk misses the fastest
        slowest_ps = (n * mean_ps - min(t.total_ps for t in trains)) / (n - 1)
    latency_ps = max(0.0, slowest_ps - serial_ps)
    # bytes of data, not of the wire: headers and protocols make the rate lower instead of the message longer
    bytes_per_s = data / serial_ps * PS_PER_S if data and serial_ps else float("inf")
    # the stripes of a message share NICs by their rates: all together are faster than one NIC by what the others add
    link = max(zip(trains, paths, strict=True), key=lambda pair: pair[0].serial_ps)[1].links[0]
    bytes_per_s *= graph.port_shares[parallel_links(graph, members)].sum() / graph.port_shares[link]
    return launch_ps + workload.closed_form(kind, algorithm, len(members), size_bytes, latency_ps, bytes_per_s)


def busiest_member_ps(
    graph: Graph, program: Program, settings: Settings, schedule: int, members: Int64, size_bytes: int
) -> float:
    """Return the time of an all-to-all with split sizes as that of the busiest member's bytes on the fastest path.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        schedule: Number of the schedule, -1 = a group of one.
        members: int64[n], NPUs of the group's members.
        size_bytes: Size of the buffer in bytes.
    """
    if schedule < 0:
        return 0.0
    busiest_bytes = most_bytes(program.schedules, schedule, size_bytes)
    if busiest_bytes == 0:
        return 0.0
    paths = (
        topologies.route(graph, int(members[src]), int(members[dst]))
        for src, dst, _ in _sampled_sends(program.schedules, schedule, _FEW_SAMPLED_SENDS)
    )
    return min(train(graph, links, busiest_bytes, settings).total_ps for links in paths)


def _paths(
    graph: Graph, settings: Settings, schedules: Schedules, schedule: int, npus: list[int], *, one_way: bool
) -> list[Paths]:
    """Return distinct paths of a sample of messages between NPUs, with counts; one_way: none receives while sending."""
    kinds: dict[tuple[Way, bool], Paths] = {}
    sends = _sampled_sends(schedules, schedule, _MAX_SAMPLED_SENDS)
    routes = [topologies.route(graph, npus[src], npus[dst]) for src, dst, _ in sends]
    for (src, _, sender), links, way in zip(sends, routes, ways_of(graph, settings, routes), strict=True):
        answers = not one_way and sender != src and settings.fidelity.model.has_headers
        # the sender receives over the cable over which it sends, so its acknowledgements share the link
        both_ways = answers and links[0] == min(next_links(graph, npus[src], npus[sender]))
        paths = kinds.get((way, both_ways), Paths(links, both_ways, 0))
        kinds[way, both_ways] = paths._replace(multiplicity=paths.multiplicity + 1)
    return list(kinds.values())


def payload_rates(shape: GroupShape, settings: Settings, *, framed: bool, switched: bool) -> GroupShape:
    """Return the shape with rates for payload beside headers and answers.

    Args:
        shape: The shape of a group.
        settings: The engine's settings of the run (`pdes.Settings`).
        framed: Whether NVLink joins a host's NPUs.
        switched: Whether all links of NPUs lead to switches, so that members receive over the cable on which they send.
    """
    if not settings.fidelity.model.has_headers:
        return shape

    def payload_bps(rate_bps: int, *, framed: bool, answered: bool = True) -> int:
        """Return a link's payload rate in bits per second.

        Args:
            rate_bps: Rate of the link in bit/s.
            framed: Whether the link carries flits.
            answered: Whether the link also carries acknowledgements.
        """
        # bytes on the wire per full packet of payload, one acknowledgement for each
        on_wire = float(wire_bytes(settings.mtu_bytes, framed, settings))
        on_wire += int(acknowledgement_bytes(framed, settings)) if answered else 0
        return int(rate_bps * settings.mtu_bytes / on_wire)

    trees = (branch._replace(tree=_tree_payload_rates(branch.tree, settings, framed=framed)) for branch in shape.trees)
    return shape._replace(
        line_bps=shape.lines_bps,
        # a dimension inside hosts has the rate of their NVLinks
        rate_bps=tuple(
            payload_bps(rate, framed=framed and switched and rate == shape.inside_bps, answered=switched)
            for rate in shape.rate_bps
        ),
        inside_bps=payload_bps(shape.inside_bps, framed=framed),
        outside_bps=payload_bps(shape.outside_bps, framed=False),
        trees=tuple(trees),
    )


def _data_rates(shape: GroupShape, data: float, payload: float) -> GroupShape:
    """Return the shape with rates for data in place of payload, which also has the flags of a protocol.

    Args:
        shape: The shape of a group.
        data: The bytes of a message's data.
        payload: The bytes of the same message's payload.
    """
    if payload <= data:
        return shape

    def scaled(rates_bps: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(rate * data / payload) for rate in rates_bps)

    trees = (
        branch._replace(
            tree=branch.tree._replace(
                rate_bps=scaled(branch.tree.rate_bps), both_ways_bps=scaled(branch.tree.both_ways_bps)
            )
        )
        for branch in shape.trees
    )
    inside_bps, outside_bps = scaled((shape.inside_bps, shape.outside_bps))
    return shape._replace(
        rate_bps=scaled(shape.rate_bps), inside_bps=inside_bps, outside_bps=outside_bps, trees=tuple(trees)
    )


def _tree_payload_rates(tree: AggregatorTree, settings: Settings, *, framed: bool) -> AggregatorTree:
    """Return the tree with the rates that full packets leave for payload; framed: NVLink links frame packets."""
    flits = np.array(tree.nvlink) & framed
    full = wire_bytes(settings.mtu_bytes, flits, settings).astype(np.float64)
    answer = acknowledgement_bytes(flits, settings)
    rate = np.array(tree.rate_bps)
    # switches store and forward: each link but the first delays the message by one more full packet
    packet_ps = BITS_PER_BYTE * PS_PER_S * full / np.maximum(rate, 1) * np.maximum(np.array(tree.links) - 1, 0)
    return tree._replace(
        rate_bps=tuple((rate * settings.mtu_bytes / full).astype(np.int64).tolist()),
        both_ways_bps=tuple((rate * settings.mtu_bytes / (full + answer)).astype(np.int64).tolist()),
        latency_ps=tuple((np.array(tree.latency_ps) + packet_ps).astype(np.int64).tolist()),
    )


def _sampled_sends(schedules: Schedules, schedule: int, max_sends: int) -> list[tuple[int, int, int]]:
    """Return (sender, receiver, the member that sends to that sender or else the sender) of each message.

    A schedule with more than `max_sends` messages returns `max_sends` of them, spread over the group.
    """
    n = int(schedules.members[schedule])
    if schedules.relative[schedule]:
        far = offsets(schedules, schedule)
        # relative plans name distances, so every member sends over the same ones
        if n * len(far) <= max_sends:
            ends = [(m, *offset) for m in range(n) for offset in far]
        else:
            # each member once before any twice
            members = [k % n for k in range(max_sends)] if max_sends >= n else _spread(n, max_sends)
            ends = [(m, *far[which]) for m, which in zip(members, _spread(len(far), max_sends, _SILVER), strict=True)]
        return [
            (m, peer(schedules, schedule, view, m, distance), peer(schedules, schedule, view, m, -distance))
            for m, view, distance in ends
        ]
    peers = peers_of_members(schedules, schedule)
    sender_of = {dst: src for src in range(n) for dst in peers[src]}
    messages = [(src, dst, sender_of.get(src, src)) for src in range(n) for dst in peers[src]]
    return messages if len(messages) <= max_sends else [messages[i] for i in _spread(len(messages), max_sends)]


def _spread(length: int, count: int, irrational_step: float = _GOLDEN) -> list[int]:
    """Return `count` indices below `length` that cover it evenly, as does every prefix of them.

    The indices are multiples of an irrational number (Knuth, volume 3, section 6.4). A regular stride could coincide
    with the number of NPUs per host.
    """
    return [int(k * irrational_step % 1.0 * length) for k in range(count)]
