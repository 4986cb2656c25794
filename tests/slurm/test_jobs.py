"""Scripts of `nadi slurm` on a real SLURM: to completion, in arrays, again."""

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.cli.main import main
from nadi.compiling.kernel_cache import cache_dir
from nadi.launching import slurm as batch
from tests.faults import segments
from tests.needs import BIN, mpich, open_mpi
from tests.nonempty import nonempty

ONE_NODE_OF_TWO = ("--nodes", 1, "--ranks-per-node", 2)
RECORD = """\
#!{python}
# Stands for Python in a script: runs what connects to the other ranks, and says how it was called.
import json, os, sys
from pathlib import Path
from nadi.launching.ranks import connect
world = connect(os.environ)
names = ("OMP_NUM_THREADS", "NADI_CACHE_DIR", "SLURM_PROCID")
said = {{"size": world.Get_size() if world else 1, "arguments": sys.argv[1:]}}
said |= {{name: os.environ.get(name) for name in names}}
said["cpus"] = len(os.sched_getaffinity(0))
rank = world.Get_rank() if world else 0
Path({folder!r}, f"{{sys.argv[4]}}.{{rank}}.json").write_text(json.dumps(said))
"""
HANG = """
if sys.argv[4] == "run" and not os.environ.get("SLURM_RESTART_COUNT"):
    Path("started").touch()
    import time
    time.sleep(600)
"""


@pytest.fixture
def node_tmp(tmp_path):
    """TMPDIR of the node, with the kernels that these tests have compiled before."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / f"nadi-cache-{os.getuid()}").symlink_to(cache_dir().parent)
    return {"TMPDIR": str(folder)}


@pytest.fixture
def recorder(tmp_path):
    """A stand-in for Python, and where it leaves what it was called with: <command>.<rank>.json."""
    folder = tmp_path / "records"
    folder.mkdir()
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(RECORD.format(python=sys.executable, folder=str(folder)))
    stub.chmod(0o755)
    return stub, folder


def write_script(capsys, *arguments):
    assert main(["slurm", *map(str, arguments)]) == 0
    capsys.readouterr()


def digest_of_one(run_file, out, capsys):
    assert main(["run", str(run_file), "--out", str(out), "--quiet"]) == 0
    capsys.readouterr()
    return json.loads((out / "summary.json").read_text())["digest"]


def ranks_of(run_file):
    """Processes that have a run file among their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(run_file).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def numbers_of(slurm, name):
    """Numbers of the jobs of a name, ended ones too, the last one last."""
    listed = slurm.run("squeue", "--noheader", "--states=all", "--format=%A", f"--name={name}")
    return sorted(listed.stdout.split(), key=int)


def logs(folder):
    return "".join(path.read_text() for path in sorted(folder.glob("slurm-*.out")))


def test_a_run_and_the_same_again(slurm, tmp_path, run_file, node_tmp, capsys):
    script, out = tmp_path / "job.sbatch", tmp_path / "the results"
    write_script(capsys, run_file, "--nodes", 1, "--time", "00:05:00", "--out", out, "-o", script)
    job = slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert slurm.states(job) == {"COMPLETED"}, logs(tmp_path)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["npus"], summary["ranks"]) == (4, 1)
    assert "failed" not in logs(tmp_path)

    made = (out / "summary.json").stat().st_mtime_ns
    again = slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert slurm.states(again) == {"COMPLETED"}
    assert "nothing to do" in (tmp_path / f"slurm-{again}.out").read_text()
    assert (out / "summary.json").stat().st_mtime_ns == made

    os.utime(run_file)
    slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert (out / "summary.json").stat().st_mtime_ns > made, "an edited run file runs again"


