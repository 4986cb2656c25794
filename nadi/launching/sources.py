"""The hash of Nadi's sources: results with equal hashes come from the same code."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("compiling", "et", "inputs", "nadi", "partition", "pdes", "topologies", "workload")  # folders of the root


def source_hash(root: Path = ROOT) -> str:
    """Return a hash of the paths and contents of all code and tables below the root folder."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root)} {len(content)} ".encode() + content)
    return digest.hexdigest()
