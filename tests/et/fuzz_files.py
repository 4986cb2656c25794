"""Read, check, mend and convert mutated files: python -m tests.et.fuzz_files --files 10000 --seed 0

Each must be read rightly or refused in one line. Memory is bounded from outside (RLIMIT_AS), and a file that takes
longer than five minutes ends all with the stack of what it is in. The exit code is 1 if there were complaints.
"""

import argparse
import faulthandler
import resource
import sys
import tempfile
import time

from tests.et.mutations import folder_for, of_seed, tried

_MEMORY_BYTES = 8 << 30
"""Address space, most of which libraries have taken without using it."""


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.et.fuzz_files", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the others follow")
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    begin, complaints, were_read, slowest_s = time.monotonic(), 0, 0, 0.0
    with tempfile.TemporaryDirectory() as parent:
        for seed in range(given.seed, given.seed + given.files):
            faulthandler.dump_traceback_later(300, exit=True)
            own = time.process_time()
            said, was_read = tried(seed, folder_for(parent))
            slowest_s = max(slowest_s, time.process_time() - own)
            were_read += was_read
            if said:
                complaints += 1
                sys.stdout.write(f"seed {seed} ({of_seed(seed)[0]}): {said}\n")
    faulthandler.cancel_dump_traceback_later()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sys.stdout.write(
        f"{given.files} files in {time.monotonic() - begin:.0f} s ({time.process_time():.0f} s of CPU), "
        f"{were_read} read, {complaints} complaints; "
        f"slowest {slowest_s:.2f} s of CPU, peak memory {peak_mib} MiB\n"
    )
    return int(complaints > 0)


if __name__ == "__main__":
    sys.exit(main())
