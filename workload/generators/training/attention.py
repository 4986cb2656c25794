"""Attention, forward and backward: multi-head, grouped-query and latent, with or without context parallelism."""

from nadi.workload.generators.training import adapters
from nadi.workload.generators.training.attention_core import core
from nadi.workload.generators.training.items import Compute, Items
from nadi.workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from nadi.workload.generators.training.shard import Operators, Shard

NAME = "attention"


def forward(shard: Shard) -> Items:
    """Return the forward pass of one micro-batch."""
    return around(shard, [*_projections(shard), *core(shard)])


def around(shard: Shard, inner_items: Items) -> Items:
    """Return attention's items: inner_items (projections, core) between the norm before and the output matrix after."""
    h, m = shard.model.hidden, shard.tokens
    output = shard.gemm(m, h, shard.heads * shard.model.value_dim)
    return [
        Compute("attention-norm", (shard.operator("norm", shard.rows, h),)),
        *inner_items,
        *adapters.forward(shard, _output_adapter(shard)),
        Compute(NAME, (output,)),
        *leave(shard, NAME, h),
        Compute("attention-residual", (*adapters.added(shard, shard.rows * h), shard.residual())),
    ]


def backward(shard: Shard, *, recomputes_core: bool) -> Items:
    """Return attention's backward pass of one micro-batch; recomputes_core: whether it first repeats the core."""
    h, m, values = shard.model.hidden, shard.tokens, shard.heads * shard.model.value_dim
    recomputed = renamed(core(shard), "recompute/") if recomputes_core else []
    return [
        Compute("attention-residual", shard.leave_backward()),
        *adapters.backward(shard, _output_adapter(shard)),
        *enter(shard, NAME, h),
        Compute(NAME, (shard.gemm(m, values, h),)),
        weights_product(shard, NAME, (shard.gemm(h, values, m),), gathered=True),
        *recomputed,
        *core(shard, backward=True),
        *_projections_backward(shard),
    ]


def renamed(items: Items, prefix: str) -> Items:
    """Return items with a prefix before their names."""
    return [item._replace(name=prefix + item.name) for item in items]


def _projections(shard: Shard) -> Items:
    """Return the items of the projections to queries, keys and values."""
    if shard.model.latent is not None:
        return _latent_projections(shard)
    h = shard.model.hidden
    columns = qkv_columns(shard)
    bias = (shard.operator("elementwise", shard.tokens * columns, 1, 1),) if _has_separate_bias(shard) else ()
    sums = adapters.added(shard, shard.tokens * columns)
    return [
        *adapters.shared(shard, enter(shard, NAME, h, quantised=not shard.plan.lora)),
        *adapters.forward(shard, _projection_adapter(shard)),
        Compute(NAME, (shard.gemm(shard.tokens, columns, h), *bias, *sums, *positions(shard))),
    ]


