"""Dispatchers, which bring tokens to the GPUs of their experts and the experts' results back.

A plan names one (`dispatcher`); "auto" is what NVIDIA's guide to dispatchers names for the machine
(`rules.on_machine`).

- all-to-all (Megatron-Core, core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher): a kernel writes one
  copy of a token per expert, sorted by GPU (moe_permute_fusion); NCCL's all-to-all moves all copies; where a GPU has
  several experts another kernel sorts what arrived by expert. The results go the same way back; the last kernel sums
  the copies of each token.
- deepep (DeepSeek-AI, github.com/deepseek-ai/DeepEP, docs/legacy.md) and hybridep (NVIDIA, the same repository, branch
  hybrid-ep, docs/README_Hybrid-EP.md): one copy of a token per GPU that has one of its experts, whatever their number.
  Over several NVLink domains a copy crosses the network once per domain: it goes to the GPU with the same place in that
  domain, which forwards it over NVLink; copies for the own domain do not wait for it. (HybridEP's README has 1.64, 3.66
  and 6.2 ms on 16, 32 and 64 H100, in BF16 with 16 SMs. At 50 GB/s the network takes 1.17, 3.2 and 5.4 ms of them.)
  On arrival one kernel makes a copy per expert, sorted by expert. Results are summed on the GPU of the experts first,
  then per domain, so that as many copies go back.

An all-to-all moves values of 2 bytes here; DeepEP and HybridEP can dispatch in FP8, which Megatron-Core's recipes do
not use for training.

A token has `top_k` different experts. If all sets of experts are equally likely, a GPU with e of all E experts has none
of them with probability C(E - e, k) / C(E, k), from which follow the expected numbers of copies.
"""

from math import comb
from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.models.architecture import Experts
from nadi.workload.generators.training.item_lists import GroupCollective, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Operators, Shard

DOMAIN, NETWORK = "ep-domain", "ep-network"
"""Families of the groups of an expert-parallel group in one NVLink domain, and with the same place in all domains."""


_COUNT_BYTES = 8  # Bytes of a number of tokens
_SMS = {"deepep": 24, "hybridep": 32}
"""Number of multiprocessors that a dispatcher's kernels hold: DeepEP's README ("SM usage reduced from 24" for training
as DeepSeek-V3's) and NVIDIA's recipes (Megatron-Bridge, perf_recipes/_common.py: moe_hybridep_num_sms)."""


def held_sms(plan: ParallelPlan) -> int:
    """Return the number of multiprocessors that the plan's dispatcher holds beside other computation; 0 = none.

    Args:
        plan: The settled parallel plan.
    """
    return _SMS.get(plan.dispatcher, 0) if plan.overlap_ep and plan.ep > 1 else 0


class ExpertTokens(NamedTuple):
    """Numbers of tokens that a GPU sends and receives; a token counts once for each of its experts."""

    sent: tuple[int, ...]  # Tokens that the GPU sends to each member of the expert-parallel group
    received: int  # Tokens that this GPU's experts receive from all members, before expert-tensor parallelism gathers
    is_even: bool  # Whether all members receive the same number


def copies_per_token(experts: Experts, parts: int) -> float:
    """Return the expected number of parts in which a token has at least one expert, 1 to the smaller of both numbers.

    Args:
        experts: The experts of the model.
        parts: The number of equal parts into which the experts are divided: GPUs or NVLink domains.
    """
    others = experts.count - experts.count // parts
    return parts * (1 - comb(others, experts.top_k) / comb(experts.count, experts.top_k))


