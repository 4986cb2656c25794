"""The script of docs/explanation/predictions.md: rows equal a run of the same model; mistakes are one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nadi.configuration.run_file import load_config
from nadi.insight.work_metrics import throughput
from tests.running import simulate

SCRIPT = Path(__file__).parents[2] / "scripts" / "predictions.py"
CLOSED = 'network.fidelity="closed-form"'


def test_a_row_is_what_a_run_says(tmp_path):
    words = ("megatron-then", "--only", "megatron-7.5b", "-o", tmp_path / "out.json")
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "out.json").read_text())["megatron-then"]
    keys = {"model": "workload.model", "plan": "workload.plan", "cluster": "topology.cluster"}
    run = simulate(load_config(None, [*(f'{key}="{row[name]}"' for name, key in keys.items()), CLOSED]))
    rates = throughput(run)
    assert (row["gpus"], row["is_whole"], row["does_not_fit"]) == (128, True, "")
    assert row["step_s"] == pytest.approx(run.results.finish_time_ps / 1e12, rel=0.01)
    assert row["mfu"] == pytest.approx(rates.mfu, rel=0.01)
    assert row["hfu"] == pytest.approx(rates.hfu, rel=0.01)
    assert sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
    assert f"| {row['step_s']:.3f} | {row['tokens_per_s']:,.0f} | {row['mfu']:.1%} |" in done.stdout


def test_an_unknown_list_is_one_line():
    done = subprocess.run([sys.executable, SCRIPT, "all"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "error: no list all; expected megatron-then, megatron-today, training-runs, mlperf" in done.stderr
