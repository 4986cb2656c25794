"""What messages of a group pass on an idle fabric: ports, links, and the time of a packet on them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

import topologies
from nadi.closed_forms.lone_message import ACKNOWLEDGEMENT, Hop, Way, bytes_on, bytes_seen, rates_of, ways_of, whole_ps
from pdes.build.fabric import window_packets
from pdes.build.settings import Settings
from pdes.messages.fidelity import Fidelity
from pdes.network.framing import wire_bytes
from topologies import Graph, TableRouting
from workload.plans.plan import NONE

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
        in_order: all that its sender sends its receiver goes this way between the ports, and so keeps its order.
    """

    first: int
    last: int
    hops: Way
    in_order: bool = False


Pair = tuple[int, int]
"""Sender and receiver, members of the group."""
Key = tuple[tuple[Pair, Path], ...]


class Times(NamedTuple):
    """Picoseconds of a packet on a path.

    Attributes:
        first_ps: the first port is busy.
        head_ps: from when it begins to be sent until the second port may begin.
        last_ps: the second port is busy.
        tail_ps: from its last bit sent until the second port, which begins at once, is done, or is here if there is
            none.
        after_ps: from there until its last bit is here.
        left_ps: from when it begins to be sent until its last byte has left.
        between_ps: the slowest link between the ports is busy, 0 = there is none.
        seen_ps: from when it begins there until the switch behind that link may send it on.
    """

    first_ps: float
    head_ps: float
    last_ps: float
    tail_ps: float
    after_ps: float
    left_ps: float
    between_ps: float = 0.0
    seen_ps: float = 0.0


class Ends(NamedTuple):
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
        links: likewise, by which packets come to the switch of the path's last port, that switch's latency (ps), and by
            which they come to the receiver.
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
    times: Callable[[Way, int], Times]
    moved_ps: Callable[[Hop], float] | None
    ends: Ends = Ends()

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
    links = {pair: links for pair, (links, _) in routed.items()}
    ports: dict[object, int] = {}
    paths, ties = {}, {}
    for (pair, own), way in zip(links.items(), ways_of(graph, settings, list(links.values())), strict=True):
        queue = _slowest(way)
        last = NONE
        if queue > 0 and settings.fidelity.congestion_aware:
            key: object = ("last", own[queue]) if queue == len(own) - 1 else pair
            last = ports.setdefault(key, len(ports))
        paths[pair] = Path(ports.setdefault(own[0], len(ports)), last, way, queue > 1 and routed[pair][1])
        ties[pair] = own[max(0, queue - 1)], way[queue].latency_ps, own[-1]
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


def _route(graph: Graph, settings: Settings, src: int, dst: int) -> tuple[list[int], bool]:
    """The links from an NPU to another, and whether every packet takes these: none are equal, or the rule tells."""
    routing = graph.routing
    one_home = isinstance(routing, TableRouting) and routing.home.shape[1] == 1
    by_rule = one_home and settings.load_balancing.by_destination
    is_only = True

    def first(equal: Sequence[int]) -> int:
        nonlocal is_only
        is_only &= len(equal) == 1 or (by_rule and int(graph.link_src[equal[0]]) >= graph.npus)
        return min(equal)

    return topologies.route(graph, src, dst, first), is_only


def _ends(model: Fidelity) -> Ends:
    """What passes at the ends of messages; Times at message level have what passes before receivers act."""
    return Ends(
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


def packet_times(way: Way, size_bytes: int, settings: Settings) -> Times:
    """A packet, or an acknowledgement, on these links; a port takes whole picoseconds, so that what ties does tie.

    Args:
        way: all links in order.
        size_bytes: payload; ACKNOWLEDGEMENT = an acknowledgement.
        settings: packets and switching.
    """
    on_wire, psb = bytes_on(way, size_bytes, settings), rates_of(way)
    own, forward = (np.floor(size * psb + 0.5).tolist() for size in (on_wire, bytes_seen(on_wire, settings)))
    fixed = [hop.delay_ps + (way[i + 1].latency_ps if i + 1 < len(way) else 0) for i, hop in enumerate(way)]
    queue = _slowest(way)
    before = sum(forward[1:queue]) + sum(fixed[:queue])
    after_ps = sum(forward[queue + 1 :]) + sum(fixed[queue:])
    tail_ps = before + forward[queue] if queue else 0.0
    between = _slowest(way[:queue])
    busy = (own[between], forward[between]) if between else (0.0, 0.0)
    return Times(own[0], forward[0] + before, own[queue], tail_ps, after_ps, own[0], *busy)


def _whole(way: Way, size_bytes: int, model: Fidelity) -> Times:
    """A message at message level, by the run's model: over one link after another, or with no link ever busy."""
    if size_bytes in {ACKNOWLEDGEMENT, _WHOLE}:  # there is none
        return Times(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def taken_ps(hops: Way, *, fixed: bool = True) -> float:
        return float(whole_ps(hops, np.array([size_bytes]), model, fixed=fixed)[0])

    queue, delay_ps = _slowest(way), float(model.endpoint_delay_ps)
    if not model.congestion_aware:
        total_ps = taken_ps(way)
        return Times(0.0, total_ps, 0.0, total_ps, delay_ps, taken_ps(way, fixed=False))
    first_ps = taken_ps((way[0]._replace(shares=1),), fixed=False)
    left_ps = taken_ps(way[:1], fixed=False)
    if queue == 0:
        return Times(first_ps, 0.0, 0.0, taken_ps(way) - first_ps, delay_ps, left_ps)
    head_ps = taken_ps(way[:queue]) + way[queue].latency_ps
    last_ps = taken_ps((way[queue],), fixed=False)
    after_ps = taken_ps(way[queue:]) - way[queue].latency_ps - last_ps + delay_ps
    between = _slowest(way[:queue])
    busy_ps = taken_ps((way[between],), fixed=False) if between else 0.0
    return Times(first_ps, head_ps, last_ps, head_ps - first_ps + last_ps, after_ps, left_ps, busy_ps, busy_ps)
