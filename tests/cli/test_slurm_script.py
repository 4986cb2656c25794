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
from nadi.launching import installation
from nadi.launching import slurm as batch
from nadi.simulation.assembly.resource_checks import JobCost
from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]
RUN = '[workload]\ntraces = "traces/t"\n[topology]\nspec = "ring:npus=4"\n'
SMALLEST = {"time": "00:15:00", "mem": "2G"}
"""What a run of a moment asks for."""


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

    def run(*arguments, nodes=1):
        code = main(["slurm", "my run.toml", "--nodes", str(nodes), *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def directives(script):
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.partition("=")[::2] for line in lines)


def command_of(script):
    """The words of the command that runs, continued lines joined."""
    (line,) = [line for line in script.replace("\\\n", " ").splitlines() if " -m nadi run " in line]
    return shlex.split(line.removesuffix(" &"))


def test_a_dry_run_prints_and_writes_nothing(slurm_command, tmp_path):
    code, out, err = slurm_command("--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("#!/usr/bin/env bash\n")
    assert {path.name for path in tmp_path.iterdir()} == {"my run.toml", "traces"}


def test_options_become_directives(slurm_command):
    options = ("--ranks-per-node", 8, "--threads", 2, "--time", "1-02:03:04", "--partition", "long", "--account", "me")
    options += ("--mem", "8G", "--sbatch", "qos=high", "--sbatch", "exclusive", "--sbatch", "comment=a b")
    whole = ("--set", "network.fidelity=analytical")  # is not divided among workers
    _, out, _ = slurm_command(*options, *whole, "--job-name", "j", "--dry-run", nodes=4)
    sizes = {"nodes": "4", "ntasks-per-node": "8", "cpus-per-task": "2", "time": "1-02:03:04"}
    names = {"job-name": "j", "partition": "long", "account": "me", "mem": "8G", "qos": "high", "exclusive": ""}
    names["comment"] = '"a b"'
    assert directives(out) == sizes | names | {"requeue": "", "open-mode": "append", "signal": "B:USR1@180"}
    assert command_of(out)[:3] == ["mpiexec", "-n", "$ranks"]
    assert {"--workers", "2", "--backend", "threads"} < set(command_of(out))
    assert "\nexport OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2\n" in out


def test_one_rank_of_one_thread_needs_neither_mpi_nor_workers(slurm_command):
    _, out, _ = slurm_command("--dry-run", "--set", "network.mtu=1 KiB")
    assert command_of(out) == [
        *("$python", "-P", "-m", "nadi", "run", "$run_file", "${results[@]}", "--quiet", "--set", "network.mtu=1 KiB"),
        *("--set", "engine.checkpoint=30min"),
    ]
    _, out, _ = slurm_command("--dry-run", "--checkpoint", "off")
    assert command_of(out) == [
        *("$python", "-P", "-m", "nadi", "run", "$run_file", "--out", "$out", "--quiet"),
        *("--set", "engine.checkpoint=off"),
    ]
    assert "signal" not in directives(out)
    assert directives(out)["job-name"] == "my_run"


def test_what_is_forced_asks_for_the_time_that_it_takes(slurm_command):
    _, out, _ = slurm_command(
        "--set", "workload.traces=traces/large", "--set", "network.mtu=256B", "--force", "--dry-run"
    )
    assert "--force" in command_of(out)
    assert int(directives(out)["time"].partition(":")[0]) > 24


def test_the_time_and_memory_that_are_asked_for_are_as_estimated(slurm_command):
    """The run of a moment asks for the least; the user's own values come first."""
    _, out, _ = slurm_command("--dry-run")
    assert SMALLEST.items() <= directives(out).items()
    _, out, _ = slurm_command("--dry-run", "--time", "00:01:00", "--mem", "0")
    assert {"time": "00:01:00", "mem": "0"}.items() <= directives(out).items()
    cost = JobCost(wall_s=5400, memory_bytes=3e9)
    assert (str(cost), cost.time_limit, cost.memory_limit) == (
        "about 90 minutes and 3.0 GB on each node",
        "03:00:00",
        "6G",
    )


@pytest.mark.parametrize("launcher", batch.LAUNCHERS)
def test_launchers(slurm_command, launcher):
    _, out, _ = slurm_command("--launcher", launcher, "--dry-run", nodes=2)
    kind = {"srun-pmi2": "--mpi=pmi2", "srun-pmix": "--mpi=pmix"}.get(launcher)
    assert command_of(out)[:2] == (["srun", kind] if kind else ["mpiexec", "-n"])


def test_modules_come_before_the_launcher_beside_python(slurm_command):
    _, out, _ = slurm_command("--module", "gcc/12.3", "--module", "openmpi/4.1.5", "--dry-run", nodes=2)
    lines = out.splitlines()
    assert lines.index("module load gcc/12.3 openmpi/4.1.5") < lines.index('PATH="$PATH:$(dirname "$python")"')
    assert command_of(out)[0] == "mpiexec"
    _, plain, _ = slurm_command("--dry-run", nodes=2)
    assert "module load" not in plain


def test_a_script_says_where_it_and_the_results_are(slurm_command, tmp_path):
    code, out, _ = slurm_command("--out", "my out", "-o", "my job.sh")
    assert code == 0
    assert out.splitlines() == [
        f"my job.sh: a run on 1 nodes with 1 ranks of 1 threads; results in {tmp_path / 'my out'}",
        "expected: about 1 minutes and 0.6 GB on each node; the script asks for 00:15:00 and 2G",
        "submit with: sbatch 'my job.sh'",
    ]
    assert f"\nout='{tmp_path / 'my out'}'\n" in (tmp_path / "my job.sh").read_text()


def test_a_sweep_is_every_combination(slurm_command):
    code, out, _ = slurm_command("--sweep", "engine.seed=1,2,3", "--sweep", "network.window=64KiB,1MiB", "--dry-run")
    assert code == 0
    assert directives(out)["array"] == "0-5"
    assert "\n5) out+=/engine.seed=3,network.window=1MiB " in out
    assert "settings=(--set engine.checkpoint=30min --set engine.seed=3 --set network.window=1MiB)" in out
    assert command_of(out)[-1] == "${settings[@]}"


def test_the_time_between_checkpoints(slurm_command):
    """That of the run file counts unless an option sets another; what saves nothing gets none."""
    _, out, _ = slurm_command("--dry-run", "--set", "engine.checkpoint=10min")
    assert command_of(out)[-2:] == ["--set", "engine.checkpoint=10min"]
    _, out, _ = slurm_command("--dry-run", "--set", "engine.checkpoint=10min", "--checkpoint", "2h")
    assert command_of(out)[-2:] == ["--set", "engine.checkpoint=2h"]
    _, out, _ = slurm_command("--dry-run", "--set", "network.fidelity=closed-form")
    assert "checkpoint" not in out
    _, out, _ = slurm_command("--dry-run", "--time", "00:01:00")
    assert directives(out)["signal"] == "B:USR1@5"


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
        (["--nodes", "0"], "--nodes"),
        (["--ranks-per-node", "0"], "--ranks-per-node"),
        (["--threads", "-1"], "--threads"),
        (["--time", "abc"], "--time 'abc': expected HH:MM:SS"),
        (["--time", "10"], "--time '10': expected HH:MM:SS"),
        (["--time", "1:00:00\n#SBATCH --uid=0"], "--time"),
        (["--partition", "a b"], "--partition 'a b'"),
        (["--account", "a\nb"], "--account"),
        (["--job-name", "-x"], "--job-name"),
        (["--launcher", "aprun"], "expected one of mpiexec, srun-pmi2, srun-pmix"),
        (["--checkpoint", "soon"], "'soon' is no wall time; expected one such as 90s, 30min or 2h, or off"),
        (["--sbatch", "signal=USR1"], "the script sets --signal itself"),
        (["--module", "a b"], "--module 'a b': expected a name of `module avail`"),
        (["--module", "a", "--module", "$(x)"], "--module '$(x)'"),
        (["--out", "a\nb"], "printable"),
        (["--sweep", "engine.seed"], "expected section.key=value,value"),
        (["--sweep", "engine.seed=1,,2"], "expected section.key=value,value"),
        (["--sweep", "engine.seed=1,1"], "a value is listed twice"),
        (["--sweep", "engine.seed=1", "--sweep", "engine.seed=2"], "swept twice"),
        (["--sweep", "engine.sede=1"], "nearest known key: seed"),
        (["--sweep", "engine.seed=1,no"], "seed"),
        (["--set", "network.mtu=0"], "mtu"),
        (["--mem", "64GB"], "--mem '64GB': expected a number with K, M, G or T, as 64G"),
        (["--mem", "100M"], "--mem: 0.1 GB on each node; the run would take about 0.6 GB there; expected more memory"),
        (["--sbatch", "mem=1G"], "the script sets --mem itself"),
        (["--sbatch", "qos=a\nb"], "printable"),
        (["--ranks-per-node", "400"], "400 parts; expected at most 4"),
        (["--set", "workload.traces=nowhere/t"], "nowhere"),
        (["--set", "engine.backend=processes", "--ranks-per-node", "2"], "found processes on 2 MPI ranks"),
        (["--set", "system.collectives.all-reduce=pairwise"], "pairwise"),
        (["--sweep", "topology.spec=ring:npus=4;fully-connected:npus=65536"], "2147450880 cables; expected at most"),
        (
            ["--set", "workload.traces=traces/large", "--set", "network.mtu=256B"],
            "hours at 5e+06 a second; expected less than 24, or --force",
        ),
        (["--dry-run", "--submit"], "without --submit"),
        (["--dry-run", "-o", "x"], "without -o"),
        (["-o", "no/such/folder/x"], "no/such/folder/x"),
    ],
)
def test_wrong_values_are_one_line_and_leave_no_file(slurm_command, tmp_path, options, told):
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


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--qos=high", "expected an option of sbatch without its dashes, as qos=high"),
        ("qos=", "expected an option of sbatch"),
        ("QOS=high", "expected an option of sbatch"),
        ("array=0-9", "the script sets --array itself"),
        ("output=x", "the script sets --output itself"),
    ],
)
def test_options_of_sbatch_are_checked(capsys, option, said):
    assert main([*PLANS, "--slurm", "2", "-o", "out", "--sbatch", option]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert said in found.err


def test_folders_with_a_backslash_are_refused(capsys):
    """SLURM would replace no pattern in the log's name behind one."""
    assert main([*PLANS, "--slurm", "2", "-o", "a\\b"]) == 2
    assert "found a backslash" in capsys.readouterr().err


def test_examples_are_up_to_date():
    spec = importlib.util.spec_from_file_location("make_examples", ROOT / "scripts" / "slurm" / "make_examples.py")
    make_examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_examples)
    for name, job in nonempty(make_examples.EXAMPLES.items()):
        assert (ROOT / "scripts" / "slurm" / name).read_text() == batch.render(job), f"{sys.executable} {spec.origin}"


def test_examples_are_bash():
    for script in nonempty((ROOT / "scripts" / "slurm").glob("*.sbatch")):
        assert subprocess.run(["bash", "-n", script], timeout=20).returncode == 0
