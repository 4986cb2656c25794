"""A pool of send and receive buffers, reused so that no operation waits for the first touch of new pages."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Buffers:
    """A pool of byte arrays by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def take(self, size: int) -> Bytes:
        """Return an array that no other operation uses."""
        free = self._free.get(size)
        if free:
            return free.pop()
        array = np.empty(size, np.uint8)
        array[:] = 0  # touches every page, so that the operating system maps it now
        return array

    def give(self, *arrays: Bytes) -> None:
        """Return arrays to the pool."""
        for array in arrays:
            self._free.setdefault(len(array), []).append(array)
