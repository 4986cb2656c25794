"""The folder of compiled kernels, which nobody else can change, because its files are executed.

An attacker who can put a file there, or rename a folder on the path to it, could make another user's process run code
of theirs. So every folder on the path is opened relative to the one before, and checked after it is open: it must
belong to this user or to root, and nobody else may have write permission, unless its sticky bit prevents others from
renaming its entries. The innermost folder must belong to this user alone. It stays open, and files are read and written
relative to it, so that renaming after the check has no effect. If a check fails, kernels go to a fresh private folder
for this process alone.

A file is plain data and machine code after a digest (`compiling.machine_code`): a file that a full disk or a crash
truncated is removed, not loaded. Nothing is unpickled.

The folder's name is a hash of all source files of kernels, because a cached kernel does not notice an edit in another
file.
"""

import ast
import atexit
import errno
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


# The folder of compiled kernels.

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
_MAX_LINKS = 40  # maximum number of symbolic links on a path, as in Linux (MAXSYMLINKS)
_DIGEST_BYTES = 16
_TIMES = "times"  # folder of the times of compilations, beside the folders of kernels
CODE_SUFFIX = ".o"  # suffix of files of machine code
# flags to open a folder on the path; O_PATH needs permission only to traverse the folder, not to list it
_OPEN_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
_CHANGED = "source files of kernels have changed since this process began"
FAILURES: list[str] = []  # reasons why compiled code of this process could not be written to the cache


class CacheError(RuntimeError):
    """No folder for compiled kernels can be created."""

    exit_code = 1


class _UntrustedError(Exception):
    """Another user could change the content of a folder. The message is one line: folder and reason."""


class KernelFolder:
    """An open folder of compiled kernels; it is closed when the last reference is gone."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path  # by which the folder was opened, for messages
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def names(self) -> list[str]:
        """Return the sorted names of the files of machine code."""
        return sorted(name for name in os.listdir(self._descriptor) if name.endswith(CODE_SUFFIX))  # noqa: PTH208

    def read(self, file_name: str) -> bytes | None:
        """Return the content of a file after its digest; None if the file is missing, or others could have written it.

        An incomplete file is removed.

        Args:
            file_name: The name of the file in this folder.
        """
        # nothing trusts a file's length or name: the digest covers the content
        data = self._data(file_name)
        content = None if data is None else opened(data)
        if data is not None and content is None:
            with suppress(OSError):
                os.unlink(file_name, dir_fd=self._descriptor)
        return content

    def is_intact(self, file_name: str) -> bool:
        """Return whether a file exists and matches its digest.

        Args:
            file_name: The name of the file in this folder.
        """
        data = self._data(file_name)
        return data is not None and opened(data) is not None

    def write(self, file_name: str, content: bytes) -> None:
        """Write a digest and `content` to a file. A failure is recorded in FAILURES and raises no error.

        Args:
            file_name: The name of the file in this folder.
            content: The bytes to keep.
        """
        if have_changed():  # the content may be of sources that the folder's name does not stand for
            FAILURES.append(f"{self.path / file_name}: {_CHANGED}")
            return
        # in the same folder, so that the renaming is atomic; the random name keeps writers apart
        part = f".{file_name}.{secrets.token_hex(8)}.part"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(part, flags, 0o600, dir_fd=self._descriptor), "wb") as file:  # noqa: PTH123
                file.write(sealed(content))
            # other processes see the whole file or none
            os.replace(part, file_name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError as error:
            FAILURES.append(f"{self.path / file_name}: {error.strerror}")
            with suppress(OSError):
                os.unlink(part, dir_fd=self._descriptor)

    def _data(self, file_name: str) -> bytes | None:
        """Return the bytes of a regular file that only this user can have written."""
        with suppress(OSError):
            # O_NONBLOCK: a named pipe in its place must not hold up the process
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(file_name, flags, dir_fd=self._descriptor), "rb") as file:  # noqa: PTH123
                # checked once it is open, so that nobody can exchange it in between
                status = os.fstat(file.fileno())
                is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if is_ours and not status.st_mode & _OTHERS_WRITE:
                    return file.read()
        return None


def _base() -> Path:
    """Return the folder of the folders of compiled kernels."""
    xdg_cache = os.environ.get("XDG_CACHE_HOME", "")
    base = os.environ.get("NADI_CACHE_DIR") or os.path.join(  # noqa: PTH118 - without a home, "~" stays as it is
        # the XDG specification says that relative paths are to be ignored
        xdg_cache if os.path.isabs(xdg_cache) else os.path.expanduser("~/.cache"),  # noqa: PTH111, PTH117
        "nadi",
    )
    return Path(base)


def _settled_cache() -> tuple[KernelFolder, str]:
    """Return the current folder of compiled kernels, and why it is not the usual one; "" if it is."""
    return settle(_base(), source_hash())


def last_compilation_s(kernel: Callable[..., Any]) -> float | None:
    """Return the seconds that the last compilation with a main kernel took on this machine; None if unknown.

    Args:
        kernel: A main kernel.
    """
    content = settle(_base(), _TIMES)[0].read(code_name(kernel)) or b""
    # only what `note_compilation` writes: a folder that others filled could hold anything
    return float(content) if re.fullmatch(rb"[0-9]{1,6}\.[0-9]", content) else None


def note_compilation(kernel: Callable[..., Any], seconds: float) -> None:
    """Keep the seconds that a compilation took, whatever the version of the sources, for `last_compilation_s`.

    Args:
        kernel: The main kernel that was compiled.
        seconds: The wall time of the compilation.
    """
    settle(_base(), _TIMES)[0].write(code_name(kernel), f"{seconds:.1f}".encode())


def cache_dir() -> Path:
    """Return the path of the folder of compiled kernels: in NADI_CACHE_DIR, the user's cache, or a private folder."""
    return _settled_cache()[0].path


