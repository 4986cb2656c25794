"""Rules of plans, keys that profiles of software fill in, and plans with adapters (LoRA)."""

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.et import NodeType
from nadi.workload import WorkloadError
from nadi.workload.collectives import ON_NVSWITCHES
from nadi.workload.compute import IN_STEPS, ComputeTimes, Operator, find_gpu, parse_operators
from nadi.workload.generators.memory import estimate
from nadi.workload.generators.models import Experts, LatentAttention, Model, architecture, find, operations, parameters
from nadi.workload.generators.training import attention, linear, parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.interference import copied_groups
from nadi.workload.generators.training.item_lists import READ_MICROS, Compute
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import chunk_weights, held, stage_weights, trained
from nadi.workload.generators.training.software import AUTO, profile, profile_names
from nadi.workload.generators.training.stages import (
    Shard,
    chunks,
    layers_of_output,
    layers_of_slots,
    micro_batches,
    padded_vocab,
)
from nadi.workload.program.choosing import CollectiveSettings
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, MIXTRAL, flops, sent

BROKEN = [
    ("gpt3-175b", "zero1", "inference", "zero is 1, expected 0, as nothing is trained"),
    ("gpt3-175b", "recompute=full", "inference", "recompute is full, expected none, as nothing is trained"),
]
"""tests/records has those of frameworks for training."""


@pytest.mark.parametrize(("model", "plan", "framework", "words"), BROKEN)
def test_a_broken_rule_is_named_with_the_nearest_valid_values(model, plan, framework, words):
    line = refused(WorkloadError, rules.check, find(model), parallel_plan(plan), framework)
    assert words in line
    assert line.startswith(f"model {model}, plan ")


GOOD = [
    ("gpt3-175b", "tp8,pp16,dp8", "megatron"),
    ("llama3-70b", "tp16,pp4,dp4", "megatron"),
    ("llama3-405b", "tp8,pp16,vpp8,uneven,dp4,gb64", "megatron"),
    ("deepseek-v3", "pp16,dp128,ep64,dualpipe,uneven", "megatron"),
    ("llama3-8b", "dp8", "fsdp"),
    ("llama3-8b", "dp8,zero3,offload=parameters+optimizer", "deepspeed"),
    ("llama3-8b", "tp4,pp2", "inference"),
]


@pytest.mark.parametrize(("model", "plan", "framework"), GOOD)
def test_a_good_plan_passes(model, plan, framework):
    rules.check(find(model), parallel_plan(plan), framework)


def test_valid_values_are_those_that_pass():
    assert rules.valid_values(find("llama-33b"), "tp") == (1, 2, 4)  # 13 divides the 52 heads, and not ffn
    assert rules.valid_values(find("llama3-70b"), "tp") == (1, 2, 4, 8, 16, 32, 64)
    assert rules.valid_values(find("mixtral-8x7b"), "ep") == (1, 2, 4, 8)
    assert rules.valid_values(find("gpt3-175b"), "ep") == ()
    assert rules.valid_values(find("megatron-529.6b"), "slots") == (1, 3, 5, 7, 15, 21, 35, 105)


@pytest.mark.parametrize(
    ("model", "plan", "batch"),
    [
        ("gpt3-175b", "tp8,pp16,dp8", 1536),
        ("gpt3-175b", "tp8,pp16,dp7", 4 * 16 * 7),
        ("gpt3-175b", "tp8,pp12,vpp2,dp5", 4 * 12 * 5),
        ("gpt3-175b", "dp5,gb10", 10),
        ("llama3-8b", "dp8,mb2", 4 * 8 * 2),
    ],
)
def test_the_batch_is_the_published_one_where_it_divides(model, plan, batch):
    settled = rules.settle(find(model), parallel_plan(plan))
    assert settled.global_batch == batch
    assert settled.sequence == find(model).sequence
    assert settled.schedule == parallel_plan(plan).pipeline_schedule
    assert rules.settle(find(model), settled) == settled


