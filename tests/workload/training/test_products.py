"""Products of the units of generated traces, over all GPUs, against the closed form of the operations of the model."""

import pytest

from nadi.workload.compute.operators import PRODUCTS
from nadi.workload.generators.models import architecture, find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.item_lists import Compute
from nadi.workload.generators.training.stages import Shard, chunks, padded_vocab
from nadi.workload.generators.training.units import units

CASES = [
    ("gpt3-175b", "tp8,pp8,dp2,attention=unfused"),
    ("gpt3-175b", "tp8,pp8,dp2"),
    ("megatron-7.5b", "tp4,dp2,mb2"),
    ("llama3-8b", "tp4,pp2,vpp4,dp2,sp"),
    ("llama3-405b", "tp8,pp16,uneven,sp"),
    ("mixtral-8x7b", "tp2,ep4,dp8,pp2,sp"),
    ("qwen3-30b-a3b", "ep8,dp8"),
    ("deepseek-v2", "tp4,pp4,ep8,dp8,sp,uneven"),
    ("deepseek-v3", "pp4,ep8,dp8,uneven"),
]


def products(items):
    return sum(
        operator.flops
        for item in items
        if isinstance(item, Compute)
        for operator in item.operators
        if operator.kind in PRODUCTS
    )


@pytest.mark.parametrize(("name", "text"), CASES)
def test_products_of_all_gpus_are_the_models_operations(name, text):
    model = find(name)
    plan = rules.settle(model, parallel_plan(text))
    shard = Shard(model, plan)
    forward = backward = 0
    for own in chunks(model, plan):
        has_embedding = any(chunk.is_first for chunk in own)
        for chunk in own:
            for unit in units(shard, chunk, has_embedding=has_embedding):
                forward += plan.tp * products(unit.forward)
                backward += plan.tp * products(unit.backward)
    causal = plan.attention == "flash"  # unfused attention works out all pairs and masks some
    sequences, tokens = plan.micro_batch, plan.sequence
    padding = architecture.output_flops(model, tokens, padded_vocab(model, plan)) - architecture.output_flops(
        model, tokens
    )
    once = architecture.training_flops(model, sequences, tokens, causal=causal) // 3
    expected = once + sequences * padding * (1 + model.mtp_layers)
    assert forward == pytest.approx(expected, rel=1e-12)
    core = sequences * (model.layers + model.mtp_layers) * architecture.core_flops(model, tokens, causal=causal)
    scores_again = core / 2 if causal else 0  # flash attention's backward pass has five products in place of four
    assert backward == pytest.approx(2 * expected + scores_again, rel=1e-12)
