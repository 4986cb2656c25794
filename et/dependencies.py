"""Conversion of parents, which nodes name by id, to rows: the CSR arrays of a table."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nadi.et.errors import StrictTraceError, TraceError
from nadi.inputs.arrays import Int32, Int64, Mask, UInt64

Path = str | os.PathLike[str]


class Parents(NamedTuple):
    """The parents that n nodes name, data or control, as ids."""

    ids: UInt64  # uint64[m], the parents of all nodes, node by node
    counts: Int64  # int64[n], number of parents of each node


def resolve(path: Path, ids: UInt64, parents: Sequence[Parents], *, strict: bool) -> tuple[Int64, Int32, int]:
    """Return parents given by id as CSR rows: dep_ptr int64[n+1], dep int32[], and the number of parents dropped.

    Rows are sorted and without repeats.

    Args:
        path: The path of the file, for errors.
        ids: The ids of the n nodes of the file, uint64[n].
        parents: The parents that the nodes name, data and control.
        strict: Whether a parent that the file lacks is an error; else it is dropped.
    """
    named = [kind for kind in parents if len(kind.ids)] or list(parents[:1])
    parent_ids = np.concatenate([kind.ids for kind in named])
    row = np.concatenate([np.repeat(np.arange(len(ids)), kind.counts) for kind in named])
    place, is_there = _rows_of(path, ids, parent_ids)
    dangling = len(parent_ids) - int(np.count_nonzero(is_there))
    if dangling and strict:
        first = int(np.argmin(is_there))
        raise StrictTraceError(
            f"{path}: node {ids[row[first]]}: depends on node {parent_ids[first]}, which the file lacks "
            f"({dangling:,} such dependencies), expected an id of the file",
            "drops such dependencies",
        )
    if dangling:
        row, place = row[is_there], place[is_there]
    return *compress(len(ids), row, place), dangling


def _rows_of(path: Path, ids: UInt64, parent_ids: UInt64) -> tuple[Int64, Mask]:
    """Return int64[m], the row of each parent, and bool[m], whether the file has that parent."""
    first_id = ids[0] if len(ids) else np.uint64(0)
    if np.array_equal(ids, np.arange(len(ids), dtype=np.uint64) + first_id):  # as most files number their nodes
        place = parent_ids - first_id  # wraps around for ids below first_id
        return place.view(np.int64), place < len(ids)
    by_id = np.argsort(ids, kind="stable")
    sorted_ids = ids[by_id]
    is_repeat = sorted_ids[1:] == sorted_ids[:-1]
    if np.any(is_repeat):
        raise TraceError(f"{path}: node {sorted_ids[1:][is_repeat][0]}: the id occurs twice, expected each id once")
    # Ids in any order: look each parent up among the sorted ids
    place = np.searchsorted(sorted_ids, parent_ids)
    is_there = place < len(ids)
    is_there[is_there] = sorted_ids[place[is_there]] == parent_ids[is_there]
    return by_id[np.where(is_there, place, 0)] if len(ids) else place, is_there


def compress(num_rows: int, row: Int64, parent: Int64) -> tuple[Int64, Int32]:
    """Return pairs of row and parent, sorted and each once, as CSR arrays: int64[num_rows+1] and int32[pairs].

    Args:
        num_rows: The number of rows.
        row: The row of each pair, int64[].
        parent: The parent's row of each pair, int64[].
    """
    # One number per pair: sorting and removing repeats are one sort each
    pairs = row * max(num_rows, 1) + parent
    if not np.all(pairs[1:] > pairs[:-1]):
        pairs = np.sort(pairs, kind="stable")  # stable: fast where most are in order already
        # A node may name a parent twice, as data and as control dependency
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        row, parent = np.divmod(pairs, max(num_rows, 1))
    dep_ptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=num_rows), out=dep_ptr[1:])
    return dep_ptr, parent.astype(np.int32)
