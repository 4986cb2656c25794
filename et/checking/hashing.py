"""Hashes of rows of numbers; sums of hashes compare sets of rows without storing them."""

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]


def mixed(*columns: NDArray[np.integer]) -> UInt64:
    """Return uint64[n], a hash of each row, mixed as in splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return hashes
