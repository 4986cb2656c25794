"""Records again what runs decide and what commands print, on purpose: python -m tests.records --record [NAME ...]

NAME is that of a file in tests/records/settings or tests/records/transcripts, without its ending; without names all are
recorded. `git diff` then shows what has changed.
"""

import argparse
import os
import sys
from pathlib import Path

import pytest


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.records", description=__doc__)
    parser.add_argument("--record", action="store_true", required=True, help="write what is found into the records")
    parser.add_argument("names", nargs="*", metavar="NAME", help="records to write; all without one")
    names = parser.parse_args().names
    os.environ["NADI_RECORD"] = "1"
    chosen = ["-k", " or ".join(names)] if names else []
    return pytest.main(["-q", str(Path(__file__).parent), *chosen])


if __name__ == "__main__":
    sys.exit(main())
