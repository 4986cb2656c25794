"""Tests of random examples with fresh ones, for as long as one likes: python -m tests.fuzz --seconds 600 [FILE ...]

Each file that has such tests gets another seed in each round, in a process of its own. The first failure ends it, with
exit code 1 and the command that brings the same examples again: python -m tests.fuzz --seed SEED FILE
"""

import argparse
import itertools
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.budgets import FRESH

ROOT = Path(__file__).parents[1]
NO_TESTS = 5
"""Exit code of pytest where nothing is selected."""


def with_examples(folder):
    return sorted(path for path in folder.rglob("test_*.py") if "\n@given(" in path.read_text(encoding="utf-8"))


def failed(path, seed):
    """Whether a file's tests fail with the examples of a seed; they say how."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-c", "pyproject.toml", "-m", "hypothesis"]
    done = subprocess.run(
        [*command, f"--hypothesis-seed={seed}", str(path)],
        cwd=ROOT,
        env=os.environ | {FRESH: "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode in {0, NO_TESTS}:
        return False
    sys.stdout.write(f"{done.stdout}{done.stderr}\nagain: python -m tests.fuzz --seed {seed} {path}\n")
    return True


def main(arguments=None):
    """Run until the time is over or a test fails; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="test files; all with random examples if none is given")
    parser.add_argument("--seconds", type=float, default=600, help="no file begins later than this")
    parser.add_argument("--seed", type=int, help="one round of exactly this seed, whatever time it takes")
    given = parser.parse_args(arguments)
    files = given.files or with_examples(ROOT / "tests")
    if given.seed is not None:
        return int(any(failed(path, given.seed) for path in files))
    first, end, ran = secrets.randbelow(2**31), time.monotonic() + given.seconds, 0
    for seed in itertools.count(first):
        for number in np.random.default_rng(seed).permutation(len(files)).tolist():
            if time.monotonic() > end:
                sys.stdout.write(f"{ran} files ran with seeds {first} to {seed}; nothing failed\n")
                return 0
            if failed(files[number], seed):
                return 1
            ran += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
