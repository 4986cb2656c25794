import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.workload import WorkloadError
from nadi.workload.generators.memory import does_not_fit, estimate, kv_cache_bytes_per_token, serving_estimate
from nadi.workload.generators.memory.estimate import PARTS, peak_bytes
from nadi.workload.generators.memory.states import states_of
from nadi.workload.generators.models import find, names, parameters
from nadi.workload.generators.training import parallel_plan, rules
from tests.budgets import bounded
from tests.nonempty import nonempty

GB = 10**9

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
