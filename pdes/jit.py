"""The one place that knows Numba: the decorators, and a cache that an edit anywhere in the kernel empties.

`kernel` compiles an entry point, `inline` a helper that is merged into its callers. Both switch reference counting
off (`_nrt=False`): with it on, a NamedTuple of many arrays passed through calls costs twenty times the work it does, and
an allocation inside a kernel would go unnoticed; with it off an allocation is a compile error.

A cached kernel does not notice an edit in another file, so the cache folder is named by a hash of all kernel sources
and of the options that change code. `NADI_CACHE_DIR` moves it (a node-local folder on a cluster).
`NUMBA_DISABLE_JIT=1` runs the same source as plain Python.
"""

import hashlib
import os
import tempfile
from pathlib import Path

import numba

_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
_INNER = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def source_hash() -> str:
    """Hash of every kernel source and of what else decides the machine code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        digest.update(f"{name}={os.environ.get(name, '')}".encode())
    digest.update(numba.__version__.encode())
    return digest.hexdigest()[:16]


def cache_dir() -> Path:
    """Folder of compiled kernels for these sources."""
    base = os.environ.get("NADI_CACHE_DIR")
    if base is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        base = os.path.join(home, "nadi")
    folder = Path(base) / source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"nadi-{os.getuid()}" / source_hash()
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_warm() -> bool:
    """Whether compiled kernels for these sources lie in the cache."""
    return any(cache_dir().rglob("*.nbi"))


def jit_enabled() -> bool:
    """False under NUMBA_DISABLE_JIT=1."""
    return not numba.config.DISABLE_JIT


numba.config.CACHE_DIR = str(cache_dir())

kernel = numba.njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
inline = numba.njit(**_OPTIONS, **_INNER)
