"""Mixture of experts, forward and backward.

As in Megatron-LM's all-to-all dispatcher (core/transformer/moe/token_dispatcher.py), each GPU routes its own tokens, an
all-to-all of the expert-parallel group brings them to the GPUs with their experts, and another one brings the results
back. With expert-tensor parallelism, the GPUs that share an expert gather their tokens before it and reduce-scatter its
results.
"""

from typing import NamedTuple

from et import CollectiveCommType
from workload.generators.training import mlp
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.linear import all_gather, waiting, weights_product
from workload.generators.training.routing import tokens_of_experts
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
        *_gather(s, tokens),
        Compute("experts", (s.operator("permute", rows, h), *_products(s, rows), s.operator("permute", rows, h))),
        *_scatter(s, tokens),
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
        *_gather(s, tokens),
        Compute("experts", (permute, *_products(s, rows, backward=True), permute)),
        weights_product(s, "experts", _products(s, rows)),
        *_scatter(s, tokens),
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
    """Return both products of the GPU's experts with `rows` rows in total.

    The products for gradients of weights have the same shapes as the forward pass.
    """
    experts, h = s.experts, s.model.hidden
    width, local = experts.ffn // s.plan.etp, experts.count // s.plan.ep
    both = 2 * width if s.model.is_gated else width

    def product(n: int, k: int) -> Operators:
        return (s.operator("grouped-gemm", local, rows, n, k)._replace(dtype=s.plan.dtype),)

    if backward:
        return *product(width, h), s.activation_backward(rows, width), *product(h, both)
    return *product(both, h), s.activation(rows, width), *product(h, width)


def _dispatch(s: Shard, tokens: ExpertTokens) -> Items:
    back = (tokens.sent[s.expert_rank],) * s.plan.ep
    return _to_all(s, "dispatch", tokens, tokens.sent, back)


def _combine(s: Shard, tokens: ExpertTokens) -> Items:
    back = (tokens.sent[s.expert_rank],) * s.plan.ep
    return _to_all(s, "combine", tokens, back, tokens.sent)


def _to_all(s: Shard, part: str, tokens: ExpertTokens, sent: tuple[int, ...], received: tuple[int, ...]) -> Items:
    if s.plan.ep == 1 or not any(tokens.sent):
        return []
    size = sum(sent) * s.model.hidden * s.value_bytes
    splits = ((), ()) if tokens.is_even else (sent, received)
    return [GroupCollective(f"{part}/ep:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "ep", splits=splits)]


def _gather(s: Shard, tokens: ExpertTokens) -> Items:
    if s.plan.etp == 1 or not tokens.received:
        return []
    size = tokens.received * s.model.hidden * s.value_bytes
    return [GroupCollective("experts/etp:all-gather", CollectiveCommType.ALL_GATHER, size, "etp")]


def _scatter(s: Shard, tokens: ExpertTokens) -> Items:
    if s.plan.etp == 1 or not tokens.received:
        return []
    size = tokens.received * s.plan.etp * s.model.hidden * s.value_bytes
    return [GroupCollective("experts/etp:reduce-scatter", CollectiveCommType.REDUCE_SCATTER, size, "etp")]
