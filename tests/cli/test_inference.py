"""`nadi workload inference`: its traces run to the end, and runs say when tokens came."""

import gc
import re
import weakref

import pytest

from nadi.cli.commands.workload.serving_network import network
from nadi.et import CollectiveCommType
from nadi.simulation.closed_forms import costs
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.workload.compute import IN_SERVING, find_gpu
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.generators.inference.deployment import iteration_clock, settle
from nadi.workload.generators.inference.scheduler import Batch, Prompts
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.item_lists import GroupCollective
from nadi.workload.trace_sets.files import read_set

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
def tiny(tmp_path):
    """A model file."""

    def write(kind):
        path = tmp_path / "tiny.toml"
        path.write_text(_PARTS[kind])
        return path

    return write


@pytest.fixture
def run_of(nadi, tmp_path):
    """Run the traces; the document."""

    def run(fidelity, folder="traces", groups="", pace=""):
        file = tmp_path / "run.toml"
        named = f'pace = "{pace}"\n' if pace else ""
        file.write_text(
            f'[topology]\nspec = "dgx-a100:npus=8"\n[workload]\ntraces = "{tmp_path / folder}"\n{groups}'
            f'[compute]\ngpu = "a100"\n{named}[network]\nfidelity = "{fidelity}"\n'
        )
        ran = nadi("run", file, "--json")
        assert ran.code == 0, ran.err
        return ran.document

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
def test_traces_run_to_the_end(nadi, tiny, run_of, tmp_path, kind, options):
    made = nadi("workload", "inference", "--model", tiny(kind), *options, "-o", tmp_path / "traces")
    assert made.code == 0, made.err
    for fidelity in ("analytical", "closed-form"):
        found = run_of(fidelity)["serving"]
        assert found["requests"] == 9
        assert 18 <= found["tokens"] <= 54
        assert all(found[kind][name] > 0 for kind in ("ttft", "tpot") for name in _TIMES)


def test_times_of_a_single_gpu_are_its_operators(nadi, tiny, run_of, tmp_path):
    """Two requests at once on one GPU: their first token after the first pass, four others each a pass later."""
    options = ("--plan", "tp1", "--batch", 2, "--prompt", 50, "--generate", 5, "-o", tmp_path / "traces")
    assert nadi("workload", "inference", "--model", tiny("gqa"), *options).code == 0
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


@pytest.mark.parametrize("plan", ["tp8", "tp4,pp2"])
def test_the_clock_with_a_network_is_that_of_a_run(nadi, tmp_path, plan):
    """A run at closed forms on the same cluster."""
    model, settled, gpu = find("llama3-8b"), settle(find("llama3-8b"), parallel_plan(plan)), find_gpu("h100")
    clock = iteration_clock(model, settled, gpu, network("dgx-h100-superpod", 8)(settled, 0))
    options = ("--plan", plan, "--prompt", 300, "--generate", 3, "--cluster", "dgx-h100-superpod")
    assert nadi("workload", "inference", "--model", "llama3-8b", *options, "-o", tmp_path / "traces").code == 0
    run = tmp_path / "run.toml"
    run.write_text(
        f'[topology]\ncluster = "dgx-h100-superpod"\ngpus = 8\n[workload]\ntraces = "{tmp_path / "traces"}"\n'
        '[network]\nfidelity = "closed-form"\n'
    )
    found = nadi("run", run, "--json").document["serving"]
    prompt, token = Batch((Prompts(1, 300, 0),), 0, 0, 1), Batch((), 1, 301, 1)
    assert found["ttft"]["p50_ps"] == pytest.approx(clock(prompt) * 1e6, rel=0.005)
    assert found["tpot"]["p50_ps"] == pytest.approx(clock(token) * 1e6, rel=0.005)


def test_first_tokens_count_from_the_arrival(nadi, tiny, run_of, tmp_path):
    """The second request comes when nothing is done any more."""
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,prompt,generate\n0.5,50,1\n2,50,1\n")
    options = ("--plan", "tp1", "--requests-file", file, "--gpu", "a100", "-o", tmp_path / "traces")
    assert nadi("workload", "inference", "--model", tiny("gqa"), *options).code == 0
    document = run_of("analytical")
    found = document["serving"]
    assert found["ttft"]["p50_ps"] == found["ttft"]["quantiles_ps"][-1] < 1e9
    assert document["finish_time_ps"] == 2e12 + found["ttft"]["p50_ps"]
    assert "tpot" not in found


def test_the_report_tells_of_requests_and_expanded_traces_do_the_same(nadi, tiny, run_of, tmp_path):
    options = ("--plan", "tp2,pp2", "--batch", 2, "--prompt", 50, "--generate", 5)
    for folder, more in (("traces", ()), ("plain", ("--expand",))):
        made = nadi("workload", "inference", "--model", tiny("gqa"), *options, "-o", tmp_path / folder, *more)
        assert made.code == 0
    groups = f'groups = "{tmp_path / "plain" / "groups.json"}"\n'
    assert run_of("analytical")["serving"] == run_of("analytical", "plain/trace", groups)["serving"]
    shared = nadi("run", tmp_path / "run.toml", "--json", "--workers", 2)
    assert shared.document["serving"] == run_of("analytical", "plain/trace", groups)["serving"]
    shown = nadi("run", tmp_path / "run.toml").out
    assert "serving: 2 requests, 10 tokens" in shown
    assert "TTFT, time to first token" in shown
    assert "TPOT, time per output token" in shown
    assert "-: too few requests; needed are 1 / (1 - p): p90 10, p95 20, p99 100" in shown


