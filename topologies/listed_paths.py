"""Source routes: lists of paths that packets from one NPU to another take, in place of those of the fabric's tables.

A path is a list of switches, of which each is linked to the next. A packet takes one of the paths of its pair by its
entropy (pdes/network/detours/source.py), among those that begin at the switch by which it came: NICs choose their ports
as always. Packets of pairs without paths, and packets where no path leads on, follow the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nadi.topologies.graph import NVSWITCH, Graph, TopologyError
from nadi.topologies.source_routes import SourceRoutes

Step = int | tuple[int, int]
"""A switch, by its number, or a switch and the number of the only cable to it, among those from the node before."""
_MAX_NAMED = 6  # number of nodes that a message lists


def with_source_routes(
    graph: Graph, paths: Mapping[tuple[int, int], Sequence[Sequence[Step]]], place: object = ""
) -> Graph:
    """Return the network with source routes, which runs with `routing = "source"` take.

    Raises TopologyError: a path does not lead from the sender to the receiver, or the network has no tables.

    Args:
        graph: The network, routed by tables.
        paths: By sending and receiving NPU, paths, each as its switches in order. A path that is listed twice is taken
            twice as often.
        place: What errors begin with, as the file of the paths; "" = the name of the network.
    """
    where = place or graph.name
    if graph.routing.dimensions:
        raise TopologyError.at(where, f"source routes of {graph.name}, which is routed by dimensions", "switches")
    sets: dict[tuple[int, ...], int] = {}
    src, dst, hop_set, hops = [], [], [], []
    for (begin, end), listed in paths.items():
        if not (0 <= begin < graph.npus and 0 <= end < graph.npus) or begin == end:
            raise TopologyError.at(where, f"a pair {begin}, {end}", f"two of the NPUs 0 to {graph.npus - 1}")
        pair = _Pair(graph, begin, end, f"{where}: npu {begin} -> npu {end}")
        own = [[sets.setdefault(links, len(sets)) for links in pair.links(path)] for path in listed]
        pair.refuse_partings(own, list(sets))
        src += [begin] * len(own)
        dst += [end] * len(own)
        hops += [len(path) for path in own]
        hop_set += [each for path in own for each in path]
    return replace(
        graph,
        source_routes=SourceRoutes(
            np.array(src, np.int32),
            np.array(dst, np.int32),
            np.append(0, np.cumsum(np.array(hops, np.int64))),
            np.array(hop_set, np.int32),
            np.append(0, np.cumsum(np.array([len(links) for links in sets], np.int64))).astype(np.int32),
            np.array([link for links in sets for link in links], np.int32),
        ),
    )


class _Pair:
    """The paths of a pair of NPUs, checked; every method raises TopologyError, which begins with `place`."""

    def __init__(self, graph: Graph, src: int, dst: int, place: str) -> None:
        self._graph, self._src, self._dst, self._place = graph, src, dst, place
        self._first = sorted({int(graph.link_dst[link]) for link in graph.routing.next_links(graph, src, dst)})

    def links(self, path: Sequence[Step]) -> list[tuple[int, ...]]:
        """Return the links by which a path leaves each of its switches: several where cables are parallel."""
        steps = [step if isinstance(step, tuple) else (int(step), -1) for step in path]
        nodes = [node for node, _ in steps]
        for node in nodes:
            if not self._graph.npus <= node < self._graph.nodes or self._graph.node_kind[node] == NVSWITCH:
                name = self._graph.node_name(node) if 0 <= node < self._graph.nodes else f"node {node}"
                raise self._error(f"{name} on a path", "switches outside of NVLink domains")
        twice = next((node for node in nodes if nodes.count(node) > 1), None)
        if twice is not None:
            raise self._error(f"{self._graph.node_name(twice)} twice on a path", "each switch once")
        if not nodes or nodes[0] not in self._first:
            begin = f"a path that begins at {self._graph.node_name(nodes[0])}" if nodes else "a path without switches"
            raise self._error(begin, f"one that begins at {self._names(self._first)}")
        ends = self._graph.link_dst[self._graph.out_links(nodes[-1])]
        if self._dst not in ends:
            last = sorted({int(self._graph.link_dst[link]) for link in self._graph.out_links(self._dst)})
            found = f"a path that ends at {self._graph.node_name(nodes[-1])}"
            raise self._error(found, f"one that ends at {self._names(last)}")
        return [self._joining(*pair) for pair in zip(nodes, [*steps[1:], (self._dst, -1)], strict=True)]

    def _joining(self, node: int, step: tuple[int, int]) -> tuple[int, ...]:
        """Return the links from a node to that of a step, by all cables or by one."""
        graph, (onto, cable) = self._graph, step
        out = graph.out_links(node)
        links = out[graph.link_dst[out] == onto].tolist()
        if not links:
            near = sorted({int(end) for end in graph.link_dst[out] if end >= graph.npus})
            found = f"{graph.node_name(node)} and {graph.node_name(onto)}, which are not linked"
            raise self._error(found, f"one of {self._names(near)} behind {graph.node_name(node)}")
        if cable >= len(links):
            joins = f"from {graph.node_name(node)} to {graph.node_name(onto)}"
            raise self._error(f"cable {cable} {joins}", f"0 to {len(links) - 1}")
        return tuple(links if cable < 0 else links[cable : cable + 1])

    def refuse_partings(self, paths: Sequence[Sequence[int]], sets: Sequence[tuple[int, ...]]) -> None:
        """Refuse paths from different first switches that cross one switch, unless they leave it to the receiver."""
        # a switch does not know by which first switch a packet came
        seen: dict[int, tuple[int, int]] = {}
        for path in paths:
            first = int(self._graph.link_src[sets[path[0]][0]])
            for each in path:
                node = int(self._graph.link_src[sets[each][0]])
                before, left_by = seen.setdefault(node, (first, each))
                if before != first and not (each == left_by == path[-1]):
                    both = self._names(sorted({before, first}), " and ")
                    raise self._error(
                        f"paths from {both} that meet at {self._graph.node_name(node)}",
                        "paths from different first switches that meet at the last switch alone",
                    )

    def _names(self, nodes: Sequence[int], word: str = ", ") -> str:
        more = ", ..." if len(nodes) > _MAX_NAMED else ""
        return word.join(self._graph.node_name(node) for node in nodes[:_MAX_NAMED]) + more

    def _error(self, found: str, expected: str) -> TopologyError:
        return TopologyError.at(self._place, found, expected)
