"""Framing of a trace file: each message stands behind its length, a base-128 varint; the file may be gzipped."""

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from et.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_MESSAGE_BYTES = 2**31 - 1  # protobuf's own limit, hence a length of at most five bytes
_LONGEST_LENGTH_BYTES = 5


def iter_messages(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset of the frame, message) for every message of the file, zero-length ones too.

    Offsets of a gzipped file count its uncompressed bytes. The first message is the GlobalMetadata, the rest are Nodes.

    Raises:
        TraceError: the file cannot be read, is empty, ends inside a message or holds a corrupt length.
    """
    data = _read_bytes(path)
    if not data:
        raise TraceError(f"{path}: byte 0: the file is empty, expected a GlobalMetadata message")
    at = 0
    while at < len(data):
        start, (length, at) = at, _read_length(path, data, at)
        end = at + length
        if end > len(data):
            raise TraceError(
                f"{path}: byte {start}: message of {length} bytes, expected at most the {len(data) - at} that follow"
            )
        yield start, data[at:end]
        at = end


def frame(message: bytes) -> bytes:
    """The message behind its length."""
    left, length = len(message), bytearray()
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes(length) + message


def _read_length(path: str | os.PathLike[str], data: bytes, start: int) -> tuple[int, int]:
    """The length that stands at `start`, and the offset behind it."""
    length = 0
    for i, byte in enumerate(data[start : start + _LONGEST_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if length > LONGEST_MESSAGE_BYTES:
                raise TraceError(f"{path}: byte {start}: message length {length}, expected at most 2 GiB")
            return length, start + i + 1
    if len(data) - start < _LONGEST_LENGTH_BYTES:
        raise TraceError(f"{path}: byte {start}: the file ends inside a message length, expected a whole message")
    raise TraceError(f"{path}: byte {start}: corrupt message length, expected a varint of at most five bytes")


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}, expected a readable Chakra trace") from error
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise TraceError(f"{path}: corrupt gzip data ({error}), expected a whole gzip file") from error
