"""What a GPU holds is what the model's matrices say."""

import pytest
from hypothesis import given

from nadi.workload.generators.models import find, names
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.parameters import trained
from nadi.workload.generators.training.rules import settle
from nadi.workload.generators.training.stages import Shard, chunks
from nadi.workload.generators.training.units import units
from tests.budgets import bounded
from tests.workload.training.small import cases


def tensors(model, plan, stage):
    """Parameters of a stage's GPUs: of experts and others."""
    own = chunks(model, plan)[stage]
    has_embedding = any(chunk.is_first for chunk in own)
    found = [unit.tensors for chunk in own for unit in units(Shard(model, plan), chunk, has_embedding=has_embedding)]
    return tuple(sum(t.size for own in found for t in own if t.is_expert == is_expert) for is_expert in (False, True))


@bounded(40)
@given(cases())
def test_a_stage_has_the_parameters_of_its_layers(case):
    model, plan, _ = case
    for stage in range(plan.pp):
        expected = trained(model, plan, stage)
        assert tensors(model, plan, stage) == (expected.dense, expected.experts)


@pytest.mark.parametrize("name", names())
def test_of_all_models_of_the_library(name):
    model = find(name)
    plan = settle(model, parallel_plan("tp1"))
    expected = trained(model, plan, 0)
    assert tensors(model, plan, 0) == (expected.dense, expected.experts)
