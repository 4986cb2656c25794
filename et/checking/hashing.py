"""Hashes of rows of numbers, of which sums over many rows can be compared without keeping the rows."""

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]


def mixed(*columns: NDArray[np.integer]) -> UInt64:
    """uint64[n]: a hash of each row; the mixing is that of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found
