"""Can the engine make the closed forms of tables? It runs on uncontended copies of fabrics, beside the player.

    python scripts/idle_engine_study.py                    a minute: the table of docs/explanation/collectives.md
    python scripts/idle_engine_study.py --only fat-tree    cases on some fabrics

An uncontended copy of a group's fabric has each member's own ports (rates, delays, framing, latencies of the switches
at both ends) and an ideal middle: a chain of links for each pair of members that talk, with the attributes of its path
and used by nobody else. Both sides are timed as a table would use them, from the fabric to the time, compiled code
ready; the best of several turns counts.

The copy is made of what the engine has. Chains begin at a switch where routes go by destination alone, so a balancing
rule takes the sender's: NPUs know one rank at their switches (`Graph.host` here). Nothing of the kind exists where NPUs
pass packets on: a port would have to end at the NPU for its own packets and at a chain for others. Such fabrics have no
copy.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np

import pdes
import topologies
from inputs.units import MIB
from nadi.simulation.closed_forms.playing.played import Group, PlayedCollectives
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from pdes.core.jit import hook
from pdes.core.packet import source
from pdes.instruments import world_at
from pdes.network.balancing import Balancing
from pdes.wire import window_packets
from topologies import DimensionRouting, Graph
from topologies.graph import SINGLE, TABLE
from workload import Program, collective_program, collectives
from workload.collectives.schedules.sends import packet_count, pairs

_MOST_PAIRS = 1 << 20
_SWITCH = "switch:npus={},switch_latency=300ns"
_HOSTS = "rail-optimised:npus={},gpus_per_host=8,rate=200Gbps,delay=500ns,nvlink_rate=2400Gbps,nvlink_delay=20ns"
_TWO = "leaf-spine:leaves=2,spines=1,hosts_per_leaf=1"
_LEAVES = "leaf-spine:leaves=4,spines=4,hosts_per_leaf=4"
_RING, _TREE = ("all-reduce", "ring"), ("all-reduce", "double-binary-tree")
_HALVES, _DIRECT = ("all-reduce", "halving-doubling"), ("all-to-all", "direct")
_ON_SWITCHES = ((8, _RING), (8, _TREE), (8, _DIRECT), (64, _RING), (64, _DIRECT))
_ON_HOSTS = ((8, "all-reduce"), (16, "all-reduce"), (64, "all-reduce"), (64, "all-to-all"))
_OVER_SPINES = ((_TWO, _HALVES), ("fat-tree:k=2", _HALVES), (_LEAVES, _DIRECT), ("fat-tree:k=8", _RING))
_OVER_SPINES += (("fat-tree:k=8", _HALVES), ("fat-tree:k=8", _DIRECT))
_ON_LINKS = (("torus:sizes=4x4", ("all-reduce", "grid")), ("torus:sizes=4x4", _DIRECT))
CASES = (
    *((_SWITCH.format(n), *how, size) for n, how in _ON_SWITCHES for size in (1000, MIB, 64 * MIB)),
    *((_HOSTS.format(n), kind, "nccl", size) for n, kind in _ON_HOSTS for size in (16_384, MIB, 64 * MIB)),
    *((spec, *how, size) for spec, how in _OVER_SPINES for size in (1000, 16 * MIB)),
    *((spec, *how, 3 * MIB) for spec, how in _ON_LINKS),
)
"""Fabric, kind, algorithm and bytes of each."""


class NoCopyError(Exception):
    """The engine has nothing of which the copy could be made."""


@hook
def by_rank(address, _node, _first, count, w1, _w2, _now):  # noqa: ANN001, ANN201 - compiled
    """The link of the sender, by its rank at its switch."""
    return np.int64(world_at(address).routes.host[source(w1)]) % count


BY_RANK = Balancing("by rank", by_rank, by_host=True)


class Copy:
    """The uncontended copy of a fabric for some pairs of its NPUs, while it grows.

    Args:
        graph: the fabric.
        ends: senders and receivers; acknowledgements go the other way.
    """

    def __init__(self, graph: Graph, ends: set[tuple[int, int]]) -> None:
        self.original = graph
        self._nodes: dict[object, int] = {npu: npu for npu in range(graph.npus)}
        self._like = list(range(graph.npus))
        self._cables: dict[object, int] = {}
        self._links: list[tuple[int, int, int]] = []
        """Sending and receiving node, and the link of the fabric that each is like."""
        self._next: dict[tuple[int, int], dict[int, int]] = {}
        """By node and receiver: the link of each sender."""
        both = ends | {(dst, src) for src, dst in ends}
        for src, dst in sorted(both):
            self._add(src, dst, topologies.route(graph, src, dst))

    def _node(self, key: object, like: int) -> int:
        if key not in self._nodes:
            self._nodes[key] = len(self._like)
            self._like.append(like)
        return self._nodes[key]

    def _link(self, key: object, src: int, dst: int, like: int) -> int:
        """One direction of a cable that has this key; its sending node."""
        if key not in self._cables:
            self._cables[key] = len(self._links)
            self._links += [(src, dst, like), (dst, src, like ^ 1)]
        first = self._cables[key]
        return first if self._links[first][0] == src else first + 1

    def _add(self, src: int, dst: int, links: list[int]) -> None:
        graph = self.original
        at = src
        for place, link in enumerate(links):
            far = int(graph.link_dst[link])
            is_end = place in {0, len(links) - 1}
            if far < graph.npus and far != dst:
                raise NoCopyError("NPUs pass packets on")
            if far == dst:
                to = dst
            elif place in {0, len(links) - 2}:
                to = self._node(("switch", far), far)
            else:
                to = self._node((src, dst, place), far)
            taken = self._link(("port", link >> 1) if is_end else (src, dst, "link", place), at, to, link)
            self._next.setdefault((at, dst), {})[src] = taken
            at = to

    def _ranks(self) -> np.ndarray:
        """int32[npus]: unlike for NPUs that share a switch."""
        npus = self.original.npus
        beside: list[set[int]] = [set() for _ in range(npus)]
        at_switch: dict[int, set[int]] = {}
        for src, dst, _ in self._links:
            if src < npus <= dst:
                at_switch.setdefault(dst, set()).add(src)
        for members in at_switch.values():
            for npu in members:
                beside[npu] |= members
        ranks = np.full(npus, -1, np.int32)
        for npu in range(npus):
            taken = {int(ranks[other]) for other in beside[npu]}
            ranks[npu] = next(rank for rank in range(npus) if rank not in taken)
        return ranks

    def graph(self) -> Graph:
        """The copy; `host` holds ranks."""
        like, ranks, npus = np.array(self._like), self._ranks(), self.original.npus
        src, dst, of = (np.array(column) for column in zip(*self._links, strict=True))
        sets, of_set = [], np.full((len(like), npus), -1, np.int64)
        for (node, to), by_sender in self._next.items():
            links = sorted(set(by_sender.values()))
            if len(links) > 1:
                of_rank = {int(ranks[sender]): link for sender, link in by_sender.items()}
                links = [of_rank.get(rank, links[0]) for rank in range(max(of_rank) + 1)]
            of_set[node, to] = len(sets)
            sets.append(links)
        original = self.original
        return Graph(
            name=f"{original.name}, uncontended",
            npus=npus,
            nodes=len(like),
            links=len(src),
            node_kind=original.node_kind[like],
            node_latency_ps=original.node_latency_ps[like],
            link_src=src.astype(np.int32),
            link_dst=dst.astype(np.int32),
            link_rate_bps=original.link_rate_bps[of],
            link_delay_ps=original.link_delay_ps[of],
            dims=(npus,),
            host=ranks,
            pod=np.full(len(like), -1, np.int32),
            routing=_routing(npus, of_set, sets),
            switch_names=tuple(f"switch {node}" for node in range(npus, len(like))),
        )


def _routing(npus: int, of_set: np.ndarray, sets: list[list[int]]) -> DimensionRouting:
    """By receiver at nodes of several; one set where all goes the same way, as in chains."""
    nodes = len(of_set)
    mode, offset = np.full((nodes, 1), TABLE, np.int8), np.zeros((nodes, 1), np.int64)
    tables: list[np.ndarray] = []
    length = 0
    for node in range(nodes):
        used = np.unique(of_set[node][of_set[node] >= 0])
        offset[node] = length
        if len(used) == 1 and node >= npus:
            mode[node] = SINGLE
        tables.append(used if mode[node] == SINGLE else of_set[node])
        length += len(tables[-1])
    digit = np.full((nodes, 1), -1, np.int32)
    digit[:npus, 0] = np.arange(npus)
    return DimensionRouting(
        sizes=np.array([npus], np.int32),
        digit=digit,
        mode=mode,
        offset=offset,
        sets=np.concatenate(tables).astype(np.int32),
        set_ptr=np.concatenate([[0], np.cumsum([len(links) for links in sets])]).astype(np.int32),
        set_link=np.array([link for links in sets for link in links], np.int32),
    )


class Turn(NamedTuple):
    """A case.

    Attributes:
        packets: of data.
        player_s: seconds that the player takes.
        engine_s: that the engine takes on the copy, which is made first.
        copy_s: of that, to make the copy.
        played_ps: what the player says.
        above_ps: what the engine says more.
        fabric_ps: what it says more on the fabric itself, where messages may share links.
    """

    packets: int
    player_s: float
    engine_s: float
    copy_s: float
    played_ps: float
    above_ps: float
    fabric_ps: float


def measured(spec: str, kind: str, algorithm: str, size_bytes: int, turns: int) -> Turn:
    """A case, the best of several turns.

    Raises:
        NoCopyError: see there.
    """
    graph = topologies.build(spec)
    program = collective_program(kind, graph.npus, size_bytes, algorithm, graph)
    settings = Settings(record_flows=False, record_nodes=False)
    group = Group(collectives.choose(kind, algorithm), 0, list(range(graph.npus)), int(program.node_bytes[0]))
    found: list[tuple[float, float, float]] = []
    for _ in range(turns):
        begun = perf_counter()
        played_ps = PlayedCollectives().time_ps(graph, program, settings, group)
        played = perf_counter()
        complete, reducing, _ = with_reducers(graph, program)
        copy = Copy(complete, pairs(program.schedules, 0, _MOST_PAIRS) or set()).graph()
        copied = perf_counter()
        engine_ps = _run(copy, reducing, complete, settings)
        found.append((played - begun, perf_counter() - played, copied - played))
    if played_ps is None:
        raise AssertionError(f"{spec}: {kind} {algorithm} of {size_bytes} B is not played")
    on_fabric_ps = pdes.run(pdes.build_world(complete, reducing, settings)).finish_time_ps
    packets = int(packet_count(program.schedules, 0, size_bytes, settings.mtu_bytes))
    seconds = (min(column) for column in zip(*found, strict=True))
    return Turn(packets, *seconds, played_ps, engine_ps - played_ps, on_fabric_ps - played_ps)


def _run(copy: Graph, program: Program, graph: Graph, settings: Settings) -> int:
    """Picoseconds on the copy, with the windows of the fabric."""
    window_bytes = window_packets(graph, settings) * settings.mtu_bytes
    chosen = replace(settings, window_bytes=window_bytes, load_balancing=BY_RANK)
    return pdes.run(pdes.build_world(copy, program, chosen)).finish_time_ps


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose fabric has this in its name")
    args = parser.parse_args(arguments)
    columns = (
        "fabric",
        "collective",
        "bytes",
        "packets",
        "player",
        "engine",
        "copy",
        "times",
        "above",
        "on the fabric",
    )
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for spec, kind, algorithm, size in CASES:
        if args.only not in spec:
            continue
        name = [spec.split(",rate")[0], f"{kind} `{algorithm}`", f"{size:,}"]
        try:
            turn = measured(spec, kind, algorithm, size, args.turns)
        except NoCopyError as error:
            _print([*name, f"no copy: {error}"])
            continue
        ms = (f"{seconds * 1e3:.1f} ms" for seconds in (turn.player_s, turn.engine_s, turn.copy_s))
        shares = (f"{above_ps / turn.played_ps:.3%}" for above_ps in (turn.above_ps, turn.fabric_ps))
        _print([*name, f"{turn.packets:,}", *ms, f"{turn.engine_s / turn.player_s:.2f}", *shares])


def _print(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    import idle_engine_study  # by its name, with which the compiled hook is kept

    idle_engine_study.main()
