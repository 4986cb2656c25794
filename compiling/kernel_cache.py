"""Where compiled kernels are kept: in a folder that nobody else can change, as what is loaded from it is run.

Whoever can put a file there, or rename a folder on the way to it, could have another user's process run code of theirs.
So every folder on the way is opened one after another, each relative to the one before, and checked once it is open:
it must belong to this user or to root, and nobody else may write to it, unless its sticky bit keeps others from
renaming what is in it. The innermost folder must be this user's alone. It stays open, and files are read and written
relative to it, so that a name that changes its meaning after the check changes nothing. Where a check fails, kernels go
to a fresh private folder for this process alone.

A file is plain data and machine code behind a digest (`compiling.machine_code`): what a full disk or a crash has left
of one is not loaded but removed. Nothing is unpickled.
"""

import atexit
import errno
import functools
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from compiling.kernel_sources import are_hashed, source_hash

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
_MOST_LINKS = 40
_DIGEST_BYTES = 16
CODE_SUFFIX = ".o"
"""Of files of machine code."""
_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
"""O_PATH needs no permission to list a folder, only to pass through it."""
FAILURES: list[str] = []
"""Why something that this process compiled could not be kept."""


class CacheError(RuntimeError):
    """There is no folder for compiled kernels at all."""

    exit_code = 1


class _UntrustedError(Exception):
    """Somebody else could change what lies in a folder. One line: which folder, and why."""


class KernelFolder:
    """An open folder of compiled kernels; it is closed when nobody has it any more.

    Attributes:
        path: Path by which the folder was found, for messages.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def names(self) -> list[str]:
        """Return the names of the files of machine code, sorted."""
        return sorted(name for name in os.listdir(self._descriptor) if name.endswith(CODE_SUFFIX))  # noqa: PTH208

    def read(self, name: str) -> bytes | None:
        """Return the sealed content of a file; None if there is none, or others could have written it.

        A file that was not written completely is removed.
        """
        data = self._data(name)
        content = None if data is None else opened(data)
        if data is not None and content is None:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._descriptor)
        return content

    def is_intact(self, name: str) -> bool:
        """Return whether a file is there and is what was written."""
        data = self._data(name)
        return data is not None and opened(data) is not None

    def write(self, name: str, content: bytes) -> None:
        """Keep content under a name, behind its digest. What fails is noted in FAILURES and is no error."""
        part = f".{name}.{secrets.token_hex(8)}.part"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(part, flags, 0o600, dir_fd=self._descriptor), "wb") as file:  # noqa: PTH123
                file.write(sealed(content))
            os.replace(part, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError as error:
            FAILURES.append(f"{self.path / name}: {error.strerror}")
            with suppress(OSError):
                os.unlink(part, dir_fd=self._descriptor)

    def _data(self, name: str) -> bytes | None:
        """Return the bytes of a regular file that only this user can have written."""
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(name, flags, dir_fd=self._descriptor), "rb") as file:  # noqa: PTH123
                found = os.fstat(file.fileno())
                is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                if is_ours and not found.st_mode & _OTHERS_WRITE:
                    return file.read()
        return None


def _settled_cache() -> tuple[KernelFolder, str]:
    usual = os.environ.get("XDG_CACHE_HOME", "")
    base = os.environ.get("NADI_CACHE_DIR") or os.path.join(  # noqa: PTH118 - without a home, "~" stays as it is
        usual if os.path.isabs(usual) else os.path.expanduser("~/.cache"),  # noqa: PTH111, PTH117
        "nadi",
    )
    return settle(Path(base), source_hash())


def cache_dir() -> Path:
    """Return the folder of compiled kernels for these sources: of NADI_CACHE_DIR, the user's own, or a private one."""
    return _settled_cache()[0].path


@functools.cache
def settled_folder() -> KernelFolder:
    """Return the folder of compiled kernels as it was when this process first asked."""
    return _settled_cache()[0]


def cache_complaint() -> str:
    """Return why compiled kernels are not kept where they should be, or cannot be; "" if all is well."""
    return _settled_cache()[1] or what_was_not_kept()


def what_was_not_kept() -> str:
    """Return why something that this process has compiled could not be kept; "" if all was."""
    return next(iter(FAILURES), "")


def is_warm(compiled: Callable[..., Any]) -> bool:
    """Return whether the machine code of a kernel for these sources is kept, complete."""
    folder = _settled_cache()[0]
    return any(folder.is_intact(name) for name in folder.names() if name.startswith(f"{code_name(compiled)}-"))


def corrupt_files() -> list[str]:
    """Return the names of files of machine code that are not what was written."""
    folder = _settled_cache()[0]
    return [name for name in folder.names() if not folder.is_intact(name)]


