"""The shape of a group: the position of its members on the fabric, for algorithms that depend on it.

Links and paths are those of the reference walker of topologies.routing, on an idle fabric without failures.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.inputs.arrays import Int32, Int64
from nadi.topologies import NVSWITCH, Graph, next_links, route
from nadi.workload.collectives.trees import AggregatorBranch, trees_of
from nadi.workload.errors import WorkloadError

_MAX_PAIRS = 32
"""Maximum number of member pairs whose paths are sampled; a minimum over all pairs is too slow for large groups."""


class GroupShape(NamedTuple):
    """A group of n members on a fabric; hashable, and equal for groups with the same positions."""

    members: int  # Number of members n
    # Sizes of the fabric's dimensions in which members differ, fastest first, if the members fill such a grid in its
    # order: member i has digit (i // product of the earlier sizes) mod size. Otherwise (n,).
    grid: tuple[int, ...]
    # Send rate of a member in each dimension of the grid in bits per second: over its links in one direction (ring), to
    # all others at once (fully connected), or towards the switch; sum of parallel links, slowest member
    rate_bps: tuple[int, ...]
    latency_ps: tuple[int, ...]  # Latency in ps to the next member in each dimension, farthest pair, empty message
    host: tuple[int, ...]  # Host of each member, numbered in order of appearance
    place: tuple[int, ...]  # Index of each member among the NPUs of its host on the fabric
    inside_bps: int = 0  # Send rate in bits per second within the host, slowest member; 0 = no host has two
    inside_ps: int = 0  # Latency in ps of an empty message within a host, for the farthest pair
    outside_bps: int = 0  # Send rate in bits per second to another host over all NICs together; 0 = a single host
    outside_ps: int = 0  # Latency in ps of an empty message to another host
    nic_shares: tuple[int, ...] = ()  # Share of outside_bps of each NIC of the first member (Graph.port_shares)
    trees: tuple[AggregatorBranch, ...] = ()  # Aggregation trees in the switches, only for algorithms that name TREES
    accelerator: str = ""  # Name of the NPU type on the fabric; "" = unknown
    line_bps: tuple[int, ...] = ()  # Bits per second of inside_bps and outside_bps with headers; () = equal
    npus_per_nic: int = 1  # Number of consecutive NPUs of a host whose links to others are equal parts of one NIC

    @property
    def lines_bps(self) -> tuple[int, int]:
        """Line rates in bits per second of a member's links within its host and to other hosts, headers included."""
        inside_bps, outside_bps = self.line_bps or (self.inside_bps, self.outside_bps)
        return inside_bps, outside_bps

    @property
    def host_members(self) -> tuple[int, ...]:
        """Number of members in each host, by the number of the host."""
        return tuple(count for _, count in sorted(Counter(self.host).items()))

    @property
    def nics(self) -> int:
        """Number of NICs that a host's members reach, in the host with the fewest."""
        nics = {(host, place // self.npus_per_nic) for host, place in zip(self.host, self.place, strict=True)}
        return min(Counter(host for host, _ in nics).values())

    @property
    def stripes(self) -> int:
        """Number of equal stripes of a buffer that the NICs to other hosts share by their rates; 1 = one NIC."""
        return max(1, sum(self.nic_shares))

    def branches(self) -> tuple[AggregatorBranch, ...]:
        """Return the aggregation trees."""
        if not self.trees:
            raise WorkloadError("no aggregation tree is known, expected a fabric")
        return self.trees


def shape_of(graph: Graph, members: ArrayLike, *, trees: str = "") -> GroupShape:
    """Return the shape of a group of NPUs.

    Args:
        graph: The fabric as a graph of nodes and links.
        members: The NPU of each member, int[n].
        trees: The names of the aggregation trees that the shape includes for two or more members (collectives.trees);
            "" = none.
    """
    npu = np.asarray(members, np.int64)
    grid, dims = _grid(graph, npu)
    links = [_links(graph, npu, grid, axis, dim) for axis, dim in enumerate(dims)]
    host, place = _hosts(graph, npu)
    rates, latencies = zip(*links, strict=True)
    inside, outside = _neighbours(npu, host, place)
    return GroupShape(
        *(len(npu), grid, rates, latencies, host, place),
        *_paths(graph, inside),
        *_paths(graph, outside),
        _smallest(graph.port_shares[next_links(graph, *outside[0])]) if outside else (),
        trees_of(graph, npu, trees)[0] if trees and len(npu) > 1 else (),
        graph.accelerator,
        npus_per_nic=graph.npus_per_nic,
    )


def stripes_of(graph: Graph, members: ArrayLike) -> int:
    """Return the smallest number of equal stripes of a buffer that a group's links share by their rates; 1 = one link.

    The links are those of the first member (`parallel_links`).

    Args:
        graph: The fabric as a graph of nodes and links.
        members: The NPU of each member, int[n].
    """
    return sum(_smallest(graph.port_shares[parallel_links(graph, members)]))


def stripes_between(graph: Graph, src: Int64, dst: Int64) -> Int64:
    """Return int64[n], for pairs of NPUs: the number of equal stripes of a message that the sender's links share.

    Args:
        graph: The fabric of the NPUs, without faults.
        src: int64[n], the NPU of each pair that sends.
        dst: int64[n], the NPU of each pair that receives; not the sender.
    """
    if not len(src) or graph.routing.npus_forward or not has_parallel_ports(graph):
        return np.ones(len(src), np.int64)
    # pairs have equal stripes if the senders' links have equal ends and shares, and the receivers the same switches
    senders, sender = np.unique(src, return_inverse=True)
    links = [graph.out_links(npu) for npu in senders.tolist()]
    number: dict[object, int] = {}
    like = [
        number.setdefault((graph.link_dst[own].tobytes(), graph.port_shares[own].tobytes()), len(number))
        for own in links
    ]
    receiver = graph.routing.classes_of(dst)
    kind = np.array(like)[sender.reshape(-1)] * (receiver.max() + 1) + receiver
    _, first, of_kind = np.unique(kind, return_index=True, return_inverse=True)
    pairs = zip(src[first].tolist(), dst[first].tolist(), strict=True)
    stripes = [sum(_smallest(graph.port_shares[next_links(graph, *pair)])) for pair in pairs]
    return np.array(stripes, np.int64)[of_kind.reshape(-1)]


def has_parallel_ports(graph: Graph) -> bool:
    """Return whether some NPU has several links to NVSwitches, or several to other switches."""
    links = np.flatnonzero(graph.link_src < graph.npus)
    is_nvlink = graph.node_kind[graph.link_dst[links]] == NVSWITCH
    return bool(np.bincount(graph.link_src[links] * 2 + is_nvlink).max(initial=0) > 1)


def parallel_links(graph: Graph, members: ArrayLike) -> list[int]:
    """Return the links that a group's first member uses side by side: to another host, or in its own if there is none.

    Fabrics that are routed by dimensions have no such links: the result is one.

    Args:
        graph: The fabric as a graph of nodes and links.
        members: The NPU of each member, int[n].
    """
    npu = np.asarray(members, np.int64)
    if len(npu) < 2 or graph.routing.npus_forward:
        return graph.out_links(int(npu[0]))[:1].tolist() if len(npu) else []
    elsewhere = npu[graph.host[npu] != graph.host[npu[0]]]
    return next_links(graph, int(npu[0]), int(elsewhere[0] if len(elsewhere) else npu[1]))


def _smallest(shares: Int32) -> tuple[int, ...]:
    """Return shares as the smallest whole numbers, (1,) for none."""
    return tuple((shares // np.gcd.reduce(shares)).tolist()) if len(shares) else (1,)


def _grid(graph: Graph, npu: Int64) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the grid's sizes and the fabric's dimension of each; (n,) and (-1,) without a grid; npu: int64[n]."""
    # The digits of an NPU are its coordinates in the fabric's dimensions
    strides = [math.prod(graph.dims[:d]) for d in range(len(graph.dims))]
    digits = [npu // stride % size for stride, size in zip(strides, graph.dims, strict=True)]
    values_of_dim = [np.unique(digit) for digit in digits]
    dims = [d for d, values in enumerate(values_of_dim) if len(values) > 1]
    if dims and math.prod(len(values_of_dim[d]) for d in dims) == len(npu):
        expected = npu[:1] - sum(digits[d][0] * strides[d] for d in dims)
        for d in dims:
            # The NPUs of the full grid over these coordinates, fastest dimension first
            expected = (expected[None, :] + values_of_dim[d][:, None] * strides[d]).reshape(-1)
        if np.array_equal(expected, npu):
            return tuple(len(values_of_dim[d]) for d in dims), tuple(dims)
    return (len(npu),), (-1,)


def _links(graph: Graph, npu: Int64, grid: tuple[int, ...], axis: int, dim: int) -> tuple[int, int]:
    """Return rate in bit/s and latency in ps along one axis of the grid of NPUs int64[n]; dim: fabric's, -1 = none."""
    stride, extent = math.prod(grid[:axis]), grid[axis]
    if extent == 1:
        return 0, 0
    # Axis 1 of a grid of 2 x 3: the members 0, 2 and 4
    line = npu[: stride * extent : stride].tolist()
    sampled = range(0, extent, -(-extent // _MAX_PAIRS))
    pairs = [(line[i], line[(i + 1) % extent]) for i in sampled]
    rate_bps = min(sum(int(graph.link_rate_bps[link]) for link in next_links(graph, *pair)) for pair in pairs)
    # to each other member of the line, where the axis is a dimension of the fabric in which all are neighbours
    rate_bps *= graph.routing.ways_along(int(npu[0]), dim, graph.dims, extent)
    return rate_bps, max(_latency_ps(graph, route(graph, *pair)) for pair in pairs)


def _neighbours(
    npu: Int64, host: tuple[int, ...], place: tuple[int, ...]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return NPU pairs of sampled members: the next member of the host, and the same place in the next host."""
    # npu: int64[n], NPU of each member; host, place: those of each member.
    members_of_host: dict[int, list[int]] = {}
    for member in range(len(npu)):
        members_of_host.setdefault(host[member], []).append(member)
    inside, outside = [], []
    for member in range(0, len(npu), -(-len(npu) // _MAX_PAIRS)):
        same_host, next_host = members_of_host[host[member]], members_of_host[(host[member] + 1) % len(members_of_host)]
        if len(same_host) > 1:
            inside.append((int(npu[member]), int(npu[same_host[(same_host.index(member) + 1) % len(same_host)]])))
        if next_host is not same_host:
            other = next((m for m in next_host if place[m] == place[member]), next_host[0])
            outside.append((int(npu[member]), int(npu[other])))
    return inside, outside


def _paths(graph: Graph, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the rate in bits per second of the slowest path and the latency in ps of the longest; 0 without pairs."""
    rates = (sum(int(graph.link_rate_bps[link]) for link in next_links(graph, *pair)) for pair in pairs)
    return min(rates, default=0), max((_latency_ps(graph, route(graph, *pair)) for pair in pairs), default=0)


def _latency_ps(graph: Graph, links: Sequence[int]) -> int:
    """Return the latency of a path in ps: link delays and switch latencies."""
    delays = sum(int(graph.link_delay_ps[link]) for link in links)
    return delays + sum(int(graph.node_latency_ps[graph.link_src[link]]) for link in links[1:])


def _hosts(graph: Graph, npu: Int64) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the host of each member, NPUs int64[n], by order of appearance, and its index among its host's NPUs."""
    host = graph.host.astype(np.int64)
    by_host = np.argsort(host, kind="stable")
    ordered = host[by_host]
    place = np.empty(len(host), np.int64)
    # In the order of hosts, subtract where the host begins
    place[by_host] = np.arange(len(host)) - np.searchsorted(ordered, ordered)
    _, first, number = np.unique(host[npu], return_index=True, return_inverse=True)
    # unique numbers hosts by their number; number them by their first member instead
    rank = np.argsort(np.argsort(first))
    return tuple(rank[number.reshape(-1)].tolist()), tuple(place[npu].tolist())
