"""Mixture of experts in a serving pass.

With expert parallelism, each GPU of a tensor-parallel group routes a share of the replica's tokens. An all-to-all of
the expert-parallel group, which may span replicas, brings them to the GPUs with their experts, another one brings the
results back, and the tensor-parallel group gathers them. Without expert parallelism, experts are split by columns like
other matrices, every GPU processes all tokens, and the group sums the results (vLLM's `fused_moe`).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from nadi.workload.generators.models.model import Experts
from nadi.workload.generators.training import mlp
from nadi.workload.generators.training.experts import exchange, products, tokens_of_experts
from nadi.workload.generators.training.items import Compute, Items
from nadi.workload.generators.training.linear import all_gather, leave
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.shard import Shard

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
        """Return the number of tokens that a member receives from each member."""
        return tuple(row[member] for row in self.sent)


def rows_of(plan: ParallelPlan, tokens: int, tp_rank: int) -> int:
    """Return how many of a replica's tokens the GPU with tensor-parallel rank `tp_rank` routes."""
    if plan.ep == 1:
        return tokens
    return tokens // plan.tp + (tp_rank < tokens % plan.tp)


@lru_cache(maxsize=4096)
def flow(
    plan: ParallelPlan, experts: Experts, rows_of_members: tuple[int, ...], layer_number: int
) -> ExpertGroupTokens:
    """Return the distribution over experts of the tokens that each member of a group routes."""
    # Without imbalance, tokens go to the experts round-robin, so that the experts' counts differ by at most one. With
    # imbalance, the number of the layer determines the order of experts.
    of_member: list[Sequence[int]] = []
    begin = 0
    for count in rows_of_members:
        if plan.imbalance:
            of_member.append(tokens_of_experts(plan, experts, count, layer_number) if count else (0,) * experts.count)
        else:
            each, more = divmod(count * experts.top_k, experts.count)
            at = begin % experts.count
            of_member.append([each + ((expert - at) % experts.count < more) for expert in range(experts.count)])
            begin += count * experts.top_k
    local = experts.count // plan.ep
    sent = tuple(tuple(sum(own[i * local : (i + 1) * local]) for i in range(plan.ep)) for own in of_member)
    total = [sum(column) for column in zip(*of_member, strict=True)]
    busy = tuple(sum(n > 0 for n in total[i * local : (i + 1) * local]) for i in range(plan.ep))
    return ExpertGroupTokens(rows_of_members, sent, busy)


def items(shard: Shard, layer_number: int, rows_of_members: tuple[int, ...]) -> Items:
    """Return the items of a layer's experts with norm and residual, for the tokens that each member routes."""
    experts, h, own = shard.experts, shard.model.hidden, shard.expert_rank
    routed = flow(shard.plan, experts, rows_of_members, layer_number)
    sent = routed.sent[own]
    mixed = (
        (shard.operator("permute", sum(sent), h), shard.operator("elementwise", sum(sent) * h, 1, 1))
        if any(sent)
        else ()
    )
    return [
        Compute("mlp-norm", (shard.operator("norm", shard.rows, h),)),
        *(mlp.matrices(shard, "shared-experts", experts.shared_width // shard.plan.tp) if experts.shared_width else []),
        *exchanged(shard, routed),
        Compute("combine", mixed),
        # After this collective, each GPU of the tensor-parallel group has the results of all tokens.
        *(all_gather(shard, "combine", shard.tokens * h) if shard.plan.ep > 1 else leave(shard, "experts", h)),
        Compute("mlp-residual", (shard.residual(),)),
    ]


def idle(shard: Shard, layer: int, rows: tuple[int, ...]) -> Items:
    """Return the work of a replica without tokens: its experts process the tokens of others."""
    return exchanged(shard, flow(shard.plan, shard.experts, rows, layer))


def exchanged(shard: Shard, routed: ExpertGroupTokens) -> Items:
    """Return the items of the router, the experts, and the all-to-alls before and after them, for routed tokens."""
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
