"""A file in the folder of pipeline schedules is all that a new one needs: plans, traces and memory know it."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.nonempty import nonempty
from tests.workload.training.small import GPT
from workload.errors import WorkloadError
from workload.generators.training import parallel_plan, pipeline, rules
from workload.generators.training.generator import generate
from workload.generators.training.stages import pipeline_of

FOLDER = Path(pipeline.__file__).parent
PLANS = importlib.import_module("workload.generators.training.parallel_plan")


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Copies of two schedules under other names."""
    for file, name in (("one_forward_one_backward", "1f1b"), ("interleaved", "interleaved")):
        text = (FOLDER / f"{file}.py").read_text().replace(f'NAME = "{name}"', f'NAME = "new-{name}"')
        complaint = f'    def complaint(self):\n        return "{name}" if self.micro_batches == 3 else ""\n'
        (tmp_path / f"new_{file}.py").write_text(f"{text}\n{complaint}")
    monkeypatch.setattr(pipeline, "__path__", [*pipeline.__path__, str(tmp_path)])
    caches = (pipeline.schedules, PLANS._words)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    for name in [name for name in sys.modules if name.startswith("workload.generators.training.pipeline.new_")]:
        del sys.modules[name]


@pytest.mark.parametrize(("old", "axes"), [("1f1b", "pp4,gb8"), ("interleaved", "pp2,vpp2,gb8")])
@pytest.mark.usefixtures("added")
def test_a_copy_under_another_name_does_the_same(old, axes):
    plan, wanted = (parallel_plan(f"{axes},{name}") for name in (f"new-{old}", old))
    assert str(plan).endswith(f",new-{old}")
    assert parallel_plan(str(plan)) == plan == parallel_plan(f"{axes},schedule=new-{old}")
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


@pytest.mark.usefixtures("added")
def test_its_complaint_is_the_plans():
    with pytest.raises(WorkloadError, match="schedule new-interleaved: interleaved"):
        rules.check(GPT, rules.settle(GPT, parallel_plan("pp2,vpp2,gb3,new-interleaved"), "megatron"), "megatron")


def test_an_unknown_schedule_is_refused_with_those_there_are():
    known = "auto, 1f1b, dualpipe, gpipe, interleaved, zero-bubble"
    with pytest.raises(WorkloadError, match=f"plan: schedule: found '2f2b'; expected one of {known}"):
        parallel_plan("pp2,schedule=2f2b")
    with pytest.raises(WorkloadError, match=r"plan: 'new-1f1b', expected a number after .*, one of sp, uneven"):
        parallel_plan("pp2,new-1f1b")
