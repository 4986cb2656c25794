"""Measures of how well a few traces represent many."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from et.selection.choosing import TraceSelection

Floats = NDArray[np.float64]

_DRAWS = 32  # random selections to compare with


@dataclass(frozen=True)
class Coverage:
    """Distances between traces and their representatives, in units of the root mean square distance from the mean."""

    mean: float  # mean distance of a trace from its representative
    median: float  # median of these distances
    p90: float  # 90th percentile of these distances
    farthest: float  # maximum of these distances
    radius: float  # distance that `within` uses
    within: float  # share of the traces that have a chosen one within the radius
    random_mean: float  # `mean` for equally many traces chosen at random, over 32 draws


def coverage(choice: TraceSelection, radius: float, seed: int = 0) -> Coverage:
    """Measure the distances of traces from their representatives.

    Args:
        choice: Selection of et.selection.choose.
        radius: Distance for `within`, in the unit of Coverage.
        seed: Seed of the random draws.
    """
    order = np.argsort(choice.distance, kind="stable")
    passed = np.cumsum(choice.counts[order]) / choice.counts.sum()
    at = [choice.distance[order][min(int(np.searchsorted(passed, q)), len(order) - 1)] for q in (0.5, 0.9)]
    return Coverage(
        mean=float(np.average(choice.distance, weights=choice.counts)),
        median=float(at[0]),
        p90=float(at[1]),
        farthest=float(choice.distance.max()),
        radius=radius,
        within=float(np.average(choice.distance <= radius, weights=choice.counts)),
        random_mean=_by_chance(choice, seed),
    )


def _by_chance(choice: TraceSelection, seed: int) -> float:
    generator = np.random.default_rng(seed)
    share = choice.counts / choice.counts.sum()
    k = len(choice.chosen)
    found = []
    for _ in range(_DRAWS):
        drawn = generator.choice(len(share), k, replace=False, p=share)
        nearest = cdist(choice.places, choice.places[drawn]).min(axis=1)
        found.append(np.average(nearest, weights=choice.counts))
    return float(np.mean(found))
