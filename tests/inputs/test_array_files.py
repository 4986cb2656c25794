"""Files of arrays hold what was written, or are refused."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nadi.inputs import array_files
from nadi.inputs.array_files import TYPES, DamagedFileError, read_arrays, write_arrays
from tests.budgets import bounded

ARRAYS = st.dictionaries(
    st.text(max_size=5), st.sampled_from(TYPES).flatmap(lambda kind: arrays(kind, st.integers(0, 40))), max_size=4
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
    with mock.patch.object(array_files, "BLOCK_WORDS", block_words):
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
