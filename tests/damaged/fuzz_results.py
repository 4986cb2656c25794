"""Read damaged results, plans, traces and files of other programs: python -m tests.damaged.fuzz_results --files 10000

Prints each example that a command does not treat well, with the seed that makes it again. The exit code is 1 if there
is one.
"""

import argparse
import collections
import faulthandler
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.damaged.mutations import complaint, example, make_bases


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.damaged.fuzz_results", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="number of examples")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first example")
    parser.add_argument("--kind", default="", help="kind of the examples, as astra-sim; any if not given")
    parser.add_argument("--stop", action="store_true", help="stop at the first complaint")
    given = parser.parse_args(arguments)
    begin, complaints, kinds = time.monotonic(), 0, collections.Counter()
    with tempfile.TemporaryDirectory() as parent:
        bases, folder = Path(parent) / "bases", Path(parent) / "example"
        bases.mkdir()
        make_bases(bases)
        for seed in range(given.seed, given.seed + given.files):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            faulthandler.dump_traceback_later(300, exit=True)
            made = example(seed, bases, folder, given.kind)
            kinds[made.kind] += 1
            said = complaint(made, folder)
            faulthandler.cancel_dump_traceback_later()
            if said:
                complaints += 1
                sys.stdout.write(f"seed {seed}: {said.encode('ascii', 'backslashreplace').decode()}\n")
                sys.stdout.flush()
                if given.stop:
                    break
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    sys.stdout.write(f"{counts} in {time.monotonic() - begin:.0f} s, {complaints} complaints\n")
    return int(complaints > 0)


if __name__ == "__main__":
    sys.exit(main())
