"""Steps of a model of each family take as long at all fidelities where nothing contends; where not, why not.

docs/explanation/fidelity.md has the figures.
"""

import functools
from dataclasses import replace

import pytest

from nadi.configuration.sections import NetworkSection
from nadi.insight.step_times import step_times
from nadi.launching.progress import NoProgress
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.topologies import build, clusters
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from nadi.workload.collectives import defaults_on
from nadi.workload.compute import ComputeTimes, find_gpu
from nadi.workload.generators.models.architecture import Experts, LatentAttention, Model
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from tests.closed_forms import at_closed_forms

GPT = Model(name="gpt", layers=4, hidden=512, heads=8, vocab=1024, sequence=256)
LLAMA = Model(
    name="llama", layers=4, hidden=512, heads=8, kv_heads=4, ffn=1408, vocab=1024, sequence=256, norm="rmsnorm",
    activation="swiglu", positions="rotary", bias=False, tied_embeddings=False,
)  # fmt: skip
MIXTRAL = LLAMA.model_copy(update={"name": "mixtral", "experts": Experts(count=8, top_k=2, ffn=1408)})
DEEPSEEK = MIXTRAL.model_copy(
    update={
        "name": "deepseek",
        "kv_heads": 0,
        "latent": LatentAttention(query_rank=192, key_value_rank=64, nope_dim=64, rope_dim=32, value_dim=64),
        "experts": Experts(count=16, top_k=4, ffn=256, shared=1, first_dense=1),
    }
)
MODELS = {model.name: model for model in (GPT, LLAMA, MIXTRAL, DEEPSEEK)}
CASES = {
    "gpt": ("gpt", "tp4,dp2,gb4", "megatron"),
    "replicas": ("gpt", "dp8,gb16", "megatron"),
    "llama": ("llama", "tp2,sp,dp4,zero1,gb8", "megatron"),
    "mixtral": ("mixtral", "dp8,ep8,gb8", "megatron"),
    "mixtral with tp": ("mixtral", "tp2,sp,dp4,ep4,gb8", "megatron"),
    "deepseek": ("deepseek", "dp8,ep8,gb8", "megatron"),
    "deepseek, dualpipe": ("deepseek", "pp2,dp4,ep4,dualpipe,gb16", "megatron"),
    "zero3": ("gpt", "dp8,zero3,gb16", "deepspeed"),
    "fsdp": ("llama", "dp8,gb16", "fsdp"),
    "hsdp": ("llama", "dp8,shard4,gb16", "fsdp"),
    "two optimizers": ("llama", "tp2,sp,dp4,shard2,zero1,gb8", "megatron"),
    "cp ring": ("llama", "tp2,sp,cp4,gb4,seq512", "megatron"),
    "cp all-gather": ("llama", "cp4,dp2,gb4,seq512,context=all-gather", "megatron"),
    "pipeline": ("gpt", "pp4,gb16", "megatron"),
    "interleaved": ("gpt", "pp2,vpp2,dp4,gb32", "megatron"),
    "interleaved with tp": ("llama", "tp2,sp,pp2,vpp2,dp2,gb8", "megatron"),
    "zero-bubble": ("gpt", "pp4,zero-bubble,gb16", "megatron"),
    "gpt on hosts": ("gpt", "tp8,dp2,gb4", "megatron"),
    "llama on hosts": ("llama", "tp4,sp,pp2,vpp2,dp2,gb8", "megatron"),
    "mixtral on hosts": ("mixtral", "pp2,dp8,ep8,gb16", "megatron"),
    "deepseek on hosts": ("deepseek", "dp16,ep16,gb16", "megatron"),
    "hsdp on hosts": ("llama", "dp16,shard8,gb16", "fsdp"),
    "zero3 on hosts": ("gpt", "dp16,zero3,gb16", "deepspeed"),
    "cp ring on hosts": ("llama", "tp4,sp,cp4,gb4,seq512", "megatron"),
}
ON_HOSTS = [name for name in CASES if "hosts" in name]
ELSEWHERE = [name for name in CASES if "hosts" not in name]
MEETING = {"mixtral with tp", "deepseek, dualpipe", "hsdp"}
"""Whose reductions of two families go over the same port at once."""
LINKS = "fully-connected:rate=100Gbps,delay=500ns"
SWITCH = "switch:rate=400Gbps,delay=500ns"
HOSTS = "selene"
SECTIONS = {
    "packet": {},
    "flow": {"fidelity": "flow"},
    "coupled": {"fidelity": "flow"},
    "closed-form": {"fidelity": "closed-form"},
    "unaware": {"fidelity": "analytical", "congestion_aware": False},
    "aware": {"fidelity": "analytical"},
}
COMPUTE = ComputeModel(times=ComputeTimes(find_gpu("a100")))


