"""Mixture of experts, forward and backward.

As in Megatron-LM's all-to-all dispatcher (core/transformer/moe/token_dispatcher.py), each GPU routes its own tokens, an
all-to-all of the expert-parallel group brings them to the GPUs with their experts, and another one brings the results
back. With expert-tensor parallelism, the GPUs that share an expert gather their tokens before it and reduce-scatter its
results.

With imbalance x, the experts of a layer have a random order of popularity, and expert i = 1, 2, ... of this order
receives tokens in proportion to i^-x (Zipf's law); x = 0 is even. The plan's seed and the layer's number determine the
order, which is the same on all GPUs and for all micro-batches. The experts of a token are distinct, so that an expert
receives each token at most once. With a capacity, an expert drops the tokens above that multiple of its even share.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from et import CollectiveCommType
from workload.compute.operators import Operator
from workload.generators.models.model import Experts
from workload.generators.training import mlp
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.linear import all_gather, waiting, weights_product
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.shard import Operators, Shard


class ExpertTokens(NamedTuple):
    """Numbers of tokens that a GPU sends and receives; a token counts once for each of its experts."""

    sent: tuple[int, ...]  # Tokens that the GPU sends to each member of the expert-parallel group
    received: int  # Tokens that this GPU's experts receive from all members, before expert-tensor parallelism gathers
    is_even: bool  # Whether all members receive the same number


def flow(s: Shard, layer: int) -> ExpertTokens:
    """Return the numbers of tokens that the GPU exchanges in a layer."""
    experts, ep = s.experts, s.plan.ep
    if not s.plan.imbalance:
        total = s.routed_rows * experts.top_k
        if s.plan.capacity:
            total = min(total, round(total * s.plan.capacity))
        return ExpertTokens(tuple(total * (i + 1) // ep - total * i // ep for i in range(ep)), total, is_even=True)
    counts = tokens_of_experts(s.plan, experts, s.routed_rows, layer)
    local = experts.count // ep
    sent = tuple(sum(counts[i * local : (i + 1) * local]) for i in range(ep))
    return ExpertTokens(sent, sent[s.expert_rank] * ep, is_even=len(set(sent)) == 1)


def forward(s: Shard, layer: int) -> Items:
    """Return the forward pass of one micro-batch."""
    experts, h = s.experts, s.model.hidden
    tokens = flow(s, layer)
    rows = tokens.received * s.plan.etp
    sent = sum(tokens.sent)
    return [
        Compute("mlp-norm", (s.operator("norm", s.rows, h),)),
        *(mlp.matrices(s, "shared-experts", experts.shared_width // s.plan.tp) if experts.shared_width else []),
        Compute("router", (*_router(s), s.operator("permute", sent, h))),
        *_dispatch(s, tokens),
        *_shared(s, tokens, CollectiveCommType.ALL_GATHER),
        Compute("experts", (s.operator("permute", rows, h), *_products(s, rows), s.operator("permute", rows, h))),
        *_shared(s, tokens, CollectiveCommType.REDUCE_SCATTER),
        *_combine(s, tokens),
        Compute("combine", (s.operator("permute", sent, h), s.operator("elementwise", sent * h, 1, 1))),
        *_rejoin(s),
        Compute("mlp-residual", (s.residual(),)),
    ]


def backward(s: Shard, layer: int) -> Items:
    """Return the backward pass of one micro-batch."""
    experts, h = s.experts, s.model.hidden
    tokens = flow(s, layer)
    rows, sent = tokens.received * s.plan.etp, sum(tokens.sent)
    shared: Items = []
    key = ""
    if experts.shared_width:
        shared, key = mlp.matrices_backward(s, "shared-experts", experts.shared_width // s.plan.tp)
    permute, router = s.operator("permute", rows, h), s.operator("gemm", s.routed_rows, h, experts.count)
    return [
        Compute("combine", (s.operator("elementwise", sent * h, 2, 1), s.operator("permute", sent, h))),
        *_dispatch(s, tokens),
        *_shared(s, tokens, CollectiveCommType.ALL_GATHER),
        Compute("experts", (permute, *_products(s, rows, backward=True), permute)),
        weights_product(s, "experts", _products(s, rows)),
        *_shared(s, tokens, CollectiveCommType.REDUCE_SCATTER),
        *_combine(s, tokens),
        Compute("router", (s.operator("permute", sent, h), router)),
        *_rejoin(s),
        weights_product(s, "router", (s.operator("gemm", experts.count, h, s.routed_rows),)),
        *shared,
        Compute("mlp-norm", (s.operator("norm-backward", s.rows, h), s.residual_backward()), waiting(key)),
    ]


def _rejoin(s: Shard) -> Items:
    """Return the all-gather of the experts' results over the tensor-parallel group.

    Without sequence parallelism each GPU of the group has all tokens but routes a share of them only, as in DeepSpeed
    (moe/mappings.py, drop_tokens and gather_tokens).
    """
    return [] if s.plan.sequence_parallel else all_gather(s, "combine", s.tokens * s.model.hidden)


def _router(s: Shard) -> Operators:
    """Return the router's scores, never in FP8 (Megatron-LM, core/transformer/moe/router.py), and choice of experts."""
    experts = s.experts
    scores = s.operator("gemm", s.routed_rows, experts.count, s.model.hidden)
    return scores, s.operator("routing", s.routed_rows, experts.count, experts.top_k)


