"""scripts/rank_memory.py: the table of docs/explanation/performance.md, of a small fabric."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_row_adds_up():
    options = ("--npus", "128", "--nodes", "4", "--ranks-per-node", "2", "--samples", "2")
    command = [sys.executable, str(ROOT / "scripts" / "rank_memory.py"), *options]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    assert done.returncode == 0, done.stderr
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines())
    assert [row[:2] for row in rows] == [["4", "8"]]
    for row in rows:
        sizes = dict(zip(head, map(float, row), strict=True))
        parts = sum(sizes[name] for name in ("Python and kernels", "fabric", "program", "layout", "world"))
        assert parts - 8 < sizes["a rank"] <= parts + 3
        assert sizes["a rank"] > 30
        once = sizes["files"] + sizes["shared, reserved"]
        assert abs(sizes["a node, GB"] * 1e3 - 2 * sizes["a rank"] - once) < 60
