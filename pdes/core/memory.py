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

from pdes.core.inputs import Record, Rows
from pdes.core.rows.row import Row

CACHE_LINE = 64
HUGE_PAGE = 2 << 20
AREA = 16 * HUGE_PAGE
"""Arrays of a quarter of this or more have an area of their own, which goes when they do."""


def _area(size: int) -> NDArray[np.uint8]:
    """That many zeroed bytes."""
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.ctypes.data % HUGE_PAGE
    return raw[skip : skip + size]


_left = [np.zeros(0, np.uint8)]
"""What is left of the area that small arrays are taken from, one behind the other."""


def zeros(length: int, dtype: DTypeLike = np.int64) -> Any:
    """A zeroed array of `length` items (at least one) whose first byte is on a cache line."""
    kind = np.dtype(dtype)
    size = max(1, int(length)) * kind.itemsize
    if size >= AREA // 4:
        array = _area(size).view(kind)
    else:
        if size > len(_left[0]):
            _left[0] = _area(AREA)
        array = _left[0][:size].view(kind)
        _left[0] = _left[0][-(-size // CACHE_LINE) * CACHE_LINE :]
    return array.view(np.recarray) if kind.names else array


def rows_of(kind: type[Row], length: int, **columns: ArrayLike) -> Rows:
    """An array of `length` rows (at least one) as their words begin; columns: words that begin otherwise."""
    rows = zeros(length, kind.dtype)
    for name, declared in kind.declared.items():
        if declared.begins:
            rows[name] = declared.begins
    for name, column in columns.items():
        rows[name][:length] = column
    return rows


def row_of(kind: type[Row], **words: ArrayLike) -> Record:
    """One row."""
    return rows_of(kind, 1, **words)[0]


def unused(record: Any) -> Any:
    """A NamedTuple (pdes/core/state.py) of arrays of one item each, which is enough where a run has no use for them."""

    def one(declared: Any) -> Any:
        kind = declared.__metadata__[0]
        items = rows_of(kind, 1) if issubclass(kind, Row) else zeros(1, kind)
        return items[0] if declared.__origin__ is np.record else items

    return record(**{name: one(declared) for name, declared in record.__annotations__.items()})


def full(length: int, value: int, dtype: type[np.generic] = np.int64) -> Any:
    """The same as `zeros` with every item set to `value`."""
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
