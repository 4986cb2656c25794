"""Files that users name: reading without waiting and within bounds, TOML, writing as a whole, the display of names.

Every problem of reading is an OSError whose `strerror` is meant for a user, so that callers handle one kind of error.

A written file appears under its name only when it is complete. Until then its content is in a file in the same folder
with a random name, which is created exclusively: nothing that exists there before, such as a symbolic link to another
file, is written to.

Names are shown as characters, never as terminal commands: a name may hold escape sequences, which move the cursor or
rename the window, or characters that turn the direction of writing; a path may hold bytes that are not UTF-8.
"""

import errno
import gzip
import io
import mmap
import os
import re
import secrets
import stat
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
LARGEST_FILE_BYTES = 64 << 30
LARGEST_TEXT_BYTES = 1 << 30
LARGEST_INFLATED_BYTES = 4 << 30  # limit of one gzipped file, a hundred times the largest known trace
MIN_INFLATED_LIMIT_BYTES = 64 << 20  # size to which any gzipped file may inflate
MAX_INFLATION = 200  # maximum ratio of inflated to compressed size above that; ids and times keep traces below it
_BLOCK_BYTES = 1 << 20  # size of a block, small enough that the allocator reuses its memory for the next
_WITHOUT_WAITING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_OF_THE_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # paths of pipes of the shell, which have a writer
_TYPES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def type_of(path: str | os.PathLike[str]) -> str:
    """Return the type of a path that is no regular file: "a folder", "a FIFO", ...; "" for a regular or no file."""
    try:
        return _type(os.stat(path).st_mode)  # noqa: PTH116 - a path with a NUL is no Path
    except (OSError, ValueError):
        return ""


def read_bytes(path: str | os.PathLike[str], max_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """Return the content of a regular file or a pipe of the shell, of at most max_bytes; otherwise raise OSError.

    Args:
        path: The file to read.
        max_bytes: The largest size in bytes that is read.
    """
    with _opened(path, max_bytes) as file:
        if not _type(os.fstat(file.fileno()).st_mode):
            return file.read()
        content = bytearray()
        while len(content) <= max_bytes and (block := file.read1(_BLOCK_BYTES)):
            content += block
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, f"more than {_amount(max_bytes)}")
        return bytes(content)


def _opened(path: str | os.PathLike[str], max_bytes: int, *, or_pipe: bool = True) -> io.BufferedReader:
    """Open a regular file of at most `max_bytes` bytes, or a pipe of the shell, for reading."""
    try:
        descriptor = os.open(path, _WITHOUT_WAITING)
    except ValueError:
        raise OSError(errno.EINVAL, "a NUL in its name") from None
    with ExitStack() as stack:
        file = stack.enter_context(open(descriptor, "rb"))  # noqa: PTH123 - no path: the file is open
        status = os.fstat(descriptor)
        kind = _type(status.st_mode)
        if kind and not (or_pipe and str(path).startswith(_OF_THE_SHELL)):
            raise OSError(errno.EISDIR if kind == "a folder" else errno.EINVAL, f"{kind}, not a file")
        os.set_blocking(descriptor, True)
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"{status.st_size:,} bytes, more than {_amount(max_bytes)}")
        stack.pop_all()
    return file


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the content of a UTF-8 file; raise UnicodeDecodeError if it is not.

    Args:
        path: The file to read.
    """
    return read_bytes(path, LARGEST_TEXT_BYTES).decode("utf-8").replace("\r\n", "\n")


def mapped(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """Return the content of a regular file, mapped so that its pages need no memory; of a gzipped one, inflated.

    Args:
        path: The file to map into memory.
    """
    with _opened(path, sys.maxsize, or_pipe=False) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size_bytes else b""
    return b"".join(blocks(path)) if content[: len(GZIP_MAGIC)] == GZIP_MAGIC else content


def pieces(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the content of a file piece by piece, so that a large one needs little memory; without inflating it.

    Args:
        path: The file to read.
    """
    with _opened(path, sys.maxsize, or_pipe=False) as file:
        while piece := file.read(_BLOCK_BYTES):
            yield piece


def blocks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the content of a file block by block, inflated if it is gzipped; errors at its beginning show early.

    Corrupt gzip data, or data that inflate beyond the bounds above, raise OSError.

    Args:
        path: The file to read.
    """
    with _content(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def fills(path: str | os.PathLike[str], next_buffer: Callable[[], memoryview]) -> Iterator[int]:
    """Read the content of a file, as `blocks`, into the buffers that `next_buffer` returns; yield each part's size.

    Args:
        path: The file to read.
        next_buffer: A function that returns the buffer for the next part.
    """
    with _content(path) as file:
        while size_bytes := file.readinto(next_buffer()):
            yield size_bytes


@contextmanager
def _content(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open the inflated content of a file as an unbuffered binary stream."""
    with _opened(path, LARGEST_FILE_BYTES) as file:
        is_file = not _type(os.fstat(file.fileno()).st_mode)
        if is_file and os.pread(file.fileno(), len(GZIP_MAGIC), 0) != GZIP_MAGIC:
            yield file.raw
            return
    data = read_bytes(path)
    yield _Inflated(data) if data.startswith(GZIP_MAGIC) else io.BytesIO(data)


