"""All pairs of features: python -m tests.features [--seed N] [--seconds N] [--restart]

With --restart each run stops twice at random moments, continues, and must have the results of the run never stopped.
With NUMBA_BOUNDSCHECK=1 kernels check each index, too (`make fuzz-bounds`). The exit code is 1 if a run crashed, hung,
failed, or was refused in another way than by one line.
"""

import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.features.matrix import Matrix, options
from tests.features.restarting import run_and_restart
from tests.features.running import is_valid, outcome, run_file, run_quietly, warm_up, write_traces


def main(arguments=None):
    parser = options("python -m tests.features", __doc__)
    parser.add_argument("--restart", action="store_true", help="each run stops twice and continues")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_traces(folder)
        warm_up(folder)

        def tried(run):
            found = outcome(run, folder, run_and_restart if given.restart else run_quietly)
            if found and not found.startswith("refused"):
                sys.stdout.write(f"{run_file(run, folder)}{found}\n\n")
                sys.stdout.flush()
            return found

        matrix = Matrix(lambda run: is_valid(run, folder), tried, seed)
        pairs = matrix.left
        matrix.cover(seconds=given.seconds)
    sys.stdout.write(
        f"{pairs} pairs of features, seed {seed}: {pairs - matrix.refused - matrix.left} ran, {matrix.refused} "
        f"are refused, {matrix.left} are left; {matrix.runs} runs in {time.monotonic() - began:.0f} s, "
        f"{len(matrix.defects)} defects\n"
    )
    return int(bool(matrix.defects))


if __name__ == "__main__":
    sys.exit(main())
