from typing import Annotated, NamedTuple

import numba
import numpy as np
import pytest

from nadi import pdes
from nadi.pdes import Settings
from nadi.pdes.core.jit import Directory, inline, kernel, reader
from nadi.topologies import build
from nadi.workload import collective_program


class Inner(NamedTuple):
    small: Annotated[np.ndarray, np.int8]
    flag: Annotated[np.ndarray, np.bool_]


class Outer(NamedTuple):
    first: Annotated[np.ndarray, np.int64]
    inner: Inner
    real: Annotated[np.ndarray, np.float64]
    int32: Annotated[np.ndarray, np.int32]


outer_at = reader(Outer)


@inline
def double(items, i):
    items[i] *= 2


@kernel
def change(address, i):
    """Read and write an item of each type, through functions and names."""
    w = outer_at(address)
    inner = w.inner
    double(w.first, i)
    double(w.int32, i)
    double(w.real, i)
    inner.small[i] += w.int32[i]
    inner.flag[i] = not inner.flag[i]
    w.first[0] = w.int32.shape[0]
    return w.real[i] + inner.small[i]


@kernel
def first(address, i):
    return outer_at(address).first[i]


def outer(items):
    return Outer(
        np.arange(items, dtype=np.int64),
        Inner(np.arange(items, dtype=np.int8), np.zeros(items, np.bool_)),
        np.arange(items) / 4,
        np.arange(items, dtype=np.int32) - 9,
    )


def test_kernels_read_and_write_all_types():
    record = outer(6)
    directory = Directory(record)
    assert change(directory.address, 5) == 2.5 + 5 - 8
    assert record.first.tolist() == [6, 1, 2, 3, 4, 10]
    assert record.inner.small.tolist() == [0, 1, 2, 3, 4, -3]
    assert record.inner.flag.tolist() == [False] * 5 + [True]
    assert record.real.tolist() == [0, 0.25, 0.5, 0.75, 1, 2.5]
    assert record.int32.tolist() == [-9, -8, -7, -6, -5, -8]


def test_the_next_call_sees_what_the_directory_says_by_then():
    directory = Directory(outer(3))
    assert first(directory.address, 2) == 2
    directory.update(outer(3)._replace(first=np.array([7, 8, 9])))
    assert first(directory.address, 2) == 9


def test_bounds_are_checked_where_numba_is_asked_to(monkeypatch):
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    checked = numba.njit(_nrt=False)(first.py_func)
    assert checked(Directory(outer(3)).address, 2) == 2
    with pytest.raises(IndexError, match="Items\\(int64\\)"):
        checked(Directory(outer(3)).address, 3)


def test_a_field_that_is_not_there_does_not_compile():
    @kernel
    def wrong(address):
        return outer_at(address).second[0]

    with pytest.raises(numba.core.errors.NumbaError, match="second"):
        wrong(Directory(outer(1)).address)


def test_a_directory_takes_arrays_of_the_declared_types_only():
    world = pdes.build_world(build("switch:npus=2"), collective_program("barrier", 2, 0), Settings()).lps[0].world
    directory = Directory(world)
    wrong = world._replace(net=world.net._replace(block_next=world.net.block_next.astype(np.int64)))
    with pytest.raises(TypeError, match=r"^block_next: found int64, expected a contiguous array of int32$"):
        directory.update(wrong)
    strided = world._replace(rows=world.rows._replace(start=np.zeros(8, np.int64)[::2]))
    with pytest.raises(TypeError, match=r"^start: found int64, expected a contiguous array of int64$"):
        directory.update(strided)
