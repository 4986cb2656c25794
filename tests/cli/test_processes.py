"""Streams, signals and modules of the process of a command, and of those that it starts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nadi import et
from nadi.launching.ending import Interrupts
from tests.needs import mpich

NADI = f"{sys.executable} -m nadi"


def shell(line, folder):
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("closed", [">&-", "<&- >&-"])
def test_a_run_whose_output_is_closed_writes_its_results(write_run, step, tmp_path, closed):
    write_run([step] * 4)
    done = shell(f"{NADI} run run.toml --out out {closed}", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["npus"] == 4


@pytest.mark.parametrize("arguments", ["--version", "topology list", "--help", "trace show t.0.et --json"])
def test_what_prints_to_a_closed_output_ends_well(tmp_path, arguments):
    et.write_trace(tmp_path / "t.0.et", et.metadata(), [et.comp_node(1, "x")])
    done = shell(f"{NADI} {arguments} >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["run no.toml", "rnu", "run"])
def test_wrong_input_ends_with_2_where_errors_are_closed(tmp_path, arguments):
    done = shell(f"{NADI} {arguments} 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_file_does_not_get_the_number_of_a_closed_output(nadi, write_run, step, tmp_path):
    """Else what is printed would go into that file."""
    nadi.ok("run", write_run([step] * 4), "--out", tmp_path / "one")
    assert shell(f"{NADI} run run.toml --out two <&- >&- 2>&-", tmp_path).returncode == 0
    for name in ("nodes.parquet", "npus.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


ROOT = Path(__file__).parents[2]
LINE = "nadi: error: interrupted\n"
WHERE = """
import os, signal, sys
from importlib.abc import MetaPathFinder
class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["nadi", *{arguments!r}]
from nadi.__main__ import entry_point
entry_point()
"""
LOST = """
import ctypes, os, signal, sys, time
from nadi.cli import main as cli
def lose():
    def callback():
        os.kill(os.getpid(), signal.SIGINT)
    ctypes.CFUNCTYPE(None)(callback)()
    from nadi.launching.progress import NoProgress
    NoProgress().say("")
    print("not ended")
cli._run = lambda arguments: lose()
cli.entry_point()
"""

HALF_MADE = """
import os, signal, time
from nadi.cli import main as cli
class Half:
    def __del__(self):
        del self.nothing
def stopped():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        Half()
        raise
cli._run = lambda arguments: stopped()
cli.entry_point()
"""


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["nadi.cli.main", "typer", "numpy", "nadi.simulation.run"])
def test_while_modules_are_imported(name, tmp_path):
    run = tmp_path / "run.toml"
    run.write_text('[workload]\ntraces = "none"\n[topology]\nspec = "ring:npus=2"\n')
    done = python(WHERE.format(name=name, arguments=["run", str(run)]))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_while_numba_is_imported(tmp_path):
    arguments = ["collective", "all-reduce", "-t", "ring:npus=2", "--sizes", "1KiB", "-q"]
    nothing_compiled = {"NADI_CACHE_DIR": str(tmp_path)}
    done = python(WHERE.format(name="numba.core.codegen", arguments=arguments), **nothing_compiled)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


IN_KERNELS = {
    "lost, and again where the run shows progress": LOST,
    "lost, and not forgotten at the end": LOST.replace('    NoProgress().say("")\n', "    return 0\n"),
    "half made, and cleaned up without a word": HALF_MADE,
}


@pytest.mark.parametrize("case", IN_KERNELS)
def test_while_kernels_are_compiled(case):
    """Python loses it in a callback from C, as LLVM's, whose half-made objects find nothing to give back, and fail."""
    done = python(IN_KERNELS[case])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_one_that_others_ignore_is_ignored():
    """As nohup and jobs of the background have it."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = python(code + WHERE.format(name="typer", arguments=["--version"]))
    assert done.returncode == 0
    assert done.stdout.startswith("nadi ")


def test_ranks_that_know_nothing_of_each_other_leave_it_to_the_first_to_speak():
    for name in ("typer", "nadi.cli.main"):
        code = WHERE.format(name=name, arguments=["--version"])
        for rank, said in (("0", LINE), ("1", "")):
            done = python(code, PMI_RANK=rank, PMI_SIZE="2")
            assert (done.returncode, done.stderr) == (130, said)


def test_a_second_one_ends_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr(Interrupts, "pending", None)
    monkeypatch.setattr("nadi.launching.ending.os._exit", ended.append)
    with pytest.raises(KeyboardInterrupt):
        Interrupts._interrupt(2, None)
    Interrupts._interrupt(2, None)
    assert ended == [], "the same press, told by terminal and launcher"
    monkeypatch.setattr("nadi.launching.ending._SAME_PRESS_S", -1.0)
    Interrupts._interrupt(2, None)
    assert ended == [130]


@pytest.mark.slow
def test_while_kernels_compile(tmp_path):
    """The kernels of a run take many seconds: a press after some of them ends it within three."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NADI_CACHE_DIR": str(tmp_path / "cache")}
    # As the script `nadi` does it: under `-m`, CPython 3.11 ends with SIGINT itself, not with code 130, if the press
    # came while a string was executed (Py_RunMain looks at unhandled_keyboard_interrupt)
    arguments = ["nadi", "collective", "all-reduce", "-t", "ring:npus=4", "-o", str(tmp_path / "o")]
    code = f"import sys; sys.argv = {arguments!r}; from nadi.__main__ import entry_point; entry_point()"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("nadi: compiling the kernels")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, LINE)
    assert time.monotonic() < begun + 5
    assert [path.name for path in Path(tmp_path).iterdir()] == ["cache"]


