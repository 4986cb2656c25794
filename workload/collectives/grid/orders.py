"""Orders of the dimensions for the splits of a collective.

- baseline: ascending, the fastest dimension of the fabric first.
- bandwidth-aware: by decreasing rate, so that most bytes use the fastest dimension.
- themis: each split begins where earlier splits left the smallest load, so that dimensions of different rates are busy
  equally long (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy for distributed training
  of DL models", ISCA 2022, section 4).
"""

from workload.collectives.grid.levels import Levels
from workload.collectives.grid.phases import phase_ps, phases

ORDERS = ("baseline", "bandwidth-aware", "themis")


def orders(
    levels: Levels, kind: str, order: str, algorithms: str, splits: int, size_bytes: int
) -> list[tuple[int, ...]]:
    """Return the order of dimensions of each split; all-gathers go through it backwards.

    Args:
        levels: Dimensions of the group.
        kind: Kind of the collective.
        order: One of ORDERS.
        algorithms: Algorithms of the phases, see workload.collectives.grid.phases.chosen.
        splits: Number of splits.
        size_bytes: Size of the whole buffer, which only themis uses.
    """
    dimensions = tuple(range(len(levels.extent)))
    if order == "baseline":
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