def test_a_sweep_does_what_is_missing(slurm, tmp_path, run_file, node_tmp, capsys):
    script, out = tmp_path / "job.sbatch", tmp_path / "results"
    sweep = ("--sweep", "network.mtu=1KiB,4KiB", "--set", "output.nodes=none")
    write_script(capsys, run_file, "--nodes", 1, *sweep, "--out", out, "-o", script)
    job = slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert slurm.states(job) == {"COMPLETED"}, logs(tmp_path)
    summaries = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/summary.json")}
    assert set(summaries) == {"network.mtu=1KiB", "network.mtu=4KiB"}
    assert summaries["network.mtu=1KiB"]["packets"] > summaries["network.mtu=4KiB"]["packets"]
    assert not [*out.glob("*/nodes.parquet")]
    follower = numbers_of(slurm, "tiny_run-compare")[-1]
    slurm.wait(follower)
    assert slurm.states(follower) == {"COMPLETED"}, logs(tmp_path)
    assert len(json.loads((out / "compare.json").read_text())["runs"]) == 2
    assert "network.mtu" in (out / "compare.txt").read_text()

    shutil.rmtree(out / "network.mtu=1KiB")
    again = slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert slurm.states(again) == {"COMPLETED"}
    assert (out / "network.mtu=1KiB" / "summary.json").is_file()
    assert "nothing to do" not in (tmp_path / f"slurm-{again}_0.out").read_text()
    assert "nothing to do" in (tmp_path / f"slurm-{again}_1.out").read_text()


def test_a_failed_run_fails_the_job(slurm, tmp_path, run_file, node_tmp, capsys):
    script = tmp_path / "job.sbatch"
    write_script(capsys, run_file, "--nodes", 1, "--out", tmp_path / "out", "-o", script)
    (run_file.parent / "traces" / "transformer.2.et").write_bytes(b"\xff")
    job = slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert slurm.states(job) == {"FAILED"}
    assert "the file ends inside" in logs(tmp_path)
    assert not (tmp_path / "out" / "summary.json").exists()


@mpich
@pytest.mark.parametrize(("launcher", "threads"), [("mpiexec", 1), ("srun-pmi2", 1), ("mpiexec", 2)])
def test_ranks_give_the_answer_of_one(slurm, tmp_path, run_file, node_tmp, capsys, launcher, threads):
    script, out = tmp_path / "job.sbatch", tmp_path / "the results"
    sizes = (*ONE_NODE_OF_TWO, "--threads", threads, "--launcher", launcher)
    write_script(capsys, run_file, *sizes, "--out", out, "-o", script)
    job = slurm.submit(script, cwd=tmp_path, environ=node_tmp)
    assert slurm.states(job) == {"COMPLETED"}, logs(tmp_path)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["ranks"], summary["threads"], summary["lps"]) == (2, threads, 2 * threads)
    assert summary["digest"] == digest_of_one(run_file, tmp_path / "one", capsys)
    assert "failed" not in logs(tmp_path)


MODULE = """\
#%Module
prepend-path PATH {folder}
setenv MPI4PY_MPIABI openmpi
setenv MPI4PY_LIBMPI libmpi.so.40
setenv OMPI_ALLOW_RUN_AS_ROOT 1
setenv OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
"""


@open_mpi
@pytest.mark.skipif(not Path("/etc/profile.d/modules.sh").is_file(), reason="no environment-modules")
def test_modules_bring_their_mpi(slurm, tmp_path, run_file, node_tmp, capsys):
    """The module's mpiexec is the one that starts the ranks, though MPICH's is beside Python."""
    module, programs = tmp_path / "modules" / "openmpi" / "4.1.4", tmp_path / "programs"
    for folder in (module.parent, programs):
        folder.mkdir(parents=True)
    module.write_text(MODULE.format(folder=programs))
    (programs / "mpiexec").symlink_to(shutil.which("mpirun.openmpi"))
    script, out = tmp_path / "job.sbatch", tmp_path / "the results"
    write_script(capsys, run_file, *ONE_NODE_OF_TWO, "--module", "openmpi/4.1.4", "--out", out, "-o", script)
    job = slurm.submit(script, cwd=tmp_path, environ=node_tmp | {"MODULEPATH": str(module.parents[1])})
    assert slurm.states(job) == {"COMPLETED"}, logs(tmp_path)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ranks"] == 2
    assert summary["digest"] == digest_of_one(run_file, tmp_path / "one", capsys)
    wrong = slurm.submit(script, cwd=tmp_path, environ=node_tmp | {"MODULEPATH": str(tmp_path)})
    assert slurm.states(wrong) == {"COMPLETED"}, "what is finished is skipped before modules are loaded"
    os.utime(run_file)
    wrong = slurm.submit(script, cwd=tmp_path, environ=node_tmp | {"MODULEPATH": str(tmp_path)})
    assert slurm.states(wrong) == {"FAILED"}
    assert "Unable to locate a modulefile" in logs(tmp_path)


