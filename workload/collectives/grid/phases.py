"""What a stream (one split of the buffer) does, dimension after dimension, and what each phase takes alone."""

from collections.abc import Sequence
from typing import NamedTuple

from inputs.units import BITS_PER_BYTE
from workload import collectives
from workload.collectives import AlgorithmChoice
from workload.collectives.grid.levels import Levels
from workload.errors import WorkloadError

DEFAULT = "default"


class GridPhase(NamedTuple):
    """One collective along the lines of a dimension.

    Attributes:
        kind: of that collective.
        dimension: of the levels.
        earlier: dimensions whose digits have chosen the part of the split that it works on, the first counts most.
    """

    kind: str
    dimension: int
    earlier: tuple[int, ...]


def phases(kind: str, order: Sequence[int]) -> list[GridPhase]:
    """The phases of a stream that takes the dimensions in this order; an all-gather goes back through it.

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
    """The algorithm of a phase.

    Args:
        levels: the dimensions.
        phase: the phase.
        algorithms: one for all dimensions, or one for each with "/" between them, with "+" where parameters have ",".
            "default" is the default of the phase's kind. Those of dimensions that the levels lack are not used.

    Raises:
        WorkloadError: fewer than there are dimensions; one that does not do the phase's kind, or is not for one
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
    """Picoseconds of a phase of a split on an idle dimension: its algorithm's closed form.

    Raises:
        WorkloadError: as `chosen`.
    """
    choice, d = chosen(levels, phase, algorithms), phase.dimension
    share = split_bytes / levels.parts(phase.earlier)
    bytes_per_s = levels.rate_bps[d] / BITS_PER_BYTE if levels.rate_bps[d] else float("inf")
    return choice.module.closed_form(
        phase.kind, levels.extent[d], share, levels.latency_ps[d], bytes_per_s, **dict(choice.parameters)
    )
