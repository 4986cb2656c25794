"""Keys and values on their way from GPUs that did a prompt to those that decode: who sends which heads to whom.

Ranks of both tensor-parallel groups hold heads in order. A rank that decodes gets each of its heads from a rank that
has it; where several have the same head, those that want it take turns. Compressed keys (latent attention) are whole
on every rank: each that decodes gets them from the rank of its number, modulo the prompts' group.
"""

from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.models.model import Model
from workload.generators.training.parallel_plan import ParallelPlan


class Route(NamedTuple):
    """From one rank to another.

    Attributes:
        source: tensor-parallel rank among those that do prompts.
        target: among those that decode.
        token_bytes: of one layer and token.
    """

    source: int
    target: int
    token_bytes: int


def routes(model: Model, prompts: ParallelPlan, decodes: ParallelPlan) -> tuple[Route, ...]:
    """All of a pair of replicas, by source and target."""
    value_bytes = int(DTYPE_BYTES[decodes.dtype])
    if model.latent is not None:
        size = (model.latent.key_value_rank + model.latent.rope_dim) * value_bytes
        return tuple(sorted(Route(target % prompts.tp, target, size) for target in range(decodes.tp)))
    heads: dict[tuple[int, int], int] = {}
    for head in range(model.key_value_heads):
        holders, wanting = _holders(model, prompts.tp, head), _holders(model, decodes.tp, head)
        for place, target in enumerate(wanting):
            pair = holders[place * len(holders) // len(wanting)], target
            heads[pair] = heads.get(pair, 0) + 1
    size = (model.query_dim + model.value_dim) * value_bytes
    return tuple(Route(source, target, count * size) for (source, target), count in sorted(heads.items()))


def _holders(model: Model, tp: int, head: int) -> range:
    """Ranks that have a head of keys and values."""
    heads = model.key_value_heads
    if tp <= heads:
        rank = head // (heads // tp)
        return range(rank, rank + 1)
    copies = tp // heads
    return range(head * copies, (head + 1) * copies)
