"""Arrow's columns as NumPy arrays and back, against PyArrow's own conversions, which import pandas."""

import gc
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi.inputs.arrow import arrow_numbers, arrow_texts, arrow_words, numpy_column

DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64")
TEXTS = ["", "a", None, "é→", "a" * 100]


def values_of(dtype, count):
    values = np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)
    if values.dtype.kind == "f" and count:
        values[-1] = np.nan
    return values


def file_of(array):
    """Return the bytes of a Parquet file with this column."""
    made = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([array], names=["a"]), made)
    return made.getvalue()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 8, 29])
def test_numbers_become_what_pyarrow_makes_of_them(dtype, count):
    values = values_of(dtype, count)
    unknown = np.arange(count) % 3 == 1
    for mask in (None, unknown, np.zeros(count, np.bool_), np.ones(count, np.bool_)):
        made, expected = arrow_numbers(values, mask), pa.array(values, mask=mask)
        made.validate(full=True)
        assert made.type == expected.type
        assert made.null_count == expected.null_count
        assert file_of(made) == file_of(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_memory_layout_is_read(dtype):
    values = values_of(dtype, 40)
    read_only = values[::-1].copy()
    read_only.flags.writeable = False
    table = np.zeros(40, np.dtype([("a", dtype), ("b", "int16")]))  # a column of a row is not aligned
    table["a"] = values
    swapped = values.astype(values.dtype.newbyteorder(">"))
    for each in (values[3::2], values[::-1], read_only, table["a"], swapped, swapped[1::3], np.tile(values, 2)[5:]):
        assert file_of(arrow_numbers(each)) == file_of(pa.array(each.astype(dtype)))


@pytest.mark.slow
def test_numbers_are_not_copied_and_outlive_their_array():
    values = np.arange(1 << 16)
    made = arrow_numbers(values)
    assert made.buffers()[1].address == values.ctypes.data
    assert np.shares_memory(numpy_column(made), values)
    table = pa.Table.from_arrays([made], names=["a"])
    del values, made
    gc.collect()
    back = numpy_column(table["a"])
    del table
    gc.collect()
    others = [np.full(1 << 16, -1) for _ in range(20)]  # would take the memory if it were free
    assert np.array_equal(back, np.arange(len(others[0])))


@pytest.mark.parametrize("texts", [[], [None], ["a"], TEXTS, TEXTS * 9])
def test_texts_become_what_pyarrow_makes_of_them(texts):
    made, expected = arrow_texts(iter(texts)), pa.array(texts, pa.string())
    made.validate(full=True)
    assert made.equals(expected)
    assert file_of(made) == file_of(expected)
    assert numpy_column(made).tolist() == texts
    assert numpy_column(made, str, null="none").tolist() == [text or "none" * (text is None) for text in texts]
    with pytest.raises(UnicodeEncodeError):
        arrow_texts([*texts, "\ud800"])


def test_words_have_indices():
    words, index = ("one", "two"), np.array([1, -1, 0, 1], np.int8)
    made = arrow_words(words, index)
    made.validate(full=True)
    expected = pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32), mask=index < 0), pa.array(words))
    assert made.equals(expected)
    assert file_of(made) == file_of(expected)
    assert numpy_column(made).tolist() == ["two", None, "one", "two"]
    assert numpy_column(pa.chunked_array([], made.type)).dtype == object
    assert numpy_column(pa.chunked_array([made, made.slice(1, 2)]), null="").tolist()[3:] == ["two", "", "one"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_become_what_pyarrow_makes_of_them(dtype):
    values, unknown = values_of(dtype, 50), np.arange(50) % 7 == 2
    whole, some = pa.array(values), pa.array(values, mask=unknown)
    for array in (whole, whole.slice(3, 17), whole.slice(9, 0)):
        for column in (
            array,
            pa.chunked_array([array]),
            pa.chunked_array([array, whole]),
            pa.chunked_array([], array.type),
        ):
            found = numpy_column(column)
            assert found.dtype == dtype
            assert np.array_equal(found, np.asarray(column), equal_nan=found.dtype.kind == "f")
            assert numpy_column(column, np.float64).dtype == np.float64
    for array in (some, some.slice(3, 17)):
        column = pa.chunked_array([array, whole])
        one = True if dtype == "bool" else 1
        filled = numpy_column(column, null=one)
        assert filled.dtype == dtype
        expected = np.asarray(column.fill_null(pa.scalar(one, array.type)))
        assert np.array_equal(filled, expected, equal_nan=dtype != "bool")
        if dtype != "bool":
            assert np.array_equal(numpy_column(array), array.to_numpy(zero_copy_only=False), equal_nan=True)
