"""Parameters on each GPU of a parallel plan, before ZeRO shards them over the replicas, and their buckets.

All GPUs of a stage hold the same number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nadi.workload.generators.models import architecture
from nadi.workload.generators.models.architecture import Model, Weights
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Chunk, chunks, padded_vocab

MEGATRON_MINIMUM, MEGATRON_PER_REPLICA = 40_000_000, 1_000_000
"""Elements per bucket: max(40 M, 1 M per replica) (Megatron-LM, core/distributed/distributed_data_parallel.py)."""
DEEPSPEED = 500_000_000
"""Elements per bucket: DeepSpeed's reduce_bucket_size and allgather_bucket_size (runtime/zero/config.py)."""


_IN_16_BITS = frozenset({"output", "router"})
"""Parts whose matrices are in 16 bits in plans in FP8: they are no modules of Transformer Engine."""


class HeldParameters(NamedTuple):
    """Numbers of parameters of one GPU."""

    dense: int  # Parameters outside routed experts; dp * cp GPUs hold the same ones
    experts: int  # Parameters of routed experts; tp * cp * dp / (ep * etp) GPUs hold the same ones

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return self.dense + self.experts


class ParameterTensor(NamedTuple):
    """One or several parameter tensors on a GPU."""

    size: int  # Number of parameters on this GPU
    is_expert: bool = False  # Whether the parameters are those of experts, which have fewer replicas than others
    # Whether the tensor-parallel group must sum the gradients with sequence parallelism, because each of its GPUs
    # computes them for its own tokens
    is_summed: bool = False
    pieces: int = 1  # Number of the framework's equal tensors that this one represents
    is_operand: bool = False  # Whether it is a matrix whose products are in the plan's data type


Tensors = list[ParameterTensor]


def tensors(model: Model, plan: ParallelPlan, weights_list: Iterable[Weights]) -> Tensors:
    """Return the tensors of some weights on one GPU, in the same order.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        weights_list: Weights of the model.
    """
    return [
        ParameterTensor(
            _share(model, plan, part),
            is_expert=part.split == "experts",
            is_summed=part.split == "whole" and part.part != "positions",
            pieces=part.pieces // plan.ep if part.split == "experts" else part.pieces,
            is_operand=part.is_matrix and part.part not in _IN_16_BITS and not plan.lora,  # adapters are in 16 bits
        )
        for part in weights_list
    ]


