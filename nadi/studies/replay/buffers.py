"""Memory for what is sent and received, used again and again so that no operation waits for new pages."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Buffers:
    """Arrays of bytes by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def take(self, size: int) -> Bytes:
        """An array that nobody else has."""
        free = self._free.get(size)
        if free:
            return free.pop()
        made = np.empty(size, np.uint8)
        made[:] = 0  # so that its pages are there
        return made

    def give(self, *arrays: Bytes) -> None:
        """Let others have them."""
        for array in arrays:
            self._free.setdefault(len(array), []).append(array)
