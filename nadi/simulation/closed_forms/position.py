"""Position of a group on the fabric, up to the fabric's symmetry: groups with equal positions have one closed form.

With dimension-ordered routing, the coordinates of the members relative to the first member describe the position. On
other fabrics, the description holds which members share switches (per port), which of these switches share neighbours
up to two links away, and the distances between the members' switches. Both descriptions include a colour of each member
from colour refinement of nodes and links, which distinguishes hosts with other rates and the ends of a line. The
refinement ignores how many hosts a switch has, so hosts of a partly filled leaf equal others.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.simulation.closed_forms.advancing.likeness import mixed, numbered
from nadi.topologies import DimensionRouting, Graph, next_links

_SEED = 0x51ED270B
# maximum size of a group of which all distances count; of larger ones, those to the next member and from the first do
_MAX_ALL_DISTANCES = 32
_MAX_COMPARED = 1 << 24  # maximum number of comparisons per block in `_pattern`, which bounds its memory


class GroupPositions:
    """Keys of the positions of groups of NPUs on one fabric."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._npu_colours = _npu_colours(graph)

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
        if isinstance(self._graph.routing, DimensionRouting):
            sizes = self._graph.routing.sizes.astype(np.int64)
            digit = self._graph.routing.digit[groups].astype(np.int64)
            # relative to the first member and modulo the sizes: moving a group along a ring changes nothing
            parts.append(((digit - digit[:, :1]) % sizes).reshape(len(groups), -1))
        else:
            parts += [_pattern(places[groups]) for places in self._switches_of_npus]
            homes = self._graph.routing.home[groups].astype(np.int64)  # g, n, H
            rows = self._graph.routing.row[self._graph.routing.home_node[np.maximum(homes, 0)]].astype(np.int64)
            if groups.shape[1] <= _MAX_ALL_DISTANCES:
                # int8[g, n, n, H]: from the k-th switch of each member to the k-th switch of every member
                hops = self._graph.routing.hops[rows[:, :, None], homes[:, None]]
            else:
                to_next = self._graph.routing.hops[rows, np.roll(homes, -1, axis=1)]
                hops = np.concatenate(
                    [to_next, self._graph.routing.hops[rows, np.repeat(homes[:, :1], groups.shape[1], axis=1)]], axis=1
                )
            parts.append(hops.reshape(len(groups), -1).astype(np.int64))
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    @cached_property
    def _switches_of_npus(self) -> list[Int64]:
        """Return int64[npus, ports] arrays: the switch at each port, and numbers of that switch's neighbourhoods."""
        graph = self._graph
        from_npu = np.flatnonzero(graph.link_src < graph.npus)
        owner = graph.link_src[from_npu].astype(np.int64)
        order = np.lexsort((from_npu, owner))
        owner, link = owner[order], from_npu[order]
        counts = np.bincount(owner, minlength=graph.npus)
        # index of each port on its NPU
        place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
        switch = np.full((graph.npus, int(counts.max(initial=1))), -1, np.int64)
        switch[owner, place] = graph.link_dst[link]
        around = (np.where(switch >= 0, number[np.maximum(switch, 0)], -1) for number in _neighbour_sets(graph))
        return [switch, *around]


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
    counts = isinstance(graph.routing, DimensionRouting)
    link = mixed(_SEED, graph.link_rate_bps, graph.link_delay_ps)
    if isinstance(graph.routing, DimensionRouting):
        digit, sizes = graph.routing.digit, graph.routing.sizes
        direction = (digit[graph.link_dst] - digit[graph.link_src]) % sizes
        link = mixed(_SEED, link, *direction.astype(np.uint64).T)
    colour = numbered([graph.node_kind.astype(np.uint64), graph.node_latency_ps.astype(np.uint64)])
    # colour refinement: an NPU differs from another if its links lead to nodes that differ
    while True:
        kinds = np.stack([graph.link_src.astype(np.uint64), mixed(_SEED, link, colour[graph.link_dst])], axis=1)
        # with tables, the number of equal links makes no difference to a path, only that there are some
        kinds = kinds if counts else np.unique(kinds, axis=0)
        total = np.zeros(graph.nodes, np.uint64)
        np.add.at(total, kinds[:, 0].astype(np.int64), kinds[:, 1])
        refined = numbered([colour.astype(np.uint64), total])
        # a round only splits colours, so an equal number of them means that nothing has changed
        if refined.max(initial=0) == colour.max(initial=0):
            return refined[: graph.npus]
        colour = refined


def _neighbour_sets(graph: Graph) -> list[Int64]:
    """Return int64[nodes], twice: numbers of the set of switches one link, and two links, away from each switch."""
    is_switch = np.arange(graph.nodes) >= graph.npus
    between = is_switch[graph.link_src] & is_switch[graph.link_dst]
    pairs = np.unique(np.stack([graph.link_src[between], graph.link_dst[between]], axis=1), axis=0)
    near: dict[int, set[int]] = {switch: set() for switch in range(graph.npus, graph.nodes)}
    for a, b in pairs.tolist():
        near[a].add(b)
    # switches two links away tell apart pods whose leaves look alike
    far = {a: set().union(*(near[b] for b in ends)) for a, ends in near.items()}
    columns = []
    for sets in (near, far):
        number: dict[frozenset[int], int] = {}
        column = np.full(graph.nodes, -1, np.int64)
        for switch, ends in sets.items():
            column[switch] = number.setdefault(frozenset(ends), len(number))
        columns.append(column)
    return columns


def _pattern(columns: Int64) -> Int64:
    """Return int64[g, n * ports], the index of the first equal entry of the group; columns: int64[g, n, ports]."""
    flat = columns.reshape(len(columns), -1)
    width = flat.shape[1]
    # comparing all pairs takes too much memory, so sort each row instead
    if width * width > _MAX_COMPARED // 64:
        return np.stack([numbered([row.astype(np.uint64)]) for row in flat])
    pattern = np.empty_like(flat)
    step = max(1, _MAX_COMPARED // (width * width))
    for first in range(0, len(flat), step):
        block = flat[first : first + step]
        # argmax of the comparison is the first entry that is equal
        pattern[first : first + step] = (block[:, :, None] == block[:, None, :]).argmax(axis=2)
    return pattern