@functools.cache
def set_up(case, fabric):
    """Traces of a case, its fabric, program and collectives."""
    name, text, framework = CASES[case]
    # Hosts and the optimizer would only dilute what the fidelities differ by
    plan = rules.settle(MODELS[name], parallel_plan(f"{text},without=host+optimizer"), framework)
    rules.check(MODELS[name], plan, framework)
    traces = generate(MODELS[name], plan, framework)
    graph = build(clusters.find(HOSTS).topology(plan.gpus) if fabric == HOSTS else f"{fabric},npus={plan.gpus}")
    how = CollectiveSettings(defaults_on(graph))
    kinds = {"example_npu": traces.example_npu, "families": traces.families}
    program = build_program(traces.traces, traces.trace_of_npu, graph.npus, {}, COMPUTE, how, fabric=graph, **kinds)
    return traces, graph, program, how


@functools.cache
def results(case, fabric, fidelity):
    _, graph, program, how = set_up(case, fabric)
    own = clusters.find(HOSTS).network if fabric == HOSTS and fidelity not in {"unaware", "aware"} else {}
    settings = network_settings(NetworkSection.model_validate({**own, **SECTIONS[fidelity]}))
    if fidelity == "coupled":
        settings = replace(settings, coupled=coupled_collectives(program, CollectiveCosts(graph, settings), how))
    if fidelity != "closed-form":
        return run_program(graph, program, settings, NoProgress())
    return at_closed_forms(graph, program, settings, how)[1]


def over_packets(case, fabric, fidelity):
    return results(case, fabric, fidelity).finish_time_ps / results(case, fabric, "packet").finish_time_ps


def share(case, fabric, category):
    """Of a step by packets."""
    traces, _, program, _ = set_up(case, fabric)
    found = results(case, fabric, "packet")
    times = step_times(program, traces.traces, traces.trace_of_npu, found).mean(axis=0)
    return times[STEP_CATEGORIES.index(category)] / found.finish_time_ps


AGREE = [
    # every two NPUs have a link, and rings of two groups share none; headers are 2 % of packets only
    *(
        (case, LINKS, *way)
        for case in ELSEWHERE
        if case != "deepseek, dualpipe"
        for way in (("closed-form", 0.01), ("unaware", 0.05), ("aware", 0.05))
    ),
    # flows also where reductions meet, and where messages leave at once
    *((case, fabric, "flow", 0.01) for fabric in (LINKS, SWITCH) for case in ELSEWHERE),
    *((case, HOSTS, *way) for case in ON_HOSTS for way in (("flow", 0.01), ("closed-form", 0.05))),
    *((case, SWITCH, "closed-form", 0.05) for case in ELSEWHERE if case not in MEETING),
    *(
        (case, SWITCH, "unaware", 0.05)
        for case in ELSEWHERE
        if case not in MEETING and CASES[case][0] not in {"mixtral", "deepseek"}
    ),
]


@pytest.mark.parametrize(("case", "fabric", "fidelity", "error"), AGREE)
def test_steps_take_as_long_as_by_packets(case, fabric, fidelity, error):
    assert over_packets(case, fabric, fidelity) == pytest.approx(1, abs=error)
    if fidelity == "closed-form" and fabric != SWITCH:
        assert share(case, fabric, "compute") < 0.75


@pytest.mark.parametrize(
    ("case", "fidelity", "least", "most"),
    [
        # a member of a direct all-to-all sends to all others at once: over one port of a switch, each as if alone
        ("mixtral", "unaware", 0, 0.95),
        ("deepseek", "unaware", 0, 0.95),
        # a whole message crosses two links one after the other
        ("gpt", "aware", 1.2, 9),
        ("zero3", "aware", 1.2, 9),
    ],
)
def test_whole_messages_are_too_short_without_ports_and_too_long_in_switches_that_store_them(
    case, fidelity, least, most
):
    assert least < over_packets(case, SWITCH, fidelity) < most


@pytest.mark.parametrize(
    ("case", "fabric"),
    [("mixtral with tp", SWITCH), ("hsdp", SWITCH), *(("deepseek, dualpipe", f) for f in (SWITCH, LINKS))],
)
def test_reductions_that_meet_are_too_short_at_closed_forms(case, fabric):
    """Experts and the other weights, the two replicas of a slice in DualPipe, or shards within and between groups."""
    assert share(case, fabric, "dp") > 0.2
    assert over_packets(case, fabric, "closed-form") < 0.95
