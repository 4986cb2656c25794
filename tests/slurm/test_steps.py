"""Launchers, caches of kernels and requeued runs on a real SLURM."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nadi import et
from nadi.cli.main import main
from nadi.launching.progress import STATUS_FILE
from nadi.pdes.parallel import compile_all
from tests.needs import BIN, mpich, open_mpi
from tests.slurm.test_jobs import logs, node_tmp, write_script  # noqa: F401 - a fixture

OPEN_MPI = {
    "MPI4PY_MPIABI": "openmpi",
    "MPI4PY_LIBMPI": "libmpi.so.40",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

pmix = pytest.mark.skipif(not [*Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")], reason="no libpmix.so of libpmix-dev")


def in_a_job(slurm, tmp_path, command, **environ):
    """Run a line as the script of a job of two tasks; gives its exit code and output."""
    log = tmp_path / "log.txt"
    wrapped = f"{command}; echo rc=$?"
    slurm.submit("--ntasks-per-node=2", "--nodes=1", "--output", log, "--wrap", wrapped, cwd=tmp_path, environ=environ)
    return log.read_text()


@mpich
@pytest.mark.parametrize("launch", ["mpiexec -n 2", "srun --mpi=pmi2 -n 2"])
def test_two_ranks_see_each_other(slurm, tmp_path, connect, launch):
    said = in_a_job(slurm, tmp_path, f"PATH={BIN}:$PATH {launch} {connect}")
    assert said.count("size 2") == 2, said
    assert said.endswith("rc=0\n")


@mpich
def test_the_batch_script_is_one_process(slurm, tmp_path, connect):
    assert in_a_job(slurm, tmp_path, f"env | grep ^SLURM_NTASKS=; {connect}") == "SLURM_NTASKS=2\nsize None\nrc=0\n"


@mpich
@pytest.mark.parametrize("kind", ["none", pytest.param("pmix", marks=pmix)])
def test_srun_without_pmi2_is_refused_once(slurm, tmp_path, connect, kind):
    said = in_a_job(slurm, tmp_path, f"srun --mpi={kind} -n 2 {connect}")
    assert said.count("MPICH") == 1, said
    assert f"use srun --mpi=pmi2, or {BIN}/mpiexec inside sbatch" in said
    assert said.count("Exited with exit code 2") == 2
    assert said.endswith("rc=2\n")


@mpich
def test_commands_refuse_it_too(slurm, tmp_path, run_file):
    nadi = f"srun --mpi=none -n 2 {sys.executable} -m nadi"
    said = in_a_job(slurm, tmp_path, f"{nadi} run {shlex.quote(str(run_file))} --out out; echo rc=$?; {nadi} bench")
    assert said.count("nadi: error: SLURM_STEP_NUM_TASKS=2, but MPICH") == said.count("nadi: ") == 2, said
    assert said.count("rc=2\n") == 2
    assert not (tmp_path / "out").exists()


@mpich
def test_independent_runs_may_be_asked_for(slurm, tmp_path, connect):
    said = in_a_job(slurm, tmp_path, f"NADI_LAUNCHER=none srun --mpi=none -n 2 {connect}")
    assert said == "size None\nsize None\nrc=0\n"


@open_mpi
@pytest.mark.parametrize("launch", ["mpirun.openmpi -n 2", pytest.param("srun --mpi=pmix -n 2", marks=pmix)])
def test_two_ranks_of_open_mpi_see_each_other(slurm, tmp_path, connect, launch):
    said = in_a_job(slurm, tmp_path, f"{launch} {connect}", **OPEN_MPI)
    assert said.count("size 2") == 2, said


@open_mpi
def test_open_mpi_by_srun_without_pmix_is_refused_once(slurm, tmp_path, connect):
    said = in_a_job(slurm, tmp_path, f"srun --mpi=none -n 2 {connect}", **OPEN_MPI)
    assert said.count("use srun --mpi=pmix, or the mpiexec of Open MPI inside sbatch") == 1, said
    assert said.endswith("rc=2\n")


@open_mpi
def test_a_run_on_ranks_of_open_mpi_gives_the_answer_of_one(slurm, tmp_path, run_file, capsys):
    assert main(["run", str(run_file), "--out", str(tmp_path / "one"), "--quiet"]) == 0
    capsys.readouterr()
    nadi = f"mpirun.openmpi --bind-to none -n 2 {sys.executable} -m nadi run {shlex.quote(str(run_file))} --quiet"
    said = in_a_job(slurm, tmp_path, f"{nadi} --out two >log", **OPEN_MPI)
    assert said.endswith("rc=0\n"), said
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert two["ranks"] == 2
    assert two["digest"] == one["digest"]


ROOT = Path(__file__).parents[2]
RUNS = """
import importlib, json, sys
import numba
from nadi.cli.main import main
from nadi.compiling import kernel_cache

