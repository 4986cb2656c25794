"""Kernels that look at each index before they use it bring what was recorded, and find none that is out of bounds.

One process, with a cache of its own, since these kernels are others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from compiling.kernel_cache import cache_dir
from tests.digests.record import recorded
from tests.digests.runs import OF_SHARED_DATA, runs

ROOT = Path(__file__).parents[2]
ENOUGH = [name for name in runs() if not name.startswith(("dctcp", "hpcc", "nscc", "swift", "timely"))]
"""Compiling is what takes time: of the congestion controls those of the matrix will do."""
RUNS = """
import json, sys
from tests.digests.runs import runs
json.dump({name: runs()[name]().row() for name in json.loads(sys.argv[1])}, sys.stdout)
"""


def checked(*arguments):
    """A process whose kernels check each index."""
    cache = {"NADI_CACHE_DIR": str(cache_dir().parent / "bounds-check")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": str(ROOT)} | cache,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_an_index_that_is_out_of_bounds_is_told():
    """Of a hook, which cannot raise, on standard error."""
    done = checked("tests/digests/far_index.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused 3\nrefused -1\n"
    assert done.stderr.count("IndexError") == 2


def test_no_index_of_the_recorded_runs_is_out_of_bounds():
    names = [name for name in ENOUGH if name not in OF_SHARED_DATA]
    done = checked("-c", RUNS, json.dumps(names))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # where Numba says what a hook would have raised
    rows = recorded()
    assert json.loads(done.stdout) == {name: rows[name] for name in names}
