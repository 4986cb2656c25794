"""Attention, forward and backward: plain, grouped-query and latent; its core alone, or shared along the sequence."""

from workload.generators.training import attention_core as core
from workload.generators.training.items import Compute, Items
from workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from workload.generators.training.shard import Operators, Shard

NAME = "attention"


def forward(s: Shard) -> Items:
    """Of one micro-batch."""
    return around(s, [*_projections(s), *core.forward(s)])


def around(s: Shard, inner: Items) -> Items:
    """Norm before projections and core, output matrix and residual after."""
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
    """Its gradients; again: the core's forward pass is done again first (selective recomputation)."""
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


def renamed(items: Items, beginning: str) -> Items:
    """Items with another beginning of their names."""
    return [item._replace(name=beginning + item.name) for item in items]


def _projections(s: Shard) -> Items:
    """To queries, keys and values."""
    if s.model.latent is not None:
        return _latent_projections(s)
    h = s.model.hidden
    columns = qkv_columns(s)
    bias = (s.operator("elementwise", s.tokens * columns, 1, 1),) if _has_separate_bias(s) else ()
    return [*enter(s, NAME, h), Compute(NAME, (s.gemm(s.tokens, columns, h), *bias, *positions(s)))]


def _has_separate_bias(s: Shard) -> bool:
    """Whether operators of their own add the bias of queries, keys and values, and sum its gradient.

    Megatron-LM's own layers do so, which unfused attention stands for; Transformer Engine's products do both.
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
    """Columns of the one matrix to queries, keys and values."""
    return s.heads * s.model.query_dim + s.kv_heads * (s.model.query_dim + s.model.value_dim)


def positions(s: Shard, backward: str = "") -> Operators:
    """Norms of queries and keys, and their rotation."""
    heads = s.heads + s.kv_heads
    operators = []
    if s.model.qk_norm:
        operators.append(s.operator(f"norm{backward}", s.tokens * heads, s.model.query_dim))
    if s.model.positions == "rotary":
        rotated = s.model.latent.rope_dim if s.model.latent is not None else s.model.query_dim
        operators.append(s.operator("elementwise", s.tokens * heads * rotated, 1, 1))
    return tuple(operators)


def _compressed_width(s: Shard) -> int:
    """Values of a token that the matrices split by columns take in: compressed ones, queries' maybe not."""
    latent = s.latent
    return (latent.query_rank or s.model.hidden) + latent.key_value_rank + latent.rope_dim


def compressing(s: Shard) -> tuple[int, ...]:
    """Columns of the matrices that compress, which every GPU has whole."""
    latent = s.latent
    return tuple(filter(None, (latent.query_rank, latent.key_value_rank + latent.rope_dim)))


def _expanding(s: Shard) -> tuple[tuple[int, int], ...]:
    """Columns and rows of the matrices from compressed values to heads: queries, keys and values."""
    latent = s.latent
    queries = s.heads * s.model.query_dim
    keys_values = s.heads * (latent.nope_dim + latent.value_dim)
    return (queries, latent.query_rank or s.model.hidden), (keys_values, latent.key_value_rank)


def latent_norms(s: Shard, backward: str = "") -> Operators:
    """Of what is compressed."""
    latent = s.latent
    ranks = filter(None, (latent.query_rank, latent.key_value_rank))
    return tuple(s.operator(f"norm{backward}", s.rows, rank) for rank in ranks)


def _latent_projections(s: Shard) -> Items:
    """Compress, normalise, and expand to heads; with sequence parallelism compressed values are gathered."""
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
