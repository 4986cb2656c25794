"""A file as a kernel sees it: a window of its bytes that moves on, so that little of a large file is in memory."""

import os

import numpy as np

from et.framing import fills_of

SLACK_BYTES = 64
"""Behind the bytes of the file: kernels read whole words."""


class Window:
    """Bytes of a file, inflated if it is gzipped.

    Attributes:
        data: uint8[room + SLACK_BYTES], the bytes from the first that is still wanted on.
        size: how many those are.
        taken: how many bytes of the file have been read so far.
    """

    def __init__(self, path: str | os.PathLike[str], first_bytes: int, step_bytes: int) -> None:
        """A window that is empty.

        Args:
            path: the file.
            first_bytes: how many are read at first.
            step_bytes: how many are read each time after that.
        """
        self.data = np.zeros(max(first_bytes, step_bytes) + SLACK_BYTES, np.uint8)
        self.size = self.taken = 0
        self._step_bytes = step_bytes
        self._fills = fills_of(path, self._room)
        self._more = first_bytes

    def read_on(self) -> bool:
        """Read what stands behind the window, too; gives whether there was something.

        Raises:
            TraceError: it cannot be read, or is corrupt gzip data.
        """
        read = next(self._fills, 0)
        self.size += read
        self.taken += read
        self._more = self._step_bytes
        return read > 0

    def drop(self, size_bytes: int) -> None:
        """Have the window begin so many bytes later."""
        if size_bytes:
            self.data[: self.size - size_bytes] = self.data[size_bytes : self.size].copy()
            self.size -= size_bytes

    def _room(self) -> memoryview:
        """Where the next bytes go."""
        wanted = self.size + self._more + SLACK_BYTES
        if wanted > len(self.data):
            grown = np.zeros(2 * wanted, np.uint8)
            grown[: self.size] = self.data[: self.size]
            self.data = grown
        return self.data[self.size : self.size + self._more].data