@mpich
def test_a_cancelled_run_of_two_ranks_leaves_nothing(slurm, tmp_path, run_file, node_tmp, capsys):
    """SLURM sends SIGTERM to the steps; the job is over before it would send SIGKILL."""
    for trace in (run_file.parent / "traces").glob("*.et"):
        et.write_trace(trace, et.metadata(), [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 44)])
    script, out = tmp_path / "job.sbatch", tmp_path / "out"
    # far less than it would take, and what the partition allows
    limit = ("--time", "00:10:00", "--checkpoint", "off")
    write_script(capsys, run_file, *ONE_NODE_OF_TWO, *limit, "--out", out, "-o", script)
    often = f"{Path(__file__).parents[1]}/faults/driver.py none run"  # says often how far it is
    script.write_text(script.read_text().replace("-P -m nadi run", often).replace(" --quiet", ""))
    job = slurm.run("sbatch", "--parsable", script, cwd=tmp_path, environ=node_tmp).stdout.strip()
    assert slurm.until(lambda: "simulated" in logs(tmp_path), 40), logs(tmp_path)
    left = segments.mapped(ranks_of(run_file))
    begun = time.monotonic()
    slurm.run("scancel", job)
    slurm.wait(job, 30)
    assert slurm.states(job) == {"CANCELLED"}
    assert time.monotonic() - begun < 10
    assert slurm.until(lambda: not ranks_of(run_file), 5), ranks_of(run_file)
    segments.remove(left)
    assert [*tmp_path.glob("out/*")] == []


@mpich
@pytest.mark.parametrize("launcher", ["mpiexec", "srun-pmi2"])
def test_ranks_and_threads_arrive(slurm, tmp_path, recorder, launcher):
    stub, records = recorder
    job = batch.Job(
        run_file=tmp_path / "run.toml",
        out=tmp_path / "o u t",
        python=stub,
        name="ranks",
        ranks_per_node=2,
        threads=2,
        launcher=launcher,
        overrides=('network.mtu="1KiB"',),
    )
    (tmp_path / "job.sbatch").write_text(batch.render(job))
    environ = {"PATH": f"{BIN}{os.pathsep}{slurm.environ['PATH']}", "TMPDIR": str(tmp_path)}
    number = slurm.submit("job.sbatch", cwd=tmp_path, environ=environ)
    assert slurm.states(number) == {"COMPLETED"}, logs(tmp_path)
    assert [path.name for path in sorted(records.iterdir())] == ["doctor.0.json", "run.0.json", "run.1.json"]
    for rank in range(2):
        said = json.loads((records / f"run.{rank}.json").read_text())
        assert said["size"] == 2
        assert said["arguments"] == [
            *("-P", "-m", "nadi", "run", str(job.run_file), "--out", str(job.out), "--quiet"),
            *("--workers", "2", "--backend", "threads", "--set", 'network.mtu="1KiB"'),
        ]
        assert said["OMP_NUM_THREADS"] == "2"
        assert Path(said["NADI_CACHE_DIR"]) == tmp_path / f"nadi-cache-{os.getuid()}"
        assert Path(said["NADI_CACHE_DIR"]).stat().st_mode & 0o777 == 0o700


def test_a_requeued_run_starts_again(slurm, tmp_path, recorder):
    """The stand-in hangs the first time, as a node that goes away would; the second time it is there."""
    stub, records = recorder
    stub.write_text(stub.read_text().replace("\nworld = ", f"\n{HANG}world = "))
    job = batch.Job(run_file=tmp_path / "run.toml", out=tmp_path / "out", python=stub, name="again")
    (tmp_path / "job.sbatch").write_text(batch.render(job))
    done = slurm.run("sbatch", "--parsable", "job.sbatch", cwd=tmp_path, environ={"TMPDIR": str(tmp_path)})
    number = done.stdout.strip()
    assert slurm.until((tmp_path / "started").exists, 30)
    slurm.run("scontrol", "requeue", number)
    assert slurm.until(lambda: slurm.states(number) == {"PENDING"}, 20)
    time.sleep(1.1)  # SLURM would wait for two minutes; within the same second the node takes the new start for the old
    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    slurm.wait(number)
    assert slurm.states(number) == {"COMPLETED"}, logs(tmp_path)
    assert (records / "run.0.json").is_file()


