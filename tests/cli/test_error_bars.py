"""Every answer says how far to trust it: the class of its question, and the errors of that class in validation."""

import tomllib
from pathlib import Path

import pytest

import nadi as package
from nadi import et, topologies, validation
from nadi.validation import Question, collective_question, error_bars, errors_by_class, serving_questions, step_question
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan
from tests.cli.tiny_model import write_model
from tests.nonempty import nonempty

CLASSES = Path(validation.__file__).with_name("classes.toml")
STEPS = [
    ("qwen3-235b-a22b", "dp512", "megatron", "h200", "mixture-of-experts step on Hopper"),
    ("deepseek-v3", "dp64,fp8", "megatron", "GB300", "mixture-of-experts step on Blackwell Ultra"),
    ("mixtral-8x7b", "dp64", "fsdp", "h100", "mixture-of-experts step by fsdp"),
    ("llama3-70b", "dp64", "megatron", "a100", "dense 16-bit step on Ampere"),
    ("llama3-70b", "dp64,fp8", "megatron", "h100:power=500W", "dense FP8 step on Hopper"),
    ("llama3-70b", "dp64,fp4", "megatron", "b300", "dense FP4 step on Blackwell Ultra"),
    ("llama3-70b", "dp64", "megatron", "mi300x", "dense 16-bit step on AMD"),
    ("llama3-70b", "dp64", "megatron", "mine", "dense 16-bit step on another accelerator"),
    ("llama3-70b", "dp64,lora=16", "megatron", "h100", "step of LoRA fine-tuning"),
    ("llama3-70b", "dp64", "fsdp", "h100", "FSDP step on Hopper"),
    ("llama3-70b", "dp64", "deepspeed", "a100", "DeepSpeed step on Ampere"),
    ("mpt-7b", "dp64,software=fsdp-2023", "fsdp", "a100", "step on Ampere by fsdp-2023"),
]
COLLECTIVES = [
    ("dgx-h100:npus=2", "nccl", "NCCL of two GPUs"),
    ("dgx-h100:npus=8", "nccl:channels=4", "NCCL in one host"),
    ("dgx-h100:npus=16", "nccl", "NCCL over hosts"),
    ("gb200-nvl72:npus=72", "nccl", "NCCL in one rack"),
    ("gb200-nvl72:npus=144", "nccl", "NCCL over several racks"),
    ("dgx-h100:npus=8", "direct", "collective of GPUs by another algorithm than NCCL's"),
    ("mi300x-servers:npus=8", "direct", "collective of GPUs by another algorithm than NCCL's"),
    ("ring:npus=8", "ring", "collective of messages alone, beside another simulator"),
]


@pytest.mark.parametrize(("model", "plan", "framework", "gpu", "name"), STEPS)
def test_the_class_of_a_step_is_that_of_the_whole(model, plan, framework, gpu, name):
    """Also where its collectives go over hosts."""
    assert step_question(find(model), parallel_plan(plan), framework, gpu, 4.0).class_name() == name


@pytest.mark.parametrize(("topology", "algorithm", "name"), COLLECTIVES)
def test_the_class_of_a_collective_depends_on_machine_and_algorithm(topology, algorithm, name):
    assert collective_question(topologies.build(topology), algorithm).class_name() == name


def test_each_declared_class_is_the_first_of_some_question():
    """A class behind another one with weaker conditions would never be found."""
    fabric = topologies.build("dgx-h100:npus=16")
    questions = [
        *(step_question(find(model), parallel_plan(plan), *rest[:2], 4.0) for model, plan, *rest in STEPS),
        step_question(find("llama3-8b"), parallel_plan("dp64"), "megatron", "h100", 0.9),
        *(collective_question(topologies.build(topology), algorithm) for topology, algorithm, _ in COLLECTIVES),
        Question(subject="collective", gpu="mi300x", algorithm="nccl"),
        *(Question(subject="serving", gpu=gpu, experts=gpu == "h200") for gpu in ("h100", "h200", "b200")),
        *serving_questions(fabric, "h100"),
        Question(subject="step", faults=True),
        *(Question(subject=subject) for subject in ("jobs", "layer", "kernels", "memory", "messages", "traces")),
    ]
    declared = tomllib.loads(CLASSES.read_text())["class"]
    assert len({_rule(question) for question in questions}) == len(declared)


def _rule(question):
    """The class with its braces: names of fields that no name has, so that rules show."""
    return next(
        each["name"]
        for each in tomllib.loads(CLASSES.read_text())["class"]
        if all(question._meets(*of) for of in each["when"].items())
    )


