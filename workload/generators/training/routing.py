"""Distribution of a GPU's tokens over the experts of a layer.

With imbalance x, the experts of a layer have a random order of popularity, and expert i = 1, 2, ... of this order
receives tokens in proportion to i^-x (Zipf's law); x = 0 is even. The plan's seed and the layer's number determine the
order, which is the same on all GPUs and for all micro-batches. The experts of a token are distinct, so that an expert
receives each token at most once. With a capacity, an expert drops the tokens above that multiple of its even share.
"""

import functools
import math

import numpy as np

from workload.generators.models.model import Experts
from workload.generators.training.parallel_plan import ParallelPlan


@functools.lru_cache(maxsize=4096)
def tokens_of_experts(plan: ParallelPlan, experts: Experts, rows: int, layer: int) -> tuple[int, ...]:
    """Return how many of `rows` tokens each expert receives; a token counts once for each of its experts."""
    total = rows * experts.top_k
    weight = np.arange(1, experts.count + 1, dtype=np.float64) ** -plan.imbalance
    np.random.default_rng((plan.seed, layer)).shuffle(weight)
    counts = _distributed(total, weight, rows)
    if plan.capacity:
        limit = math.ceil(plan.capacity * total / experts.count)
        counts = np.minimum(counts, limit)
    return tuple(counts.tolist())


def _distributed(total: int, weight: np.ndarray, maximum: int) -> np.ndarray:
    """Return integers with sum `total`, in proportion to weights as far as none exceeds `maximum`."""
    counts = np.zeros(len(weight), np.int64)
    while (left := total - int(counts.sum())) > 0:
        is_open = counts < maximum
        share = left * np.where(is_open, weight, 0.0) / weight[is_open].sum()
        added = np.minimum(np.floor(share).astype(np.int64), maximum - counts)
        if not np.any(added):
            by_share = np.argsort(-np.where(is_open, share, -1.0), kind="stable")
            added[by_share[: min(left, int(is_open.sum()))]] = 1
        counts += added
    return counts
