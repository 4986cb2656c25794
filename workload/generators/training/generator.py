"""From a model and a parallel plan to the traces of a training step."""

from collections.abc import Iterator

import numpy as np

from et import TraceTable
from workload.generators.models.model import Model
from workload.generators.training import ranks, rules, stages
from workload.generators.training.interference import copied_groups
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.rules import Framework
from workload.generators.training.stage import Stage, refuse_too_large
from workload.trace_sets.trace_set import TraceSet

NODE_BYTES = 400
"""Of a trace in memory, while it is made and written: seen with traces of 10^6 nodes."""
_NODES_OF_A_LAYER, _NODES_IN_PIECES = 50, 130
"""And micro-batch, without those of context parallelism: what plans with the most have, without and with overlap_tp."""


def nodes_at_most(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> int:
    """Nodes that the distinct traces of a plan have together, or some more.

    Raises:
        WorkloadError: the model cannot be trained so.
    """
    rules.check(model, plan, framework)
    plan = rules.settle(model, plan, framework)
    of_layer = _NODES_IN_PIECES if plan.overlap_tp else _NODES_OF_A_LAYER
    of_layer += 8 * plan.cp if plan.context == "ring" and plan.cp > 1 else 0
    kinds = (min(plan.cp, 3) if plan.context == "ring" else 1) * (plan.ep if plan.imbalance else 1)
    layers = (model.layers + model.mtp_layers + 1) * (2 if plan.is_mirrored else 1)
    per_micro_batch = layers * of_layer + 4 * plan.pp * plan.vpp
    return kinds * plan.steps * stages.micro_batches(plan) * per_micro_batch


def generate(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> TraceSet:
    """The traces of all NPUs of a plan, in memory.

    NPUs that do the same share a trace: those of a stage, unless context parallelism's ring or uneven experts tell
    them apart.

    Args:
        model: what is trained.
        plan: how; what it leaves open is settled as `rules.settle` says.
        framework: by whose rules: megatron, deepspeed or fsdp.

    Raises:
        WorkloadError: the model cannot be trained so.
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
    """NPUs that do the same, stage by stage."""
    size = ranks.stage_size(plan)
    for stage in range(plan.pp):
        found: dict[tuple[int, ...], list[int]] = {}
        for npu in range(stage * size, (stage + 1) * size):
            found.setdefault(_what_differs(plan, npu), []).append(npu)
        yield from found.values()


def _what_differs(plan: ParallelPlan, npu: int) -> tuple[int, ...]:
    """How far away its neighbours in a ring are, and which experts it has, where that matters."""
    ring = tuple(other - npu for other in ranks.neighbours(plan, npu)) if plan.context == "ring" else ()
    return (*ring, ranks.place(plan, npu).ep if plan.imbalance else 0)
