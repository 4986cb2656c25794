"""What messages of a group pass on an idle fabric: ports, links, and the time of a packet on them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

import topologies
from nadi.simulation.closed_forms.lone_message import (
    ACKNOWLEDGEMENT,
    Hop,
    Way,
    bytes_on,
    bytes_seen,
    rates_of,
    ways_of,
    whole_ps,
)
from pdes import Fidelity, Settings
from pdes.wire import window_packets, wire_bytes
from topologies import Graph, TableRouting
from workload.collectives.plans.plan import NONE

_LARGE_WINDOW = 1 << 40
_BY_SENDER = -1
_WHOLE = 1 << 62
"""Payload of a packet that no message needs two of."""


class Path(NamedTuple):
    """From a member to another; members that stand alike have equal paths.

    Attributes:
        first: number of the port that the sender sends by.
        last: number of the port at which packets queue after that: of the slowest link, of several the last, which
            only the last of all shares with other pairs; -1 = there is one link.
        hops: all links in order.
        order: number of the links after the first port that keep the order of what the sender sends over them; -1 =
            there are none, or hashes tell what takes them.
        meets: number of the port before the last at which all paths to the receiver have met, -1 = none: there what
            comes to the receiver gets its order.
    """

    first: int
    last: int
    hops: Way
    order: int = NONE
    meets: int = NONE


Pair = tuple[int, int]
"""Sender and receiver, members of the group."""
Key = tuple[tuple[Pair, Path], ...]


class PathTimes(NamedTuple):
    """Picoseconds of a packet on a path.

    Attributes:
        first_ps: the first port is busy.
        head_ps: from when it begins to be sent until the second port, or that where paths meet, may begin.
        last_ps: the second port is busy.
        tail_ps: from its last bit sent until that port, which begins at once, is done, or is here if there is none.
        after_ps: from there until its last bit is here.
        left_ps: from when it begins to be sent until its last byte has left.
        between_ps: the slowest link between the ports is busy, 0 = there is none.
        seen_ps: from when it begins there until the switch behind that link may send it on.
        meet_ps: the port where paths meet is busy, 0 = there is none.
        on_head_ps: from when it begins there until the second port may begin.
        on_tail_ps: from its last bit sent there until the second port, which begins at once, is done.
    """

    first_ps: float
    head_ps: float
    last_ps: float
    tail_ps: float
    after_ps: float
    left_ps: float
    between_ps: float = 0.0
    seen_ps: float = 0.0
    meet_ps: float = 0.0
    on_head_ps: float = 0.0
    on_tail_ps: float = 0.0


class PathEnds(NamedTuple):
    """What passes at the ends of a message, beside its Times.

    Attributes:
        begin_ps: before the first step of a collective.
        send_ps: from when it is posted until its first packet may be sent.
        act_ps: before its receiver acts on it.
        memory_psb: per byte that goes through memory where it is added to what is there, 0 = no time.
        resolution_ps: of that time.
        counts_back: it counts from when its last acknowledgement is back.
    """

    begin_ps: float = 0.0
    send_ps: float = 0.0
    act_ps: float = 0.0
    memory_psb: float = 0.0
    resolution_ps: float = 1.0
    counts_back: float = 0.0


class IdleFabric(NamedTuple):
    """What a schedule is played on.

    Attributes:
        paths: by sender and receiver, members of the group.
        links: likewise, by which packets come to the switch of the port where paths meet, or else of the last, that
            switch's latency (ps), and by which they come to the receiver.
        mtu_bytes: payload of a full packet.
        window_packets: that a queue pair may have unacknowledged.
        seed: by which packets that come to a node at the same moment are ordered; -1 = by the sender, which then stands
            in place of the links.
        times: of a packet with that payload, or of an acknowledgement, on those links.
        moved_ps: per byte of payload in full packets at the line rate of a link; None = at message level.
        ends: of messages.
    """

    paths: dict[Pair, Path]
    links: dict[Pair, tuple[int, int, int]]
    mtu_bytes: int
    window_packets: int
    seed: int
    times: Callable[[Way, int], PathTimes]
    moved_ps: Callable[[Hop], float] | None
    ends: PathEnds = PathEnds()

    @property
    def is_whole(self) -> bool:
        """Of a message-level model, in which nothing is acknowledged."""
        return self.moved_ps is None

    @property
    def key(self) -> Key:
        """Equal for groups that stand alike."""
        return tuple(self.paths.items())


def with_own_ties(fabric: IdleFabric) -> IdleFabric:
    """With ports in place of links where packets tie, so that groups that stand alike take the same time."""
    if fabric.seed == _BY_SENDER:
        return fabric
    ties = {pair: (path.first, fabric.links[pair][1], path.last) for pair, path in fabric.paths.items()}
    return fabric._replace(links=ties)


def fabric_of(graph: Graph, settings: Settings, npus: list[int], pairs: Iterable[Pair]) -> IdleFabric:
    """What a group's messages pass.

    Args:
        graph: the network, with the aggregators that are members.
        settings: packets and switching.
        npus: of each member.
        pairs: members that send and receive; acknowledgements go the other way.
    """
    both = sorted({pair for src, dst in pairs for pair in ((src, dst), (dst, src))})
    routed = {(src, dst): _route(graph, settings, npus[src], npus[dst]) for src, dst in both}
    links = {pair: route.links for pair, route in routed.items()}
    ways = dict(zip(links, ways_of(graph, settings, list(links.values())), strict=True))
    if not settings.fidelity.alone_ps:
        ways |= _meeting(routed, ways)
    ports: dict[object, int] = {}
    orders: dict[object, int] = {}
    paths, ties = {}, {}
    for pair, own in links.items():
        way, queue, before = ways[pair], _slowest(ways[pair]), _before(ways[pair])
        last = meets = order = NONE
        if queue > 0 and settings.fidelity.congestion_aware:
            key: object = ("last", own[queue]) if queue == len(own) - 1 else pair
            last = ports.setdefault(key, len(ports))
        if before < queue:
            meets = ports.setdefault(("meets", pair[1]), len(ports))
        if before > 1 and routed[pair].is_only:
            order = orders.setdefault(_shared(pair, routed[pair], way), len(orders))
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
    if settings.fidelity.alone_ps:
        return fabric._replace(
            mtu_bytes=_WHOLE,
            window_packets=_LARGE_WINDOW,
            times=lambda way, size: _whole(way, size, settings.fidelity),
            moved_ps=None,
            seed=_BY_SENDER,
            links={(a, b): (npus[a], latency_ps, npus[a]) for (a, b), (_, latency_ps, _) in ties.items()},
        )
    return fabric


class _Route(NamedTuple):
    """From an NPU to another.

    Attributes:
        links: in order; where hashes tell which of equal ones, the first.
        is_only: every packet takes these: none are equal, or a rule tells that goes by the destination.
    """

    links: list[int]
    is_only: bool


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


def _meeting(routed: dict[Pair, _Route], ways: dict[Pair, Way]) -> dict[Pair, Way]:
    """Ways to receivers to which those of several members meet before the last of the slowest links, marked there.

    They meet at the first of the links that all have in common.
    """
    to: dict[int, list[Pair]] = {}
    for pair in routed:
        to.setdefault(pair[1], []).append(pair)
    marked = {}
    for pairs in to.values():
        if len(pairs) == 1 or not all(routed[pair].is_only for pair in pairs):
            continue
        ends = [routed[pair].links[:0:-1] for pair in pairs]
        alike = [len(set(links)) == 1 for links in zip(*ends, strict=False)]
        common = [*alike, False].index(False)
        for pair in pairs:
            way = ways[pair]
            first, queue = len(way) - common, _slowest(way)
            if common and first < queue:
                marked[pair] = (*way[:first], way[first]._replace(meets=True), *way[first + 1 :])
    return marked


def _before(way: Way) -> int:
    """The first link after the sender's own at which packets queue: where paths meet, or the last of the slowest."""
    return next((i for i, hop in enumerate(way) if hop.meets), _slowest(way))


