"""Members as places of a grid, and the phases of a collective along its dimensions.

A member has a digit per dimension. Members that differ in one digit only are a line, along which a phase runs, and
digits choose the part of the buffer that a phase works on.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int32
from nadi.inputs.units import BITS_PER_BYTE
from nadi.workload import collectives
from nadi.workload.collectives import AlgorithmChoice
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
        """Return int32[n / extent, extent]: members that differ in one dimension only, in order of their digits.

        Args:
            dimension: The index of the dimension.
        """
        others = [self.digit[d] for d in range(len(self.extent)) if d != dimension]
        # Sorted by all other digits first, members of a line follow each other in the order of this digit
        order = np.lexsort([self.digit[dimension], *others])
        return order.astype(np.int32).reshape(-1, self.extent[dimension])

    def part(self, dimensions: Sequence[int]) -> Int32:
        """Return int32[n]: members' digits in several dimensions as one number.

        Args:
            dimensions: The indices of the dimensions, the one with the highest digit first.
        """
        part = np.zeros(self.members, np.int32)
        for d in dimensions:
            # Horner's scheme: for extents 2 and 4, digits 1 and 3 are part 1 * 4 + 3 = 7
            part = part * np.int32(self.extent[d]) + self.digit[d]
        return part

    def parts(self, dimensions: Sequence[int]) -> int:
        """Return the number of different values of `part`.

        Args:
            dimensions: The indices of the dimensions.
        """
        return math.prod(self.extent[d] for d in dimensions)


def along_dimensions(shape: GroupShape) -> Levels:
    """Return the dimensions of a group, the fastest first; a single dimension if the members are not a full grid.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    number = np.arange(shape.members)
    digits = [number // math.prod(shape.grid[:d]) % extent for d, extent in enumerate(shape.grid)]
    return _kept(digits, shape.grid, shape.rate_bps, shape.latency_ps)


def in_a_line(shape: GroupShape) -> Levels:
    """Return one dimension of all members in their order, with the minimum rate and the total latency of the grid's.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    return _kept([np.arange(shape.members)], (shape.members,), (min(shape.rate_bps),), (sum(shape.latency_ps),))


def by_hosts(shape: GroupShape) -> Levels:
    """Return two dimensions, places in a host and hosts; a dimension with one place is omitted.

    If the fabric's first dimensions make up the hosts, the first level gets their minimum rate and their total latency,
    and the second level those of the other dimensions; else both get the values of all dimensions. Raises
    WorkloadError: hosts with unequal numbers of members.

    Args:
        shape: The positions of the group's members on the fabric.
    """
    host, place = np.array(shape.host), np.array(shape.place)
    sizes = np.bincount(host)
    if sizes.min() != sizes.max():
        raise WorkloadError(f"hosts of {sizes.min()} to {sizes.max()} members: expected equally many in each")
    order = np.lexsort([place, host])
    rail = np.empty(len(host), np.int64)
    rail[order] = np.arange(len(host)) % sizes[0]
    extent = (int(sizes[0]), len(sizes))
    # The hosts are whole dimensions if the product of the first ones is the number of members of a host
    inner = [math.prod(shape.grid[: d + 1]) for d in range(len(shape.grid))]
    # A grid of 4 x 2 x 8 with hosts of 8 members: inner is 4, 8, 64, so the first two dimensions are the hosts
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


# The phases of a stream (one split of the buffer), one per dimension; the orders of dimensions; idle times.
#
# Orders of the dimensions for the splits of a collective:
#
# - baseline: ascending, the fastest dimension of the fabric first.
# - bandwidth-aware: by decreasing rate, so that most bytes use the fastest dimension.
# - themis: each split begins where earlier splits left the smallest load, so that dimensions of different rates are
#   busy equally long (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy for distributed
#   training of DL models", ISCA 2022, section 4).
# - whole: ascending; an all-reduce is an all-reduce of the whole split in each dimension, without reduce-scatters and
#   all-gathers (ASTRA-sim's collective-optimization "baseline").


DEFAULT = "default"
WHOLE = "all-reduce of the whole split"  # kind of an all-reduce with the order "whole"


class GridPhase(NamedTuple):
    """A collective along the lines of a dimension."""

    kind: str  # kind of that collective
    dimension: int  # index of the dimension in the levels
    earlier: tuple[int, ...]  # dimensions whose digits choose the phase's part of the split, highest digit first


def phases(kind: str, dimensions: Sequence[int]) -> list[GridPhase]:
    """Return the phases of a split by its order of dimensions.

    An all-reduce passes the dimensions forwards and backwards, a reduce-scatter forwards, an all-gather backwards.

    Args:
        kind: The kind of collective, or WHOLE.
        dimensions: The indices of the dimensions in the order of the split.
    """
    if kind in {"all-to-all", WHOLE}:
        return [GridPhase("all-reduce" if kind == WHOLE else kind, d, ()) for d in dimensions]
    there = [GridPhase("reduce-scatter", d, tuple(dimensions[:i])) for i, d in enumerate(dimensions)]
    back = [phase._replace(kind="all-gather") for phase in reversed(there)]
    if kind == "all-reduce":
        return [*there[:-1], there[-1]._replace(kind=kind), *back[1:]]
    return there if kind == "reduce-scatter" else back


def chosen(levels: Levels, phase: GridPhase, algorithms: str) -> AlgorithmChoice:
    """Return the algorithm of a phase.

    Raises WorkloadError: fewer algorithms than dimensions, or one that does not implement the phase's kind or does not
    run in one dimension.

    Args:
        levels: The members as places of a grid.
        phase: The phase whose algorithm runs.
        algorithms: One algorithm for all dimensions, or one per dimension separated by "/", with "+" in place of ","
            between parameters. "default" is the default of the phase's kind. Algorithms of dimensions that the levels
            lack are ignored.
    """
    specs = algorithms.split("/")
    number = levels.named[phase.dimension] if len(specs) > 1 else 0
    if number >= len(specs):
        dimensions = max(levels.named) + 1
        raise WorkloadError(
            f"algorithms {algorithms!r}: {len(specs)} for {dimensions} dimensions, expected one for all or each"
        )
    spec = specs[number].strip().replace("+", ",")
    choice = collectives.choose(phase.kind, collectives.default_algorithm(phase.kind) if spec == DEFAULT else spec)
    if choice.dataset_splits > 1:
        raise WorkloadError(f"algorithms {algorithms!r}: dataset_splits in a dimension, expected splits of the whole")
    if choice.needs_shape:
        raise WorkloadError(f"algorithms {algorithms!r}: {choice.name} is not for one dimension, expected one that is")
    return choice


def phase_ps(levels: Levels, phase: GridPhase, algorithms: str, split_bytes: float) -> float:
    """Return the time of a phase of a split on an idle dimension in picoseconds: its algorithm's closed form.

    Args:
        levels: The members as places of a grid.
        phase: The phase whose algorithm runs.
        algorithms: The algorithms of the phases, one name or one per dimension, separated by "/" (`phases.chosen`).
        split_bytes: The size of the split in bytes.
    """
    choice, d = chosen(levels, phase, algorithms), phase.dimension
    share = split_bytes / levels.parts(phase.earlier)
    bytes_per_s = levels.rate_bps[d] / BITS_PER_BYTE if levels.rate_bps[d] else float("inf")
    return choice.module.closed_form(
        phase.kind, levels.extent[d], share, levels.latency_ps[d], bytes_per_s, **dict(choice.parameters)
    )


ORDERS = ("baseline", "bandwidth-aware", "themis", "whole")


def ordered_kind(kind: str, order: str) -> str:
    """Return the kind of the phases of a collective: WHOLE for an all-reduce with the order "whole", else its own.

    Args:
        kind: The kind of collective, or WHOLE.
        order: The order of the dimensions, one of ORDERS.
    """
    return WHOLE if (kind, order) == ("all-reduce", "whole") else kind


def orders(
    levels: Levels, kind: str, order: str, algorithms: str, splits: int, size_bytes: int
) -> list[tuple[int, ...]]:
    """Return the order of dimensions of each split; only "themis" depends on the size of the buffer.

    Args:
        levels: The members as places of a grid.
        kind: The kind of collective, or WHOLE.
        order: The rule, one of ORDERS.
        algorithms: The algorithms of the phases, one name or one per dimension, separated by "/" (`phases.chosen`).
        splits: The number of splits of the buffer.
        size_bytes: The size of the whole buffer in bytes.
    """
    dimensions = tuple(range(len(levels.extent)))
    if order in {"baseline", "whole"}:
        return [dimensions] * splits
    if order == "bandwidth-aware":
        return [tuple(sorted(dimensions, key=lambda d: (-levels.rate_bps[d], d)))] * splits
    load_ps, orders_of_splits = [0.0] * len(dimensions), []
    for _ in range(splits):
        # A split begins in the dimension with the smallest load, where it moves the most bytes
        own = tuple(sorted(dimensions, key=lambda d: (load_ps[d], d)))
        for phase in phases(kind, own):
            load_ps[phase.dimension] += phase_ps(levels, phase, algorithms, size_bytes / splits)
        orders_of_splits.append(own)
    return orders_of_splits


def idle_ps(
    levels: Levels, kind: str, orders_of_splits: Sequence[tuple[int, ...]], algorithms: str, size_bytes: int
) -> float:
    """Return the time of a collective in picoseconds.

    Args:
        levels: The members as places of a grid.
        kind: The kind of collective, or WHOLE.
        orders_of_splits: The order of the dimensions in each split.
        algorithms: The algorithms of the phases, one name or one per dimension, separated by "/" (`phases.chosen`).
        size_bytes: The size of the whole buffer in bytes.
    """
    every = [
        [
            (phase.dimension, phase_ps(levels, phase, algorithms, size_bytes / len(orders_of_splits)))
            for phase in phases(kind, order)
        ]
        for order in orders_of_splits
    ]
    return pipelined_ps(every)


def pipelined_ps(streams: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Return the end of the last stream, if a dimension runs one phase at a time, in order of readiness.

    Args:
        streams: The phases of each split, each a dimension and its time in picoseconds.
    """
    free: dict[int, float] = {}
    last = 0.0
    ready = [(0.0, 0, i) for i, stream in enumerate(streams) if stream]
    while ready:
        now, number, i = heapq.heappop(ready)
        dimension, phase = streams[i][number]
        end = free[dimension] = max(now, free.get(dimension, 0.0)) + phase
        last = max(last, end)
        if number + 1 < len(streams[i]):
            heapq.heappush(ready, (end, number + 1, i))
    return last
