"""Where the members of a group stand on the fabric: what algorithms that know it may ask.

Links and paths are those of the reference walker of topologies.routing, on an idle fabric without failures.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topologies import TABLE, DimensionRouting, Graph, next_links, route
from workload.collectives.trees.aggregators import AggregatorBranch, trees_of
from workload.errors import WorkloadError

Int64 = NDArray[np.int64]

_MOST_PAIRS = 32


class Shape(NamedTuple):
    """A group of n members on a fabric; hashable, and equal for groups that stand alike.

    Attributes:
        members: n.
        grid: extents of the fabric's dimensions in which members differ, fastest first, if the members are all places
            of such a grid in its order: member i has digit (i // product of the earlier extents) mod extent. Else (n,).
        rate_bps: of each dimension of the grid, what a member can send in it: over its links one way round (ring), to
            all others at once (fully connected), or towards the switch; parallel links together, the slowest member's.
        latency_ps: of each dimension, of a message of no bytes to the next member in it, the farthest of them.
        host: of each member, numbered in order of appearance.
        place: of each member, its number among the NPUs of its host on the fabric.
        inside_bps: what a member can send to another of its host; 0 = no host has two. The slowest member's.
        inside_ps: latency of a message of no bytes there, the farthest.
        outside_bps: what a member can send to another host, over all its NICs together; 0 = there is one host.
        outside_ps: latency there.
        nics: links over which a member reaches other hosts, the least.
        trees: of aggregators in the switches; only for algorithms that name TREES.
        accelerator: what the fabric says that its NPUs are; "" = nothing.
        line_bps: inside_bps and outside_bps as the fabric has them, where those are less headers; () = they are these.
    """

    members: int
    grid: tuple[int, ...]
    rate_bps: tuple[int, ...]
    latency_ps: tuple[int, ...]
    host: tuple[int, ...]
    place: tuple[int, ...]
    inside_bps: int = 0
    inside_ps: int = 0
    outside_bps: int = 0
    outside_ps: int = 0
    nics: int = 0
    trees: tuple[AggregatorBranch, ...] = ()
    accelerator: str = ""
    line_bps: tuple[int, ...] = ()

    @property
    def lines_bps(self) -> tuple[int, int]:
        """What a member's links to its host and to others carry, headers and all."""
        inside_bps, outside_bps = self.line_bps or (self.inside_bps, self.outside_bps)
        return inside_bps, outside_bps

    def branches(self) -> tuple[AggregatorBranch, ...]:
        """The trees.

        Raises:
            WorkloadError: there are none.
        """
        if not self.trees:
            raise WorkloadError("no tree of switches is known here, expected a fabric")
        return self.trees


def shape_of(graph: Graph, members: ArrayLike, *, trees: str = "") -> Shape:
    """The shape of a group.

    Args:
        graph: the fabric.
        members: int[n], NPUs in member order.
        trees: with these trees of aggregators, where there are two members or more; see
            workload.collectives.trees.aggregators.

    Raises:
        WorkloadError: there are no such trees.
    """
    npu = np.asarray(members, np.int64)
    grid, dims = _grid(graph, npu)
    links = [_links(graph, npu, grid, axis, dim) for axis, dim in enumerate(dims)]
    host, place = _hosts(graph, npu)
    rates, latencies = zip(*links, strict=True)
    inside, outside = _neighbours(npu, host, place)
    return Shape(
        *(len(npu), grid, rates, latencies, host, place),
        *_paths(graph, inside),
        *_paths(graph, outside),
        min((len(next_links(graph, *pair)) for pair in outside), default=0),
        trees_of(graph, npu, trees)[0] if trees and len(npu) > 1 else (),
        graph.accelerator,
    )


def _grid(graph: Graph, npu: Int64) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents, and the fabric's dimension of each; (n,) and -1 if the members are no grid."""
    strides = [math.prod(graph.dims[:d]) for d in range(len(graph.dims))]
    digits = [npu // stride % size for stride, size in zip(strides, graph.dims, strict=True)]
    found = [np.unique(digit) for digit in digits]
    dims = [d for d, values in enumerate(found) if len(values) > 1]
    if dims and math.prod(len(found[d]) for d in dims) == len(npu):
        expected = npu[:1] - sum(digits[d][0] * strides[d] for d in dims)
        for d in dims:
            expected = (expected[None, :] + found[d][:, None] * strides[d]).reshape(-1)
        if np.array_equal(expected, npu):
            return tuple(len(found[d]) for d in dims), tuple(dims)
    return (len(npu),), (-1,)


def _links(graph: Graph, npu: Int64, grid: tuple[int, ...], axis: int, dim: int) -> tuple[int, int]:
    """Rate in bits per second and latency in ps along one axis of the grid; dim: the fabric's dimension, -1 = none."""
    stride, extent = math.prod(grid[:axis]), grid[axis]
    if extent == 1:
        return 0, 0
    line = npu[: stride * extent : stride].tolist()
    some = range(0, extent, -(-extent // _MOST_PAIRS))
    pairs = [(line[i], line[(i + 1) % extent]) for i in some]
    rate_bps = min(sum(int(graph.link_rate_bps[link]) for link in next_links(graph, *pair)) for pair in pairs)
    routing = graph.routing
    if isinstance(routing, DimensionRouting) and tuple(routing.sizes.tolist()) == graph.dims and dim >= 0:
        rate_bps *= extent - 1 if routing.mode[npu[0], dim] == TABLE else 1
    return rate_bps, max(_latency_ps(graph, route(graph, *pair)) for pair in pairs)


def _neighbours(
    npu: Int64, host: tuple[int, ...], place: tuple[int, ...]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of NPUs: some members and the next of the same host, and the one of the same place in the next host."""
    own: dict[int, list[int]] = {}
    for member in range(len(npu)):
        own.setdefault(host[member], []).append(member)
    inside, outside = [], []
    for member in range(0, len(npu), -(-len(npu) // _MOST_PAIRS)):
        near, far = own[host[member]], own[(host[member] + 1) % len(own)]
        if len(near) > 1:
            inside.append((int(npu[member]), int(npu[near[(near.index(member) + 1) % len(near)]])))
        if far is not near:
            other = next((m for m in far if place[m] == place[member]), far[0])
            outside.append((int(npu[member]), int(npu[other])))
    return inside, outside


def _paths(graph: Graph, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """Rate in bits per second of the slowest and latency in ps of the longest path; 0 if there is none."""
    rates = (sum(int(graph.link_rate_bps[link]) for link in next_links(graph, *pair)) for pair in pairs)
    return min(rates, default=0), max((_latency_ps(graph, route(graph, *pair)) for pair in pairs), default=0)


def _latency_ps(graph: Graph, links: Sequence[int]) -> int:
    delays = sum(int(graph.link_delay_ps[link]) for link in links)
    return delays + sum(int(graph.node_latency_ps[graph.link_src[link]]) for link in links[1:])


def _hosts(graph: Graph, npu: Int64) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Host and place of each member."""
    host = graph.host.astype(np.int64)
    by_host = np.argsort(host, kind="stable")
    ordered = host[by_host]
    place = np.empty(len(host), np.int64)
    place[by_host] = np.arange(len(host)) - np.searchsorted(ordered, ordered)
    _, first, number = np.unique(host[npu], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return tuple(rank[number.reshape(-1)].tolist()), tuple(place[npu].tolist())
