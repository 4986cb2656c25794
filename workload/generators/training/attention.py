"""Attention, forward and backward: multi-head, grouped-query and latent, with or without context parallelism."""

from workload.generators.training import attention_core as core
from workload.generators.training.items import Compute, Items
from workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from workload.generators.training.shard import Operators, Shard

NAME = "attention"


def forward(s: Shard) -> Items:
    """Return the forward pass of one micro-batch."""
    return around(s, [*_projections(s), *core.forward(s)])


def around(s: Shard, inner: Items) -> Items:
    """Return projections and core (`inner`) between the norm before them and the output matrix and residual after."""
    h, m = s.model.hidden, s.tokens
    output = s.gemm(m, h, s.heads * s.model.value_dim)
    return [
        Compute("attention-norm", (s.operator("norm", s.rows, h),)),
        *inner,
        Compute(NAME, (output,)),
        *leave(s, NAME, h),
        Compute("attention-residual", (s.residual(),)),
    ]


def backward(s: Shard, *, again: bool) -> Items:
    """Return the backward pass of one micro-batch; again: whether it first recomputes the core (selective)."""
    h, m, values = s.model.hidden, s.tokens, s.heads * s.model.value_dim
    recomputed = renamed(core.forward(s), "recompute/") if again else []
    return [
        Compute("attention-residual", s.leave_backward()),
        *enter(s, NAME, h),
        Compute(NAME, (s.gemm(m, values, h),)),
        weights_product(s, NAME, (s.gemm(h, values, m),)),
        *recomputed,
        *core.backward(s),
        *_projections_backward(s),
    ]


def renamed(items: Items, prefix: str) -> Items:
    """Return items with a prefix before their names."""
    return [item._replace(name=prefix + item.name) for item in items]


def _projections(s: Shard) -> Items:
    """Return the projections to queries, keys and values."""
    if s.model.latent is not None:
        return _latent_projections(s)
    h = s.model.hidden
    columns = qkv_columns(s)
    bias = (s.operator("elementwise", s.tokens * columns, 1, 1),) if _has_separate_bias(s) else ()
    return [*enter(s, NAME, h), Compute(NAME, (s.gemm(s.tokens, columns, h), *bias, *positions(s)))]


def _has_separate_bias(s: Shard) -> bool:
    """Return whether separate operators add the bias of queries, keys and values, and sum its gradient.

    The layers of Megatron-LM do so, which unfused attention represents; Transformer Engine's products do both.
    """
    return (s.model.bias or s.model.qkv_bias) and s.plan.attention == "unfused"


def _projections_backward(s: Shard) -> Items:
    h, m, columns = s.model.hidden, s.tokens, qkv_columns(s)
    norm = (s.operator("norm-backward", s.rows, h), s.residual_backward())
    if s.model.latent is not None:
        return [*_latent_projections_backward(s), Compute("attention-norm", norm)]
    bias = (s.operator("elementwise", m * columns, 1, 0),) if _has_separate_bias(s) else ()
    data = (*positions(s, "-backward"), *bias, s.gemm(m, h, columns))
    items, key = enter_backward(s, NAME, h, data, (s.gemm(columns, h, m),))
    return [*items, Compute("attention-norm", norm, waiting(key))]


def qkv_columns(s: Shard) -> int:
    """Return the number of columns of the GPU's matrix that projects to queries, keys and values."""
    return s.heads * s.model.query_dim + s.kv_heads * (s.model.query_dim + s.model.value_dim)


def positions(s: Shard, backward: str = "") -> Operators:
    """Return the norms and rotary positions of queries and keys; backward: "" or "-backward"."""
    heads = s.heads + s.kv_heads
    operators = []
    if s.model.qk_norm:
        operators.append(s.operator(f"norm{backward}", s.tokens * heads, s.model.query_dim))
    if s.model.positions == "rotary":
        rotated = s.model.latent.rope_dim if s.model.latent is not None else s.model.query_dim
        operators.append(s.operator("elementwise", s.tokens * heads * rotated, 1, 1))
    return tuple(operators)


def _compressed_width(s: Shard) -> int:
    """Return the number of input values per token of the matrices split by columns; queries may be uncompressed."""
    latent = s.latent
    return (latent.query_rank or s.model.hidden) + latent.key_value_rank + latent.rope_dim


def compressing(s: Shard) -> tuple[int, ...]:
    """Return the numbers of columns of the compressing matrices, which are not split over GPUs."""
    latent = s.latent
    return tuple(filter(None, (latent.query_rank, latent.key_value_rank + latent.rope_dim)))


def _expanding(s: Shard) -> tuple[tuple[int, int], ...]:
    """Return the numbers of columns and rows of the matrices from compressed values to the heads' values."""
    latent = s.latent
    queries = s.heads * s.model.query_dim
    keys_values = s.heads * (latent.nope_dim + latent.value_dim)
    return (queries, latent.query_rank or s.model.hidden), (keys_values, latent.key_value_rank)


def latent_norms(s: Shard, backward: str = "") -> Operators:
    """Return the norms of compressed values; backward: "" or "-backward"."""
    latent = s.latent
    ranks = filter(None, (latent.query_rank, latent.key_value_rank))
    return tuple(s.operator(f"norm{backward}", s.rows, rank) for rank in ranks)


def _latent_projections(s: Shard) -> Items:
    """Return compression, norms and expansion to heads; sequence parallelism gathers the compressed values."""
    h = s.model.hidden
    down = tuple(s.gemm(s.rows, columns, h) for columns in compressing(s))
    up = tuple(s.gemm(s.tokens, columns, k) for columns, k in _expanding(s))
    return [
        Compute("attention-compression", (*down, *latent_norms(s))),
        *enter(s, NAME, _compressed_width(s)),
        Compute(NAME, (*up, *positions(s))),
    ]


def _latent_projections_backward(s: Shard) -> Items:
    h, m = s.model.hidden, s.tokens
    data = tuple(s.gemm(m, k, columns) for columns, k in _expanding(s))
    weights = tuple(s.gemm(columns, k, m) for columns, k in _expanding(s))
    items, key = enter_backward(s, NAME, _compressed_width(s), (*positions(s, "-backward"), *data), weights)
    down = tuple(s.gemm(s.rows, h, columns) for columns in compressing(s))
    down_weights = tuple(s.gemm(columns, h, s.rows) for columns in compressing(s))
    return [
        *items,
        Compute("attention-compression", (*latent_norms(s, "-backward"), *down), waiting(key)),
        weights_product(s, "attention-compression", down_weights),
    ]
