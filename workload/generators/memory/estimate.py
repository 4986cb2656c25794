"""Peak memory of a training step: for each stage of the pipeline what one of its GPUs holds at the worst moment."""

from typing import NamedTuple

from inputs.units import GIB
from workload.compute.operators import DTYPE_BYTES
from workload.generators.memory import offload
from workload.generators.memory.activations import (
    FP32_BYTES,
    expert_rows,
    key_value_heads,
    layer_activations,
    value_bytes,
    widths,
)
from workload.generators.memory.in_flight import in_flight
from workload.generators.memory.states import states, weight_bytes
from workload.generators.models import weights
from workload.generators.models.model import Model
from workload.generators.training import rules
from workload.generators.training.held import count, held
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.rules import Framework
from workload.generators.training.stages import Chunk, chunks, micro_batches, padded_vocab

CONTEXT_BYTES = 1 << 30
"""Of CUDA's context and the libraries' workspaces: an assumption, from 0.3 GB (kernels loaded when they are needed) to
more than 1 GB (before CUDA 11.7) for the context alone (pytorch/pytorch#107667)."""
COMMUNICATOR_BYTES = 512 << 20
"""Of each NCCL communicator: an assumption, as groups of 2 and 4 A100 took 544 and 688 MB (NVIDIA/nccl#964)."""
DEEPSPEED_BUCKET_VALUES = 5 * 10**8
"""Gradients that DeepSpeed reduces together (reduce_bucket_size)."""


class StageMemory(NamedTuple):
    """Bytes on each GPU of a stage.

    Attributes:
        stage: from 0.
        weights: of forward and backward pass.
        gradients: as they are summed up.
        optimizer: master weights and moments.
        activations: that layers keep, of all micro-batches in flight, and those that one layer works out again.
        loss: logits and what the output layer keeps.
        buffers: what the backward pass of a layer works with, what is received and gathered.
        framework: CUDA context and NCCL: an assumption.
        host: what offloading has put into the host's memory, not among the GPU's.
    """

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    buffers: int
    framework: int
    host: int

    @property
    def total(self) -> int:
        """On the GPU."""
        return sum(getattr(self, part) for part in PARTS)


PARTS = ("weights", "gradients", "optimizer", "activations", "loss", "buffers", "framework")
"""What the memory of a GPU is used for."""


