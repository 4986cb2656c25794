"""Members as places of a grid: their digits, the lines along a dimension, and the parts that digits choose."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et.arrays import Int32
from nadi.workload.errors import WorkloadError
from nadi.workload.shape import GroupShape


class Levels(NamedTuple):
    """n members at the places of a grid of k dimensions, one per place."""

    digit: Int32  # int32[k, n], coordinates of each member
    extent: tuple[int, ...]  # number of places in each dimension, 2 or more
    rate_bps: tuple[int, ...]  # rate in each dimension, as in GroupShape
    latency_ps: tuple[int, ...]  # latency in each dimension, as in GroupShape
    named: tuple[int, ...]  # the user's number of each dimension, which is also its gate

    @property
    def members(self) -> int:
        """The number of members."""
        return math.prod(self.extent)

    def lines(self, dimension: int) -> Int32:
        """Return int32[n / extent, extent]: members that differ in this dimension only, in order of their digits."""
        others = [self.digit[d] for d in range(len(self.extent)) if d != dimension]
        order = np.lexsort([self.digit[dimension], *others])
        return order.astype(np.int32).reshape(-1, self.extent[dimension])

    def part(self, dimensions: Sequence[int]) -> Int32:
        """Return int32[n]: members' digits in several dimensions as one number, the first dimension as highest one."""
        part = np.zeros(self.members, np.int32)
        for d in dimensions:
            part = part * np.int32(self.extent[d]) + self.digit[d]
        return part

    def parts(self, dimensions: Sequence[int]) -> int:
        """Return the number of different values of `part`."""
        return math.prod(self.extent[d] for d in dimensions)


def along_dimensions(shape: GroupShape) -> Levels:
    """Return the dimensions of a group, the fastest first; a single dimension if the members are not a full grid."""
    number = np.arange(shape.members)
    digits = [number // math.prod(shape.grid[:d]) % extent for d, extent in enumerate(shape.grid)]
    return _kept(digits, shape.grid, shape.rate_bps, shape.latency_ps)


def in_a_line(shape: GroupShape) -> Levels:
    """Return one dimension of all members in their order, with the minimum rate and the total latency of the grid's."""
    return _kept([np.arange(shape.members)], (shape.members,), (min(shape.rate_bps),), (sum(shape.latency_ps),))


def by_hosts(shape: GroupShape) -> Levels:
    """Return two dimensions, places in a host and hosts; a dimension with one place is omitted.

    If the fabric's first dimensions make up the hosts, the first level gets their minimum rate and their total latency,
    and the second level those of the other dimensions; else both get the values of all dimensions. Raises
    WorkloadError: hosts with unequal numbers of members.
    """
    host, place = np.array(shape.host), np.array(shape.place)
    sizes = np.bincount(host)
    if sizes.min() != sizes.max():
        raise WorkloadError(f"hosts of {sizes.min()} to {sizes.max()} members: expected equally many in each")
    order = np.lexsort([place, host])
    rail = np.empty(len(host), np.int64)
    rail[order] = np.arange(len(host)) % sizes[0]
    extent = (int(sizes[0]), len(sizes))
    inner = [math.prod(shape.grid[: d + 1]) for d in range(len(shape.grid))]
    cut = inner.index(extent[0]) + 1 if extent[0] in inner[:-1] else 0
    rates = [min(part) for part in (shape.rate_bps[:cut] or shape.rate_bps, shape.rate_bps[cut:])]
    latencies = [sum(part) for part in (shape.latency_ps[:cut] or shape.latency_ps, shape.latency_ps[cut:])]
    return _kept([rail, host], extent, rates, latencies)


def _kept(
    digits: Sequence[NDArray[np.integer]], extents: Sequence[int], rates_bps: Sequence[int], latencies_ps: Sequence[int]
) -> Levels:
    """Return the levels of the dimensions with two places or more; digits: int[members] per dimension."""
    kept = tuple(d for d, extent in enumerate(extents) if extent > 1)
    return Levels(
        digit=np.array([digits[d] for d in kept], np.int32),
        extent=tuple(extents[d] for d in kept),
        rate_bps=tuple(rates_bps[d] for d in kept),
        latency_ps=tuple(latencies_ps[d] for d in kept),
        named=kept,
    )
