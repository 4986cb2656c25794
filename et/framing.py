"""Framing of a trace file: each message stands behind its length, a base-128 varint; the file may be gzipped."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import inputs
from et.errors import TraceError

Path = str | os.PathLike[str]

LONGEST_MESSAGE_BYTES = 2**31 - 1  # protobuf's own limit, hence a length of at most five bytes
LONGEST_LENGTH_BYTES = 5
HEAD_BYTES = 1 << 16
_EXPECTED = "a Chakra trace (.et or .et.gz)"


def iter_messages(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset of the frame, message) for every message of the file, zero-length ones too.

    Offsets of a gzipped file count its uncompressed bytes. The first message is the GlobalMetadata, the rest are Nodes.

    Raises:
        TraceError: the file cannot be read, is empty or of another kind, ends inside a message, holds a corrupt length
            or inflates to more than inputs.LARGEST_INFLATED_BYTES.
    """
    blocks = blocks_of(path)
    data, following, before = next(blocks, b""), next(blocks, None), 0
    refuse_others(path, data)
    while data:
        at, wanted = 0, 0
        while at < len(data) and (following is None or at + LONGEST_LENGTH_BYTES <= len(data)):
            length, body = read_length(path, data, at, before)
            wanted = body + length - at
            if at + wanted > len(data):
                break
            yield before + at, data[body : body + length]
            at += wanted
        if following is None:
            if at < len(data):
                raise TraceError(
                    f"{path}: byte {before + at}: message of {length} bytes, "
                    f"expected at most the {len(data) - body} that follow"
                )
            return
        parts, has = [data[at:], following], len(data) - at + len(following)
        while has < wanted and (block := next(blocks, None)):
            parts.append(block)
            has += len(block)
        data, following, before = b"".join(parts), next(blocks, None), before + at


def split_frames(frames: bytes) -> Iterator[bytes]:
    """The messages of whole frames, as `frame` makes them."""
    at = 0
    while at < len(frames):
        length, at = read_length("<memory>", frames, at, 0)
        yield frames[at : at + length]
        at += length


def frame(message: bytes) -> bytes:
    """The message behind its length."""
    left, length = len(message), bytearray()
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes(length) + message


def read_length(path: Path, data: bytes, start: int, before: int) -> tuple[int, int]:
    """The length that stands at `start`, and the offset behind it; `before`: bytes of the file before `data`.

    Raises:
        TraceError: it is cut off, longer than a length may be, or too large.
    """
    length = 0
    for i, byte in enumerate(data[start : start + LONGEST_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if length > LONGEST_MESSAGE_BYTES:
                raise TraceError(f"{path}: byte {before + start}: message length {length}, expected at most 2 GiB")
            return length, start + i + 1
    where = f"{path}: byte {before + start}"
    if len(data) - start < LONGEST_LENGTH_BYTES:
        raise TraceError(f"{where}: the file ends inside a message length, expected a whole message")
    raise TraceError(f"{where}: corrupt message length, expected a varint of at most five bytes")


def refuse_others(path: Path, data: bytes) -> None:
    """Name a file of another kind for what it is, before a byte of it is taken for a length.

    Args:
        path: the file.
        data: what it begins with, inflated.

    Raises:
        TraceError: it is empty, or of another kind.
    """
    if not data:
        raise TraceError(f"{path}: byte 0: the file is empty, expected a GlobalMetadata message")
    kind = inputs.kind_of_bytes(data[:HEAD_BYTES])
    if kind is not None and kind.key != "chakra":
        outside = inputs.kind_of(path)  # that it is gzipped
        named = outside if outside is not None and outside.is_file else kind
        raise TraceError(inputs.complaint(path, named, _EXPECTED))


def blocks_of(path: Path) -> Iterator[bytes]:
    """What is in the file, inflated; a block is no message.

    Raises:
        TraceError: it cannot be read, or is corrupt gzip data.
    """
    with _named(path):
        yield from inputs.blocks(path)


def fills_of(path: Path, room: Callable[[], memoryview]) -> Iterator[int]:
    """What is in the file, inflated, put into the room that is asked for each time; gives how many bytes were.

    Raises:
        TraceError: as `blocks_of`.
    """
    with _named(path):
        yield from inputs.fills(path, room)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say as a TraceError what is wrong with reading a file."""
    try:
        yield
    except OSError as error:
        kind = inputs.kind_of(path)
        if kind is not None and not kind.is_file:
            raise TraceError(inputs.complaint(path, kind, _EXPECTED)) from None
        reason = error.strerror or str(error)
        what = "" if "expected" in reason or ";" in reason else ", expected a readable Chakra trace"
        raise TraceError(f"{path}: {reason}{what}") from error
