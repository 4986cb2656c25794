"""Real launchers under a real SLURM: who sees whom, and what is said where nobody does."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from nadi.cli.main import main
from tests.needs import BIN, mpich, open_mpi

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
