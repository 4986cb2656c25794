"""The hash of Nadi's sources: results with equal hashes come from the same code."""

import glob
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
COMMIT = "commit.txt"  # file of a wheel: the commit that it was built from (scripts/build_hook.py)


def source_hash(package: Path = PACKAGE) -> str:
    """Return a hash of the paths and contents of all code and tables in the folder of the package."""
    digest = hashlib.sha256()
    for name in sorted(glob.iglob("**/*", root_dir=package, recursive=True)):  # noqa: PTH207 - rglob follows no links
        path = package / name
        if path.is_file() and "__pycache__" not in path.parts and name != COMMIT:
            content = path.read_bytes()
            digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()
