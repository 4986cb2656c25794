"""What `nadi slurm` writes and refuses; no SLURM needed."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nadi import et
from nadi.cli.main import main
from nadi.errors import ConfigError
from nadi.launching import installation, slurm as batch
from nadi.simulation.assembly.resource_checks import JobCost
from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]
RUN = '[workload]\ntraces = "traces/t"\n[topology]\nspec = "ring:npus=4"\n'


def write_traces(folder):
    """The traces that RUN names: an all-reduce on four NPUs."""
    (folder / "traces").mkdir(exist_ok=True)
    grads = et.CollectiveCommType.ALL_REDUCE
    for name, size in (("t", 1 << 16), ("large", 1 << 44)):
        for npu in range(4):
            nodes = [et.coll_node(1, "grads", grads, size)]
            et.write_trace(folder / "traces" / f"{name}.{npu}.et", et.metadata(), nodes)


@pytest.fixture
def slurm_command(tmp_path, monkeypatch, capsys):
    """`nadi slurm` on a run file, in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my run.toml").write_text(RUN)
    write_traces(tmp_path)

    def run(*arguments):
        code = main(["slurm", "my run.toml", "--nodes", "1", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def directives(script):
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.partition("=")[::2] for line in lines)


def test_what_is_forced_asks_for_the_time_that_it_takes(slurm_command):
    _, out, _ = slurm_command(
        "--set", "workload.traces=traces/large", "--set", "network.mtu=256B", "--force", "--dry-run"
    )
    assert " --force" in out
    assert int(directives(out)["time"].partition(":")[0]) > 24


def test_the_time_and_memory_that_are_asked_for_are_twice_those_expected():
    cost = JobCost(wall_s=5400, memory_bytes=3e9)
    assert str(cost) == "about 90 minutes and 3.0 GB on each node"
    assert (cost.time_limit, cost.memory_limit) == ("03:00:00", "6G")


def test_values_with_commas_are_separated_by_semicolons():
    tasks = batch.sweep_tasks(["topology.spec=ring:npus=4,rate=1Gbps; ring:npus=8"])
    assert [task.overrides for task in tasks] == [
        ("topology.spec=ring:npus=4,rate=1Gbps",),
        ("topology.spec=ring:npus=8",),
    ]


def test_folders_of_tasks_are_distinct_and_safe():
    values = ["a/b", "a_b", "a b", "x" * 300, "x" * 299 + "y", "../..", "$(true)"]
    folders = [task.folder for task in batch.sweep_tasks([f"output.dir={';'.join(values)}"])]
    assert len(set(folders)) == len(values)
    assert all(len(folder) < 150 and "/" not in folder and "$" not in folder for folder in folders)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--time", "1:00:00\n#SBATCH --uid=0"], "--time"),
        (["--account", "a\nb"], "--account"),
        (["--out", "a\nb"], "printable"),
        (["--sbatch", "qos=a\nb"], "printable"),
    ],
)
def test_values_of_two_lines_are_refused_and_leave_no_file(slurm_command, tmp_path, options, told):
    code, out, err = slurm_command(*options)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"my run.toml", "traces"}


