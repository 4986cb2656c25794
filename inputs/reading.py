"""Reading a file that a user has named: a regular one, of bounded size, without waiting for anybody.

What is wrong is an OSError whose `strerror` is for a user to read, so that callers handle one kind of error.
"""

import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
LARGEST_FILE_BYTES = 64 << 30
LARGEST_TEXT_BYTES = 1 << 30
LARGEST_INFLATED_BYTES = 4 << 30
"""Of one gzipped file; the largest trace known, of one GPU for one step, inflates to a hundredth of it."""
INFLATED_IN_ANY_CASE_BYTES = 64 << 20
MOST_TIMES_INFLATED = 200
"""Ids and times keep traces from shrinking so far; beyond the bytes above."""
_BLOCK_BYTES = 1 << 20
"""Few enough that one takes the place of another in memory."""
_WITHOUT_WAITING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_OF_THE_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Pipes behind these have somebody who writes: the shell has set them up."""
_TYPES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def type_of(path: str | os.PathLike[str]) -> str:
    """What a path is that is no regular file: "a folder", "a FIFO", ...; "" if it is one, or there is nothing."""
    try:
        return _type(os.stat(path).st_mode)  # noqa: PTH116 - a path with a NUL is no Path
    except (OSError, ValueError):
        return ""


def read_bytes(path: str | os.PathLike[str], most_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """All of a file.

    Raises:
        OSError: it cannot be opened or read, is no regular file (nor a pipe of the shell), or is longer than that.
    """
    with _opened(path, most_bytes) as file:
        if not _type(os.fstat(file.fileno()).st_mode):
            return file.read()
        content = bytearray()
        while len(content) <= most_bytes and (block := file.read1(_BLOCK_BYTES)):
            content += block
        if len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"more than {_amount(most_bytes)}")
        return bytes(content)


def _opened(path: str | os.PathLike[str], most_bytes: int) -> io.BufferedReader:
    """A file that is open for reading.

    Raises:
        OSError: as `read_bytes`.
    """
    try:
        descriptor = os.open(path, _WITHOUT_WAITING)
    except ValueError:
        raise OSError(errno.EINVAL, "a NUL in its name") from None
    with ExitStack() as stack:
        file = stack.enter_context(open(descriptor, "rb"))  # noqa: PTH123 - no path: the file is open
        status = os.fstat(descriptor)
        kind = _type(status.st_mode)
        if kind and not str(path).startswith(_OF_THE_SHELL):
            raise OSError(errno.EISDIR if kind == "a folder" else errno.EINVAL, f"{kind}, not a file")
        os.set_blocking(descriptor, True)
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, more than {_amount(most_bytes)}")
        stack.pop_all()
    return file


def read_text(path: str | os.PathLike[str]) -> str:
    """All of a file of UTF-8.

    Raises:
        OSError: as `read_bytes`.
        UnicodeDecodeError: other bytes.
    """
    return read_bytes(path, LARGEST_TEXT_BYTES).decode("utf-8").replace("\r\n", "\n")


def read_part(path: str | os.PathLike[str], begin: int, size_bytes: int) -> bytes:
    """Some bytes of a file, fewer where it ends.

    Raises:
        OSError: it cannot be opened or read, or is no regular file.
    """
    with _regular(path) as file:
        file.seek(begin)
        return file.read(size_bytes)


def pieces(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """A file piece by piece, so that a large one needs little memory; as it is, gzipped or not.

    Raises:
        OSError: it cannot be opened or read, or is no regular file.
    """
    with _regular(path) as file:
        while piece := file.read(_BLOCK_BYTES):
            yield piece


def _regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open."""
    try:
        descriptor = os.open(path, _WITHOUT_WAITING)
    except ValueError:
        raise OSError(errno.EINVAL, "a NUL in its name") from None
    file = open(descriptor, "rb")  # noqa: PTH123, SIM115 - no path, and the caller closes it
    kind = _type(os.fstat(descriptor).st_mode)
    if kind:
        file.close()
        raise OSError(errno.EISDIR if kind == "a folder" else errno.EINVAL, f"{kind}, not a file")
    return file


def blocks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """What is in a file, block by block, inflated if it is gzipped; so what is wrong at its beginning is seen early.

    Raises:
        OSError: as `read_bytes`; corrupt gzip data, or data that inflate to more than the bounds above.
    """
    with _content(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def fills(path: str | os.PathLike[str], room: Callable[[], memoryview]) -> Iterator[int]:
    """What is in a file, as `blocks`, put into the room that is asked for each time; gives how many bytes were.

    Raises:
        OSError: as `blocks`.
    """
    with _content(path) as file:
        while size_bytes := file.readinto(room()):
            yield size_bytes


@contextmanager
def _content(path: str | os.PathLike[str]) -> Iterator[Any]:
    """What is in a file, as a binary stream without a buffer between.

    Raises:
        OSError: as `read_bytes`.
    """
    with _opened(path, LARGEST_FILE_BYTES) as file:
        is_file = not _type(os.fstat(file.fileno()).st_mode)
        if is_file and os.pread(file.fileno(), len(GZIP_MAGIC), 0) != GZIP_MAGIC:
            yield file.raw
            return
    data = read_bytes(path)
    yield _Inflated(data) if data.startswith(GZIP_MAGIC) else io.BytesIO(data)


class _Inflated(io.RawIOBase):
    """What is in the bytes of a gzipped file; what is wrong with them is an OSError as of `blocks`."""

    def __init__(self, data: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._most_bytes = min(LARGEST_INFLATED_BYTES, max(INFLATED_IN_ANY_CASE_BYTES, MOST_TIMES_INFLATED * len(data)))
        self._inflated = 0

    def readable(self) -> bool:
        """That it can be read."""
        return True

    def readinto(self, room: Any) -> int:  # noqa: ANN401 - what can be written to has no name in this Python
        """Inflate as much as there is room for; gives how many bytes, 0 at the end."""
        try:
            size_bytes = self._file.readinto(room)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(errno.EINVAL, f"corrupt gzip data ({error}), expected a whole gzip file") from error
        self._inflated += size_bytes
        if self._inflated > self._most_bytes:
            by_size = self._most_bytes == LARGEST_INFLATED_BYTES
            most = _amount(self._most_bytes) if by_size else f"{MOST_TIMES_INFLATED} times its size"
            raise OSError(errno.EFBIG, f"inflates to more than {most}; if that is meant, gunzip it first")
        return size_bytes


def _type(mode: int) -> str:
    """What a file is that is no regular one, else nothing."""
    return next((name for has_type, name in _TYPES if has_type(mode)), "")


def _amount(size_bytes: int) -> str:
    return f"{size_bytes >> 30} GiB" if size_bytes >= 1 << 30 else f"{size_bytes} bytes"
