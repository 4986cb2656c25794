"""Mixture of experts, forward and backward.

Each GPU routes its own tokens, a dispatcher (`dispatchers`) brings them to the GPUs with their experts, and the results
back. With expert-tensor parallelism, the GPUs that share an expert gather their tokens before it and reduce-scatter its
results.

With imbalance x, the experts of a layer have a random order of popularity, and expert i = 1, 2, ... of this order
receives tokens in proportion to i^-x (Zipf's law); x = 0 is even. The plan's seed and the layer's number determine the
order, which is the same on all GPUs and for all micro-batches. The experts of a token are distinct, so that an expert
receives each token at most once. With a capacity, an expert drops the tokens above that multiple of its even share.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import EXPERT_CAST, Operator
from nadi.workload.generators.models.architecture import Experts
from nadi.workload.generators.training import dispatchers, linear
from nadi.workload.generators.training.dispatchers import ExpertTokens
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items
from nadi.workload.generators.training.linear import all_gather, waiting, weights_product
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Operators, Shard


def flow(shard: Shard, layer: int) -> ExpertTokens:
    """Return the numbers of tokens that the GPU exchanges in a layer.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        layer: The number of the layer, from 0.
    """
    experts, ep = shard.experts, shard.plan.ep
    if not shard.plan.imbalance:
        total = shard.routed_rows * experts.top_k
        if shard.plan.capacity:
            total = min(total, round(total * shard.plan.capacity))
        return ExpertTokens(tuple(total * (i + 1) // ep - total * i // ep for i in range(ep)), total, is_even=True)
    counts = tokens_of_experts(shard.plan, experts, shard.routed_rows, layer)
    local = experts.count // ep
    sent = tuple(sum(counts[i * local : (i + 1) * local]) for i in range(ep))
    return ExpertTokens(sent, sent[shard.expert_rank] * ep, is_even=len(set(sent)) == 1)


def forward(shard: Shard, layer: int) -> Items:
    """Return the forward pass of a layer's experts, norm and residual for one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        layer: The number of the layer, from 0.
    """
    experts, h, is_fp8 = shard.experts, shard.model.hidden, shard.plan.dispatches_fp8
    tokens = flow(shard, layer)
    rows = tokens.received * shard.plan.etp
    dispatch, dispatched = dispatchers.moved(shard, "dispatch", tokens, is_fp8=is_fp8)
    combine, combined = dispatchers.moved(shard, "combine", tokens)
    by_expert = dispatchers.sorted_by_expert(shard, tokens, is_fp8=is_fp8)
    back, paged = dispatchers.sorted_by_expert(shard, tokens), _paged(shard, rows)
    return [
        Compute("mlp-norm", (shard.operator("norm", shard.rows, h),)),
        *(
            linear.matrices(shard, "shared-experts", experts.shared_width // shard.plan.tp)
            if experts.shared_width
            else []
        ),
        *_router(shard),
        Compute("router", dispatchers.copied(shard, tokens, is_fp8=is_fp8)),
        *dispatchers.announced(shard),
        *dispatch,
        *_shared(shard, tokens, CollectiveCommType.ALL_GATHER, is_fp8=is_fp8),
        Compute("experts", (*by_expert, *_forward_products(shard, rows), *back, *paged), dispatched),
        *_shared(shard, tokens, CollectiveCommType.REDUCE_SCATTER),
        *combine,
        Compute("combine", dispatchers.copied(shard, tokens), combined),
        *_rejoin(shard),
        Compute("mlp-residual", (shard.residual(),), combined),
    ]


def backward(shard: Shard, layer: int) -> Items:
    """Return the backward pass of a layer's experts, norm and residual for one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        layer: The number of the layer, from 0.
    """
    experts, h = shard.experts, shard.model.hidden
    tokens = flow(shard, layer)
    rows = tokens.received * shard.plan.etp
    shared: Items = []
    key = ""
    if experts.shared_width:
        shared, key = linear.matrices_backward(shard, "shared-experts", experts.shared_width // shard.plan.tp)
    dispatch, dispatched = dispatchers.moved(shard, "dispatch", tokens)
    combine, combined = dispatchers.moved(shard, "combine", tokens)
    by_expert, paged = dispatchers.sorted_by_expert(shard, tokens), _paged(shard, rows)
    return [
        Compute("combine", dispatchers.copied(shard, tokens)),
        *dispatch,
        *_shared(shard, tokens, CollectiveCommType.ALL_GATHER),
        Compute("experts", (*by_expert, *paged, *_gradient_products(shard, rows), *by_expert), dispatched),
        *_shared(shard, tokens, CollectiveCommType.REDUCE_SCATTER),
        *combine,
        weights_product(shard, "experts", _weight_products(shard, rows), casts=_gradient_casts(shard, rows)),
        Compute("router", (*dispatchers.copied(shard, tokens), *_router_gradient(shard)), combined),
        *_rejoin(shard),
        weights_product(shard, "router", (shard.operator("gemm", experts.count, h, shard.routed_rows),)),
        *shared,
        Compute("mlp-norm", (shard.operator("norm-backward", shard.rows, h), shard.residual_backward()), waiting(key)),
    ]


def _rejoin(shard: Shard) -> Items:
    """Return the all-gather of the experts' results over the tensor-parallel group."""
    # Without sequence parallelism each GPU of the group has all tokens but routes a share of them only, as in DeepSpeed
    # (moe/mappings.py, drop_tokens and gather_tokens).
    return [] if shard.plan.sequence_parallel else all_gather(shard, "combine", shard.tokens * shard.model.hidden)


