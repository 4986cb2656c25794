"""A run under way: progress, status for `nadi watch`, and its folder of results, complete or not there."""

import io
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nadi.errors import OutputError
from nadi.launching.progress import (
    STATUS_FILE,
    ExpectedWork,
    NoProgress,
    RunStatus,
    Status,
    describe,
    progress,
    run_status,
)
from nadi.pdes import Snapshot
from nadi.reports import staging
from nadi.reports.staging import staged


def snapshot(**more):
    values = {"now_ps": 3_500_123, "packet_hops": 24_000_000, "nodes_done": 30, "nodes_total": 120, "wall_s": 2.0}
    reused = {"stopped_replaying": False, "counted_hops": 0, "replayed_hops": 0}
    return SimpleNamespace(**values | reused | {"messages": None} | more)


def test_a_line():
    begun = "3.5us simulated, 12.0 M packet-hops/s, "
    assert describe(snapshot(), 96e6) == begun + "25.0% of 9.6e+07 packet-hops done, 6 s left"
    assert describe(snapshot(messages=30), 40) == begun + "75.0% of 40 messages done, 1 s left"
    assert describe(snapshot(), 0) == begun + "30 of 120 trace nodes done"


def test_a_run_that_continues_is_as_fast_as_it_is_now():
    """What was done before its first report does not count for the pace."""
    first = snapshot(packet_hops=80_000_000, wall_s=0.5)
    assert "12.0 M packet-hops/s, 40.0% of 2.6e+08 packet-hops done, 13 s left" in describe(
        snapshot(packet_hops=104_000_000, wall_s=2.5), 260e6, first
    )


def test_nothing_is_promised_before_something_is_done():
    assert describe(snapshot(packet_hops=0), 10).endswith("0.0% of 10 packet-hops done")
    assert describe(snapshot(packet_hops=1, wall_s=100.0), 120).endswith("3 h 18 min left")
    assert describe(snapshot(packet_hops=60, wall_s=100.0), 120).endswith("1 min 40 s left")
    assert describe(snapshot(packet_hops=1, wall_s=100.0), 300).endswith("0.3% of 300 packet-hops done")


def test_nothing_is_promised_where_packets_were_sent_again():
    assert describe(snapshot(packet_hops=130), 120).endswith(
        "30 of 120 trace nodes done, 1.08 times the expected packet-hops"
    )
    assert describe(snapshot(packet_hops=120), 120).endswith("30 of 120 trace nodes done")
    assert "99.9% of 1e+05 packet-hops done" in describe(snapshot(packet_hops=99_999), 100_000)


def test_a_file_gets_a_line_every_few_seconds(monkeypatch):
    now = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.expect(ExpectedWork(96e6))
        for _ in range(3):
            shown(snapshot())
        shown.say("compiling")
    assert stream.getvalue() == f"nadi: {describe(snapshot(), 96e6)}\nnadi: compiling\n"


def test_a_run_that_stops_to_replay_says_so_once_and_expects_more(monkeypatch):
    now = iter(range(0, 100, 6))
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream, stopped = io.StringIO(), snapshot(stopped_replaying=True)
    with progress(stream=stream) as shown:
        shown.expect(ExpectedWork(96e6), 144e6, "seldom repeats")
        for each in (snapshot(), stopped, stopped):
            shown(each)
    more = f"nadi: {describe(stopped, 240e6)}\n"
    assert stream.getvalue() == f"nadi: {describe(snapshot(), 96e6)}\nnadi: seldom repeats\n{more}{more}"


def test_of_several_runs_each_line_says_which(monkeypatch):
    now = iter([0.0, 1.0, 6.0, 6.0, 12.0, 12.0])
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.begin("row 1 of 2")
        shown.begin("row 2 of 2")
        shown(snapshot())
    assert stream.getvalue() == f"nadi: row 2 of 2\nnadi: row 2 of 2: {describe(snapshot(), 0)}\n"


def test_things_done_with_the_time_that_remains(monkeypatch):
    now = iter([0.0, 60.0, 60.0, 60.0])
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.count(2, 6, "points")
    assert stream.getvalue() == "nadi: 2 of 6 points done, 2 min 0 s left\n"


def test_a_terminal_gets_one_live_line():
    stream = io.StringIO()
    stream.isatty = lambda: True
    with progress(stream=stream) as shown:
        shown(snapshot())
        shown.say("compiling")
    assert "compiling" in stream.getvalue()


def test_quiet():
    with progress(quiet=True) as shown:
        assert isinstance(shown, NoProgress)
        shown.begin("row 1 of 2")
        shown.expect(ExpectedWork(1.0))
        shown(snapshot())
        shown.say("x")


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
    run.expect(ExpectedWork(400.0))
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
    lines = [line.split(None, 1) for line in nadi.ok("watch", tmp_path, "--once").out.splitlines() if line.strip()]
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


FILES = ("summary.json", "a.parquet", "b.parquet")


def write_files(out, text="1", files=FILES):
    with staged(out, FILES) as folder:
        for name in files:
            (folder / name).write_text(text)


