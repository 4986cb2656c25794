"""Operators of units: which products are in FP8."""

import pytest

from tests.workload.training.small import LLAMA, MIXTRAL
from workload.models.model import Model
from workload.training import parallel_plan, rules
from workload.training.items import Compute
from workload.training.shard import Shard
from workload.training.stages import chunks
from workload.training.units import units


def of_units(model: Model, text: str):
    """Name of the unit, pass, name of the computation and operator, of all units of the first stage."""
    plan = rules.settle(model, parallel_plan(text))
    (chunk,) = chunks(model, plan)[0]
    return [
        (unit.name, direction, item.name, operator)
        for unit in units(Shard(model, plan), chunk, has_embedding=True)
        for direction, items in (("forward", unit.forward), ("backward", unit.backward))
        for item in items
        if isinstance(item, Compute)
        for operator in item.operators
    ]


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=lambda model: model.name)
def test_neither_the_output_layer_nor_a_router_is_multiplied_in_fp8(model):
    """Transformer Engine's layers are; Megatron-LM's output layer and router are no layers of it."""
    found = {
        (direction, name, operator.dtype)
        for _, direction, name, operator in of_units(model, "tp2,dp2,gb4,sp,fp8")
        if operator.kind.endswith("gemm")
    }
    plain = {(direction, name) for direction, name, dtype in found if dtype == "bf16"}
    ends = {"head", "head-weights", *(("router", "router-weights") if model.experts else ())}
    assert {name for _, name in plain} == ends
    assert ("forward", "attention", "fp8") in found
    assert {dtype for _, name, dtype in found if name not in ends} == {"fp8"}
