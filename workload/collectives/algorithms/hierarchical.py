"""Hierarchical: inside each host first, then among the members of equal number of all hosts (one rail each), and back.

The phases are those of `grid`, on the places in a host and the hosts.
"""

from nadi.workload.collectives import grid
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.shape import GroupShape

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
NEEDS_SHAPE = True
PARAMETERS = {"algorithms": "default", "splits": 1}
LIMITS = {"splits": (1, 1024)}


def plan(kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int) -> Plans:
    """Return a chain of phases per split of the buffer; algorithms: "inside a host/among hosts", one name or two."""
    levels = grid.by_hosts(shape)
    return grid.plans(levels, kind, grid.orders(levels, kind, "baseline", algorithms, splits, size_bytes), algorithms)


def extent(kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int) -> PlanExtent:
    """Return a bound of the number of steps and lanes of `plan`."""
    levels = grid.by_hosts(shape)
    return grid.extent(levels, kind, grid.orders(levels, kind, "baseline", algorithms, splits, size_bytes), algorithms)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int) -> float:
    """Return the time of `grid` with the rates inside hosts and between them (workload.collectives.grid.by_hosts)."""
    levels = grid.by_hosts(shape)
    streams = grid.orders(levels, kind, "baseline", algorithms, splits, size_bytes)
    return grid.idle_ps(levels, kind, streams, algorithms, size_bytes)


def size_class(_kind: str, _shape: GroupShape, _size_bytes: int, **_parameters: str | int) -> int:
    """Return 0: all sizes share a plan."""
    return 0
