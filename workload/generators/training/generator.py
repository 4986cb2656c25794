"""Generator of the traces of training steps from a model and a parallel plan."""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from nadi.et import TraceTable
from nadi.inputs.limits import MAX_NPUS
from nadi.workload.compute.operators import EARLY_PRODUCT
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.models import architecture
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import dispatchers, rules, stages
from nadi.workload.generators.training.interference import copied_groups, products_leave_sms
from nadi.workload.generators.training.parallel_plan import ParallelPlan, parallel_plan
from nadi.workload.generators.training.rules import Framework
from nadi.workload.generators.training.stage import Stage
from nadi.workload.trace_sets.trace_set import TraceSet

NODE_BYTES = 400  # Bytes of memory per node while a trace is generated and written, measured with traces of 10^6 nodes
_NODES_PER_LAYER, _NODES_PER_LAYER_IN_PIECES = 50, 130
"""Maximum number of nodes per layer and micro-batch over all plans, without and with overlap_tp; nodes of a ring of
context parallelism do not count."""
_NODES_OF_EXPERTS = 20
"""Additional nodes per layer with experts; 69 are those of latent attention with all-to-alls of heads, shared experts,
`sp`, `etp` and full recomputation."""
_NODES_OF_ADAPTERS = 20
"""Additional nodes per layer with LoRA: collectives and computations of two adapters, forward twice and backward."""
_NODES_OF_HOPS = 16
"""Additional nodes per layer where tokens move in two hops: two collectives for each exchange of the forward pass, its
repetition and the backward pass, and computations that no longer join the ones before."""
_NODES_OF_COUNTS = 4
"""Additional nodes per layer with an auxiliary loss, forward and repeated: the sum of counts, the loss after it."""
_FSDP_COPIES_PER_LAYER = 6
"""Copies between tensors and flat buffers (`item_lists`): out in forward, recomputation and backward, gradients in, for
parameters with and without experts."""
_DTYPE_OF_BYTES = {2: "bf16", 4: "fp32"}  # Data type of a plan by its bytes per value
_NODES_PER_LISTED_TENSOR = 12
"""Nodes per tensor and micro-batch if each tensor is gathered by itself into a list: views, all-gather and copy of
three gathers; views, reduce-scatter and copy of its gradient."""


