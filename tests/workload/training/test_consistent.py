"""Generated traces agree with each other: groups, sends, receives, order."""

import re

import numpy as np
import pytest
from hypothesis import given

from nadi import et
from nadi.workload import ComputeModel, build_program
from nadi.workload.compute.operators import PRODUCTS, parse_operators
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate, nodes_at_most
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload.training.small import cases

NAME = re.compile(r"step\d+/(?:optimizer|(?:forward|backward|backward-weights)(?:/mb\d+)?)/[a-z0-9:/-]+")
AXES = {"tp", "cp", "ep", "etp", "dp", "pp", "embedding", "world", "memory"}
RECORDED = ComputeModel("trace")


@bounded(40)
@given(cases())
def test_every_send_has_its_receive_and_members_of_groups_agree(case):
    made = generate(*case)
    build_program(
        made.traces, made.trace_of_npu, made.npus, {}, RECORDED, example_npu=made.example_npu, families=made.families
    )
    for trace in nonempty(made.traces):
        assert len(et.topological_order(trace)) == len(trace)  # acyclic


@bounded(15)
@given(cases())
def test_nodes_say_what_they_are_and_do(case):
    """Names are those of docs/explanation/training.md; operations and bytes are the operators'; nodes as estimated."""
    model, plan, framework = case
    made = generate(model, plan, framework)
    assert sum(map(len, made.traces)) <= nodes_at_most(model, plan, framework)
    for trace in nonempty(made.traces):
        for row, name in nonempty(enumerate(trace.names)):
            assert NAME.fullmatch(name), name
            if trace.type[row] != et.NodeType.COMP_NODE:
                assert name.rpartition("/")[2].partition(":")[0] in AXES, name
                continue
            done = parse_operators(trace.operator_lists[trace.operators[row]])
            if name.endswith(("/views", "/take-apart")) and not done:  # work of the host, without operators of the GPU
                assert (trace.num_ops[row], trace.tensor_size[row]) == (0, 0)
                assert trace.duration_micros[row] > 0
                continue
            assert trace.num_ops[row] == sum(operator.flops for operator in done if operator.kind in PRODUCTS)
            assert trace.tensor_size[row] == sum(operator.bytes for operator in done) > 0


@bounded(15)
@given(cases())
def test_computations_of_an_npu_are_a_chain(case):
    for trace in nonempty(generate(*case).traces):
        latest = np.full(len(trace), -1)  # the last computation that a row comes after, or is
        expected = -1
        for row in nonempty(et.topological_order(trace).tolist()):
            parents = trace.dep[trace.dep_ptr[row] : trace.dep_ptr[row + 1]]
            latest[row] = latest[parents].max(initial=-1)
            if trace.type[row] == et.NodeType.COMP_NODE:
                assert latest[row] == expected
                latest[row] = expected = row


@pytest.mark.parametrize(
    ("name", "text"),
    [("llama3-8b", "pp4,dualpipe,dp2,gb16,zero1"), ("deepseek-v2", "pp4,dualpipe,dp4,ep4,gb32,zero1,uneven")],
)
def test_both_stages_of_a_slice_cut_the_same_buckets(name, text):
    """With DualPipe, where the first slice is also the last stage's; large enough for several buckets."""
    made = generate(find(name), parallel_plan(text), "megatron")
    assert "backward/mb" in "".join(made.traces[0].names)
    buckets = {row for row in made.traces[0].names if "-bucket1/dp:reduce-scatter" in row}
    assert buckets
    build_program(
        made.traces, made.trace_of_npu, made.npus, {}, RECORDED, example_npu=made.example_npu, families=made.families
    )
