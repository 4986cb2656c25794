"""Operations of a step over all GPUs are those of closed forms."""

import pytest
from hypothesis import given

from nadi.workload.generators.models import find
from nadi.workload.generators.models.architecture import training_flops
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.rules import settle
from nadi.workload.generators.training.stages import padded_vocab
from tests.budgets import bounded
from tests.workload.training.counted import flops
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, MIXTRAL, cases


@pytest.mark.parametrize(
    ("recompute", "passes", "of_cores", "of_heads"),
    [("full", 96, 6, 16), ("none", 72, 6, 12), ("selective", 72, 4.5, 12)],
)
@pytest.mark.parametrize("plan", ["tp8,pp4,dp8,gb64", "tp8,pp4,dp8,gb64,vpp2,sp", "tp2,dp2,mb2,gb8"])
def test_megatron_models_have_the_published_operations(recompute, passes, of_cores, of_heads, plan):
    """F = 96 B s l h^2 (1 + s/6h + V/16lh) (arXiv 2104.04473, equation 3), which recomputes all layers."""
    model = find("megatron-18.4b")
    settled = settle(model, parallel_plan(f"{plan},recompute={recompute},attention=unfused"))
    s, layers, h = model.sequence, model.layers, model.hidden
    expected = passes * settled.global_batch * s * layers * h**2
    expected *= 1 + s / (of_cores * h) + padded_vocab(model, settled) / (of_heads * layers * h)
    assert flops(generate(model, settled)) == pytest.approx(expected, rel=1e-12)


@bounded(80)
@given(cases())
def test_any_plan_has_the_operations_of_the_model(case):
    model, plan, framework = case
    if plan.attention != "unfused":
        return
    if plan.capacity or (model.latent is not None and plan.tp > 1 and not plan.sequence_parallel):
        return  # tokens that are dropped, and matrices that each of the group has whole
    padded = model.model_copy(update={"vocab": padded_vocab(model, plan)})
    batch = plan.global_batch
    expected = training_flops(padded, batch, plan.sequence, recompute=plan.recompute, lora=plan.lora)
    assert flops(generate(model, plan, framework)) == expected * plan.steps


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
@pytest.mark.parametrize(
    "context", ["cp1", "cp2", "cp4", "cp2,context=all-gather", "cp4,context=all-gather", "cp2,context=a2a"]
)
def test_flash_attention_does_what_the_mask_leaves(model, context):
    """Forward the pairs that the mask leaves, backward two and a half times as many; matrices three times."""
    plan = settle(model, parallel_plan(f"tp2,sp,dp2,{context},recompute=selective"))
    padded = model.model_copy(update={"vocab": padded_vocab(model, plan)})
    batch, s = plan.global_batch, plan.sequence
    all_three = training_flops(padded, batch, s, causal=True)
    core = training_flops(padded, batch, s, causal=True, recompute="selective") - all_three
    assert flops(generate(model, plan)) == all_three + core * 3 // 2
