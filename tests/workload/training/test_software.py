"""Software profiles fill in the keys of a plan that its user leaves open, and their mechanisms are in the trace."""

import re

import numpy as np
import pytest

from nadi.et import NodeType
from nadi.workload import WorkloadError
from nadi.workload.collectives import ON_NVSWITCHES
from nadi.workload.compute import ComputeTimes, Operator, find_gpu
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.software import AUTO, profile, profile_names
from nadi.workload.program.choosing import CollectiveSettings
from tests.workload.training.small import GPT, LLAMA


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_has_keys_of_plans_and_says_where_they_come_from(name):
    known = profile(name, "")
    assert known.summary
    assert known.source
    plan = ParallelPlan(software=name)
    settled = rules.settle(GPT, plan, known.framework)
    others = {key: value for key, value in known.plan.items() if key != "sequence_parallel"}  # tp1 switches that off
    assert {key: getattr(settled, key) for key in others} == others


def test_keys_of_the_user_win():
    open_plan = rules.settle(GPT, parallel_plan("software=megatron-2021,dp2"))
    assert (open_plan.attention, open_plan.dtype, open_plan.async_tp) == ("unfused", "fp16", False)
    given = rules.settle(GPT, parallel_plan("software=megatron-2021,dp2,attention=flash,dtype=bf16"))
    assert (given.attention, given.dtype, given.async_tp) == ("flash", "bf16", False)


def test_without_a_name_the_profile_is_the_current_one_of_the_framework():
    for framework, name in (("megatron", "megatron-core"), ("fsdp", "fsdp"), ("deepspeed", "deepspeed")):
        assert profile(AUTO, framework) == profile(name, framework)
    assert profile(AUTO, "inference") is None


def test_unknown_profiles_and_those_of_other_frameworks_are_refused():
    with pytest.raises(WorkloadError, match=r"plan: software: found 'nccl'; expected one of auto, deepspeed, "):
        parallel_plan("software=nccl")
    with pytest.raises(WorkloadError, match="software is fsdp-2023 with megatron, expected a profile of megatron"):
        rules.check(GPT, parallel_plan("software=fsdp-2023,dp2"))
    with pytest.raises(WorkloadError, match="dtype is fp4, expected bf16, fp16, fp32 or fp8"):
        rules.check(GPT, parallel_plan("fp4"), "inference")


def test_all_gpus_wait_for_their_hosts_once_per_step():
    traces = generate(GPT, parallel_plan("dp2,pp2,host_ms=7,steps=3")).traces
    for trace in traces:
        hosts = [row for row, name in enumerate(trace.names) if name.endswith("optimizer/host")]
        assert [bool(trace.is_cpu_op[row]) for row in hosts] == [True] * 3
        assert trace.duration_micros[hosts].tolist() == [7000] * 3
    assert not any("/host" in name for name in generate(GPT, parallel_plan("dp2")).traces[0].names)


@pytest.mark.parametrize(("copies", "parts"), [("tensors", {"in", "out"}), ("gradients", {"in"}), ("none", set())])
def test_fsdp_copies_what_its_profile_says(copies, parts):
    names = generate(GPT, parallel_plan(f"dp2,copies={copies}"), "fsdp").traces[0].names
    assert {found[1] for name in names if (found := re.search(r"/copy-(\w+)$", name))} == parts


@pytest.mark.parametrize("attention", ["flash-1", "triton"])
def test_old_attention_is_slower_on_every_gpu(attention):
    trace = generate(LLAMA, parallel_plan(f"attention={attention}")).traces[0]
    texts = [trace.operator_lists[number] for number in np.unique(trace.operators[trace.type == NodeType.COMP_NODE])]
    assert any(f"{attention}-attention " in text for text in texts)
    assert any(f"{attention}-attention-backward " in text for text in texts)
    for gpu in ("a100", "h100"):
        times = ComputeTimes(find_gpu(gpu), vendor_tables=False)
        for backward in ("", "-backward"):
            new = Operator(f"attention{backward}", (4, 16, 16, 2048, 2048, 128, 128, 1))
            old = new._replace(kind=f"{attention}-{new.kind}")
            assert old.flops == new.flops
            assert times.time_ps(old) > 1.2 * times.time_ps(new)


def test_copy_engines_replace_nccl_and_nothing_that_the_user_chose():
    by_nccl = CollectiveSettings({"all-gather": ON_NVSWITCHES, "all-reduce": ON_NVSWITCHES})
    assert by_nccl.algorithm_of("all-gather", is_copied=True) == "direct"
    assert by_nccl.algorithm_of("all-gather") == by_nccl.algorithm_of("all-reduce", is_copied=True) == ON_NVSWITCHES
    assert CollectiveSettings({"all-gather": "ring"}).algorithm_of("all-gather", is_copied=True) == "ring"


def test_fp4_is_for_products_and_the_casts_of_their_operands_only():
    trace = generate(LLAMA, parallel_plan("fp4,tp2,sp")).traces[0]
    kinds = {(part.split()[0], part.split()[-1]) for text in trace.operator_lists for part in text.split("; ") if part}
    assert ("gemm", "fp4") in kinds
    assert {dtype for kind, dtype in kinds if kind not in {"gemm", "elementwise", "optimizer"}} <= {"bf16", "fp32"}
