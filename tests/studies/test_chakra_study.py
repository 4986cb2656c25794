"""The study of one model on two fabrics runs from end to end; a ring of all NPUs takes what its slowest link takes."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from workload.generators.models import find, parameters

SCRIPT = Path(__file__).parents[2] / "scripts" / "chakra_study.py"


def study(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_gradients_of_all_take_what_the_slowest_link_takes(tmp_path):
    done = study("--out", tmp_path / "out", "--model", "gpt3-125m", "--plans", "dp64")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "chakra-study.csv").open(encoding="utf-8", newline="") as file:
        torus, switches = csv.DictReader(file)
    for row, rate_Bps in ((torus, 62e9), (switches, 37.5e9)):  # noqa: N806 - bytes, not bits
        ring_ms = 2 * 63 / 64 * 4 * parameters(find("gpt3-125m")) / rate_Bps * 1e3
        step_ms, compute_ms = float(row["step_ms"]), float(row["compute_ms"])
        assert ring_ms < step_ms < compute_ms + 1.1 * ring_ms  # padded vocabulary, latencies of its steps
        parts = sum(float(value) for key, value in row.items() if key.endswith("_ms") and key != "step_ms")
        assert parts == pytest.approx(step_ms)
    # the same operators, slowed while a collective runs beside them: by 108 / 92 at most, the SMs that NCCL leaves
    assert float(torus["compute_ms"]) == pytest.approx(float(switches["compute_ms"]), rel=108 / 92 - 1)
    assert "| dp64 | 8 x 8 torus, 62 GB/s |" in done.stdout


def test_a_plan_that_breaks_a_rule_is_one_line(tmp_path):
    done = study("--out", tmp_path / "out", "--plans", "tp3")
    assert done.returncode == 2
    assert "tp is 3" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
