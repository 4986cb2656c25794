"""Routes of keys and values from prefill GPUs to decoding GPUs.

The ranks of both tensor-parallel groups hold heads in order. A decoding rank receives each of its heads from a prefill
rank that holds it; if several hold it, the decoding ranks are distributed over them. Every rank holds all compressed
keys of latent attention, so that decoding rank i receives them from prefill rank i modulo the size of its group.
"""

from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.models.model import Model
from workload.generators.training.parallel_plan import ParallelPlan


class Route(NamedTuple):
    """Route from a prefill rank to a decoding rank."""

    source: int  # Tensor-parallel rank of the prefill GPU
    target: int  # Tensor-parallel rank of the decoding GPU
    token_bytes: int  # Bytes per layer and token


def routes(model: Model, prompts: ParallelPlan, decodes: ParallelPlan) -> tuple[Route, ...]:
    """Return the routes between a prefill replica and a decoding replica, sorted by source and target."""
    value_bytes = int(DTYPE_BYTES[decodes.dtype])
    if model.latent is not None:
        size = (model.latent.key_value_rank + model.latent.rope_dim) * value_bytes
        return tuple(sorted(Route(target % prompts.tp, target, size) for target in range(decodes.tp)))
    heads: dict[tuple[int, int], int] = {}
    for head in range(model.key_value_heads):
        sources, targets = _holders(model, prompts.tp, head), _holders(model, decodes.tp, head)
        for place, target in enumerate(targets):
            pair = sources[place * len(sources) // len(targets)], target
            heads[pair] = heads.get(pair, 0) + 1
    size = (model.query_dim + model.value_dim) * value_bytes
    return tuple(Route(source, target, count * size) for (source, target), count in sorted(heads.items()))


def _holders(model: Model, tp: int, head: int) -> range:
    """Return the ranks that hold a head of keys and values."""
    heads = model.key_value_heads
    if tp <= heads:
        rank = head // (heads // tp)
        return range(rank, rank + 1)
    copies = tp // heads
    return range(head * copies, (head + 1) * copies)
