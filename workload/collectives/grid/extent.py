"""The size of plans over several dimensions, from the extents of the algorithms of one dimension."""

from collections.abc import Sequence

from workload.collectives.grid.levels import Levels
from workload.collectives.grid.phases import chosen, phases
from workload.collectives.plans.extent import PlanExtent


def extent(levels: Levels, kind: str, streams: Sequence[tuple[int, ...]], algorithms: str) -> PlanExtent:
    """Return a bound of the steps and lanes of `grid.plans`, with a lane that waits for the others of each phase."""
    members = levels.members
    of_stream: dict[tuple[int, ...], list[tuple[int, PlanExtent]]] = {}
    for order in streams:
        if order not in of_stream:
            of_phases = ((p.dimension, chosen(levels, p, algorithms).extent(p.kind, levels.extent[p.dimension]))
                     for p in phases(kind, order))  # fmt: skip
            of_stream[order] = list(of_phases)
    is_alike = all(each.plans == 1 for own in of_stream.values() for _, each in own)
    steps = lanes = 0
    for order in streams:
        for dimension, each in of_stream[order]:
            lines, alike = members // levels.extent[dimension], each.plans == 1
            times = 1 if is_alike else lines * (levels.extent[dimension] if alike else 1)
            plans = 1 if is_alike else members
            steps += times * (each.steps + each.lanes) + plans
            lanes += times * each.lanes + 2 * plans
    return PlanExtent(steps, lanes, 1 if is_alike else members)