@functools.cache
def settled_folder() -> KernelFolder:
    """Return the folder of compiled kernels that this process uses from its first request on."""
    return _settled_cache()[0]


def cache_complaint() -> str:
    """Return why compiled kernels are not written, or not in the usual folder; "" without problem."""
    return _settled_cache()[1] or what_was_not_kept()


def what_was_not_kept() -> str:
    """Return why compiled code of this process could not be written; "" if all was written."""
    return next(iter(FAILURES), "")


def is_warm(kernel: Callable[..., Any]) -> bool:
    """Return whether the cache has intact machine code of a kernel for the current sources."""
    folder = _settled_cache()[0]
    return any(folder.is_intact(name) for name in folder.names() if name.startswith(f"{code_name(kernel)}-"))


def corrupt_files() -> list[str]:
    """Return the names of files of machine code that do not match their digest."""
    folder = _settled_cache()[0]
    return [name for name in folder.names() if not folder.is_intact(name)]


def is_kept(function: Callable[..., Any]) -> bool:
    """Return whether a compiled function may be written to the cache.

    The folder is named after the hashed sources, and files of a plug-in after its own source, so outdated code of other
    files would go unnoticed. Code with bounds checks is not written, because Numba must call it to turn a failed check
    into an exception.
    """
    is_hashed = are_hashed(function.__module__) or hash_of_plug_in(function.__module__)
    return bool(is_hashed) and not os.environ.get("NUMBA_BOUNDSCHECK")


def code_name(function: Callable[..., Any]) -> str:
    """Return the beginning of the name of a function's cache file; parameters and processor follow after a dash."""
    module = hash_of_plug_in(function.__module__) or function.__module__.removeprefix("nadi.pdes.")
    return f"{module}.{function.__qualname__}"


def settle(base: Path, name: str) -> tuple[KernelFolder, str]:
    """Return the folder `name` in `base`, created if necessary, and ""; or a fresh private folder, and the reason.

    Raises CacheError if a temporary folder cannot be created either.
    """
    path = Path(os.path.abspath(base)) / name  # noqa: PTH100 - links must be checked, not resolved
    complaint = _CHANGED if have_changed() else ""
    try:
        if not complaint:
            return _private(path, _open_checked(path)), ""
    except _UntrustedError as error:
        complaint = str(error)
    except OSError as error:
        complaint = f"{error.filename or path}: {error.strerror}"
    fresh = _fresh(os.getpid()) / name
    fresh.mkdir(mode=0o700, exist_ok=True)
    try:
        return _private(fresh, os.open(fresh, _OPEN_FLAGS)), complaint
    except (OSError, _UntrustedError) as error:
        raise CacheError(f"no folder for compiled kernels: {error}; set NADI_CACHE_DIR") from None


