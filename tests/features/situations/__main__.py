"""Every named machine and cluster in every situation: python -m tests.features.situations [--seed N] [--seconds N]

Pairs of values of the factors (`values.FACTORS`) are combined into runs until each pair has run. The exit code is 1 if
a run crashed, hung, warned, failed other than its simulated machine would, was refused in another way than by one line,
broke a relation (`relations`), or had other results than the same run done the plain way (`values.PLAIN_WAY`).
"""

import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.features.matrix import REFUSED, Matrix, options
from tests.features.running import toml_of
from tests.features.situations.running import COMPLAINT, outcome, sections, warm_up
from tests.features.situations.values import FACTORS, conflicts, described


def kind_of_failure(found):
    """Return the lines of a failure that name errors and warnings, alike for all numbers."""
    lines = [line for line in found.splitlines() if COMPLAINT.search(line) or "nadi: error" in line] or [found]
    return re.sub(r"\d+", "N", " | ".join(lines))[:400]


def is_any_valid(_situation):
    """Return True: what is wrong with a run file is among the refusals that are counted."""
    return True


def main(arguments=None):
    parser = options("python -m tests.features.situations", __doc__)
    parser.add_argument("--keep", type=Path, help="folder for the run files of failures, with what they printed")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    began = time.monotonic()
    refusals, failures, ended = Counter(), Counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm_up(folder)

        def tried(situation):
            found = outcome(situation, folder, ended)
            if found.startswith(REFUSED):
                refusals[found] += 1
            elif found:
                kind = kind_of_failure(found)
                failures[kind] += 1
                text = f"# {described(situation)}\n{toml_of(sections(situation, folder))}"
                if failures[kind] == 1:
                    sys.stdout.write(f"{text}{found}\n\n")
                    sys.stdout.flush()
                if given.keep:
                    (given.keep / f"{seed}-{matrix.runs}.toml").write_text(text + f"# {found[:3000]!r}\n")
            return found

        matrix = Matrix(is_any_valid, tried, seed, FACTORS, {}, conflicts())
        pairs = matrix.left
        matrix.cover(seconds=given.seconds)
    sys.stdout.write(
        f"{pairs} pairs, seed {seed}: {pairs - matrix.refused - matrix.left} ran, {matrix.refused} are refused, "
        f"{matrix.left} are left; {matrix.runs} runs in {time.monotonic() - began:.0f} s: "
        f"{sum(refusals.values())} refused, {len(ended)} ended by their faults, {sum(failures.values())} failures\n"
    )
    for reason, count in refusals.most_common():
        sys.stdout.write(f"{count} refused: {reason}\n")
    for kind, count in failures.most_common():
        sys.stdout.write(f"{count} failed: {kind}\n")
    for reason in sorted(set(ended)):
        sys.stdout.write(f"{reason}\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