def _router(shard: Shard) -> Items:
    """Return the router's scores, never in FP8 (Megatron-LM, core/transformer/moe/router.py), its choice and losses."""
    # Memory traffic of each pass over a score per token and expert, as of Transformer Engine's fused kernels
    # (common/fused_router; moe_router_fusion of NVIDIA's recipes). The choice in groups reads the scores once more. The
    # auxiliary loss has normalised scores, another copy of them for the backward pass, and a byte that tells whether an
    # expert was chosen; the bytes are counted by expert, the counts summed over the GPUs with the same sequences.
    experts, plan = shard.experts, shard.plan
    values = shard.routed_rows * experts.count
    operators = [
        shard.operator("gemm", shard.routed_rows, experts.count, shard.model.hidden),
        shard.operator("routing", shard.routed_rows, experts.count, experts.top_k),
        *([Operator("elementwise", (values, 1, 0), "fp32")] if experts.groups else []),
        *([Operator("elementwise", (values, 1, 0), "fp32")] if experts.z_loss else []),
        *([Operator("elementwise", (values, 1, 0), "int8")] if experts.expert_bias else []),
    ]
    if not experts.auxiliary_loss:
        return [Compute("router", tuple(operators))]
    operators += [Operator("elementwise", (values, 1, 2), "fp32"), Operator("elementwise", (values, 1, 1), "int8")]
    name = f"router/{'tp' if plan.tp > 1 else 'cp'}:all-reduce"
    counts = GroupCollective(name, CollectiveCommType.ALL_REDUCE, experts.count * dispatchers.COUNT_BYTES, "tp-cp")
    loss = Operator("elementwise", (values, 1, 0), "fp32")
    return [
        Compute("router", tuple(operators)),
        *([counts] if plan.tp * plan.cp > 1 else []),
        Compute("router", (loss,)),
    ]


def _router_gradient(shard: Shard) -> Operators:
    """Return the gradients of the router's losses, each with its addition, and of the router's input."""
    experts = shard.experts
    values = shard.routed_rows * experts.count
    # The auxiliary loss writes the gradient of each normalised score, and takes it through the normalisation
    passes = [(0, 1), (2, 1), (2, 1)] if experts.auxiliary_loss else []
    passes += [(1, 1), (2, 1)] if experts.z_loss else []
    losses = (Operator("elementwise", (values, *each), "fp32") for each in passes)
    return (*losses, shard.operator("gemm", shard.routed_rows, shard.model.hidden, experts.count))


