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
    """Return a chain of phases per split of the buffer: inside hosts, among hosts, and back.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        algorithms: The algorithm inside hosts and the algorithm among hosts, separated by "/", or one name for both.
        splits: The number of equal parts of the buffer, each a chain of phases.
    """
    levels = grid.by_hosts(shape)
    return grid.plans(levels, kind, grid.orders(levels, kind, "baseline", algorithms, splits, size_bytes), algorithms)


def extent(kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int) -> PlanExtent:
    """Return a bound of the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        algorithms: The algorithm inside hosts and the algorithm among hosts, separated by "/", or one name for both.
        splits: The number of equal parts of the buffer, each a chain of phases.
    """
    levels = grid.by_hosts(shape)
    return grid.extent(levels, kind, grid.orders(levels, kind, "baseline", algorithms, splits, size_bytes), algorithms)


def closed_form(kind: str, shape: GroupShape, size_bytes: int, algorithms: str, splits: int) -> float:
    """Return the time of `grid` with the rates inside hosts and between them (workload.collectives.grid.by_hosts).

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        algorithms: The algorithm inside hosts and the algorithm among hosts, separated by "/", or one name for both.
        splits: The number of equal parts of the buffer, each a chain of phases.
    """
    levels = grid.by_hosts(shape)
    streams = grid.orders(levels, kind, "baseline", algorithms, splits, size_bytes)
    return grid.idle_ps(levels, kind, streams, algorithms, size_bytes)


def size_class(_kind: str, _shape: GroupShape, _size_bytes: int, **_parameters: str | int) -> int:
    """Return 0: all sizes share a plan.

    Args:
        _kind: The kind of collective, one of KINDS.
        _shape: The positions of the group's members on the fabric.
        _size_bytes: Not used: all sizes share a plan.
        **_parameters: The parameters of the algorithm, which do not matter here.
    """
    return 0
