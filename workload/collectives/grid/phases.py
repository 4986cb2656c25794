"""The phases of a stream (one split of the buffer), one per dimension, and the time that each takes alone."""

from collections.abc import Sequence
from typing import NamedTuple

from inputs.units import BITS_PER_BYTE
from workload import collectives
from workload.collectives import AlgorithmChoice
from workload.collectives.grid.levels import Levels
from workload.errors import WorkloadError

DEFAULT = "default"


class GridPhase(NamedTuple):
    """A collective along the lines of a dimension.

    Attributes:
        kind: Kind of that collective.
        dimension: Index of the dimension in the levels.
        earlier: Dimensions whose digits choose the phase's part of the split, highest digit first.
    """

    kind: str
    dimension: int
    earlier: tuple[int, ...]


def phases(kind: str, order: Sequence[int]) -> list[GridPhase]:
    """Return the phases of a stream for an order of dimensions; an all-gather reverses it.

    An all-reduce is a reduce-scatter in all but the last dimension, an all-reduce there, and all-gathers back.
    """
    if kind == "all-to-all":
        return [GridPhase(kind, d, ()) for d in order]
    there = [GridPhase("reduce-scatter", d, tuple(order[:i])) for i, d in enumerate(order)]
    back = [phase._replace(kind="all-gather") for phase in reversed(there)]
    if kind == "all-reduce":
        return [*there[:-1], there[-1]._replace(kind=kind), *back[1:]]
    return there if kind == "reduce-scatter" else back


def chosen(levels: Levels, phase: GridPhase, algorithms: str) -> AlgorithmChoice:
    """Return the algorithm of a phase.

    Args:
        levels: Dimensions of the group.
        phase: Phase of a stream.
        algorithms: One algorithm for all dimensions, or one per dimension separated by "/", with "+" in place of ","
            between parameters. "default" is the default of the phase's kind. Algorithms of dimensions that the levels
            lack are ignored.

    Raises:
        WorkloadError: Fewer algorithms than dimensions, or one that does not implement the phase's kind or not in one
            dimension.
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
