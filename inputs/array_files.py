"""Files of arrays: values of JSON and flat arrays of numbers, complete or refused.

A file is MAGIC, the length of the header as int64, the header in JSON, the arrays in that order, and the CRC-32 of all
that, which is three times as fast as hashes against forgery. All numbers are little-endian. The header has the values,
and of each array its name, type, length, and the number of words in its rows.

An array is stored as the words that differ from the row before: of each block of about BLOCK_WORDS words a bitmap of
these words, and their exclusive or with the word of the row before. Rows of tables are similar and often empty, so that
files are smaller, and take less time to write, than memory as it is.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.errors import InputError
from nadi.inputs.files import mapped

MAGIC = b"NADIARR2"
CHECKSUM_BYTES = 4
TYPES = ("<i8", "<i4", "|i1", "<f8", "|b1", "|u1")  # types of arrays
_LENGTH_BYTES = 8  # size of the header's length
_WORD_BYTES = 8
MAX_ROW_WORDS = 1 << 16  # words of a row; the longest has some hundred
BLOCK_WORDS = 1 << 16  # half a megabyte, which fits into the cache of a core


class DamagedFileError(InputError):
    """A file of arrays is not what was written."""


def write_arrays(path: str | os.PathLike[str], values: Any, arrays: Mapping[str, NDArray[Any]]) -> int:  # noqa: ANN401 - JSON
    """Write a new file and wait until it is on the disk; return its size in bytes. Failures raise OSError.

    An array may have two dimensions, rows and their words of 8 bytes; it is read as one of one dimension.

    Args:
        path: The file to create; OSError if it exists.
        values: Values of JSON, kept in the header.
        arrays: Arrays by name, with one dimension or with rows of words of 8 bytes.
    """
    widths = [array.shape[1] if array.ndim == 2 else 1 for array in arrays.values()]
    columns = [
        [name, array.dtype.str, array.size, width] for (name, array), width in zip(arrays.items(), widths, strict=True)
    ]
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
        for array, width in zip(arrays.values(), widths, strict=True):
            for piece in _packed(array, width):
                write(piece.view(np.uint8).data)
        file.write(checksum.to_bytes(CHECKSUM_BYTES, "little"))
        file.flush()
        os.fsync(file.fileno())
    return size_bytes + CHECKSUM_BYTES


def _packed(array: NDArray[Any], width: int) -> Iterator[NDArray[Any]]:
    """Yield of each block of an array, with `width` words in a row, the bitmap and the words that are stored."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    padding = -len(content) % _WORD_BYTES
    words = (np.concatenate([content, np.zeros(padding, np.uint8)]) if padding else content).view(np.int64)
    before = np.zeros(width, np.int64)
    for begin, end in _blocks(len(words), width):
        rows = words[begin:end].reshape(-1, width)
        changes = rows.copy()
        changes[0] ^= before
        changes[1:] ^= rows[:-1]
        before = rows[-1]
        is_stored = changes.reshape(-1) != 0
        yield np.packbits(is_stored)
        yield changes.reshape(-1)[is_stored]


def _blocks(words: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the blocks of an array, in words: whole rows."""
    step = max(BLOCK_WORDS // width, 1) * width
    for begin in range(0, words, step):
        yield begin, min(begin + step, words)


def seal_of(path: str | os.PathLike[str]) -> list[int]:
    """Return the size of a file in bytes and the checksum at its end, which distinguish it from others; OSError.

    Args:
        path: A file that `write_arrays` wrote.
    """
    with open(path, "rb") as file:  # noqa: PTH123 - a path or a name
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(size_bytes - CHECKSUM_BYTES, 0))
        return [size_bytes, int.from_bytes(file.read(), "little")]


def read_arrays(path: str | os.PathLike[str]) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the values and arrays of a file; OSError, or DamagedFileError: the file is not as it was written.

    Args:
        path: A file that `write_arrays` wrote.
    """
    content = memoryview(mapped(path))
    body, stored = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(body) < len(MAGIC) + _LENGTH_BYTES or bytes(body[: len(MAGIC)]) != MAGIC:
        raise DamagedFileError.at(path, f"found {len(content)} other bytes", "a file of arrays")
    if zlib.crc32(body) != int.from_bytes(stored, "little"):
        raise DamagedFileError(f"{path}: its content does not match its checksum; it is truncated or was altered")
    begin = len(MAGIC) + _LENGTH_BYTES
    end = begin + int.from_bytes(body[len(MAGIC) : begin], "little")
    try:
        header = json.loads(bytes(body[begin:end]))
        return header["values"], dict(_arrays(body, end, header["arrays"]))
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        reason = error if isinstance(error, DamagedFileError) else "found a header that does not describe its content"
        raise DamagedFileError(f"{path}: {reason}") from None


def _arrays(body: memoryview, at: int, columns: list[list[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name and the content of each array; at: offset in bytes behind the header."""
    for name, kind, length, width in columns:
        if kind not in TYPES:
            raise DamagedFileError(f"array {name}: found type {kind}; expected one of {', '.join(TYPES)}")
        size_bytes = length * np.dtype(kind).itemsize
        # each word has a bit in the file, so that no header can ask for more memory than 64 times the file
        most_bytes = 8 * _WORD_BYTES * max(len(body) - at, 0)
        if not 0 <= size_bytes <= most_bytes or not 0 < width <= MAX_ROW_WORDS:
            raise DamagedFileError(f"array {name}: found {length} items in rows of {width}; expected fewer")
        words = np.zeros(-(-size_bytes // _WORD_BYTES), np.int64)
        before = np.zeros(width, np.int64)
        for begin, end in _blocks(len(words), width):
            bitmap = np.frombuffer(body, np.uint8, -(-(end - begin) // 8), at)
            is_stored = np.unpackbits(bitmap, count=end - begin).view(np.bool_)
            at += len(bitmap)
            stored = np.frombuffer(body, np.int64, np.count_nonzero(is_stored), at)
            at += stored.nbytes
            if not len(stored) and not before.any():
                continue  # pages of zeros need no memory
            words[begin:end][is_stored] = stored
            rows = words[begin:end].reshape(-1, width)
            rows[0] ^= before
            np.bitwise_xor.accumulate(rows, axis=0, out=rows)
            before = rows[-1]
        yield name, words.view(np.uint8)[:size_bytes].view(kind)
