"""Runs of models and plans: training and serving, from run files, options and the traces of generators."""

import gc
import json
import re
import weakref

import numpy as np
import pytest

from nadi.cli.commands.workload.generation import serving_network
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.et import CollectiveCommType
from nadi.simulation.assembly.reading import WorkReader
from nadi.simulation.closed_forms import costs, running
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.workload import write_set
from nadi.workload.compute import IN_SERVING, find_gpu
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.generators.inference.deployment import iteration_clock, settle
from nadi.workload.generators.inference.scheduler import Batch, Prompts
from nadi.workload.generators.inference.software import serving_software
from nadi.workload.generators.models import find, training_flops
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.item_lists import GroupCollective
from nadi.workload.trace_sets.files import read_set

MODEL = """
layers = 4
hidden = 256
heads = 4
vocab = 1024
sequence = 128
"""
PLAN = "tp2,pp2,dp2,gb8"
ON = ("--cluster", "dgx-h100-superpod", "--fidelity", "closed-form", "--quiet", "--json")


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(MODEL)
    return file


@pytest.fixture
def run_file(model, tmp_path):  # noqa: ARG001 - its file
    def write(workload=f'model = "small.toml"\nplan = "{PLAN}"', topology='cluster = "dgx-h100-superpod"', text=""):
        file = tmp_path / "run.toml"
        file.write_text(f"[workload]\n{workload}\n[topology]\n{topology}\n{text}")
        return file

    return write


def test_a_run_needs_no_file(nadi, model):
    """What is settled is said; the figures are those of the model, and the parts of the step are the whole."""
    found = nadi("run", "--model", model, "--plan", PLAN, *ON).document
    config, step = found["config"], found["step"]
    assert config["workload"]["model"] == str(model)
    assert parallel_plan(config["workload"]["plan"]) == parallel_plan(f"{PLAN},seq128,schedule=1f1b")
    assert (config["topology"]["gpus"], config["compute"]["gpu"], found["npus"]) == (8, "h100", 8)
    seconds = found["finish_time_ps"] / 1e12
    assert step["tokens_per_s"] == pytest.approx(8 * 128 / seconds)
    assert step["model_flops"] == step["hardware_flops"] == training_flops(find(str(model)), 8, causal=True)
    assert step["mfu"] == pytest.approx(step["model_flops"] / (seconds * 8 * 989e12), rel=0.01)
    assert step["model_flops_all_pairs"] == training_flops(find(str(model)), 8)
    assert step["mfu_all_pairs"] / step["mfu"] == pytest.approx(step["model_flops_all_pairs"] / step["model_flops"])
    assert step["hfu_all_pairs"] == step["mfu_all_pairs"] > step["mfu"]
    assert sum(step[f"{name}_ps"] for name in STEP_CATEGORIES) == pytest.approx(found["finish_time_ps"])
    for name in ("compute", "tp", "dp", "pp", "world", "bubble"):
        assert step[f"{name}_ps"] > 0
    assert step["cp_ps"] == step["ep_ps"] == step["unnamed_ps"] == 0
    assert 0 < step["other_ps"] < 5e9  # hosts between the norm of the gradients and the next step


def test_recomputation_is_hardware_work_only(nadi, model):
    without = nadi("run", "--model", model, "--plan", PLAN, *ON).document["step"]
    full = nadi("run", "--model", model, "--plan", f"{PLAN},recompute=full", *ON).document["step"]
    assert full["model_flops"] == without["model_flops"]
    assert full["hfu"] / full["mfu"] == pytest.approx(full["hardware_flops"] / full["model_flops"])
    assert full["hardware_flops"] > full["model_flops"]
    assert full["mfu"] < without["mfu"]