def test_operators_of_serving_have_a_pace_of_their_own(nadi, tiny, run_of, tmp_path):
    """Operators of a server that replays CUDA graphs take their time alone; in a training step they take longer."""
    options = ("--plan", "tp1", "--prompt", 50, "--generate", 5, "-o", tmp_path / "traces")
    assert nadi("workload", "inference", "--model", tiny("gqa"), *options).code == 0
    finish_ps = {pace: run_of("closed-form", pace=pace)["finish_time_ps"] for pace in ("", "serving", "alone", "step")}
    assert finish_ps[""] == finish_ps["serving"] == finish_ps["alone"] < finish_ps["step"]


def test_report_and_comparison_show_times_of_requests(nadi, tiny, run_of, tmp_path):
    options = ("--plan", "tp2", "--batch", 4, "--requests", 100, "--prompt", 50, "--generate", "uniform:2-9")
    assert nadi("workload", "inference", "--model", tiny("gqa"), *options, "-o", tmp_path / "traces").code == 0
    found = run_of("closed-form")["serving"]
    quantiles_ps = found["ttft"]["quantiles_ps"]
    assert quantiles_ps == sorted(quantiles_ps)
    assert (quantiles_ps[50], quantiles_ps[90]) == (found["ttft"]["p50_ps"], found["ttft"]["p90_ps"])
    assert nadi("run", tmp_path / "run.toml", "--out", tmp_path / "out").code == 0
    assert nadi("report", tmp_path / "out").code == 0
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
        lambda *given: made.append(weakref.ref(found := IsolatedCollectives(*given))) or found,
    )
    link = network("dgx-h100-superpod", 8)(settle(find("llama3-8b"), parallel_plan("tp8")), 0)
    for tokens in range(1, 80):
        link.collective_ps(GroupCollective("all-reduce", CollectiveCommType.ALL_REDUCE, tokens * 8192, "tp"))
    gc.collect()
    assert len(made) > 4 * costs._MAX_KEPT_PLANS
    assert sum(reference() is not None for reference in made) <= 2 * costs._MAX_KEPT_PLANS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--plan"),
        (("--plan", "tp2", "--decode-plan", "tp2"), "--plan"),
        (("--plan", "tp3"), "divisor"),
        (("--plan", "tp2,sp"), "sequence_parallel"),
        (("--plan", "tp2,zero1"), "zero"),
        (("--plan", "cp2"), "cp"),
        (("--plan", "tp2,etp2,ep2"), "ep"),
        (("--plan", "tp2", "--batch", 0), "batch"),
        (("--plan", "tp2", "--rate", 3), "gpu"),
        (("--prefill-plan", "tp2", "--decode-plan", "tp2"), "gpu"),
        (("--plan", "tp2", "--prompt", "some"), "--prompt"),
        (("--plan", "tp2", "--prompt", 300), "positions"),
        (("--plan", "tp2", "--chunk", 2, "--batch", 4), "chunk"),
        (("--plan", "tp2", "--kv-tokens", 100), "KV cache"),
        (("--plan", "tp2", "--gpu", "h1000"), "h1000"),
        (("--plan", "tp2", "--cluster", "h1000"), "h1000"),
        (("--plan", "tp2", "--requests-file", "none.csv"), "none.csv"),
        (("--plan", "tp2", "--kv-transfer", "half"), "--kv-transfer"),
    ],
)
def test_what_cannot_be_is_one_line(nadi, tiny, tmp_path, options, said):
    made = nadi(
        "workload",
        "inference",
        "--model",
        tiny("dense"),
        "--prompt",
        200,
        "--generate",
        9,
        *options,
        "-o",
        tmp_path / "traces",
    )
    assert (made.code, made.err.count("\n")) == (2, 1), made.err
    assert said in made.err
    assert not (tmp_path / "traces").exists()


def test_more_tokens_than_memory_are_one_line_at_once(nadi, tiny, tmp_path):
    options = ("--plan", "tp1", "--requests", 20_000, "--prompt", 9, "--generate", 1_000_000, "-o", tmp_path / "traces")
    made = nadi("workload", "inference", "--model", tiny("gqa"), *options)
    assert (made.code, made.err.count("\n")) == (2, 1)
    assert "fewer requests or tokens" in made.err


def test_weights_beyond_the_memory_are_one_line(nadi, tmp_path):
    options = ("--model", "llama3-405b", "--plan", "tp8", "--gpu", "h100", "-o", tmp_path / "traces")
    made = nadi("workload", "inference", *options)
    assert (made.code, made.err.count("\n")) == (2, 1)
    assert "97.6 GiB" in made.err