def test_an_error_bar_has_the_errors_of_its_class():
    hopper = errors_by_class()["mixture-of-experts step on Hopper"]
    question = step_question(find("qwen3-235b-a22b"), parallel_plan("dp4096"), "megatron", "h200", 4.0)
    (bar,) = error_bars([question, question])
    found = bar.document()
    assert (found["cases"], found["mean"], found["worst"]) == (hopper.cases, hopper.mean, hopper.worst)
    assert f"mean {hopper.mean:.1%}, worst {hopper.worst:.1%} of {hopper.cases} cases" in bar.text()
    assert bar.text().endswith("none with 4,096 GPUs")  # more than were measured
    (bar,) = error_bars([step_question(find("llama3-70b"), parallel_plan("dp8"), "megatron", "mi300x", 4.0)])
    assert bar.text().endswith("(dense 16-bit step on AMD): no measured case")
    assert (bar.document()["cases"], bar.document()["mean"]) == (0, None)


@pytest.mark.slow
def test_a_plan_says_how_far_to_trust_it(nadi, tmp_path):
    command = ("plan", "--model", write_model(tmp_path), "--cluster", "small-a100", "--gpus", 4, "--confirm", 0)
    short = errors_by_class()["step shorter than a second"]
    text = "error of the step time in validation (step shorter than a second): "
    text += f"mean {short.mean:.1%}, worst {short.worst:.1%}"
    assert text in " ".join(nadi.ok(*command, "--out", tmp_path / "out").out.split())
    (answer,) = nadi.ok(*command, "--json").document["answers"].values()
    (said,) = [bar["text"] for bar in answer["error_bars"]]
    assert said.startswith(text)
    assert said[1:] in (tmp_path / "out" / "plan.html").read_text()
    merged = nadi.ok("plan", "--merge", tmp_path / "out", "--merge", tmp_path / "out", "--json").document["answers"]
    assert merged["merged"]["error_bars"] == answer["error_bars"]


def test_a_collective_says_how_far_to_trust_it(nadi, tmp_path):
    command = ("collective", "all-reduce", "-t", "dgx-h100:npus=4", "--fidelity", "closed-form", "-q")
    command += ("--algorithm", "nccl,direct", "--sizes", "1MiB,2MiB")
    names = ["NCCL in one host", "collective of GPUs by another algorithm than NCCL's"]
    bars = nadi.ok(*command, "--out", tmp_path / "out", "--json").document["error_bars"]
    assert [bar["class_name"] for bar in bars] == names
    said, page = " ".join(nadi.ok(*command).out.split()), (tmp_path / "out" / "collective.html").read_text()
    for bar in nonempty(bars):
        assert bar["text"] in said
        assert bar["text"][1:].replace("'", "&#39;") in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "names"),
    [
        ({"model": "gpt3-125m", "plan": "dp4,gb4"}, ["step shorter than a second"]),
        (
            {"model": "gpt3-125m", "plan": "tp2", "framework": "inference"},
            [f"serving on Ampere and Hopper: {quantity}" for quantity in ("time to first token", "tokens per second")],
        ),
        ({"traffic": {"sizes": "1MiB", "load": 0.1, "duration": "1ms"}}, ["messages without a model"]),
        ([et.coll_node(1, "x", et.CollectiveCommType.ALL_REDUCE, 4096)], ["run of traces"]),
    ],
)
def test_a_run_and_its_pages_say_how_far_to_trust_it(nadi, tmp_path, work, names):
    if isinstance(work, list):
        et.write_trace(tmp_path / "trace.et", et.metadata(), work)
        work = {"traces": str(tmp_path / "trace.et")}
    run = package.simulate(
        workload=work, topology={"cluster": "small-a100", "gpus": 4}, network={"fidelity": "flow"}, out=tmp_path / "run"
    )
    assert [bar["class_name"] for bar in run.summary["error_bars"]] == names
    pages = {
        "report.html": ("report", run.folder),
        "net.html": ("net", run.folder),
        "compare.html": ("compare", run.folder, run.folder),
    }
    for name, command in pages.items():
        nadi.ok(*command, "-o", tmp_path / name)
        for bar in nonempty(run.summary["error_bars"]):
            assert bar["text"][1:] in (tmp_path / name).read_text()


@pytest.mark.slow
def test_the_terminal_and_a_sweep_say_how_far_to_trust_a_run(nadi, tmp_path):
    (tmp_path / "run.toml").write_text(
        '[workload]\nmodel = "gpt3-125m"\nplan = "dp4,gb4"\n[topology]\ncluster = "small-a100"\n'
        '[network]\nfidelity = "closed-form"\n[[faults]]\nat = "1ms"\nnpu = 0\nslowdown = 2\n'
    )
    text = "error of the step time in validation (run with faults): no measured case"
    assert text in " ".join(nadi.ok("run", tmp_path / "run.toml", "-q").out.split())
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('run = "run.toml"\n[values]\n"topology.params.rate" = ["200Gbps", "400Gbps"]\n')
    nadi.ok("sweep", sweep, "--out", tmp_path / "out", "-q")
    assert text[1:] in (tmp_path / "out" / "sweep.html").read_text()
