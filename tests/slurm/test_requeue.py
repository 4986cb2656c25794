"""A job that does not fit into its time limit: SLURM queues it again, and the run continues from its checkpoint."""

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nadi import et
from nadi.launching.progress import STATUS_FILE
from nadi.pdes import compile_all
from tests.needs import mpich
from tests.slurm.test_jobs import logs, node_tmp, write_script  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
LIMIT = ("--time", "00:01:00")
RANKS = 2
LIMIT_S = 25  # after which SLURM asks the job to end
SIGNAL_BYTES = 1 << 35  # all-reduce of four NPUs of more than the few seconds after which a test asks a job to end
ENDS_S = 600


def write_all_reduce(run_file, size_bytes):
    """Write traces of an all-reduce beside a run file."""
    node = et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, size_bytes)
    for trace in (run_file.parent / "traces").glob("*.et"):
        et.write_trace(trace, et.metadata(), [node])


def restarts(slurm, job):
    """How often SLURM has queued a job again."""
    return int(re.search(r"Restarts=(\d+)", slurm.run("scontrol", "show", "job", job).stdout)[1])


def until_over(slurm, job):
    """Wait for a job; the two minutes that SLURM leaves between two starts are cut short."""
    end = time.monotonic() + ENDS_S
    while slurm.states(job) & {"PENDING", "RUNNING", "COMPLETING"}:
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
        subprocess.run(whole, cwd=ROOT, check=True, capture_output=True, timeout=ENDS_S)
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
