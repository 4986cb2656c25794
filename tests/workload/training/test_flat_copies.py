"""FSDP's copies between tensors and flat buffers: bytes are counted by hand, and what they wait for is looked up."""

from itertools import pairwise

import numpy as np
import pytest

from nadi.workload.compute.operators import parse_operators
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from tests.workload.training.small import GPT, LLAMA, MIXTRAL

LAYERS = GPT.layers
WRAPS = LAYERS + 2  # the embedding, each layer, the head
MICRO_BATCHES = 3


def trace_of(model, text, framework="fsdp"):
    plan = parallel_plan(f"dp4,mb1,gb{4 * MICRO_BATCHES},{text}")
    return generate(model, plan, framework).traces[0]


def rows(trace, part):
    return [row for row, name in enumerate(trace.names) if part in name]


def parents(trace, row):
    """Names of all that a row waits for, by data or by control."""
    return {trace.names[other] for other in trace.dep[trace.dep_ptr[row] : trace.dep_ptr[row + 1]].tolist()}


@pytest.mark.parametrize(("text", "passes"), [("zero3", 2), ("zero2", 1)])
def test_each_gather_has_a_copy_that_waits_for_it(text, passes):
    trace = trace_of(GPT, text)
    copies = rows(trace, "/copy-out")
    assert len(copies) == len(rows(trace, "dp:all-gather")) == passes * WRAPS * MICRO_BATCHES
    for row in copies:
        layer = trace.names[row].split("/")[-2]
        assert any(name.endswith(f"{layer}/dp:all-gather") for name in parents(trace, row)), trace.names[row]


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL])
@pytest.mark.parametrize(("dtype", "written"), [("fp32", 4), ("bf16", 2)])
def test_copies_read_and_write_what_is_gathered_and_reduced(model, dtype, written):
    """A gather of 4 shares of 2 bytes is read and written; gradients are read in 2 bytes and written as reduced.

    DeepSpeed's trace has the same computations but for these copies.
    """
    text = f"zero3,grad_dtype={dtype}"
    trace = trace_of(model, text)
    gathered = 4 * int(trace.comm_size[rows(trace, "dp:all-gather")].sum())
    reduced = int(trace.comm_size[rows(trace, "dp:reduce-scatter")].sum())
    copies = moved(trace) - moved(trace_of(model, text, "deepspeed"))
    assert copies == 2 * gathered + reduced // written * 2 + reduced


def moved(trace):
    """Bytes that the operators of a trace read and write."""
    texts = [trace.operator_lists[row] for row in trace.operators.tolist()]
    return sum(operator.bytes for text in texts for operator in parse_operators(text))


def test_gradients_wait_for_the_reduction_before_whose_buffer_they_take():
    trace = trace_of(GPT, "zero3")
    order = ["head", *(f"layer{number}" for number in reversed(range(LAYERS))), "embedding"]
    for micro_batch in range(MICRO_BATCHES):
        for before, layer in pairwise(order):
            (row,) = [row for row in rows(trace, f"/{layer}/copy-in") if f"mb{micro_batch}/" in trace.names[row]]
            assert any(name.endswith(f"mb{micro_batch}/{before}/dp:reduce-scatter") for name in parents(trace, row)), (
                trace.names[row]
            )


def test_a_backward_pass_ends_with_its_last_reduction():
    trace = trace_of(GPT, "zero3")
    for micro_batch in range(1, MICRO_BATCHES):
        waiting = [row for row in rows(trace, f"forward/mb{micro_batch}/") if "all-gather" in trace.names[row]]
        first = waiting[0]
        assert f"step0/backward/mb{micro_batch - 1}/embedding/dp:reduce-scatter" in parents(trace, first)


@pytest.mark.parametrize("framework", ["megatron", "deepspeed"])
def test_other_frameworks_have_no_such_copies(framework):
    trace = trace_of(GPT, "zero1", framework)
    assert not rows(trace, "/copy-out")
    assert not rows(trace, "/copy-in")


def test_one_replica_copies_nothing():
    trace = generate(GPT, parallel_plan("tp4,dp1,gb2,zero3"), "fsdp").traces[0]
    assert not rows(trace, "/copy-")
    assert np.all(trace.comm_size[rows(trace, "dp:")] < 0) or not rows(trace, "dp:")
