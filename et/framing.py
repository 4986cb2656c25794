"""Reading and writing of the frames of a trace file: a base-128 varint with its length precedes each message.

The file may be gzipped.
"""

import contextlib
import gzip
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from google.protobuf.message import Message

from nadi import inputs
from nadi.et.errors import TraceError

Path = str | os.PathLike[str]

MAX_MESSAGE_BYTES = 2**31 - 1  # limit of protobuf, so that a length has at most five bytes
MAX_LENGTH_BYTES = 5
HEAD_BYTES = 1 << 16
_EXPECTED = "a Chakra trace (.et or .et.gz)"


def iter_messages(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset of the frame, message) for every message of the file, including messages of length 0.

    Offsets in a gzipped file count its uncompressed bytes. The first message is the GlobalMetadata, the rest are Nodes.
    Inflated data have at most inputs.LARGEST_INFLATED_BYTES.

    Args:
        path: The path of the file.
    """
    blocks = blocks_of(path)
    data, following, before = next(blocks, b""), next(blocks, None), 0
    refuse_others(path, data)
    while data:
        at, frame_bytes = 0, 0
        # A length at the end of a block may be incomplete
        while at < len(data) and (following is None or at + MAX_LENGTH_BYTES <= len(data)):
            length, body = read_length(path, data, at, before)
            frame_bytes = body + length - at
            # The rest of the message is in later blocks
            if at + frame_bytes > len(data):
                break
            yield before + at, data[body : body + length]
            at += frame_bytes
        if following is None:
            if at < len(data):
                raise TraceError(
                    f"{path}: byte {before + at}: message of {length} bytes, "
                    f"expected at most the {len(data) - body} that follow"
                )
            return
        # Join blocks until the message is complete, once, so that long messages take linear time
        parts, available = [data[at:], following], len(data) - at + len(following)
        while available < frame_bytes and (block := next(blocks, None)):
            parts.append(block)
            available += len(block)
        data, following, before = b"".join(parts), next(blocks, None), before + at


def split_frames(frames: bytes) -> Iterator[bytes]:
    """Yield the messages in complete frames, as `frame` makes them.

    Args:
        frames: The frames as bytes.
    """
    at = 0
    while at < len(frames):
        length, at = read_length("<memory>", frames, at, 0)
        yield frames[at : at + length]
        at += length


def frame(message: bytes) -> bytes:
    """Return the message preceded by its length, a varint.

    Args:
        message: The bytes of the message.
    """
    remaining, length = len(message), bytearray()
    while remaining > 0x7F:
        length.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    length.append(remaining)
    return bytes(length) + message


def read_length(path: Path, data: bytes, start: int, before: int) -> tuple[int, int]:
    """Return the length of a message, and the offset after it.

    Args:
        path: The path of the file, for errors.
        data: The bytes to read from.
        start: The offset in `data` at which the length begins.
        before: The number of the file's bytes before `data`, for errors.
    """
    length = 0
    # A varint: seven bits per byte, the lowest first; the eighth bit marks further bytes
    for i, byte in enumerate(data[start : start + MAX_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if length > MAX_MESSAGE_BYTES:
                raise TraceError(f"{path}: byte {before + start}: message length {length}, expected at most 2 GiB")
            return length, start + i + 1
    place = f"{path}: byte {before + start}"
    if len(data) - start < MAX_LENGTH_BYTES:
        raise TraceError(f"{place}: the file ends inside a message length, expected a complete message")
    raise TraceError(f"{place}: corrupt message length, expected a varint of at most five bytes")


def refuse_others(path: Path, data: bytes) -> None:
    """Raise TraceError for a file of another kind, before its first bytes are taken for a length.

    Args:
        path: The path of the file.
        data: The first bytes of the file, inflated.
    """
    if not data:
        raise TraceError(f"{path}: byte 0: the file is empty, expected a GlobalMetadata message")
    kind = inputs.kind_of_bytes(data[:HEAD_BYTES])
    if kind is not None and kind.key != "chakra":
        outer_kind = inputs.kind_of(path)  # also knows that the file is gzipped
        reported = outer_kind if outer_kind is not None and outer_kind.is_file else kind
        raise TraceError(inputs.complaint(path, reported, _EXPECTED))


def blocks_of(path: Path) -> Iterator[bytes]:
    """Yield the inflated file in blocks, which are not messages.

    Args:
        path: The path of the file.
    """
    with _as_trace_error(path):
        yield from inputs.blocks(path)


def fills_of(path: Path, room: Callable[[], memoryview]) -> Iterator[int]:
    """Read the inflated file into buffers; yield the number of bytes of each read.

    Args:
        path: The path of the file.
        room: A function that returns the buffer for the next bytes.
    """
    with _as_trace_error(path):
        yield from inputs.fills(path, room)


@contextmanager
def _as_trace_error(path: Path) -> Iterator[None]:
    """Convert an error of reading a file to a TraceError."""
    try:
        yield
    except OSError as error:
        kind = inputs.kind_of(path)
        if kind is not None and not kind.is_file:
            raise TraceError(inputs.complaint(path, kind, _EXPECTED)) from None
        reason = error.strerror or str(error)
        expectation = "" if "expected" in reason or ";" in reason else ", expected a readable Chakra trace"
        raise TraceError(f"{path}: {reason}{expectation}") from error


def write_trace(path: str | os.PathLike[str], metadata: Message, nodes: Iterable[Message]) -> None:
    """Write a trace file, gzipped if its name ends in .gz; the file appears only when it is complete.

    The same messages give the same bytes, gzipped or not.

    Args:
        path: The path of the file.
        metadata: The first message, a GlobalMetadata.
        nodes: The Node messages of the trace.
    """
    write_frames(path, (frame(message.SerializeToString(deterministic=True)) for message in (metadata, *nodes)))


def write_frames(path: str | os.PathLike[str], frames: Iterable[bytes]) -> None:
    """Write a file of messages that have their lengths already.

    Args:
        path: The path of the file.
        frames: The frames as bytes; each item may hold several.
    """
    path = pathlib.Path(path)
    refusing = inputs.refusing(path, "a place to write a trace to", TraceError)
    with refusing, inputs.whole_file(path) as file, _compressed(file, path) as out:
        for batch in frames:
            out.write(batch)


def _compressed(file: IO[bytes], path: pathlib.Path) -> contextlib.AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    """Return a file open for writing, or a gzip stream into it if the name of `path` ends in .gz."""
    if path.suffix != ".gz":
        return contextlib.nullcontext(file)
    # Without name and time, equal traces give equal files
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
