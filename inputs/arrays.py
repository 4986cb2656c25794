"""NumPy arrays: the types of their elements, sums over equal keys, columns of Arrow, and files of arrays."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nadi.inputs.errors import InputError
from nadi.inputs.files import mapped

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


def pointers(counts: ArrayLike) -> Int64:
    """Return int64[n+1]: the start of each of n consecutive runs with the given lengths, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def spans(begins: NDArray[np.integer], sizes: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Return the numbers of ranges that begin at `begins`, in order: int64[], twice, the range and the number."""
    ptr = pointers(sizes)
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(len(row)) + (begins - ptr[:-1])[row]


def sums(keys: Int64, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return distinct keys, ascending, and the columns summed over equal keys, in the columns' types; key: int64[n]."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return (keys[first], *(np.add.reduceat(c[order], first) if len(keys) else c for c in columns))


def positions(known: NDArray[np.integer], wanted: NDArray[np.integer]) -> Int64:
    """Return int64[len(wanted)], the index in `known` of each wanted number; -1 = unknown."""
    order = np.argsort(known, kind="stable")
    return np.append(order, -1)[positions_in_sorted(known[order], wanted)]


def positions_in_sorted(known: NDArray[np.integer], wanted: NDArray[np.integer]) -> Int64:
    """Return what `positions` returns; `known` ascends."""
    if not len(known):
        return np.full(len(wanted), -1)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, place, -1)


# Columns of Arrow as NumPy arrays, and NumPy arrays and texts as columns of Arrow.
#
# PyArrow's own conversions (`pa.array`, `pa.scalar`, `to_numpy`, `fill_null(0)`, `np.asarray(column)`, `pq.read_table`)
# import pandas where it is installed, 0.3 s of each command. These use the buffers of the arrays, whose layout is
# public: https://arrow.apache.org/docs/format/Columnar.html

if TYPE_CHECKING:
    import pyarrow as pa

_BIT_ORDER: Final = "little"  # the first value is the lowest bit of the first byte


def arrow_numbers(values: NDArray[Any], unknown: NDArray[np.bool_] | None = None) -> "pa.Array":
    """Return an Arrow array of numbers, which shares their memory, or of booleans.

    values: [n], which must not change while the Arrow array is in use. unknown: bool[n], values that are null; None =
    none is.
    """
    import pyarrow as pa  # noqa: PLC0415 - half a second, only for tables

    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    known = None if unknown is None else _bit_buffer(~unknown)
    data = _bit_buffer(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [known, data])


def arrow_texts(texts: Iterable[str | None]) -> "pa.StringArray":
    """Return an Arrow array of texts; None = null. OverflowError if they have more than 2 GiB."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    texts = list(texts)
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(texts) + 1)
    known = np.array([text is not None for text in texts], np.bool_)
    buffers = [None if known.all() else _bit_buffer(known), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def arrow_words(words: Iterable[str], index: NDArray[np.integer]) -> "pa.DictionaryArray":
    """Return an Arrow array of `words` by index, null for negative indices."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    return pa.DictionaryArray.from_arrays(arrow_numbers(index.astype(np.int32), index < 0), arrow_texts(words))


def numpy_column(
    column: "pa.Array | pa.ChunkedArray", dtype: DTypeLike | None = None, null: float | str | None = None
) -> NDArray[Any]:
    """Return an Arrow array, or a column of a table, as a NumPy array, which may share its memory and be read-only.

    dtype: Type of the values; None = that of the column, and objects for texts. null: Value in place of null; None =
    NaN, and None for texts.
    """
    chunks = [_values(chunk, null) for chunk in getattr(column, "chunks", [column])]
    values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks or [np.zeros(0, _dtype(column.type))])
    return values if dtype is None else values.astype(dtype, copy=False)


def _values(array: "pa.Array", null: float | str | None) -> NDArray[Any]:
    """Return the values of an Arrow array, as `numpy_column`."""
    if hasattr(array, "dictionary"):
        words = np.array([*array.dictionary.to_pylist(), null], object)
        return words[_values(array.indices, -1)]
    dtype = _dtype(array.type)
    if dtype.kind == "O":
        return np.array([null if text is None else text for text in array.to_pylist()], object)
    if not len(array):
        return np.zeros(0, dtype)
    known, data = array.buffers()
    begin, end = array.offset, array.offset + len(array)
    values = _bits(data, begin, end) if dtype == np.bool_ else np.frombuffer(data, dtype, end)[begin:]
    if not array.null_count:
        return values
    return np.where(_bits(known, begin, end), values, np.nan if null is None else null)


def _dtype(arrow_type: "pa.DataType") -> np.dtype[Any]:
    """Return the NumPy type of an Arrow type; objects for texts, in dictionaries too."""
    return np.dtype(object if hasattr(arrow_type, "value_type") else arrow_type.to_pandas_dtype())


def _bit_buffer(flags: NDArray[np.bool_]) -> "pa.Buffer":
    """Return bool[n] as Arrow's bits."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    return pa.py_buffer(np.packbits(flags, bitorder=_BIT_ORDER))


def _bits(buffer: "pa.Buffer", begin: int, end: int) -> NDArray[np.bool_]:
    """Return Arrow's bits from begin to end as bool[end - begin]."""
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=end, bitorder=_BIT_ORDER)[begin:].view(np.bool_)


# Files of arrays: values of JSON and flat arrays of numbers, complete or refused.
#
# A file is MAGIC, the length of the header as int64, the header in JSON, the arrays in that order, and the CRC-32 of
# all that, which is three times as fast as hashes against forgery. All numbers are little-endian. The header has the
# values, and of each array its name, type, length, and the number of words in its rows.
#
# An array is stored as the words that differ from the row before: of each block of about BLOCK_WORDS words a bitmap of
# these words, and their exclusive or with the word of the row before. Rows of tables are similar and often empty, so
# that files are smaller, and take less time to write, than memory as it is.

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
