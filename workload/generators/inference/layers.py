"""Operators and communication of a serving pass: attention over a KV cache, MLP, and both ends of the model.

Tensor parallelism sums after attention and after the MLP, as in vLLM's RowParallelLinear. Latent attention uses its
expanded form for prompts and its absorbed form for decoding (DeepSeek-V2, arXiv 2405.04434, section 2.1.2; FlashMLA;
vLLM's `mla/common.py`): the absorbed form multiplies a head's queries by its part of the matrix that would expand keys,
so that all heads work on the compressed keys, which are also the values.
"""

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.inference.scheduler import Batch, Prompts
from nadi.workload.generators.training import attention
from nadi.workload.generators.training.items import Compute, GroupCollective, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.shard import Operators, Shard


def shard(model_shard: Shard, tokens: int) -> Shard:
    """Return the GPU's share in a pass with at least one token; serving uses no dropout."""
    plan: ParallelPlan = model_shard.plan.model_copy(update={"micro_batch": 1, "sequence": tokens})
    model = model_shard.model
    if model.dropout:
        model = model.model_copy(update={"dropout": False})
    return Shard(model, plan, model_shard.expert_rank)


def attention_items(shard: Shard, batch: Batch) -> Items:
    """Return the attention of a layer with its norm and residual."""
    if shard.model.latent is not None:
        return attention.around(shard, _latent(shard, batch))
    projection = shard.gemm(shard.tokens, attention.qkv_columns(shard), shard.model.hidden)
    operators = [projection, *attention.positions(shard)]
    for piece in batch.prompts:
        operators += _of_prompts(shard, piece)
    if batch.decodes:
        operators.append(_decoding(shard, batch))
    return attention.around(shard, [Compute(attention.NAME, tuple(operators))])


def head_items(shard: Shard, batch: Batch) -> Items:
    """Return logits for the sampled tokens only, their all-gather, and greedy sampling."""
    rows = batch.sampled
    if not rows:
        return []
    words = shard.vocabulary * shard.plan.tp
    output = shard.operator("gemm", rows, shard.vocabulary, shard.model.hidden)  # never in FP8, as in training
    gathered: Items = []
    if shard.plan.tp > 1:
        size = rows * shard.vocabulary * shard.value_bytes
        gathered = [GroupCollective("head/tp:all-gather", CollectiveCommType.ALL_GATHER, size, "tp")]
    return [
        Compute("head", (shard.operator("norm", rows, shard.model.hidden), output)),
        *gathered,
        Compute("sample", (shard.operator("elementwise", rows * words, 1, 0),)),
    ]


def _of_prompts(shard: Shard, prompts: Prompts) -> Operators:
    """Return the attention of prompt tokens to the cached tokens and to earlier tokens of their piece."""
    keys, d, dv = prompts.context + prompts.tokens, shard.model.query_dim, shard.model.value_dim
    return (
        shard.operator("attention", prompts.sequences, shard.heads, shard.kv_heads, prompts.tokens, keys, d, dv, 1),
    )


def _decoding(shard: Shard, batch: Batch) -> Operator:
    """Return the attention of one query per sequence to its cache, which has the plan's data type."""
    d, dv = shard.model.query_dim, shard.model.value_dim
    return Operator(
        "attention", (batch.decodes, shard.heads, shard.kv_heads, 1, batch.keys, d, dv, 0), shard.plan.dtype
    )


def _latent(shard: Shard, batch: Batch) -> Items:
    """Return projections and core of latent attention."""
    latent, h = shard.latent, shard.model.hidden
    down = tuple(shard.gemm(shard.tokens, columns, h) for columns in attention.compressing(shard))
    queries = shard.gemm(shard.tokens, shard.heads * shard.model.query_dim, latent.query_rank or h)
    operators = [*down, *attention.latent_norms(shard), queries, *attention.positions(shard)]
    for piece in batch.prompts:
        rows = piece.sequences * (piece.context + piece.tokens)  # cached tokens are expanded again
        columns = shard.heads * (latent.nope_dim + latent.value_dim)
        operators += [shard.gemm(rows, columns, latent.key_value_rank), *_of_prompts(shard, piece)]
    if batch.decodes:
        operators += _absorbed(shard, batch)
    return [Compute(attention.NAME, tuple(operators))]


def _absorbed(shard: Shard, batch: Batch) -> Operators:
    """Return the operators of decoding with latent attention, whose expansion is part of the queries and outputs."""
    latent, count = shard.latent, batch.decodes
    rank = latent.key_value_rank
    core = Operator("latent-attention", (count, shard.heads, 1, batch.keys, rank, latent.rope_dim), shard.plan.dtype)
    return (
        shard.operator("batched-gemm", shard.heads, count, rank, latent.nope_dim)._replace(dtype=shard.plan.dtype),
        core,
        shard.operator("batched-gemm", shard.heads, count, latent.value_dim, rank)._replace(dtype=shard.plan.dtype),
    )