def estimate(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> tuple[StageMemory, ...]:
    """Peak memory of each stage.

    Not counted: fragmentation of the allocator, and what the optimizer's step needs beside its states.

    Raises:
        WorkloadError: a plan that `rules.check` refuses.
    """
    rules.check(model, plan, framework)
    settled = rules.settle(model, plan, framework)
    return tuple(_stage(model, settled, framework, own, stage) for stage, own in enumerate(chunks(model, settled)))


def does_not_fit(model: Model, plan: ParallelPlan, memory_bytes: int, framework: Framework = "megatron") -> str:
    """Why a step does not fit into GPUs of so much memory, in one line with the nearest plan that does; "" = it does.

    Raises:
        WorkloadError: a plan that `rules.check` refuses.
    """
    worst = max(estimate(model, plan, framework), key=lambda stage: stage.total)
    if worst.total <= memory_bytes:
        return ""
    shares = sorted(((getattr(worst, part), part) for part in PARTS), reverse=True)
    most = ", ".join(f"{part} {size / GIB:.1f}" for size, part in shares if size * 20 > worst.total)
    return (
        f"does not fit: stage {worst.stage} needs {worst.total / GIB:.1f} GiB of {memory_bytes / GIB:.1f} ({most}); "
        f"{_nearest_that_fits(model, plan, memory_bytes, framework)}"
    )


def peak_bytes(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> int:
    """Memory of the fullest GPU.

    Raises:
        WorkloadError: a plan that `rules.check` refuses.
    """
    return max(stage.total for stage in estimate(model, plan, framework))


def fits(model: Model, plan: ParallelPlan, memory_bytes: int, framework: Framework = "megatron") -> bool:
    """Whether a step fits into GPUs of so much memory.

    Raises:
        WorkloadError: a plan that `rules.check` refuses.
    """
    return peak_bytes(model, plan, framework) <= memory_bytes


def _stage(model: Model, plan: ParallelPlan, framework: Framework, own: tuple[Chunk, ...], stage: int) -> StageMemory:
    on_gpu, on_host = offload.divided(states(held(model, plan, stage), plan), plan)
    kept = again = 0
    for chunk, count_of_chunk in zip(own, in_flight(plan, stage), strict=True):
        kept += count_of_chunk * _of_chunk(model, plan, chunk)
        again = max(again, _again(model, plan, chunk))
    activations, activations_on_host = offload.divided_activations(kept, _layer_at_most(model, plan, own), plan)
    return StageMemory(
        stage,
        *on_gpu,
        activations=activations + again,
        loss=sum(
            count_of_chunk * _of_loss(model, plan)
            for chunk, count_of_chunk in zip(own, in_flight(plan, stage), strict=True)
            if chunk.is_last
        )
        + (_loss_working(model, plan) + _deferred(model, plan) if any(chunk.is_last for chunk in own) else 0),
        buffers=_buffers(model, plan, framework, own),
        framework=_framework(model, plan),
        host=on_host.total + activations_on_host,
    )


def _layers_of_kinds(model: Model, plan: ParallelPlan, chunk: Chunk) -> list[tuple[int, bool]]:
    """How many layers of a chunk have no experts and how many have; multi-token prediction's are among them."""
    del plan
    numbers = [*chunk.layers, *([model.layers - 1] * model.mtp_layers if chunk.is_last else [])]
    with_experts = sum(model.has_experts(number) for number in numbers)
    return [(len(numbers) - with_experts, False), (with_experts, True)]


def _of_chunk(model: Model, plan: ParallelPlan, chunk: Chunk) -> int:
    """What a chunk keeps of one micro-batch, without the output layer."""
    kept = sum(
        layers * layer_activations(model, plan, has_experts=has_experts).kept(plan.recompute)
        for layers, has_experts in _layers_of_kinds(model, plan, chunk)
        if layers
    )
    if chunk.is_first and model.dropout:
        width = widths(plan)
        kept += width.tokens * model.hidden // width.whole
    return kept


def _again(model: Model, plan: ParallelPlan, chunk: Chunk) -> int:
    return max(
        layer_activations(model, plan, has_experts=has_experts).again(plan.recompute) if layers else 0
        for layers, has_experts in _layers_of_kinds(model, plan, chunk)
    )


def _layer_at_most(model: Model, plan: ParallelPlan, own: tuple[Chunk, ...]) -> int:
    """What the largest layer keeps."""
    return max(
        layer_activations(model, plan, has_experts=has_experts).kept(plan.recompute) if layers else 0
        for chunk in own
        for layers, has_experts in _layers_of_kinds(model, plan, chunk)
    )


def _of_loss(model: Model, plan: ParallelPlan) -> int:
    """What final norm, output layer and loss keep: 4 s b h (1 + V/h) / t bytes (arXiv 2205.05198, section 4.3)."""
    width = widths(plan)
    hidden = width.tokens * model.hidden // width.whole
    logits = width.tokens * padded_vocab(model, plan) // plan.tp
    return (1 + model.mtp_layers) * (2 * width.value_bytes * hidden + FP32_BYTES * logits)


def _loss_working(model: Model, plan: ParallelPlan) -> int:
    """Logits as the output layer gives and takes them, beside those of 4 bytes."""
    return value_bytes(plan) * widths(plan).tokens * padded_vocab(model, plan) // plan.tp


def _deferred(model: Model, plan: ParallelPlan) -> int:
    """Return the bytes that deferred gradients of the output layer's weights keep until the pipeline drains.

    These are the output layer's input and the gradient of its output for each deferred micro-batch
    (embedding_activation_buffer and grad_output_buffer of megatron/core/models/gpt/gpt_model.py).
    """
    width = widths(plan)
    hidden = width.tokens * model.hidden // width.whole
    count = min(plan.defer_embedding_wgrad, micro_batches(plan))
    return count * (width.value_bytes * hidden + _loss_working(model, plan))


def _buffers(model: Model, plan: ParallelPlan, framework: Framework, own: tuple[Chunk, ...]) -> int:
    width = widths(plan)
    kinds = [has_experts for chunk in own for layers, has_experts in _layers_of_kinds(model, plan, chunk) if layers]
    whole = width.tokens * model.hidden * width.value_bytes
    total = max((layer_activations(model, plan, has_experts=kind).working for kind in kinds), default=0)
    if plan.sequence_parallel:
        total += whole  # gathered before a product
    if plan.pp > 1:
        total += 2 * whole // width.whole  # of the next and of the last micro-batch
    if plan.cp > 1:
        pair = width.tokens * key_value_heads(model, plan) * (model.query_dim + model.value_dim) * width.value_bytes
        total += {"ring": 2, "all-gather": plan.cp, "a2a": 2}[plan.context] * pair
    if plan.ep * plan.etp > 1 and any(kinds):
        total += 2 * expert_rows(model, plan) * model.hidden * width.value_bytes  # sent and received
    return total + _of_sharing(model, plan, framework, kinds)


def _of_sharing(model: Model, plan: ParallelPlan, framework: Framework, kinds: list[bool]) -> int:
    """What ZeRO-2 and 3 reduce and gather at a time."""
    if plan.zero < 2 or plan.dp * plan.cp == 1:
        return 0
    layer = max((count(model, plan, weights.layer_of_kind(model, has_experts=kind)).total for kind in kinds), default=0)
    words = weights.output_matrix(model, padded_vocab(model, plan)).size // plan.tp
    gradient = int(DTYPE_BYTES[plan.grad_dtype])
    if framework == "deepspeed":
        reduced = plan.bucket_bytes or DEEPSPEED_BUCKET_VALUES * gradient
    else:
        reduced = max(layer, words) * gradient
    gathered = ((1 + plan.prefetch) * layer + words) * weight_bytes(plan) if plan.zero == 3 else 0
    return reduced + gathered


def _framework(model: Model, plan: ParallelPlan) -> int:
    axes = [plan.tp, plan.cp, plan.dp, plan.pp, plan.ep if model.experts else 1]
    return CONTEXT_BYTES + COMMUNICATOR_BYTES * sum(size > 1 for size in axes)


def _nearest_that_fits(model: Model, plan: ParallelPlan, memory_bytes: int, framework: Framework) -> str:
    """One change that is enough, else several of them, else more stages or tensor parallelism."""
    changes = _changes(plan, framework)
    together = plan
    candidates = [plan.model_copy(update=change) for change in changes]
    for change in changes:
        together = together.model_copy(update=change)
        candidates.append(together)
    for axis in ("tp", "pp"):
        for times in (2, 4, 8, 16):
            more = {axis: getattr(plan, axis) * times, "dp": max(1, plan.dp // times), "uneven": True}
            candidates.append(together.model_copy(update=more))
    for candidate in candidates:
        if not rules.first_broken(model, candidate, framework) and fits(model, candidate, memory_bytes, framework):
            return f"nearest that fits: {candidate}"
    return "no plan near it fits"


def _changes(plan: ParallelPlan, framework: Framework) -> list[dict[str, object]]:
    """What saves memory, what costs least first."""
    most_zero = 1 if framework == "megatron" or (framework == "deepspeed" and plan.pp > 1) else 3
    changes: list[dict[str, object]] = []
    if plan.tp > 1 and not plan.sequence_parallel:
        changes.append({"sequence_parallel": True})
    changes += [{"zero": zero} for zero in range(plan.zero + 1, most_zero + 1) if plan.dp * plan.cp > 1]
    if plan.attention == "unfused":
        changes.append({"attention": "flash"})
        changes += [{"recompute": "selective"}] * (plan.recompute == "none")
    if plan.micro_batch > 1:
        changes.append({"micro_batch": 1})
    if plan.recompute != "full":
        changes.append({"recompute": "full"})
    return changes
