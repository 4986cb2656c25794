"""Assignment of layers to the stages of a pipeline and their chunks.

Layers are distributed over slots: the stages or, with interleaving, the chunks of all stages, in the order in which a
micro-batch passes through them. Slot k is chunk k // pp of stage k % pp. DualPipe (DeepSeek-V3, arXiv 2412.19437,
section 3.2.1) feeds micro-batches from both ends: stage i has the layers of slots i and pp - 1 - i, so that every layer
has two copies.
"""

from functools import lru_cache
from typing import NamedTuple

from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.pipeline import PipelineSchedule, schedule_of

VOCABULARY_ROWS = 128
"""Vocabulary rows per GPU are a multiple of it (default of Megatron's --make-vocab-size-divisible-by)."""


class Chunk(NamedTuple):
    """Consecutive layers that a stage runs without exchanging messages."""

    layers: range  # Numbers of the model's layers, from 0
    slot: int  # Position in the order of the model, from 0
    is_first: bool  # Whether the chunk begins with the embedding
    is_last: bool  # Whether the chunk ends with norm, multi-token prediction layers, output layer and loss


def slots(plan: ParallelPlan) -> int:
    """Return the number of slots that share the layers.

    Args:
        plan: The settled parallel plan.
    """
    return plan.pp * plan.vpp


def layers_of_slots(layers: int, count: int) -> tuple[int, ...]:
    """Return the number of layers of each slot: ceil(layers / count), or one less where the layers do not suffice.

    Args:
        layers: The number of layers of the model.
        count: The number of slots.
    """
    # The slots with one layer less are the last, the first, the last but one, the second, and so on, because the ends
    # also have the embedding and the output layer. Llama 3 405B does so: its 126 layers fill 128 slots of one layer,
    # the first and the last slot are empty (arXiv 2407.21783, section 3.3.2).
    maximum = -(-layers // count)
    missing = maximum * count - layers
    at_the_end, at_the_beginning = -(-missing // 2), missing // 2
    return tuple(maximum - (slot < at_the_beginning or slot >= count - at_the_end) for slot in range(count))


@lru_cache(maxsize=256)
def chunks(model: Model, plan: ParallelPlan) -> tuple[tuple[Chunk, ...], ...]:
    """Return the chunks of each stage, for a plan that `rules.check` accepts.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
    """
    count = slots(plan)
    sizes = layers_of_slots(model.layers, count)
    begins = [sum(sizes[:slot]) for slot in range(count)]
    chunk_of_slot = [
        Chunk(range(begin, begin + size), slot, slot == 0, slot == count - 1)
        for slot, (begin, size) in enumerate(zip(begins, sizes, strict=True))
    ]
    pipeline = pipeline_of(plan)
    return tuple(
        tuple(chunk_of_slot[pipeline.position(stage, chunk)] for chunk in range(pipeline.chunks))
        for stage in range(plan.pp)
    )


def pipeline_of(plan: ParallelPlan) -> PipelineSchedule:
    """Return the pipeline schedule of a plan, with the plan's numbers of stages, micro-batches and chunks.

    Args:
        plan: The settled parallel plan.
    """
    return schedule_of(plan.pipeline_schedule)(plan.pp, micro_batches(plan), plan.vpp)


def padded_vocab(model: Model, plan: ParallelPlan) -> int:
    """Return the number of vocabulary rows of a whole tensor-parallel group, padding included.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
    """
    unit = VOCABULARY_ROWS * plan.tp
    return -(-model.vocab // unit) * unit


def micro_batches(plan: ParallelPlan) -> int:
    """Return the number of micro-batches per replica and step, for a plan that `rules.settle` completed.

    Args:
        plan: The settled parallel plan.
    """
    return plan.global_batch // (plan.dp * plan.micro_batch)
