"""Columns of Arrow as NumPy arrays, and NumPy arrays and texts as columns of Arrow.

PyArrow's own conversions (`pa.array`, `pa.scalar`, `to_numpy`, `fill_null(0)`, `np.asarray(column)`, `pq.read_table`)
import pandas where it is installed, 0.3 s of each command. These use the buffers of the arrays, whose layout is public:
https://arrow.apache.org/docs/format/Columnar.html
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
    known = None if unknown is None else _packed(~unknown)
    data = _packed(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [known, data])


def arrow_texts(texts: Iterable[str | None]) -> "pa.StringArray":
    """Return an Arrow array of texts; None = null. OverflowError if they have more than 2 GiB."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    texts = list(texts)
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(texts) + 1)
    known = np.array([text is not None for text in texts], np.bool_)
    buffers = [None if known.all() else _packed(known), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
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


def _packed(flags: NDArray[np.bool_]) -> "pa.Buffer":
    """Return bool[n] as Arrow's bits."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    return pa.py_buffer(np.packbits(flags, bitorder=_BIT_ORDER))


def _bits(buffer: "pa.Buffer", begin: int, end: int) -> NDArray[np.bool_]:
    """Return Arrow's bits from begin to end as bool[end - begin]."""
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=end, bitorder=_BIT_ORDER)[begin:].view(np.bool_)
