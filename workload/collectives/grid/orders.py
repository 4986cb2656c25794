"""In which order the splits of a collective take the dimensions.

- baseline: ascending, the fastest dimension of the fabric first.
- bandwidth-aware: by falling rate, so that the most bytes go where they go fastest.
- themis: each split goes first where the splits before it have left the least to do, so that dimensions of unlike
  rates are busy equally long (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy for
  distributed training of DL models", ISCA 2022, section 4).
"""

from workload.collectives.grid.levels import Levels
from workload.collectives.grid.phases import phase_ps, phases

ORDERS = ("baseline", "bandwidth-aware", "themis")


def orders(
    levels: Levels, kind: str, order: str, algorithms: str, splits: int, size_bytes: int
) -> list[tuple[int, ...]]:
    """The dimensions as each split takes them; all-gathers go through them backwards.

    Args:
        levels: the dimensions.
        kind: of the collective.
        order: one of ORDERS.
        algorithms: see workload.collectives.grid.phases.chosen.
        splits: how many.
        size_bytes: the whole buffer; it counts for themis only.
    """
    dimensions = tuple(range(len(levels.extent)))
    if order == "baseline":
        return [dimensions] * splits
    if order == "bandwidth-aware":
        return [tuple(sorted(dimensions, key=lambda d: (-levels.rate_bps[d], d)))] * splits
    load_ps, found = [0.0] * len(dimensions), []
    for _ in range(splits):
        own = tuple(sorted(dimensions, key=lambda d: (load_ps[d], d)))
        for phase in phases(kind, own):
            load_ps[phase.dimension] += phase_ps(levels, phase, algorithms, size_bytes / splits)
        found.append(own)
    return found