@pytest.mark.parametrize("fidelity", ["packet", "analytical", "closed-form"])
def test_is_what_its_traces_are(nadi, model, run_file, tmp_path, fidelity):
    """The set that the generator makes, written and read, runs to the same digest."""
    write_set(tmp_path / "traces", generate(find(str(model)), parallel_plan(PLAN)))
    text = f'[network]\nfidelity = "{fidelity}"\n'
    topology = 'spec = "fat-tree:k=4,rate=400Gbps"'
    compute = '[compute]\ngpu = "h100"\n'
    by_model = nadi("run", run_file(topology=topology, text=text + compute), "--quiet", "--json").document
    of_files = run_file('traces = "traces"', topology, text + compute)
    by_traces = nadi("run", of_files, "--quiet", "--json").document
    assert by_model["digest"] == by_traces["digest"]
    assert "mfu" in by_model["step"]
    assert "mfu" not in by_traces["step"]
    assert by_model["step"]["tp_ps"] == by_traces["step"]["tp_ps"]
    assert by_model["warnings"] == ["8 of 16 NPUs have nothing to do: the plan is of 8 GPUs"]


def test_memories_of_hosts_are_no_idle_npus(nadi, model):
    """The run has put a ninth endpoint beside the plan's eight GPUs."""
    there = ("--set", "memory.remote=node", "--set", "memory.remote_bandwidth=100GB/s")
    found = nadi("run", "--model", model, "--plan", f"{PLAN},offload=optimizer", *ON, *there).document
    assert (found["npus"], found["warnings"]) == (9, [])


def test_npus_that_are_folded_have_the_times_of_those_that_are_not(nadi, model, monkeypatch):
    whole = nadi("run", "--model", model, "--plan", "tp2,pp4,dp4,gb16", *ON).document
    monkeypatch.setattr(running, "MAX_ROWS", 0)
    folded = nadi("run", "--model", model, "--plan", "tp2,pp4,dp4,gb16", *ON).document
    assert folded["digest"] == whole["digest"]
    assert folded["step"] == whole["step"]


def test_the_report_says_where_the_step_went(nadi, run_file):
    """With the options over what the file says."""
    out = nadi("run", run_file(), "--plan", "tp4,dp2,gb4", "--fidelity", "closed-form", "--quiet").out
    assert "tokens/s" in out
    assert re.search(r"MFU \d+\.\d% \(\d+\.\d% with all pairs of query and key\)", out)
    again = nadi("run", run_file(), "--plan", "tp4,dp2,gb4,recompute=full", "--fidelity", "closed-form", "-q").out
    assert re.search(r"MFU [\d.]+%, HFU [\d.]+% \([\d.]+% and [\d.]+% with all pairs of query and key\)", again)
    assert "time of 8 NPUs by category" in out
    assert "exposed tp" in out
    assert "exposed pp" not in out


def test_a_rank_has_the_traces_of_its_own_npus(run_file):
    own = np.arange(8) < 3
    small = WorkReader.of(load_config(run_file()))
    assert small.traces(np.arange(8), own).trace_of_npu.tolist() == [0, 0, 0, -2, -2, -2, -2, -2]
    ring = run_file(topology='spec = "ring:npus=10"', text='[compute]\ngpu = "h100"\n')
    assert WorkReader.of(load_config(ring)).work().trace_of_npu.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, -1, -1]


def test_what_does_not_fit_is_said(run_file):
    large = load_config(run_file('model = "llama3-70b"\nplan = "tp8"'))
    (said,) = large.model_warnings()
    assert said.startswith("does not fit: ")
    assert load_config(run_file()).model_warnings() == []


def test_plans_may_be_tables(run_file):
    table = 'model = "small.toml"\n[workload.plan]\ntp = 2\npp = 2\ndp = 2\nglobal_batch = 8'
    assert load_config(run_file(table)).workload == load_config(run_file()).workload
    with pytest.raises(ConfigError, match=r"\[workload\] plan: 7 is no plan"):
        load_config(run_file('model = "small.toml"\nplan = 7'))
    json.dumps(load_config(run_file()).settled())


SERVED = 'model = "small.toml"\nplan = "tp2,dp2"\nframework = "inference"'
ASKED = (
    '[serving]\nbatch = 3\nrequests = 10\nprompt = "uniform:4-40"\ngenerate = 5\n[network]\nfidelity = "closed-form"'
)


