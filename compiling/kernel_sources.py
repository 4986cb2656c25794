"""Which files kernels are made of: a cached kernel does not notice an edit in another file, so all are hashed."""

import functools
import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "compiling",
    "nadi/studies/benchmarks/instruments",
    "nadi/simulation/closed_forms/advancing",
    "nadi/simulation/closed_forms/playing",
    "nadi/simulation/trace_decoding",
    "pdes",
)
"""All files that hold kernels, and what these import of ours, lie in one of these (tests/pdes/test_house_rules.py)."""
_PACKAGES = tuple(f"{folder.replace('/', '.')}." for folder in FOLDERS)


def are_hashed(module: str) -> bool:
    """Whether a module's file is among the sources."""
    return f"{module}.".startswith(_PACKAGES)


def files() -> list[Path]:
    """All of them."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def modules() -> list[str]:
    """Names of all of them, as they are imported."""
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files()]


def source_hash() -> str:
    """Hash of all kernel sources, where they lie (code holds names of files), and what else counts."""
    digest = _hash_of_files(ROOT).copy()
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        digest.update(f"{name}={os.environ.get(name, '')}".encode())
    return digest.hexdigest()[:16]


@functools.cache
def _hash_of_files(root: Path) -> Any:  # noqa: ANN401 - a hash that goes on
    """Of the sources below a folder and of what compiles them, once: a process runs what it has begun with."""
    digest = hashlib.sha256(bytes(root))
    for path in files():
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(metadata.version(package).encode())
    digest.update(sys.version.encode())
    return digest
