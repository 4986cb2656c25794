"""What the traces' units say that a GPU holds is what memory is counted by: two lists of tensors, written apart."""

import pytest

from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.parameters import held
from nadi.workload.generators.training.stages import Shard, chunks
from nadi.workload.generators.training.units import units
from tests.nonempty import nonempty

CASES = [
    ("gpt3-175b", "tp8,pp8,dp2"),
    ("gpt3-13b", "tp4,pp2,vpp2,dp2"),
    ("megatron-1.7b", "dp4"),
    ("llama3-8b", "tp16,pp2,dp2,sp"),
    ("llama3-405b", "tp8,pp16,vpp8,uneven,dp2"),
    ("mixtral-8x7b", "tp2,ep4,etp2,dp8,pp2,sp"),
    ("qwen3-30b-a3b", "ep8,dp8,pp4"),
    ("qwen3-8b", "tp4,pp2"),
    ("deepseek-v2", "tp4,pp4,ep8,dp8,sp,uneven"),
    ("deepseek-v3", "pp4,ep8,dp8,uneven"),
]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_units_have_the_parameters_that_a_stage_holds(name, text):
    model = find(name)
    plan = rules.settle(model, parallel_plan(text))
    assert rules.first_broken(model, plan) == ""
    shard = Shard(model, plan)
    for stage, own in nonempty(enumerate(chunks(model, plan))):
        has_embedding = any(chunk.is_first for chunk in own)
        tensors = [
            tensor
            for chunk in own
            for unit in units(shard, chunk, has_embedding=has_embedding)
            for tensor in unit.tensors
        ]
        expected = held(model, plan, stage)
        assert sum(tensor.size for tensor in tensors if tensor.is_expert) == expected.experts
        assert sum(tensor.size for tensor in tensors if not tensor.is_expert) == expected.dense
