"""Records what the runs bring, on purpose: python -m tests.digests.record [NAME ...]

Without names all are recorded again and those that are no more are dropped. What changed is printed. Runs of data that
is not here (tests/needs.py) stay as they are.
"""

import json
import sys
from pathlib import Path

from tests.digests.runs import OF_SHARED_DATA, runs
from tests.needs import SHARED

RECORDED = Path(__file__).with_name("recorded.json")


def recorded():
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def main(names):
    before, known = recorded(), runs()
    absent = set() if (SHARED / "data").is_dir() else OF_SHARED_DATA
    if unknown := sorted(set(names) - known.keys()):
        sys.exit(f"no run {unknown[0]!r}; expected names of tests/digests/runs.py")
    kept = {name: row for name, row in before.items() if name in known and (names or name in absent)}
    after = kept | {name: known[name]().row() for name in names or known if name not in absent}
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            sys.stdout.write(f"{name}: {before.get(name)} -> {after.get(name)}\n")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(after[name])}" for name in sorted(after))
    RECORDED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
