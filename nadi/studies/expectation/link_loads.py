"""Loads of the links between hosts: the time that the busiest link needs, with even and with hashed paths.

The algorithm's formula and its simulation alone know each GPU's own ports only. What leaves and spines add is the time
of their busiest link for the bytes that a collective puts there. Adaptive routing and spraying divide a message evenly
among equal links; ECMP gives each connection one of them, by a hash. A hash is a draw here, and several draws show how
much collisions cost. Coupled flows (docs/explanation/fidelity.md) move at the rate of their busiest link, too.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64, spans
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.pdes import Settings
from nadi.topologies import Graph, describe, next_links, tier_of_node
from nadi.workload import Program, Schedules
from nadi.workload.program.traffic import traffic

DRAWS = 16  # number of draws of hashed paths
MAX_CONNECTIONS = 1 << 15  # number of connections whose paths are followed, each in 10 us for a draw
MAX_CONNECTIONS_OF_PAIR = 64  # maximum number of connections between two NPUs (pdes.core.packet)
_TIERS = {1: "leaf", 2: "spine", 3: "core"}  # name of a cable between switches by the tier of its lower end
_SPREADS = frozenset({"static", "source", "rail"})  # rules without `reorders` that do not hash connections either


class FabricTime(NamedTuple):
    """The time of the busiest link between switches of a fabric."""

    time_ps: float
    tier: str  # leaf, spine or core: the tier of the link's lower end; "" = no link between switches is used


def is_hashed(graph: Graph, settings: Settings) -> bool:
    """Return whether switches choose the path of a connection by a hash among several.

    Args:
        graph: The fabric.
        settings: The settings of the engine.
    """
    rule = settings.load_balancing
    return not rule.reorders and rule.name not in _SPREADS and graph.routing.ecmp_width() > 1


def is_oversubscribed(graph: Graph) -> bool:
    """Return whether some switch has less rate upwards than from below, or the fabric has no tiers.

    Args:
        graph: The fabric.
    """
    ratios = describe(graph).get("oversubscription")
    return not isinstance(ratios, dict) or any(ratio > 1 for ratio in ratios.values())


class PairBytes(NamedTuple):
    """Bytes that NPUs of different hosts send to each other."""

    src: Int64  # int64[p], sending NPU
    dst: Int64  # int64[p], receiving NPU
    bytes: Int64  # int64[p], payload


def of_program(graph: Graph, program: Program, members: Int64) -> PairBytes:
    """Return what the members of a collective send to other hosts.

    Args:
        graph: The fabric.
        program: The program of the collective, whose NPUs are the members 0, 1, ... and then switches that reduce.
        members: int64[n], NPU of each member.
    """
    sent = traffic(program)
    is_npu = (sent.src < len(members)) & (sent.dst < len(members))
    return between_hosts(graph, members[sent.src[is_npu]], members[sent.dst[is_npu]], sent.bytes[is_npu])


def connections_of(graph: Graph, schedules: Schedules, members: Int64, pairs: int) -> float:
    """Return the mean number of connections between members of different hosts that send to each other.

    Args:
        graph: The fabric.
        schedules: The schedule of the collective, number 0.
        members: int64[n], NPU of each member.
        pairs: The number of pairs of members of different hosts that send to each other.
    """
    s, n = schedules, len(members)
    hosts = graph.host[members].astype(np.int64)
    if s.relative[0]:
        # each lane is a ring, which crosses from each host to the next one over a connection of its own
        rings = {(int(s.lane_view[lane]), int(s.lane_connection[lane])) for lane in range(len(s.lane_connection))}
        return len(rings) * len(np.unique(hosts)) / max(1, pairs)
    plan = s.plan_of[: int(s.members[0])][:n]
    first = s.lane_ptr[s.plan_ptr[plan]]
    member, step = spans(first, s.lane_ptr[s.plan_ptr[plan + 1]] - first)
    sends = s.send_peer[step] >= 0
    member, step = member[sends], step[sends]
    lane = np.searchsorted(s.lane_ptr, step, side="right") - 1
    peer = s.named(member, s.send_peer[step]).astype(np.int64)
    is_far = (peer < n) & (hosts[np.minimum(peer, n - 1)] != hosts[member])
    ends = member[is_far] * n + peer[is_far]
    of_connections = np.unique(ends * MAX_CONNECTIONS_OF_PAIR + s.lane_connection[lane[is_far]])
    return len(of_connections) / max(1, len(np.unique(ends)))


def of_shift(graph: Graph, members: Int64, size_bytes: int, *, relays: bool) -> PairBytes:
    """Return what members send to other hosts if each sends a message to the next one.

    Args:
        graph: The fabric.
        members: int64[n], NPU of each member.
        size_bytes: The size of each message in bytes.
        relays: Whether the NPU of the sender's host on the receiver's rail sends it on (PXN).
    """
    src, dst = members, np.roll(members, -1)
    if relays:
        first = np.array([np.argmax(graph.host == host) for host in graph.host[dst]])
        first_there = np.array([np.argmax(graph.host == host) for host in graph.host[src]])
        relay = first_there + dst - first
        src = np.where(np.isin(relay, members), relay, src)
    return between_hosts(graph, src, dst, np.full(len(members), size_bytes))


def between_hosts(graph: Graph, src: Int64, dst: Int64, size_bytes: Int64) -> PairBytes:
    """Return the pairs of NPUs of different hosts; the arguments are the fabric and all pairs, int64[p] each."""
    crosses = graph.host[src] != graph.host[dst]
    return PairBytes(src[crosses], dst[crosses], size_bytes[crosses])


class LinkLoads:
    """The links between switches that messages between hosts use."""

    def __init__(self, graph: Graph, settings: Settings, sent: PairBytes, connections: int) -> None:
        """Take what NPUs send to each other.

        graph: the fabric; settings: those of the engine; sent: the bytes of pairs of NPUs; connections: number of
        connections between two NPUs that share their bytes.
        """
        self._graph, self._connections = graph, max(1, connections)
        self.pairs = list(zip(*(column.tolist() for column in sent), strict=True))
        wire = (settings.mtu_bytes + settings.header_bytes) / settings.mtu_bytes
        self._ps_per_byte = wire * PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps.astype(np.float64)
        self._tier = np.minimum(tier_of_node(graph)[graph.link_src], tier_of_node(graph)[graph.link_dst])
        self._next = cache(lambda node, dst: tuple(next_links(graph, node, dst)))

    def even(self) -> FabricTime:
        """Return the time of the busiest link if equal links share every message evenly."""
        load: dict[int, float] = defaultdict(float)
        for src, dst, size in self.pairs:
            at = {src: float(size)}
            while at:
                after: dict[int, float] = defaultdict(float)
                for node, share in at.items():
                    links = self._next(node, dst)
                    for link in links:
                        load[link] += share / len(links)
                        end = int(self._graph.link_dst[link])
                        if end != dst:
                            after[end] += share / len(links)
                at = after
        return self._busiest(load)

    def hashed(self, draws: int = DRAWS) -> Iterator[FabricTime]:
        """Yield the time of the busiest link for each draw of the paths of all connections.

        Args:
            draws: The number of draws.
        """
        for draw in range(draws):
            choose = random.Random(draw).choice  # noqa: S311 - no secret
            load: dict[int, float] = defaultdict(float)
            for src, dst, size in self.pairs:
                for _ in range(self._connections):
                    node = src
                    while node != dst:
                        links = self._next(node, dst)
                        link = links[0] if len(links) == 1 else choose(links)
                        load[link] += size / self._connections
                        node = int(self._graph.link_dst[link])
            yield self._busiest(load)

    def _busiest(self, load: dict[int, float]) -> FabricTime:
        """Return the longest time of the links between switches; load: bytes of each. Ports are in the time alone."""
        links = np.array(list(load), np.int64)
        keep = np.flatnonzero(self._tier[links] > 0)
        if not len(keep):
            return FabricTime(0.0, "")
        links = links[keep]
        times_ps = np.array(list(load.values()))[keep] * self._ps_per_byte[links]
        worst = int(np.argmax(times_ps))
        return FabricTime(float(times_ps[worst]), _TIERS.get(int(self._tier[links[worst]]), "core"))