def test_llama_3_has_one_layer_less_on_the_first_and_the_last_stage():
    model = find("llama3-405b")
    plain = chunks(model, parallel_plan("tp8,pp16,uneven"))
    assert [sum(len(chunk.layers) for chunk in stage) for stage in plain] == [7, *[8] * 14, 7]
    interleaved = chunks(model, parallel_plan("tp8,pp16,vpp8,uneven"))
    assert [len(chunk.layers) for chunk in interleaved[0]] == [0, *[1] * 7]
    assert [len(chunk.layers) for chunk in interleaved[15]] == [*[1] * 7, 0]
    assert interleaved[3][2].layers == range(2 * 16 + 3 - 1, 2 * 16 + 3)


def test_vocabularies_are_padded_as_megatron_does():
    assert padded_vocab(find("gpt3-175b"), parallel_plan("tp8")) == 51200
    assert padded_vocab(find("gpt3-175b"), ParallelPlan()) == 50304


divisors = st.sampled_from([1, 2, 4, 8])


@st.composite
def cases(draw):
    heads = draw(st.sampled_from([4, 8, 12]))
    latent = st.builds(
        LatentAttention, query_rank=st.sampled_from([0, 6]), key_value_rank=st.just(5), nope_dim=st.just(4),
        rope_dim=st.just(2), value_dim=st.just(3),
    )  # fmt: skip
    experts = st.builds(
        Experts, count=st.sampled_from([4, 8]), top_k=st.integers(1, 4), ffn=st.sampled_from([8, 16]),
        shared=st.integers(0, 1), first_dense=st.integers(0, 3),
    )  # fmt: skip
    has_latent = draw(st.booleans())
    model = Model(
        name="any", layers=draw(st.integers(1, 24)), hidden=heads * 4, heads=heads,
        kv_heads=0 if has_latent else draw(st.sampled_from([1, 2, 4])), ffn=draw(st.sampled_from([16, 24])),
        vocab=draw(st.integers(1, 3000)), sequence=64, tied_embeddings=draw(st.booleans()),
        latent=draw(latent) if has_latent else None, experts=draw(st.none() | experts),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])), activation=draw(st.sampled_from(["gelu", "swiglu"])),
        positions=draw(st.sampled_from(["learned", "rotary"])), bias=draw(st.booleans()),
        mtp_layers=draw(st.integers(0, 1)),
    )  # fmt: skip
    schedule = draw(st.sampled_from(["auto", "gpipe", "1f1b", "zero-bubble", "dualpipe"]))
    plan = ParallelPlan(
        tp=draw(divisors), pp=draw(st.integers(1, 6)), dp=draw(divisors), cp=draw(st.sampled_from([1, 2])),
        ep=draw(divisors) if model.experts else 1, etp=draw(st.sampled_from([1, 2])) if model.experts else 1,
        vpp=draw(st.integers(1, 3)) if schedule == "auto" else 1, schedule=schedule, uneven=draw(st.booleans()),
        micro_batch=draw(st.integers(1, 2)), sequence_parallel=True,
    )  # fmt: skip
    return model, plan


