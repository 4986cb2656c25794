"""The commands of the how-to pages and of those about fabrics run in an empty folder, some in processes."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nadi.cli.main import main
from tests.docs.pages import DOCS, blocks, name_of
from tests.et.pytorch.recorded import call, kernel, kineto, nccl_kernel, op, written
from tests.nonempty import nonempty
from tests.studies.published_sites import AWS_P5, log_of
from tests.topologies.test_servers import MATRIX, PARTIAL

FABRICS = DOCS / "explanation" / "fabrics"
PAGES = sorted([*(DOCS / "how-to").glob("*.md"), *FABRICS.glob("*.md")])
PICTURES = DOCS / "images" / "fabrics"
LIMIT_S = 300
NPUS = 8
LEFT_OUT = ("sbatch ", "mpiexec ", "nadi trace collect ")
"""Commands that need a cluster, many cores or PyTorch; tests/slurm, tests/parallel and tests/cli have them."""
_PART = re.compile(r"^```(\w*)\n(.*?)^```$|^    (\S[^\n]*)$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w-]+\.(?:toml|py))`")
CLUSTER_RUN = """
[workload]
traces = "traces/incast"
[topology]
spec = "leaf-spine:npus=64,hosts_per_leaf=1,spines=2,rate=100Gbps"
"""
INCAST = ("traffic", "incast", "--npus", "64", "--fan-in", "8", "--size", "64KiB", "--prefix", "incast", "-o", "traces")
MODEL = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 1024,
"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 32000,
"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu"}"""


# Steps of 8 H100 with 25 ms of host time: `nadi run` with compute.gpu = "h100:step_host=25ms", times noise of 1 %
STEPS = """model,plan,step_ms
gpt3-1.3b,"tp2,dp4,gb16,mb4",124.281
gpt3-1.3b,"tp2,dp4,gb32,mb4",209.089
gpt3-1.3b,"tp2,dp4,gb64,mb4",375.668
gpt3-1.3b,"tp2,dp4,gb128,mb4",699.358
gpt3-1.3b,"dp8,gb16,mb2,zero1",108.238
gpt3-1.3b,"dp8,gb32,mb2,zero1",180.073
gpt3-1.3b,"dp8,gb64,mb2,zero1",321.558
llama3-8b,"tp8,gb4,mb1,sp",653.845
llama3-8b,"tp8,gb8,mb1,sp",1260.315
llama3-8b,"tp8,gb16,mb1,sp",2474.339
gpt3-1.3b,"tp4,pp2,gb16,mb4",176.540
gpt3-1.3b,"tp4,pp2,gb32,mb4",296.912
"""


FASTER = {
    "calibrate": {"tp8,dp2,gb64,mb4": "tp8,dp2,gb16,mb4", "gb64,tp8,mb4": "gb16,tp8,mb4,pp1"},
    "incast": {"--size 2MB": "--size 200kB"},
    "flows": {"npus=128,hosts_per_leaf=16": "npus=16,hosts_per_leaf=4", "20ms": "1ms"},
    "cluster-run": {"--workers 8 --out": "--workers 2 --out"},
    "my-cluster": {
        "gb64,tp8,mb4": "gb16,tp8,mb4,pp1",
        "tp8,dp2,gb64,mb4": "tp8,dp2,gb16,mb4",
        "tp8,dp2 --cluster": "tp8,dp2,gb16,mb4 --cluster",
    },
    "my-model": {
        "--gpus 64 --plan gb256": "--gpus 8 --plan gb8,tp4,pp1",
        "sp,zero1 --cluster": "sp,zero1,gb16 --cluster",
    },
    "sweep": {
        "llama2-13b": "gpt3-125m",
        '"25Gbps", "50Gbps", "100Gbps", ': "",
        ",gb256": ",gb16",
        ",gb64": ",gb8",
        "dp32": "dp4",
    },
}
"""Texts of pages that ask for much computation, with what the tests run in their place: the same commands and keys."""


class Step(NamedTuple):
    """One thing that the reader does: saves a file, or runs a command.

    Attributes:
        file: Name of the file; "" for a command.
        text: The file's content, or the command line.
    """

    file: str
    text: str


def steps_of(page: str) -> list[Step]:
    """Files and commands of a page, in order. A block of TOML is a file where the text before it names one.

    Args:
        page: Text of the page in Markdown.
    """
    found, end = [], 0
    for part in _PART.finditer(page):
        language, block, command = part.groups()
        if command is not None:
            if command.startswith(("nadi ", "mpiexec ", "sbatch ")):
                found.append(Step("", command))
        else:
            named = _FILE.findall(re.sub(r"^    .*$", "", page[end : part.start()], flags=re.MULTILINE))
            if (
                language in {"toml", "python"}
                and named
                and named[-1].endswith(language[:2] if language == "python" else language)
            ):
                found.append(Step(named[-1], block))
            end = part.end()
    return found


def prepare(page: str, folder: Path) -> None:
    if page == "cluster-run":
        (folder / "run.toml").write_text(CLUSTER_RUN)
        assert main(["workload", *INCAST[:-1], str(folder / INCAST[-1])]) == 0
    if page == "calibrate":
        (folder / "all_reduce.log").write_text(log_of(AWS_P5))
        (folder / "steps.csv").write_text(STEPS)
    if page == "my-fabric":
        (folder / "topo.xml").write_text(PARTIAL)
        (folder / "server.txt").write_text(MATRIX)
    if page == "my-model":
        (folder / "config.json").write_text(MODEL)
    if page == "my-trace":
        record(folder, NPUS)
    if page == "diagnose":
        log = next(block.text for block in blocks("console") if block.page == "docs/how-to/diagnose.md")
        (folder / "slow.log").write_text(log)