def is_kept(function: Callable[..., Any]) -> bool:
    """Return whether a compiled function may be kept.

    The folder is named after the hashed sources, so code of other files would not be noticed to be old. Code that
    checks bounds is not kept, because it is called by Numba, which turns a failed check into an exception.
    """
    return are_hashed(function.__module__) and not os.environ.get("NUMBA_BOUNDSCHECK")


def code_name(function: Callable[..., Any]) -> str:
    """Return how the name of a function's file begins; what code depends on follows after a dash."""
    return f"{function.__module__.removeprefix('pdes.')}.{function.__qualname__}"


def settle(base: Path, name: str) -> tuple[KernelFolder, str]:
    """Return the folder `name` in `base`, made if need be, and ""; or a fresh private folder, and why.

    Raises:
        CacheError: There is no folder for temporary files either.
    """
    path = Path(os.path.abspath(base)) / name  # noqa: PTH100 - links are looked at, not resolved
    try:
        return _private(path, _walked(path)), ""
    except _UntrustedError as error:
        complaint = str(error)
    except OSError as error:
        complaint = f"{error.filename or path}: {error.strerror}"
    fresh = _fresh(os.getpid()) / name
    fresh.mkdir(mode=0o700, exist_ok=True)
    try:
        return _private(fresh, os.open(fresh, _ON_THE_WAY)), complaint
    except (OSError, _UntrustedError) as error:
        raise CacheError(f"no folder for compiled kernels: {error}; set NADI_CACHE_DIR") from None


def sealed(content: bytes) -> bytes:
    """Return content behind its digest."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def opened(data: bytes) -> bytes | None:
    """Return what was sealed; None if it is not that any more."""
    content = data[_DIGEST_BYTES:]
    return content if sealed(content) == data else None


def _walked(path: Path) -> int:
    """Open a folder from the root on, and make what is missing; every folder and link on the way is checked.

    Args:
        path: Absolute path. Symbolic links of this user and of root are followed.

    Returns:
        Descriptor of the folder, which is not checked itself.

    Raises:
        _UntrustedError: Somebody else could change where the path leads.
        OSError: A folder cannot be made or opened.
    """
    at, here = os.open(path.anchor, _ON_THE_WAY), Path(path.anchor)
    parts, links = [*reversed(path.parts[1:])], 0
    try:
        while parts:
            part = parts.pop()
            _check_on_the_way(here, at)
            found = _made(part, at, here)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                target = _target(here / part, found, at, links)
                parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if not target.is_absolute():
                    continue
                part, here = target.anchor, Path(target.anchor)
            at, before = _opened_folder(part, at, here), at
            os.close(before)
            here = here.parent if part == ".." else here / part
    except BaseException:
        os.close(at)
        raise
    return at


def _opened_folder(part: str, at: int, here: Path) -> int:
    """Open a folder in an open one."""
    try:
        return os.open(part, _ON_THE_WAY, dir_fd=at)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(here / part)) from None


def _made(part: str, at: int, here: Path) -> os.stat_result:
    """Return the status of an entry of an open folder, which is made if there is none."""
    try:
        with suppress(FileNotFoundError):
            return os.stat(part, dir_fd=at, follow_symlinks=False)
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(part, 0o700, dir_fd=at)
        return os.stat(part, dir_fd=at, follow_symlinks=False)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(here / part)) from None


def _target(link: Path, found: os.stat_result, at: int, links: int) -> Path:
    """Return where a symbolic link leads."""
    if found.st_uid not in {os.geteuid(), _ROOT}:
        raise _UntrustedError(f"{link} is a link of user {found.st_uid}")
    if links > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(link))
    return Path(os.readlink(link.name, dir_fd=at))


def _check_on_the_way(path: Path, descriptor: int) -> None:
    """Check that nobody else can rename what is in a folder: its sticky bit, as that of /tmp, prevents it, too."""
    found = os.fstat(descriptor)
    if found.st_uid not in {os.geteuid(), _ROOT}:
        raise _UntrustedError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()} or root")
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        raise _UntrustedError(f"{path} can be written to by others (mode {stat.S_IMODE(found.st_mode):o})")


def _private(path: Path, descriptor: int) -> KernelFolder:
    """Return a folder for kernels that is this user's alone; the descriptor is closed.

    Raises:
        _UntrustedError: It belongs to another user, or others may write to it.
        OSError: Nothing can be written there.
    """
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise _UntrustedError(f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}")
        if found.st_mode & _OTHERS_WRITE:
            raise _UntrustedError(f"{path} can be written to by others (mode {stat.S_IMODE(found.st_mode):o})")
        if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=True):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return KernelFolder(path, os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor))
    finally:
        os.close(descriptor)


@functools.cache
def _fresh(process: int) -> Path:
    """Return a folder of this process alone, which is removed when the process ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="nadi-kernels-"))
    except OSError as error:
        raise CacheError(f"no folder for compiled kernels: {error.strerror or error}; set NADI_CACHE_DIR") from None
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a process forked from it
        shutil.rmtree(folder, ignore_errors=True)
