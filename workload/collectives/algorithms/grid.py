"""Grid: an algorithm for one dimension in each dimension of the fabric, one dimension after another.

The buffer is cut into splits that follow each other through the dimensions.

All-reduce is a reduce-scatter in one dimension after another, each on the result of the previous one, an all-reduce in
the last and all-gathers back (Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous
network hierarchy", 2019); reduce-scatter and all-gather are one half of that. All-to-all sends the whole buffer in
every dimension; with the order "whole" an all-reduce does so, too. On tori this is the usual algorithm of rings along
each dimension. A group that is not a full grid of the fabric's dimensions has one dimension.

With `ring_below`, groups of fewer members are one ring in member order, whatever the algorithms: so are the
communicators of ASTRA-sim that are not all NPUs (system/CommunicatorGroup.cc).
"""

from typing import NamedTuple

from nadi.workload.collectives import grid
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.shape import GroupShape

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
NEEDS_SHAPE = True
PARAMETERS = {"algorithms": "default", "splits": 1, "order": "baseline", "ring_below": 0}
LIMITS = {"splits": (1, 1024), "order": grid.ORDERS, "ring_below": (0, 1 << 20)}


class _Layout(NamedTuple):
    """Dimensions of a group, and what runs in them."""

    levels: grid.Levels  # places of the members in the dimensions
    kind: str  # kind of the phases (workload.collectives.grid.phases.ordered_kind)
    orders: list[tuple[int, ...]]  # order of the dimensions of each split
    algorithms: str  # algorithms of the dimensions (grid.phases.chosen)


def plan(
    kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int, order: str, ring_below: int
) -> Plans:
    """Return a chain of phases per split, one phase per dimension (all-reduce: two in all dimensions but the last).

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        algorithms: The algorithms of the dimensions, one name or one for each, separated by "/" (grid.phases.chosen).
        splits: The number of equal parts of the buffer, each a chain of phases.
        order: The rule for the order of a split's dimensions, one of grid.ORDERS.
        ring_below: The number of members below which a group is one ring in member order; 0 = never.
    """
    return grid.plans(*_layout(kind, shape, size_bytes, algorithms, splits, order, ring_below))


def extent(
    kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int, order: str, ring_below: int
) -> PlanExtent:
    """Return a bound of the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        algorithms: The algorithms of the dimensions, one name or one for each, separated by "/" (grid.phases.chosen).
        splits: The number of equal parts of the buffer, each a chain of phases.
        order: The rule for the order of a split's dimensions, one of grid.ORDERS.
        ring_below: The number of members below which a group is one ring in member order; 0 = never.
    """
    return grid.extent(*_layout(kind, shape, size_bytes, algorithms, splits, order, ring_below))


def closed_form(
    kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int, order: str, ring_below: int
) -> float:
    """Return the time in picoseconds: for one split, the sum of its phases at each dimension's rate and latency.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        algorithms: The algorithms of the dimensions, one name or one for each, separated by "/" (grid.phases.chosen).
        splits: The number of equal parts of the buffer, each a chain of phases.
        order: The rule for the order of a split's dimensions, one of grid.ORDERS.
        ring_below: The number of members below which a group is one ring in member order; 0 = never.
    """
    # Several splits end when the last is done, if a dimension runs one phase at a time, first come first served: for
    # equal splits that use each dimension once, one split's phases and splits - 1 times the longest of them.
    return grid.idle_ps(*_layout(kind, shape, size_bytes, algorithms, splits, order, ring_below), size_bytes)


def size_class(_kind: str, _shape: GroupShape, size_bytes: int, *, order: str, **_others: str | int) -> int:
    """Return the class of a size: for "themis", whose order depends little on sizes, the next power of two; else 0.

    Args:
        _kind: The kind of collective, one of KINDS.
        _shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        order: The rule for the order of a split's dimensions, one of grid.ORDERS.
        **_others: Parameters on which the class does not depend.
    """
    return _typical(size_bytes, order)


def _layout(
    kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int, order: str, ring_below: int
) -> _Layout:
    """Return the dimensions of a group and the order of its splits; the arguments are those of `plan`."""
    is_ring = shape.members < ring_below
    levels = grid.in_a_line(shape) if is_ring else grid.along_dimensions(shape)
    algorithms, kind = "ring" if is_ring else algorithms, grid.ordered_kind(kind, order)
    orders = grid.orders(levels, kind, order, algorithms, splits, _typical(size_bytes, order))
    return _Layout(levels, kind, orders, algorithms)


def _typical(size_bytes: int, order: str) -> int:
    """Return the size that determines the order of the dimensions."""
    return 1 << max(0, size_bytes - 1).bit_length() if order == "themis" else 0
