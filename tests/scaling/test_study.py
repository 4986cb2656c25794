"""The study runs from end to end."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "scaling_study.py"


def study(*arguments):
    command = [sys.executable, str(SCRIPT), "--quick", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@needs.ranks
def test_all_of_it_with_ranks(tmp_path):
    out = tmp_path / "study"
    said = study("--out", out, "--workers", 2, "--ways", "threads", "ranks through MPI", "--skip", "weak")
    assert "off by" in said
    rows = table(out / "strong.csv")
    assert [(row["way"], row["workers"]) for row in rows] == [
        ("copies", "1"),
        ("copies", "2"),
        ("threads", "2"),
        ("ranks through MPI", "2"),
    ]
    assert float(rows[0]["speed_up"]) == float(rows[0]["efficiency"]) == 1
    sync = {row["way"]: float(row["sync_us"]) for row in table(out / "sync.csv")}
    assert {"threads", "ranks through MPI", "bare exchange, 1 messages"} <= set(sync)
    projected = table(out / "projection.csv")
    assert [row["way"] for row in projected[:2]] == ["threads", "ranks through MPI"]
    measured = {row["way"]: float(row["speed_up"]) for row in rows if row["workers"] == "2"}
    for row in nonempty(projected[:2]):
        expected, real = float(row["speed_up_of_capacity"]), float(row["measured_speed_up"])
        assert real == pytest.approx(measured[row["way"]])
        assert 0 < float(row["speed_up"]) <= 2  # of two ranks
        assert expected == pytest.approx(float(row["speed_up"]) * measured["copies"] / 2)
        assert float(row["error_percent"]) == pytest.approx(100 * (expected - real) / real, abs=0.01)
    facts = json.loads((out / "machine.json").read_text())
    assert facts["cores"] >= 1
    assert facts["sync_us"]["alpha"] == pytest.approx(sync["ranks through MPI"])
    page = (out / "scaling.html").read_text()
    assert page.count("Plotly.newPlot(") >= 3
    assert len(page) > 1 << 20  # with plotly itself


def test_weak_scaling_on_threads_alone(tmp_path):
    study("--out", tmp_path, "--workers", 2, "--ways", "threads", "--skip", "strong", "sync", "projection")
    rows = table(tmp_path / "weak.csv")
    assert [(row["way"], row["npus"]) for row in rows] == [("copies", "64"), ("copies", "64"), ("threads", "128")]


def test_the_projection_alone(tmp_path):
    said = study(
        "--out",
        tmp_path,
        "--skip",
        "strong",
        "weak",
        "sync",
        "--npus",
        16,
        "--ranks",
        1,
        2,
        4,
        512,
        "--ways",
        "threads",
    )
    assert "512 ranks: fat-tree:npus=16" in said
    rows = table(tmp_path / "projection.csv")
    assert [(row["ranks"], row["way"]) for row in rows[:3]] == [
        ("1", "1 a node"),
        ("2", "1 a node"),
        ("2", "32 a node"),
    ]
    assert float(rows[0]["speed_up"]) == pytest.approx(1)
    for row in nonempty(rows):
        shares = [float(row[name]) for name in ("work_share", "uneven_share", "sync_share")]
        assert sum(shares) == pytest.approx(1)
        assert float(row["total_s"]) >= float(row["busiest_s"])