NAMES = ("calendar", "email", "et", "inputs", "json", "numpy", "pdes", "random", "rich", "typer", "workload")
SWEEP_OF_A_MODEL = """
[values]
"workload.model" = ["gpt3-125m"]
"workload.plan" = ["dp4,gb4"]
"topology.spec" = ["ring:npus=4"]
"compute.gpu" = ["a100"]
"network.fidelity" = ["closed-form"]
"""


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """The folder in hand, in which a file of every name that is imported leaves a trace of its own."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / f'{name}.PWNED')!r}, 'w').close()\n")
    (tmp_path / "sweep.toml").write_text(SWEEP_OF_A_MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_m_nadi_imports_nothing_from_the_folder_in_hand(trapped):
    for arguments in (["topology", "show", "ring:npus=2"], ["workload", "models", "llama3-8b"]):
        command = [sys.executable, "-m", "nadi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert [*trapped.glob("*.PWNED")] == []


def test_runs_of_a_sweep_import_nothing_from_the_folder_in_hand(nadi, trapped):
    nadi.ok("sweep", "sweep.toml", "-o", "out", "-q")
    assert [*trapped.glob("*.PWNED")] == []


@mpich
def test_doctor_starts_nothing_from_the_folder_in_hand(trapped):
    from nadi.cli.commands.bench import _mpi

    assert _mpi().ok
    assert [*trapped.glob("*.PWNED")] == []


@mpich
@pytest.mark.parametrize("output", ["< 1 MPICH 5 >< 1 MPICH 5 >\n\n", "< 1 MPI\n< 1 MPICH 5 >"])
def test_doctor_finds_worlds_of_one_rank_in_mixed_up_output(monkeypatch, output):
    """Launchers pass on what ranks print in pieces, whose ends are not the ends of lines."""
    from nadi.cli.commands import bench

    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output, ""))
    finding = bench._mpi()
    assert not finding.ok
    assert finding.found.endswith("2 ranks see a world of 1")


RUN_ALL = """
import sys
import nadi
from nadi.cli.main import main
for line in sys.stdin:
    print(line, end="", file=sys.stderr)
    code = main(line.split())
    if code:
        sys.exit(code)
print("all commands succeed", file=sys.stderr)
nadi.Run("jobs").flows.to_pandas()
"""
"""Commands without pandas; then a user of Python who gets DataFrames."""
PANDAS = "import os\nos.write(2, b'pandas is imported')\nos._exit(3)\n"
JOBS = """
[topology]
spec = "leaf-spine:npus=8,hosts_per_leaf=4,spines=2"
[output]
sample = "10us"
[[jobs]]
name = "big"
model = "gpt3-125m"
plan = "dp4,mb1,gb4,seq64"
[[jobs]]
name = "other"
gpus = 4
[jobs.traffic]
sizes = "hadoop"
load = 0.1
duration = "10us"
[compute]
gpu = "a100"
[network]
fidelity = "flow"
"""
TRAFFIC = """
[workload.traffic]
sizes = "hadoop"
load = 0.5
duration = "20us"
[topology]
spec = "leaf-spine:npus=4,hosts_per_leaf=2,spines=1"
[network]
switch = "shared-buffer"
pfc = true
"""
SWEEP = """
run = "traffic.toml"
[values]
"network.mtu" = ["1KiB", "4KiB"]
"""
COMMANDS_WITH_TABLES = """
run jobs.toml --out jobs -q --report
run traffic.toml --out traffic -q
collective all-reduce -t ring:npus=2 --sizes 1KiB,64KiB --out collective --fidelity closed-form
sweep sweep.toml -o sweep --jobs 1 -q
compare jobs traffic
report traffic
explain jobs --job big
energy jobs
net traffic
net slowdown jobs --job big
timeline jobs -o jobs.perfetto-trace
partition traffic.toml --parts 2 --weights traffic
"""


@pytest.mark.slow
def test_commands_do_not_import_pandas(tmp_path):
    """PyArrow imports an installed one wherever it converts values. Here a file of that name ends the process."""
    (tmp_path / "pandas.py").write_text(PANDAS)
    for name, text in {"jobs": JOBS, "traffic": TRAFFIC, "sweep": SWEEP}.items():
        (tmp_path / f"{name}.toml").write_text(text)
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 600}
    options["env"] = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", RUN_ALL], input=COMMANDS_WITH_TABLES[1:], **options)
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (3, ["all commands succeed", "pandas is imported"])


def test_a_file_of_the_user_may_import_pandas(tmp_path):
    (tmp_path / "pandas.py").write_text("print('pandas is imported')\n")
    (tmp_path / "own.py").write_text("import pandas\n")
    (tmp_path / "run.toml").write_text(TRAFFIC + 'congestion_control = "own.py"\n')
    command = [sys.executable, "-m", "nadi", "run", "run.toml", "-q"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.stdout == "pandas is imported\n"
    assert done.stderr.startswith("nadi: error: ")  # the file has no functions
    assert "pandas" not in done.stderr
