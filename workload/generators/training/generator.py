"""Generator of the traces of training steps from a model and a parallel plan."""

from collections.abc import Iterator

import numpy as np

from et import TraceTable
from workload.generators.models import weights
from workload.generators.models.model import Model
from workload.generators.training import ranks, rules, stages
from workload.generators.training.interference import copied_groups
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.rules import Framework
from workload.generators.training.stage import Stage, refuse_too_large
from workload.trace_sets.trace_set import TraceSet

NODE_BYTES = 400  # Bytes of memory per node while a trace is generated and written, measured with traces of 10^6 nodes
_NODES_PER_LAYER, _NODES_PER_LAYER_IN_PIECES = 50, 130
"""Maximum number of nodes per layer and micro-batch over all plans, without and with overlap_tp; nodes of context
parallelism do not count."""
_FSDP_COPIES_PER_LAYER = 6
"""Copies between tensors and flat buffers (flat_copies): out in forward, recomputation and backward, gradients in, for
parameters with and without experts."""
_TENSORS_PER_EXPERT = 3
_NODES_PER_LISTED_TENSOR = 12
"""Nodes per tensor and micro-batch if each tensor is gathered by itself into a list: views, all-gather and copy of
three gathers; views, reduce-scatter and copy of its gradient."""


def nodes_at_most(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> int:
    """Return an upper bound of the number of nodes of a plan's distinct traces together.

    Raises:
        WorkloadError: If the model cannot be trained with the plan.
    """
    rules.check(model, plan, framework)
    plan = rules.settle(model, plan, framework)
    per_layer = _NODES_PER_LAYER_IN_PIECES if plan.overlap_tp else _NODES_PER_LAYER
    per_layer += 8 * plan.cp if plan.context == "ring" and plan.cp > 1 else 0
    # In a ring of at least 3, the first and the last NPU have other relative neighbours than those between.
    traces_per_stage = (min(plan.cp, 3) if plan.context == "ring" else 1) * (plan.ep if plan.imbalance else 1)
    per_layer += _FSDP_COPIES_PER_LAYER if framework == "fsdp" else 0
    if plan.gather == "list":
        experts = model.experts.count if model.experts else 0
        tensors = len(weights.layer_of_kind(model, has_experts=experts > 0)) + _TENSORS_PER_EXPERT * experts
        per_layer += _NODES_PER_LISTED_TENSOR * tensors
    layers = (model.layers + model.mtp_layers + 1) * (2 if plan.is_mirrored else 1)
    per_micro_batch = layers * per_layer + 4 * plan.pp * plan.vpp
    return traces_per_stage * plan.steps * stages.micro_batches(plan) * per_micro_batch


def generate(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> TraceSet:
    """Generate the traces of all NPUs of a plan in memory.

    The NPUs of a stage share a trace unless the ring of context parallelism or imbalanced experts distinguish them.

    Args:
        model: Model to train.
        plan: Parallel plan; `rules.settle` sets the fields that it leaves open.
        framework: Training framework whose rules apply: megatron, deepspeed or fsdp.

    Raises:
        WorkloadError: If the model cannot be trained with the plan.
    """
    rules.check(model, plan, framework)
    plan = rules.settle(model, plan, framework)
    refuse_too_large(plan)
    traces: list[TraceTable] = []
    examples: list[int] = []
    trace_of_npu = np.empty(plan.gpus, np.int32)
    for npus in alike(plan):
        trace_of_npu[npus] = len(traces)
        examples.append(npus[0])
        traces.append(Stage(model, plan, framework, npus[0]).table())
    used = {name for trace in traces for name in trace.group_names}
    families = {name: groups for name, groups in ranks.families(plan).items() if name in used}
    copied = copied_groups(framework, plan) & families.keys()
    return TraceSet(traces, trace_of_npu, np.array(examples, np.int32), families, framework, copied)


def alike(plan: ParallelPlan) -> Iterator[list[int]]:
    """Yield the lists of NPUs that share a trace, stage by stage."""
    size = ranks.stage_size(plan)
    for stage in range(plan.pp):
        sharing: dict[tuple[int, ...], list[int]] = {}
        for npu in range(stage * size, (stage + 1) * size):
            sharing.setdefault(_distinction(plan, npu), []).append(npu)
        yield from sharing.values()


def _distinction(plan: ParallelPlan, npu: int) -> tuple[int, ...]:
    """Return what distinguishes the trace of an NPU in its stage: relative ring neighbours, expert rank."""
    ring = tuple(other - npu for other in ranks.neighbours(plan, npu)) if plan.context == "ring" else ()
    return (*ring, ranks.place(plan, npu).ep if plan.imbalance else 0)