def test_a_served_model_runs_as_its_traces_do(nadi, run_file, model, tmp_path):
    """Those of `nadi workload inference` with the same options."""
    found = nadi("run", run_file(SERVED, text=ASKED), "--json", "-q").document
    assert (found["npus"], found["config"]["topology"]["gpus"]) == (4, 4)
    asked = "--batch", 3, "--requests", 10, "--prompt", "uniform:4-40", "--generate", 5, "--gpu", "h100"
    where = "--model", model, "--plan", "tp2,dp2", "-o", tmp_path / "traces"
    nadi.ok("workload", "inference", *where, *asked)
    cluster = 'cluster = "dgx-h100-superpod"\ngpus = 4'
    text = '[network]\nfidelity = "closed-form"'
    made = nadi("run", run_file(f'traces = "{tmp_path / "traces"}"', cluster, text), "--json", "-q").document
    assert found["finish_time_ps"] == made["finish_time_ps"] > 0
    assert found["serving"] == made["serving"]
    assert found["serving"]["requests"] == 10
    assert "step" not in found or "mfu" not in found["step"]


def test_a_folder_of_plain_traces_has_its_groups_beside_them(nadi, tmp_path):
    nadi(
        "workload", "megatron", "--model", "gpt3-125m", "--plan", "tp2,dp2,gb4,seq128", "--expand", "-o", tmp_path / "t"
    )
    assert (tmp_path / "t" / "groups.json").is_file()
    file = tmp_path / "run.toml"
    common = '[topology]\ncluster = "dgx-h100-superpod"\ngpus = 4\n[network]\nfidelity = "closed-form"\n[workload]\n'
    prefix = next((tmp_path / "t").glob("*.0.et")).name.removesuffix(".0.et")
    digests = set()
    for section in ('traces = "t"', f'traces = "t/{prefix}"\ngroups = "t/groups.json"'):
        file.write_text(common + section)
        digests.add(nadi("run", file, "--json").document["digest"])
    assert len(digests) == 1


_MODEL = """
name = "tiny"
layers = 8
hidden = 64
heads = 4
vocab = 512
sequence = 64
"""
_EXPERTS = """
[experts]
count = 4
top_k = 2
ffn = 64
"""
_PLANS = {
    "megatron": [
        "tp2,pp2,dp2,gb8",
        "tp2,pp2,dp2,gb8,sp,zero1,gpipe,recompute=full",
        "pp2,dp2,vpp2,gb8,cp2,recompute=selective",
        "pp4,dp2,zero-bubble,gb16",
        "pp4,dualpipe,gb16,ep2,dp2",
        "tp2,sp,dp4,ep4,gb16,imbalance=1.5,cp1",
        "cp4,dp2,gb8,context=all-gather,zero1",
    ],
    "deepspeed": [
        "dp8,zero1,gb16",
        "dp4,zero2,gb8,pp1,tp2",
        "dp8,zero3,gb16",
        "pp2,dp4,gb16",
        "cp2,context=a2a,dp4,gb8",
    ],
    "fsdp": ["dp8,gb16", "dp4,tp2,sp,gb8,zero2", "pp2,dp4,gb16,gpipe", "pp2,vpp2,dp4,gb16,ep4,recompute=full"],
}


@pytest.fixture
def tiny(tmp_path):
    def write(plan):
        path = tmp_path / "tiny.toml"
        path.write_text(_MODEL + (_EXPERTS if "ep" in plan else ""))
        return path

    return write


@pytest.mark.parametrize(("framework", "plan"), [(name, plan) for name, plans in _PLANS.items() for plan in plans])
def test_traces_run_to_the_end(nadi, tiny, tmp_path, framework, plan):
    nadi.ok("workload", framework, "--model", tiny(plan), "--plan", plan, "-o", tmp_path / "traces")
    run = tmp_path / "run.toml"
    run.write_text(
        f'[topology]\nspec = "dgx-a100:npus=8"\n[workload]\ntraces = "{tmp_path / "traces"}"\n'
        '[compute]\ngpu = "a100"\n[network]\nfidelity = "analytical"\n'
    )
    assert nadi.ok("run", run, "--json").document["finish_time_ps"] > 0


