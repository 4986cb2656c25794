"""Dispatchers of tokens: copies by enumeration, published durations, hops between domains, pairs of passes."""

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from nadi import topologies
from nadi.studies.planner.step import step_time, target_machine
from nadi.workload import read_set, write_set
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.memory import estimate
from nadi.workload.generators.models import find
from nadi.workload.generators.models.architecture import Experts
from nadi.workload.generators.training import experts, parallel_plan, rules, stages
from nadi.workload.generators.training.dispatchers import copies_per_token
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.interference import compute_slowdown
from nadi.workload.generators.training.item_lists import Compute, GroupCollective
from nadi.workload.generators.training.stage import Stage
from tests.et.parents import parents_of
from tests.nonempty import nonempty
from tests.workload.training.small import DEEPSEEK

QWEN = find("qwen3-30b-a3b")
TWO_HOSTS = "ep16,dp16,mb1,gb32,nvlink_domain=8,dispatcher=deepep"


@pytest.mark.parametrize(("count", "top_k", "parts"), [(8, 2, 4), (8, 3, 2), (6, 2, 6), (8, 8, 4)])
def test_a_token_goes_to_each_part_that_has_one_of_its_experts(count, top_k, parts):
    size = count // parts
    sets = list(combinations(range(count), top_k))
    mean = sum(len({expert // size for expert in chosen}) for chosen in sets) / len(sets)
    assert copies_per_token(Experts(count=count, top_k=top_k, ffn=1), parts) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "top_k", "groups", "group_top_k", "parts"),
    [
        *((6, 2, 3, 2, parts) for parts in (1, 3, 6)),
        *((6, 3, 3, 2, parts) for parts in (3, 6)),
        *((6, 3, 6, 3, parts) for parts in (2, 3, 6)),
        *((6, 4, 6, 4, parts) for parts in (2, 3)),
        *((6, 3, 2, 1, parts) for parts in (2, 6)),
        (6, 4, 3, 2, 3),
    ],
)
def test_a_token_goes_to_parts_of_its_groups_only(count, top_k, groups, group_top_k, parts):
    """All orders of scores: the groups with the highest ones, of their experts the best, and the parts of these."""
    size, reached = count // groups, []
    for order in permutations(range(count)):  # experts in descending order of their scores
        chosen = list(dict.fromkeys(expert // size for expert in order))[:group_top_k]
        own = [expert for expert in order if expert // size in chosen][:top_k]
        reached.append(len({expert // (count // parts) for expert in own}))
    experts = Experts(count=count, top_k=top_k, ffn=1, groups=groups, group_top_k=group_top_k)
    assert copies_per_token(experts, parts) == pytest.approx(sum(reached) / len(reached), rel=1e-12)


@pytest.mark.parametrize("parts", [2, 4, 8, 16, 64])
def test_deepseek_v3s_choice_of_groups_reaches_as_many_parts(parts):
    """Its groups are those with the largest sums of their 2 best scores, of sigmoids; here of random ones."""
    experts, tokens = find("deepseek-v3").experts, 10_000
    scores = 1 / (1 + np.exp(-np.random.default_rng(1).standard_normal((tokens, experts.count))))
    by_group = scores.reshape(tokens, experts.groups, -1)
    best = np.sort(by_group, axis=2)[:, :, -(experts.top_k // experts.group_top_k) :].sum(axis=2)
    limit = np.sort(best, axis=1)[:, [-experts.group_top_k]]
    allowed = np.where((best >= limit)[:, :, np.newaxis], by_group, -1.0).reshape(tokens, -1)
    own = np.argsort(allowed, axis=1)[:, -experts.top_k :] // (experts.count // parts)
    mean = np.mean([len(set(token)) for token in own.tolist()])
    assert copies_per_token(experts, parts) == pytest.approx(mean, rel=0.01)


def test_parts_that_cut_groups_are_counted_without_groups():
    experts = find("deepseek-v2").experts  # 160 experts in 8 groups of 20
    alone = experts.model_copy(update={"groups": 0, "group_top_k": 0})
    assert copies_per_token(experts, 20) == copies_per_token(alone, 20)
    assert copies_per_token(experts, 40) < copies_per_token(alone, 40)


def _moved(plan, name, model=QWEN):
    plan = rules.settle(model, parallel_plan(plan))
    items = experts.forward(stages.Shard(model, plan), model.layers - 1)
    return [item for item in items if isinstance(item, GroupCollective) and item.name.startswith(name)]


def _published_hops(ranks, dispatcher, experts):
    """Hops of 4,096 tokens of 7,168 values with 8 experts each, as DeepEP's and HybridEP's authors measured them."""
    model = DEEPSEEK.model_copy(update={"hidden": 7168, "experts": experts, "sequence": 4096})
    plan = f"ep{ranks},dp{ranks},mb1,gb{ranks},seq4096,nvlink_domain=8,dispatcher={dispatcher}"
    network, own, forwarded = nonempty(_moved(plan, "dispatch", model))
    return network, own, forwarded


@pytest.mark.parametrize(
    ("ranks", "dtype", "published_gbps"),
    [
        *((16, "", 71.71), (32, "", 57.69), (64, "", 49.97)),
        *((16, ",fp8,dispatch_dtype=fp8", 68.48), (32, ",fp8,dispatch_dtype=fp8", 55.35)),
        (64, ",fp8,dispatch_dtype=fp8", 46.52),
    ],
)
def test_hops_over_the_network_take_as_long_as_published(ranks, dtype, published_gbps):
    """Kernels of HybridEP on H100 with 16 multiprocessors and 8 experts a GPU (DeepEP, branch hybrid-ep, README).

    The table has GB/s of a copy per host, the own host included; FP8 has 4 bytes of scale for 128 values.
    """
    layer = Experts(count=8 * ranks, top_k=8, ffn=2048)
    network, own, forwarded = _published_hops(ranks, f"hybridep{dtype}", layer)
    hosts = ranks // 8
    published_ms = network.bytes / published_gbps / 1e6
    network_ms = network.bytes * (hosts - 1) / hosts / 50e9 * 1e3
    own_ms, forwarded_ms = (hop.bytes * 7 / 8 / 450e9 * 1e3 for hop in (own, forwarded))
    assert forwarded.needs == (network.key,)
    assert own.bytes / (own.bytes + forwarded.bytes) == pytest.approx(1 / hosts)
    assert max(network_ms, own_ms) + forwarded_ms == pytest.approx(published_ms, rel=0.12)


def test_deepeps_published_time_needs_groups_of_experts():
    """DeepEP, docs/legacy.md: 64 H800, 256 experts, 4 of 8 groups, FP8: 51 GB/s of a copy per host, the own included.

    The dispatch takes longer than the network alone, at 50 GB/s, and less time than the network and NVLink in turn, at
    the 160 GB/s that the authors measured. Without groups the network alone would take longer.
    """
    grouped = find("deepseek-v3").experts
    network, own, forwarded = _published_hops(64, "deepep,fp8,dispatch_dtype=fp8", grouped)
    published_ms = network.bytes / 51e6
    network_ms, nvlink_ms = network.bytes * 7 / 8 / 50e6, (own.bytes + forwarded.bytes) * 7 / 8 / 160e6
    assert network_ms < published_ms < network_ms + nvlink_ms
    alone = grouped.model_copy(update={"groups": 0, "group_top_k": 0})
    assert _published_hops(64, "deepep,fp8,dispatch_dtype=fp8", alone)[0].bytes * 7 / 8 / 50e6 > published_ms


def _operators(items, name):
    """The kinds and shapes of operators of a layer's computations of a name."""
    return [
        (operator.kind, operator.shape, operator.dtype)
        for item in items
        if isinstance(item, Compute) and item.name == name
        for operator in item.operators
    ]


@pytest.mark.parametrize(
    "more", ["", ",scaling=current", ",mxfp8,fused_experts=true", ",imbalance=1", ",capacity=1", ",etp2"]
)
def test_dispatch_in_fp8_halves_the_forward_dispatch_alone(more):
    """With a scale of 4 bytes for 128 values a dispatched value has 1 + 1 / 32 bytes instead of 2."""
    exchanged, casts = {}, {}
    for dtype in ("auto", "fp8"):
        text = f"ep8,dp16,mb1,gb16,fp8,dispatcher=deepep,nvlink_domain=16,dispatch_dtype={dtype}{more}"
        shard = stages.Shard(QWEN, rules.settle(QWEN, parallel_plan(text)))
        passes = {"forward": experts.forward(shard, 1), "backward": experts.backward(shard, 1)}
        exchanged[dtype] = {
            (direction, item.name): item.bytes
            for direction, items in passes.items()
            for item in items
            if isinstance(item, GroupCollective) and item.family != "tp-cp"
        }
        casts[dtype] = {
            (direction, part): [each for each in _operators(items, part) if each[0] != "permute"]
            for direction, items in passes.items()
            for part in ("router", "experts", "experts-weights")
        }
    first = {
        key for key in exchanged["fp8"] if key[0] == "forward" and ("dispatch" in key[1] or "all-gather" in key[1])
    }
    first -= {("forward", "router/ep:all-gather")}
    assert len(first) == 1 + more.startswith(",etp")
    for key, size in nonempty(exchanged["auto"].items()):
        assert exchanged["fp8"][key] == pytest.approx(size * (33 / 64 if key in first else 1), rel=1e-6)
    plain, fp8 = casts["auto"], casts["fp8"]
    # Tokens are cast where they are; the experts' first product takes them, and its gradient has them by columns
    rows = 4096 * 8 * shard.plan.etp if "imbalance" not in more else experts.flow(shard, 1).received
    own, received = 4096 * 2048, rows * 2048
    assert fp8["forward", "router"] == [*plain["forward", "router"], ("quantise", (own, 1, 1, 0), "fp8")]
    parts = 16 if "current" in more else 1  # the maximum of each expert's values is found alone
    cast = plain["forward", "experts"][0]
    assert (cast[0], cast[1][0] * parts) == ("expert-quantise" if parts > 1 else "quantise", received)
    copies = [each for each in plain["forward", "experts"] if each[0] == "copies"]
    assert len(copies) == ("fused" in more)
    assert fp8["forward", "experts"] == plain["forward", "experts"][parts:]
    by_columns = ("elementwise", (received, 1, 1), "fp8")
    assert fp8["backward", "experts-weights"] == [by_columns, *plain["backward", "experts-weights"]]
    assert fp8["backward", "experts"] == plain["backward", "experts"]
    assert fp8["backward", "router"] == plain["backward", "router"]


def test_one_copy_per_host_crosses_the_network_and_one_per_gpu_arrives():
    """With 8 of 128 experts on 16 GPUs: a token has experts in both hosts but for 2 C(64, 8) / C(128, 8) of them."""
    network, own, forwarded = _moved(TWO_HOSTS, "dispatch")
    token_bytes = 4096 * 2048 * 2
    none = np.prod([(64 - i) / (128 - i) for i in range(8)])
    assert network.bytes == round(2 * (1 - none) * token_bytes)
    none = np.prod([(120 - i) / (128 - i) for i in range(8)])
    assert own.bytes + forwarded.bytes == round(16 * (1 - none) * token_bytes)
    assert sum(item.bytes for item in _moved(f"{TWO_HOSTS[:-6]}all-to-all", "dispatch")) == 8 * token_bytes


def test_groups_of_hops_are_a_hosts_gpus_and_those_with_the_same_place():
    families = stages.families(rules.settle(QWEN, parallel_plan(TWO_HOSTS)))
    assert sorted(families["ep-domain"]) == [tuple(range(8)), tuple(range(8, 16))]
    assert sorted(families["ep-network"]) == [(i, i + 8) for i in range(8)]


def test_expert_parallel_groups_that_domains_cut_unevenly_exchange_in_one_hop():
    plan = "ep16,dp16,mb1,gb16,nvlink_domain=6,dispatcher=deepep"
    assert [hop.family for hop in nonempty(_moved(plan, "dispatch"))] == ["ep"]
    assert "ep-domain" not in stages.families(rules.settle(QWEN, parallel_plan(plan)))


def test_gradients_of_weights_have_their_products_and_no_activation():
    plan = rules.settle(QWEN, parallel_plan("ep16,dp16,mb1,gb16"))
    items = experts.backward(stages.Shard(QWEN, plan), 0)
    own = next(item for item in items if isinstance(item, Compute) and item.name == "experts-weights")
    rows = 4096 * 8 // 8
    assert [(op.kind, op.shape) for op in own.operators] == [
        ("expert-gemm", (8, 2048, 768, rows)),
        ("expert-gemm", (8, 1536, 2048, rows)),
    ]


@pytest.mark.parametrize("gpu", ["h100", "gb200"])
def test_an_experts_product_takes_as_long_as_the_dense_one(gpu):
    times = ComputeTimes(find_gpu(gpu), pace=IN_STEPS, vendor_tables=False)
    dense = times.text_ps("gemm 2048x65536x6144 bf16")
    assert times.text_ps("expert-gemm 1x2048x65536x6144 bf16") == dense
    assert times.text_ps("expert-gemm 3x2048x65536x6144 bf16") == pytest.approx(3 * dense, rel=1e-9)


@pytest.mark.parametrize("plan", ["pp4,vpp2,gb16", "gb6"])
def test_pairs_are_of_different_micro_batches_and_hold_one_more(plan):
    plain, paired = (
        stages.pipeline_of(rules.settle(DEEPSEEK, parallel_plan(f"{plan},overlap_ep={overlaps}")))
        for overlaps in ("false", "true")
    )
    for stage in range(plain.stages):
        works = paired.order(stage)
        pairs = [(a, b) for a, b in pairwise(works) if a.is_paired]
        for forward, backward in nonempty(pairs):
            assert (forward.kind, backward.kind) == ("forward", "backward")
            assert (forward.micro_batch, forward.chunk) != (backward.micro_batch, backward.chunk)
        key = {(w.kind, w.micro_batch, w.chunk) for w in works}
        assert key == {(w.kind, w.micro_batch, w.chunk) for w in plain.order(stage)}
        assert len(works) == len(key)
        assert sum(paired.in_flight(stage)) == min(sum(plain.in_flight(stage)) + 1, 16 * plain.vpp)


def test_the_forward_pass_of_a_pair_runs_beside_the_backward_passes_first_exchange():
    """The order of Megatron-Core (core/models/common/model_chunk_schedule_plan.py): combine_bwd | pre_dispatch_fwd."""
    plan = rules.settle(QWEN, parallel_plan("ep8,dp8,mb1,gb32,overlap_ep=true,dispatcher=hybridep"))
    table = Stage(QWEN, plan, "megatron", 0).table()
    names = [table.names[row] for row in range(len(table))]
    exchange = names.index("step0/backward/mb0/layer47/dispatch/ep:all-to-all")
    attention = names.index("step0/forward/mb1/layer0/attention")
    waiting = names.index("step0/backward/mb0/layer47/experts")
    assert exchange < attention < waiting
    assert exchange not in parents_of(table, attention)


def _of_experts(plan):
    """The operators of the experts of one layer in both passes."""
    shard = stages.Shard(QWEN, rules.settle(QWEN, parallel_plan(plan)))
    items = [*experts.forward(shard, 0), *experts.backward(shard, 0)]
    found = [item for item in items if isinstance(item, Compute) and item.name == "experts"]
    return [op for item in nonempty(found) for op in item.operators]


def test_what_fused_products_save_is_copied_into_pages_and_back():
    plan, rows = "ep8,dp8,mb1,gb8,fp8,fused_experts=true", 4096 * 8
    saved_bytes = rows * ((2048 + 768) * 33 / 32 + 1536 * 2)  # operands in 8 bits with scales, the activation's input
    copies = [op for op in _of_experts(plan) if op.kind == "copies"]
    assert [op.bytes for op in copies] == pytest.approx([2 * saved_bytes] * 2, rel=1e-6)
    without = _of_experts(f"{plan},without=paging")
    assert not any(op.kind == "copies" for op in without)


# Kernels of PyTorch between the products of GPT-OSS's experts: name, bytes read and written per inner value (hidden and
# inner size are equal), and the number of values that are loaded one by one. A half is a view of every second row.
FORWARD_KERNELS = [
    ("clamp of the gate", 2, 2, 1), ("clamp of the linear half", 2, 2, 1), ("concatenation", 4, 4, 0),
    ("bias times probability", 0, 4, 1), ("addition to the output", 6, 4, 1), ("concatenation in FP32", 4, 4, 0),
    ("cast to BF16", 4, 2, 0),
]  # fmt: skip
BACKWARD_KERNELS = [
    ("cast to FP32", 2, 4, 1), ("cast of the output's gradient", 4, 2, 0), ("concatenation", 2, 2, 0),
    ("gradient times probability", 4, 4, 1), ("its sum", 4, 0, 0),
    ("gradient times bias", 4, 4, 1), ("its sum", 4, 0, 0),
    ("gate at most the limit", 2, 1, 1), ("selection", 3, 2, 1), ("at least", 2, 1, 1), ("at most", 2, 1, 1),
    ("both", 2, 1, 0), ("selection", 3, 2, 1), ("concatenation of both halves", 4, 4, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("direction", "kernels"), [(experts.forward, FORWARD_KERNELS), (experts.backward, BACKWARD_KERNELS)]
)
def test_biases_and_clamps_of_experts_are_kernels_of_pytorch(direction, kernels):
    model, plan = find("gpt-oss-120b"), parallel_plan("dp64,ep64,mb1,gb64")
    plain = model.model_copy(update={"clamped_activation": False, "bias": False})

    def between(model, plan):
        shard = stages.Shard(model, rules.settle(model, plan))
        found = [item for item in direction(shard, 0) if isinstance(item, Compute) and item.name == "experts"]
        return [op for item in nonempty(found) for op in item.operators if not op.kind.endswith("gemm")]

    added = between(model, plan)
    for op in between(plain, plan):
        added.remove(op)
    # The gradient of the first product's bias is a sum that the backward pass has beside the kernels above
    added = [op for op in added if op.shape[1:] != (1, 0)]
    values = 4096 * 4 * 2880
    single = [op for op in added if op.kind == "unvectorised"]
    assert sum(op.shape[0] * op.shape[1] for op in single) == values * sum(each[3] for each in kernels)
    together = [each for each in kernels if not each[3]]
    others = sum(op.bytes for op in added if op.kind == "elementwise")
    assert others == pytest.approx(values * sum(read + written for _, read, written, _ in together), rel=0.05)
    fused = parallel_plan("dp64,ep64,mb1,gb64,fp8,fused_experts=true")
    assert not any(op.kind == "unvectorised" for op in between(model, fused))


@pytest.mark.parametrize(("scaling", "casts"), [("current", 16), ("mxfp8", 1), ("delayed", 1)])
def test_each_experts_values_are_cast_alone_if_their_maximum_has_to_be_found(scaling, casts):
    operators = _of_experts(f"ep8,dp8,mb1,gb8,scaling={scaling},fused_experts=false")
    kind = "expert-quantise" if casts > 1 else "quantise"
    first = [op for op in operators if op.kind == kind and op.shape[0] * casts == 4096 * 8 * 2048]
    assert len(first) == casts


@pytest.mark.parametrize(
    ("extra", "waits"),
    [
        ("nvlink_domain=8,dispatcher=hybridep", [20 + 262]),  # 16 x 4,096 tokens in 4 ns each
        ("nvlink_domain=8,dispatcher=deepep", [20 + 53]),
        ("nvlink_domain=8,dispatcher=all-to-all", [20]),
        ("nvlink_domain=16,dispatcher=hybridep", [20]),
        ("dispatcher=hybridep,without=host", []),
        ("dispatcher=hybridep,fp8,fused_experts=true", []),
        ("capacity=1.5", []),
    ],
)
def test_hosts_wait_for_the_numbers_of_tokens(extra, waits):
    plan = rules.settle(QWEN, parallel_plan(f"ep16,dp16,mb1,gb16,{extra}"))
    items = experts.forward(stages.Shard(QWEN, plan), 0)
    assert [item.on_host_micros for item in items if isinstance(item, Compute) and item.on_host_micros] == waits


def test_pairs_hide_the_exchange_but_not_their_kernels_multiprocessors():
    """One host: what remains of the exchange with pairs is less than half, and computation takes at least as long."""
    cluster = topologies.clusters.find("dgx-h100-superpod")
    machine = target_machine(cluster, 8, ComputeTimes(find_gpu("h100"), pace=IN_STEPS, vendor_tables=False))

    def step(extra):
        plan = rules.settle(QWEN, parallel_plan(f"ep8,dp8,mb1,gb128,{extra}"))
        return step_time(machine, QWEN, plan, "megatron")

    alone, paired = step("overlap_ep=false"), step("overlap_ep=true")
    exposed = [each.of("ep") * each.step_ps for each in (alone, paired)]
    assert exposed[1] < exposed[0] / 2
    assert paired.step_ps < alone.step_ps
    hidden = exposed[0] - exposed[1]
    assert paired.step_ps > alone.step_ps - hidden  # beside the exchange computation is slower


def test_kernels_of_dispatchers_take_their_multiprocessors_from_computation(tmp_path):
    gb200 = find_gpu("gb200")
    assert compute_slowdown("megatron", gb200, 16, in_a_row=True) == 1
    beside = compute_slowdown("megatron", gb200, 16, in_a_row=True, dispatch_sms=32)
    assert beside == pytest.approx(0.75 * 148 / (148 - 32) + 0.25, abs=5e-4)
    waves = compute_slowdown("megatron", find_gpu("h100"), 16, in_a_row=True, dispatch_sms=24, leaves_sms=False)
    assert waves == 0.75 * 2 + 0.25
    plan = "ep4,dp4,mb1,gb8,dispatcher=hybridep,overlap_ep="
    for overlaps, sms in (("true", 32), ("false", 0)):
        made = generate(DEEPSEEK, parallel_plan(plan + overlaps))
        write_set(tmp_path / overlaps, made)
        assert read_set(tmp_path / overlaps).dispatch_sms == made.dispatch_sms == sms
        assert read_set(tmp_path / overlaps).leaves_sms == (overlaps == "false")
    assert generate(DEEPSEEK, parallel_plan(f"{plan}true,fp8,fused_experts=true")).leaves_sms
    assert not generate(DEEPSEEK, parallel_plan("ep4,dp4,mb1,gb8,overlap_ep=true")).leaves_sms
    write_set(tmp_path / "margins", generate(DEEPSEEK, parallel_plan(f"{plan}false,leaves_sms=false")))
    assert not read_set(tmp_path / "margins").leaves_sms


@pytest.mark.parametrize(
    ("name", "slots", "sizes"),
    [
        ("deepseek-v3", 16, [4] * 15 + [1]),
        ("deepseek-v3", 8, [8] * 7 + [5]),
        ("deepseek-v3", 4, [16] * 3 + [13]),
        ("kimi-k2", 16, [4] * 15 + [1]),
        ("kimi-k2", 4, [16] * 3 + [13]),
        ("llama3-405b", 128, [0] + [1] * 126 + [0]),
        ("llama3-405b", 16, [7] + [8] * 14 + [7]),
    ],
)
def test_layers_are_divided_as_nvidia_and_meta_did(name, slots, sizes):
    """Megatron-Bridge, recipes/deepseek and recipes/kimi; arXiv 2407.21783, section 3.3.2."""
    model = find(name)
    assert list(stages.layers_of_slots(model.layers, slots, stages.layers_of_output(model))) == sizes


@pytest.mark.parametrize(
    ("machine", "plan", "dispatcher", "overlaps", "fused"),
    [
        ((8, "h100"), "ep8,dp8", "deepep", False, False),
        ((8, "h100"), "ep8,dp8,fp8", "deepep", False, False),
        ((8, "h100"), "ep16,pp2,vpp2,dp16", "deepep", True, False),
        ((72, "gb200"), "ep8,dp8,fp8", "hybridep", True, True),
        ((72, "gb200"), "ep8,dp8,pp2,fp8", "hybridep", False, True),
        ((72, "gb200"), "ep8,dp8,pp2,vpp4,fp8", "hybridep", True, True),
        ((72, "gb200"), "ep8,dp8", "hybridep", False, False),
        ((72, "gb200"), "ep8,dp8,fp8,overlap_ep=false,dispatcher=all-to-all", "all-to-all", False, True),
        ((72, "gb200"), "dp8,fp8", "auto", None, True),
    ],
)
def test_open_keys_follow_the_machine(machine, plan, dispatcher, overlaps, fused):
    domain, gpu = machine
    settled = rules.settle(QWEN, parallel_plan(f"{plan},mb1"))
    settled = rules.on_machine(QWEN, settled, "megatron", rules.TrainingMachine(domain, find_gpu(gpu)))
    assert (settled.dispatcher, settled.overlap_ep, settled.fused_experts) == (dispatcher, overlaps, fused)


def test_the_machine_of_a_fabric_has_the_gpus_of_a_host():
    graph = topologies.build("dgx-h100:npus=16")
    assert rules.machine_of(graph, None) == rules.TrainingMachine(8, None)


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (QWEN, "ep8,dp8,overlap_ep=true,gpipe,pp2", "overlap_ep with schedule gpipe, expected 1f1b or interleaved"),
        (QWEN, "ep8,dp8,overlap_ep=true,pp2", "overlap_ep with pp 2 and vpp 1, expected vpp above 1"),
        (QWEN, "ep8,dp8,fused_experts=true", "fused_experts with bf16, expected fp8"),
        (find("llama3-8b"), "dp8,overlap_ep=true", "overlap_ep is true, expected false, as the model has no experts"),
        (
            QWEN,
            "ep8,dp8,fp8,dispatch_dtype=fp8",
            "dispatcher auto, expected deepep or hybridep, or dispatch_dtype=auto",
        ),
        (QWEN, "ep8,dp8,dispatcher=deepep,dispatch_dtype=fp8", "dispatch_dtype is fp8 with dtype bf16, expected fp8"),
        (find("llama3-8b"), "dp8,fp8,dispatch_dtype=fp8", "dispatch_dtype is fp8 with a model without experts"),
    ],
)
def test_plans_without_an_exchange_to_overlap_are_refused(model, plan, message):
    with pytest.raises(WorkloadError, match=message):
        rules.check(model, parallel_plan(plan))


def test_pairs_need_memory_for_one_more_micro_batch():
    plans = (rules.settle(QWEN, parallel_plan(f"ep8,dp8,mb1,gb64,overlap_ep={word}")) for word in ("false", "true"))
    alone, paired = (max(stage.activations for stage in estimate(QWEN, plan)) for plan in plans)
    assert 1.5 < paired / alone <= 2
