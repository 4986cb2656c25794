"""Arrays that begin on a cache line, so that a row of eight words is one line and not two; and memory in use.

They lie behind one another in large areas for which the system is asked for pages of 2 MiB: what a window touches is
spread over more small pages than a core remembers.
"""

import mmap
import re
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pdes.core.inputs import Record
from pdes.core.rows.row import Row, dtype_of

CACHE_LINE = 64
HUGE_PAGE = 2 << 20
AREA = 16 * HUGE_PAGE
"""Arrays of a quarter of this or more have an area of their own, which goes when they do."""


class _Area:
    """Memory that arrays are taken from, one behind the other."""

    def __init__(self, size: int) -> None:
        memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(memory, np.uint8)
        skip = -raw.ctypes.data % HUGE_PAGE
        self._free = raw[skip : skip + size]

    def holds(self, size: int) -> bool:
        """Whether there are as many bytes more."""
        return size <= len(self._free)

    def take(self, size: int) -> NDArray[np.uint8]:
        """The next `size` zeroed bytes on cache lines."""
        taken, self._free = self._free[:size], self._free[-(-size // CACHE_LINE) * CACHE_LINE :]
        return taken


_areas = [_Area(0)]


def zeros(length: int, dtype: type[Row] | type[np.generic] | np.dtype[Any] = np.int64) -> Any:
    """A zeroed array of `length` items (at least one) whose first byte is on a cache line; dtype: or a kind of row."""
    kind = dtype if isinstance(dtype, np.dtype) else dtype_of(dtype)
    size = max(1, int(length)) * kind.itemsize
    if size < AREA // 4 and not _areas[-1].holds(size):
        _areas[-1] = _Area(AREA)
    area = _areas[-1] if size < AREA // 4 else _Area(size)
    array = area.take(size).view(kind)
    return array.view(np.recarray) if kind.names else array


def row_of_zeros(kind: type[Row]) -> Record:
    """One zeroed row."""
    return zeros(1, kind)[0]


def full(length: int, value: int, dtype: type[np.generic] = np.int64) -> Any:
    """The same with every item set to `value`."""
    array = zeros(length, dtype)
    array[:] = value
    return array


def aligned(values: ArrayLike, dtype: DTypeLike | None = None) -> Any:
    """A copy of `values` on cache lines, flat."""
    values = np.asarray(values, dtype).reshape(-1)
    array = zeros(len(values), values.dtype)
    array[: len(values)] = values
    return array


def peak_rss_bytes() -> int:
    """The most memory that this process has had at once."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the process that started this one
        peak = re.search(r"VmHWM:\s*(\d+)", status.read_text())
        if peak:
            return int(peak[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # kilobytes, but bytes on macOS
