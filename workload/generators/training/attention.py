"""Attention of a layer: its core (scores, softmax, weighted values) by context parallelism, forward and backward.

Each GPU has two pieces of the sequence, chosen so that a causal mask leaves all GPUs the same work (zigzag: pieces i
and 2 cp - 1 - i of 2 cp). Keys and values either travel around a ring, overlapped with the computation (Liu et al.,
arXiv 2310.01889; Transformer Engine's p2p), or are gathered first (Llama 3, arXiv 2407.21783, section 3.3.2), or an
all-to-all distributes heads instead of the sequence (DeepSpeed Ulysses, arXiv 2309.14509).
"""

from collections.abc import Sequence

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.training import linear
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Item, Items, RingMessage
from nadi.workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from nadi.workload.generators.training.stages import Operators, Shard

_KEYS_VALUES, _GRADIENTS = 1 << 23, (1 << 23) + 1  # Message tags of the ring, above those of pipeline parallelism


def core(shard: Shard, *, backward: bool = False) -> Items:
    """Return attention's core (scores, weighted values) for one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        backward: Whether the items are those of the backward pass.
    """
    if shard.plan.cp > 1:
        return {"ring": _ring, "all-gather": _gathered, "a2a": _exchanged}[shard.plan.context](shard, backward=backward)
    tokens = shard.sequence
    return [Compute("attention", pieces(shard, tokens, tokens, shard.heads, shard.kv_heads, backward=backward))]


def pieces(
    shard: Shard, queries: int, keys: int, heads: int, kv_heads: int, *, backward: bool = False, causal: bool = True
) -> Operators:
    """Return the operators of attention between some queries and some keys.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        queries: The number of query tokens per sequence.
        keys: The number of key tokens per sequence.
        heads: The number of query heads.
        kv_heads: The number of key and value heads.
        backward: Whether the operators are those of the backward pass.
        causal: Whether a query only sees keys up to its own position.
    """
    # Unfused attention writes scores and the dropout mask to memory and changes the layout of its output; its backward
    # pass also changes the layout of the gradients of queries, keys and values (Megatron-LM,
    # core/transformer/dot_product_attention.py).
    b, d, dv = shard.plan.micro_batch, shard.model.query_dim, shard.model.value_dim
    if shard.plan.attention != "unfused":
        # Pieces of a sequence that several GPUs share count as if there were no window
        has_window = shard.plan.attention == "flash" and 0 < shard.window < keys == queries == shard.sequence
        prefix = "window-" if has_window else "" if shard.plan.attention == "flash" else f"{shard.plan.attention}-"
        kind = f"{prefix}attention{'-backward' * backward}"
        mask = shard.window if has_window else int(causal)
        operator = shard.operator(kind, b, heads, kv_heads, queries, keys, d, dv, mask)
        if shard.plan.attention_dtype != "fp8":
            return (operator,)
        # Queries, keys and values, or the output's gradient, are scaled by their own maximum: read twice, written once
        values = heads * queries * dv if backward else heads * queries * d + kv_heads * keys * (d + dv)
        return Operator("quantise", (b * values, 2, 1, 0), "fp8"), operator._replace(dtype="fp8")
    dropout = (shard.operator("dropout", b * heads * queries * keys, 1, 1),) if shard.model.dropout else ()
    output = shard.operator("elementwise", b * heads * queries * dv, 1, 1)
    inputs = shard.operator("elementwise", b * (heads * queries * d + kv_heads * keys * (d + dv)), 1, 1)
    softmax, product = (b * heads * queries, keys), "batched-gemm"
    if not backward:
        return (
            shard.operator(product, b * heads, queries, keys, d),
            shard.operator("softmax", *softmax),
            *dropout,
            shard.operator(product, b * heads, queries, dv, keys),
            output,
        )
    return (
        output,
        shard.operator(product, b * heads, keys, dv, queries),
        shard.operator(product, b * heads, queries, keys, dv),
        *dropout,
        shard.operator("softmax-backward", *softmax),
        shard.operator(product, b * heads, queries, d, keys),
        shard.operator(product, b * heads, keys, d, queries),
        inputs,
    )