def test_expanded_traces_do_the_same(nadi, tiny, tmp_path):
    plan = "tp2,pp2,dp2,gb8,cp1"
    for folder, more in (("set", ()), ("plain", ("--expand",))):
        nadi.ok("workload", "megatron", "--model", tiny(plan), "--plan", plan, "-o", tmp_path / folder, *more)
    assert len(list((tmp_path / "set").glob("*.et"))) == 2
    assert len(list((tmp_path / "plain").glob("*.et"))) == 8
    assert len(json.loads((tmp_path / "plain" / "groups.json").read_text())) > 1


_PARTS = {
    "dense": 'name = "tiny"\nlayers = 4\nhidden = 64\nheads = 4\nvocab = 512\nsequence = 256\n',
    "gqa": 'name = "tiny"\nlayers = 4\nhidden = 64\nheads = 4\nkv_heads = 2\nvocab = 512\nsequence = 256\n'
    'positions = "rotary"\nactivation = "swiglu"\n',
    "experts": 'name = "tiny"\nlayers = 4\nhidden = 64\nheads = 4\nvocab = 512\nsequence = 256\npositions = "rotary"\n'
    "[latent]\nkey_value_rank = 16\nnope_dim = 8\nrope_dim = 4\nvalue_dim = 8\n"
    "[experts]\ncount = 8\ntop_k = 2\nffn = 64\nfirst_dense = 1\n",
}
_TIMES = ("mean_ps", "p50_ps")


@pytest.fixture
def served(tmp_path):
    def write(kind):
        path = tmp_path / "tiny.toml"
        path.write_text(_PARTS[kind])
        return path

    return write


@pytest.fixture
def run_of(nadi, tmp_path):
    def run(fidelity, folder="traces", groups="", pace=""):
        file = tmp_path / "run.toml"
        named = f'pace = "{pace}"\n' if pace else ""
        file.write_text(
            f'[topology]\nspec = "dgx-a100:npus=8"\n[workload]\ntraces = "{tmp_path / folder}"\n{groups}'
            f'[compute]\ngpu = "a100"\n{named}[network]\nfidelity = "{fidelity}"\n'
        )
        return nadi.ok("run", file, "--json").document

    return run


_STREAM = ("--requests", 9, "--prompt", "uniform:5-60", "--generate", "uniform:2-6", "--batch", 3)
_CASES = [
    ("dense", ("--plan", "tp2,pp2,dp2", *_STREAM)),
    ("dense", ("--plan", "tp4,dp2", "--rate", 5000, "--gpu", "a100", *_STREAM)),
    ("gqa", ("--plan", "tp2,pp4", "--chunk", 16, *_STREAM)),
    ("gqa", ("--prefill-plan", "tp4", "--decode-plan", "tp2,dp2", "--gpu", "a100", *_STREAM)),
    ("experts", ("--plan", "dp8,ep8,imbalance=1", *_STREAM)),
    ("experts", ("--prefill-plan", "tp2,ep2,pp2", "--decode-plan", "tp2,dp2,ep4", "--gpu", "a100", *_STREAM)),
]


@pytest.mark.parametrize(("kind", "options"), _CASES)
def test_traces_of_serving_run_to_the_end(nadi, served, run_of, tmp_path, kind, options):
    nadi.ok("workload", "inference", "--model", served(kind), *options, "-o", tmp_path / "traces")
    for fidelity in ("analytical", "closed-form"):
        found = run_of(fidelity)["serving"]
        assert found["requests"] == 9
        assert 18 <= found["tokens"] <= 54
        assert all(found[kind][name] > 0 for kind in ("ttft", "tpot") for name in _TIMES)


