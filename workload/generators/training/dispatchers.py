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

With `dispatch_dtype=fp8` DeepEP and HybridEP bring tokens to their experts in FP8 (DeepSeek-V3, arXiv 2412.19437,
section 3.3.3); results and gradients have 16 bits. (DeepSeek-V3's dispatch of gradients was in FP8, too, which is not
modelled.) Tokens are cast before the dispatch, and the first product of the experts takes them as they arrive. Its
gradient sums over tokens, so that it needs scales of blocks of them: the backward pass reads the tokens again and
writes them by columns (there, section 3.5.2). Megatron-Core refuses FP8 with both dispatchers
(core/transformer/moe/fused_a2a.py), and has it as `moe_dispatch_fwd_dtype` for NCCL's EP.

A token has k different experts. If all sets of experts are equally likely, a GPU with e of all E experts has none of
them with probability C(E - e, k) / C(E, k), from which follow the expected numbers of copies. With groups of experts, M
of which a token may use, all orders of its scores are equally likely, and it uses the M groups with the highest single
scores, as in DeepSeek-V2. (DeepSeek-V3 compares sums of each group's k / M highest scores, which changes the numbers by
less than 1 %.) In descending order of scores, the next expert of a token then is any of the remaining ones until M
groups are in use, and any of the remaining ones of these groups thereafter.
"""

from collections import defaultdict
from functools import lru_cache
from math import comb
from typing import NamedTuple

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.models.architecture import Experts
from nadi.workload.generators.training.item_lists import GroupCollective, Items, reads_number
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Operators, Shard

DOMAIN, NETWORK = "ep-domain", "ep-network"
"""Families of the groups of an expert-parallel group in one NVLink domain, and with the same place in all domains."""


COUNT_BYTES = 8  # Bytes of a number of tokens
_VALUES_PER_SCALE_BYTE = 32  # Of DeepEP an FP32 scale for 128 values (docs/legacy.md), of MXFP8 a byte for 32
_SMS = {"deepep": 24, "hybridep": 32}
"""Number of multiprocessors that a dispatcher's kernels hold: DeepEP's README ("SM usage reduced from 24" for training
as DeepSeek-V3's) and NVIDIA's recipes (Megatron-Bridge, perf_recipes/_common.py: moe_hybridep_num_sms)."""


_PREPARED_NS = 4.0
"""Nanoseconds per token of the group in which HybridEP prepares a dispatch over several domains. A call in BF16 takes
0.52, 0.80 and 1.31 ms longer than its kernel with 16, 32 and 64 GPUs of 4,096 tokens on H100 (README, Torch API less
kernel): 16.5 us per GPU, and the copies of what arrived, which are operators here. In one domain it takes less than 0.1
ms more."""
_LAYOUT_NS = 13.0  # Nanoseconds per token in which DeepEP counts: 54 us of 4,096 on H100 (DeepEP issue 261)


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

    Where parts cut groups of experts, the number is that without groups, an upper limit.

    Args:
        experts: The experts of the model.
        parts: The number of equal parts into which the experts are divided: GPUs or NVLink domains.
    """
    groups = experts.groups or 1
    is_cut = parts % groups and groups % parts
    count, chosen = (1, 1) if is_cut else (groups, experts.group_top_k or 1)
    size, own = experts.count // count, experts.count // parts  # Numbers of experts of a group and of a part
    taken = _taken(experts.top_k, count, chosen, size)
    if own > size:  # A part of whole groups has none of the token's experts if it has none of the token's groups
        free = sum(p * comb(count - own // size, used) / comb(count, used) for (used, _), p in taken.items())
    else:
        free = sum(p * comb(size - own, number) / comb(size, number) for (_, number), p in taken.items())
    return parts * (1 - free)


@lru_cache
def _taken(top_k: int, groups: int, chosen: int, size: int) -> dict[tuple[int, int], float]:
    """Return the probabilities of a token's numbers of groups and of its experts in a given group.

    Args:
        top_k: The number of the token's experts.
        groups: The number of groups.
        chosen: The maximum number of the token's groups.
        size: The number of experts of a group.
    """
    taken = {(0, 0): 1.0}
    for place in range(top_k):  # of the token's experts, in descending order of their scores
        after: defaultdict[tuple[int, int], float] = defaultdict(float)
        for (used, number), probability in taken.items():
            is_used, can_add = number > 0, used < chosen
            # Experts that may come next: of unused groups, of the given group, and of other groups in use
            fresh = can_add * (groups - used - (not is_used)) * size
            given = (is_used or can_add) * (size - number)
            others = (used - is_used) * size - (place - number)
            share = probability / (fresh + given + others)
            after[used + 1, number] += share * fresh
            after[used + (not is_used), number + 1] += share * given
            after[used, number] += share * others
        taken = {state: probability for state, probability in after.items() if probability}
    return taken


def announced(shard: Shard) -> Items:
    """Return the items by which GPUs and hosts learn, before the dispatch of a forward pass, what will arrive.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    # HybridEP gathers each token's choice of experts, a byte per expert (csrc/hybrid_ep, metadata_preprocessing); the
    # others gather numbers of tokens per expert (token_dispatcher.py; csrc/kernels, notify_dispatch). The backward pass
    # knows them already.
    plan, experts = shard.plan, shard.experts
    if plan.ep == 1 or plan.imbalance:
        return []
    size = shard.routed_rows * experts.count if plan.dispatcher == "hybridep" else experts.count * COUNT_BYTES
    gather = GroupCollective("router/ep:all-gather", CollectiveCommType.ALL_GATHER, size, "ep")
    if plan.fused_experts or plan.capacity:  # numbers of tokens stay on the GPU, or are known
        return [gather]
    # The host waits for them to size buffers and products (fused_a2a.py, non_blocking; experts.py, tokens_per_expert)
    tokens = shard.routed_rows * (plan.ep if plan.domain_members < plan.ep else 0)
    prepared_ns = {"hybridep": _PREPARED_NS * tokens, "deepep": _LAYOUT_NS * shard.routed_rows}
    return [gather, *reads_number(plan, "router/host", round(prepared_ns.get(plan.dispatcher, 0) / 1000))]


def copied(shard: Shard, tokens: ExpertTokens, *, is_fp8: bool = False) -> Operators:
    """Return the operators that copy a GPU's tokens before they are sent, or that sum their results that came back.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        tokens: The numbers of tokens that the GPU exchanges.
        is_fp8: Whether they prepare a dispatch in FP8 (`dispatch_dtype`).
    """
    values = shard.routed_rows * shard.model.hidden
    cast = (Operator("quantise", (values, 1, 1, 0), "fp8"),) if is_fp8 else ()
    # DeepEP and HybridEP read tokens where they are, and sum results as they arrive
    rows = (_rows(shard, shard.routed_rows + sum(tokens.sent), is_fp8=is_fp8),) if shard.plan.sends_copies else ()
    return (*cast, *rows)


def sorted_by_expert(shard: Shard, tokens: ExpertTokens, *, is_fp8: bool = False) -> Operators:
    """Return the operators that make rows of arrived tokens, sorted by expert, or that undo this.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        tokens: The numbers of tokens that the GPU exchanges.
        is_fp8: Whether a dispatch in FP8 brought them (`dispatch_dtype`).
    """
    rows = tokens.received * shard.plan.etp
    if not shard.plan.sends_copies:
        copies = copies_per_token(shard.experts, shard.plan.ep) / shard.experts.top_k
        return (_rows(shard, rows + round(rows * copies), is_fp8=is_fp8),)
    # With one expert per GPU, what arrives is sorted already
    is_sorted = shard.plan.ep in {1, shard.experts.count}
    return () if is_sorted else (_rows(shard, 2 * rows, is_fp8=is_fp8),)


def row_bytes(shard: Shard, *, is_fp8: bool) -> int:
    """Return the bytes of a token, or of its result or a gradient, as GPUs exchange it.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        is_fp8: Whether it is a token that is dispatched in FP8 (`dispatch_dtype`).
    """
    if not is_fp8:
        return shard.model.hidden * shard.value_bytes
    return shard.model.hidden + -(-shard.model.hidden // _VALUES_PER_SCALE_BYTE)


def moved(shard: Shard, name: str, tokens: ExpertTokens, *, is_fp8: bool = False) -> tuple[Items, tuple[str, ...]]:
    """Return the collectives that bring tokens to their experts' GPUs or results back, and the keys to wait for.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the items' names: "dispatch" or "combine".
        tokens: The numbers of tokens that the GPU exchanges.
        is_fp8: Whether they dispatch in FP8 (`dispatch_dtype`).
    """
    if not any(tokens.sent) or shard.plan.ep == 1:
        return [], ()
    if shard.plan.sends_copies:
        received = (tokens.sent[shard.expert_rank],) * shard.plan.ep
        sent, received = (tokens.sent, received) if name == "dispatch" else (received, tokens.sent)
        return exchange(shard, name, sent, received, is_even=tokens.is_even, is_fp8=is_fp8), ()
    return _once_per_gpu(shard, name, tokens, row_bytes(shard, is_fp8=is_fp8))


def _once_per_gpu(shard: Shard, name: str, tokens: ExpertTokens, token_bytes: int) -> tuple[Items, tuple[str, ...]]:
    """Return what `moved` returns, if a GPU receives one copy of a token however many of its experts the token has."""
    plan, experts, members = shard.plan, shard.experts, shard.plan.domain_members
    kept = sum(tokens.sent) / (shard.routed_rows * experts.top_k)  # below 1 where a capacity drops tokens
    size_once = kept * shard.routed_rows * token_bytes
    size = round(copies_per_token(experts, plan.ep) * size_once)
    hop = GroupCollective(f"{name}/ep:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "ep")
    if members == plan.ep:
        return [hop], ()
    domains = copies_per_token(experts, plan.ep // members)
    network = hop._replace(name=f"{hop.name}-network", bytes=round(domains * size_once), family=NETWORK)
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


def exchange(
    shard: Shard,
    name: str,
    sent: tuple[int, ...],
    received: tuple[int, ...],
    *,
    is_even: bool,
    is_fp8: bool = False,
) -> Items:
    """Return the all-to-all of an expert-parallel group; empty for a group of one.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        name: The first part of the item's name.
        sent: The number of tokens that the GPU sends to each member.
        received: The number of tokens that the GPU receives from each member.
        is_even: Whether all members send and receive equally many tokens.
        is_fp8: Whether they dispatch in FP8 (`dispatch_dtype`).
    """
    if shard.plan.ep == 1:
        return []
    size = sum(sent) * row_bytes(shard, is_fp8=is_fp8)
    splits = ((), ()) if is_even else (sent, received)
    return [GroupCollective(f"{name}/ep:all-to-all", CollectiveCommType.ALL_TO_ALL, size, "ep", splits=splits)]


def _rows(shard: Shard, rows: int, *, is_fp8: bool) -> Operator:
    """Return a permutation that reads and writes `rows` rows in total, in FP8 or as activations."""
    return Operator("permute", (-(-rows // 2), shard.model.hidden), "fp8" if is_fp8 else shard.activation_dtype)