def _sizes(shard: Shard) -> tuple[int, int, int]:
    """Return the hidden size, the columns of the first product of an expert, and its inner width."""
    width = shard.experts.ffn // shard.plan.etp
    return shard.model.hidden, shard.first_width(width), width


def _casts(shard: Shard, *counts: int) -> Operators:
    """Return the casts of values that products take in 8 or 4 bits, one for each number of values."""
    # No operator before writes them so. Blocks of MXFP8 and NVFP4 are written by rows and by columns; see `linear`. A
    # scale per tensor is one per expert, and Transformer Engine casts each expert's values by kernels of their own if
    # they have to find its maximum first (pytorch/csrc/extensions/cast.cpp, split_quantize).
    if shard.operand_bytes >= shard.value_bytes:
        return ()
    scaling = "mxfp8" if shard.plan.fused_experts else linear.scaling_of(shard.plan)
    transposes = 0 if scaling in linear.BLOCK_SCALINGS else 1
    if scaling != "current":
        return tuple(linear.quantise(shard.plan, scaling, count, transposes=transposes) for count in counts)
    parts = shard.experts.count // shard.plan.ep
    casts = [linear.quantise(shard.plan, scaling, count, parts, transposes=transposes) for count in counts]
    return tuple(cast._replace(kind=EXPERT_CAST) for cast in casts for _ in range(parts))


