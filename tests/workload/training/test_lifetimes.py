"""Nodes say which activations they make for the backward pass and which they use last."""

from collections import Counter

import pytest

from nadi import et
from nadi.et.schema import AttributeProto
from nadi.workload.generators.memory.states import layer_activations
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.rules import settle
from nadi.workload.generators.training.stages import chunks, pipeline_of
from tests.nonempty import nonempty
from tests.workload.training.small import DEEPSEEK, GPT, MIXTRAL


def lifetimes(trace):
    """(step and micro-batch, tensor, bytes, whether it is made) in the order of computations."""
    for row, name in nonempty(enumerate(trace.names)):
        if not trace.other[row]:  # most rows have no other attributes
            continue
        for text in nonempty(trace.other_attributes[trace.other[row]]):
            attribute = AttributeProto.FromString(text)
            assert trace.type[row] == et.NodeType.COMP_NODE
            assert attribute.name in {"inputs", "outputs"}
            for value in attribute.string_list.values:
                tensor, size = value.split()
                step, _, micro_batch = name.split("/")[:3]
                yield (step, micro_batch, tensor), int(size), attribute.name == "outputs"


def peak(trace):
    """Most bytes at a time; each tensor is made once and used last once."""
    held, most, seen = {}, 0, Counter()
    for tensor, size, is_made in nonempty(lifetimes(trace)):
        if is_made:
            assert tensor not in held
            held[tensor] = size
            seen[tensor] += 1
            most = max(most, sum(held.values()))
        else:
            assert held.pop(tensor) == size
    assert not held
    assert set(seen.values()) == {1}
    return most


@pytest.mark.parametrize("model", [GPT, MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble", "interleaved,vpp2"])
def test_stages_hold_as_many_activations_as_their_schedule_says(model, recompute, schedule):
    plan = settle(model, parallel_plan(f"tp2,sp,pp4,gb8,{schedule},recompute={recompute}"))
    made = generate(model, plan)
    for stage, own in nonempty(enumerate(chunks(model, plan))):
        kept = [
            sum(layer_activations(model, plan, has_experts=model.has_experts(n)).kept(recompute) for n in chunk.layers)
            for chunk in own
        ]
        in_flight = sum(pipeline_of(plan).in_flight(stage))
        found = peak(made.traces[stage])
        if len(set(kept)) == 1:
            assert found == in_flight * kept[0]
        else:
            assert min(kept) * in_flight <= found <= max(kept) * in_flight