def key_value_values(shard: Shard) -> int:
    """Return the number of values in the keys and values of a GPU's tokens.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    return shard.tokens * shard.kv_heads * (shard.model.query_dim + shard.model.value_dim)


def _ring(shard: Shard, *, backward: bool) -> Items:
    """Return attention on the GPU's own piece, then on the other GPUs' pieces as they arrive on the ring."""
    # In the backward pass the gradients of keys and values follow around the ring back to their GPU. A causal mask
    # leaves half of the work for a piece of another GPU: all queries on half of the keys, or half of the queries on all
    # keys. Which of the two depends on the GPU, but the amount of work does not.
    local, cp = shard.sequence // shard.plan.cp, shard.plan.cp
    size = key_value_values(shard) * shard.value_bytes
    items: Items = []
    home = ""
    for turn in range(cp):
        own, before = f"keys {turn}", f"keys {turn - 1}"
        needs = (before,) if turn else ()
        if turn < cp - 1:
            items += _hop(size, _KEYS_VALUES, own, needs, is_early=turn > 0)
        is_masked = turn > 0 and shard.plan.attention != "unfused"  # unfused attention computes all pairs
        keys, causal = (local // 2, False) if is_masked else (local, True)
        operators = pieces(shard, local, keys, shard.heads, shard.kv_heads, backward=backward, causal=causal)
        items.append(Compute("attention", operators, needs))
        if backward and turn:
            items += _hop(size, _GRADIENTS, f"gradients {turn}", (home,) if home else (), is_early=False)
            home = f"gradients {turn}"
    if home:
        values = size // shard.value_bytes
        items.append(Compute("attention-gradients", (shard.operator("elementwise", values, 2, 1),), (home,)))
    return items


def _hop(size: int, tag: int, key: str, needs: tuple[str, ...], *, is_early: bool) -> Items:
    """Return a send of `size` bytes to the next neighbour and a receive from the previous one."""
    # key: of the receive; needs: keys of earlier items; is_early: whether it waits for these keys only.
    return [
        RingMessage("attention/cp:send", size, receives=False, tag=tag, needs=needs, is_early=is_early),
        RingMessage("attention/cp:receive", size, receives=True, tag=tag, key=key, needs=needs, is_early=is_early),
    ]


def _gathered(shard: Shard, *, backward: bool) -> Items:
    """Return attention after an all-gather of keys and values; backward: adds the reduce-scatter of gradients."""
    half, size = shard.sequence // shard.plan.cp // 2, key_value_values(shard) * shard.value_bytes
    gather = GroupCollective("attention/cp:all-gather", CollectiveCommType.ALL_GATHER, size, "cp")
    if shard.plan.attention == "unfused":
        operators = pieces(shard, 2 * half, shard.sequence, shard.heads, shard.kv_heads, backward=backward)
    else:
        # The first and the last piece of the sequence, as on GPU 0. Of 2 cp pieces, piece i attends to i + 1/2 pieces,
        # so the two of any GPU have 2 cp together.
        operators = (
            *pieces(shard, half, half, shard.heads, shard.kv_heads, backward=backward),
            *pieces(shard, half, shard.sequence, shard.heads, shard.kv_heads, backward=backward),
        )
    items: Items = [gather, Compute("attention", operators)]
    if backward:
        kind = CollectiveCommType.REDUCE_SCATTER
        items.append(GroupCollective("attention/cp:reduce-scatter", kind, size * shard.plan.cp, "cp"))
    return items


def _exchanged(shard: Shard, *, backward: bool) -> Items:
    """Return attention of some heads on the whole sequence, between all-to-alls that exchange heads and sequence."""
    cp, width = shard.plan.cp, shard.value_bytes * shard.tokens
    # Each GPU begins with all of its heads for its tokens, and ends with 1 / cp of the heads for all tokens
    queries, keys = shard.heads * shard.model.query_dim * width, shard.kv_heads * shard.model.query_dim * width
    values, outputs = shard.kv_heads * shard.model.value_dim * width, shard.heads * shard.model.value_dim * width
    inward = [_to_all(size) for size in (queries, keys, values)]
    operators = pieces(
        shard, shard.sequence, shard.sequence, shard.heads // cp, max(1, shard.kv_heads // cp), backward=backward
    )
    compute = Compute("attention", operators)
    return [_to_all(outputs), compute, *inward] if backward else [*inward, compute, _to_all(outputs)]


def _to_all(size: int) -> GroupCollective:
    return GroupCollective("attention/cp:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "cp")


# Attention, forward and backward: multi-head, grouped-query and latent, with or without context parallelism.


NAME = "attention"


def forward(shard: Shard) -> Items:
    """Return the forward pass of one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    return around(shard, [*_projections(shard), *core(shard)])


def around(shard: Shard, inner_items: Items) -> Items:
    """Return attention's items with the norm before and the output matrix after the inner items.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        inner_items: The items of the projections and the core.
    """
    h, m = shard.model.hidden, shard.tokens
    output = shard.gemm(m, h, shard.heads * shard.model.value_dim)
    return [
        Compute("attention-norm", (shard.operator("norm", shard.rows, h),)),
        *inner_items,
        *linear.adapter_forward(shard, _output_adapter(shard)),
        Compute(NAME, (output,)),
        *leave(shard, NAME, h),
        Compute("attention-residual", (*linear.added(shard, shard.rows * h), shard.residual())),
    ]


