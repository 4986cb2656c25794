"""How well a few traces stand for many."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from et.selection.choosing import TraceSelection

Floats = NDArray[np.float64]

_DRAWS = 32


@dataclass(frozen=True)
class Coverage:
    """Distances are in deviations: 1 is how far a trace is from the mean of all, in the mean (root of the square).

    Attributes:
        mean: distance from a trace to the chosen one that stands for it.
        median: half of the traces are nearer.
        p90: nine of ten are.
        farthest: of all.
        radius: see within.
        within: share of the traces that have a chosen one within the radius.
        random_mean: `mean` of as many traces chosen by chance, over 32 draws.
    """

    mean: float
    median: float
    p90: float
    farthest: float
    radius: float
    within: float
    random_mean: float


def coverage(choice: TraceSelection, radius: float, seed: int = 0) -> Coverage:
    """How far traces are from what stands for them.

    Args:
        choice: of et.selection.choose.
        radius: in deviations.
        seed: of the draws.
    """
    order = np.argsort(choice.distance, kind="stable")
    passed = np.cumsum(choice.many[order]) / choice.many.sum()
    at = [choice.distance[order][min(int(np.searchsorted(passed, q)), len(order) - 1)] for q in (0.5, 0.9)]
    return Coverage(
        mean=float(np.average(choice.distance, weights=choice.many)),
        median=float(at[0]),
        p90=float(at[1]),
        farthest=float(choice.distance.max()),
        radius=radius,
        within=float(np.average(choice.distance <= radius, weights=choice.many)),
        random_mean=_by_chance(choice, seed),
    )


def _by_chance(choice: TraceSelection, seed: int) -> float:
    generator = np.random.default_rng(seed)
    share = choice.many / choice.many.sum()
    k = len(choice.chosen)
    found = []
    for _ in range(_DRAWS):
        drawn = generator.choice(len(share), k, replace=False, p=share)
        nearest = cdist(choice.places, choice.places[drawn]).min(axis=1)
        found.append(np.average(nearest, weights=choice.many))
    return float(np.mean(found))
