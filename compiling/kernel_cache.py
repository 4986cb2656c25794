"""Where compiled kernels lie: in a folder that nobody else can write to, as what is loaded from it is run.

Whoever can write there could have another user's process run code of theirs. So a folder counts only if it is ours,
nobody else may write to it, and no link of somebody else leads to it; else there is a fresh one, private, for this
process alone. Files are sealed with a digest: what a full disk or a crash has left of one is not loaded but removed.
"""

import atexit
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compiling.kernel_sources import source_hash

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
_MOST_LINKS = 40
_DIGEST_BYTES = 16
SUFFIXES = (".nbi", ".nbc")
"""Of indices and of code, as Numba reads it."""
CODE_SUFFIX = ".o"
"""Of machine code that is loaded without Numba (compiling.machine_code)."""
_SEALED = frozenset({*SUFFIXES, CODE_SUFFIX})
FAILURES: list[str] = []
"""Why something that this process compiled could not be kept."""


class CacheError(RuntimeError):
    """There is no folder for compiled kernels at all."""

    exit_code = 1


def _settled_cache() -> tuple[Path, str]:
    usual = os.environ.get("XDG_CACHE_HOME", "")
    base = os.environ.get("NADI_CACHE_DIR") or os.path.join(  # noqa: PTH118 - without a home, "~" stays as it is
        usual if os.path.isabs(usual) else os.path.expanduser("~/.cache"),  # noqa: PTH111, PTH117
        "nadi",
    )
    return settle(Path(base), source_hash())


def cache_dir() -> Path:
    """Folder of compiled kernels for these sources: of NADI_CACHE_DIR, or the user's own, or a private one."""
    return _settled_cache()[0]


@functools.cache
def settled_dir() -> Path:
    """`cache_dir` as it was when this process first asked."""
    return cache_dir()


def cache_complaint() -> str:
    """Why compiled kernels are not kept where they should be, or cannot be; "" if all is well."""
    return _settled_cache()[1] or what_was_not_kept()


def what_was_not_kept() -> str:
    """Why something that this process has compiled could not be kept; "" if all was."""
    return next(iter(FAILURES), "")


def is_warm(compiled: Callable[..., Any]) -> bool:
    """Whether a kernel for these sources lies in the cache, whole."""
    name = f"{compiled.__module__.rpartition('.')[2]}.{compiled.__qualname__}"
    files = [file for file in cache_dir().rglob(f"{name}-*") if file.suffix in SUFFIXES]
    return {file.suffix for file in files} == {*SUFFIXES} and all(map(is_intact, files))


def settle(base: Path, name: str) -> tuple[Path, str]:
    """The folder `name` in `base`, made if need be, and ""; or one in a fresh private folder, and why.

    Raises:
        CacheError: there is no folder for temporary files either.
    """
    base = Path(os.path.abspath(base))  # noqa: PTH100 - links are looked at, not resolved
    try:
        complaint = _link_of_others(base) or _made(base) or _made(base / name) or _content_of_others(base / name)
        if not complaint:
            with tempfile.TemporaryFile(dir=base / name):
                pass
    except OSError as error:
        complaint = f"{error.filename or base}: {error.strerror}"
    if not complaint:
        return base / name, ""
    folder = _fresh(os.getpid()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder, complaint


def sealed(content: bytes) -> bytes:
    """Content behind its digest."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def opened(data: bytes) -> bytes | None:
    """What was sealed; None if it is not that any more."""
    content = data[_DIGEST_BYTES:]
    return content if sealed(content) == data else None


def is_intact(file: Path) -> bool:
    """Whether a sealed file can be read and is what was written."""
    try:
        return opened(file.read_bytes()) is not None
    except OSError:
        return False


def corrupt_files(folder: Path) -> list[Path]:
    """Sealed files of a folder that are not what was written."""
    return [file for file in sorted(folder.rglob("*")) if file.suffix in _SEALED and not is_intact(file)]


def _made(folder: Path) -> str:
    """Make a folder if there is none; why it does not count, or nothing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _complaint(folder)


def _complaint(path: Path) -> str:
    """Why others could put something there: a folder of root's with the sticky bit, such as /tmp, holds them off."""
    found = path.stat()
    is_shared = found.st_uid == _ROOT and bool(found.st_mode & stat.S_ISVTX)
    if found.st_uid != os.geteuid() and not is_shared:
        return f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}"
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        return f"{path} can be written to by others (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def _content_of_others(folder: Path) -> str:
    """Of what lies in the innermost folder, where the sticky bit does not help, and in the folders in it."""
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        return f"{folder} belongs to user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}"
    for path in folder.rglob("*"):
        try:
            entry = path.lstat()
        except FileNotFoundError:  # another process has renamed it
            continue
        writable = stat.S_ISDIR(entry.st_mode) and entry.st_mode & _OTHERS_WRITE and _reachable(folder)
        if entry.st_uid != os.geteuid() or writable or stat.S_ISLNK(entry.st_mode):
            return f"{path} belongs to user {entry.st_uid}, mode {stat.S_IMODE(entry.st_mode):o}"
    return ""


def _reachable(folder: Path) -> bool:
    """Whether others may enter a folder."""
    return bool(folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH))


def _link_of_others(path: Path) -> str:
    """The first symbolic link on the way to a path that is neither ours nor root's."""
    for link in _links(path):
        owner = link.lstat().st_uid
        if owner not in {os.geteuid(), _ROOT}:
            return f"{link} is a link of user {owner}"
    return ""


def _links(path: Path, depth: int = 0) -> Iterator[Path]:
    """All symbolic links on the way to a path."""
    at = Path(path.anchor)
    for number, part in enumerate(path.parts[1:], start=2):
        at = at.parent if part == ".." else at / part
        if at.is_symlink() and depth < _MOST_LINKS:
            yield at
            yield from _links(Path(at.parent, at.readlink(), *path.parts[number:]), depth + 1)
            return


@functools.cache
def _fresh(process: int) -> Path:
    """A folder of this process alone, removed when it ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="nadi-kernels-"))
    except OSError as error:
        raise CacheError(f"no folder for compiled kernels: {error.strerror or error}; set NADI_CACHE_DIR") from None
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a process forked from it
        shutil.rmtree(folder, ignore_errors=True)
