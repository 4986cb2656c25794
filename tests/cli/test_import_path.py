"""Files in the folder in which the user works are no modules of Nadi or of the processes that it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import mpich

ROOT = Path(__file__).parents[2]
NAMES = ("calendar", "email", "et", "inputs", "json", "numpy", "pdes", "random", "rich", "typer", "workload")
SWEEP = """
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
    (tmp_path / "sweep.toml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_m_nadi_imports_nothing_from_the_folder_in_hand(trapped):
    for arguments in (["topology", "show", "ring:npus=2"], ["workload", "models", "llama3-8b"]):
        command = [sys.executable, "-m", "nadi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert [*trapped.glob("*.PWNED")] == []


def test_runs_of_a_sweep_import_nothing_from_the_folder_in_hand(nadi, trapped):
    outcome = nadi("sweep", "sweep.toml", "-o", "out", "-q")
    assert outcome.code == 0, outcome.err
    assert [*trapped.glob("*.PWNED")] == []


@mpich
def test_doctor_starts_nothing_from_the_folder_in_hand(trapped):
    from nadi.cli.commands.doctor import _mpi

    assert _mpi().ok
    assert [*trapped.glob("*.PWNED")] == []


@mpich
@pytest.mark.parametrize("output", ["< 1 MPICH 5 >< 1 MPICH 5 >\n\n", "< 1 MPI\n< 1 MPICH 5 >"])
def test_doctor_finds_worlds_of_one_rank_in_mixed_up_output(monkeypatch, output):
    """Launchers pass on what ranks print in pieces, whose ends are not the ends of lines."""
    from nadi.cli.commands import doctor

    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output, ""))
    finding = doctor._mpi()
    assert not finding.ok
    assert finding.found.endswith("2 ranks see a world of 1")
