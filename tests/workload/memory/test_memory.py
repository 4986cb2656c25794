"""Memory of a plan, against ZeRO, Megatron's tables and Korthikanti et al. (arXiv 2205.05198); what is offloaded."""

import pytest
from hypothesis import given, strategies as st

from nadi.workload import WorkloadError
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.memory import does_not_fit, kv_cache_bytes_per_token, serving_estimate
from nadi.workload.generators.memory.estimate import PARTS, estimate, peak_bytes
from nadi.workload.generators.memory.states import layer_activations, states_of
from nadi.workload.generators.models import Experts, LatentAttention, Model, find, names, parameters
from nadi.workload.generators.training import parallel_plan, rules, step_end
from nadi.workload.generators.training.item_lists import Compute
from nadi.workload.generators.training.stages import Shard, pipeline_of
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload.training.small import GPT

GB = 10**9

PAPER = {  # table 3: heads, hidden, layers, pipeline, chunks, global batch, micro-batch; tensor parallelism 8
    "22B": (64, 6144, 48, 1, 1, 4, 4),
    "175B": (96, 12288, 96, 8, 3, 64, 1),
    "530B": (128, 20480, 105, 35, 3, 280, 1),
    "1T": (160, 25600, 128, 64, 1, 512, 1),
}


def gpt(**given):
    values = {"name": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocab": 1000, "sequence": 32, "dropout": True}
    return Model(**(values | given))


def of_layer(model, plan, *, has_experts=False):
    return layer_activations(model, rules.settle(model, plan), has_experts=has_experts)


@bounded(40)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 8), st.integers(1, 3), st.integers(1, 4))
def test_a_layer_keeps_what_table_2_says(t, sequences_of_4, b, width):
    model = gpt(hidden=16 * width, heads=4, sequence=4 * sequences_of_4)
    s, h, a = model.sequence, model.hidden, model.heads
    base = parallel_plan(f"tp{t},mb{b},attention=unfused")
    shared = base.model_copy(update={"sequence_parallel": True})
    plain, sharded = of_layer(model, base), of_layer(model, shared)
    assert plain.kept("none") == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)
    assert sharded.kept("none") == pytest.approx(s * b * h / t * (34 + 5 * a * s / h), rel=1e-12)
    assert plain.kept("selective") == pytest.approx(s * b * h * (10 + 24 / t), rel=1e-12)
    assert sharded.kept("selective") == pytest.approx(34 * s * b * h / t, rel=1e-12)
    assert plain.kept("full") == 2 * s * b * h
    assert plain.kept("full") + plain.again("full") == plain.kept("none")


@pytest.mark.parametrize("name", PAPER)
def test_models_need_more_than_80_gb_without_the_papers_techniques_and_less_with_them(name):
    """Figure 1."""
    heads, hidden, layers, pp, vpp, batch, micro_batch = PAPER[name]
    model = gpt(heads=heads, hidden=hidden, layers=layers, sequence=2048, vocab=51200)
    chunks = f",vpp{vpp}" if vpp > 1 else ""
    plan = parallel_plan(f"tp8,pp{pp}{chunks},mb{micro_batch},gb{batch},attention=unfused")
    present = plan.model_copy(update={"sequence_parallel": True, "recompute": "selective"})
    before, after = estimate(model, plan)[0], estimate(model, present)[0]
    framework = before.framework + before.buffers + before.loss
    assert before.total - framework > 80 * GB
    assert after.total - after.framework < 80 * GB
    assert 4.5 < before.activations / after.activations < 6.3  # "by 5x"


def test_the_core_is_most_of_what_a_layer_keeps():
    """Section 5: without it GPT-3 and MT-NLG keep 70 % and 65 % less."""
    for name, saved in (("175B", 0.70), ("530B", 0.65)):
        heads, hidden, *_ = PAPER[name]
        model = gpt(heads=heads, hidden=hidden, sequence=2048)
        kept = of_layer(model, parallel_plan("attention=unfused"))
        assert 1 - kept.kept("selective") / kept.kept("none") == pytest.approx(saved, abs=0.005)


