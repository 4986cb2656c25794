"""Runs of a model and a plan: without traces, with a run file and without."""

import json
import re

import numpy as np
import pytest

from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.simulation.closed_forms import running
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.simulation.wiring.reading import WorkReader
from nadi.workload import write_set
from nadi.workload.generators.models import find, training_flops
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate

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
    """A small model in a file."""
    file = tmp_path / "small.toml"
    file.write_text(MODEL)
    return file


@pytest.fixture
def run_file(model, tmp_path):  # noqa: ARG001 - its file
    """Write a run file of that model."""

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
    assert step["cp_ps"] == step["ep_ps"] == step["unnamed_ps"] == step["other_ps"] == 0


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
    (said,) = large.remarks()
    assert said.startswith("does not fit: ")
    assert load_config(run_file()).remarks() == []


@pytest.mark.parametrize(
    ("workload", "topology", "words"),
    [
        (
            'model = "gpt3-1.3b"',
            'cluster = "selene"',
            '[workload]: found model alone; expected plan, as "tp8,pp4,dp32"',
        ),
        ('plan = "tp8"', 'cluster = "selene"', "[workload]: found neither of traces and model"),
        ('traces = "x"\nmodel = "y"\nplan = "tp1"', 'cluster = "selene"', "[workload]: found both of traces and model"),
        ('traces = "x"\nplan = "tp1"', 'cluster = "selene"', "[workload]: found plan alone; expected model beside it"),
        (
            f'model = "small.toml"\nplan = "{PLAN}"\ngroups = "g"',
            'cluster = "selene"',
            "[workload]: groups are set beside model",
        ),
        ('model = "gpt5"\nplan = "tp8"', 'cluster = "selene"', "model 'gpt5': not in the library, nearest"),
        ('model = "small.toml"\nplan = "tp3"', 'cluster = "selene"', "tp is 3, expected a divisor of the 4 heads"),
        ('model = "small.toml"\nplan = "tp8x"', 'cluster = "selene"', "[workload] plan: plan: 'tp8x', expected"),
        ('model = "small.toml"\nplan = "dp12,gb12"', 'cluster = "selene"', "gpus = 12 of selene; expected"),
        (
            f'model = "small.toml"\nplan = "{PLAN}"',
            'spec = "ring:npus=8"',
            "[compute] gpu: missing beside [workload] model",
        ),
    ],
)
def test_mistakes_get_one_line(nadi, run_file, workload, topology, words):
    outcome = nadi("run", run_file(workload, topology))
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_plan_of_more_gpus_than_there_are_says_what_would_do(nadi, run_file):
    outcome = nadi("run", run_file(topology='cluster = "dgx-h100-superpod"\ngpus = 4'))
    assert outcome.code == 2
    assert "is of 8 GPUs, the fabric has 4 NPUs; expected dp1 (4 GPUs), or a fabric of 8" in outcome.err


def test_without_file_and_model_one_line_says_what_to_give(nadi):
    outcome = nadi("run")
    assert outcome.code == 2
    assert "expected RUN.toml, or --model NAME --plan PLAN --cluster NAME" in outcome.err


def test_plans_may_be_tables(run_file):
    table = 'model = "small.toml"\n[workload.plan]\ntp = 2\npp = 2\ndp = 2\nglobal_batch = 8'
    assert load_config(run_file(table)).workload == load_config(run_file()).workload
    with pytest.raises(ConfigError, match=r"\[workload\] plan: 7 is no plan"):
        load_config(run_file('model = "small.toml"\nplan = 7'))
    json.dumps(load_config(run_file()).settled())


def test_a_step_beyond_memory_is_refused_before_it_is_made(nadi, model):
    outcome = nadi("run", "--model", model, "--plan", "tp2,gb1000000,steps=1000000", *ON)
    assert outcome.code == 2
    assert "expected fewer micro-batches or steps, or --force" in outcome.err


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
    assert nadi("workload", "inference", *where, *asked).code == 0
    cluster = 'cluster = "dgx-h100-superpod"\ngpus = 4'
    text = '[network]\nfidelity = "closed-form"'
    made = nadi("run", run_file(f'traces = "{tmp_path / "traces"}"', cluster, text), "--json", "-q").document
    assert found["finish_time_ps"] == made["finish_time_ps"] > 0
    assert found["serving"] == made["serving"]
    assert found["serving"]["requests"] == 10
    assert "step" not in found or "mfu" not in found["step"]


@pytest.mark.parametrize(
    ("workload", "text", "words"),
    [
        (f'model = "small.toml"\nplan = "{PLAN}"', "[serving]\nbatch = 2", "[serving] is set without a model that is"),
        (SERVED, '[serving]\nprompt = "many"', "[serving] prompt: tokens: 'many', expected tokens as 1024, uniform"),
        (SERVED, "[serving]\nbatch = 0", "[serving] batch"),
        (SERVED, "[serving]\nbatch = 8\nchunk = 4", "chunk: 4 tokens, expected at least one for each of batch (8)"),
        (SERVED.replace("dp2", "dp2,sp"), "", "sequence_parallel is True, which serving does not know"),
    ],
)
def test_mistakes_of_serving_get_one_line(nadi, run_file, workload, text, words):
    outcome = nadi("run", run_file(workload, text=text))
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


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