@pytest.mark.parametrize("options", [("--ranks-per-node", 2), ("--nodes", 2, "--sweep", "engine.seed=1,2")])
def test_ranks_without_mpi4py_are_refused(slurm_command, tmp_path, monkeypatch, options):
    """As the run would refuse them; a job of one rank needs none."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    code, out, err = slurm_command(*options)
    assert (code, out) == (2, "")
    expected = f"2 ranks of {sys.executable}, but mpi4py is missing; pip install mpi4py mpich"
    assert err == f"nadi: error: {expected}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"my run.toml", "traces"}
    assert slurm_command("--dry-run")[0] == 0


def test_without_sbatch_the_script_is_there(slurm_command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = slurm_command("--submit")
    assert code == 2
    assert "no sbatch on PATH; my_run.sbatch is written" in err


def test_a_job_checks_itself():
    with pytest.raises(ConfigError, match="--nodes 0: expected 1 or more"):
        batch.Job(Path("r"), Path("o"), Path("p"), "n", nodes=0)


def test_awkward_texts_reach_the_command(tmp_path):
    """The script run by bash with a stand-in for srun and Python: each setting arrives as it was."""
    awkward = 'topology.spec=it\'s "$HOME" `id` \\ * ;& ü'
    stub = tmp_path / "a b" / "python"
    stub.parent.mkdir()
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    (tmp_path / "srun").symlink_to("/bin/true")
    job = batch.Job(tmp_path / "r'un.toml", tmp_path / "o$ut", stub, "n", tasks=(batch.Task("t", (awkward,)),))
    environ = {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_NUM_NODES": "1"}
    done = subprocess.run(
        ["bash", "-c", batch.render(job)], env=environ, capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.splitlines() == [
        *("-P", "-m", "nadi", "run", str(tmp_path / "r'un.toml"), "--out", str(tmp_path / "o$ut" / "t"), "--quiet"),
        *("--set", awkward),
    ]


HOSTILE = ("x $(touch PWNED)", "x`touch PWNED`", "x'; touch PWNED; '", 'x"; touch PWNED; "', "x %u #", "x&touch PWNED")
BROKEN = ("x\ntouch PWNED\n", "x\rtouch PWNED", "x\x1b[31m", "x\u2028touch PWNED", "x\udcff")
PLANS = ("plan", "--model", "gpt3-125m", "--cluster", "small-a100", "--gpus", "4")


@pytest.fixture
def scripts_of(tmp_path, monkeypatch, capsys):
    """Print the batch scripts of all commands that make one, a name of the user's in all places: code, script, errors.

    Python is a stand-in in a folder of that name, which writes its arguments to `called`.
    """

    def scripts(name):
        folder = tmp_path / name if name.isprintable() else tmp_path
        folder.mkdir(exist_ok=True)
        stub = folder / "python"
        stub.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" "" >> {shlex.quote(str(tmp_path / "called"))}\n')
        stub.chmod(0o755)
        (folder / "run.toml").write_text(RUN)
        write_traces(folder)
        (folder / "sweep.toml").write_text('run = "run.toml"\n[values]\n"engine.seed" = [1, 2]\n')
        (tmp_path / name).mkdir(exist_ok=True)
        write_traces(tmp_path)
        (tmp_path / name / "own.toml").write_text(RUN.replace('"traces/t"', f'"{tmp_path}/traces/t"'))
        (tmp_path / name / "sweep.toml").write_text((folder / "sweep.toml").read_text())
        (tmp_path / name / "run.toml").write_text(RUN)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(installation, "PYTHON", (str(stub), "-P"))
        monkeypatch.setattr(sys, "executable", str(stub))
        asked = (
            ("sweep", folder / "sweep.toml", "--slurm", "2", "-o", name),
            ("sweep", folder / "sweep.toml", "--slurm", "2", "-o", "out", "--sbatch", f"comment={name}"),
            ("sweep", tmp_path / name / "sweep.toml", "--slurm", "2", "-o", "out"),
            (*PLANS, "--slurm", "2", "-o", name),
            (*PLANS, "--slurm", "2", "-o", "out", "--sbatch", f"comment={name}"),
            (*PLANS, "--slurm", "2", "-o", "out", "--energy-table", name),
            ("slurm", folder / "run.toml", "--nodes", "1", "--dry-run", "--out", name),
            ("slurm", tmp_path / name / "own.toml", "--nodes", "1", "--dry-run", "--out", "out"),
        )
        for arguments in asked:
            code = main([*map(str, arguments)])
            yield arguments, (code, *capsys.readouterr())

    return scripts


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_wherever_they_enter_a_script(scripts_of, tmp_path, name):
    """Every script is run by bash, with stand-ins for SLURM's programs that run what they are given."""
    programs = tmp_path / "bin"
    programs.mkdir()
    wrap = 'for word; do [[ $word == --wrap=* ]] && exec bash -c "${word#--wrap=}"; done; true'
    for program in ("srun", "sbatch"):
        (programs / program).write_text(f"#!/bin/bash\n{wrap}\n")
        (programs / program).chmod(0o755)
    environ = {"PATH": f"{programs}:{os.defpath}", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7"}
    for arguments, (code, script, err) in nonempty(scripts_of(name)):
        assert (code, err) == (0, ""), arguments
        assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=20).returncode == 0
        done = subprocess.run(
            ["bash", "-c", script],
            env=environ | {"SLURM_JOB_NUM_NODES": "1"}, cwd=tmp_path, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), script
        called = (tmp_path / "called").read_text()
        (tmp_path / "called").unlink()
        paths = [str(word) for word in arguments if name in str(word) and not str(word).startswith("comment=")]
        assert all(path in called for path in paths)
        assert [*tmp_path.rglob("PWNED")] == [], script


@pytest.mark.parametrize("name", BROKEN)
def test_names_that_are_no_printable_line_enter_no_script(scripts_of, name):
    for arguments, (code, script, err) in nonempty(scripts_of(name)):
        assert (code, script) == (2, ""), arguments
        assert err.count("\n") == 1
        assert "printable characters" in err, err


def test_examples_are_up_to_date():
    spec = importlib.util.spec_from_file_location("make_examples", ROOT / "scripts" / "slurm" / "make_examples.py")
    make_examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_examples)
    for name, job in nonempty(make_examples.EXAMPLES.items()):
        assert (ROOT / "scripts" / "slurm" / name).read_text() == batch.render(job), f"{sys.executable} {spec.origin}"


def test_examples_are_bash():
    for script in nonempty((ROOT / "scripts" / "slurm").glob("*.sbatch")):
        assert subprocess.run(["bash", "-n", script], timeout=20).returncode == 0
