"""LoRA: low-rank adapters beside attention's projections, the only weights that a plan with `lora` trains.

An adapter adds B A x to the output of a frozen matrix; A and B have the plan's rank (Hu et al., arXiv 2106.09685). The
frozen matrices have no gradients: the backward pass has the products for the gradients of activations only. Targets and
order are those of MLPerf's reference (qkv_proj, o_proj) and of NVIDIA's submissions (NeMo, target_modules "attention"):
dropout, A, B, scaling and addition are separate kernels in BF16 (ParallelLinearAdapter of NeMo and Megatron-Bridge).

With tensor parallelism:

| adapter of | A is split by | between A and B, T r values | B is split by | after B |
| --- | --- | --- | --- | --- |
| queries, keys, values | its rank | all-gather; backward all-reduce | columns | |
| output | its inputs | all-reduce; backward all-reduce | columns | all-gather; sp: all-to-all, backward as well |

The all-to-all moves T h / t values from the split by heads to that by tokens (a2a_experimental, LORA_A2A=1). The first
adapter reads the input that the frozen projection gathers, and its gradient joins that projection's reduction: the
gather is in BF16 then, and neither is cut into pieces (return_layernorm_output_gathered of Transformer Engine,
tp_comm_overlap_disable_qkv of Megatron-Core). All these collectives are NCCL's, so they have their own group family.
"""

from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items
from nadi.workload.generators.training.shard import Operators, Shard

FAMILY = "adapters"  # Group family: the groups of tensor parallelism, by NCCL even where userbuffers replace it
_NAME, _GATHER, _SUM = "attention-adapter", CollectiveCommType.ALL_GATHER, CollectiveCommType.ALL_REDUCE


class Adapter(NamedTuple):
    """A GPU's share of one adapter."""

    inputs: int  # Rows of A on the GPU
    rank: int  # Columns of A on the GPU; B has the plan's rank
    outputs: int  # Columns of B on the GPU


def forward(shard: Shard, adapter: Adapter) -> Items:
    """Return the forward pass of an adapter up to its addition; empty if the plan trains all weights.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        adapter: The GPU's share of the adapter.
    """
    m, outputs, rank = shard.tokens, adapter.outputs, shard.plan.lora
    if not rank:
        return []
    first = (_dropout(shard, adapter), shard.operator("gemm", m, adapter.rank, adapter.inputs))
    second = (shard.operator("gemm", m, outputs, rank), shard.operator("elementwise", m * outputs, 1, 1))
    if adapter.rank < rank:  # of queries, keys and values
        return [Compute(_NAME, first), *_exchange(shard, _GATHER, m * adapter.rank), Compute(_NAME, second)]
    last = CollectiveCommType.ALL_TO_ALL if shard.plan.sequence_parallel else _GATHER
    return [
        Compute(_NAME, first),
        *_exchange(shard, _SUM, m * rank),
        Compute(_NAME, second),
        *_exchange(shard, last, m * outputs),
    ]


def backward(shard: Shard, adapter: Adapter) -> Items:
    """Return the backward pass of `forward`, and the sum of the input's gradients of adapter and frozen matrix.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        adapter: The GPU's share of the adapter.
    """
    m, inputs, outputs, rank = shard.tokens, adapter.inputs, adapter.outputs, shard.plan.lora
    if not rank:
        return []
    second = (shard.operator("gemm", m, rank, outputs), shard.operator("gemm", outputs, rank, m))
    first = (shard.operator("gemm", m, inputs, adapter.rank), shard.operator("gemm", adapter.rank, inputs, m))
    # Only the output's adapter has the whole rank on each GPU; its result is split by tokens with sequence parallelism
    is_split_by_tokens = adapter.rank == rank and shard.plan.sequence_parallel
    return [
        *(_exchange(shard, CollectiveCommType.ALL_TO_ALL, m * outputs) if is_split_by_tokens else []),
        Compute(_NAME, (shard.operator("elementwise", m * outputs, 1, 1), *second)),
        *_exchange(shard, _SUM, m * rank),
        Compute(_NAME, (*first, _dropout(shard, adapter), *added(shard, m * inputs))),
    ]


def added(shard: Shard, values: int) -> Operators:
    """Return the addition of an adapter's output to that of the frozen matrix; empty without adapters.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        values: The number of values that are added.
    """
    return (shard.operator("elementwise", values, 2, 1),) if shard.plan.lora else ()


def shared(shard: Shard, items: Items) -> Items:
    """Return items of the frozen projection, whose collectives an adapter shares.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        items: The items of a part of a pass, in order.
    """
    is_shared = bool(shard.plan.lora)
    return [each._replace(family=FAMILY) if is_shared and isinstance(each, GroupCollective) else each for each in items]


def _dropout(shard: Shard, adapter: Adapter) -> Operator:
    return shard.operator("dropout", shard.tokens * adapter.inputs, 1, 1)


def _exchange(shard: Shard, kind: CollectiveCommType, values: int) -> Items:
    """Return a collective of the tensor-parallel group; values: number of values of one member."""
    if shard.plan.tp == 1:
        return []
    name = f"attention/tp:{kind.name.lower().replace('_', '-')}"
    return [GroupCollective(name, kind, values * shard.value_bytes, FAMILY)]