def announced(shard: Shard) -> Items:
    """Return the collectives by which GPUs learn, before the dispatch of a forward pass, what they will receive.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    # HybridEP gathers each token's choice of experts, a byte per expert (csrc/hybrid_ep, metadata_preprocessing); the
    # others gather numbers of tokens per expert (token_dispatcher.py; csrc/kernels, notify_dispatch). The backward pass
    # knows them already.
    plan, experts = shard.plan, shard.experts
    if plan.ep == 1 or plan.imbalance:
        return []
    size = shard.routed_rows * experts.count if plan.dispatcher == "hybridep" else experts.count * _COUNT_BYTES
    return [GroupCollective("router/ep:all-gather", CollectiveCommType.ALL_GATHER, size, "ep")]


def copied(shard: Shard, tokens: ExpertTokens) -> Operators:
    """Return the operators that copy a GPU's tokens before they are sent, or that sum their results that came back.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        tokens: The numbers of tokens that the GPU exchanges.
    """
    # DeepEP and HybridEP read tokens where they are, and sum results as they arrive
    return (_rows(shard, shard.routed_rows + sum(tokens.sent)),) if shard.plan.sends_copies else ()


def sorted_by_expert(shard: Shard, tokens: ExpertTokens) -> Operators:
    """Return the operators that make rows of arrived tokens, sorted by expert, or that undo this.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        tokens: The numbers of tokens that the GPU exchanges.
    """
    rows = tokens.received * shard.plan.etp
    if shard.plan.sends_copies:
        # With one expert per GPU, what arrives is sorted already
        return (_rows(shard, 2 * rows),) if shard.experts.count // shard.plan.ep > 1 and shard.plan.ep > 1 else ()
    copies = copies_per_token(shard.experts, shard.plan.ep) / shard.experts.top_k
    return (_rows(shard, rows + round(rows * copies)),)


def moved(shard: Shard, name: str, tokens: ExpertTokens) -> tuple[Items, tuple[str, ...]]:
    """Return the collectives that bring tokens to their experts' GPUs or results back, and the keys to wait for.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the items' names: "dispatch" or "combine".
        tokens: The numbers of tokens that the GPU exchanges.
    """
    if not any(tokens.sent) or shard.plan.ep == 1:
        return [], ()
    if shard.plan.sends_copies:
        received = (tokens.sent[shard.expert_rank],) * shard.plan.ep
        sent, received = (tokens.sent, received) if name == "dispatch" else (received, tokens.sent)
        return exchange(shard, name, sent, received, is_even=tokens.is_even), ()
    return _once_per_gpu(shard, name, tokens)


def _once_per_gpu(shard: Shard, name: str, tokens: ExpertTokens) -> tuple[Items, tuple[str, ...]]:
    """Return what `moved` returns, if a GPU receives one copy of a token however many of its experts the token has."""
    plan, experts, members = shard.plan, shard.experts, shard.plan.domain_members
    kept = sum(tokens.sent) / (shard.routed_rows * experts.top_k)  # below 1 where a capacity drops tokens
    token_bytes = kept * shard.routed_rows * shard.model.hidden * shard.value_bytes
    size = round(copies_per_token(experts, plan.ep) * token_bytes)
    hop = GroupCollective(f"{name}/ep:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "ep")
    if members == plan.ep:
        return [hop], ()
    domains = copies_per_token(experts, plan.ep // members)
    network = hop._replace(name=f"{hop.name}-network", bytes=round(domains * token_bytes), family=NETWORK)
    if members == 1:
        return [network], ()
    key = f"{name} over the network"
    network = network._replace(key=key)
    # Of a token's copies for its own domain: all domains have equally many experts
    own = hop._replace(name=f"{hop.name}-own", bytes=round(size * members / plan.ep), family=DOMAIN)
    # Copies of other domains' tokens are forwarded when they have arrived; results are summed per domain before they go
    forwarded = own._replace(name=f"{hop.name}-forwarded", bytes=size - own.bytes)
    if name == "dispatch":
        return [network, own, forwarded._replace(needs=(key,))], ()
    return [forwarded, network, own], (key,)


def exchange(shard: Shard, name: str, sent: tuple[int, ...], received: tuple[int, ...], *, is_even: bool) -> Items:
    """Return the all-to-all of an expert-parallel group; empty for a group of one.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the item's name.
        sent: The number of tokens that the GPU sends to each member.
        received: The number of tokens that the GPU receives from each member.
        is_even: Whether all members send and receive equally many tokens.
    """
    if shard.plan.ep == 1:
        return []
    size = sum(sent) * shard.model.hidden * shard.value_bytes
    splits = ((), ()) if is_even else (sent, received)
    return [GroupCollective(f"{name}/ep:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "ep", splits=splits)]


def _rows(shard: Shard, rows: int) -> Operator:
    """Return a permutation that reads and writes `rows` rows in total."""
    return shard.operator("permute", -(-rows // 2), shard.model.hidden)
