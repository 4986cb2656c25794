"""Generated traces agree with each other: groups, sends, receives, order."""

import numpy as np
from hypothesis import given

import et
from tests.budgets import bounded
from tests.workload.training.small import cases
from workload import ComputeModel, build_program
from workload.training.generator import generate

RECORDED = ComputeModel("trace")


@bounded(40)
@given(cases())
def test_every_send_has_its_receive_and_members_of_groups_agree(case):
    made = generate(*case)
    build_program(
        made.traces, made.trace_of_npu, made.npus, {}, RECORDED, example_npu=made.example_npu, families=made.families
    )
    for trace in made.traces:
        assert len(et.topological_order(trace)) == len(trace)  # acyclic


@bounded(15)
@given(cases())
def test_computations_of_an_npu_are_a_chain(case):
    for trace in generate(*case).traces:
        latest = np.full(len(trace), -1)  # the last computation that a row comes after, or is
        expected = -1
        for row in et.topological_order(trace).tolist():
            parents = trace.dep[trace.dep_ptr[row] : trace.dep_ptr[row + 1]]
            latest[row] = latest[parents].max(initial=-1)
            if trace.type[row] == et.NodeType.COMP_NODE:
                assert latest[row] == expected
                latest[row] = expected = row
