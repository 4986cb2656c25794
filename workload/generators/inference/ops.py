"""Operators and collectives of a serving pass: attention, MLP and experts of a layer.

With expert parallelism, each GPU of a tensor-parallel group routes a share of the replica's tokens. An all-to-all of
the expert-parallel group, which may span replicas, brings them to the GPUs with their experts, another one brings the
results back, and the tensor-parallel group gathers them. Without expert parallelism, experts are split by columns like
other matrices, every GPU processes all tokens, and the group sums the results (vLLM's `fused_moe`).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import LAUNCHES, Operator
from nadi.workload.generators.inference.scheduler import Batch, Prompts
from nadi.workload.generators.models.architecture import Experts
from nadi.workload.generators.training import attention, linear
from nadi.workload.generators.training.dispatchers import exchange
from nadi.workload.generators.training.experts import products, tokens_of_experts
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items
from nadi.workload.generators.training.linear import all_gather, leave
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Operators, Shard

Int2 = tuple[tuple[int, ...], ...]


class ExpertGroupTokens(NamedTuple):
    """Tokens of an expert-parallel group, each counted once per expert that it is routed to."""

    rows: tuple[int, ...]  # Number of tokens that each member routes (not counted per expert)
    sent: Int2  # Number of tokens from each member to the experts of each member
    busy: tuple[int, ...]  # Number of each member's experts that receive tokens

    @property
    def is_even(self) -> bool:
        """Whether all members have the same work."""
        return len(set(self.rows)) == 1 and len(set(self.busy)) == 1 and len({n for row in self.sent for n in row}) == 1

    def received(self, member: int) -> tuple[int, ...]:
        """Return the number of tokens that a member receives from each member.

        Args:
            member: The number of the receiving member.
        """
        return tuple(row[member] for row in self.sent)


def rows_of(plan: ParallelPlan, tokens: int, tp_rank: int) -> int:
    """Return how many of a replica's tokens a GPU routes to experts.

    Args:
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        tokens: The number of the replica's tokens.
        tp_rank: The tensor-parallel rank of the GPU.
    """
    if plan.ep == 1:
        return tokens
    return tokens // plan.tp + (tp_rank < tokens % plan.tp)


@lru_cache(maxsize=4096)
def flow(
    plan: ParallelPlan, experts: Experts, rows_of_members: tuple[int, ...], layer_number: int
) -> ExpertGroupTokens:
    """Return the distribution over experts of the tokens that the members of a group route.

    Without imbalance, tokens go to the experts round-robin, so that the experts' counts differ by at most one.

    Args:
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        experts: The experts of the model.
        rows_of_members: The number of tokens that each member of the expert-parallel group routes.
        layer_number: The number of the layer, from 0, which determines the order of experts if routing is imbalanced.
    """
    of_member: list[Sequence[int]] = []
    begin = 0
    for count in rows_of_members:
        if plan.imbalance:
            of_member.append(tokens_of_experts(plan, experts, count, layer_number) if count else (0,) * experts.count)
        else:
            each, more = divmod(count * experts.top_k, experts.count)
            at = begin % experts.count
            of_member.append([each + ((expert - at) % experts.count < more) for expert in range(experts.count)])
            # The next member continues round-robin where this one ended
            begin += count * experts.top_k
    local = experts.count // plan.ep
    sent = tuple(tuple(sum(own[i * local : (i + 1) * local]) for i in range(plan.ep)) for own in of_member)
    total = [sum(column) for column in zip(*of_member, strict=True)]
    busy = tuple(sum(n > 0 for n in total[i * local : (i + 1) * local]) for i in range(plan.ep))
    return ExpertGroupTokens(rows_of_members, sent, busy)


def items(shard: Shard, layer_number: int, rows_of_members: tuple[int, ...]) -> Items:
    """Return the items of a layer's experts, with norm and residual.

    Args:
        shard: A GPU's share of the model.
        layer_number: The number of the layer, from 0, which determines the order of experts if routing is imbalanced.
        rows_of_members: The number of tokens that each member of the expert-parallel group routes.
    """
    experts, h, own = shard.experts, shard.model.hidden, shard.expert_rank
    routed = flow(shard.plan, experts, rows_of_members, layer_number)
    sent = routed.sent[own]
    mixed = (
        (shard.operator("permute", sum(sent), h), shard.operator("elementwise", sum(sent) * h, 1, 1))
        if any(sent)
        else ()
    )
    return quantised(
        [
            Compute("mlp-norm", (shard.operator("norm", shard.rows, h),)),
            *(
                linear.matrices(shard, "shared-experts", experts.shared_width // shard.plan.tp)
                if experts.shared_width
                else []
            ),
            *exchanged(shard, routed),
            Compute("combine", mixed),
            # After this collective, each GPU of the tensor-parallel group has the results of all tokens.
            *(all_gather(shard, "combine", shard.tokens * h) if shard.plan.ep > 1 else leave(shard, "experts", h)),
            Compute("mlp-residual", (shard.residual(),)),
        ]
    )


def idle(shard: Shard, layer: int, rows: tuple[int, ...]) -> Items:
    """Return the work of a replica without tokens: its experts process the tokens of others.

    Args:
        shard: A GPU's share of the model.
        layer: The number of the layer, from 0.
        rows: The number of tokens that each member of the expert-parallel group routes.
    """
    return quantised(exchanged(shard, flow(shard.plan, shard.experts, rows, layer)))


def exchanged(shard: Shard, routed: ExpertGroupTokens) -> Items:
    """Return the items of the router, the experts, and the all-to-alls before and after them.

    Args:
        shard: A GPU's share of the model.
        routed: The numbers of tokens that each member of the expert-parallel group sends to each.
    """
    experts, h, own = shard.experts, shard.model.hidden, shard.expert_rank
    sent, received = routed.sent[own], routed.received(own)
    rows, local = sum(received), routed.busy[own]
    result: Items = []
    if routed.rows[own]:
        scores = shard.operator("gemm", routed.rows[own], experts.count, h)
        routing = shard.operator("routing", routed.rows[own], experts.count, experts.top_k)
        result.append(Compute("router", (scores, routing, shard.operator("permute", sum(sent), h))))
    is_idle = not any(map(any, routed.sent))
    result += [] if is_idle else exchange(shard, "dispatch", sent, received, is_even=routed.is_even)
    if rows:
        permute = shard.operator("permute", rows, h)
        result.append(Compute("experts", (permute, *products(shard, local, rows), permute)))
    result += [] if is_idle else exchange(shard, "combine", received, sent, is_even=routed.is_even)
    return result


# Operators and communication of a serving pass: attention over a KV cache, MLP, and both ends of the model.
#
# Tensor parallelism sums after attention and after the MLP, as in vLLM's RowParallelLinear. Latent attention uses its
# expanded form for prompts and its absorbed form for decoding (DeepSeek-V2, arXiv 2405.04434, section 2.1.2; FlashMLA;
# vLLM's `mla/common.py`): the absorbed form multiplies a head's queries by its part of the matrix that would expand
# keys, so that all heads work on the compressed keys, which are also the values.


def shard(model_shard: Shard, tokens: int) -> Shard:
    """Return the GPU's share in a pass with at least one token; serving uses no dropout.

    Args:
        model_shard: A GPU's share of the model, with any number of tokens.
        tokens: The number of tokens of the pass, at least one.
    """
    plan: ParallelPlan = model_shard.plan.model_copy(update={"micro_batch": 1, "sequence": tokens})
    model = model_shard.model
    if model.dropout:
        model = model.model_copy(update={"dropout": False})
    return Shard(model, plan, model_shard.expert_rank)


def attention_items(shard: Shard, batch: Batch) -> Items:
    """Return the attention of a layer with its norm and residual.

    Args:
        shard: A GPU's share of the model.
        batch: The batch of an iteration: pieces of prompts and decoding sequences.
    """
    if shard.model.latent is not None:
        return quantised(attention.around(shard, _latent(shard, batch)))
    projection = shard.gemm(shard.tokens, attention.qkv_columns(shard), shard.model.hidden)
    operators = [projection, *attention.positions(shard)]
    for piece in batch.prompts:
        operators += _of_prompts(shard, piece)
    if batch.decodes:
        operators.append(_decoding(shard, batch))
    return quantised(attention.around(shard, [Compute(attention.NAME, tuple(operators))]))


def mlp_items(shard: Shard) -> Items:
    """Return a layer's MLP with its norm and residual.

    Args:
        shard: A GPU's share of the model.
    """
    return quantised(linear.forward(shard))


_QUANTISED = "fp8"  # Data type of products whose operands are quantised
_FP8_READS = 2  # Values of FP8 that have the bytes of a value in 16 bits


def quantised(items: Items) -> Items:
    """Return items in which the activations of each product in FP8 are quantised before it.

    Args:
        items: The items of a part of a pass, in order.
    """
    # Products with the same input follow each other directly, and share its quantised copy
    result: Items = []
    for item in items:
        if isinstance(item, Compute):
            operators: list[Operator] = []
            for operator in item.operators:
                inputs = _inputs_of(operator)
                if inputs and (not operators or _inputs_of(operators[-1]) != inputs):
                    operators.append(Operator("elementwise", (inputs[0] * inputs[1], _FP8_READS, 1), _QUANTISED))
                operators.append(operator)
            item = item._replace(operators=tuple(operators))  # noqa: PLW2901 - the same item with more operators
        result.append(item)
    return result


def _inputs_of(operator: Operator) -> tuple[int, int] | None:
    """Return rows and columns of the activations of a product in FP8; None for other operators."""
    if operator.kind not in {"gemm", "grouped-gemm"} or operator.dtype != _QUANTISED:
        return None
    return operator.shape[-3], operator.shape[-1]


def kernels(items: Items) -> int:
    """Return the number of operators and collectives, each of which is launched.

    Args:
        items: The items of a part of a pass, in order.
    """
    return sum(len(item.operators) if isinstance(item, Compute) else 1 for item in items)


def eager(items: Items) -> Items:
    """Return items whose operators the host launches one by one.

    Args:
        items: The items of a part of a pass, in order.
    """
    return [
        item._replace(operators=(Operator(LAUNCHES, (len(item.operators),)), *item.operators))
        if isinstance(item, Compute) and item.operators
        else item
        for item in items
    ]


def head_items(shard: Shard, batch: Batch, logits_kernels: int = 0) -> Items:
    """Return logits for the sampled tokens only, their all-gather, and sampling.

    Args:
        shard: A GPU's share of the model.
        batch: The batch of an iteration: pieces of prompts and decoding sequences.
        logits_kernels: The number of kernels that read and write the logits in fp32 to sample; 0 = one that reads them.
    """
    rows = batch.sampled
    if not rows:
        return []
    # Sampling reads the gathered logits of the whole vocabulary
    words = shard.vocabulary * shard.plan.tp
    output = shard.operator("gemm", rows, shard.vocabulary, shard.model.hidden)  # never in FP8, as in training
    sampling = (Operator("elementwise", (rows * words, 1, 1), "fp32"),) * logits_kernels
    gathered: Items = []
    if shard.plan.tp > 1:
        size = rows * shard.vocabulary * shard.value_bytes
        gathered = [GroupCollective("head/tp:all-gather", CollectiveCommType.ALL_GATHER, size, "tp")]
    return [
        Compute("head", (shard.operator("norm", rows, shard.model.hidden), output)),
        *gathered,
        Compute("sample", sampling or (shard.operator("elementwise", rows * words, 1, 0),)),
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
