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

from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.pdes import Settings
from nadi.topologies import Graph, describe, next_links, tier_of_node
from nadi.workload import Program
from nadi.workload.program.traffic import traffic

DRAWS = 16  # number of draws of hashed paths
MAX_CONNECTIONS = 1 << 15  # number of connections whose paths are followed, each in 10 us for a draw
_TIERS = {0: "NIC", 1: "leaf", 2: "spine", 3: "core"}  # name of a cable by the tier of its lower end
_SPREADS = frozenset({"static", "source", "rail"})  # rules without `reorders` that do not hash connections either


class FabricTime(NamedTuple):
    """The time of the busiest link of a fabric."""

    time_ps: float
    tier: str  # NIC, leaf, spine or core: the tier of the link's lower end


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


class LinkLoads:
    """The links that the messages between hosts of a collective use."""

    def __init__(self, graph: Graph, settings: Settings, program: Program, members: Int64, connections: int) -> None:
        """Take the traffic of a program of one collective, whose schedule is number 0.

        graph: the fabric; settings: those of the engine; program: its collective, as members 0, 1, ...; members:
        int64[n], NPU of each member; connections: number of connections between two NPUs that share their bytes.
        """
        self._graph, self._connections = graph, max(1, connections)
        sent = traffic(program)
        src, dst = sent.src.astype(np.int64), sent.dst.astype(np.int64)
        is_npu = (src < len(members)) & (dst < len(members))  # the others are switches that reduce, in a host
        src, dst, size = members[src[is_npu]], members[dst[is_npu]], sent.bytes[is_npu]
        crosses = graph.host[src] != graph.host[dst]
        self.pairs = list(zip(src[crosses].tolist(), dst[crosses].tolist(), size[crosses].tolist(), strict=True))
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
        """Return the longest time of the links; load: bytes of each."""
        if not load:
            return FabricTime(0.0, "")
        links = np.array(list(load))
        times_ps = np.array(list(load.values())) * self._ps_per_byte[links]
        worst = int(np.argmax(times_ps))
        return FabricTime(float(times_ps[worst]), _TIERS.get(int(self._tier[links[worst]]), "core"))
