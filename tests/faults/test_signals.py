"""Runs that are killed, asked to end, out of disk or refused: all processes end soon, nothing has its final name."""

import os
import shutil
import signal
import subprocess

import pytest

from nadi.cli.main import main
from tests.needs import BIN, mpich, open_mpi

STARTS_S = 20
KILLED_S = 15
ASKED_S = 15
CTRL_C = "Ctrl-C"


def send(run, who, number):
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


ENDS_S = 20


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of two pages."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system for tests needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], capture_output=True, timeout=10)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=10)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["serial", "ranks"])
def test_no_room_on_the_disk(start, short, tiny_disk, way):
    earlier = tiny_disk / "earlier"
    earlier.touch()
    run = start(way, short, "--out", tiny_disk / "out")
    assert run.ended(within_s=ENDS_S) == 1
    (line,) = run.told()
    assert line.startswith(f"nadi: error: {tiny_disk}/out: ")
    assert "No space left on device" in line
    assert line.endswith("; results are not written")
    assert [*tiny_disk.iterdir()] == [earlier]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["processes", "ranks of two nodes"])
def test_files_may_not_be_so_long(start, short, tmp_path, way):
    run = start(way, short, "--out", tmp_path / "out", fault="no_room@everyone")
    assert run.ended(within_s=ENDS_S) == 1
    (line,) = run.told()
    assert "File too large" in line
    assert not (tmp_path / "out").exists()


WRITERS = {
    "table": ["collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "1MiB", "-o", "{disk}/c.html"],
    "script": ["slurm", "{run}", "--nodes", "1", "-o", "{disk}/job.sbatch"],
    "fabric": ["topology", "build", "fat-tree:k=8", "-o", "{disk}/net.toml"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_room_for_what_other_commands_write(tiny_disk, short, name, capsys):
    """Each has an error of its own for a name that cannot be written, with exit code 2."""
    (tiny_disk / "full").write_bytes(bytes(8000))
    words = [word.format(disk=tiny_disk, run=short) for word in WRITERS[name]]
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{words[-1]}: No space left on device" in line
    assert [path.name for path in tiny_disk.iterdir()] == ["full"]
    assert main(["topology", "build", "ring:npus=4", "-o", str(tiny_disk / "no folder" / "net.toml")]) == 2


ERROR_ENDS_S = 10

CASES = [
    # way, who has the fault, where, what stands before it
    ("serial", "everyone", "windows", ""),
    ("serial", "everyone", "writing", ""),
    ("threads", "thread 1", "starting", ""),
    ("processes", "worker 1", "building", "worker 1: "),
    ("processes", "worker 1", "windows", "worker 1: "),
    ("ranks", "rank 1", "reading", "rank 1: "),
    ("ranks", "rank 1", "windows", "rank 1: "),
    ("ranks", "rank 1", "collecting", "rank 1: "),
    ("ranks", "rank 0", "writing", "rank 0: "),
    ("ranks", "rank 1", "writing", "rank 1: "),
    ("ranks of two nodes", "rank 1", "windows", "rank 1: "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "who", "where", "named"), CASES)
def test_an_exception_ends_all(start, endless, short, tmp_path, way, who, where, named):
    file = endless if where in {"windows", "starting"} else short
    run = start(way, file, "--out", tmp_path / "out", fault=f"{where}@{who}")
    assert run.ended(within_s=STARTS_S + ERROR_ENDS_S) == 1
    (line,) = run.told()
    assert line.startswith(f"nadi: error: {named}InjectedError: boom")
    assert [*tmp_path.glob("out/*")] == []


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
