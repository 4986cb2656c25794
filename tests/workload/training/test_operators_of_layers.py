"""Operators of units: which products are in FP8, and what dropout and biases read and write."""

import pytest

from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.item_lists import Compute
from nadi.workload.generators.training.stages import Shard, chunks
from nadi.workload.generators.training.units import units
from tests.workload.training.small import GPT, LLAMA, MIXTRAL


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


@pytest.mark.parametrize("sp", ["", ",sp"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_dropout_reads_and_writes_masks_and_biases_are_summed(attention, sp):
    """Beside what a model without them does, in bytes of 16-bit values and masks of one byte (Megatron-LM)."""
    bare = GPT.model_copy(update={"bias": False, "dropout": False})
    both = GPT.model_copy(update={"bias": True, "dropout": True})
    plan = f"tp2,mb2,gb2,attention={attention}{sp}"

    def moved(model, direction):
        return sum(
            operator.bytes
            for unit, way, _, operator in of_units(model, plan)
            if unit in {"attention", "mlp"} and way == direction
        )

    tokens, h, tp, layers = 2 * GPT.sequence, GPT.hidden, 2, GPT.layers
    rows = tokens // tp if sp else tokens
    scores = 2 * (GPT.heads // tp) * GPT.sequence**2 if attention == "unfused" else 0
    qkv = 3 * tokens * h // tp if attention == "unfused" else 0  # else its products add and sum the bias
    masks = 2 * rows * h  # of attention and MLP
    forward = masks + 4 * qkv + 5 * scores
    sums = 2 * (2 * rows * h + qkv + tokens * 4 * h // tp)
    backward = 5 * masks + sums + 5 * scores
    assert moved(both, "forward") - moved(bare, "forward") == layers * forward
    assert moved(both, "backward") - moved(bare, "backward") == layers * backward
