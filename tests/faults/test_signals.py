"""Runs that are killed or asked to end: all processes end within seconds, nothing has its final name, nothing stays."""

import os
import signal

import pytest

from tests.needs import BIN, mpich

STARTS_S = 20
KILLED_S = 15
ASKED_S = 15
CTRL_C = "Ctrl-C"


def send(run, who, number):
    """Send a signal to a part of a run."""
    if number == CTRL_C:
        os.killpg(run.process.pid, signal.SIGINT)
        return
    if who == "first":
        pid = run.process.pid
    elif who == "child":
        pid = run.pid_of_child()
    else:
        pid = run.pid_of_rank(int(who.removeprefix("rank ")))
    os.kill(pid, number)


KILLED = [
    ("serial", "first"),
    ("processes", "first"),
    ("processes", "child"),
    ("ranks", "first"),
    ("ranks", "rank 0"),
    ("ranks", "rank 1"),
    ("ranks of two nodes", "rank 1"),
]


@pytest.mark.parametrize(("way", "who"), KILLED)
def test_killed(start, endless, tmp_path, way, who):
    run = start(way, endless, "--out", tmp_path / "out")
    run.until("simulated")
    send(run, who, signal.SIGKILL)
    assert run.ended(within_s=KILLED_S) != 0
    assert not (tmp_path / "out").exists()
    if who == "child":
        (line,) = run.told()
        assert line.startswith("nadi: error: worker 1 (process ")
        assert line.endswith("ended before the run did: killed by SIGKILL")


ASKED = [
    # way, who gets it, what, the exit code
    ("threads", "first", CTRL_C, 130),
    ("processes", "first", CTRL_C, 130),
    ("ranks", "first", CTRL_C, 130),
    ("ranks", "rank 0", signal.SIGINT, 130),
    ("serial", "first", signal.SIGTERM, 143),
    ("processes", "first", signal.SIGTERM, 143),
    ("ranks", "rank 0", signal.SIGTERM, 143),
    ("serial", "first", signal.SIGHUP, 129),
]


@pytest.mark.parametrize(("way", "who", "number", "code"), ASKED)
def test_asked_to_end(start, endless, tmp_path, way, who, number, code):
    run = start(way, endless, "--out", tmp_path / "a" / "b")
    run.until("simulated")
    send(run, who, number)
    assert run.ended(within_s=ASKED_S) == code
    (line,) = run.told()
    how = "interrupted" if code == 130 else f"ended by {number.name}"
    assert line == f"nadi: error: {'rank 0: ' * (way == 'ranks')}{how}"
    assert not (tmp_path / "a").exists()
    assert not [file for file in run.segments if file.exists()]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "who"), [("processes", "child"), ("ranks", "first"), ("ranks", "rank 1")])
def test_asked_to_end_by_force(start, endless, tmp_path, way, who):
    """A worker that cannot clean up, and mpiexec, which leaves its ranks no time to."""
    run = start(way, endless, "--out", tmp_path / "out")
    run.until("simulated")
    send(run, who, signal.SIGTERM)
    assert run.ended(within_s=ASKED_S) != 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", ["serial", "ranks"])
def test_asked_to_end_while_it_writes(start, short, tmp_path, way):
    run = start(way, short, "--out", tmp_path / "out", fault="slow_writing@everyone")
    run.until("lingering")
    assert sorted(f.name for f in tmp_path.glob(".nadi-*/*.parquet")) == ["flows.parquet", "nodes.parquet"]
    send(run, "rank 0" if way == "ranks" else "first", signal.SIGTERM)
    assert run.ended(within_s=ASKED_S) == 143
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_killed_while_it_writes(start, short, tmp_path):
    """Nothing has its final name, and nobody else writes there until it ends; the next run removes what it left."""
    killed = start("serial", short, "--out", tmp_path / "out", fault="slow_writing@everyone")
    killed.until("lingering")
    (left,) = tmp_path.glob(".nadi-*")
    second = start("serial", short, "--out", tmp_path / "out")
    assert second.ended(within_s=STARTS_S) == 2
    (line,) = second.told()
    assert f"{tmp_path}/out: another run (process {killed.process.pid} on " in line
    assert "is writing results there; expected another folder, or to wait for it" in line
    assert [*left.glob("*.parquet")] != []
    send(killed, "first", signal.SIGKILL)
    assert killed.ended(within_s=KILLED_S) == -signal.SIGKILL
    assert left.exists()
    assert start("serial", short, "--out", tmp_path / "out").ended(within_s=STARTS_S) == 0
    assert not left.exists()
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".json", ".parquet"}


@mpich
def test_ranks_while_they_are_imported(start_command, endless):
    run = start_command([str(BIN / "mpiexec"), "-n", "2"], "run", endless, fault=None)
    run.until_ranks_map("_multiarray_umath", ranks=2)
    os.killpg(run.process.pid, signal.SIGINT)
    run.ended(within_s=ASKED_S)
    assert "Traceback" not in run.err
    assert len(run.told()) <= 1
