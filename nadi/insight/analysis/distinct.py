"""Distinct rows of a table of numbers, in the order of their first appearance."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64


def distinct_rows(columns: Sequence[NDArray[np.integer]]) -> tuple[Int64, Int64]:
    """Return the first row of each distinct row, and int64[n], the number of each row among the distinct ones.

    columns: Arrays of n numbers each.
    """
    order = np.lexsort(columns)  # a stable sort, so that the first row of each kind comes first
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first = order[is_new]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    number = np.empty(len(order), np.int64)
    number[order] = rank[np.cumsum(is_new) - 1]
    return np.sort(first), number
