"""Dispatchers of tokens: copies by enumeration, published durations, hops between domains, pairs of passes."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from nadi import topologies
from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
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
from nadi.workload.generators.training.stages import layers_of_output, layers_of_slots, pipeline_of
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


def _moved(plan, name, model=QWEN):
    """The items of a dispatch or combine of one layer in the forward pass."""
    plan = rules.settle(model, parallel_plan(plan))
    items = experts.forward(stages.Shard(model, plan), model.layers - 1)
    return [item for item in items if isinstance(item, GroupCollective) and item.name.startswith(name)]


@pytest.mark.parametrize(("ranks", "published_ms"), [(16, 1.64), (32, 3.66), (64, 6.2)])
def test_hops_over_the_network_take_as_long_as_published(ranks, published_ms):
    """Kernels of HybridEP on H100 (DeepEP, branch hybrid-ep, README): 4,096 tokens of 7,168, top 8, 8 experts a GPU.

    The table has bytes per second with the own host's copies, of which 58.7 MB leave for each other host.
    """
    layer = Experts(count=8 * ranks, top_k=8, ffn=2048)
    model = DEEPSEEK.model_copy(update={"hidden": 7168, "experts": layer, "sequence": 4096})
    hops = _moved(f"ep{ranks},dp{ranks},mb1,gb{ranks},seq4096,nvlink_domain=8,dispatcher=hybridep", "dispatch", model)
    network, own, forwarded = nonempty(hops)
    hosts = ranks // 8
    network_ms = network.bytes * (hosts - 1) / hosts / 50e9 * 1e3
    own_ms, forwarded_ms = (hop.bytes * 7 / 8 / 450e9 * 1e3 for hop in (own, forwarded))
    assert forwarded.needs == (network.key,)
    assert max(network_ms, own_ms) + forwarded_ms == pytest.approx(published_ms, rel=0.12)


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


@pytest.mark.parametrize("plan", ["pp4,1f1b,gb16", "pp4,vpp2,gb16", "gb6"])
def test_pairs_are_of_different_micro_batches_and_hold_one_more(plan):
    plain, paired = (
        pipeline_of(rules.settle(DEEPSEEK, parallel_plan(f"{plan},overlap_ep={overlaps}")))
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


def test_pairs_hide_the_exchange_but_not_their_kernels_multiprocessors():
    """One host: what remains of the exchange with pairs is less than half, and computation takes at least as long."""
    cluster = clusters.find("dgx-h100-superpod")
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
    assert compute_slowdown("megatron", gb200, 16, in_a_row=True, dispatch_sms=32) == round(148 / (148 - 32), 3)
    plan = "ep4,dp4,mb1,gb8,dispatcher=hybridep,overlap_ep="
    for overlaps, sms in (("true", 32), ("false", 0)):
        made = generate(DEEPSEEK, parallel_plan(plan + overlaps))
        write_set(tmp_path / overlaps, made)
        assert read_set(tmp_path / overlaps).dispatch_sms == made.dispatch_sms == sms
        assert read_set(tmp_path / overlaps).leaves_sms
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
    assert list(layers_of_slots(model.layers, slots, layers_of_output(model))) == sizes


@pytest.mark.parametrize(
    ("machine", "plan", "dispatcher", "overlaps", "fused"),
    [
        ((8, "h100"), "ep8,dp8", "deepep", False, False),
        ((8, "h100"), "ep8,dp8,fp8", "deepep", False, False),
        ((8, "h100"), "ep16,pp2,vpp2,dp16", "deepep", True, False),
        ((72, "gb200"), "ep8,dp8,fp8", "hybridep", True, True),
        ((72, "gb200"), "ep8,dp8", "hybridep", False, False),
        ((72, "gb200"), "ep8,dp8,fp8,overlap_ep=false,dispatcher=all-to-all", "all-to-all", False, True),
        ((72, "gb200"), "dp8,fp8", "auto", None, None),
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
        (QWEN, "ep8,dp8,fused_experts=true", "fused_experts with bf16, expected fp8"),
        (find("llama3-8b"), "dp8,overlap_ep=true", "overlap_ep is true, expected false, as the model has no experts"),
    ],
)
def test_plans_without_an_exchange_to_overlap_are_refused(model, plan, message):
    with pytest.raises(WorkloadError, match=message):
        rules.check(model, parallel_plan(plan))


def test_pairs_need_memory_for_one_more_micro_batch():
    plans = (rules.settle(QWEN, parallel_plan(f"ep8,dp8,mb1,gb64,overlap_ep={word}")) for word in ("false", "true"))
    alone, paired = (max(stage.activations for stage in estimate(QWEN, plan)) for plan in plans)
    assert 1.5 < paired / alone <= 2
