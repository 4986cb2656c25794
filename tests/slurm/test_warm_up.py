"""`nadi doctor --compile`, the warm-up of batch scripts, compiles what runs need and leaves nothing to them."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = """
import importlib, json, sys
import numba
from nadi.cli.main import main
from nadi.compiling import kernel_sources

def compiled():
    found = {}
    for module in kernel_sources.modules():
        for name, item in vars(importlib.import_module(module)).items():
            if hasattr(item, "py_func") and item.py_func.__module__ == module:
                if item._how in ("kernel", "hook") and ".instruments." not in module:
                    found[f"{module}.{name}"] = len(item._addresses)  # compiled or loaded
    return found

assert main(["doctor", "--compile"]) == 0
before = compiled()
for options in ([], ["--workers", "2"]):
    assert main(["run", sys.argv[1], "--quiet", *options]) == 0
print(json.dumps([before, compiled()]))
"""


def test_a_run_compiles_nothing_more(run_file):
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(run_file)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("kernels in /")
    before, after = json.loads(lines[-1])
    assert {"nadi.pdes.workers.team.work", "nadi.pdes.core.hashing.rehash"} <= before.keys()
    assert before == after
    assert [name for name, times in before.items() if times != 1] == []
