"""Runs with kernels that look at each index before they use it, in a process with a cache of its own: they are others.

Compiling is what takes time, so tests of them stand in two files, which two workers of pytest-xdist share.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from nadi.compiling.kernel_cache import cache_dir
from tests.digests.record import recorded
from tests.digests.runs import OF_SHARED_DATA, runs

ROOT = Path(__file__).parents[2]
OF_WHOLE_MESSAGES = ("congestion_aware", "congestion_unaware", "closed form", "messages as flows", "coupled flows")
"""How names of runs begin whose kernels are those of message-level models and of closed forms."""
LEFT_OUT = ("dctcp", "hpcc", "nscc", "swift", "timely")
"""Of the congestion controls those of the matrix will do."""
RUNS = """
import json, sys
from tests.digests.runs import runs
json.dump({name: runs()[name]().row() for name in json.loads(sys.argv[1])}, sys.stdout)
"""


def checked(*arguments):
    """A process whose kernels check each index. LLVM leaves them as they are, which takes a third less time."""
    cache = {"NADI_CACHE_DIR": str(cache_dir().parent / "bounds-check")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", "PYTHONPATH": str(ROOT)} | cache,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def bring_what_was_recorded(*, of_whole_messages):
    """Check that these runs bring it, and that no index of theirs is out of bounds."""
    names = [name for name in runs() if name not in OF_SHARED_DATA and not name.startswith(LEFT_OUT)]
    names = [name for name in names if name.startswith(OF_WHOLE_MESSAGES) == of_whole_messages]
    done = checked("-c", RUNS, json.dumps(names))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # where Numba says what a hook would have raised
    rows = recorded()
    assert json.loads(done.stdout) == {name: rows[name] for name in names}
    return names
