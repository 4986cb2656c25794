"""Position of a group on the fabric, up to the fabric's symmetry: groups with equal positions have one closed form.

With dimension-ordered routing, the coordinates of the members relative to the first member describe the position. On
other fabrics, the description holds which members share switches (per port), which of these switches share neighbours
up to two links away, and the distances between the members' switches. Both descriptions include a colour of each member
from colour refinement of nodes and links, which distinguishes hosts with other rates and the ends of a line. The
refinement ignores how many hosts a switch has, so hosts of a partly filled leaf equal others.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.simulation.closed_forms.advancing.equivalence import mixed, numbered
from nadi.topologies import Graph, next_links

_SEED = 0x51ED270B


class GroupPositions:
    """Keys of the positions of groups of NPUs on one fabric."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def keys(self, groups: Sequence[NDArray[np.integer]]) -> list[bytes]:
        """Return a key per group; groups with equal positions have equal keys."""
        keys: list[bytes] = [b""] * len(groups)
        by_size: dict[int, list[int]] = {}
        for index, members in enumerate(groups):
            # groups of one size form an array, in which NumPy does the work
            by_size.setdefault(len(members), []).append(index)
        for size, indices in by_size.items():
            if size:
                rows = self._rows(np.array([groups[index] for index in indices], np.int64))
                for index, row in zip(indices, rows, strict=True):
                    keys[index] = row.tobytes()
        return keys

    def numbers(self, groups: Sequence[NDArray[np.integer]]) -> Int64:
        """Return int64[g], numbers from 0 on that are equal for groups with equal positions."""
        number: dict[bytes, int] = {}
        return np.array([number.setdefault(key, len(number)) for key in self.keys(groups)], np.int64)

    def of_pairs(self, src: Int64, dst: Int64) -> Int64:
        """Return int64[k], equal numbers for pairs of NPUs, src and dst: int64[k], with equal positions."""
        if not len(src):
            return np.zeros(0, np.int64)
        return numbered(list(self._rows(np.stack([src, dst], axis=1)).T.astype(np.uint64)))

    def _rows(self, groups: Int64) -> Int64:
        """Return int64[g, w], the position of each of g groups of n NPUs (int64[g, n]) as w numbers."""
        parts = [self._npu_colours[groups]]
        parts += self._places(groups)
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    @cached_property
    def _npu_colours(self) -> Int64:
        """int64[npus], see `_npu_colours`; runs without collectives, as of millions of links, do without."""
        return _npu_colours(self._graph)

    @cached_property
    def _places(self) -> Callable[[Int64], list[Int64]]:
        """A function from groups of NPUs to the descriptions of their positions by the routing."""
        return self._graph.routing.group_places(self._graph)


def used_links(graph: Graph, members: Sequence[int], *, of_switches: bool) -> NDArray[np.bool_]:
    """Return bool[links], the links on any of the equal paths between members of a group.

    of_switches: Also all links of the switches on these paths, which aggregators in switches depend on.

    Args:
        graph: The fabric (`Graph`).
        members: NPUs of the group's members.
        of_switches: Whether to add all links of the switches on these paths, which aggregators in switches depend on.
    """
    used = np.zeros(graph.links, np.bool_)
    nodes: set[int] = set()
    for dst in members:
        seen = set(members)
        ahead = [src for src in members if src != dst]
        # from all senders at once towards one receiver; `seen` keeps each node's links to one visit
        while ahead:
            links = next_links(graph, ahead.pop(), dst)
            used[links] = True
            ends = {int(graph.link_dst[link]) for link in links} - seen
            seen |= ends
            ahead.extend(ends)
        nodes |= seen
    if of_switches:
        switches = np.array([node for node in nodes if node >= graph.npus], np.int64)
        used |= np.isin(graph.link_src, switches) | np.isin(graph.link_dst, switches)
    return used


def _npu_colours(graph: Graph) -> Int64:
    """Return int64[npus], equal colours for NPUs that differ at most in their place on the fabric.

    The kinds of links and neighbours distinguish nodes. On fabrics where NPUs forward packets, the numbers of links of
    each kind do so too, because the ends of a line have fewer links, and so do the directions of links: of two NPUs
    with one slow link each, the coordinates of the other end tell which members of a group it joins.
    """
    directions = graph.routing.directions(graph)
    link = mixed(_SEED, graph.link_rate_bps, graph.link_delay_ps)
    if directions is not None:
        link = mixed(_SEED, link, *directions.astype(np.uint64))
    colour = numbered([graph.node_kind.astype(np.uint64), graph.node_latency_ps.astype(np.uint64)])
    # colour refinement: an NPU differs from another if its links lead to nodes that differ
    while True:
        kinds = np.stack([graph.link_src.astype(np.uint64), mixed(_SEED, link, colour[graph.link_dst])], axis=1)
        # with tables, the number of equal links makes no difference to a path, only that there are some
        kinds = kinds if graph.routing.npus_forward else np.unique(kinds, axis=0)
        total = np.zeros(graph.nodes, np.uint64)
        np.add.at(total, kinds[:, 0].astype(np.int64), kinds[:, 1])
        refined = numbered([colour.astype(np.uint64), total])
        # a round only splits colours, so an equal number of them means that nothing has changed
        if refined.max(initial=0) == colour.max(initial=0):
            return refined[: graph.npus]
        colour = refined