def owners(part, model, plan, rank):
    """Which of a part's equal pieces a GPU of a stage holds, and into how many it is cut; ranks as in Megatron."""
    tp = rank % plan.tp
    if part.split == "tp":
        return {tp}, plan.tp
    if part.split == "qkv":  # query heads, and the heads of keys and values that they need
        heads, others = model.heads, model.key_value_heads
        own = range(tp * heads // plan.tp, (tp + 1) * heads // plan.tp)
        needed = {head // (heads // others) for head in own}
        return {*own, *(heads + i for i in needed), *(heads + others + i for i in needed)}, heads + 2 * others
    if part.split == "experts":
        inner = rank % plan.etp
        outer = rank // plan.etp % plan.ep
        return {outer * plan.etp + inner}, plan.ep * plan.etp
    return {0}, 1


@bounded(150)
@given(cases())
def test_every_plan_that_passes_spreads_all_layers_and_all_parameters(case):
    model, plan = case
    if rules.first_broken(model, plan):
        return
    plan = rules.settle(model, plan)
    stages = chunks(model, plan)
    copies = 2 if plan.pipeline_schedule == "dualpipe" else 1
    layers = sorted(layer for stage in stages for chunk in stage for layer in chunk.layers)
    assert layers == sorted(copies * list(range(model.layers)))
    assert sum(chunk.is_first for stage in stages for chunk in stage) == copies
    assert sum(chunk.is_last for stage in stages for chunk in stage) == copies
    assert all(any(chunk.layers for chunk in stage) for stage in nonempty(stages))
    *sizes, last = layers_of_slots(model.layers, plan.pp * plan.vpp, layers_of_output(model))
    assert all(max(last, *sizes) - size <= (1 if plan.uneven else 0) for size in sizes)
    assert micro_batches(plan) * plan.dp * plan.micro_batch == plan.global_batch
    unpadded = sum(
        architecture.total(
            part for part in chunk_weights(model, plan, chunk) if part.part not in {"embedding", "output"}
        )
        for stage in stages
        for chunk in stage
    )
    expected = architecture.parameters(model) + architecture.mtp_parameters(model)
    expected -= (1 if model.tied_embeddings else 2) * model.vocab * model.hidden
    assert unpadded == copies * expected
    gpus = plan.tp * plan.cp * plan.dp
    for stage in range(plan.pp):
        parts = list(stage_weights(model, plan, stage))
        on_gpus = [0] * gpus
        for part in nonempty(parts):
            pieces = [owners(part, model, plan, rank) for rank in range(gpus)]
            assert set().union(*(own for own, _ in pieces)) == set(range(pieces[0][1]))
            for rank, (own, of) in nonempty(enumerate(pieces)):
                assert part.size % of == 0
                on_gpus[rank] += part.size // of * len(own)
        assert on_gpus == [held(model, plan, stage).total] * gpus


def test_most_random_plans_of_the_property_pass_or_fail_for_several_reasons():
    """So that the property above does not hold for want of plans."""
    found = []

    @bounded(450)
    @given(cases())
    def count(case):
        found.append(rules.first_broken(*case))

    count()
    assert found.count("") >= len(found) / 5
    assert len({broken.split(" ")[0] for broken in found}) >= 4


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_has_keys_of_plans_and_says_where_they_come_from(name):
    known = profile(name, "")
    assert known.summary
    assert known.source
    plan = ParallelPlan(software=name)
    settled = rules.settle(GPT, plan, known.framework)
    others = {key: value for key, value in known.plan.items() if key != "sequence_parallel"}  # tp1 switches that off
    assert {key: getattr(settled, key) for key in others} == others


def test_keys_of_the_user_win():
    open_plan = rules.settle(GPT, parallel_plan("software=megatron-2021,dp2"))
    assert (open_plan.attention, open_plan.dtype, open_plan.async_tp) == ("unfused", "fp16", False)
    given = rules.settle(GPT, parallel_plan("software=megatron-2021,dp2,attention=flash,dtype=bf16"))
    assert (given.attention, given.dtype, given.async_tp) == ("flash", "bf16", False)


def test_without_a_name_the_profile_is_the_current_one_of_the_framework():
    for framework, name in (("megatron", "megatron-core"), ("fsdp", "fsdp"), ("deepspeed", "deepspeed")):
        assert profile(AUTO, framework) == profile(name, framework)
    assert profile(AUTO, "inference") is None


def test_unknown_profiles_and_those_of_other_frameworks_are_refused():
    with pytest.raises(WorkloadError, match=r"plan: software: found 'nccl'; expected one of auto, deepspeed, "):
        parallel_plan("software=nccl")
    with pytest.raises(WorkloadError, match="software is fsdp-2023 with megatron, expected a profile of megatron"):
        rules.check(GPT, parallel_plan("software=fsdp-2023,dp2"))
    with pytest.raises(WorkloadError, match="dtype is fp4, expected bf16, fp16, fp32 or fp8"):
        rules.check(GPT, parallel_plan("fp4"), "inference")


def test_all_gpus_wait_for_their_hosts_once_per_step():
    traces = generate(GPT, parallel_plan("dp2,pp2,host_ms=7,steps=3")).traces
    for trace in traces:
        hosts = [row for row, name in enumerate(trace.names) if name.endswith("optimizer/host")]
        assert [bool(trace.is_cpu_op[row]) for row in hosts] == [True] * 3
        loop_us = profile(AUTO, "megatron").host.loop_us
        assert trace.duration_micros[hosts].tolist() == [7000 + READ_MICROS + loop_us] * 3
    assert not any("/host" in name for name in generate(GPT, parallel_plan("dp2,without=host")).traces[0].names)


@pytest.mark.parametrize(("copies", "parts"), [("tensors", {"in", "out"}), ("gradients", {"in"}), ("none", set())])
def test_fsdp_copies_what_its_profile_says(copies, parts):
    names = generate(GPT, parallel_plan(f"dp2,copies={copies}"), "fsdp").traces[0].names
    assert {found[1] for name in names if (found := re.search(r"/copy-(\w+)$", name))} == parts


@pytest.mark.parametrize("attention", ["flash-1", "triton"])
def test_old_attention_is_slower_on_every_gpu(attention):
    trace = generate(LLAMA, parallel_plan(f"attention={attention}")).traces[0]
    texts = [trace.operator_lists[number] for number in np.unique(trace.operators[trace.type == NodeType.COMP_NODE])]
    assert any(f"{attention}-attention " in text for text in texts)
    assert any(f"{attention}-attention-backward " in text for text in texts)
    for gpu in ("a100", "h100"):
        times = ComputeTimes(find_gpu(gpu), vendor_tables=False)
        for backward in ("", "-backward"):
            new = Operator(f"attention{backward}", (4, 16, 16, 2048, 2048, 128, 128, 1))
            old = new._replace(kind=f"{attention}-{new.kind}")
            assert old.flops == new.flops
            assert times.time_ps(old) > 1.2 * times.time_ps(new)


def test_copy_engines_replace_nccl_and_nothing_that_the_user_chose():
    by_nccl = CollectiveSettings({"all-gather": ON_NVSWITCHES, "all-reduce": ON_NVSWITCHES})
    assert by_nccl.algorithm_of("all-gather", is_copied=True) == "direct:proto=none"
    assert by_nccl.algorithm_of("all-gather") == by_nccl.algorithm_of("all-reduce", is_copied=True) == ON_NVSWITCHES
    assert CollectiveSettings({"all-gather": "ring"}).algorithm_of("all-gather", is_copied=True) == "ring"


def test_fp4_is_for_products_and_the_casts_of_their_operands_only():
    trace = generate(LLAMA, parallel_plan("fp4,tp2,sp")).traces[0]
    kinds = {(part.split()[0], part.split()[-1]) for text in trace.operator_lists for part in text.split("; ") if part}
    assert ("gemm", "fp4") in kinds
    assert {dtype for kind, dtype in kinds if kind not in {"gemm", "quantise", "optimizer"}} <= {"bf16", "fp32"}


def casts(plan):
    """Return the shapes of quantisations, and the values of transposes, in the backward pass of a layer's MLP."""
    shard = Shard(LLAMA, rules.settle(LLAMA, parallel_plan(f"tp4,{plan}")))
    items, _ = linear.matrices_backward(shard, "mlp", LLAMA.ffn_width // 4)
    operators = [operator for item in items if isinstance(item, Compute) for operator in item.operators]
    return [
        operator.shape if operator.kind == "quantise" else operator.shape[0]
        for operator in operators
        if operator.kind in {"quantise", "transpose"}
    ]


def test_what_is_quantised_by_the_scaling_of_a_plan():
    """Gradient and input, down and up; the gradient of down and the input of up are gathered, cast in quarters."""
    tokens = LLAMA.sequence
    h, both, width = (tokens * each for each in (LLAMA.hidden, 2 * LLAMA.ffn_width // 4, LLAMA.ffn_width // 4))
    assert casts("fp8,sp") == [h, width, (both, 1, 1, 1), h]
    current = [(h // 4, 2, 1, 0), h, (width, 2, 1, 0), width, (both, 2, 1, 1), (h // 4, 2, 1, 0), h]
    assert casts("scaling=current,sp") == current
    assert casts("mxfp8,sp") == [(h // 4, 1, 2, 0), (width, 1, 2, 0), (both, 1, 2, 0), (h // 4, 1, 2, 0)]
    assert casts("nvfp4,sp") == [(h // 4, 2, 2, 0), (width, 2, 2, 0), (both, 2, 2, 0), (h // 4, 2, 2, 0)]
    assert casts("nvfp4") == [(h, 2, 2, 0), (width, 2, 2, 0), (both, 2, 2, 0), (h, 2, 2, 0)]
    assert casts("sp") == []


def test_scaling_implies_fp8_and_nvfp4_has_no_userbuffers():
    assert parallel_plan("mxfp8").dtype == parallel_plan({"scaling": "current"}).dtype == "fp8"
    assert parallel_plan(str(parallel_plan("tp2,mxfp8"))) == parallel_plan("tp2,mxfp8")
    assert rules.settle(LLAMA, parallel_plan("tp2,sp,nvfp4,overlap_tp=true")).overlap_tp is False
    assert rules.settle(LLAMA, parallel_plan("tp2,sp,mxfp8,overlap_tp=true")).overlap_tp is True
    for plan, text in (
        ("fp4,scaling=current", "scaling is current with dtype fp4, expected delayed, or fp8"),
        ("attention_dtype=fp8,attention=unfused", "attention_dtype is fp8 with attention unfused"),
        ("fp8_output=true", "fp8_output is true, expected false, or megatron with fp8"),
    ):
        with pytest.raises(WorkloadError, match=text):
            rules.check(LLAMA, rules.settle(LLAMA, parallel_plan(plan)))


def test_products_of_early_libraries_are_slower_in_fp8_on_blackwell():
    early, today = (
        {
            op.kind
            for trace in generate(LLAMA, parallel_plan(plan)).traces
            for text in trace.operator_lists
            for op in parse_operators(text)
        }
        for plan in ("fp8,software=megatron-mlperf-graphs", "fp8,software=megatron-mlperf-graphs,libraries=today")
    )
    assert early - today == {"early-gemm"}
    assert today - early == {"gemm"}
    product = Operator("gemm", (8192, 8192, 8192), "fp8")
    for gpu, share in (("gb200", 0.82), ("gb300", 1.0), ("h100", 1.0)):
        times = ComputeTimes(find_gpu(gpu), pace=IN_STEPS, vendor_tables=False)
        assert times.time_ps(product) / times.time_ps(product._replace(kind="early-gemm")) == pytest.approx(share)


def test_attention_in_fp8_quantises_its_operands_and_is_faster_on_blackwell():
    operators = {
        dtype: attention.pieces(Shard(find("llama3-8b"), parallel_plan(f"attention_dtype={dtype}")), 8192, 8192, 32, 8)
        for dtype in ("auto", "fp8")
    }
    cast, core = operators["fp8"]
    assert (cast.shape, core) == ((8192 * 128 * (32 + 16), 2, 1, 0), operators["auto"][0]._replace(dtype="fp8"))
    times = ComputeTimes(find_gpu("gb300"), vendor_tables=False)
    assert sum(map(times.time_ps, operators["fp8"])) < times.time_ps(operators["auto"][0])


LLAMA_2_70B_ADAPTERS = 80 * 16 * (8192 + 10240 + 8192 + 8192)  # layers, rank, A and B of qkv, A and B of the output


@pytest.mark.parametrize("plan", ["tp1", "tp2,sp", "tp4,pp2,sp", "tp8,pp4,vpp2,gb4"])
def test_adapters_of_llama_2_70b_have_the_published_number_of_parameters(plan):
    """44,564,480 trainable parameters with rank 16 and targets qkv_proj and o_proj."""
    assert LLAMA_2_70B_ADAPTERS == 44_564_480
    model, settled = find("llama2-70b"), parallel_plan(f"{plan},lora=16")
    assert sum(trained(model, settled, stage).total for stage in range(settled.pp)) * settled.tp == LLAMA_2_70B_ADAPTERS
    assert trained(model, parallel_plan("tp4"), 0) == held(model, parallel_plan("tp4"), 0)


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", ["dp2,mb2", "tp4,overlap_tp=true", "tp2,pp2,vpp2,cp2,gb8", "tp2,fp8,pp4"])
def test_the_backward_pass_of_frozen_matrices_has_the_operations_of_their_forward_pass(model, plan):
    """6 operations per parameter of adapters and token, 4 per frozen one, and attention's core three times."""
    settled = rules.settle(model, parallel_plan(f"{plan},lora=8,attention=unfused,sp"))
    tokens = settled.global_batch * settled.sequence
    padded = model.model_copy(update={"vocab": padded_vocab(model, settled)})
    core = settled.global_batch * model.layers * operations.core_flops(model, settled.sequence)
    matrices = operations.training_flops(padded, settled.global_batch, settled.sequence) // 3 - core
    columns = (model.heads + 2 * model.key_value_heads) * model.query_dim
    adapters = model.layers * 8 * (2 * model.hidden + columns + model.heads * model.value_dim)
    assert flops(generate(model, settled)) == 2 * matrices + 3 * core + 6 * adapters * tokens


def test_operations_of_a_sample_are_those_of_nvidias_configuration():
    """MODEL_TFLOP_PER_SAMPLE=2598 of NVIDIA's config_common.sh: within the 5 % that depend on how attention counts."""
    counted = operations.training_flops(find("llama2-70b"), 1, 8192, causal=True, lora=16)
    assert counted / 1e12 == pytest.approx(2598, rel=0.05)


def test_nothing_is_computed_or_reduced_for_frozen_weights():
    settled = rules.settle(LLAMA, parallel_plan("tp2,sp,dp4,gb8,zero1,lora=8"))
    traces = generate(LLAMA, settled)
    names = {name for trace in traces.traces for name in trace.names}
    assert not any("-weights" in name or name.endswith("backward/mb0/embedding") for name in names)
    count = trained(LLAMA, settled, 0).total * settled.gpus
    found = sent(traces)
    assert sum(size for (name, _), size in found.items() if name == "dp:reduce-scatter") == 4 * count
    assert sum(size for (name, _), size in found.items() if name == "dp:all-gather") == 2 * count // settled.dp


@pytest.mark.parametrize(("sp", "exchanged"), [(",sp", "tp:all-to-all"), ("", "tp:all-gather")])
def test_adapters_exchange_what_their_splits_need(sp, exchanged):
    """Between A and B the rank's values; after the output's B the hidden values. The frozen ones' remain."""
    plan = rules.settle(LLAMA, parallel_plan(f"tp4,dp2,gb8{sp},lora=8"))
    plain, found = (sent(generate(LLAMA, each)) for each in (plan.model_copy(update={"lora": 0}), plan))
    tokens = plan.global_batch * plan.sequence * LLAMA.layers * 2  # bytes of a value of each token and layer
    rank, hidden = tokens * 8, tokens * LLAMA.hidden
    gathered = rank + (hidden if exchanged == "tp:all-gather" else 0)
    assert found["tp:all-gather", "forward"] - plain["tp:all-gather", "forward"] == gathered
    assert found["tp:all-reduce", "forward"] - plain["tp:all-reduce", "forward"] == rank * plan.tp
    assert found["tp:all-reduce", "backward"] - plain["tp:all-reduce", "backward"] == 2 * rank * plan.tp
    assert found["tp:all-to-all", "forward"] == found["tp:all-to-all", "backward"] == (hidden if sp else 0)
    assert found["tp:reduce-scatter", "backward"] == plain["tp:reduce-scatter", "backward"]
    # gradients of outputs are gathered, inputs are not gathered again for the gradients of weights
    assert found["tp:all-gather", "backward"] == (2 * hidden if sp else 0)


def test_collectives_of_adapters_are_nccls_even_with_userbuffers():
    traces = generate(LLAMA, parallel_plan("tp4,sp,lora=8,overlap_tp=true"))
    assert traces.copied == {"tp"}
    assert traces.families["adapters"] == traces.families["tp"]


def test_memory_holds_frozen_weights_once_and_states_of_adapters_only():
    model, plan = find("llama2-70b"), "tp4,dp2,gb8,seq8192,sp,zero1"
    (bf16,), (fp8,) = (estimate(model, parallel_plan(f"{plan},lora=16{dtype}")) for dtype in ("", ",fp8"))
    frozen, adapters = held(model, parallel_plan(plan), 0).total, LLAMA_2_70B_ADAPTERS // 4
    assert frozen == pytest.approx(parameters(model) / 4, rel=1e-3)
    assert (bf16.weights, fp8.weights) == (2 * (frozen + adapters), frozen + 2 * adapters)
    assert bf16.gradients == fp8.gradients == 4 * adapters
    assert bf16.optimizer == fp8.optimizer == 12 * adapters // 2
    (full,) = estimate(model, parallel_plan(f"{plan},fp8"))
    assert fp8.total < full.total / 2
    # a layer keeps neither the outputs of its norms nor the input of the MLP's last matrix, but inputs of adapters
    tokens = 8192 * 80
    kept = tokens * (2 * 8192 // 4 + 28672 // 4) - 2 * tokens * (8192 + 8192 // 4)
    assert full.activations - fp8.activations == kept


@pytest.mark.parametrize(
    ("model", "text", "framework", "expected"),
    [
        (LLAMA, "lora=8", "fsdp", "with fsdp, expected 0 (only megatron has it)"),
        (LLAMA, "lora=6,tp4", "megatron", "lora is 6, expected a multiple of tp; nearest 4 and 8"),
        (LLAMA, "lora=8,pp2,zero-bubble,gb8", "megatron", "with schedule zero-bubble, expected 1f1b, gpipe"),
        (LLAMA, "lora=8,pp2,gb8,defer_embedding_wgrad=2", "megatron", "frozen weights have no gradients"),
        (DEEPSEEK, "lora=8", "megatron", "with latent attention or multi-token prediction"),
    ],
)
def test_plans_that_are_not_modelled_are_refused(model, text, framework, expected):
    assert expected in rules.first_broken(model, parallel_plan(text), framework)


@pytest.mark.parametrize(
    ("framework", "plan"), [("megatron", "zero1"), ("megatron", ""), ("fsdp", ""), ("deepspeed", "zero3")]
)
def test_parts_of_a_step_are_left_out(framework, plan):
    def named(without):
        text = f"dp4,gb8,{plan}{without}"
        names = [name for trace in generate(LLAMA, parallel_plan(text), framework).traces for name in trace.names]
        return {name for name in names if "/dp:" in name}, {name for name in names if "/optimizer/" in name}

    replicas, ends = named("")
    assert replicas
    assert "step0/optimizer/step" in ends
    assert named(",without=dp") == (set(), {name for name in ends if "/dp:" not in name})
    assert {name for name in named(",without=optimizer+host")[1] if "/dp:" not in name} == set()
    assert named(",without=dp+optimizer+host") == (set(), set())


def test_userbuffers_are_left_out():
    plan = parallel_plan("tp2,sp,overlap_tp=true")
    assert copied_groups("megatron", plan) == {"tp"}
    assert copied_groups("megatron", parallel_plan(f"{plan},without=userbuffers")) == set()
