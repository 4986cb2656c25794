"""`nadi watch` beside real runs: how far each is, that it ended, and how."""

import json
import signal
import time

import pytest

from nadi.cli.main import main
from nadi.launching.progress import STATUS_FILE

STARTS_S = 30
ENDS_S = 20


def look(out, capsys):
    capsys.readouterr()
    code = main(["watch", str(out), "--once", "--json"])
    return code, json.loads(capsys.readouterr().out)


def until(out, capsys, wanted):
    end = time.monotonic() + STARTS_S
    while True:
        code, seen = look(out, capsys)
        if wanted(seen):
            return code, seen
        assert time.monotonic() < end, seen
        time.sleep(0.05)


def until_a_status(folder, run):
    end = time.monotonic() + STARTS_S
    while not [*folder.glob(f".nadi-*/{STATUS_FILE}")]:
        assert time.monotonic() < end, run.err
        time.sleep(0.05)


def watching(start_command, out):
    """Return `nadi watch`, without a terminal, that has printed how far a run is."""
    watcher = start_command(None, "watch", out)
    watcher.until("simulating (process ", is_out=True)
    return watcher


WORKERS = {"serial": 1, "threads": 2, "processes": 2, "ranks": 2, "ranks of two nodes": 1}
"""Workers of the first rank's node."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.full] * (way not in {"serial", "ranks"})) for way in WORKERS]
)
def test_a_run_under_way(start, start_command, endless, tmp_path, capsys, way):
    out = tmp_path / "a" / "out"
    run = start(way, endless, "--out", out, "--quiet")
    until_a_status(tmp_path, run)
    code, first = until(out, capsys, lambda seen: seen["simulated_ps"])
    assert (code, first["state"], first["phase"]) == (0, "running", "simulating")
    assert first["ranks"] == (2 if way.startswith("ranks") else 1)
    assert first["process"] in run.pids
    assert (first["slowest"] is not None) == (WORKERS[way] > 1)
    if way == "ranks":
        assert first["slowest"]["rank"] == first["slowest"]["worker"]
    _, later = until(out, capsys, lambda seen: seen["packet_hops"] > first["packet_hops"])
    assert later["simulated_ps"] > first["simulated_ps"]
    assert 0 < first["done_share"] < later["done_share"] < 1
    assert later["packet_hops_per_s"] > 1e4
    assert later["left_s"] is None or later["left_s"] > 60  # None before half a percent is done
    watcher = watching(start_command, out)
    run.process.send_signal(signal.SIGTERM)
    assert watcher.ended(ENDS_S) == 1, watcher.out
    said = watcher.out
    is_killed = way.startswith("ranks")  # mpiexec leaves its ranks little time to remove what they wrote
    assert "ended without results" in said or (is_killed and "dead: process " in said)
    assert run.ended(ENDS_S) != 0


@pytest.mark.slow
def test_a_killed_run_is_dead(start, start_command, endless, tmp_path, capsys):
    run = start("serial", endless, "--out", tmp_path / "out", "--quiet")
    until_a_status(tmp_path, run)
    until(tmp_path / "out", capsys, lambda seen: seen["simulated_ps"])
    watcher = watching(start_command, tmp_path / "out")
    run.process.kill()
    run.ended(ENDS_S)
    assert watcher.ended(ENDS_S) == 1
    assert f"dead: process {run.process.pid} on " in watcher.out
    code, seen = look(tmp_path / "out", capsys)
    assert (code, seen["state"]) == (1, "dead")


def test_a_run_that_ends_well(start, short, tmp_path, capsys):
    out = tmp_path / "out"
    run = start("serial", short, "--out", out, fault="slow_writing@everyone")
    run.until("lingering")
    code, _ = until(out, capsys, lambda seen: seen["phase"] == "writing results")
    assert code == 0
    run.process.kill()
    run.ended(ENDS_S)
    assert start("serial", short, "--out", out).ended(STARTS_S) == 0
    assert look(out, capsys)[1] == {"state": "finished", "renewed_s_ago": 0.0}
    assert STATUS_FILE not in {file.name for file in out.iterdir()}
