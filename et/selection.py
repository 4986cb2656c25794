"""Selection of representative traces by their features: clusters by Ward's criterion, and the middle trace of each."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import cdist

from nadi.et.order import depth
from nadi.et.reader import collective_name
from nadi.et.schema import CollectiveCommType, NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Float64, Int64

_MAX_CLUSTERED = 4000  # distinct traces whose pairwise distances fit into 128 MB; of more traces a sample is clustered

_DRAWS = 32  # random selections to compare with
_QUANTILES = (0.1, 0.5, 0.9)
_KINDS = [kind for kind in NodeType if kind != NodeType.INVALID_NODE]
_SHARE, _LOG = 0.01, 0.05  # deviations of a share, and of a logarithm to base 2, below which all traces count as equal

FAMILIES: dict[str, dict[str, float]] = {
    "size": {"nodes": _LOG, "groups": _LOG},
    "mix": {f"share of {kind.name}": _SHARE for kind in _KINDS} | {"share of host operations": _SHARE},
    "collectives": {f"bytes in {collective_name(kind)}": _SHARE for kind in CollectiveCommType}
    | {"bytes in sends": _SHARE},
    "messages": {f"message bytes at {q:.0%}": _LOG for q in _QUANTILES} | {"bytes": _LOG},
    "compute": {f"microseconds at {q:.0%}": _LOG for q in _QUANTILES} | {"microseconds": _LOG, "operations": _LOG},
    "shape": {"depth": _LOG, "depth by nodes": _SHARE, "fan-in": _LOG, "largest fan-in": _LOG, "roots": _LOG},
    "balance": {"bytes by microseconds": _LOG, "bytes by operations": _LOG},
}
"""Families of features, with the minimum deviation of each feature. All but shares are base-2 logarithms."""
FEATURES = tuple(name for family in FAMILIES.values() for name in family)


@dataclass(frozen=True, eq=False)
class TraceSelection:
    """The traces chosen from n traces."""

    chosen: Int64  # int64[k], rows of the chosen traces, those that represent most first
    representative: Int64  # int64[n], place in `chosen` of the trace nearest to each trace
    distance: Float64  # float64[n], distance of each trace from its representative
    counts: Float64  # float64[n], number of times that each trace counts
    places: Float64  # float64[n, d], the traces as points, between which distances are measured

    @property
    def weights(self) -> Float64:
        """float64[k], the share of all traces that each chosen trace represents; the sum is 1."""
        found = np.bincount(self.representative, self.counts, minlength=len(self.chosen))
        return np.asarray(found / self.counts.sum(), np.float64)


def choose(features_of_trace: Float64, counts: Float64, k: int, seed: int = 0) -> TraceSelection:
    """Choose k traces that represent all; all distinct ones if there are at most k.

    Clusters are those of Ward (J. Am. Stat. Assoc. 58, 1963) on the distinct rows. Each is represented by its medoid,
    the row with the smallest sum of distances to the others, weighted by their counts. Rows go to the nearest medoid.

    Args:
        features_of_trace: float64[n, features], a row from `features` for each trace.
        counts: float64[n], the number of times that each trace counts.
        k: The number of traces to choose.
        seed: Seed of the sample that is clustered if there are more than 4,000 distinct rows.
    """
    places = _places(features_of_trace, counts)
    # Equal traces are one point, whose count is the sum of their counts
    distinct, first, same = np.unique(places.round(9), axis=0, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    distinct_counts = np.bincount(same, counts).astype(np.float64)
    sample = np.arange(len(distinct))
    if len(distinct) > _MAX_CLUSTERED:
        sample = np.sort(np.random.default_rng(seed).choice(len(distinct), _MAX_CLUSTERED, replace=False))
    medoids = sample[_medoids(distinct[sample], distinct_counts[sample], k)]
    nearest = np.asarray(np.argmin(cdist(distinct, distinct[medoids]), axis=1), np.int64)
    # Those that represent most come first
    weight = np.bincount(nearest, distinct_counts, minlength=len(medoids))
    medoids = medoids[np.argsort(-weight, kind="stable")]
    chosen = first[medoids]
    representative = np.asarray(np.argmin(cdist(places, places[chosen]), axis=1), np.int64)
    distance = np.linalg.norm(places - places[chosen][representative], axis=1)
    return TraceSelection(chosen, representative, distance, counts, places)


def _places(features_of_trace: Float64, counts: Float64) -> Float64:
    """Return the traces as points: features in units of their deviation, with equal weight for all families."""
    mean = np.average(features_of_trace, axis=0, weights=counts)
    deviation = np.sqrt(np.average((features_of_trace - mean) ** 2, axis=0, weights=counts))
    scaled = []
    begin = 0
    for family in FAMILIES.values():
        own = slice(begin, begin + len(family))
        min_deviation = np.array(list(family.values()))
        # A family's weight is divided among the features that differ at all, so that constant ones do not dilute it
        differs = max(int(np.count_nonzero(deviation[own] > min_deviation)), 1)
        scaled.append(
            (features_of_trace[:, own] - mean[own]) / np.maximum(deviation[own], min_deviation) / np.sqrt(differs)
        )
        begin += len(family)
    # Square roots, as squares of coordinates add up to squared distances
    return np.concatenate(scaled, axis=1) / np.sqrt(len(FAMILIES))


def _medoids(places: Float64, counts: Float64, k: int) -> Int64:
    """Return int64[k or fewer], the middle row of each of k clusters of points with these weights."""
    if len(places) <= k:
        return np.arange(len(places))
    cluster = cut_tree(linkage(places, "ward"), n_clusters=k).reshape(-1)
    found = []
    for number in range(k):
        own = np.flatnonzero(cluster == number)
        # The weighted sum of the distances from each member of the cluster
        sums = cdist(places[own], places[own]) @ counts[own]
        found.append(int(own[np.argmin(sums)]))
    return np.array(found, np.int64)


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


def coverage(selection: TraceSelection, radius: float, seed: int = 0) -> Coverage:
    """Measure the distances of traces from their representatives.

    Args:
        selection: The chosen traces, and the distances.
        radius: The distance of `Coverage.within`, which counts the traces that are at most that far.
        seed: Seed of the random selections for `Coverage.random_mean`.
    """
    order = np.argsort(selection.distance, kind="stable")
    # The share of the traces up to each distance
    passed = np.cumsum(selection.counts[order]) / selection.counts.sum()
    at = [selection.distance[order][min(int(np.searchsorted(passed, q)), len(order) - 1)] for q in (0.5, 0.9)]
    generator = np.random.default_rng(seed)
    share = selection.counts / selection.counts.sum()
    k = len(selection.chosen)
    found = []
    for _ in range(_DRAWS):
        drawn = generator.choice(len(share), k, replace=False, p=share)
        nearest = cdist(selection.places, selection.places[drawn]).min(axis=1)
        found.append(np.average(nearest, weights=selection.counts))
    return Coverage(
        mean=float(np.average(selection.distance, weights=selection.counts)),
        median=float(at[0]),
        p90=float(at[1]),
        farthest=float(selection.distance.max()),
        radius=radius,
        within=float(np.average(selection.distance <= radius, weights=selection.counts)),
        random_mean=float(np.mean(found)),
    )


def features(table: TraceTable) -> Float64:
    """Return float64[features], the values of FEATURES for a trace.

    Args:
        table: The trace of one NPU.
    """
    nodes = max(len(table), 1)
    fan_in = np.diff(table.dep_ptr)
    deep = depth(table)
    is_compute = table.type == NodeType.COMP_NODE
    sends = _positive(table.comm_size[table.type == NodeType.COMM_SEND_NODE])
    sizes = _positive(table.comm_size)
    micros = _positive(table.duration_micros[is_compute])
    sent, took, operations = (float(values.sum()) for values in (sizes, micros, _positive(table.num_ops)))
    # Logarithms: traces of 100 and 1,000 nodes differ as much as those of 1,000 and 10,000
    found = [_log(nodes), _log(len(table.group_names))]
    found += [np.count_nonzero(table.type == kind) / nodes for kind in _KINDS]
    found += [np.count_nonzero(table.is_cpu_op) / nodes]
    by_kind = [float(_positive(table.comm_size[table.comm_type == kind]).sum()) for kind in CollectiveCommType]
    of_all = max(sum(by_kind) + float(sends.sum()), 1.0)
    found += [part / of_all for part in (*by_kind, float(sends.sum()))]
    found += [*_quantiles(sizes), _log(sent)]
    found += [*_quantiles(micros), _log(took), _log(operations)]
    mean, largest, roots = fan_in.sum() / nodes, int(fan_in.max(initial=0)), int(np.count_nonzero(fan_in == 0))
    found += [_log(deep), deep / nodes, _log(mean), _log(largest), _log(roots)]
    # Differences of logarithms: bytes per microsecond and per operation
    found += [_log(sent) - _log(took) if took else 0.0, _log(sent) - _log(operations) if operations else 0.0]
    return np.array(found, np.float64)


def _positive(values: Int64) -> Float64:
    return values[values > 0].astype(np.float64)


def _log(value: float) -> float:
    return float(np.log2(1 + value))


def _quantiles(values: Float64) -> list[float]:
    return [_log(value) for value in np.quantile(values, _QUANTILES)] if len(values) else [0.0] * len(_QUANTILES)
