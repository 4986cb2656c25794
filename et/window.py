"""A file as a kernel sees it: a window of its bytes that moves on, so that little of a large file is in memory."""

import os

import numpy as np

from et.framing import fills_of

SLACK_BYTES = 64
"""Behind the bytes of the file: kernels read whole words."""


class Window:
    """Bytes of a file, inflated if it is gzipped.

    Attributes:
        data: uint8[room + SLACK_BYTES].
        begin: where in it the first byte stands that is still wanted.
        end: where the bytes end that have been read.
        taken: how many bytes of the file have been read so far.
    """

    def __init__(self, path: str | os.PathLike[str], first_bytes: int, step_bytes: int) -> None:
        """A window that is empty.

        Args:
            path: the file.
            first_bytes: how many are read at first.
            step_bytes: how many are read each time after that.
        """
        self.data = np.empty(max(first_bytes, 2 * step_bytes) + SLACK_BYTES, np.uint8)
        self.begin = self.end = self.taken = 0
        self._fills = fills_of(path, self._room)
        self._more, self._step_bytes = first_bytes, step_bytes

    def read_on(self) -> bool:
        """Read what stands behind the window, too; gives whether there was something.

        Raises:
            TraceError: it cannot be read, or is corrupt gzip data.
        """
        read = next(self._fills, 0)
        self.end += read
        self.taken += read
        self._more = self._step_bytes
        self.data[self.end : self.end + SLACK_BYTES] = 0
        return read > 0

    def _room(self) -> memoryview:
        """Where the next bytes go, behind those that are still wanted."""
        wanted = self.data[self.begin : self.end].copy()
        self.begin, self.end = 0, len(wanted)
        if self.end + self._more + SLACK_BYTES > len(self.data):
            self.data = np.empty(2 * (self.end + self._more) + SLACK_BYTES, np.uint8)
        self.data[: self.end] = wanted
        return self.data[self.end : self.end + self._more].data
