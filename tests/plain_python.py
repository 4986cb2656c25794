"""Running a piece of these tests with kernels as plain Python."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def plain_python(*arguments, timeout=300, **environment):
    """What Python prints to standard output without Numba's compiler."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
