"""Grid: an algorithm for one dimension in each dimension of the fabric in turn.

The buffer is cut into splits that follow each other through the dimensions.

All-reduce is a reduce-scatter in dimension after dimension, of what the one before has left, an all-reduce in the last
and all-gathers back (Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
hierarchy", 2019); reduce-scatter and all-gather are one way of that. All-to-all sends the whole buffer in every
dimension. On tori this is the usual algorithm of rings along each dimension. Groups that are no full grid of the
fabric's dimensions are one dimension.
"""

from workload.collectives import grid
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import Plans
from workload.shape import Shape

NAME = "grid"
KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
NEEDS_SHAPE = True
PARAMETERS = {"algorithms": "default", "splits": 1, "order": "baseline"}
LIMITS = {"splits": (1, 1024), "order": grid.ORDERS}


def plan(kind: str, shape: Shape, size_bytes: int, algorithms: str, splits: int, order: str) -> Plans:
    """A chain of phases for each split, one phase for each dimension (all-reduce: two but for the last)."""
    levels, size = grid.along_dimensions(shape), _typical(size_bytes, order)
    return grid.plans(levels, kind, grid.orders(levels, kind, order, algorithms, splits, size), algorithms)


def extent(kind: str, shape: Shape, size_bytes: int, algorithms: str, splits: int, order: str) -> PlanExtent:
    """A bound of the steps and lanes of `plan`."""
    levels, size = grid.along_dimensions(shape), _typical(size_bytes, order)
    return grid.extent(levels, kind, grid.orders(levels, kind, order, algorithms, splits, size), algorithms)


def closed_form(kind: str, shape: Shape, size_bytes: int, algorithms: str, splits: int, order: str) -> float:
    """Of one split the sum over its phases of what their algorithms take at the dimension's rate and latency.

    Of several, when the last is done if a dimension does one phase at a time, first come first served: with equal
    splits that come through each dimension once, one split's phases and splits - 1 times the longest of them.
    """
    levels, size = grid.along_dimensions(shape), _typical(size_bytes, order)
    return grid.idle_ps(
        levels, kind, grid.orders(levels, kind, order, algorithms, splits, size), algorithms, size_bytes
    )


def size_class(_kind: str, _shape: Shape, size_bytes: int, *, order: str, **_others: str | int) -> int:
    """Only the loads that themis balances depend on the size, and little: sizes up to a power of two are one class."""
    return _typical(size_bytes, order)


def _typical(size_bytes: int, order: str) -> int:
    """The size for which the dimensions are ordered."""
    return 1 << max(0, size_bytes - 1).bit_length() if order == "themis" else 0