def record(folder: Path, members: int) -> None:
    """Write what PyTorch's profiler records of eight ranks that reduce their gradients in groups of so many."""
    (folder / "recorded").mkdir()
    written(folder / "recorded", **{f"kineto.rank{rank}": recorded_rank(rank, members) for rank in range(NPUS)})


def recorded_rank(rank: int, members: int) -> dict:
    """What PyTorch's profiler records of a rank: a kernel, and an all-reduce in groups of `members` ranks."""
    group = rank // members
    ranks = list(range(group * members, (group + 1) * members))
    said = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Half"}
    said |= {"Group size": members, "Process Group Name": str(group), "Process Group Ranks": str(ranks)}
    events = [
        op("ProfilerStep#4", 0, 200, category="user_annotation"),
        op("aten::mm", 10, 30),
        call("cudaLaunchKernel", 15, 20, 1),
        kernel("gemm", 22, 60, 1),
        op("record_param_comms", 40, 60, **said),
        op("nccl:all_reduce", 45, 58, category="user_annotation"),
        call("cudaLaunchKernelExC", 50, 55, 2),
        nccl_kernel(62, 90, 2),
    ]
    return kineto(events, rank, NPUS)


def run_in_process(command: str) -> None:
    """Run a command line in a process of its own, in the current folder; it must succeed."""
    done = subprocess.run(shlex.split(command), env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def run_here(command: str) -> None:
    """Run a command line in this process, in the current folder; it must succeed."""
    program, *words = shlex.split(command)
    arguments = [each for word in words for each in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    assert (program, main(arguments)) == ("nadi", 0), command


def environment() -> dict[str, str]:
    """The reader's: commands of this environment, and nothing that this project's tests set."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NADI_", "PYTEST", "PYTHONPATH"))}
    return own | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}", "COLUMNS": "160"}


def test_pages_have_commands():
    commands = [step for page in PAGES for step in steps_of(page.read_text()) if not step.file]
    assert len(commands) >= 30


def test_files_and_commands_are_told_apart():
    page = "Save `a.toml`:\n\n```toml\nx = 1\n```\n\n    nadi run a.toml\n\nOther keys:\n\n```toml\ny = 2\n```\n"
    assert steps_of(page) == [Step("a.toml", "x = 1\n"), Step("", "nadi run a.toml")]


@pytest.mark.slow
@pytest.mark.usefixtures("points_here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_run_and_print_what_it_shows(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is cut
    prepare(page.stem, tmp_path)
    follow(page, run_here)
    assert not_printed("".join(shown_by(page)), capsys.readouterr().out) == []


def test_pictures_of_fabrics_are_what_the_commands_beside_them_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for page in nonempty(FABRICS.glob("*.md")):
        for step in steps_of(page.read_text()):
            if step.text.startswith("nadi topology draw "):
                run_here(step.text)
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_bytes() for path in PICTURES.iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("points_here")
def test_quick_commands_of_the_tutorial_print_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    page = DOCS / "tutorial" / "model-to-decision.md"
    ranking, *shown = shown_by(page)
    for step in steps_of(page.read_text()):
        if step.text.startswith(("nadi run ", "nadi explain ")):
            run_here(step.text)
    printed = capsys.readouterr().out
    assert shown
    assert not_printed("".join(shown), printed) == []
    (step_s,) = re.findall(r"^step: ([\d.]+) s", printed, re.MULTILINE)
    assert f" ~{float(step_s):.3f} s " in ranking.splitlines()[4]  # the best plan is the one that runs


@pytest.mark.full
def test_commands_of_a_page_run_in_processes(tmp_path, monkeypatch):
    """As a reader types them: by the installed program, each without what earlier commands left in memory."""
    monkeypatch.chdir(tmp_path)
    follow(DOCS / "how-to" / "failures.md", run_in_process)


def test_the_trace_of_a_job_with_groups_takes_the_same_commands(tmp_path, monkeypatch):
    """Its converted traces have a group file, those of a job whose only group is all ranks have none."""
    monkeypatch.chdir(tmp_path)
    record(tmp_path, 4)
    follow(DOCS / "how-to" / "my-trace.md", run_here)
    assert (tmp_path / "traces" / "groups.json").is_file()


def shown_by(page: Path) -> list[str]:
    """Return the output that a page shows, by block."""
    return [block.text for block in blocks("text") if block.page == name_of(page)]


def not_printed(shown: str, printed: str) -> list[str]:
    """Return lines of a page with which no printed line begins."""
    lines = printed.splitlines()
    return [line for line in shown.splitlines() if not any(each.startswith(line) for each in lines)]


def follow(page: Path, run: Callable[[str], None]) -> None:
    """Save the files of a page in the current folder and run its commands there, in order."""
    content = page.read_text()
    for said, smaller in FASTER.get(page.stem, {}).items():
        assert said in content
        content = content.replace(said, smaller)
    for file, text in steps_of(content):
        if file:
            Path(file).write_text(text)
        elif not text.startswith(LEFT_OUT):
            run(text)
