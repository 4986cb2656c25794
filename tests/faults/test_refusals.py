"""What cannot work, or will not pay, is said once, on any number of ranks."""

import pytest

from tests.needs import open_mpi

ENDS_S = 20
ONE_SWITCH = ("--set", "topology.spec=switch:npus=8")
SHORT_LINKS = ("--set", "topology.spec=ring:npus=8,rate=100Gbps,delay=100ns")


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_more_workers_than_parts(start, short, tmp_path, way):
    run = start(way, short, *ONE_SWITCH, "--out", tmp_path / "a" / "b")
    assert run.ended(within_s=ENDS_S) == 2
    (line,) = run.told()
    assert line.startswith("nadi: error: switch:npus=8: 2 parts; expected at most 1, ")
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["threads", "ranks of two nodes"])
def test_workers_that_will_not_pay(start, short, way):
    run = start(way, short, *SHORT_LINKS)
    assert run.ended(within_s=ENDS_S) == 0
    (line,) = [line for line in run.err.splitlines() if "pay" in line]
    assert line.startswith("nadi: 2 workers will hardly pay: ")
    assert "events per window, predicted speed-up 0." in line


@pytest.mark.parametrize("command", ["run", "bench"])
@open_mpi
def test_the_launcher_of_another_mpi(start_command, short, tmp_path, command):
    arguments = ["run", short, "--out", tmp_path / "out"] if command == "run" else ["bench", "pairs"]
    launcher = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    run = start_command(launcher, *arguments)
    assert run.ended(within_s=ENDS_S) == 2
    (line,) = run.told()
    assert line.startswith("nadi: error: started by Open MPI's mpirun, but mpi4py has loaded MPICH")
    assert not (tmp_path / "out").exists()
