"""Computation beside collectives: at every fidelity the same, with a default for each framework."""

import itertools
import json
from fractions import Fraction
from math import floor

import numpy as np
import pytest

import nadi
from nadi import topologies
from nadi.pdes.core.declared import grow
from nadi.pdes.core.state import NEED_EVENTS
from nadi.studies.planner.step import step_time, target_machine
from nadi.workload import CollectiveSettings, ComputeModel, build_program, read_set, write_set
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.interference import channels_on, compute_slowdown, copied_groups
from tests.fidelity.test_closed_forms import KINDS, simulate as simulate_whole
from tests.nonempty import nonempty
from tests.pdes.cases import Traces
from tests.samples import each_value, sampled
from tests.scenarios.running import simulate as simulate_packets
from tests.scenarios.test_contention import CASES, SPEC, US, built, end_ps

LONG_PACKETS = {"fidelity": "closed-form", "mtu": "16KiB"}
HOSTS = "rail-optimised:npus=16,gpus_per_host=8,rate=200Gbps,nvlink_rate=2400Gbps"
STEPS = {
    "zero-1": ("dp16,gb16,zero1", "megatron"),
    "pipeline": ("tp2,pp2,dp4,gb16,sp", "megatron"),
    "fsdp": ("dp16,gb16", "fsdp"),
}


