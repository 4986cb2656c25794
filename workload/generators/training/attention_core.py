"""Core of attention (scores, softmax, weighted values), and its distribution by context parallelism.

Each GPU has two pieces of the sequence, chosen so that a causal mask leaves all GPUs the same work (zigzag: pieces i
and 2 cp - 1 - i of 2 cp). Keys and values either travel around a ring, overlapped with the computation (Liu et al.,
arXiv 2310.01889; Transformer Engine's p2p), or are gathered first (Llama 3, arXiv 2407.21783, section 3.3.2), or an
all-to-all distributes heads instead of the sequence (DeepSpeed Ulysses, arXiv 2309.14509).
"""

from nadi.et import CollectiveCommType
from nadi.workload.generators.training.items import Compute, GroupCollective, Items, RingMessage
from nadi.workload.generators.training.shard import Operators, Shard

_KEYS_VALUES, _GRADIENTS = 1 << 23, (1 << 23) + 1  # Message tags of the ring, above those of pipeline parallelism


def core(shard: Shard, *, backward: bool = False) -> Items:
    """Return the forward or backward pass of attention's core (scores, weighted values) for one micro-batch."""
    if shard.plan.cp > 1:
        return {"ring": _ring, "all-gather": _gathered, "a2a": _exchanged}[shard.plan.context](shard, backward=backward)
    tokens = shard.sequence
    return [Compute("attention", pieces(shard, tokens, tokens, shard.heads, shard.kv_heads, backward=backward))]


def pieces(
    shard: Shard, queries: int, keys: int, heads: int, kv_heads: int, *, backward: bool = False, causal: bool = True
) -> Operators:
    """Return the operators of attention between `queries` and `keys` tokens per sequence."""
    # Unfused attention writes scores and the dropout mask to memory and changes the layout of its output; its backward
    # pass also changes the layout of the gradients of queries, keys and values (Megatron-LM,
    # core/transformer/dot_product_attention.py).
    b, d, dv = shard.plan.micro_batch, shard.model.query_dim, shard.model.value_dim
    if shard.plan.attention != "unfused":
        prefix = "" if shard.plan.attention == "flash" else f"{shard.plan.attention}-"
        kind = f"{prefix}attention{'-backward' * backward}"
        return (shard.operator(kind, b, heads, kv_heads, queries, keys, d, dv, int(causal)),)
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
    """Return the number of values in the keys and values of a GPU's tokens."""
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
    """Return attention after an all-gather of keys and values; backward: with the reduce-scatter of gradients."""
    half, size = shard.sequence // shard.plan.cp // 2, key_value_values(shard) * shard.value_bytes
    gather = GroupCollective("attention/cp:all-gather", CollectiveCommType.ALL_GATHER, size, "cp")
    if shard.plan.attention == "unfused":
        operators = pieces(shard, 2 * half, shard.sequence, shard.heads, shard.kv_heads, backward=backward)
    else:
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