def test_interleaving_holds_as_much_more_as_the_paper_says():
    model = gpt(layers=24)
    for pp, vpp in ((4, 2), (4, 3), (2, 6), (8, 3)):
        plan = rules.settle(model, parallel_plan(f"pp{pp},vpp{vpp},gb{8 * pp}"))
        chunks = pipeline_of(plan).in_flight(0)
        assert sum(chunks) / (pp * vpp) == pytest.approx(1 + (pp - 1) / (pp * vpp))


def order_of_1f1b(stage, pp, vpp, count):
    """Forward and backward steps of a stage, +chunk and ~chunk: as Megatron-Core's schedules have them."""
    chunk_of = [k // pp % vpp for k in range(count * vpp)]
    warm_up = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warm_up = min(warm_up, count * vpp)
    steps = chunk_of[:warm_up]
    done = 0
    for k in range(warm_up, count * vpp):
        steps += [chunk_of[k], ~(vpp - 1 - chunk_of[done])]
        done += 1
    return steps + [~(vpp - 1 - chunk_of[k]) for k in range(done, count * vpp)]


@bounded(60)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_micro_batches_in_flight_are_those_of_the_schedule_step_by_step(pp, vpp, rounds, data):
    if pp == 1:
        vpp = 1
    count, stage = pp * rounds, data.draw(st.integers(0, pp - 1))
    plan = parallel_plan(f"pp{pp},vpp{vpp},gb{count}")
    holds, most = [0] * vpp, 0
    for step in nonempty(order_of_1f1b(stage, pp, vpp, count)):
        holds[step if step >= 0 else ~step] += 1 if step >= 0 else -1
        assert min(holds) >= 0
        most = max(most, sum(holds))
    assert holds == [0] * vpp
    assert sum(pipeline_of(plan).in_flight(stage)) == most


def test_other_schedules_hold_what_their_papers_say():
    gpipe = parallel_plan("pp4,gb24,gpipe")
    assert pipeline_of(gpipe).in_flight(0) == pipeline_of(gpipe).in_flight(3) == (24,)
    assert [pipeline_of(parallel_plan("pp4,gb24")).in_flight(stage) for stage in range(4)] == [(4,), (3,), (2,), (1,)]
    assert max(pipeline_of(parallel_plan("pp4,gb24,zero-bubble")).in_flight(stage) for stage in range(4)) == (4,)
    dual = parallel_plan("pp4,gb24,dualpipe")
    assert [sum(pipeline_of(dual).in_flight(stage)) for stage in range(4)] == [5] * 4


def test_llama_keeps_tensor_by_tensor_what_its_layer_makes():
    model = find("llama3-8b")
    s, h, f, kv = 8192, 4096, 14336, 1024
    kept = of_layer(model, parallel_plan("dp1"))
    norms_and_their_outputs = 4 * 2 * s * h
    attention = 2 * s * (h + 2 * kv) + 2 * s * h
    assert kept.kept("selective") == norms_and_their_outputs + attention + 2 * s * 3 * f
    assert kept.again("selective") == 4 * 32 * s  # flash attention: one number for each head and row
    half = of_layer(model, parallel_plan("cp2"))
    assert 2 * half.kept("none") == kept.kept("none")


def test_more_heads_than_tensor_parallelism_are_kept_once_and_fewer_are_kept_by_all():
    model = find("llama3-8b")
    eight, sixteen = (of_layer(model, parallel_plan(f"tp{tp},sp")).kept("none") for tp in (8, 16))
    keys_and_values = 2 * 2 * 8192 * 128  # of one head, which 16 GPUs cannot share
    assert 16 * sixteen - 8 * eight == 8 * keys_and_values


def test_experts_keep_the_rows_that_come():
    experts = Experts(count=8, top_k=2, ffn=96)
    model = gpt(experts=experts, dropout=False, activation="swiglu", norm="rmsnorm", bias=False)
    dense = of_layer(model.model_copy(update={"ffn": 2 * 96}), parallel_plan("dp8"))
    routed = of_layer(model, parallel_plan("dp8,ep8"), has_experts=True)
    rows, scores = 2 * 32, 4 * 32 * 8
    assert routed.kept("none") - dense.kept("none") == scores + rows * 2 * 64  # the rows come as copies
    half = of_layer(model, parallel_plan("dp8,ep8,capacity=0.5"), has_experts=True)
    assert routed.kept("none") - half.kept("none") == rows // 2 * 2 * (64 + 3 * 96)


LATENT = LatentAttention(query_rank=24, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=6)
GATED = {"activation": "swiglu", "norm": "rmsnorm", "bias": False, "dropout": False}


def test_latent_attention_keeps_little_where_what_is_projected_up_is_made_anew():
    model = gpt(latent=LATENT, **GATED, ffn=48)
    kept = of_layer(model, parallel_plan("dp1"))
    tokens, heads = 32, 4
    compressed = 24 + 16 + 4
    modules = "core_attn+layernorm+mla_up_proj+mlp"
    assert kept.kept(modules) == 2 * tokens * (64 + 64 + compressed + heads * 6)
    up = heads * (12 + 12 + 6)
    assert kept.again("core_attn") == 4 * tokens * heads
    assert kept.again("layernorm") == 2 * tokens * 64  # Transformer Engine keeps what the MLP's fused norm returns
    assert kept.again("mla_up_proj") == 2 * tokens * (up + 24 + 16)
    assert kept.again("mlp") == 2 * tokens * (64 + 3 * 48)
    assert kept.again(modules) == sum(kept.again(module) for module in modules.split("+"))


def test_modules_of_experts_keep_what_megatron_says_they_keep():
    """Routed experts get 2 of 8 rows of each token; one shared expert of width 40; 8-bit products keep 1 byte."""
    experts = Experts(count=8, top_k=2, ffn=96, shared=1, shared_ffn=40)
    model = gpt(experts=experts, latent=LATENT, **GATED)
    for dtype, size in (("bf16", 2), ("fp8", 1)):
        kept = of_layer(model, parallel_plan(f"dp8,ep8,dtype={dtype}"), has_experts=True)
        tokens, rows = 32, 64
        routed, shared = 4 * tokens * 8 + size * rows * (64 + 3 * 96), size * tokens * 3 * 40
        assert kept.again("moe_act") == size * rows * 96
        assert kept.again("shared_experts") == shared
        assert kept.again("moe") == kept.again("moe+moe_act+shared_experts") == routed + shared
        assert kept.again("layernorm") == 2 * size * tokens * 64
        assert kept.again("moe_act+layernorm+shared_experts") == size * (rows * 96 + 2 * tokens * 64) + shared


def test_a_clamp_keeps_its_result_unless_experts_are_fused_or_their_activation_is_recomputed():
    model = gpt(experts=Experts(count=8, top_k=2, ffn=96), **GATED)
    clamped = model.model_copy(update={"clamped_activation": True})

    def more(plan, recompute="none"):
        with_clamp, without = (of_layer(m, parallel_plan(plan), has_experts=True) for m in (clamped, model))
        return with_clamp.kept(recompute) - without.kept(recompute)

    assert more("dp8,ep8") == 64 * 2 * 2 * 96  # rows of both halves in 16 bits
    assert more("dp8,ep8", "moe_act") == more("dp8,ep8,fp8,fused_experts=true") == 0


@pytest.mark.parametrize(("dtype", "again"), [("bf16", ("k", "o", "w3")), ("fp8", ())])
def test_per_op_keeps_the_results_of_every_other_product(dtype, again):
    """torchtitan's SelectiveAC saves all of wq, wk, wv, wo, w1, w3, w2 but every second, needed or not, and the core.

    In FP8 these products are torch._scaled_mm, which it saves always.
    """
    model, (s, h, f, kv) = find("llama3-8b"), (8192, 4096, 14336, 1024)
    columns = {"q": h, "k": kv, "v": kv, "o": h, "w1": f, "w3": f, "w2": h}
    kept = layer_activations(model, rules.settle(model, parallel_plan(f"dp8,dtype={dtype}"), "fsdp"), has_experts=False)
    core = (2 if dtype == "bf16" else 1) * s * h + 4 * 32 * s
    assert kept.kept("per-op") == 2 * s * (h + sum(columns.values()) - sum(columns[name] for name in again)) + core
    assert kept.again("per-op") == kept.kept("none") - 2 * s * h - core


A_CARD = 80 * GB


@pytest.mark.parametrize(("zero", "published"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zeros_example(zero, published):
    """Figure 1 of arXiv 1910.02054: 7.5 billion parameters, 64 GPUs, 16 bytes a parameter."""
    plan = parallel_plan(f"dp64,zero{zero},grad_dtype=fp16,dtype=fp16")
    assert states_of(7_500_000_000, 64, plan).total / GB == pytest.approx(published, abs=0.05)


@pytest.mark.parametrize(
    ("plan", "whole", "shared"),
    [("", 18, 0), ("zero1", 6, 12), ("zero1,dtype=fp32", 8, 8), ("zero2", 2, 16), ("zero3,grad_dtype=bf16", 0, 16)],
)
def test_bytes_of_a_parameter_are_those_of_megatrons_and_deepspeeds_docs(plan, whole, shared):
    found = states_of(10**6, 8, parallel_plan(f"dp8,{plan}")).total
    assert found == (whole + shared / 8) * 10**6


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("megatron")])
def test_every_row_of_megatrons_table_fits_into_80_gb(name):
    model = find(name)
    for plan in nonempty(model.plans):
        assert does_not_fit(model, parallel_plan(plan), A_CARD) == ""
        without = parallel_plan(plan).model_copy(update={"recompute": "none", "attention": "unfused"})
        assert estimate(model, without)[0].activations > 5 * estimate(model, parallel_plan(plan))[0].activations


def test_llama_3_405b_fits_on_h100_as_it_was_trained_without_recomputation():
    """Section 3.3.2 of arXiv 2407.21783: 8K tokens without activation checkpointing, gradients sharded."""
    model = find("llama3-405b")
    for text in nonempty(model.plans):
        assert does_not_fit(model, parallel_plan(text), A_CARD, "fsdp") == ""
    unsharded = parallel_plan(model.plans[0].replace("zero2", "zero1"))
    assert "does not fit: stage 1 needs" in does_not_fit(model, unsharded, A_CARD)


def test_deepseek_v3_fits_on_h800_as_it_was_trained():
    model = find("deepseek-v3")
    plan = parallel_plan(model.plans[0])
    assert peak_bytes(model, plan) <= 80 << 30
    assert peak_bytes(model, plan.model_copy(update={"recompute": "none"})) > 80 << 30


def test_what_does_not_fit_is_told_with_the_nearest_plan_that_does():
    model = find("llama3-70b")
    said = does_not_fit(model, parallel_plan("tp8,pp2,dp4"), A_CARD)
    assert said.startswith("does not fit: stage 0 needs 132.9 GiB of 74.5 (activations 56.0, optimizer 49.3, ")
    nearest = said.split("nearest that fits: ")[1]
    assert peak_bytes(model, parallel_plan(nearest)) <= A_CARD
    assert parallel_plan(nearest).gpus == 64
    assert does_not_fit(find("llama3-405b"), parallel_plan("dp1"), A_CARD).endswith("no plan near it fits")


def test_a_plan_that_breaks_a_rule_is_refused():
    with pytest.raises(WorkloadError, match="tp is 6"):
        estimate(find("llama3-70b"), parallel_plan("tp6"))


plans = st.builds(
    "tp{},pp{},dp{},mb{},{},{}".format,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from(["recompute=none", "recompute=selective", "recompute=full"]),
    st.sampled_from(["1f1b", "gpipe", "zero-bubble", "dualpipe"]),
)


@bounded(60)
@given(plans, st.sampled_from(["llama3-8b", "mixtral-8x7b", "gpt3-13b", "deepseek-v2"]))
def test_what_saves_memory_never_costs_any(text, name):
    model = find(name)
    plan = parallel_plan(text).model_copy(update={"sequence_parallel": True})
    if rules.first_broken(model, plan):
        return
    found = estimate(model, plan)
    assert all(getattr(stage, part) >= 0 for stage in nonempty(found) for part in PARTS)
    copies = 2 if plan.pipeline_schedule == "dualpipe" else 1
    least = copies * parameters(model) * 2 / plan.tp  # some are held by every GPU, and the vocabulary is padded
    assert least * 0.999 <= sum(stage.weights for stage in found) <= least * plan.tp * 1.1
    for saving in ({"zero": 1}, {"recompute": "full"}):
        other = estimate(model, plan.model_copy(update=saving))
        for one, less in nonempty(zip(found, other, strict=True)):
            assert less.weights + less.gradients + less.optimizer <= one.weights + one.gradients + one.optimizer
            assert less.activations <= one.activations + one.buffers


@pytest.mark.parametrize(("name", "kib"), [("llama3-70b", 327.680), ("llama3-405b", 516.096), ("deepseek-v3", 70.272)])
def test_the_kv_cache_of_a_token_is_as_published(name, kib):
    """Table 1 of DeepSeek's ISCA 2025 paper (arXiv 2505.09343), in thousands of bytes; the first is Qwen-2.5 72B's."""
    assert kv_cache_bytes_per_token(find(name)) == kib * 1000


def test_serving_holds_weights_and_the_cache_of_its_stage():
    model = find("llama3-70b")
    found = serving_estimate(model, parallel_plan("tp8,pp2"), tokens_of_pass=2048)
    assert kv_cache_bytes_per_token(model, parallel_plan("tp8,pp2"), 40) == 40 * 2 * 128 * 2
    assert sum(stage.weights for stage in found) * 8 == pytest.approx(2 * parameters(model), rel=0.002)
    # every GPU of the group has the whole cache of latent attention
    assert kv_cache_bytes_per_token(find("deepseek-v3"), parallel_plan("tp8,ep8,fp8,pp61"), 1) == 576


@pytest.mark.parametrize("what", ["optimizer", "parameters", "activations"])
def test_what_is_offloaded_lies_on_the_host(what):
    model = find("llama3-8b")
    plan = parallel_plan("dp8,zero3")
    (before,), (after,) = (
        estimate(model, each, "deepspeed") for each in (plan, plan.model_copy(update={"offload": (what,)}))
    )
    part = {"parameters": "weights"}.get(what, what)
    gone = getattr(before, part) - getattr(after, part)
    assert gone > 0.9 * getattr(before, part)
    assert before.host == 0
    assert after.host >= gone
    assert before.total - after.total == gone


STEP = Compute("step", (Operator("optimizer", (10**6, 28), "fp16"),))


@pytest.mark.parametrize(("dtype", "weight_bytes", "gradient_bytes"), [("fp16", 2, 2), ("bf16", 2, 4), ("fp32", 4, 4)])
def test_zero_offload_moves_weights_and_gradients_once_a_step(dtype, weight_bytes, gradient_bytes):
    """Section 3.1 of arXiv 2101.06840: gradients and weights of 2 bytes, each once a step."""
    gradient = "fp16" if gradient_bytes == 2 else "fp32"
    plan = parallel_plan(f"dp4,zero2,grad_dtype={gradient},dtype={dtype},offload=optimizer")
    store, step, load = step_end.step(Shard(GPT, plan), 10**6, STEP)
    assert (store.bytes, store.loads) == (gradient_bytes * 10**6, False)
    assert (load.bytes, load.loads) == (weight_bytes * 10**6, True)
    assert step.needs == (store.key,)
    assert step.on_host_micros > 0


def test_an_optimizer_on_the_gpu_moves_nothing():
    assert step_end.step(Shard(GPT, parallel_plan("dp4,zero2")), 10**6, STEP) == [STEP]