def _paged(shard: Shard, rows: int) -> Operators:
    """Return the copies of what fused products save for the backward pass into pages, or out of them."""
    # With fused products a step is one CUDA graph, whose buffers have room for more tokens than come. What comes is
    # packed (Megatron-Core, core/transformer/moe/paged_stash.py, moe_paged_stash in NVIDIA's recipes): operands of both
    # products in 8 bits with their scales, and the input of the activation in 16 (Transformer Engine,
    # pytorch/ops/fused/grouped_mlp.py, mark_grouped_tensor). Beside the copies all else is as much slower.
    if not shard.plan.fused_experts or "paging" in shard.plan.without:
        return ()
    h, both, width = _sizes(shard)
    saved_bytes = rows * ((h + width) * 33 // 32 + both * shard.value_bytes)
    return (shard.operator("copies", _SAVED_TENSORS, saved_bytes // shard.value_bytes // _SAVED_TENSORS),)


_SAVED_TENSORS = 3  # Of fused products


def _per_expert(shard: Shard, rows: int, shape: Callable[[int], tuple[int, int, int]]) -> Operators:
    """Return the products of the GPU's experts; shape: a function from an expert's rows to its m, n and k."""
    # Transformer Engine runs one dense product after another (common/gemm/cublaslt_gemm.cu, nvte_multi_tensor_gemm: its
    # four streams overlap little, as a product's kernel holds all multiprocessors), or one kernel if they are fused
    kind = "fused-expert-gemm" if shard.plan.fused_experts else "expert-gemm"
    local = shard.experts.count // shard.plan.ep
    each, rest = divmod(rows, local)
    parts = ((rest, each + 1), (local - rest, each))
    return tuple(Operator(kind, (count, *shape(part)), shard.plan.dtype) for count, part in parts if count and part)


def _forward_products(shard: Shard, rows: int) -> Operators:
    """Return both products of the GPU's experts, the activation between them, and the casts of their inputs."""
    h, both, width = _sizes(shard)
    return (
        *(() if shard.plan.dispatches_fp8 else _casts(shard, rows * h)),
        *_per_expert(shard, rows, lambda m: (m, both, h)),
        *activation(shard, rows),
        *_per_expert(shard, rows, lambda m: (m, h, width)),
        *_output_bias(shard, rows, _BIAS),
    )


def activation(shard: Shard, rows: int) -> Operators:
    """Return the activation between the products of a GPU's experts, and its cast; empty if the products contain both.

    A clamp of the activation's inputs is part of it.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        rows: The number of tokens of all these experts together.
    """
    width = shard.experts.ffn // shard.plan.etp
    if shard.plan.fused_experts:
        return ()
    return (
        *_clamp(shard, rows * width, _CLAMP),
        shard.activation(rows, width),
        *_casts(shard, rows * width),
    )


class _Passes(NamedTuple):
    """Kernels of PyTorch that pass over the values of a tensor one after another, as nothing fuses them."""

    single: int  # Number of kernels that load values one by one, see `operators`
    reads: int  # 2-byte reads per value of all other kernels
    writes: int  # 2-byte writes per value of all other kernels

    def operators(self, values: int, dtype: str) -> Operators:
        """Return the operators.

        Args:
            values: The number of values.
            dtype: The data type of what the first kernels read and write.
        """
        others = Operator("elementwise", (values, self.reads, self.writes), "bf16")
        return (Operator("unvectorised", (values, self.single), dtype), others)


_CLAMP, _CLAMP_GRADIENT = _Passes(2, 2, 2), _Passes(5, 3, 2)
"""Clamp of the activation's two inputs, and its gradient (Megatron-Core, core/fusions/fused_bias_geglu.py,
weighted_bias_quick_geglu_impl): each half, a view of the product's result, and their concatenation. Backward (PyTorch,
torch/csrc/autograd/FunctionsManual.cpp, clamp_backward): one comparison of the gate and two of the linear half, whose
conjunction is of contiguous masks, a selection of each half, and the concatenation of both gradients."""


def _clamp(shard: Shard, values: int, passes: _Passes) -> Operators:
    """Return the clamp of the activation's inputs, or its gradient, where it is not part of a product."""
    if not shard.model.clamped_activation or shard.plan.fused_experts:
        return ()
    return passes.operators(values, shard.activation_dtype)


def _gradient_products(shard: Shard, rows: int) -> Operators:
    """Return the products for the gradients of the experts' inputs, and the gradient of the activation."""
    h, both, width = _sizes(shard)
    return (
        *_output_bias(shard, rows, _BIAS_GRADIENT),
        *_per_expert(shard, rows, lambda m: (m, width, h)),
        *(() if shard.plan.fused_experts else (shard.activation_backward(rows, width),)),
        *_clamp(shard, rows * width, _CLAMP_GRADIENT),
        # Fused products contain the gradient of the first bias; that of the second and of its scale is another kernel
        # (Transformer Engine, pytorch/triton/grouped_dbias_dscales.py)
        *shard.bias_gradient(rows * (h if shard.plan.fused_experts else both)),
        *_per_expert(shard, rows, lambda m: (m, h, both)),
    )


_BIAS, _BIAS_GRADIENT = _Passes(2, 4, 3), _Passes(3, 7, 2)
"""Bias of the experts' output, and its gradient (Megatron-Core, TEGroupedMLP._apply_bias): the bias times the FP32
probability of each token, its addition to the output, the concatenation over experts in FP32, and a cast. Backward: the
cast to FP32, two products with FP32 gradients, which are summed over tokens and over columns, a cast of the output's
gradient, and the concatenation over experts."""


def _output_bias(shard: Shard, rows: int, passes: _Passes) -> Operators:
    """Return the addition of the bias of the experts' output, or its gradient; fused products contain it."""
    if not shard.model.bias or shard.plan.fused_experts or shard.plan.lora:
        return ()
    return passes.operators(rows * shard.model.hidden, "fp32")


def _gradient_casts(shard: Shard, rows: int) -> Operators:
    """Return the casts of gradients for the gradients of weights, all of which fused products contain but the first."""
    h, both, _ = _sizes(shard)
    by_columns = (Operator("elementwise", (rows * h, 1, 1), "fp8"),) if shard.plan.dispatches_fp8 else ()
    gradients = _casts(shard, rows * h) if shard.plan.fused_experts else _casts(shard, rows * h, rows * both)
    return (*by_columns, *gradients)


def _weight_products(shard: Shard, rows: int) -> Operators:
    """Return the products for the gradients of the experts' weights, which sum over the rows of each expert."""
    h, both, width = _sizes(shard)
    return (
        *_per_expert(shard, rows, lambda m: (h, width, m)),
        *_per_expert(shard, rows, lambda m: (both, h, m)),
    )


def products(shard: Shard, local_experts: int, rows: int) -> Operators:
    """Return both products of a GPU's experts, and the activation between them.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        local_experts: The number of the GPU's experts.
        rows: The number of tokens of all these experts together.
    """
    h, width = shard.model.hidden, shard.experts.ffn // shard.plan.etp
    both = shard.first_width(width)
    return (
        product(shard, local_experts, rows, both, h),
        shard.activation(rows, width),
        product(shard, local_experts, rows, h, width),
    )


def product(shard: Shard, local: int, rows: int, n: int, k: int) -> Operator:
    """Return a product of several experts.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        local: The number of experts.
        rows: The number of rows of all experts together.
        n: The number of columns of each matrix.
        k: The number of rows of each matrix.
    """
    return Operator("grouped-gemm", (local, rows, n, k), shard.plan.dtype)


def _shared(shard: Shard, tokens: ExpertTokens, kind: CollectiveCommType, *, is_fp8: bool = False) -> Items:
    """Return the collective before (all-gather) or after (reduce-scatter) an expert that several GPUs share."""
    if shard.plan.etp == 1 or not tokens.received:
        return []
    size = tokens.received * dispatchers.row_bytes(shard, is_fp8=is_fp8)
    if kind == CollectiveCommType.ALL_GATHER:
        return [GroupCollective("experts/etp:all-gather", kind, size, "etp")]
    return [GroupCollective("experts/etp:reduce-scatter", kind, size * shard.plan.etp, "etp")]


@functools.lru_cache(maxsize=4096)
def tokens_of_experts(plan: ParallelPlan, experts: Experts, rows: int, layer: int) -> tuple[int, ...]:
    """Return how many tokens each expert receives; a token counts once for each of its experts.

    Args:
        plan: The settled parallel plan.
        experts: The experts of the model.
        rows: The number of tokens to distribute.
        layer: The number of the layer, which determines the order of the experts' popularity.
    """
    total = rows * experts.top_k
    weight = np.arange(1, experts.count + 1, dtype=np.float64) ** -plan.imbalance
    np.random.default_rng((plan.seed, layer)).shuffle(weight)
    counts = _distributed(total, weight, rows)
    if plan.capacity:
        limit = math.ceil(plan.capacity * total / experts.count)
        # Tokens above an expert's capacity are dropped, so that the sum may be below the total
        counts = np.minimum(counts, limit)
    return tuple(counts.tolist())


def _distributed(total: int, weights: np.ndarray, maximum: int) -> np.ndarray:
    """Return integers with sum `total`, in proportion to weights as far as none exceeds `maximum`."""
    counts = np.zeros(len(weights), np.int64)
    while (left := total - int(counts.sum())) > 0:
        is_open = counts < maximum
        share = left * np.where(is_open, weights, 0.0) / weights[is_open].sum()
        added = np.minimum(np.floor(share).astype(np.int64), maximum - counts)
        if not np.any(added):
            # Less than one token is left for each expert: the experts with the largest shares get one each
            by_share = np.argsort(-np.where(is_open, share, -1.0), kind="stable")
            added[by_share[: min(left, int(is_open.sum()))]] = 1
        counts += added
    return counts