def _products(s: Shard, rows: int, *, backward: bool = False) -> Operators:
    """Return both products of the GPU's experts with `rows` rows in total, and the activation between them.

    The products for gradients of weights have the same shapes as the forward pass.
    """
    local, width = s.experts.count // s.plan.ep, s.experts.ffn // s.plan.etp
    if not backward:
        return products(s, local, rows)
    h, both = s.model.hidden, 2 * width if s.model.is_gated else width
    return product(s, local, rows, width, h), s.activation_backward(rows, width), product(s, local, rows, h, both)


def products(s: Shard, local: int, rows: int) -> Operators:
    """Return both products of `local` experts with `rows` rows in total, and the activation between them."""
    h, width = s.model.hidden, s.experts.ffn // s.plan.etp
    both = 2 * width if s.model.is_gated else width
    return product(s, local, rows, both, h), s.activation(rows, width), product(s, local, rows, h, width)


def product(s: Shard, local: int, rows: int, n: int, k: int) -> Operator:
    """Return a product of `local` experts with `rows` rows in total and matrices of k x n values."""
    return Operator("grouped-gemm", (local, rows, n, k), s.plan.dtype)


def _dispatch(s: Shard, tokens: ExpertTokens) -> Items:
    """Return the all-to-all that brings tokens to the GPUs with their experts."""
    back = (tokens.sent[s.expert_rank],) * s.plan.ep
    return exchange(s, "dispatch", tokens.sent, back, is_even=tokens.is_even) if any(tokens.sent) else []


def _combine(s: Shard, tokens: ExpertTokens) -> Items:
    """Return the all-to-all that brings the experts' results back."""
    back = (tokens.sent[s.expert_rank],) * s.plan.ep
    return exchange(s, "combine", back, tokens.sent, is_even=tokens.is_even) if any(tokens.sent) else []


def exchange(s: Shard, part: str, sent: tuple[int, ...], received: tuple[int, ...], *, is_even: bool) -> Items:
    """Return the all-to-all of the tokens that a GPU sends to, and receives from, each member of its expert group."""
    if s.plan.ep == 1:
        return []
    size = sum(sent) * s.model.hidden * s.value_bytes
    splits = ((), ()) if is_even else (sent, received)
    return [GroupCollective(f"{part}/ep:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "ep", splits=splits)]


def _shared(s: Shard, tokens: ExpertTokens, kind: CollectiveCommType) -> Items:
    """Return the collective before (all-gather) or after (reduce-scatter) an expert that several GPUs share."""
    if s.plan.etp == 1 or not tokens.received:
        return []
    size = tokens.received * s.model.hidden * s.value_bytes
    if kind == CollectiveCommType.ALL_GATHER:
        return [GroupCollective("experts/etp:all-gather", kind, size, "etp")]
    return [GroupCollective("experts/etp:reduce-scatter", kind, size * s.plan.etp, "etp")]


@functools.lru_cache(maxsize=4096)
def tokens_of_experts(plan: ParallelPlan, experts: Experts, rows: int, layer: int) -> tuple[int, ...]:
    """Return how many of `rows` tokens each expert receives; a token counts once for each of its experts."""
    total = rows * experts.top_k
    weight = np.arange(1, experts.count + 1, dtype=np.float64) ** -plan.imbalance
    np.random.default_rng((plan.seed, layer)).shuffle(weight)
    counts = _distributed(total, weight, rows)
    if plan.capacity:
        limit = math.ceil(plan.capacity * total / experts.count)
        counts = np.minimum(counts, limit)
    return tuple(counts.tolist())


def _distributed(total: int, weight: np.ndarray, maximum: int) -> np.ndarray:
    """Return integers with sum `total`, in proportion to weights as far as none exceeds `maximum`."""
    counts = np.zeros(len(weight), np.int64)
    while (left := total - int(counts.sum())) > 0:
        is_open = counts < maximum
        share = left * np.where(is_open, weight, 0.0) / weight[is_open].sum()
        added = np.minimum(np.floor(share).astype(np.int64), maximum - counts)
        if not np.any(added):
            by_share = np.argsort(-np.where(is_open, share, -1.0), kind="stable")
            added[by_share[: min(left, int(is_open.sum()))]] = 1
        counts += added
    return counts