def test_times_of_a_single_gpu_are_its_operators(nadi, served, run_of, tmp_path):
    """Two requests at once on one GPU: their first token after the first pass, four others each a pass later."""
    options = ("--plan", "tp1", "--batch", 2, "--prompt", 50, "--generate", 5, "-o", tmp_path / "traces")
    nadi.ok("workload", "inference", "--model", served("gqa"), "--software", "none", *options)
    times, took_ps = ComputeTimes(find_gpu("a100"), pace=IN_SERVING), {}
    (trace,) = read_set(tmp_path / "traces").traces
    for name, row in zip(trace.names, trace.operators.tolist(), strict=True):
        first = name.split("/")[0]
        took_ps[first] = took_ps.get(first, 0) + times.text_ps(trace.operator_lists[row])
    found = run_of("analytical")["serving"]
    steps = [took_ps[f"iteration{number}"] for number in range(1, 5)]
    assert found["ttft"]["p50_ps"] == found["ttft"]["quantiles_ps"][-1] == took_ps["iteration0"]
    assert (found["ttft"]["p90_ps"], found["ttft"]["p99_ps"]) == (None, None)  # of two requests
    assert found["tpot"]["p50_ps"] == pytest.approx(sum(steps) / 4)
    assert found["tokens_per_s"] == pytest.approx(10 / (took_ps["iteration0"] + sum(steps)) * 1e12)


_SOFTWARE = ("none", "vllm-v0", "vllm-v1", "tensorrt-llm-0.5", "vllm-v1-async", "vllm-v1-async:iteration_us=20000")


@pytest.mark.parametrize(("plan", "software"), [("tp4,pp2", "none"), *(("tp8", name) for name in _SOFTWARE)])
def test_the_clock_with_a_network_is_that_of_a_run(nadi, tmp_path, plan, software):
    """A run at closed forms on the same cluster."""
    model, settled, gpu = find("llama3-8b"), settle(find("llama3-8b"), parallel_plan(plan)), find_gpu("h100")
    host = serving_software(software)
    clock = iteration_clock(model, settled, gpu, host, serving_network("dgx-h100-superpod", 8)(settled, 0))
    options = ("--plan", plan, "--prompt", 300, "--generate", 9, "--cluster", "dgx-h100-superpod")
    options = (*options, "--software", software)
    nadi.ok("workload", "inference", "--model", "llama3-8b", *options, "-o", tmp_path / "traces")
    run = tmp_path / "run.toml"
    run.write_text(
        f'[topology]\ncluster = "dgx-h100-superpod"\ngpus = 8\n[workload]\ntraces = "{tmp_path / "traces"}"\n'
        '[network]\nfidelity = "closed-form"\n'
    )
    found = nadi("run", run, "--json").document["serving"]
    prompt, token = Batch((Prompts(1, 300, 0),), 0, 0, 1), Batch((), 1, 301, 1)
    # The GPU has nothing to do while the host works for the first pass
    waiting = host.model_copy(update={"is_overlapped": False})
    first = iteration_clock(model, settled, gpu, waiting, serving_network("dgx-h100-superpod", 8)(settled, 0))
    assert found["ttft"]["p50_ps"] == pytest.approx((host.request_us + first(prompt)) * 1e6, rel=0.005)
    # Where the host takes longer than the GPU, a pass after its work is shorter for a token than for the prompt
    shorter_us = first(prompt) - first(token) if clock(token) == host.gap_us + host.beside_us(token) else 0
    assert found["tpot"]["p50_ps"] == pytest.approx((clock(token) - shorter_us / 8) * 1e6, rel=0.005)


def test_first_tokens_count_from_the_arrival(nadi, served, run_of, tmp_path):
    """The second request comes when nothing is done any more."""
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,prompt,generate\n0.5,50,1\n2,50,1\n")
    options = ("--plan", "tp1", "--requests-file", file, "--gpu", "a100", "-o", tmp_path / "traces")
    took_ps = {}
    for software in ("none", "none:request_us=700,iteration_us=300,sequence_us=20,prompt_us=50,gap_us=4"):
        nadi.ok("workload", "inference", "--model", served("gqa"), *options, "--software", software)
        document = run_of("analytical")
        found = document["serving"]
        took_ps[software] = found["ttft"]["p50_ps"]
        assert found["ttft"]["p50_ps"] == found["ttft"]["quantiles_ps"][-1]
        assert document["finish_time_ps"] == 2e12 + found["ttft"]["p50_ps"]
        assert "tpot" not in found
    ideal_ps, real_ps = took_ps.values()
    assert 0 < ideal_ps < 1e9
    assert real_ps == ideal_ps + 1074e6


