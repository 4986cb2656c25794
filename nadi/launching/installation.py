"""This installation: commands that start its Python without the user's folder on the path, and a hash of its sources.

`python -m` and `python -c` put the current folder first on the import path, so Python would run a `json.py` or
`typer.py` from it; safe-path mode leaves it out. Results with equal hashes come from the same code.
"""

import glob
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

PYTHON = (sys.executable, "-P")  # This Python in safe-path mode
PACKAGE = Path(__file__).parents[1]
COMMIT = "commit.txt"  # file of a wheel: the commit that it was built from (scripts/build_hook.py)


def nadi_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `nadi` with these arguments."""
    return [*PYTHON, "-m", "nadi", *arguments]


def code_command(code: str) -> list[str]:
    """Return the command that runs Python code."""
    return [*PYTHON, "-c", code]


def source_hash(package: Path = PACKAGE) -> str:
    """Return a hash of the paths and contents of all code and tables in the folder of the package."""
    digest = hashlib.sha256()
    for name in sorted(glob.iglob("**/*", root_dir=package, recursive=True)):  # noqa: PTH207 - rglob follows no links
        path = package / name
        if path.is_file() and "__pycache__" not in path.parts and name != COMMIT:
            content = path.read_bytes()
            digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()