class _Inflated(io.RawIOBase):
    """Inflated content of a gzipped file; errors are OSErrors as of `blocks`."""

    def __init__(self, data: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._max_bytes = min(LARGEST_INFLATED_BYTES, max(MIN_INFLATED_LIMIT_BYTES, MAX_INFLATION * len(data)))
        self._inflated = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - Python 3.11 has no type for writable buffers
        """Inflate into a buffer and return the number of bytes, 0 at the end."""
        try:
            size_bytes = self._file.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(errno.EINVAL, f"corrupt gzip data ({error}), expected a whole gzip file") from error
        self._inflated += size_bytes
        if self._inflated > self._max_bytes:
            by_size = self._max_bytes == LARGEST_INFLATED_BYTES
            limit = _amount(self._max_bytes) if by_size else f"{MAX_INFLATION} times its size"
            raise OSError(errno.EFBIG, f"inflates to more than {limit}; if that is intended, gunzip it first")
        return size_bytes


def _type(mode: int) -> str:
    """Return the type of a file that is not regular, else ""."""
    return next((name for has_type, name in _TYPES if has_type(mode)), "")


def _amount(size_bytes: int) -> str:
    return f"{size_bytes >> 30} GiB" if size_bytes >= 1 << 30 else f"{size_bytes} bytes"


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return the text with unprintable characters as escapes, \x1b: control characters, directions, broken bytes.

    `lines` keeps line feeds.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else escape(c) for c in text)


def escape(character: str) -> str:
    """Return a character as a Python escape sequence; a byte that was not UTF-8 as this byte."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o666  # permissions of a new file, before the umask


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file for writing that replaces `path` when the block succeeds; else no trace of it remains.

    A symbolic link at `path` itself is replaced, not followed. Failures raise OSError with `path` as filename; a folder
    or a special file is one, too.
    """
    path = Path(path)
    other = type_of(path) or ("" if path.name else "a folder")
    if other:
        raise OSError(errno.EISDIR if other == "a folder" else errno.EINVAL, other, str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, _NEW, _MODE)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - no path: the file is open
            yield file
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in {None, str(part)}:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file at once, replacing any existing one; text as UTF-8.

    Args:
        path: The file to write; an existing one is replaced.
        content: The complete content.
    """
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def unread(path: object, lines: Sequence[tuple[int, str]], before: str) -> tuple[str, ...]:
    """Return a sentence about lines (number, text) that are not read, none without lines.

    Args:
        path: The file, for the text.
        lines: The number and the text of each line that is not read.
        before: The lines that the header counts and that precede these, such as "3 links".
    """
    if not lines:
        return ()
    number, text = lines[0]
    count = "1 line is" if len(lines) == 1 else f"{len(lines):,} lines are"
    return (
        f"{path}: {count} not read, from line {number} on ({text.strip()[:40]!r}), behind the {before} of the header",
    )


# Parsing of user-written TOML, with a limit on dotted keys, in whose parts Python's parser takes quadratic time.


MAX_KEY_PARTS = 64  # parts of a dotted key, a.b.c; run files need three, and JSON schemas of other tools fewer than ten

MAX_LEVELS = 200  # nested tables and arrays; code recurses once per level, and Python allows 1,000 levels

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']++|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tree of a TOML document; ValueError if it is wrong or too large, RecursionError if nested too deep.

    Args:
        text: The complete document.
    """
    if text.count(".") >= MAX_KEY_PARTS:
        plain = _STRINGS_AND_COMMENTS.sub(lambda match: "" if match[0].startswith("#") else "s", text)
        long_key = _LONG_KEY.search(plain)
        if long_key is not None:
            begin = long_key[0][:20]
            raise ValueError(f"a dotted key of more than {MAX_KEY_PARTS} parts ({begin}...), expected fewer")
    tree = tomllib.loads(text)
    if "{" in text and _levels(tree) > MAX_LEVELS:
        raise ValueError(f"tables within more than {MAX_LEVELS} others, expected fewer")
    return tree


def _levels(tree: dict[str, Any]) -> int:
    """Return the depth of nested tables and arrays."""
    levels = 0
    here: list[dict[str, Any] | list[Any]] = [tree]
    while here:
        inner = [value for item in here for value in (item.values() if isinstance(item, dict) else item)]
        here = [value for value in inner if isinstance(value, dict | list)]
        levels += 1
    return levels