def test_submit_says_the_number(slurm, tmp_path, run_file, monkeypatch, capsys):
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", str(run_file), "--nodes", "1", "--job-name", "now", "--submit"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("now.sbatch: a run on 1 nodes")
    assert lines[1].startswith("expected: about 1 minutes and ")
    assert lines[2].startswith("Submitted batch job ")
    slurm.run("scancel", lines[2].split()[-1])
    assert main(["slurm", str(run_file), "--nodes", "1", "--partition", "nowhere", "--submit"]) == 1
    assert "invalid partition specified" in capsys.readouterr().err


def test_a_cache_folder_of_someone_else_is_not_used(slurm, tmp_path, recorder):
    stub, records = recorder
    cache = tmp_path / f"nadi-cache-{os.getuid()}"
    cache.mkdir()
    os.chown(cache, 65534, 65534)
    job = batch.Job(run_file=tmp_path / "run.toml", out=tmp_path / "out", python=stub, name="wary")
    (tmp_path / "job.sbatch").write_text(batch.render(job))
    slurm.submit("job.sbatch", cwd=tmp_path, environ={"TMPDIR": str(tmp_path)})
    assert f"warm-up of {cache} failed" in logs(tmp_path)
    assert json.loads((records / "run.0.json").read_text())["NADI_CACHE_DIR"] is None
    assert not (records / "doctor.0.json").exists()


SWEEP = """
[values]
"workload.model" = ["gpt3-125m"]
"workload.plan" = ["dp4,gb4", "dp8,gb8"]
"topology.spec" = ["ring:npus=4", "ring:npus=4,rate=100Gbps"]
"compute.gpu" = ["a100"]
"network.fidelity" = ["closed-form"]
"""
PLANS = ("plan", "--model", "gpt3-125m", "--cluster", "small-a100", "--gpus", "2", "--plan", "gb8")


def array(slurm, folder, capsys, *arguments):
    """Submit the array that a command prints, and wait for it and for the job that merges."""
    assert main([*map(str, arguments)]) == 0
    (folder / "array.sh").write_text(capsys.readouterr().out)
    job = slurm.submit("array.sh", cwd=folder)
    (merge,) = numbers_of(slurm, f"nadi-{arguments[0]}-merge")
    return job, merge


def test_an_array_of_a_sweep_ends_with_its_table(slurm, tmp_path, capsys):
    """Two points fail: the others are done, the reasons are in the table."""
    (tmp_path / "a sweep.toml").write_text(SWEEP)
    out = tmp_path / "all 100% #1"
    job, merge = array(slurm, tmp_path, capsys, "sweep", tmp_path / "a sweep.toml", "-o", out, "--slurm", 2)
    slurm.wait(merge)
    log = (tmp_path / "all 100% #1-merge.log").read_text()
    assert slurm.states(job) == {"FAILED"}
    assert "2 of 4 points failed; point 2: [workload] plan: dp8" in log
    rows = pq.read_table(out / "sweep.parquet").to_pylist()
    assert [row["error"] is None for row in rows] == [True, True, False, False]
    assert all("is of 8 GPUs" in row["error"] for row in nonempty(rows[2:]))
    assert (tmp_path / "all 100% #1-1.log").is_file()
    assert (out / "sweep.html").is_file()


def test_an_array_of_plans_ends_with_one_ranking(slurm, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job, merge = array(slurm, tmp_path, capsys, *PLANS, "-o", "plans", "--slurm", 2, "--sbatch", "comment=a b")
    slurm.wait(merge)
    assert slurm.states(job) == slurm.states(merge) == {"COMPLETED"}, (tmp_path / "plans-merge.log").read_text()
    assert "Comment=a b" in slurm.run("scontrol", "show", "job", merge).stdout
    rows = json.loads((tmp_path / "plans" / "plan.json").read_text())["answers"]["merged"]["rows"]
    assert main([*PLANS, "--confirm", "0", "--json", "-q"]) == 0
    whole = json.loads(capsys.readouterr().out)["answers"]["gpt3-125m"]["rows"]
    assert [row["plan"] for row in rows] == [row["plan"] for row in whole]