def backward(shard: Shard, recomputed: Sequence[Item] = ()) -> Items:
    """Return attention's backward pass of one micro-batch.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        recomputed: The items of the forward pass that it repeats before the core's backward pass.
    """
    h, m, values = shard.model.hidden, shard.tokens, shard.heads * shard.model.value_dim
    return [
        Compute("attention-residual", shard.leave_backward()),
        *linear.adapter_backward(shard, _output_adapter(shard)),
        *enter(shard, NAME, h),
        Compute(NAME, (shard.gemm(m, values, h),)),
        weights_product(shard, NAME, (shard.gemm(h, values, m),), gathered="gradient"),
        *recomputed,
        *core(shard, backward=True),
        *_projections_backward(shard),
    ]


def _projections(shard: Shard) -> Items:
    """Return the items of the projections to queries, keys and values."""
    if shard.model.latent is not None:
        return _latent_projections(shard)
    h = shard.model.hidden
    columns = qkv_columns(shard)
    bias = (shard.operator("elementwise", shard.tokens * columns, 1, 1),) if _has_separate_bias(shard) else ()
    sums = linear.added(shard, shard.tokens * columns)
    return [
        *linear.shared(shard, enter(shard, NAME, h, quantised=not shard.plan.lora)),
        *linear.adapter_forward(shard, _projection_adapter(shard)),
        Compute(NAME, (shard.gemm(shard.tokens, columns, h), *bias, *sums, *positions(shard))),
    ]


def _projection_adapter(shard: Shard) -> linear.Adapter:
    """Return the adapter of the projection to queries, keys and values."""
    return linear.Adapter(shard.model.hidden, shard.plan.lora // shard.plan.tp, qkv_columns(shard))


def _output_adapter(shard: Shard) -> linear.Adapter:
    """Return the adapter of the output matrix."""
    return linear.Adapter(shard.heads * shard.model.value_dim, shard.plan.lora, shard.model.hidden // shard.plan.tp)


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
        *linear.adapter_backward(shard, _projection_adapter(shard)),
        *linear.shared(shard, items),
        Compute("attention-norm", norm, waiting(key)),
    ]


def qkv_columns(shard: Shard) -> int:
    """Return the number of columns of the GPU's matrix that projects to queries, keys and values.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    return shard.heads * shard.model.query_dim + shard.kv_heads * (shard.model.query_dim + shard.model.value_dim)


def positions(shard: Shard, suffix: str = "") -> Operators:
    """Return the norms and rotary positions of queries and keys.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        suffix: The end of the operators' kinds: "" for the forward pass, "-backward" for the backward pass.
    """
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
    """Return the numbers of columns of latent attention's compressing matrices, which are not split over GPUs.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    latent = shard.latent
    return tuple(filter(None, (latent.query_rank, latent.key_value_rank + latent.rope_dim)))


def expanding(shard: Shard) -> tuple[tuple[int, int], ...]:
    """Return columns and rows of latent attention's matrices from compressed values to the heads' values."""
    latent = shard.latent
    queries = shard.heads * shard.model.query_dim
    keys_values = shard.heads * (latent.nope_dim + latent.value_dim)
    return (queries, latent.query_rank or shard.model.hidden), (keys_values, latent.key_value_rank)


def latent_norms(shard: Shard, suffix: str = "") -> Operators:
    """Return the norms of compressed values of latent attention.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        suffix: The end of the operators' kinds: "" for the forward pass, "-backward" for the backward pass.
    """
    latent = shard.latent
    ranks = filter(None, (latent.query_rank, latent.key_value_rank))
    return tuple(shard.operator(f"norm{suffix}", shard.rows, rank) for rank in ranks)


def _latent_projections(shard: Shard) -> Items:
    """Return compression, norms and expansion to heads; sequence parallelism gathers the compressed values."""
    h = shard.model.hidden
    down = tuple(shard.gemm(shard.rows, columns, h) for columns in compressing(shard))
    return [Compute("attention-compression", down), *expansion(shard)]


def expansion(shard: Shard) -> Items:
    """Return the norms of latent attention's compressed values, their expansion to heads, and rotary positions.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    up = tuple(shard.gemm(shard.tokens, columns, k) for columns, k in expanding(shard))
    return [
        Compute("attention-compression", latent_norms(shard)),
        *enter(shard, NAME, _compressed_width(shard)),
        Compute(NAME, (*up, *positions(shard))),
    ]


def _latent_projections_backward(shard: Shard) -> Items:
    """Return the backward pass of `_latent_projections`."""
    h, m = shard.model.hidden, shard.tokens
    data = tuple(shard.gemm(m, k, columns) for columns, k in expanding(shard))
    weights = tuple(shard.gemm(columns, k, m) for columns, k in expanding(shard))
    items, key = enter_backward(shard, NAME, _compressed_width(shard), (*positions(shard, "-backward"), *data), weights)
    down = tuple(shard.gemm(shard.rows, h, columns) for columns in compressing(shard))
    down_weights = tuple(shard.gemm(columns, h, shard.rows) for columns in compressing(shard))
    return [
        *items,
        Compute("attention-compression", (*latent_norms(shard, "-backward"), *down), waiting(key)),
        weights_product(shard, "attention-compression", down_weights),
    ]
