"""Which part of a model a GPU holds: layers of its stage, its shard of them, and the groups that it is in."""

import copy
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.models import architecture
from nadi.workload.generators.models.architecture import Experts, LatentAttention, Model
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.pipeline import PipelineSchedule, schedule_of

# Assignment of layers to the stages of a pipeline and their chunks.
#
# Layers are distributed over slots: the stages or, with interleaving, the chunks of all stages, in the order in which a
# micro-batch passes through them. Slot k is chunk k // pp of stage k % pp. DualPipe (DeepSeek-V3, arXiv 2412.19437,
# section 3.2.1) feeds micro-batches from both ends: stage i has the layers of slots i and pp - 1 - i, so that every
# layer has two copies.

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


def layers_of_slots(layers: int, count: int, fewer_in_last: int = 1) -> tuple[int, ...]:
    """Return the number of layers of each slot: ceil(layers / count), or less where the layers do not suffice.

    Args:
        layers: The number of layers of the model.
        count: The number of slots.
        fewer_in_last: The layers that the last slot lacks first, because it has the output layer (`layers_of_output`).
    """
    # After the last slot, one layer less have the first, the last but one, the second, and so on, because the first one
    # has the embedding. Llama 3 405B does so: its 126 layers fill 128 slots of one layer, the first and the last slot
    # are empty (arXiv 2407.21783, section 3.3.2). The 61 layers of DeepSeek-V3 and Kimi K2 are 15 slots of 4 and a last
    # one of 1 in NVIDIA's recipes (Megatron-Bridge, recipes/deepseek and recipes/kimi, get_..._pipeline_layout).
    maximum = -(-layers // count)
    missing = maximum * count - layers
    in_last = min(missing, max(1, maximum - 1), fewer_in_last)
    others = missing - in_last
    at_the_beginning, at_the_end = -(-others // 2), others // 2
    sizes = [maximum - (slot < at_the_beginning or count - 1 - at_the_end <= slot < count - 1) for slot in range(count)]
    return (*sizes[:-1], maximum - in_last)


def layers_of_output(model: Model) -> int:
    """Return how many layers take as many operations per token as what follows the last layer, rounded up.

    Args:
        model: The architecture of the model.
    """
    # Output layers of multi-token prediction work on the same vocabulary; each such prediction has a layer of its own
    heads = model.mtp_layers + 1
    weights = architecture.layer(model, model.layers - 1)
    layer_parameters = sum(architecture.active(model, each) for each in weights if each.is_matrix)
    return model.mtp_layers + -(-heads * model.vocab * model.hidden // layer_parameters)


@lru_cache(maxsize=256)
def chunks(model: Model, plan: ParallelPlan) -> tuple[tuple[Chunk, ...], ...]:
    """Return the chunks of each stage, for a plan that `rules.check` accepts.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
    """
    count = slots(plan)
    sizes = layers_of_slots(model.layers, count, layers_of_output(model))
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
    return schedule_of(plan.pipeline_schedule)(plan.pp, micro_batches(plan), plan.vpp, bool(plan.overlap_ep))


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


# One GPU's share of a model's activations and matrices under a parallel plan, and operators on it.


Operators = tuple[Operator, ...]


class Shard:
    """One GPU's share of a model under a parallel plan, for training or serving."""

    def __init__(self, model: Model, plan: ParallelPlan, expert_rank: int = 0) -> None:
        """Compute the sizes of a GPU's share.

        Args:
            model: The architecture of the model.
            plan: The settled parallel plan.
            expert_rank: The rank of the GPU in its expert-parallel group.
        """
        self.model, self.plan = model, plan
        self.expert_rank = expert_rank  # Rank of the GPU in its expert-parallel group
        self.sequence = plan.sequence or model.sequence  # s, number of tokens per sequence
        # Number of tokens per micro-batch that pass through the GPU's matrices: b s / cp
        self.tokens = plan.micro_batch * self.sequence // plan.cp
        # Number of tokens that the GPU normalises: all, or 1 / tp of them with sequence parallelism
        self.rows = self.tokens // plan.tp if plan.sequence_parallel else self.tokens
        # Number of tokens that the GPU routes to experts: the tensor-parallel group shares the routing
        self.routed_rows = -(-self.tokens // plan.tp)
        self.heads = model.heads // plan.tp  # Number of query heads on the GPU
        # Number of key and value heads on the GPU; several GPUs share one if there are fewer heads than GPUs
        self.kv_heads = self.heads if model.latent is not None else max(1, model.key_value_heads // plan.tp)
        self.activation_dtype = plan.activation_dtype  # Data type of activations outside products
        # Bytes per activation in memory, and in a collective without quantisation (see `operand_bytes`)
        self.value_bytes = int(DTYPE_BYTES[self.activation_dtype])
        # Bytes per operand of a product in the plan's data type as it is gathered (FP4 as FP8: an assumption)
        self.operand_bytes = max(1, int(DTYPE_BYTES[plan.dtype]))
        self.window = 0  # Number of last tokens that a token attends to in the layer, 0 = all
        # Number of the output matrix's columns on the GPU, padding included
        self.vocabulary = padded_vocab(model, plan) // plan.tp

    def in_layer(self, number: int) -> "Shard":
        """Return the share of a layer, whose attention may have a window.

        Args:
            number: The number of the layer, from 0.
        """
        window = self.model.window_of(number)
        if window == self.window:
            return self
        share = copy.copy(self)
        share.window = window
        return share

    @property
    def latent(self) -> LatentAttention:
        """The model's latent attention; only for models that have it."""
        assert self.model.latent is not None  # noqa: S101 - for the type checker: the caller checks it
        return self.model.latent

    @property
    def experts(self) -> Experts:
        """The model's experts; only for models that have them."""
        assert self.model.experts is not None  # noqa: S101 - for the type checker: the caller checks it
        return self.model.experts

    def gemm(self, m: int, n: int, k: int) -> Operator:
        """Return a product of an (m x k) and a (k x n) matrix in the plan's data type.

        Args:
            m: The number of rows of the result.
            n: The number of columns of the result.
            k: The length of the sums.
        """
        return Operator("gemm", (m, n, k), self.plan.dtype)

    def operator(self, kind: str, *shape: int) -> Operator:
        """Return an operator in the data type of activations.

        Args:
            kind: The kind of operator, a key of operators.KINDS.
            *shape: The entries of the operator's shape.
        """
        return Operator(kind, shape, self.activation_dtype)

    def residual(self) -> Operator:
        """Return the sum of a layer's input and output; dropout and bias are fused into it."""
        return self.operator("dropout" if self.model.dropout else "elementwise", self.rows * self.model.hidden, 2, 1)

    def residual_backward(self) -> Operator:
        """Return the sum of the gradients of a layer's input, along the residual and through the layer."""
        return self.operator("elementwise", self.rows * self.model.hidden, 2, 1)

    def leave_backward(self) -> Operators:
        """Return the backward operators between a layer's residual and its output matrix."""
        # The gradient passes through the dropout, and its sum over tokens is the gradient of the bias, which is fused
        # into the residual.
        values = self.rows * self.model.hidden
        dropout = (self.operator("dropout", values, 1, 1),) if self.model.dropout else ()
        return (*dropout, *self.bias_gradient(values))

    def bias_gradient(self, values: int) -> Operators:
        """Return the sum of gradients over tokens: the gradient of a bias that is fused in the forward pass.

        Args:
            values: The number of gradients.
        """
        return (self.operator("elementwise", values, 1, 0),) if self.model.bias and not self.plan.lora else ()

    def activation(self, rows: int, width: int) -> Operator:
        """Return the activation function of an MLP's inner values; a gated one reads two matrices.

        Args:
            rows: The number of tokens.
            width: The number of inner values per token.
        """
        return self.operator("elementwise", rows * width, 2 if self.model.is_gated else 1, 1)

    def first_width(self, width: int) -> int:
        """Return the number of columns of an MLP's first product: the gate and the matrix upwards are one product.

        Args:
            width: The GPU's part of the MLP's inner width.
        """
        return 2 * width if self.model.is_gated else width

    def activation_backward(self, rows: int, width: int) -> Operator:
        """Return the gradient of `activation`.

        Args:
            rows: The number of tokens.
            width: The number of inner values per token.
        """
        gates = 2 if self.model.is_gated else 1
        return self.operator("elementwise", rows * width, gates + 1, gates)


# Ranks of the NPUs of a plan, and their groups.
#
# As in Megatron-LM, the tensor-parallel rank changes fastest, then the ranks of context parallelism, data parallelism
# and the pipeline. Experts divide the same GPUs of a stage differently: the expert-tensor-parallel rank changes
# fastest, then the expert-parallel rank, then the replica of experts (core/parallel_state.py, order tp-cp-ep-dp-pp).


class RankPlace(NamedTuple):
    """Ranks of an NPU."""

    tp: int  # Rank in the tensor-parallel group
    cp: int  # Rank in the ring of context parallelism
    dp: int  # Number of the replica
    stage: int  # Number of the pipeline stage
    ep: int  # Rank in the expert-parallel group


def place(plan: ParallelPlan, npu: int) -> RankPlace:
    """Return the ranks of an NPU in the plan's axes.

    Args:
        plan: The settled parallel plan.
        npu: The number of the NPU.
    """
    rest, tp = divmod(npu, plan.tp)
    rest, cp = divmod(rest, plan.cp)
    stage, dp = divmod(rest, plan.dp)
    return RankPlace(tp, cp, dp, stage, npu % stage_size(plan) // plan.etp % plan.ep)


def stage_size(plan: ParallelPlan) -> int:
    """Return the number of NPUs per stage.

    Args:
        plan: The settled parallel plan.
    """
    return plan.tp * plan.cp * plan.dp


def families(plan: ParallelPlan) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the groups of more than one NPU by family.

    - tp, cp, ep, etp: groups of the plan's axes; adapters: the same as tp,
    - ep-domain, ep-network: the members of an expert-parallel group in one NVLink domain, and those with the same rank
      in all domains, if the dispatcher moves tokens in these two hops,
    - pp: NPUs with the same rank in each stage,
    - dp: replicas of dense parameters, over data and context parallelism,
    - edp: replicas of experts,
    - dp-shard, dp-replicate; edp-shard, edp-replicate: with `shard`, the replicas that shard states together, which
      are next to each other, and those that hold the same shard (the dimensions of torchtitan's mesh),
    - model: all stages and the tensor-parallel group of one replica,
    - embedding: NPUs with the same rank in the first and the last stage,
    - tp-cp: the GPUs that share a micro-batch's sequences; stage: all GPUs of a stage, with DualPipe also those of the
      stage with the same slices,
    - world: all NPUs,
    - dp-other, edp-other: with DualPipe two stages hold each slice of the model, and their replicas form one group; dp
      and edp are for the slices of the first half, dp-other and edp-other for those of the second half.

    Args:
        plan: The settled parallel plan.
    """
    npus = np.arange(plan.gpus).reshape(plan.pp, plan.dp, plan.cp, plan.tp)
    experts = np.arange(plan.gpus).reshape(plan.pp, -1, plan.ep, plan.etp)
    by_axis = {
        "tp": npus,
        "adapters": npus,
        "cp": npus.transpose(0, 1, 3, 2),
        "pp": npus.transpose(1, 2, 3, 0),
        "model": npus.transpose(1, 2, 0, 3).reshape(plan.dp, plan.cp, -1),
        "embedding": npus[[0, -1]].transpose(1, 2, 3, 0) if plan.pp > 1 else npus[..., :0],
        "tp-cp": npus.reshape(plan.pp, plan.dp, -1),
        "stage": npus.reshape(plan.pp, -1),
        "world": npus.reshape(1, -1),
        "ep": experts.transpose(0, 1, 3, 2),
        "etp": experts,
    }
    if not plan.sends_copies and (members := plan.domain_members) < plan.ep:
        hops = experts.reshape(plan.pp, -1, plan.ep // members, members, plan.etp)
        by_axis["ep-domain"] = hops.transpose(0, 1, 2, 4, 3)
        by_axis["ep-network"] = hops.transpose(0, 1, 3, 4, 2)
    if plan.is_mirrored:
        # Stage s and stage pp - 1 - s hold the same slices: their replicas form one group
        mirrored = np.concatenate([npus, npus[::-1]], axis=1)[: plan.pp // 2]
        by_axis["stage"] = mirrored.reshape(plan.pp // 2, -1)
        by_axis["dp"] = by_axis["dp-other"] = mirrored.transpose(0, 3, 1, 2).reshape(-1, 2 * plan.dp * plan.cp)
        twice = np.concatenate([experts, experts[::-1]], axis=1)[: plan.pp // 2]
        by_axis["edp"] = by_axis["edp-other"] = twice.transpose(0, 2, 3, 1)
    else:
        by_axis["dp"] = npus.transpose(0, 3, 1, 2).reshape(-1, plan.dp * plan.cp)
        by_axis["edp"] = experts.transpose(0, 2, 3, 1)
    for name in ("dp", "edp") if plan.shard_copies > 1 else ():
        shards = by_axis[name].reshape(-1, plan.shard_copies, by_axis[name].shape[-1] // plan.shard_copies)
        by_axis[f"{name}-shard"], by_axis[f"{name}-replicate"] = shards, shards.transpose(0, 2, 1)
    return {
        name: tuple(map(tuple, array.reshape(-1, array.shape[-1]).tolist()))
        for name, array in by_axis.items()
        if array.shape[-1] > 1
    }


def neighbours(plan: ParallelPlan, npu: int) -> tuple[int, int]:
    """Return the next and the previous NPU in the ring of context parallelism.

    Args:
        plan: The settled parallel plan.
        npu: The number of the NPU.
    """
    rank = place(plan, npu).cp
    first = npu - rank * plan.tp
    after, before = (rank + 1) % plan.cp, (rank - 1) % plan.cp
    return first + after * plan.tp, first + before * plan.tp
