"""Files of arrays: values of JSON and flat arrays of numbers, complete or refused.

A file is MAGIC, the length of the header as int64, the header in JSON, the arrays in that order, each from a
multiple of ALIGNMENT bytes on, and the CRC-32 of all that, which is three times as fast as hashes against forgery. All
numbers are little-endian. The header has the values, and of each array its name, type, length, and how many of its
first bytes are in the file: the rest is 0.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inputs.reading import mapped

MAGIC = b"NADIARR1"
ALIGNMENT = 64  # bytes of a cache line
CHECKSUM_BYTES = 4
TYPES = ("<i8", "<i4", "|i1", "<f8", "|b1", "|u1")  # types of arrays
_LENGTH_BYTES = 8  # size of the header's length
_BLOCK_WORDS = 1 << 16  # words that are checked for zeros at a time


class DamagedFileError(ValueError):
    """A file of arrays is not what was written."""


def write_arrays(path: str | os.PathLike[str], values: Any, arrays: Mapping[str, NDArray[Any]]) -> int:  # noqa: ANN401 - JSON
    """Write a new file and wait until it is on the disk; return its size in bytes. Failures raise OSError."""
    flat = {name: np.ascontiguousarray(array).reshape(-1) for name, array in arrays.items()}
    kept = {name: _kept_bytes(array) for name, array in flat.items()}
    columns = [[name, array.dtype.str, len(array), kept[name]] for name, array in flat.items()]
    header = json.dumps({"values": values, "arrays": columns}, separators=(",", ":")).encode()
    checksum = size_bytes = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - no path: the file is open

        def write(content: bytes | memoryview) -> None:
            nonlocal checksum, size_bytes
            checksum = zlib.crc32(content, checksum)
            file.write(content)
            size_bytes += len(content)

        write(MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little"))
        write(header)
        for name, array in flat.items():
            write(bytes(-size_bytes % ALIGNMENT))
            write(array.view(np.uint8)[: kept[name]].data)
        file.write(checksum.to_bytes(CHECKSUM_BYTES, "little"))
        file.flush()
        os.fsync(file.fileno())
    return size_bytes + CHECKSUM_BYTES


def _kept_bytes(array: NDArray[Any]) -> int:
    """Return the number of the first bytes of an array behind which all are 0, rounded up to whole blocks."""
    content = array.view(np.uint8)
    whole = len(content) // 8 * 8
    if content[whole:].any():
        return len(content)
    words = content[:whole].view(np.int64)
    end = len(words)
    while end > 0 and not words[max(0, end - _BLOCK_WORDS) : end].any():
        end = max(0, end - _BLOCK_WORDS)
    return 8 * end


def read_arrays(path: str | os.PathLike[str]) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the values and arrays of a file; OSError, or DamagedFileError: the file is not as it was written."""
    content = memoryview(mapped(path))
    body, stored = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(body) < len(MAGIC) + _LENGTH_BYTES or bytes(body[: len(MAGIC)]) != MAGIC:
        raise DamagedFileError(f"{path}: found {len(content)} other bytes; expected a file of arrays")
    if zlib.crc32(body) != int.from_bytes(stored, "little"):
        raise DamagedFileError(f"{path}: its content does not match its checksum; it is truncated or was altered")
    begin = len(MAGIC) + _LENGTH_BYTES
    end = begin + int.from_bytes(body[len(MAGIC) : begin], "little")
    header = json.loads(bytes(body[begin:end]))
    return header["values"], dict(_arrays(body, end, header["arrays"]))


def _arrays(body: memoryview, at: int, columns: list[list[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name and the content of each array; at: offset in bytes behind the header."""
    for name, kind, length, kept in columns:
        if kind not in TYPES:
            raise DamagedFileError(f"array {name}: found type {kind}; expected one of {', '.join(TYPES)}")
        at += -at % ALIGNMENT
        array = np.zeros(length, kind)
        array.view(np.uint8)[:kept] = body[at : at + kept]
        at += kept
        yield name, array
