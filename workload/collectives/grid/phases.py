"""The phases of a stream (one split of the buffer), one per dimension; the orders of dimensions; idle times.

Orders of the dimensions for the splits of a collective:

- baseline: ascending, the fastest dimension of the fabric first.
- bandwidth-aware: by decreasing rate, so that most bytes use the fastest dimension.
- themis: each split begins where earlier splits left the smallest load, so that dimensions of different rates are
  busy equally long (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy for distributed
  training of DL models", ISCA 2022, section 4).
- whole: ascending; an all-reduce is an all-reduce of the whole split in each dimension, without reduce-scatters and
  all-gathers (ASTRA-sim's collective-optimization "baseline").
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from nadi.inputs.units import BITS_PER_BYTE
from nadi.workload import collectives
from nadi.workload.collectives import AlgorithmChoice
from nadi.workload.collectives.grid.levels import Levels
from nadi.workload.errors import WorkloadError

DEFAULT = "default"
WHOLE = "all-reduce of the whole split"  # kind of an all-reduce with the order "whole"


class GridPhase(NamedTuple):
    """A collective along the lines of a dimension."""

    kind: str  # kind of that collective
    dimension: int  # index of the dimension in the levels
    earlier: tuple[int, ...]  # dimensions whose digits choose the phase's part of the split, highest digit first


def phases(kind: str, dimensions: Sequence[int]) -> list[GridPhase]:
    """Return the phases of a split by its order of dimensions; all-reduce goes there and back, all-gather back."""
    if kind in {"all-to-all", WHOLE}:
        return [GridPhase("all-reduce" if kind == WHOLE else kind, d, ()) for d in dimensions]
    there = [GridPhase("reduce-scatter", d, tuple(dimensions[:i])) for i, d in enumerate(dimensions)]
    back = [phase._replace(kind="all-gather") for phase in reversed(there)]
    if kind == "all-reduce":
        return [*there[:-1], there[-1]._replace(kind=kind), *back[1:]]
    return there if kind == "reduce-scatter" else back


def chosen(levels: Levels, phase: GridPhase, algorithms: str) -> AlgorithmChoice:
    """Return the algorithm of a phase.

    The argument `algorithms` is one algorithm for all dimensions, or one per dimension separated by "/", with "+" in
    place of "," between parameters. "default" is the default of the phase's kind. Algorithms of dimensions that the
    levels lack are ignored. Raises WorkloadError: fewer algorithms than dimensions, or one that does not implement the
    phase's kind or not in one dimension.
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
    """Return the time of a phase of a split on an idle dimension in picoseconds: its algorithm's closed form."""
    choice, d = chosen(levels, phase, algorithms), phase.dimension
    share = split_bytes / levels.parts(phase.earlier)
    bytes_per_s = levels.rate_bps[d] / BITS_PER_BYTE if levels.rate_bps[d] else float("inf")
    return choice.module.closed_form(
        phase.kind, levels.extent[d], share, levels.latency_ps[d], bytes_per_s, **dict(choice.parameters)
    )


ORDERS = ("baseline", "bandwidth-aware", "themis", "whole")


def ordered_kind(kind: str, order: str) -> str:
    """Return the kind of the phases of a collective: WHOLE for an all-reduce with the order "whole", else its own."""
    return WHOLE if (kind, order) == ("all-reduce", "whole") else kind


def orders(
    levels: Levels, kind: str, order: str, algorithms: str, splits: int, size_bytes: int
) -> list[tuple[int, ...]]:
    """Return the order of dimensions of each split, by one of ORDERS; only themis depends on the size of the buffer."""
    # algorithms: as in `chosen`; splits: number of splits.
    dimensions = tuple(range(len(levels.extent)))
    if order in {"baseline", "whole"}:
        return [dimensions] * splits
    if order == "bandwidth-aware":
        return [tuple(sorted(dimensions, key=lambda d: (-levels.rate_bps[d], d)))] * splits
    load_ps, orders_of_splits = [0.0] * len(dimensions), []
    for _ in range(splits):
        own = tuple(sorted(dimensions, key=lambda d: (load_ps[d], d)))
        for phase in phases(kind, own):
            load_ps[phase.dimension] += phase_ps(levels, phase, algorithms, size_bytes / splits)
        orders_of_splits.append(own)
    return orders_of_splits


def idle_ps(
    levels: Levels, kind: str, orders_of_splits: Sequence[tuple[int, ...]], algorithms: str, size_bytes: int
) -> float:
    """Return the time of a collective in picoseconds, given the order of dimensions of each split."""
    every = [
        [
            (phase.dimension, phase_ps(levels, phase, algorithms, size_bytes / len(orders_of_splits)))
            for phase in phases(kind, order)
        ]
        for order in orders_of_splits
    ]
    return pipelined_ps(every)


def pipelined_ps(streams: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Return the end of the last stream, if a dimension runs one phase at a time, in order of readiness."""
    # For equal streams that use each dimension once, this is the sum of one stream's phases, plus the longest phase for
    # each further stream. A phase is a dimension and its time in picoseconds.
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