@sampled({"kind": KINDS, "factor": ["1.5", "1.001", "7.013"], "name": CASES})
def test_whole_messages_slow_computation_as_packets_do(name, factor, kind):
    case = CASES[name]
    program, rows = built(case)
    found = simulate_whole(SPEC, program, kind, concurrent_collectives=not case.serial, compute_slowdown=float(factor))
    start, finish = (column[: len(column) // 2] for column in (found.node_start_ps, found.node_finish_ps))
    intervals = [(int(start[row]), int(finish[row])) for row in rows["collective"]]
    for row, (_, long) in nonempty(zip(rows["compute"], case.computes, strict=True)):
        assert finish[row] == end_ps(int(start[row]), floor(long * US), intervals, Fraction(factor))


def test_the_pool_of_events_grows_for_those_that_lapse(monkeypatch):
    """A long computation is slowed down and let go again and again: each time its end is another."""
    many, grown = 400, []
    traces = Traces(2)
    for npu in range(2):
        traces.compute(npu, 1_000_000)
    wait = dict.fromkeys(range(2), ())
    for _ in range(many):
        wait = {npu: (traces.compute(npu, 5, cpu=True, deps=wait[npu]),) for npu in range(2)}
        traces.collective(range(2), 0, 1000, deps=wait)
        wait = {npu: (len(traces.nodes[npu]) - 1,) for npu in range(2)}

    def counted(world):
        grown.append(int(world.net.ctl.need))
        return grow(world)

    monkeypatch.setattr("nadi.pdes.workers.grow", counted)
    found = simulate_whole(SPEC, traces.program(), "congestion_unaware", compute_slowdown=1.25)
    own = slice(0, len(found.node_start_ps) // 2)
    start, finish = found.node_start_ps[own], found.node_finish_ps[own]
    intervals = list(zip(start[2::2].tolist(), finish[2::2].tolist(), strict=True))
    assert finish[0] == end_ps(0, 1_000_000 * US, intervals, Fraction(5, 4))
    assert NEED_EVENTS in grown


@pytest.mark.parametrize(("step", "slowdown"), each_value(itertools.product(STEPS, ("auto", 1, 3))))
def test_steps_take_as_long_at_closed_forms_as_by_packets(step, slowdown):
    closed, packets = (ran(step, fidelity, compute_slowdown=slowdown) for fidelity in ("closed-form", "packet"))
    assert closed.finish_time_ps == pytest.approx(packets.finish_time_ps, rel=0.005)


def test_a_default_costs_time_where_communication_is_hidden():
    plain, default, more = (ran("fsdp", "closed-form", compute_slowdown=factor) for factor in (1, "auto", 3))
    assert plain.finish_time_ps * 1.03 < default.finish_time_ps < more.finish_time_ps


def ran(step, fidelity, *, faults=(), **system):
    """A step of a small model on two hosts; in long packets, of which there are fewer."""
    plan, framework = STEPS[step]
    return nadi.simulate(
        workload={"model": "gpt3-125m", "plan": plan, "framework": framework},
        topology={"spec": HOSTS},
        compute={"gpu": "a100"},
        network=LONG_PACKETS | {"fidelity": fidelity},
        system=system,
        faults=list(faults),
    )


@pytest.mark.parametrize("simulate", [simulate_packets, lambda *args, **more: simulate_whole(*args, KINDS[0], **more)])
def test_copy_engines_take_no_multiprocessors(simulate):
    traces = Traces(2)
    for npu in range(2):
        traces.compute(npu, 40)
    traces.collective(range(2), 0, 100_000, "tp")
    how = CollectiveSettings({"all-reduce": "direct"})
    groups = {"tp": (0, 1)}
    for copied, slow in ((frozenset(), True), (frozenset({"tp"}), False)):
        chosen = CollectiveSettings(how.algorithm, copied=copied)
        program = build_program(traces.tables(), range(2), 2, groups, ComputeModel("trace"), chosen)
        found = simulate(SPEC, program, compute_slowdown=2.0)
        assert (int(found.node_finish_ps[0]) > 40 * US) == slow


def test_defaults_by_framework():
    """SMs over what NCCL leaves of them; persistent products of Hopper take two waves where none is left free."""

    def default(framework, gpu, channels, **more):
        return compute_slowdown(framework, find_gpu(gpu), channels, **{"in_a_row": True} | more)

    assert default("fsdp", "h100", 16) == default("deepspeed", "h100", 24) == 2.0
    assert default("fsdp", "a100", 16) == default("megatron", "a100", 16) == round(108 / 92, 3)
    assert default("inference", "h100", 16) == default("fsdp", "tpu-v4", 16) == 1
    assert default("megatron", "h100", 16, in_a_row=False) == round(132 / 116, 3)
    assert default("megatron", "h100", 16, leaves_sms=False) == default("megatron", "gb200", 32, leaves_sms=False) == 2
    assert default("megatron", "a100", 16, leaves_sms=False) == default("megatron", "a100", 16)
    assert copied_groups("megatron", parallel_plan("tp8,sp,overlap_tp=true")) == {"tp"}
    assert copied_groups("megatron", parallel_plan("tp8,sp")) == copied_groups("fsdp", parallel_plan("dp8")) == set()


def test_the_clock_rises_where_power_bounds_products():
    """What SMs are left at the clock of products alone, or what power leaves of all: the slower of the two."""
    h100 = find_gpu("h100")
    alone = h100.in_a_row["bf16"]
    assert compute_slowdown("megatron", h100, 24, in_a_row=True) == round(alone / min(alone, 108 / 132), 3) == 1.063
    assert compute_slowdown("megatron", h100, 16, in_a_row=True) == 1


@pytest.mark.parametrize(
    ("spec", "channels"),
    [
        ("dgx-h100:npus=8", 24),
        ("dgx-h100:npus=32", 16),
        ("dgx-a100:npus=8", 24),
        ("dgx-a100:npus=16", 16),
        ("dgx-b200:npus=16", 16),
        ("dgx-h100:npus=1", 0),
    ],
)
def test_channels_are_those_of_the_table(spec, channels):
    """docs/explanation/nccl.md, "used"."""
    assert channels_on(topologies.build(spec)) == channels


@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
def test_runs_and_plans_agree(framework):
    cluster = topologies.clusters.find("dgx-h100-superpod")
    model, plan = find("gpt3-125m"), parallel_plan("dp16,gb32,zero1" if framework == "megatron" else "dp16,gb32")
    found = nadi.simulate(
        workload={"model": "gpt3-125m", "plan": str(plan), "framework": framework},
        topology={"cluster": "dgx-h100-superpod"},
        network={"fidelity": "closed-form"},
    )
    where = target_machine(cluster, 16, ComputeTimes(find_gpu("h100"), pace=IN_STEPS))
    planned = step_time(where, model, rules.settle(model, plan, framework), framework, exact=True)
    assert planned.step_ps == found.finish_time_ps


@pytest.mark.slow
def test_results_say_the_factor(tmp_path):
    def said(name, **sections):
        nadi.simulate(**sections, network=LONG_PACKETS, out=tmp_path / name)
        return json.loads((tmp_path / name / "summary.json").read_text())["config"]["system"]["compute_slowdown"]

    model = {"model": "gpt3-125m", "plan": "dp16,gb16", "framework": "fsdp"}
    cluster = {"cluster": "dgx-h100-superpod"}
    assert said("fsdp", workload=model, topology=cluster) == 2
    assert said("megatron", workload=model | {"framework": "megatron"}, topology=cluster) == 1
    assert said("given", workload=model, topology=cluster, system={"compute_slowdown": 1.5}) == 1.5
    traces = Traces(2)
    traces.collective(range(2), 0, 1000)
    assert said("traces", workload=traces.tables(), topology={"spec": SPEC}) == 1
    assert np.all(traces.program().node_lane == 1)


@pytest.mark.parametrize("plan", ["tp2,dp4,gb8,sp,overlap_tp=true", "tp2,dp4,gb8,sp,zero1"])
def test_trace_sets_keep_what_the_generator_knows(tmp_path, plan):
    """A run of the files that the generator writes is the run of the model."""
    model = find("gpt3-125m")
    write_set(tmp_path / "set", generate(model, parallel_plan(plan), "megatron"))
    common = {"topology": {"spec": HOSTS}, "compute": {"gpu": "h100"}, "network": LONG_PACKETS}
    by_model = nadi.simulate(workload={"model": "gpt3-125m", "plan": plan}, **common)
    by_files = nadi.simulate(workload={"traces": str(tmp_path / "set")}, **common)
    found = read_set(tmp_path / "set")
    assert found.framework == "megatron"
    assert found.copied == ({"tp"} if "overlap_tp" in plan else set())
    assert by_files.finish_time_ps == by_model.finish_time_ps
    slower = nadi.simulate(workload={"traces": str(tmp_path / "set")}, system={"compute_slowdown": 3}, **common)
    # With overlap_tp, the collectives beside computation are copies, which take no SMs from it.
    assert (slower.finish_time_ps > by_files.finish_time_ps) == ("overlap_tp" not in plan)
