"""What `nadi watch` makes of a status file, whoever wrote it."""

import os
import platform
import time

import pytest

from nadi.launching.status import STATUS_FILE, RunStatus, Status, run_status
from nadi.pdes import Snapshot
from nadi.reports import staging
from nadi.reports.staging import staged

GONE = 4_194_304
"""Above any number that Linux gives a process."""


def status(**more):
    values = {"host": "elsewhere", "process": 7, "ranks": 2, "phase": "simulating", "begun_unix_s": 1.0}
    return Status(**values | {"renewed_unix_s": time.time()} | more)


@pytest.fixture
def write(tmp_path):
    """Write a status, or any bytes, where a run with --out `tmp_path` would."""
    folder = tmp_path / ".nadi-results"
    folder.mkdir()

    def written(content):
        text = content if isinstance(content, str) else content.model_dump_json()
        (folder / STATUS_FILE).write_text(text)

    return written


def test_rates_and_shares():
    run = RunStatus(1)
    assert run.renewed().phase == "preparing"
    run.expect(400.0)
    run.take(Snapshot(5000, 100, 1, 10, 2.0))
    first = run.renewed()
    assert (first.packet_hops_per_s, first.mean_packet_hops_per_s, first.done_share) == (50.0, 50.0, 0.25)
    assert first.left_s == 6.0
    run.take(Snapshot(9000, 300, 2, 10, 3.0))
    second = run.renewed()
    assert (second.packet_hops_per_s, second.mean_packet_hops_per_s, second.done_share) == (200.0, 200.0, 0.75)
    assert second.left_s == 0.5
    assert run.renewed().packet_hops_per_s == 200.0  # no report since


def test_the_file_is_there_as_long_as_the_run(tmp_path):
    with staged(tmp_path / "out", ("summary.json",)) as folder, run_status(folder, 3):
        end = time.monotonic() + 5
        while (seen := staging.Watch(tmp_path / "out").look()).state == "starting":
            assert time.monotonic() < end
        assert (seen.status.ranks, seen.status.process) == (3, os.getpid())
    assert [*(tmp_path / "out").iterdir()] == []


def test_another_host_has_a_minute(tmp_path, write, monkeypatch):
    write(status())
    watch = staging.Watch(tmp_path)
    assert watch.look().state == "running"
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + staging.DEAD_AFTER_S - 5)
    assert watch.look().state == "running"
    write(status())
    assert watch.look().age_s < 1
    monkeypatch.setattr(time, "monotonic", lambda: real() + 2 * staging.DEAD_AFTER_S)
    assert watch.look().state == "dead"


def test_an_old_status_is_of_a_dead_run(tmp_path, write, nadi):
    write(status(renewed_unix_s=time.time() - 2 * staging.DEAD_AFTER_S))
    done = nadi("watch", tmp_path)
    assert done.code == 1
    assert done.out.startswith("dead: process 7 on elsewhere, first of 2 ranks has ended or hangs, last renewed 120 s")
    assert ": its output has the reason" in done.out
    (tmp_path / "checkpoints" / "000003").mkdir(parents=True)
    assert f": `nadi run --resume {tmp_path}` continues from its last checkpoint" in nadi("watch", tmp_path).out


@pytest.mark.parametrize(("process", "state"), [(GONE, "dead"), (os.getpid(), "running")], ids=["gone", "own"])
def test_this_host_knows_its_processes(tmp_path, write, process, state):
    write(status(host=platform.node(), process=process, renewed_unix_s=time.time() - 10))
    assert staging.Watch(tmp_path).look().state == state


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": 1}', "\0" * 10, "[" * 60_000, "1" * 100_000])
def test_what_is_no_status(tmp_path, write, content, monkeypatch):
    write(content)
    watch = staging.Watch(tmp_path)
    assert watch.look()[:2] == ("starting", None)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + staging.DEAD_AFTER_S + 1)
    assert watch.look().state == "dead"


def test_a_fifo_is_not_waited_for(tmp_path):
    (tmp_path / ".nadi-results").mkdir()
    os.mkfifo(tmp_path / ".nadi-results" / STATUS_FILE)
    assert staging.Watch(tmp_path).look().state == "starting"


def test_no_run(tmp_path, nadi):
    done = nadi("watch", tmp_path / "x", "--once")
    assert done.code == 2
    assert "x: found no run that writes to it, and no results" in done.err


def test_the_results_of_an_earlier_run_are_not_those_of_this_one(tmp_path, write, nadi):
    (tmp_path / "summary.json").write_text("{}")
    write(status())
    watch = staging.Watch(tmp_path)
    assert watch.look().state == "running"
    (tmp_path / ".nadi-results" / STATUS_FILE).unlink()
    assert watch.look().state == "running"
    (tmp_path / ".nadi-results").rmdir()
    assert watch.look().state == "ended"
    (tmp_path / "summary.json").unlink()
    (tmp_path / "summary.json").write_text('{"new": 1}')
    os.utime(tmp_path / "summary.json", (1, 1))
    assert watch.look().state == "finished"
    assert nadi("watch", tmp_path).out == f"finished: results in {tmp_path}\n"


def test_one_look(tmp_path, write, nadi):
    slowest = {"rank": 3, "worker": 1, "waiting_share": 0.02, "mean_waiting_share": 0.125}
    values = {"simulated_ps": 1_500_000, "packet_hops": 10, "packet_hops_per_s": 2e6, "mean_packet_hops_per_s": 1e6}
    write(status(**values, done_share=0.25, left_s=125.0, slowest=slowest))
    done = nadi("watch", tmp_path, "--once")
    assert done.code == 0
    lines = [line.split(None, 1) for line in done.out.splitlines() if line.strip()]
    assert [line[0] for line in lines] == ["run", "simulated", "rate", "done", "left", "slowest"]
    assert lines[0][1].startswith("simulating (process 7 on elsewhere, first of 2 ranks; last renewed ")
    assert [line[1].strip() for line in lines[1:]] == [
        "1.5 µs",
        "2.0 M packet-hops/s, mean 1.0 M",
        "25.0%",
        "2 min 5 s",
        "rank 3, worker 1: waits 2.0% of the time, mean 12.5%",
    ]


def test_the_end_stays_on_a_terminal(tmp_path, write, nadi, monkeypatch):
    """The live table is erased, the last line is not."""
    write(status(renewed_unix_s=time.time() - 2 * staging.DEAD_AFTER_S))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    after_the_last_erasure = nadi("watch", tmp_path).out.rpartition("\x1b[2K")[2]
    assert after_the_last_erasure.startswith("dead: process 7 on elsewhere")
