"""Idle fabric of a group's messages: ports, links, and the times of a packet on them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

import topologies
from nadi.simulation.closed_forms import lone_message as lone
from nadi.simulation.closed_forms.playing.state import MessageEnds
from pdes import Fidelity, Settings
from pdes.kernels import row_of
from pdes.wire import window_packets, wire_bytes
from topologies import Graph, TableRouting
from workload.collectives.plans.plan import NONE

_LARGE_WINDOW = 1 << 40  # window in packets that never fills, for message level
_TIES_BY_SENDER = -1  # seed that orders simultaneous packets by their sender
_UNLIMITED_BYTES = 1 << 62  # payload of a packet that holds any message


class Path(NamedTuple):
    """Path from one member to another; members with equal positions have equal paths."""

    first: int  # number of the sender's own port
    # number of the second port at which packets queue, -1 = the path has one link. It is the port of the slowest link
    # after the first, or the last of several slowest. Pairs share this port only if the link is the last one of the
    # path.
    last: int
    hops: lone.Way  # all links in order
    # number of the links after the first port that keep the sender's packets in order, -1 = there are no such links, or
    # hashes choose the links
    order: int = NONE
    # number of the port before the last at which all paths to the receiver have met, -1 = no such port. This port sets
    # the order of packets to the receiver.
    meets: int = NONE


Pair = tuple[int, int]  # sender and receiver, as members of the group
Key = tuple[tuple[Pair, Path], ...]


class PathTimes(NamedTuple):
    """Times of a packet on a path in picoseconds."""

    first_ps: float  # time that the first port is busy
    head_ps: float  # time from the start of sending until the second port, or the port where paths meet, may begin
    last_ps: float  # time that the second port is busy
    # time from the last bit sent until the second port is done, if it begins at once; without a second port, until the
    # last bit arrives
    tail_ps: float
    after_ps: float  # time from the end of the second port until the last bit arrives
    left_ps: float  # time from the start of sending until the last byte has left
    between_ps: float = 0.0  # time that the slowest link between the ports is busy, 0 = no such link
    seen_ps: float = 0.0  # time from the start on that link until the switch behind it may forward the packet
    meet_ps: float = 0.0  # time that the port where paths meet is busy, 0 = no such port
    on_head_ps: float = 0.0  # time from the start at that port until the second port may begin
    on_tail_ps: float = 0.0  # time from the last bit sent there until the second port is done, if it begins at once


class IdleFabric(NamedTuple):
    """Ports, links and packet times on which a schedule is played."""

    paths: dict[Pair, Path]  # path of each pair of sender and receiver, as members of the group
    # per pair, the link to the switch of the port where paths meet (else of the last port), that switch's latency in
    # picoseconds, and the link to the receiver
    links: dict[Pair, tuple[int, int, int]]
    mtu_bytes: int  # payload of a full packet in bytes
    window_packets: int  # maximum number of unacknowledged packets of a queue pair
    # seed of the hash that orders packets which reach a node at the same moment; -1 = the order is by sender, and
    # `links` holds senders instead of links
    seed: int
    # returns the times of a packet with this payload, or of an acknowledgement, on these links
    times: Callable[[lone.Way, int], PathTimes]
    # returns the picoseconds per byte of payload in full packets at a link's line rate; None = message level
    moved_ps: Callable[[lone.Hop], float] | None
    ends: Annotated[np.record, MessageEnds]  # delays at the ends of messages

    @property
    def is_message_level(self) -> bool:
        """Return whether the fabric belongs to a message-level model, which has no acknowledgements."""
        return self.moved_ps is None

    @property
    def key(self) -> Key:
        """Return a key that is equal for groups with equal positions."""
        return tuple(self.paths.items())


def with_port_ties(fabric: IdleFabric) -> IdleFabric:
    """Return the fabric with ports instead of links in the order of ties, so that equal positions take equal time."""
    if fabric.seed == _TIES_BY_SENDER:
        return fabric
    ties = {pair: (path.first, fabric.links[pair][1], path.last) for pair, path in fabric.paths.items()}
    return fabric._replace(links=ties)


def fabric_of(graph: Graph, settings: Settings, npus: list[int], pairs: Iterable[Pair]) -> IdleFabric:
    """Return the idle fabric of messages between pairs of members; acknowledgements use the other direction."""
    both = sorted({pair for src, dst in pairs for pair in ((src, dst), (dst, src))})
    routed = {(src, dst): _route(graph, settings, npus[src], npus[dst]) for src, dst in both}
    links = {pair: route.links for pair, route in routed.items()}
    ways = dict(zip(links, lone.ways_of(graph, settings, list(links.values())), strict=True))
    if settings.fidelity.has_headers:
        ways |= _meeting(routed, ways)
    ports: dict[object, int] = {}
    orders: dict[object, int] = {}
    paths, ties = {}, {}
    for pair, own in links.items():
        way, queue, before = ways[pair], _slowest(ways[pair]), _first_queue(ways[pair])
        last = meets = order = NONE
        if queue > 0 and settings.fidelity.congestion_aware:
            key: object = ("last", own[queue]) if queue == len(own) - 1 else pair
            last = ports.setdefault(key, len(ports))
        if before < queue:
            meets = ports.setdefault(("meets", pair[1]), len(ports))
        if before > 1 and routed[pair].is_only:
            # packets keep their order on the slowest link before their queue
            between = _slowest(way[:before])
            behind_ps = sum(way[i].delay_ps + way[i + 1].latency_ps for i in range(between, before))
            order = orders.setdefault((pair[0], own[between], behind_ps), len(orders))
        paths[pair] = Path(ports.setdefault(own[0], len(ports)), last, way, order, meets)
        ties[pair] = own[max(0, before - 1)], way[before].latency_ps, own[-1]
    fabric = IdleFabric(
        paths=paths,
        links=ties,
        mtu_bytes=settings.mtu_bytes,
        window_packets=window_packets(graph, settings),
        seed=settings.seed,
        times=lambda way, size: packet_times(way, size, settings),
        moved_ps=lambda hop: (
            float(wire_bytes(settings.mtu_bytes, np.array(hop.framed), settings)) * hop.ps_per_byte / settings.mtu_bytes
        ),
        ends=_ends(settings.fidelity),
    )
    if not settings.fidelity.has_headers:
        return fabric._replace(
            mtu_bytes=_UNLIMITED_BYTES,
            window_packets=_LARGE_WINDOW,
            times=lambda way, size: _message_level_times(way, size, settings.fidelity),
            moved_ps=None,
            seed=_TIES_BY_SENDER,
            links={(a, b): (npus[a], latency_ps, npus[a]) for (a, b), (_, latency_ps, _) in ties.items()},
        )
    return fabric


class _Route(NamedTuple):
    """Route from one NPU to another."""

    links: list[int]  # links in order; if hashes choose among equal links, the first of them
    is_only: bool  # True if every packet takes these links: there are no equal links, or a rule chooses by destination


def _route(graph: Graph, settings: Settings, src: int, dst: int) -> _Route:
    routing, rule = graph.routing, settings.load_balancing
    has_rule = rule.by_destination and isinstance(routing, TableRouting) and routing.home.shape[1] == 1
    number = int(graph.host[dst]) if has_rule and rule.by_host else dst
    is_only = True

    def chosen(equal: Sequence[int]) -> int:
        nonlocal is_only
        if len(equal) > 1 and has_rule and int(graph.link_src[equal[0]]) >= graph.npus:
            return equal[number % len(equal)]
        is_only &= len(equal) == 1
        return min(equal)

    return _Route(topologies.route(graph, src, dst, chosen), is_only)


def _meeting(routed: dict[Pair, _Route], ways: dict[Pair, lone.Way]) -> dict[Pair, lone.Way]:
    """Return the paths on which the paths of several senders meet before the last of the slowest links, marked there.

    They meet at the first of the links that all of them have in common.
    """
    to: dict[int, list[Pair]] = {}
    for pair in routed:
        to.setdefault(pair[1], []).append(pair)
    marked = {}
    for pairs in to.values():
        if len(pairs) == 1 or not all(routed[pair].is_only for pair in pairs):
            continue
        ends = [routed[pair].links[:0:-1] for pair in pairs]
        is_common = [len(set(links)) == 1 for links in zip(*ends, strict=False)]
        common = [*is_common, False].index(False)
        for pair in pairs:
            way = ways[pair]
            first, queue = len(way) - common, _slowest(way)
            if common and first < queue:
                marked[pair] = (*way[:first], way[first]._replace(meets=True), *way[first + 1 :])
    return marked


def _first_queue(way: lone.Way) -> int:
    """Return the index of the link after the first at which packets queue: where paths meet, or the slowest one."""
    return next((i for i, hop in enumerate(way) if hop.meets), _slowest(way))


def _ends(model: Fidelity) -> np.record:
    """Return the delays at the ends of messages; at message level, PathTimes include the delay before receivers act."""
    ends = row_of(MessageEnds)
    ends.begin_ps, ends.send_ps = model.endpoint_delay_ps, model.send_latency_ps
    ends.act_ps = 0 if model.alone_ps else model.endpoint_delay_ps
    ends.memory_ps_per_byte, ends.resolution_ps = model.reduction_psb, model.resolution_ps
    ends.counts_back = model.acknowledged
    return ends


def _slowest(way: lone.Way) -> int:
    """Return the index of the last of the slowest links after the first; 0 = the path has one link."""
    return max(range(1, len(way)), key=lambda i: (way[i].ps_per_byte, i), default=0)


def packet_times(way: lone.Way, size_bytes: int, settings: Settings) -> PathTimes:
    """Return the times of a packet, or of an ACKNOWLEDGEMENT, on these links.

    Ports are busy for whole picoseconds, so that packets tie here if they tie in the engine.
    """
    on_wire, psb = lone.bytes_on(way, size_bytes, settings), lone.rates_of(way)
    own, forward = (np.floor(size * psb + 0.5).tolist() for size in (on_wire, lone.bytes_seen(on_wire, settings)))
    fixed = [hop.delay_ps + (way[i + 1].latency_ps if i + 1 < len(way) else 0) for i, hop in enumerate(way)]
    queue, meets = _slowest(way), _first_queue(way)
    before = sum(forward[1:meets]) + sum(fixed[:meets])
    after_ps = sum(forward[queue + 1 :]) + sum(fixed[queue:])
    tail_ps = before + forward[meets] if queue else 0.0
    between = _slowest(way[:meets])
    busy = (own[between], forward[between]) if between else (0.0, 0.0)
    times = PathTimes(own[0], forward[0] + before, own[queue], tail_ps, after_ps, own[0], *busy)
    if meets == queue:
        return times
    fixed_ps = sum(fixed[meets:queue])
    on_head_ps, on_tail_ps = sum(forward[meets:queue]) + fixed_ps, sum(forward[meets + 1 : queue + 1]) + fixed_ps
    return times._replace(meet_ps=own[meets], on_head_ps=on_head_ps, on_tail_ps=on_tail_ps)


def _message_level_times(way: lone.Way, size_bytes: int, model: Fidelity) -> PathTimes:
    """Return the times of a message at message level by the run's model: hop by hop, or without busy links."""
    if size_bytes in {lone.ACKNOWLEDGEMENT, _UNLIMITED_BYTES}:  # message level has no such packets
        return PathTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def taken_ps(hops: lone.Way, *, fixed: bool = True) -> float:
        return float(lone.message_level_ps(hops, np.array([size_bytes]), model, fixed=fixed)[0])

    queue, delay_ps = _slowest(way), float(model.endpoint_delay_ps)
    if not model.congestion_aware:
        total_ps = taken_ps(way)
        return PathTimes(0.0, total_ps, 0.0, total_ps, delay_ps, taken_ps(way, fixed=False))
    first_ps = taken_ps((way[0]._replace(shares=1),), fixed=False)
    left_ps = taken_ps(way[:1], fixed=False)
    if queue == 0:
        return PathTimes(first_ps, 0.0, 0.0, taken_ps(way) - first_ps, delay_ps, left_ps)
    head_ps = taken_ps(way[:queue]) + way[queue].latency_ps
    last_ps = taken_ps((way[queue],), fixed=False)
    after_ps = taken_ps(way[queue:]) - way[queue].latency_ps - last_ps + delay_ps
    between = _slowest(way[:queue])
    busy_ps = taken_ps((way[between],), fixed=False) if between else 0.0
    return PathTimes(first_ps, head_ps, last_ps, head_ps - first_ps + last_ps, after_ps, left_ps, busy_ps, busy_ps)
