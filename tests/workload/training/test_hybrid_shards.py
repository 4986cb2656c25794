"""HSDP and several instances of the distributed optimizer: groups, bytes, memory, order and times by hand."""

import numpy as np
import pytest

from nadi.topologies import build
from nadi.workload import CollectiveSettings, ComputeModel, WorkloadError, build_program
from nadi.workload.compute import ComputeTimes, find_gpu
from nadi.workload.generators.memory.estimate import estimate
from nadi.workload.generators.models import Model, find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.parameters import held
from nadi.workload.generators.training.stages import families
from tests.refusals import refused
from tests.scenarios.running import simulate
from tests.workload.training.small import GPT, MIXTRAL, sent

BYTES_PER_S = 100e9 / 8
WIDE = Model(name="wide", layers=2, hidden=1024, heads=16, vocab=8192, sequence=128)


def test_shards_are_next_to_each_other_and_copies_far_apart():
    """torchtitan's mesh: pp, dp_replicate, dp_shard, cp, tp, from the slowest to the fastest."""
    found = families(parallel_plan("tp2,dp4,shard2"))
    assert found["dp-shard"] == ((0, 2), (4, 6), (1, 3), (5, 7))
    assert found["dp-replicate"] == ((0, 4), (2, 6), (1, 5), (3, 7))
    assert found["dp"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    with_context = families(parallel_plan("tp2,cp2,dp4,pp2,shard4"))
    numbers = np.arange(32).reshape(2, 2, 2, 2, 2)  # pp, dp_replicate, dp_shard, cp, tp
    assert set(with_context["dp-shard"]) == set(map(tuple, numbers.transpose(0, 1, 4, 2, 3).reshape(-1, 4).tolist()))
    assert set(with_context["dp-replicate"]) == set(
        map(tuple, numbers.transpose(0, 2, 3, 4, 1).reshape(-1, 2).tolist())
    )
    assert "dp-shard" not in families(parallel_plan("tp2,dp4,shard4"))


def test_experts_have_as_many_copies_as_the_other_parameters():
    """torchtitan's sparse mesh: dp_replicate, efsdp, ep."""
    found = families(parallel_plan("dp8,ep2,shard4"))
    assert found["edp"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert found["edp-shard"] == ((0, 2), (4, 6), (1, 3), (5, 7))
    assert found["edp-replicate"] == ((0, 4), (2, 6), (1, 5), (3, 7))


def test_parameters_are_gathered_within_a_group_and_shards_reduced_between_groups():
    """FSDP, 8 replicas of 4 micro-batches: bytes of one GPU for all parameters P, as 2-byte and 4-byte values."""
    plan = rules.settle(WIDE, parallel_plan("dp8,shard4,gb32"), "fsdp")
    found, passes = sent(generate(WIDE, plan, "fsdp")), 4
    parameters = held(WIDE, plan, 0).total
    gathers = found["dp:all-gather", "forward"] + found["dp:all-gather", "backward"]
    assert gathers == pytest.approx(8 * 2 * passes * 2 * parameters / 4, rel=1e-3)
    assert found["dp:reduce-scatter", "backward"] == pytest.approx(8 * passes * 4 * parameters, rel=1e-3)
    assert found["dp:all-reduce", "backward"] == pytest.approx(8 * passes * 4 * parameters / 4, rel=1e-3)
    (stage,), (whole,) = (estimate(WIDE, parallel_plan(f"dp8,gb32{more}"), "fsdp") for more in (",shard4", ""))
    assert stage.weights == pytest.approx(2 * parameters / 4, rel=1e-6)
    assert stage.optimizer == pytest.approx(12 * parameters / 4, rel=1e-6) == 2 * whole.optimizer
    assert stage.gradients == 2 * whole.gradients


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_instances_of_megatrons_distributed_optimizer(overlap):
    """num_distributed_optimizer_instances=2: each bucket once within an instance, its shard between them."""
    plan = rules.settle(GPT, parallel_plan(f"tp2,pp2,dp4,shard2,zero1,gb16,overlap_grad_reduce={overlap}"))
    found = sent(generate(GPT, plan))
    parameters = sum(held(GPT, plan, stage).total for stage in range(2)) * 8  # of all GPUs
    reduced = "backward" if overlap == "true" else "optimizer"
    assert found["dp:reduce-scatter", reduced] == pytest.approx(4 * parameters, rel=1e-2)
    loss = 4 * 8 if overlap == "false" else 0
    assert found["dp:all-reduce", reduced] - loss == pytest.approx(4 * parameters / 2, rel=1e-2)
    assert found["dp:all-gather", "forward"] == pytest.approx(2 * parameters / 2, rel=1e-2)


@pytest.mark.parametrize("framework", ["fsdp", "megatron"])
def test_copies_of_experts_that_no_group_shards_are_reduced_all_the_same(framework):
    plan = rules.settle(
        MIXTRAL,
        parallel_plan("dp8,ep4,shard4,gb16,zero1" if framework == "megatron" else "dp8,ep4,shard4,gb16"),
        framework,
    )
    made = generate(MIXTRAL, plan, framework)
    assert {"dp-shard", "dp-replicate", "edp-replicate"} <= made.families.keys()
    assert "edp-shard" not in made.families
    (trace,) = made.traces
    family = [trace.group_names[row] for row in trace.group.tolist()]
    experts = sum(size for size, name in zip(trace.comm_size.tolist(), family, strict=True) if name == "edp-replicate")
    times = 2 if framework == "fsdp" else 1  # micro-batches
    assert experts == times * 4 * held(MIXTRAL, plan, 0).experts


def rows_of(trace, word):
    return [row for row, name in enumerate(trace.names) if name.endswith(word)]


def test_times_are_those_of_rings_within_and_between_groups():
    """A reduce-scatter takes S (n - 1) / n, the all-reduce of its result 2 (S / n) (r - 1) / r over a link's rate."""
    plan = rules.settle(WIDE, parallel_plan("dp8,shard4,gb8,copies=none"), "fsdp")
    made = generate(WIDE, plan, "fsdp")
    graph = build("fully-connected:npus=8,rate=100Gbps,delay=1ns")
    how = CollectiveSettings({"reduce-scatter": "ring", "all-reduce": "ring"})
    compute = ComputeModel(times=ComputeTimes(find_gpu("h100")))
    kinds = {"example_npu": made.example_npu, "families": made.families}
    program = build_program(made.traces, made.trace_of_npu, 8, {}, compute, how, fabric=graph, **kinds)
    found = simulate(graph, program, header_bytes=0, ack_bytes=0)
    (trace,) = made.traces
    took = (found.node_finish_ps - found.node_start_ps)[: len(trace)] / 1e12
    scatters, reduces = rows_of(trace, "dp:reduce-scatter"), rows_of(trace, "dp:all-reduce")
    assert len(scatters) == len(reduces) - 1 == WIDE.layers + 2  # the last all-reduce is that of the loss
    for scatter, reduce in zip(scatters, reduces, strict=False):
        size = int(trace.comm_size[scatter])
        assert trace.comm_size[reduce] == size // 4
        assert took[scatter] == pytest.approx(size * 3 / 4 / BYTES_PER_S, rel=0.02)
        assert took[reduce] == pytest.approx(2 * size / 4 / 2 / BYTES_PER_S, rel=0.02)


REFUSED = [
    ("dp8,shard4,zero3", "deepspeed", "shard is 4 with deepspeed, expected 0 (fsdp and megatron have it)"),
    ("dp8,shard4", "megatron", "shard is 4 with zero 0, expected zero1, or shard 0"),
    ("dp8,shard3", "fsdp", "expected a divisor of the 8 replicas (dp * cp) of 2 or more, or 0; nearest 2 and 4"),
    ("dp8,shard1", "fsdp", "expected a divisor of the 8 replicas (dp * cp) of 2 or more, or 0; nearest 2"),
    ("tp2,shard2", "fsdp", "there is 1 replica"),
    ("cp4,dp2,shard2", "fsdp", "shard is 2, expected a multiple of cp; nearest 4"),
    ("pp2,dp4,shard2,zero1,dualpipe,gb32", "megatron", "shard is 2 with schedule dualpipe"),
    ("ep4,dp8,shard2", "fsdp", "expected dp * cp / shard (8 / 2) to divide the 2 replicas of experts"),
]


@pytest.mark.parametrize(("plan", "framework", "words"), REFUSED)
def test_groups_that_no_framework_forms_are_refused(plan, framework, words):
    model = find("mixtral-8x7b" if "ep" in plan else "llama3-8b")
    assert words in refused(WorkloadError, rules.check, model, parallel_plan(plan), framework)
