"""Source files of kernels: all are hashed, because a cached kernel does not notice an edit in another file."""

import ast
import functools
import hashlib
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "compiling",
    "et/kernels",
    "pdes",
    "simulation/closed_forms/advancing",
    "studies/benchmarks/instruments",
)
"""Folders of `nadi` that hold all kernels, and all files that those import (tests/rules/kernels.py)."""
_IMPORTED_AT_S = time.time()
_UNCHANGING = {"numpy", *sys.stdlib_module_names}
_PACKAGES = tuple(f"nadi.{folder.replace('/', '.')}." for folder in FOLDERS)


def are_hashed(module: str) -> bool:
    """Return whether a module's file is among the sources.

    Args:
        module: The full name of a module.
    """
    return f"{module}.".startswith(_PACKAGES)


@functools.cache
def hash_of_plug_in(module_name: str) -> str:
    """Return a hash of a plug-in's source and path; "" if its kernels may depend on other files that are not hashed.

    `inputs.plug_ins` keeps the source that a module runs in its attribute `__source__`.

    Args:
        module_name: The name by which the plug-in is imported.
    """
    module = sys.modules.get(module_name)
    source = getattr(module, "__source__", None)
    if source is None:
        return ""
    imported: set[str] = set()
    # without running it: a file's imports decide whether its own source is all that its code depends on
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("." * node.level + (node.module or ""))
    unhashed = {name for name in imported if not are_hashed(name) and name.partition(".")[0] not in _UNCHANGING}
    return (
        ""
        if unhashed
        else hashlib.sha256(os.fsencode(str(getattr(module, "__file__", ""))) + b"\0" + source).hexdigest()[:16]
    )


def files() -> list[Path]:
    """Return the paths of all sources."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def modules() -> list[str]:
    """Return the import names of all sources."""
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files())
    return [f"nadi.{name}".removesuffix(".__init__") for name in names]


def have_changed() -> bool:
    """Return whether a source has been written since this process began: it may run older code than the files have."""
    # modification times, since hashing all sources for each file that is written would take longer
    return any(path.stat().st_mtime > _IMPORTED_AT_S for path in files())


def source_hash() -> str:
    """Return a hash of all kernel sources, of their location (code contains file names) and of compiler settings."""
    # a copy, since the cached hash must not take in the settings
    digest = _hash_of_files(ROOT).copy()
    # Numba reads these when it compiles, and other values make other code
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX"):
        digest.update(f"{name}={os.environ.get(name, '')}".encode())
    return digest.hexdigest()[:16]


@functools.cache
def _hash_of_files(folder: Path) -> Any:  # noqa: ANN401 - a hash that is updated further
    """Return the hash of the sources in a folder and of the compilers' versions, computed once per process."""
    # the folder is in the hash: code contains file names, for messages
    digest = hashlib.sha256(bytes(folder))
    for path in files():
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(metadata.version(package).encode())
    # bytecode of another Python may compile to other code
    digest.update(sys.version.encode())
    return digest
