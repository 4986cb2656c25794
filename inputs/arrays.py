"""Types of NumPy arrays, by the type of their elements; pointers of compressed sparse rows; sums over equal keys."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