def _shared(pair: Pair, route: _Route, way: Way) -> object:
    """What packets that keep their order on the slowest link before their queue have in common."""
    before = _before(way)
    between = _slowest(way[:before])
    behind_ps = sum(way[i].delay_ps + way[i + 1].latency_ps for i in range(between, before))
    return pair[0], route.links[between], behind_ps


def _ends(model: Fidelity) -> PathEnds:
    """What passes at the ends of messages; Times at message level have what passes before receivers act."""
    return PathEnds(
        begin_ps=float(model.endpoint_delay_ps),
        send_ps=float(model.send_latency_ps),
        act_ps=0.0 if model.alone_ps else float(model.endpoint_delay_ps),
        memory_psb=model.reduction_psb,
        resolution_ps=float(model.resolution_ps),
        counts_back=float(model.acknowledged),
    )


def _slowest(way: Way) -> int:
    """Of the links after the first, the last of the slowest; 0 = there is none."""
    return max(range(1, len(way)), key=lambda i: (way[i].ps_per_byte, i), default=0)


def packet_times(way: Way, size_bytes: int, settings: Settings) -> PathTimes:
    """A packet, or an acknowledgement, on these links; a port takes whole picoseconds, so that what ties does tie.

    Args:
        way: all links in order.
        size_bytes: payload; ACKNOWLEDGEMENT = an acknowledgement.
        settings: packets and switching.
    """
    on_wire, psb = bytes_on(way, size_bytes, settings), rates_of(way)
    own, forward = (np.floor(size * psb + 0.5).tolist() for size in (on_wire, bytes_seen(on_wire, settings)))
    fixed = [hop.delay_ps + (way[i + 1].latency_ps if i + 1 < len(way) else 0) for i, hop in enumerate(way)]
    queue, meets = _slowest(way), _before(way)
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


def _whole(way: Way, size_bytes: int, model: Fidelity) -> PathTimes:
    """A message at message level, by the run's model: over one link after another, or with no link ever busy."""
    if size_bytes in {ACKNOWLEDGEMENT, _WHOLE}:  # there is none
        return PathTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def taken_ps(hops: Way, *, fixed: bool = True) -> float:
        return float(whole_ps(hops, np.array([size_bytes]), model, fixed=fixed)[0])

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
