"""The study of collectives runs from end to end, and its bounds are those worked out by hand."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "collective_study.py"
MIB = 1 << 20


def study(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    done = study("--out", out, "--sizes", "1MiB", "--algorithms", "direct")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def rows(folder):
    with (folder / "collective-study.csv").open(encoding="utf-8", newline="") as file:
        return {(row["fabric"], row["kind"]): row for row in csv.DictReader(file)}


def test_what_an_npu_has(rows):
    links = {fabric: (int(row["links_per_npu"]), float(row["links_Bps_per_npu"])) for (fabric, _), row in rows.items()}
    assert links == {
        "1D torus": (2, 124e9),
        "2D torus": (4, 248e9),
        "3D torus": (6, 372e9),
        "full mesh": (63, 3906e9),
        "switch": (1, 62e9),
        "two levels": (2, 637.5e9),
    }


def test_bounds_by_hand(rows):
    """All-to-all: a quarter of n S crosses the middle each way, over 2, 16 and 32 links; 3/4 of S leave a box."""
    per_byte = {
        "1D torus": (64 / 4) / (2 * 62e9),
        "2D torus": (64 / 4) / (16 * 62e9),
        "3D torus": (64 / 4) / (32 * 62e9),
        "full mesh": 1 / 64 / 62e9,
        "switch": 63 / 64 / 62e9,
        "two levels": 0.75 / 37.5e9,
    }
    for fabric, bound_s in per_byte.items():
        row = rows[fabric, "all-to-all"]
        assert float(row["bandwidth_bound_ps"]) == pytest.approx(bound_s * MIB * 1e12, rel=1e-4), fabric
        total_Bps = float(row["links_Bps_per_npu"])  # noqa: N806
        least_ps = 2 * 63 / 64 * MIB / total_Bps * 1e12
        assert float(rows[fabric, "all-reduce"]["bandwidth_bound_ps"]) == pytest.approx(least_ps, rel=1e-4), fabric
    hops = {"1D torus": 32, "2D torus": 8, "3D torus": 6, "full mesh": 1, "switch": 2, "two levels": 4}
    assert {fabric: int(rows[fabric, "all-to-all"]["latency_bound_ps"]) // 500_000 for fabric in hops} == hops


def test_nothing_is_faster_than_its_bounds(rows):
    for row in nonempty(rows.values()):
        assert int(row["time_ps"]) > max(int(row["latency_bound_ps"]), int(row["bandwidth_bound_ps"]))


def test_reasons(rows):
    assert rows["1D torus", "all-to-all"]["why"].startswith("bandwidth: bisection")
    assert rows["two levels", "all-to-all"]["why"].startswith("bandwidth: one slice of dimension 2")
    assert rows["switch", "all-reduce"]["why"].startswith("bandwidth: links of an NPU")
    assert "the algorithm" in rows["1D torus", "all-reduce"]["why"]


def test_page_and_text(folder, rows):
    text = (folder / "collective-study.md").read_text()
    assert "| 2D torus | 4 | 248 |" in text
    page = (folder / "collective-study.html").read_text()
    assert page.count("Plotly.newPlot(") == 4
    for row in nonempty(rows.values()):
        assert row["why"] in text
    assert sorted(path.suffix for path in folder.iterdir()) == [".csv", ".html", ".md"]


def test_wrong_values_are_one_line(tmp_path):
    done = study("--out", tmp_path / "out", "--rate", "62", "--sizes", "1MiB")
    assert done.returncode == 2
    assert "rate" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