def nodes_at_most(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> int:
    """Return an upper bound of the number of nodes of a plan's distinct traces together.

    Args:
        model: The architecture of the model.
        plan: The parallel plan; fields that are open get their defaults.
        framework: The training framework: "megatron", "deepspeed" or "fsdp".
    """
    rules.check(model, plan, framework)
    plan = rules.settle(model, plan, framework)
    per_layer = _NODES_PER_LAYER_IN_PIECES if plan.overlap_tp else _NODES_PER_LAYER
    # Per turn of the ring: send, receive and attention forward; the same and two messages of gradients backward
    per_layer += 8 * plan.cp if plan.context == "ring" and plan.cp > 1 else 0
    # In a ring of at least 3, the first and the last NPU have other relative neighbours than those between.
    traces_per_stage = (min(plan.cp, 3) if plan.context == "ring" else 1) * (plan.ep if plan.imbalance else 1)
    per_layer += _NODES_OF_ADAPTERS if plan.lora else 0
    per_layer += _NODES_OF_EXPERTS if model.experts is not None else 0
    per_layer += 0 if plan.sends_copies or plan.domain_members == plan.ep else _NODES_OF_HOPS
    per_layer += _NODES_OF_COUNTS if model.experts is not None and model.experts.auxiliary_loss else 0
    per_layer += _FSDP_COPIES_PER_LAYER if framework == "fsdp" else 0
    per_layer += 2 if plan.shard_copies > 1 else 0  # all-reduces between copies of shards, without and with experts
    if plan.gather == "list":
        tensors = sum(part.pieces for part in architecture.layer_of_kind(model, has_experts=model.experts is not None))
        per_layer += _NODES_PER_LISTED_TENSOR * tensors
    layers = (model.layers + model.mtp_layers + 1) * (2 if plan.is_mirrored else 1)
    per_micro_batch = layers * per_layer + 4 * plan.pp * plan.vpp
    return traces_per_stage * plan.steps * stages.micro_batches(plan) * per_micro_batch


_PRODUCT = re.compile(r"(?<![^ ])gemm(?= )")


def generate(
    model: Model,
    plan: ParallelPlan,
    framework: Framework = "megatron",
    stage_of_npu: dict[int, Stage] | None = None,
) -> TraceSet:
    """Generate the traces of all NPUs of a plan in memory.

    The NPUs of a stage share a trace unless the ring of context parallelism or imbalanced experts distinguish them.
    Raises WorkloadError: the model cannot be trained with the plan.

    Args:
        model: The architecture of the model.
        plan: The parallel plan; fields that are open get their defaults.
        framework: The training framework: "megatron", "deepspeed" or "fsdp".
        stage_of_npu: The generators of a plan that differs in the global batch only, by NPU; new ones are added.
    """
    rules.check(model, plan, framework)
    plan = rules.settle(model, plan, framework)
    generators = {} if stage_of_npu is None else stage_of_npu
    if plan.pp > 1 and stages.micro_batches(plan) * plan.steps >= 1 << 20:  # more than message tags can distinguish
        count = stages.micro_batches(plan)
        raise WorkloadError(f"plan {plan}: {count} micro-batches and {plan.steps} steps, expected below 2^20 together")
    traces: list[TraceTable] = []
    examples: list[int] = []
    trace_of_npu = np.empty(plan.gpus, np.int32)
    for npus in alike(plan):
        trace_of_npu[npus] = len(traces)
        examples.append(npus[0])
        if npus[0] not in generators:
            generators[npus[0]] = Stage(model, plan, framework, npus[0])
        table = generators[npus[0]].table(plan.global_batch)
        if plan.libraries != "today":
            early = tuple(_PRODUCT.sub(EARLY_PRODUCT, text) for text in table.operator_lists)
            table = dataclasses.replace(table, operator_lists=early)
        traces.append(table)
    used = {name for trace in traces for name in trace.group_names}
    families = {name: groups for name, groups in stages.families(plan).items() if name in used}
    copied = copied_groups(framework, plan) & families.keys()
    known = families, framework, copied, dispatchers.held_sms(plan), products_leave_sms(plan)
    return TraceSet(traces, trace_of_npu, np.array(examples, np.int32), *known)


def data_parallel_plan(
    npus: int, micro_batch: int, dtype_bytes: int, bucket_bytes: int, steps: int, *, recompute: bool
) -> ParallelPlan:
    """Return a plan of plain data parallelism with one micro-batch per step.

    Args:
        npus: The number of NPUs, all replicas.
        micro_batch: The number of sequences per micro-batch.
        dtype_bytes: The bytes of each weight, activation and gradient: 2 or 4.
        bucket_bytes: The bytes of gradients per all-reduce; 0 = the framework's default.
        steps: The number of training steps.
        recompute: Whether the backward pass repeats the forward pass of each layer.
    """
    # All NPUs sum their gradients in buckets during the backward pass, like PyTorch's DistributedDataParallel (Li et
    # al., VLDB 2020). Attention writes its scores to memory, so that a step has the operations of the formulas of
    # Narayanan et al. (arXiv 2104.04473, appendix). Weights, activations and gradients take `dtype_bytes` (2 or 4)
    # each.
    if not 1 <= npus <= MAX_NPUS:
        raise WorkloadError(f"npus is {npus}, expected 1 to {MAX_NPUS}")
    if dtype_bytes not in _DTYPE_OF_BYTES:
        raise WorkloadError(f"dtype bytes are {dtype_bytes}, expected 2 or 4")
    dtype = _DTYPE_OF_BYTES[dtype_bytes]
    numbers = {"dp": npus, "micro_batch": micro_batch, "global_batch": npus * micro_batch, "steps": steps}
    recomputed = "full" if recompute else "none"
    kinds = {"attention": "unfused", "dtype": dtype, "grad_dtype": dtype, "recompute": recomputed}
    return parallel_plan({**numbers, **kinds, "bucket_bytes": bucket_bytes})


def generate_for_all(model: Model, plan: ParallelPlan) -> TraceSet:
    """Generate the one trace of a data-parallel plan, with collectives of all NPUs instead of families of groups.

    Args:
        model: The architecture of the model.
        plan: A plan of plain data parallelism.
    """
    traces = generate(model, plan)
    tables = [dataclasses.replace(table, group=np.zeros_like(table.group)) for table in traces.traces]
    return dataclasses.replace(traces, traces=tables, families={})


def alike(plan: ParallelPlan) -> Iterator[list[int]]:
    """Yield each list of NPUs of a plan that share a trace, stage by stage.

    Args:
        plan: The settled parallel plan.
    """
    size = stages.stage_size(plan)
    for stage in range(plan.pp):
        sharing: dict[tuple[int, ...], list[int]] = {}
        for npu in range(stage * size, (stage + 1) * size):
            sharing.setdefault(_distinction(plan, npu), []).append(npu)
        yield from sharing.values()


def _distinction(plan: ParallelPlan, npu: int) -> tuple[int, ...]:
    """Return what distinguishes the trace of an NPU in its stage: relative ring neighbours, expert rank."""
    ring = tuple(other - npu for other in stages.neighbours(plan, npu)) if plan.context == "ring" else ()
    return (*ring, stages.place(plan, npu).ep if plan.imbalance else 0)
