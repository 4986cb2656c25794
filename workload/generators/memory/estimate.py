"""Peak memory of one GPU of each pipeline stage, in a training step and in serving."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nadi.inputs.units import GIB
from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.memory import states
from nadi.workload.generators.models import architecture
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.models.operations import FULL, NONE, SELECTIVE
from nadi.workload.generators.training import recomputation, rules
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import DEEPSPEED, count, held, trained
from nadi.workload.generators.training.rules import Framework
from nadi.workload.generators.training.stages import Chunk, Shard, chunks, micro_batches, pipeline_of

CONTEXT_BYTES = 1 << 30
"""Bytes of CUDA's context and the libraries' workspaces: an assumption. The context alone takes from 0.3 GB (lazy
loading of kernels) to more than 1 GB (before CUDA 11.7) (pytorch/pytorch#107667)."""
COMMUNICATOR_BYTES = 512 << 20
"""Bytes per NCCL communicator: an assumption. Groups of 2 and 4 A100 took 544 and 688 MB (NVIDIA/nccl#964)."""


class StageMemory(NamedTuple):
    """Bytes on each GPU of a stage."""

    stage: int  # Number of the stage, from 0
    weights: int  # Bytes of the weights for forward and backward passes
    gradients: int  # Bytes of the gradients that micro-batches accumulate
    optimizer: int  # Bytes of master weights and moments
    activations: int  # Bytes of activations of all micro-batches in flight, and those that one layer recomputes
    loss: int  # Bytes of logits and of the activations of the output layer
    buffers: int  # Bytes that the backward pass of one layer needs temporarily, and of received and gathered tensors
    framework: int  # Bytes of the CUDA context and NCCL, an assumption
    host: int  # Bytes that offloading keeps in the host's memory; not part of the GPU's total

    @property
    def total(self) -> int:
        """Bytes on the GPU."""
        return sum(getattr(self, part) for part in PARTS)


PARTS = ("weights", "gradients", "optimizer", "activations", "loss", "buffers", "framework")
"""Fields of StageMemory that count as memory of the GPU."""


def estimate(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> tuple[StageMemory, ...]:
    """Return the peak memory of each stage, without fragmentation and temporary memory of the optimizer's step.

    Args:
        model: The architecture of the model.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        framework: The training framework whose rules hold: "megatron", "deepspeed" or "fsdp".
    """
    rules.check(model, plan, framework)
    return _estimate(model, rules.settle(model, plan, framework), framework)


def _estimate(model: Model, plan: ParallelPlan, framework: Framework) -> tuple[StageMemory, ...]:
    """Return the peak memory of each stage of a settled plan that keeps the rules."""
    pipeline = pipeline_of(plan)
    contents: dict[object, _StageContents] = {}  # most stages hold the same layers
    stages = []
    kind_of_layer = [model.has_experts(number) for number in range(model.layers)]
    for stage, stage_chunks in enumerate(chunks(model, plan)):
        key = tuple(
            (chunk.is_first, chunk.is_last, *kind_of_layer[chunk.layers.start : chunk.layers.stop])
            for chunk in stage_chunks
        )
        if key not in contents:
            contents[key] = _contents(model, plan, framework, stage, stage_chunks)
        stages.append(_stage(plan, stage, contents[key], pipeline.in_flight(stage)))
    return tuple(stages)


def does_not_fit(model: Model, plan: ParallelPlan, memory_bytes: int, framework: Framework = "megatron") -> str:
    """Return one line with the reason why a step does not fit, and the nearest plan that fits; "" if the step fits.

    Args:
        model: The architecture of the model.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        memory_bytes: The memory of a GPU in bytes.
        framework: The training framework whose rules hold: "megatron", "deepspeed" or "fsdp".
    """
    worst = max(estimate(model, plan, framework), key=lambda stage: stage.total)
    if worst.total <= memory_bytes:
        return ""
    shares = sorted(((getattr(worst, part), part) for part in PARTS), reverse=True)
    largest = ", ".join(f"{part} {size / GIB:.1f}" for size, part in shares if size * 20 > worst.total)
    return (
        f"does not fit: stage {worst.stage} needs {worst.total / GIB:.1f} GiB of {memory_bytes / GIB:.1f} ({largest}); "
        f"{_nearest_that_fits(model, plan, memory_bytes, framework)}"
    )


def peak_bytes(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> int:
    """Return the maximum over all GPUs of the peak memory in bytes.

    Args:
        model: The architecture of the model.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        framework: The training framework whose rules hold: "megatron", "deepspeed" or "fsdp".
    """
    return max(stage.total for stage in estimate(model, plan, framework))


class _ChunkMemory(NamedTuple):
    """Bytes of a chunk on each GPU of its stage."""

    kept: int  # Bytes of activations that each micro-batch in flight keeps
    loss: int  # Bytes that each micro-batch in flight keeps for the loss


class _StageContents(NamedTuple):
    """Bytes on each GPU of a stage before its micro-batches in flight count."""

    on_gpu: states.States  # Bytes of states in the GPU's memory
    on_host: int  # Bytes of states in the host's memory
    chunks: tuple[_ChunkMemory, ...]  # Bytes of activations of each chunk
    largest: int  # Bytes that the largest layer keeps
    recomputed: int  # Bytes that a layer recomputes
    loss: int  # Bytes of the loss that do not depend on micro-batches in flight
    buffers: int  # Bytes that the backward pass of one layer needs temporarily, and of received and gathered tensors


def _contents(
    model: Model, plan: ParallelPlan, framework: Framework, stage: int, stage_chunks: tuple[Chunk, ...]
) -> _StageContents:
    """Return what a stage with the given chunks holds in a settled plan."""
    shard = Shard(model, plan)
    parameters = held(model, plan, stage)
    on_gpu, on_host = states.divided(
        states.states(trained(model, plan, stage) if plan.lora else parameters, plan), plan
    )
    on_gpu = on_gpu._replace(weights=on_gpu.weights + states.frozen_bytes(parameters.total, plan))
    numbers = [Counter(_kinds(model, chunk)) for chunk in stage_chunks]
    layers = {kind: states.layer_activations(model, plan, has_experts=kind) for kind in set().union(*numbers)}
    kept = {kind: layer.kept(plan.recompute) for kind, layer in layers.items()}
    mask_of_embedding = shard.rows * model.hidden * model.dropout
    of_chunks = tuple(
        _ChunkMemory(
            sum(number * kept[kind] for kind, number in of_chunk.items()) + mask_of_embedding * chunk.is_first,
            _kept_by_loss(shard) * chunk.is_last,
        )
        for chunk, of_chunk in zip(stage_chunks, numbers, strict=True)
    )
    return _StageContents(
        on_gpu,
        on_host.total,
        of_chunks,
        max(kept.values(), default=0),
        max((layer.again(plan.recompute) for layer in layers.values()), default=0),
        sum(_loss_working(shard) + _deferred(shard) for chunk in stage_chunks if chunk.is_last),
        _buffers(shard, framework, layers),
    )


def _stage(plan: ParallelPlan, stage: int, contents: _StageContents, in_flight: Sequence[int]) -> StageMemory:
    """Return the peak memory of a stage; in_flight: micro-batches in flight of each chunk."""
    # Every micro-batch in flight keeps its activations until its backward pass
    of_chunks = list(zip(contents.chunks, in_flight, strict=True))
    kept = sum(micro_batches_in_flight * chunk.kept for chunk, micro_batches_in_flight in of_chunks)
    activations, activations_on_host = states.divided_activations(kept, contents.largest, plan)
    return StageMemory(
        stage,
        *contents.on_gpu,
        activations=activations + contents.recomputed,
        loss=contents.loss + sum(micro_batches_in_flight * chunk.loss for chunk, micro_batches_in_flight in of_chunks),
        buffers=contents.buffers,
        framework=framework_bytes(plan.tp, plan.cp, plan.dp, plan.shard_copies, plan.pp, plan.ep),
        host=contents.on_host + activations_on_host,
    )


def framework_bytes(*axes: int) -> int:
    """Return the bytes of the CUDA context and of a communicator per parallel axis of more than one GPU.

    Args:
        *axes: The number of GPUs along each parallel axis.
    """
    return CONTEXT_BYTES + COMMUNICATOR_BYTES * sum(size > 1 for size in axes)


def _kinds(model: Model, chunk: Chunk) -> list[bool]:
    """Return for each layer of a chunk whether it has experts, multi-token prediction included."""
    numbers = [*chunk.layers, *([model.layers - 1] * model.mtp_layers if chunk.is_last else [])]
    return [model.has_experts(number) for number in numbers]


def _kept_by_loss(shard: Shard) -> int:
    """Return the bytes that final norm, output layer and loss keep per micro-batch."""
    # These are 4 s b h (1 + V/h) / t bytes (arXiv 2205.05198, section 4.3).
    of_one = (
        2 * shard.value_bytes * shard.rows * shard.model.hidden + states.FP32_BYTES * shard.tokens * shard.vocabulary
    )
    return (1 + shard.model.mtp_layers) * of_one


def _loss_working(shard: Shard) -> int:
    """Return the bytes of logits in the data type of activations, in addition to the FP32 logits of the loss."""
    return shard.value_bytes * shard.tokens * shard.vocabulary


def _deferred(shard: Shard) -> int:
    """Return the bytes that deferred gradients of the output layer's weights keep until the pipeline drains."""
    # These are the output layer's input and the gradient of its output for each deferred micro-batch
    # (embedding_activation_buffer and grad_output_buffer of megatron/core/models/gpt/gpt_model.py).
    count = min(shard.plan.defer_embedding_wgrad, micro_batches(shard.plan))
    return count * (shard.value_bytes * shard.rows * shard.model.hidden + _loss_working(shard))


def _buffers(shard: Shard, framework: Framework, layers: Mapping[bool, states.LayerActivations]) -> int:
    """Return the temporary bytes of one layer's backward pass, and of received and gathered tensors."""
    # layers: the activations of a stage's kinds of layers, by whether they have experts.
    model, plan = shard.model, shard.plan
    total = max((layer.working for layer in layers.values()), default=0)
    if plan.sequence_parallel:
        total += shard.tokens * model.hidden * shard.value_bytes  # gathered before a product
    if plan.pp > 1:
        total += (
            2 * shard.rows * model.hidden * shard.value_bytes
        )  # received for the next micro-batch, sent for the last one
    if plan.cp > 1:
        pair = shard.tokens * shard.kv_heads * (model.query_dim + model.value_dim) * shard.value_bytes
        total += {"ring": 2, "all-gather": plan.cp, "a2a": 2}[plan.context] * pair
    if plan.ep * plan.etp > 1 and any(layers):
        total += 2 * states.expert_rows(shard) * model.hidden * shard.value_bytes  # sent and received
    return total + _zero_buffers(shard, framework, set(layers))


def _zero_buffers(shard: Shard, framework: Framework, layer_kinds: set[bool]) -> int:
    """Return the bytes that ZeRO-2 and ZeRO-3 reduce and gather at a time; layer_kinds: whether layers have experts."""
    model, plan = shard.model, shard.plan
    if plan.zero < 2 or plan.dp * plan.cp == 1:
        return 0
    layer = max(
        (count(model, plan, architecture.layer_of_kind(model, has_experts=kind)).total for kind in layer_kinds),
        default=0,
    )
    output = shard.vocabulary * model.hidden
    gradient = int(DTYPE_BYTES[plan.grad_dtype])
    bucket = plan.bucket_bytes or DEEPSPEED * gradient
    reduced = bucket if framework == "deepspeed" else max(layer, output) * gradient
    gathered = ((1 + plan.prefetch) * layer + output) * states.weight_bytes(plan) if plan.zero == 3 else 0
    return reduced + gathered


def _nearest_that_fits(model: Model, plan: ParallelPlan, memory_bytes: int, framework: Framework) -> str:
    """Return a text with the first plan that fits in memory_bytes per GPU: one change, several, more stages or tp."""
    changes = _changes(model, plan, framework)
    together = plan
    candidates = [plan.model_copy(update=change) for change in changes]
    for change in changes:
        together = together.model_copy(update=change)
        candidates.append(together)
    for axis in ("tp", "pp"):
        for times in (2, 4, 8, 16):
            # Twice as many GPUs along one axis, at the cost of data parallelism
            more = {axis: getattr(plan, axis) * times, "dp": max(1, plan.dp // times), "uneven": True}
            candidates.append(together.model_copy(update=more))
    for candidate in candidates:
        is_valid = not rules.first_broken(model, candidate, framework)
        if is_valid and peak_bytes(model, candidate, framework) <= memory_bytes:
            return f"nearest that fits: {candidate}"
    return "no plan near it fits"


def _changes(model: Model, plan: ParallelPlan, framework: Framework) -> list[dict[str, object]]:
    """Return the changes of a plan that save memory, the cheapest first."""
    max_zero = 1 if framework == "megatron" or (framework == "deepspeed" and plan.pp > 1) else 3
    changes: list[dict[str, object]] = []
    if plan.tp > 1 and not plan.sequence_parallel:
        changes.append({"sequence_parallel": True})
    changes += [{"zero": zero} for zero in range(plan.zero + 1, max_zero + 1) if plan.dp * plan.cp > 1]
    if plan.attention == "unfused":
        changes.append({"attention": "flash"})
        changes += [{"recompute": SELECTIVE}] * (plan.recompute == NONE)
    if plan.recompute == NONE:
        options = recomputation.recompute_options(model, framework)
        changes += [{"recompute": word} for word in options if word not in {NONE, SELECTIVE, FULL}]
    if plan.micro_batch > 1:
        changes.append({"micro_batch": 1})
    if plan.recompute != FULL:
        changes.append({"recompute": FULL})
    return changes


# Memory of inference: weights and activations of a stage, and bytes of the KV cache per token.


def kv_cache_bytes_per_token(model: Model, plan: ParallelPlan | None = None, layers: int = 0) -> int:
    """Return the bytes per token of the KV cache on one GPU.

    Args:
        model: The architecture of the model.
        plan: The parallel plan; None = one GPU with bf16.
        layers: The number of layers whose cache the GPU holds; 0 = all layers of the model.
    """
    # A layer caches the keys and values of the GPU's heads; with latent attention it caches the compressed ones, which
    # the GPUs of a tensor-parallel group do not split (DeepSeek-V2, arXiv 2405.04434, section 2.1.4).
    plan = plan or ParallelPlan()
    if model.latent is not None:
        values = model.latent.key_value_rank + model.latent.rope_dim
    else:
        values = Shard(model, plan).kv_heads * (model.query_dim + model.value_dim)
    return (layers or model.layers) * values * int(DTYPE_BYTES[plan.dtype])


def serving_estimate(model: Model, plan: ParallelPlan, tokens_of_pass: int) -> tuple[StageMemory, ...]:
    """Return the memory of each stage of one replica without its KV cache.

    Args:
        model: The architecture of the model.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        tokens_of_pass: The number of tokens of a forward pass: those of prompts or their pieces, and one per decoding
            sequence.
    """
    rules.check(model, plan, "inference")
    settled = rules.settle(model, plan, "inference")
    one_pass = settled.model_copy(update={"micro_batch": 1, "sequence": tokens_of_pass, "cp": 1})
    return tuple(_serving_stage(model, one_pass, stage) for stage in range(plan.pp))


def _serving_stage(model: Model, plan: ParallelPlan, stage: int) -> StageMemory:
    """Return the memory of one stage in a settled plan of one pass, without its KV cache."""
    (chunk,) = chunks(model, plan)[stage]
    kinds = {model.has_experts(number) for number in chunk.layers}
    layer = max((states.layer_activations(model, plan, has_experts=kind).kept(NONE) for kind in kinds), default=0)
    shard = Shard(model, plan)
    logits = shard.value_bytes * shard.tokens * shard.vocabulary if chunk.is_last else 0
    return StageMemory(
        stage=stage,
        weights=held(model, plan, stage).total * int(DTYPE_BYTES[plan.dtype]),
        gradients=0,
        optimizer=0,
        activations=layer,
        loss=logits,
        buffers=0,
        framework=framework_bytes(plan.tp, plan.pp, plan.ep),
        host=0,
    )
