"""How many of a GPU's tokens go to each expert.

With imbalance x the experts of a layer are in a random order of liking, and the one in place i = 1, 2, ... gets tokens
in proportion to i^-x (Zipf's law): x = 0 is even. The order is that of the plan's seed and the layer's number, the same
on all GPUs and for all micro-batches. A token's experts differ from each other, so that one gets at most all tokens;
with a capacity it takes so many times its even share at most, and what is above is dropped.
"""

import functools
import math

import numpy as np

from workload.generators.models.model import Experts
from workload.generators.training.parallel_plan import ParallelPlan


@functools.lru_cache(maxsize=4096)
def tokens_of_experts(plan: ParallelPlan, experts: Experts, rows: int, layer: int) -> tuple[int, ...]:
    """Of `rows` tokens how many go to each expert; a token counts once for each of its experts."""
    total = rows * experts.top_k
    weight = np.arange(1, experts.count + 1, dtype=np.float64) ** -plan.imbalance
    np.random.default_rng((plan.seed, layer)).shuffle(weight)
    counts = _shared_out(total, weight, rows)
    if plan.capacity:
        most = math.ceil(plan.capacity * total / experts.count)
        counts = np.minimum(counts, most)
    return tuple(counts.tolist())


def _shared_out(total: int, weight: np.ndarray, most: int) -> np.ndarray:
    """Whole numbers in proportion to weights, none above `most`, which together are `total`."""
    counts = np.zeros(len(weight), np.int64)
    while (left := total - int(counts.sum())) > 0:
        is_open = counts < most
        share = left * np.where(is_open, weight, 0.0) / weight[is_open].sum()
        added = np.minimum(np.floor(share).astype(np.int64), most - counts)
        if not np.any(added):
            by_share = np.argsort(-np.where(is_open, share, -1.0), kind="stable")
            added[by_share[: min(left, int(is_open.sum()))]] = 1
        counts += added
    return counts