def _share(model: Model, plan: ParallelPlan, weights_part: Weights) -> int:
    """Return the number of parameters of some weights on each GPU of a stage that has them."""
    if weights_part.split == "tp":
        return weights_part.size // plan.tp
    if weights_part.split == "qkv":
        key_value_heads = max(1, model.key_value_heads // plan.tp)
        # Each GPU holds at least one head of keys and of values, even if there are fewer heads than GPUs
        heads = model.heads // plan.tp + 2 * key_value_heads
        return weights_part.size // (model.heads + 2 * model.key_value_heads) * heads
    if weights_part.split == "experts":
        return weights_part.size // (plan.ep * plan.etp)
    return weights_part.size


def chunk_weights(model: Model, plan: ParallelPlan, chunk: Chunk) -> Iterator[Weights]:
    """Yield the weights that a chunk uses, with a padded vocabulary and the output layer as a separate matrix.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        chunk: The layers of the chunk, and whether it has an end of the model.
    """
    vocab = padded_vocab(model, plan)
    if chunk.is_first:
        yield from architecture.embedding(model, vocab)
    for number in chunk.layers:
        yield from architecture.layer(model, number)
    if chunk.is_last:
        yield architecture.norm(model)
        for _ in range(model.mtp_layers):
            yield from architecture.mtp_layer(model)
        yield architecture.output_matrix(model, vocab)


def stage_weights(model: Model, plan: ParallelPlan, stage: int) -> Iterator[Weights]:
    """Yield the weights of a stage; an output layer that is tied to the stage's own embedding does not count again.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        stage: The number of the pipeline stage, from 0.
    """
    yield from _weights_of_chunks(model, plan, chunks(model, plan)[stage])


def _weights_of_chunks(model: Model, plan: ParallelPlan, stage_chunks: Sequence[Chunk]) -> Iterator[Weights]:
    """Yield the weights of a stage with these chunks."""
    # Layers of multi-token prediction share the embedding and the output layer with the model (DeepSeek-V3, section
    # 2.2), so that a last stage without an embedding holds a copy.
    has_embedding = any(chunk.is_first for chunk in stage_chunks)
    for chunk in stage_chunks:
        for part in chunk_weights(model, plan, chunk):
            if part.part != "output" or not (model.tied_embeddings and has_embedding):
                yield part
    has_end = any(chunk.is_last for chunk in stage_chunks)
    if model.mtp_layers and has_end and not has_embedding and not model.tied_embeddings:
        yield architecture.embedding(model, padded_vocab(model, plan))[0]


def held(model: Model, plan: ParallelPlan, stage: int) -> HeldParameters:
    """Return the numbers of parameters of each GPU of a stage, for a plan that `rules.check` accepts.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        stage: The number of the pipeline stage, from 0.
    """
    stage_chunks = chunks(model, plan)[stage]
    numbers = Counter(_weights_of_chunks(model, plan, [chunk._replace(layers=range(0)) for chunk in stage_chunks]))
    layers = Counter(model.has_experts(number) for chunk in stage_chunks for number in chunk.layers)
    for has_experts, number in layers.items():
        for part in architecture.layer_of_kind(model, has_experts=has_experts):
            numbers[part] += number
    return count(model, plan, numbers)


def trained(model: Model, plan: ParallelPlan, stage: int) -> HeldParameters:
    """Return the numbers of parameters of each GPU of a stage that have gradients: all, or those of LoRA's adapters.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        stage: The number of the pipeline stage, from 0.
    """
    if not plan.lora:
        return held(model, plan, stage)
    layers = sum(len(chunk.layers) for chunk in chunks(model, plan)[stage])
    return count(model, plan, architecture.adapters(model, plan.lora) * layers)


def count(model: Model, plan: ParallelPlan, weights_list: Iterable[Weights]) -> HeldParameters:
    """Return the numbers of parameters of some weights on one GPU.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        weights_list: Weights of the model, or a Counter of them.
    """
    numbers = Counter(weights_list)  # most layers have equal weights
    distinct = zip(tensors(model, plan, numbers), numbers.values(), strict=True)
    sizes = [(tensor.size * number, tensor.is_expert) for tensor, number in distinct]
    experts = sum(size for size, is_expert in sizes if is_expert)
    return HeldParameters(sum(size for size, _ in sizes) - experts, experts)


class ParameterBucket(NamedTuple):
    """A bucket of parameters of one chunk."""

    number: int  # Number within the chunk, in the order of the backward pass
    size: int  # Number of parameters
    units: tuple[int, int]  # First and last unit with parameters in the bucket; complete at the first, backward
    is_expert: bool  # Whether the parameters are those of experts, which have other replicas
    operands: int = 0  # Number of the parameters in matrices whose products are in the plan's data type


def buckets(units: Sequence[Tensors], limit: int | None, *, ends_before: bool) -> list[ParameterBucket]:
    """Return a chunk's parameters in buckets, in the order of their completion in the backward pass.

    Args:
        units: The parameter tensors of each unit, in the order of the forward pass.
        limit: The maximum number of parameters of a bucket; None = one bucket for dense parameters and one for experts.
        ends_before: Whether a bucket ends before the tensor that would exceed the limit (DeepSpeed), or else after the
            tensor that reaches it (Megatron-LM).
    """
    closed: list[ParameterBucket] = []
    # Experts have other replicas, and so buffers of their own (Megatron-LM: `expert_parallel_buffers` in
    # core/distributed/distributed_data_parallel.py)
    for is_expert in (False, True):
        tensors = [
            (number, tensor)
            for number in reversed(range(len(units)))
            for tensor in reversed(units[number])
            if tensor.is_expert == is_expert
        ]
        bucket: list[tuple[int, ParameterTensor]] = []
        for number, tensor in tensors:
            if ends_before and limit is not None and bucket and _size(bucket) + tensor.size > limit:
                closed.append(_closed(bucket, is_expert=is_expert))
                bucket = []
            bucket.append((number, tensor))
            if not ends_before and limit is not None and _size(bucket) >= limit:
                closed.append(_closed(bucket, is_expert=is_expert))
                bucket = []
        if bucket:
            closed.append(_closed(bucket, is_expert=is_expert))
    # The backward pass goes from the last unit to the first: a bucket is complete at its first unit
    closed.sort(key=lambda bucket: -bucket.units[0])
    return [bucket._replace(number=number) for number, bucket in enumerate(closed)]


def _size(tensors: Sequence[tuple[int, ParameterTensor]]) -> int:
    """Return the number of parameters of tensors, each given with the number of its unit."""
    return sum(tensor.size for _, tensor in tensors)


def _closed(tensors: Sequence[tuple[int, ParameterTensor]], *, is_expert: bool) -> ParameterBucket:
    """Return the bucket of tensors, each given with the number of its unit."""
    operands = sum(tensor.size for _, tensor in tensors if tensor.is_operand)
    return ParameterBucket(0, _size(tensors), (tensors[-1][0], tensors[0][0]), is_expert, operands)