def test_the_report_tells_of_requests_and_expanded_traces_do_the_same(nadi, served, run_of, tmp_path):
    options = ("--plan", "tp2,pp2", "--batch", 2, "--prompt", 50, "--generate", 5)
    for folder, more in (("traces", ()), ("plain", ("--expand",))):
        nadi.ok("workload", "inference", "--model", served("gqa"), *options, "-o", tmp_path / folder, *more)
    groups = f'groups = "{tmp_path / "plain" / "groups.json"}"\n'
    assert run_of("analytical")["serving"] == run_of("analytical", "plain/trace", groups)["serving"]
    shared = nadi("run", tmp_path / "run.toml", "--json", "--workers", 2)
    assert shared.document["serving"] == run_of("analytical", "plain/trace", groups)["serving"]
    shown = nadi("run", tmp_path / "run.toml").out
    assert "serving: 2 requests, 10 tokens" in shown
    assert "TTFT, time to first token" in shown
    assert "TPOT, time per output token" in shown
    assert "-: too few requests; needed are 1 / (1 - p): p90 10, p95 20, p99 100" in shown


def test_operators_of_serving_have_a_pace_of_their_own(nadi, served, run_of, tmp_path):
    """Operators of a server that replays CUDA graphs take their time alone; in a training step they take longer."""
    options = ("--plan", "tp1", "--prompt", 50, "--generate", 5, "-o", tmp_path / "traces")
    nadi.ok("workload", "inference", "--model", served("gqa"), *options)
    finish_ps = {pace: run_of("closed-form", pace=pace)["finish_time_ps"] for pace in ("", "serving", "alone", "step")}
    assert finish_ps[""] == finish_ps["serving"] == finish_ps["alone"] < finish_ps["step"]


def test_report_and_comparison_show_times_of_requests(nadi, served, run_of, tmp_path):
    options = ("--plan", "tp2", "--batch", 4, "--requests", 100, "--prompt", 50, "--generate", "uniform:2-9")
    nadi.ok("workload", "inference", "--model", served("gqa"), *options, "-o", tmp_path / "traces")
    found = run_of("closed-form")["serving"]
    quantiles_ps = found["ttft"]["quantiles_ps"]
    assert quantiles_ps == sorted(quantiles_ps)
    assert (quantiles_ps[50], quantiles_ps[90]) == (found["ttft"]["p50_ps"], found["ttft"]["p90_ps"])
    nadi.ok("run", tmp_path / "run.toml", "--out", tmp_path / "out")
    nadi.ok("report", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert re.search("<h1>.* on .*: median TTFT [0-9.]+ .?s, TPOT [0-9.]+ .?s</h1>", page)
    assert "TTFT: time to first token, cumulative distribution" in page
    assert "TPOT: time per output token, cumulative distribution" in page
    assert "Sends, and the messages that collectives are made of" not in page
    compared = nadi("compare", tmp_path / "out", tmp_path / "out", "--json").document
    values = {row["name"]: row["values"] for row in compared["figures"]} if "figures" in compared else {}
    assert values["ttft_p99_ps"] == [found["ttft"]["p99_ps"]] * 2
    assert found["ttft"]["p99_ps"] > found["ttft"]["p50_ps"]


def test_a_clock_that_is_asked_for_many_sizes_keeps_few_plans(monkeypatch):
    """Each new size of NCCL's may need a plan of its own; what stays in memory is bounded."""
    made = []
    monkeypatch.setattr(costs, "_MAX_KEPT_PLANS", 4)
    monkeypatch.setattr(
        costs,
        "IsolatedCollectives",
        lambda *given, **named: made.append(weakref.ref(found := IsolatedCollectives(*given, **named))) or found,
    )
    link = serving_network("dgx-h100-superpod", 8)(settle(find("llama3-8b"), parallel_plan("tp8")), 0)
    for tokens in range(1, 80):
        link.collective_ps(GroupCollective("all-reduce", CollectiveCommType.ALL_REDUCE, tokens * 8192, "tp"))
    gc.collect()
    assert len(made) > 6 * costs._MAX_KEPT_PLANS
    kept = sum(reference() is not None for reference in made)
    assert kept <= 3 * costs._MAX_KEPT_PLANS  # packets, formulas and flows of each plan
