"""`nadi workload transformer`: plain data-parallel training of a GPT, one trace for all NPUs."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.et import NodeType
from nadi.inputs.documents import checked
from nadi.workload import ComputeModel, WorkloadError, build_program, expand, load_traces
from nadi.workload.generators.models import Model, parameters, training_flops
from nadi.workload.generators.training.generator import data_parallel_plan, generate_for_all
from tests.et.parents import names_of_parents
from tests.nonempty import nonempty
from tests.refusals import refused

SMALL = Model(name="small", layers=3, hidden=64, heads=4, vocab=128, sequence=32)


def plan_of(npus=4, micro_batch=2, dtype_bytes=2, bucket_bytes=100_000, steps=1, *, recompute=False):
    return data_parallel_plan(npus, micro_batch, dtype_bytes, bucket_bytes, steps, recompute=recompute)


def trace_of(model, plan):
    (table,) = generate_for_all(model, plan).traces
    return table


@given(
    st.builds(
        lambda heads, width, **rest: Model(name="any", heads=heads, hidden=heads * width, **rest),
        heads=st.integers(1, 8),
        width=st.integers(1, 16),
        layers=st.integers(1, 6),
        vocab=st.integers(1, 8).map(lambda rows: 128 * rows),
        sequence=st.integers(1, 100),
    ),
    st.builds(
        plan_of,
        micro_batch=st.integers(1, 4),
        dtype_bytes=st.sampled_from([2, 4]),
        bucket_bytes=st.integers(4, 10**6),
        steps=st.integers(1, 2),
        recompute=st.booleans(),
    ),
)
def test_work_and_gradients_are_those_of_the_paper(model, plan):
    layers, h, s, v, b = model.layers, model.hidden, model.sequence, model.vocab, plan.micro_batch
    count = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h)) + 2 * h
    assert parameters(model) == pytest.approx(count)
    factor = 96 if plan.recompute == "full" else 72
    flops = factor * b * s * layers * h**2 * (1 + s / (6 * h) + v / (factor / 6 * layers * h))
    table = trace_of(model, plan)
    assert training_flops(model, b, recompute=plan.recompute) == pytest.approx(flops)
    assert np.maximum(table.num_ops, 0).sum() == pytest.approx(plan.steps * flops)
    sizes = table.comm_size[table.type == NodeType.COMM_COLL_NODE].reshape(plan.steps, -1)[0, :-1]  # without the loss
    value_bytes = 2 if plan.dtype == "bf16" else 4
    assert sizes.sum() == parameters(model) * value_bytes
    assert (sizes[:-1] >= plan.bucket_bytes // value_bytes * value_bytes).all()


def test_all_reduces_run_beside_the_backward_pass():
    table = trace_of(SMALL, plan_of(steps=2))
    row_of = {name: row for row, name in enumerate(table.names)}

    def parents(name):
        return names_of_parents(table, row_of[name])

    forward, backward = "step0/forward/mb0", "step0/backward/mb0"
    assert parents(f"{forward}/layer0/mlp") == {f"{forward}/embedding"}
    # the last norm has 2 h = 128 parameters, a layer 12 h^2 + 13 h = 49,984, and a bucket 50,000
    first, second = (f"{backward}/chunk0-bucket{number}/dp:all-reduce" for number in (0, 1))
    assert len(parents(first)) == 1
    assert "/layer2/" in next(iter(parents(first)))
    assert first in parents(second)
    last = max(name for name in nonempty(row_of) if name.startswith(backward) and name.endswith("dp:all-reduce"))
    assert parents("step0/optimizer/grad-norm") == {f"{backward}/embedding", last}
    assert parents("step0/optimizer/step") == {"step0/optimizer/grad-norm/host"}
    assert parents("step1/forward/mb0/embedding") == {"step1/forward/zero-gradients"}


def test_traces_are_read_as_they_were_written(tmp_path):
    prefix = expand(generate_for_all(SMALL, plan_of()), tmp_path / "new" / "folder", "gpt")
    assert sorted(f.name for f in prefix.parent.iterdir()) == [f"gpt.{npu}.et" for npu in range(4)]
    traces, own = load_traces(prefix, 4)
    assert own.tolist() == [0] * 4
    program = build_program(traces, own, 4, {}, ComputeModel(peak_flops=1e12, memory_bandwidth_Bps=1e12))
    assert program.node_duration_ps[program.node_kind == 1].min() > 0
    assert program.schedules.members.tolist() == [4]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"npus": 0}, "npus is 0, expected 1 to 524287"),
        ({"dtype_bytes": 3}, "dtype bytes are 3, expected 2 or 4"),
        ({"steps": 0}, "plan: steps: found 0; expected 1 to 1000000"),
    ],
)
def test_plans_that_cannot_be_are_refused(values, text):
    assert refused(WorkloadError, plan_of, **values) == text


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(WorkloadError, match=r"^transformer: hidden is 100; expected a multiple of heads \(12\)"):
        checked(Model, {**SMALL.model_dump(), "hidden": 100, "heads": 12}, "transformer", WorkloadError)