def compiled():
    found = {}
    for module in kernel_cache.modules():
        for name, item in vars(importlib.import_module(module)).items():
            if hasattr(item, "py_func") and item.py_func.__module__ == module:
                if item._how in ("kernel", "hook") and ".instruments." not in module:
                    found[f"{module}.{name}"] = len(item._addresses)  # compiled or loaded
    return found

assert main(["doctor", "--compile"]) == 0
before = compiled()
for options in ([], ["--workers", "2"]):
    assert main(["run", sys.argv[1], "--quiet", *options]) == 0
print(json.dumps([before, compiled()]))
"""


def test_a_run_compiles_nothing_more(run_file):
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(run_file)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("kernels in /")
    before, after = json.loads(lines[-1])
    assert {"nadi.pdes.workers.team.work", "nadi.pdes.core.algorithms.rehash"} <= before.keys()
    assert before == after
    assert [name for name, times in before.items() if times != 1] == []


LIMIT = ("--time", "00:01:00")
RANKS = 2
LIMIT_S = 25  # after which SLURM asks the job to end
SIGNAL_BYTES = 1 << 35  # all-reduce of four NPUs of more than the few seconds after which a test asks a job to end
ENDS_S = 600


def write_all_reduce(run_file, size_bytes):
    node = et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, size_bytes)
    for trace in (run_file.parent / "traces").glob("*.et"):
        et.write_trace(trace, et.metadata(), [node])


def restarts(slurm, job):
    """How often SLURM has queued a job again."""
    return int(re.search(r"Restarts=(\d+)", slurm.run("scontrol", "show", "job", job).stdout)[1])


def until_over(slurm, job):
    """Wait for a job; the two minutes that SLURM leaves between two starts are cut short."""
    end = time.monotonic() + ENDS_S
    while not slurm.over(job):
        assert time.monotonic() < end, slurm.run("scontrol", "show", "job", job).stdout
        if slurm.states(job) == {"PENDING"}:
            time.sleep(1.1)  # within the same second the node would take the new start for the old
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(0.5)


def request_end(slurm, job, folder):
    """Send the signal that SLURM sends before the limit, as soon as the run below a folder has simulated something."""

    def simulates():
        with suppress(OSError):
            statuses = [json.loads(path.read_text()) for path in folder.rglob(STATUS_FILE)]
            return any(status["packet_hops"] for status in statuses)

    assert slurm.until(simulates, 60)
    slurm.run("scancel", "--batch", "--signal=USR1", job)


@mpich
@pytest.mark.parametrize(("launcher", "until_limit"), [("mpiexec", False), ("srun-pmi2", True)])
def test_a_job_beyond_its_limit_ends_by_itself(slurm, tmp_path, run_file, node_tmp, capsys, launcher, until_limit):  # noqa: F811
    compile_all()
    whole = [sys.executable, "-m", "nadi", "run", str(run_file), "--quiet", "--out", str(tmp_path / "one")]
    write_all_reduce(run_file, SIGNAL_BYTES)
    if until_limit:  # half more than two ranks of this machine do before SLURM asks, if two are twice as fast as one
        # two ranks count no periods within messages
        subprocess.run([*whole, "--exact"], cwd=ROOT, check=True, capture_output=True, timeout=ENDS_S)
        one_s = json.loads((tmp_path / "one" / "summary.json").read_text())["wall_s"]
        write_all_reduce(run_file, int(SIGNAL_BYTES * 3 * LIMIT_S / one_s))
    script, out = tmp_path / "job.sbatch", tmp_path / "the results"
    options = ("--ranks-per-node", RANKS, "--launcher", launcher, *LIMIT)
    write_script(capsys, run_file, "--nodes", 1, *options, "--out", out, "-o", script)
    job = slurm.run("sbatch", "--parsable", script, cwd=tmp_path, environ=node_tmp).stdout.strip()
    if not until_limit:
        request_end(slurm, job, tmp_path)
    subprocess.run(whole, cwd=ROOT, check=True, capture_output=True, timeout=ENDS_S)
    until_over(slurm, job)
    assert slurm.states(job) == {"COMPLETED"}, logs(tmp_path)
    assert restarts(slurm, job) >= 1
    assert logs(tmp_path).count("the job is queued again") == restarts(slurm, job)
    one, many = (json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "one", out))
    assert many["digest"] == one["digest"]
    assert many["ranks"] == RANKS
    assert not (out / "checkpoints").exists()