def sealed(content: bytes) -> bytes:
    """Return the digest of content followed by the content."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def opened(data: bytes) -> bytes | None:
    """Return the content in `data`, which begin with the content's digest; None if the digest does not match."""
    content = data[_DIGEST_BYTES:]
    return content if sealed(content) == data else None


def _open_checked(path: Path) -> int:
    """Open a folder from the root, create missing folders, and check every folder and link on the absolute path."""
    # Symbolic links of this user and of root are followed. Returns the descriptor of the folder, which itself is not
    # checked. Raises _UntrustedError if another user could redirect the path.
    descriptor, folder = os.open(path.anchor, _OPEN_FLAGS), Path(path.anchor)
    # a stack of names, the next on top: the target of a link goes on top in its place
    parts, link_count = [*reversed(path.parts[1:])], 0
    try:
        while parts:
            part = parts.pop()
            _check_folder(folder, descriptor)
            with _naming(folder / part):
                status = _created(part, descriptor)
            if stat.S_ISLNK(status.st_mode):
                link_count += 1
                target = _target(folder / part, status, descriptor, link_count)
                parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                # the target is relative to the folder that is open
                if not target.is_absolute():
                    continue
                part, folder = target.anchor, Path(target.anchor)
            with _naming(folder / part):
                descriptor, parent = os.open(part, _OPEN_FLAGS, dir_fd=descriptor), descriptor
            os.close(parent)
            folder = folder.parent if part == ".." else folder / part
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Replace the path in errors of the operating system, which is relative to an open folder, by the whole `path`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _created(entry: str, folder_descriptor: int) -> os.stat_result:
    """Return the status of an entry of an open folder; create it as a folder if it is missing."""
    # follow_symlinks=False: of a link, its own status, since the link's owner decides where it leads
    with suppress(FileNotFoundError):
        return os.stat(entry, dir_fd=folder_descriptor, follow_symlinks=False)
    with suppress(FileExistsError):  # another process was faster
        os.mkdir(entry, 0o700, dir_fd=folder_descriptor)
    return os.stat(entry, dir_fd=folder_descriptor, follow_symlinks=False)


def _target(link: Path, status: os.stat_result, folder_descriptor: int, link_count: int) -> Path:
    """Return the target of a symbolic link in an open folder; `link_count` links have been followed so far."""
    if status.st_uid not in {os.geteuid(), _ROOT}:
        raise _UntrustedError(f"{link} is a link of user {status.st_uid}")
    if link_count > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(link))
    return Path(os.readlink(link.name, dir_fd=folder_descriptor))


def _check_folder(path: Path, descriptor: int) -> None:
    """Raise an error if another user can rename entries of a folder; a sticky bit, as on /tmp, prevents that."""
    status = os.fstat(descriptor)
    if status.st_uid not in {os.geteuid(), _ROOT}:
        raise _UntrustedError(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()} or root")
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise _UntrustedError(f"{path} can be written to by others (mode {stat.S_IMODE(status.st_mode):o})")


def _private(path: Path, descriptor: int) -> KernelFolder:
    """Return the open folder at `path`, if it is writable and this user's alone (_UntrustedError); close it here."""
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise _UntrustedError(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}")
        if status.st_mode & _OTHERS_WRITE:
            raise _UntrustedError(f"{path} can be written to by others (mode {stat.S_IMODE(status.st_mode):o})")
        # effective ids, as they decide in open(); access() alone would use the real ones of a set-uid program
        if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=True):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        # opened again, since an O_PATH descriptor can neither list nor read
        return KernelFolder(path, os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor))
    finally:
        os.close(descriptor)


@functools.cache
def _fresh(process_id: int) -> Path:
    """Return a folder of this process alone, which is removed when the process ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="nadi-kernels-"))
    except OSError as error:
        raise CacheError(f"no folder for compiled kernels: {error.strerror or error}; set NADI_CACHE_DIR") from None
    atexit.register(_remove, folder, process_id)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process must not remove its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