def _projection_adapter(shard: Shard) -> adapters.Adapter:
    """Return the adapter of the projection to queries, keys and values."""
    return adapters.Adapter(shard.model.hidden, shard.plan.lora // shard.plan.tp, qkv_columns(shard))


def _output_adapter(shard: Shard) -> adapters.Adapter:
    """Return the adapter of the output matrix."""
    return adapters.Adapter(shard.heads * shard.model.value_dim, shard.plan.lora, shard.model.hidden // shard.plan.tp)


def _has_separate_bias(shard: Shard) -> bool:
    """Return whether separate operators add the bias of queries, keys and values, and sum its gradient."""
    # The layers of Megatron-LM do so, which unfused attention represents; Transformer Engine's products do both.
    return (shard.model.bias or shard.model.qkv_bias) and shard.plan.attention == "unfused"


def _projections_backward(shard: Shard) -> Items:
    """Return the backward pass of `_projections` and of the norm before them."""
    h, m, columns = shard.model.hidden, shard.tokens, qkv_columns(shard)
    norm = (shard.operator("norm-backward", shard.rows, h), shard.residual_backward())
    if shard.model.latent is not None:
        return [*_latent_projections_backward(shard), Compute("attention-norm", norm)]
    bias = (
        (shard.operator("elementwise", m * columns, 1, 0),) if _has_separate_bias(shard) and not shard.plan.lora else ()
    )
    data = (*positions(shard, "-backward"), *bias, shard.gemm(m, h, columns))
    items, key = enter_backward(shard, NAME, h, data, (shard.gemm(columns, h, m),))
    return [
        *adapters.backward(shard, _projection_adapter(shard)),
        *adapters.shared(shard, items),
        Compute("attention-norm", norm, waiting(key)),
    ]


def qkv_columns(shard: Shard) -> int:
    """Return the number of columns of the GPU's matrix that projects to queries, keys and values."""
    return shard.heads * shard.model.query_dim + shard.kv_heads * (shard.model.query_dim + shard.model.value_dim)


def positions(shard: Shard, suffix: str = "") -> Operators:
    """Return the norms and rotary positions of queries and keys; suffix: "" or "-backward"."""
    heads = shard.heads + shard.kv_heads
    operators = []
    if shard.model.qk_norm:
        operators.append(shard.operator(f"norm{suffix}", shard.tokens * heads, shard.model.query_dim))
    if shard.model.positions == "rotary":
        rotated = shard.model.latent.rope_dim if shard.model.latent is not None else shard.model.query_dim
        operators.append(shard.operator("elementwise", shard.tokens * heads * rotated, 1, 1))
    return tuple(operators)


def _compressed_width(shard: Shard) -> int:
    """Return the number of input values per token of latent attention's matrices that are split by columns."""
    latent = shard.latent
    return (latent.query_rank or shard.model.hidden) + latent.key_value_rank + latent.rope_dim


def compressing(shard: Shard) -> tuple[int, ...]:
    """Return the numbers of columns of latent attention's compressing matrices, which are not split over GPUs."""
    latent = shard.latent
    return tuple(filter(None, (latent.query_rank, latent.key_value_rank + latent.rope_dim)))


def _expanding(shard: Shard) -> tuple[tuple[int, int], ...]:
    """Return columns and rows of latent attention's matrices from compressed values to the heads' values."""
    latent = shard.latent
    queries = shard.heads * shard.model.query_dim
    keys_values = shard.heads * (latent.nope_dim + latent.value_dim)
    return (queries, latent.query_rank or shard.model.hidden), (keys_values, latent.key_value_rank)


def latent_norms(shard: Shard, suffix: str = "") -> Operators:
    """Return the norms of compressed values of latent attention; suffix: "" or "-backward"."""
    latent = shard.latent
    ranks = filter(None, (latent.query_rank, latent.key_value_rank))
    return tuple(shard.operator(f"norm{suffix}", shard.rows, rank) for rank in ranks)


def _latent_projections(shard: Shard) -> Items:
    """Return compression, norms and expansion to heads; sequence parallelism gathers the compressed values."""
    h = shard.model.hidden
    down = tuple(shard.gemm(shard.rows, columns, h) for columns in compressing(shard))
    up = tuple(shard.gemm(shard.tokens, columns, k) for columns, k in _expanding(shard))
    return [
        Compute("attention-compression", (*down, *latent_norms(shard))),
        *enter(shard, NAME, _compressed_width(shard)),
        Compute(NAME, (*up, *positions(shard))),
    ]


def _latent_projections_backward(shard: Shard) -> Items:
    """Return the backward pass of `_latent_projections`."""
    h, m = shard.model.hidden, shard.tokens
    data = tuple(shard.gemm(m, k, columns) for columns, k in _expanding(shard))
    weights = tuple(shard.gemm(columns, k, m) for columns, k in _expanding(shard))
    items, key = enter_backward(shard, NAME, _compressed_width(shard), (*positions(shard, "-backward"), *data), weights)
    down = tuple(shard.gemm(shard.rows, h, columns) for columns in compressing(shard))
    down_weights = tuple(shard.gemm(columns, h, shard.rows) for columns in compressing(shard))
    return [
        *items,
        Compute("attention-compression", (*latent_norms(shard, "-backward"), *down), waiting(key)),
        weights_product(shard, "attention-compression", down_weights),
    ]
