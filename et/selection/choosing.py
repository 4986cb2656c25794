"""Which of many traces stand for the others: clusters by Ward's criterion, and of each the trace in its middle."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import cdist

from et.selection.features import FAMILIES

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]

_MAX_CLUSTERED = 4000
"""Distinct traces whose distances to each other are held, 128 MB; of more a sample is clustered."""


@dataclass(frozen=True, eq=False)
class TraceSelection:
    """What was chosen of n traces.

    Attributes:
        chosen: int64[k], rows, those that stand for most first.
        stands_for: int64[n], which of the chosen is nearest to each trace.
        distance: float64[n], how far away that is.
        many: float64[n], how often each trace counts.
        places: float64[n, d], the traces as points, of which the distances are.
    """

    chosen: Int64
    stands_for: Int64
    distance: Floats
    many: Floats
    places: Floats

    @property
    def weights(self) -> Floats:
        """float64[k]: the share of all traces that each of the chosen stands for; together 1."""
        found = np.bincount(self.stands_for, self.many, minlength=len(self.chosen))
        return np.asarray(found / self.many.sum(), np.float64)


def choose(rows: Floats, many: Floats, k: int, seed: int = 0) -> TraceSelection:
    """Choose k traces, or as many as differ if these are fewer.

    Clusters are those of Ward (J. Am. Stat. Assoc. 58, 1963) on the distinct rows; each is represented by its medoid,
    the row with the least sum of distances to the others, counted as often as they are there. Then all rows go to the
    nearest of them.

    Args:
        rows: float64[n, features], as et.selection.features gives them.
        many: float64[n], how often each counts, more than 0.
        k: at least 1.
        seed: of the sample that is clustered where more than 4,000 rows differ.
    """
    places = _places(rows, many)
    distinct, first, same = np.unique(places.round(9), axis=0, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    counts = np.bincount(same, many).astype(np.float64)
    sample = np.arange(len(distinct))
    if len(distinct) > _MAX_CLUSTERED:
        sample = np.sort(np.random.default_rng(seed).choice(len(distinct), _MAX_CLUSTERED, replace=False))
    medoids = sample[_medoids(distinct[sample], counts[sample], k)]
    nearest = _nearest(distinct, distinct[medoids])
    weight = np.bincount(nearest, counts, minlength=len(medoids))
    medoids = medoids[np.argsort(-weight, kind="stable")]
    chosen = first[medoids]
    stands_for = _nearest(places, places[chosen])
    distance = np.linalg.norm(places - places[chosen][stands_for], axis=1)
    return TraceSelection(chosen, stands_for, distance, many, places)


def _places(rows: Floats, many: Floats) -> Floats:
    """The rows as points: each feature in its deviations, each family of features weighing as much as any other."""
    mean = np.average(rows, axis=0, weights=many)
    deviation = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=many))
    scaled = []
    begin = 0
    for family in FAMILIES.values():
        own = slice(begin, begin + len(family))
        least = np.array(list(family.values()))
        differs = max(int(np.count_nonzero(deviation[own] > least)), 1)
        scaled.append((rows[:, own] - mean[own]) / np.maximum(deviation[own], least) / np.sqrt(differs))
        begin += len(family)
    return np.concatenate(scaled, axis=1) / np.sqrt(len(FAMILIES))


def _medoids(places: Floats, counts: Floats, k: int) -> Int64:
    """int64[k or fewer]: rows in the middle of clusters."""
    if len(places) <= k:
        return np.arange(len(places))
    cluster = cut_tree(linkage(places, "ward"), n_clusters=k).reshape(-1)
    found = []
    for number in range(k):
        own = np.flatnonzero(cluster == number)
        sums = cdist(places[own], places[own]) @ counts[own]
        found.append(int(own[np.argmin(sums)]))
    return np.array(found, np.int64)


def _nearest(places: Floats, chosen: Floats) -> Int64:
    return np.asarray(np.argmin(cdist(places, chosen), axis=1), np.int64)
