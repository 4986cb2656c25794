"""How a group stands on the fabric, up to the fabric's symmetry: groups that stand alike have one closed form.

With dimension-ordered routing a group is told by the coordinates of its members from the first one's on, round each
dimension. Else by which members share switches, by their ports, and which of these switches share their neighbours, two
links deep, and how far apart the members' switches are. Either way also by what each member looks like to anyone: a
colour refinement of nodes and links, which tells hosts with other rates or ends of a line from the rest. How many hosts
a switch has does not count there, so that those of a leaf that is not full are like others.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nadi.simulation.closed_forms.advancing.likeness import mixed, numbered
from topologies import DimensionRouting, Graph, TableRouting

Int64 = NDArray[np.int64]

_SEED = 0x51ED270B
_MOST_DISTANCES = 32
"""Members of a group of which all distances are looked at; of larger groups those to the next and from the first."""
_MOST_COMPARED = 1 << 24


class GroupPositions:
    """Tells groups of NPUs of one fabric apart by how they stand there.

    Args:
        graph: the fabric.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._looks = _looks(graph)

    def keys(self, groups: Sequence[NDArray[np.integer]]) -> list[bytes]:
        """What groups that stand alike have in common.

        Args:
            groups: NPUs of each, in member order.
        """
        found: list[bytes] = [b""] * len(groups)
        by_size: dict[int, list[int]] = {}
        for at, members in enumerate(groups):
            by_size.setdefault(len(members), []).append(at)
        for size, places in by_size.items():
            if size:
                rows = self._rows(np.array([groups[at] for at in places], np.int64))
                for at, row in zip(places, rows, strict=True):
                    found[at] = row.tobytes()
        return found

    def of_pairs(self, src: Int64, dst: Int64) -> Int64:
        """int64[k]: equal for pairs of NPUs that stand alike.

        Args:
            src: int64[k].
            dst: int64[k].
        """
        if not len(src):
            return np.zeros(0, np.int64)
        return numbered(list(self._rows(np.stack([src, dst], axis=1)).T.astype(np.uint64)))

    def _rows(self, members: Int64) -> Int64:
        """int64[g, w]: of g groups of one size."""
        parts = [self._looks[members]]
        if isinstance(self._graph.routing, DimensionRouting):
            sizes = self._graph.routing.sizes.astype(np.int64)
            digit = self._graph.routing.digit[members].astype(np.int64)
            parts.append(((digit - digit[:, :1]) % sizes).reshape(len(members), -1))
        else:
            parts += [_pattern(places[members]) for places in self._places]
            parts.append(_distances(self._graph.routing, members))
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    @cached_property
    def _places(self) -> list[Int64]:
        """int64[npus, ports], several: the switch at each port, and numbers of what is around that."""
        graph = self._graph
        from_npu = np.flatnonzero(graph.link_src < graph.npus)
        owner = graph.link_src[from_npu].astype(np.int64)
        order = np.lexsort((from_npu, owner))
        owner, link = owner[order], from_npu[order]
        counts = np.bincount(owner, minlength=graph.npus)
        place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
        switch = np.full((graph.npus, int(counts.max(initial=1))), -1, np.int64)
        switch[owner, place] = graph.link_dst[link]
        around = (np.where(switch >= 0, number[np.maximum(switch, 0)], -1) for number in _around(graph))
        return [switch, *around]


def _looks(graph: Graph) -> Int64:
    """int64[npus]: equal for NPUs that nothing tells apart but their place.

    Nodes are told apart by the kinds of links and neighbours that they have, and where NPUs pass packets on also by how
    many of each: the ends of a line have fewer.
    """
    counts = isinstance(graph.routing, DimensionRouting)
    link = mixed(_SEED, graph.link_rate_bps, graph.link_delay_ps)
    colour = numbered([graph.node_kind.astype(np.uint64), graph.node_latency_ps.astype(np.uint64)])
    while True:
        kinds = np.stack([graph.link_src.astype(np.uint64), mixed(_SEED, link, colour[graph.link_dst])], axis=1)
        kinds = kinds if counts else np.unique(kinds, axis=0)
        total = np.zeros(graph.nodes, np.uint64)
        np.add.at(total, kinds[:, 0].astype(np.int64), kinds[:, 1])
        refined = numbered([colour.astype(np.uint64), total])
        if refined.max(initial=0) == colour.max(initial=0):
            return refined[: graph.npus]
        colour = refined


def _around(graph: Graph) -> list[Int64]:
    """int64[nodes], twice: numbers of the sets of switches one link, and two links, from each switch."""
    is_switch = np.arange(graph.nodes) >= graph.npus
    between = is_switch[graph.link_src] & is_switch[graph.link_dst]
    pairs = np.unique(np.stack([graph.link_src[between], graph.link_dst[between]], axis=1), axis=0)
    near: dict[int, set[int]] = {switch: set() for switch in range(graph.npus, graph.nodes)}
    for a, b in pairs.tolist():
        near[a].add(b)
    far = {a: set().union(*(near[b] for b in ends)) for a, ends in near.items()}
    found = []
    for sets in (near, far):
        number: dict[frozenset[int], int] = {}
        column = np.full(graph.nodes, -1, np.int64)
        for switch, ends in sets.items():
            column[switch] = number.setdefault(frozenset(ends), len(number))
        found.append(column)
    return found


def _pattern(places: Int64) -> Int64:
    """int64[g, n * ports]: of each entry the first that is equal to it, in each group; places: int64[g, n, ports]."""
    flat = places.reshape(len(places), -1)
    width = flat.shape[1]
    if width * width > _MOST_COMPARED // 64:
        return np.stack([numbered([row.astype(np.uint64)]) for row in flat])
    found = np.empty_like(flat)
    step = max(1, _MOST_COMPARED // (width * width))
    for first in range(0, len(flat), step):
        some = flat[first : first + step]
        found[first : first + step] = (some[:, :, None] == some[:, None, :]).argmax(axis=2)
    return found


def _distances(routing: TableRouting, members: Int64) -> Int64:
    """int64[g, w]: links between switches of members, by their homes."""
    homes = routing.home[members].astype(np.int64)  # g, n, H
    rows = routing.row[routing.home_node[np.maximum(homes, 0)]].astype(np.int64)
    if members.shape[1] <= _MOST_DISTANCES:
        hops = routing.hops[rows[:, :, None], homes[:, None]]
    else:
        to_next = routing.hops[rows, np.roll(homes, -1, axis=1)]
        hops = np.concatenate([to_next, routing.hops[rows, np.repeat(homes[:, :1], members.shape[1], axis=1)]], axis=1)
    return hops.reshape(len(members), -1).astype(np.int64)
