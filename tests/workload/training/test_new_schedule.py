"""A pipeline schedule in a file of the user's is all that a new one needs: plans, traces and memory know it."""

import numpy as np
import pytest

from nadi.inputs import plug_ins
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.pipeline import KIND
from nadi.workload.generators.training.stages import pipeline_of
from tests.nonempty import nonempty
from tests.workload.training.small import GPT


@pytest.fixture
def added(tmp_path):
    """Copies of two schedules: their files by the names of the originals."""
    files = {}
    for name in ("1f1b", "interleaved"):
        complaint = f'    def complaint(self):\n        return "{name}" if self.micro_batches == 3 else ""\n'
        files[name] = tmp_path / f"new_{name}.py"
        files[name].write_text(f"{plug_ins.own_files(KIND)[name].read_text()}\n{complaint}")
    return files


@pytest.mark.parametrize(("old", "axes"), [("1f1b", "pp4,gb8"), ("interleaved", "pp2,vpp2,gb8")])
def test_a_copy_in_a_file_does_the_same(added, old, axes):
    plan, wanted = (parallel_plan(f"{axes},{name}") for name in (added[old], old))
    assert str(plan).endswith(f",schedule={added[old]}")
    assert parallel_plan(str(plan)) == plan == parallel_plan(f"{axes},schedule={added[old]}")
    plan, wanted = (rules.settle(GPT, each, "megatron") for each in (plan, wanted))
    rules.check(GPT, plan, "megatron")
    for stage in range(plan.pp):
        assert pipeline_of(plan).in_flight(stage) == pipeline_of(wanted).in_flight(stage)
    made, expected = (generate(GPT, each) for each in (plan, wanted))
    assert np.array_equal(made.trace_of_npu, expected.trace_of_npu)
    for one, other in nonempty(zip(made.traces, expected.traces, strict=True)):
        assert list(one.names) == list(other.names)
        for column in ("type", "num_ops", "comm_size", "comm_tag", "dep_ptr", "dep"):
            assert np.array_equal(getattr(one, column), getattr(other, column)), column


def test_its_complaint_is_the_plans(added):
    plan = rules.settle(GPT, parallel_plan(f"pp2,vpp2,gb3,{added['interleaved']}"), "megatron")
    with pytest.raises(WorkloadError, match=r"schedule .*new_interleaved.py: interleaved"):
        rules.check(GPT, plan, "megatron")


def test_an_unknown_schedule_is_refused_with_those_there_are():
    known = "auto, 1f1b, dualpipe, gpipe, interleaved, zero-bubble"
    with pytest.raises(WorkloadError, match=f"plan: schedule: found '2f2b'; expected one of {known}"):
        parallel_plan("pp2,schedule=2f2b")
    with pytest.raises(WorkloadError, match=r"plan: 'new-1f1b', expected a number after .*, one of sp, uneven"):
        parallel_plan("pp2,new-1f1b")
