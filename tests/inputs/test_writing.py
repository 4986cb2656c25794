"""Files appear when they are complete; files of arrays and tables of Arrow hold what was written."""

import errno
import gc
import io
import os
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays as arrays_of

from nadi.inputs import arrays, whole_file, write_whole
from nadi.inputs.arrays import (
    TYPES,
    DamagedFileError,
    arrow_numbers,
    arrow_texts,
    arrow_words,
    numpy_column,
    read_arrays,
    write_arrays,
)
from tests.budgets import bounded


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("before")
    with whole_file(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.html"]


def test_nothing_stays_of_what_is_not_finished(tmp_path):
    path = tmp_path / "a.html"
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"half", "no bytes"])
    assert [*tmp_path.iterdir()] == []


def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(tmp_path, monkeypatch):
    """Neither is one whose random name somebody has guessed."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0123")
    for name in (".a.html.part", ".a.html.0123.part"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(FileExistsError) as caught:
        write_whole(tmp_path / "a.html", "page")
    assert caught.value.filename == str(tmp_path / "a.html")
    (tmp_path / ".a.html.0123.part").unlink()
    write_whole(tmp_path / "a.html", "page")
    assert (tmp_path / "a.html").read_text() == "page"
    assert precious.read_text() == "precious"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a.html").symlink_to("precious")
    write_whole(tmp_path / "a.html", "page")
    assert not (tmp_path / "a.html").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_new_file_has_the_usual_mode(tmp_path):
    old = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("no/a", errno.ENOENT, "No such file or directory"),
        ("folder", errno.EISDIR, "a folder"),
        ("fifo", errno.EINVAL, "a FIFO"),
        ("x" * 300, errno.ENAMETOOLONG, "File name too long"),
    ],
)
def test_what_cannot_be_written_names_the_file(tmp_path, name, number, said):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match=said) as caught:
        write_whole(tmp_path / name, "x")
    assert caught.value.errno == number
    assert caught.value.filename == str(tmp_path / name)


ARRAYS = st.dictionaries(
    st.text(max_size=5), st.sampled_from(TYPES).flatmap(lambda kind: arrays_of(kind, st.integers(0, 40))), max_size=4
)


@bounded(30)
@given(ARRAYS)
def test_any_arrays(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("any") / "file"
    write_arrays(path, {"a": [1, None]}, written)
    values, found = read_arrays(path)
    assert values == {"a": [1, None]}
    assert found.keys() == written.keys()
    assert all(found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes()
               for name, array in written.items())  # fmt: skip


def test_what_repeats_takes_little_room(tmp_path):
    long = np.zeros(1_000_000, np.int64)
    long[100_000] = 7
    size = write_arrays(tmp_path / "file", {}, {"long": long, "empty": long[:0], "zeros": long[200_000:]})
    assert size == (tmp_path / "file").stat().st_size
    assert size < long.nbytes / 30
    _, found = read_arrays(tmp_path / "file")
    assert np.array_equal(found["long"], long)
    assert len(found["zeros"]) == 800_000


@bounded(30)
@given(st.integers(1, 9), st.integers(0, 50), st.integers(1, 40), st.integers(1, 3))
def test_rows(tmp_path_factory, width, rows, block_words, values):
    random = np.random.default_rng(rows)
    table = np.where(random.random((rows, width)) < 0.3, random.integers(-values, values, (rows, width)), 5)
    path = tmp_path_factory.mktemp("rows") / "file"
    with mock.patch.object(arrays, "BLOCK_WORDS", block_words):
        size = write_arrays(path, {}, {"table": table, "reversed": table[::-1]})
        found = read_arrays(path)[1]
    assert size == path.stat().st_size
    assert np.array_equal(found["table"].reshape(rows, width), table)
    assert np.array_equal(found["reversed"].reshape(rows, width), table[::-1])


def test_equal_rows_are_stored_once(tmp_path):
    table = np.tile(np.arange(32), (100_000, 1))
    assert write_arrays(tmp_path / "file", {}, {"table": table}) < table.nbytes / 60


def test_every_changed_byte_and_every_length_is_refused(tmp_path):
    path = tmp_path / "file"
    write_arrays(path, {"n": 1}, {"a": np.arange(5)})
    content = path.read_bytes()
    for at in range(len(content)):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(DamagedFileError):
                read_arrays(path)


def test_a_file_that_exists_is_not_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        write_arrays(tmp_path / "file", {}, {})


DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64")
TEXTS = ["", "a", None, "é→", "a" * 100]


def values_of(dtype, count):
    values = np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)
    if values.dtype.kind == "f" and count:
        values[-1] = np.nan
    return values


def file_of(array):
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
