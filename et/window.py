"""A moving window of a file's bytes, so that a kernel can decode a large file with little of it in memory."""

import os

import numpy as np

from et.framing import fills_of

SLACK_BYTES = 64  # zero bytes after the end of the data, because kernels read whole words


class Window:
    """Bytes of a file, inflated if it is gzipped.

    Attributes:
        data: uint8[room + SLACK_BYTES], buffer of the window.
        begin: Offset in `data` of the first byte that is still needed.
        end: Offset in `data` after the last byte that has been read.
        taken: Number of bytes of the file that have been read so far.
    """

    def __init__(self, path: str | os.PathLike[str], first_bytes: int, step_bytes: int) -> None:
        """Make an empty window.

        Args:
            path: Path of the file.
            first_bytes: Number of bytes that the first read takes.
            step_bytes: Number of bytes that each later read takes.
        """
        self.data = np.empty(max(first_bytes, 2 * step_bytes) + SLACK_BYTES, np.uint8)
        self.begin = self.end = self.taken = 0
        self._fills = fills_of(path, self._room)
        self._more, self._step_bytes = first_bytes, step_bytes

    def read_on(self) -> bool:
        """Read the bytes after the window; return whether there were any."""
        read = next(self._fills, 0)
        self.end += read
        self.taken += read
        self._more = self._step_bytes
        self.data[self.end : self.end + SLACK_BYTES] = 0
        return read > 0

    def _room(self) -> memoryview:
        """Return the buffer for the next bytes, after those that are still needed."""
        needed = self.data[self.begin : self.end].copy()
        self.begin, self.end = 0, len(needed)
        if self.end + self._more + SLACK_BYTES > len(self.data):
            self.data = np.empty(2 * (self.end + self._more) + SLACK_BYTES, np.uint8)
        self.data[: self.end] = needed
        return self.data[self.end : self.end + self._more].data