def found(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("way", ["out", "a/b/out"])
def test_nothing_has_its_name_before_all_is_complete(tmp_path, way):
    out = tmp_path / way
    with staged(out, FILES) as folder:
        (folder / "summary.json").write_text("1")
        assert not (tmp_path / way.split("/")[0]).exists()
        assert folder.parent == tmp_path
    assert found(out) == {"summary.json": "1"}
    assert [path.name for path in tmp_path.iterdir()] == [way.split("/")[0]]


def test_a_folder_that_is_there_keeps_what_is_not_ours(tmp_path):
    write_files(tmp_path)
    (tmp_path / "notes").write_text("mine")
    write_files(tmp_path, "2", FILES[:2])
    assert found(tmp_path) == {"summary.json": "2", "a.parquet": "2", "notes": "mine"}


@pytest.mark.parametrize("exists", [False, True])
def test_a_second_run_is_told_who_writes_there(tmp_path, exists):
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    with staged(out, FILES) as folder:
        (folder / "summary.json").write_text("first")
        for other in (out, tmp_path / "x" / ".." / "out"):
            with pytest.raises(OutputError, match=rf"another run \(process {os.getpid()} on .* is writing"):
                write_files(other)
        with staged(tmp_path / "beside", FILES) as beside:
            (beside / "summary.json").write_text("other")
    assert found(out) == {"summary.json": "first"}
    write_files(out, "second")
    assert found(out)["summary.json"] == "second"


def test_a_run_that_began_before_the_folder_was_there_still_holds_it(tmp_path):
    out = tmp_path / "a" / "out"
    with staged(out, FILES) as folder:
        (folder / "summary.json").write_text("first")
        out.mkdir(parents=True)
        (out / "notes").write_text("mine")
        with pytest.raises(OutputError, match="another run"):
            write_files(out)
    assert found(out) == {"summary.json": "first", "notes": "mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("exists", [False, True])
def test_what_a_killed_run_has_left_the_next_removes(tmp_path, exists):
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    code = (
        "import os, signal, sys; from pathlib import Path; from nadi.reports.staging import staged\n"
        "with staged(Path(sys.argv[1]), ['summary.json']) as folder:\n"
        "    (folder / 'summary.json').write_text('half'); (folder / 'deep').mkdir()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, out], timeout=60).returncode == -9
    (left,) = tmp_path.rglob(".nadi-*")
    assert (left / "deep").is_dir()
    out.mkdir(exist_ok=True)
    write_files(out)
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")] == []
    assert found(out).keys() == set(FILES)


def test_of_many_that_begin_at_once_one_writes(tmp_path):
    outcomes = []
    begin, hold = threading.Barrier(8), threading.Barrier(8)

    def run(number):
        begin.wait()
        try:
            with staged(tmp_path / "out", FILES) as folder:
                hold.wait()
                (folder / "summary.json").write_text(str(number))
            outcomes.append(number)
        except OutputError:
            hold.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = outcomes
    assert found(tmp_path / "out") == {"summary.json": str(winner)}


@pytest.mark.parametrize("way", ["x" * 300, "a/" + "x" * 300 + "/b"])
def test_a_name_that_cannot_be_is_found_before(tmp_path, way):
    with pytest.raises(OutputError, match="File name too long; expected a folder"), staged(tmp_path / way, FILES):
        pytest.fail("the block has run")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("way", [b"out\xff", b"\xff/out"])
def test_a_name_that_is_no_utf_8_is_found_before(tmp_path, way):
    """Parquet files can have no such path."""
    out = tmp_path / os.fsdecode(way)
    with pytest.raises(OutputError, match="its path is no UTF-8; expected a folder"), staged(out, FILES):
        pytest.fail("the block has run")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"a.parquet": "mine"}, "a.parquet"),
        ({"b.parquet": "mine", "notes": "mine"}, "b.parquet"),
        ({"summary.json": "mine"}, "summary.json"),
        ({"summary.json": '{"total": 1}', "a.parquet": "mine"}, "summary.json"),
        ({"summary.json": '["digest"]'}, "summary.json"),
    ],
)
def test_files_of_the_user_are_kept_and_found_before(tmp_path, files, named):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with (
        pytest.raises(OutputError, match=f"{named} in it was not written by Nadi.*expected another folder"),
        staged(tmp_path, FILES, key="digest"),
    ):
        pytest.fail("the block has run")
    assert found(tmp_path) == files


def test_files_of_an_earlier_run_are_replaced_or_removed(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text('{"digest": "0"}')
    with staged(tmp_path, FILES, key="digest") as folder:
        (folder / "summary.json").write_text("new")
        (tmp_path / "b.parquet").unlink()
    assert found(tmp_path) == {"summary.json": "new"}


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_files(tmp_path / "a" / "out", text=b"1")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="No space left"), staged(tmp_path / "out", FILES):
        raise OSError(28, "No space left on device")
    assert [*tmp_path.rglob("*")] == [tmp_path / "out"]


def test_a_parent_that_another_run_creates_meanwhile_is_used(tmp_path, monkeypatch):
    """Tasks of an array write to folders of one parent, which both find missing."""
    make = Path.mkdir

    def late(folder, *args, **keys):
        if folder.name == "results" and not folder.exists():
            make(folder)  # by the other run
        make(folder, *args, **keys)

    monkeypatch.setattr(Path, "mkdir", late)
    with staged(tmp_path / "results" / "one", ("summary.json",)) as folder:
        (folder / "summary.json").write_text("{}")
    assert (tmp_path / "results" / "one" / "summary.json").read_text() == "{}"
