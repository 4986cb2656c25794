"""Operators and communication of a serving pass: attention over a KV cache, MLP, and both ends of the model.

Tensor parallelism sums after attention and after the MLP, as in vLLM's RowParallelLinear. Latent attention uses its
expanded form for prompts and its absorbed form for decoding (DeepSeek-V2, arXiv 2405.04434, section 2.1.2; FlashMLA;
vLLM's `mla/common.py`): the absorbed form multiplies a head's queries by its part of the matrix that would expand keys,
so that all heads work on the compressed keys, which are also the values.
"""

from et import CollectiveCommType
from workload.compute.operators import Operator
from workload.generators.inference.scheduler import Batch, Prompts
from workload.generators.training import attention
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.shard import Operators, Shard


def shard(model_shard: Shard, tokens: int) -> Shard:
    """Return the GPU's share in a pass with at least one token; serving uses no dropout."""
    plan: ParallelPlan = model_shard.plan.model_copy(update={"micro_batch": 1, "sequence": tokens})
    model = model_shard.model
    if model.dropout:
        model = model.model_copy(update={"dropout": False})
    return Shard(model, plan, model_shard.expert_rank)


def attention_items(s: Shard, batch: Batch) -> Items:
    """Return the attention of a layer with its norm and residual."""
    if s.model.latent is not None:
        return attention.around(s, _latent(s, batch))
    projection = s.gemm(s.tokens, attention.qkv_columns(s), s.model.hidden)
    operators = [projection, *attention.positions(s)]
    for piece in batch.prompts:
        operators += _of_prompts(s, piece)
    if batch.decodes:
        operators.append(_decoding(s, batch))
    return attention.around(s, [Compute(attention.NAME, tuple(operators))])


def head_items(s: Shard, batch: Batch) -> Items:
    """Return logits for the sampled tokens only, their all-gather, and greedy sampling."""
    rows = batch.sampled
    if not rows:
        return []
    words = s.vocabulary * s.plan.tp
    output = s.operator("gemm", rows, s.vocabulary, s.model.hidden)  # never in FP8, as in training
    gathered: Items = []
    if s.plan.tp > 1:
        size = rows * s.vocabulary * s.value_bytes
        gathered = [GroupCollective("head/tp:all-gather", CollectiveCommType.ALL_GATHER, size, "tp")]
    return [
        Compute("head", (s.operator("norm", rows, s.model.hidden), output)),
        *gathered,
        Compute("sample", (s.operator("elementwise", rows * words, 1, 0),)),
    ]


def _of_prompts(s: Shard, piece: Prompts) -> Operators:
    """Return the attention of prompt tokens to the cached tokens and to earlier tokens of the piece."""
    keys, d, dv = piece.context + piece.tokens, s.model.query_dim, s.model.value_dim
    return (s.operator("attention", piece.sequences, s.heads, s.kv_heads, piece.tokens, keys, d, dv, 1),)


def _decoding(s: Shard, batch: Batch) -> Operator:
    """Return the attention of one query per sequence to its cache, which has the plan's data type."""
    d, dv = s.model.query_dim, s.model.value_dim
    return Operator("attention", (batch.decodes, s.heads, s.kv_heads, 1, batch.keys, d, dv, 0), s.plan.dtype)


def _latent(s: Shard, batch: Batch) -> Items:
    """Return projections and core of latent attention."""
    latent, h = s.latent, s.model.hidden
    down = tuple(s.gemm(s.tokens, columns, h) for columns in attention.compressing(s))
    queries = s.gemm(s.tokens, s.heads * s.model.query_dim, latent.query_rank or h)
    operators = [*down, *attention.latent_norms(s), queries, *attention.positions(s)]
    for piece in batch.prompts:
        rows = piece.sequences * (piece.context + piece.tokens)  # cached tokens are expanded again
        columns = s.heads * (latent.nope_dim + latent.value_dim)
        operators += [s.gemm(rows, columns, latent.key_value_rank), *_of_prompts(s, piece)]
    if batch.decodes:
        operators += _absorbed(s, batch)
    return [Compute(attention.NAME, tuple(operators))]


def _absorbed(s: Shard, batch: Batch) -> Operators:
    latent, count = s.latent, batch.decodes
    rank = latent.key_value_rank
    core = Operator("latent-attention", (count, s.heads, 1, batch.keys, rank, latent.rope_dim), s.plan.dtype)
    return (
        s.operator("batched-gemm", s.heads, count, rank, latent.nope_dim)._replace(dtype=s.plan.dtype),
        core,
        s.operator("batched-gemm", s.heads, count, latent.value_dim, rank)._replace(dtype=s.plan.dtype),
    )
