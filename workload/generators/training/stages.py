"""Which layers each stage of a pipeline has, and in which chunks.

The layers are dealt out over `slots`: the stages, or with interleaving the chunks of all stages, in the order in which
a micro-batch goes through them. Slot k is chunk k // pp of stage k % pp. DualPipe (DeepSeek-V3, arXiv 2412.19437,
section 3.2.1) feeds micro-batches from both ends: stage i has the layers of slots i and pp - 1 - i, so that all layers
are there twice.
"""

from functools import lru_cache
from typing import NamedTuple

from workload.generators.models.model import Model
from workload.generators.training import pipeline
from workload.generators.training.parallel_plan import ParallelPlan

VOCABULARY_ROWS = 128
"""The vocabulary of each GPU is a multiple of it (Megatron's --make-vocab-size-divisible-by)."""


class Chunk(NamedTuple):
    """What a stage does in one go.

    Attributes:
        layers: numbers of the model's layers, from 0.
        slot: where it stands in the order of the model.
        is_first: begins with the embedding.
        is_last: ends with the norm, the layers of multi-token prediction, the output layer and the loss.
    """

    layers: range
    slot: int
    is_first: bool
    is_last: bool


def slots(plan: ParallelPlan) -> int:
    """Over how many the layers are dealt out."""
    return plan.pp * plan.vpp


def layers_of_slots(layers: int, count: int) -> tuple[int, ...]:
    """How many layers each slot has: ceil(layers / count), and one less in as many as need be.

    These are the last, the first, the last but one, the second, ...: the ends have the embedding and the output layer,
    as in Llama 3 405B, whose 126 layers stand on 128 slots of one, the first and the last without a layer
    (arXiv 2407.21783, section 3.3.2).
    """
    most = -(-layers // count)
    fewer = most * count - layers
    at_the_end, at_the_beginning = -(-fewer // 2), fewer // 2
    return tuple(most - (slot < at_the_beginning or slot >= count - at_the_end) for slot in range(count))


@lru_cache(maxsize=256)
def chunks(model: Model, plan: ParallelPlan) -> tuple[tuple[Chunk, ...], ...]:
    """For each stage its chunks, for a plan that `rules.check` has passed."""
    count = slots(plan)
    sizes = layers_of_slots(model.layers, count)
    begins = [sum(sizes[:slot]) for slot in range(count)]
    made = [
        Chunk(range(begin, begin + size), slot, slot == 0, slot == count - 1)
        for slot, (begin, size) in enumerate(zip(begins, sizes, strict=True))
    ]
    schedule, own = plan.pipeline_schedule, pipeline.chunks(plan.pipeline_schedule, plan.vpp)
    return tuple(
        tuple(made[pipeline.position(schedule, stage, chunk, plan.pp, own)] for chunk in range(own))
        for stage in range(plan.pp)
    )


def padded_vocab(model: Model, plan: ParallelPlan) -> int:
    """Rows of the embedding over all of a tensor-parallel group."""
    unit = VOCABULARY_ROWS * plan.tp
    return -(-model.vocab // unit) * unit


def micro_batches(plan: ParallelPlan) -> int:
    """Micro-batches that a replica does in a step, for a plan that `rules.settle` has settled."""
    return plan.global_batch // (plan.dp * plan.micro_batch)
