"""Arrays that begin on a cache line, so that a row of eight words occupies one line, and the memory in use.

Arrays are packed into large areas of 2 MiB pages: with small pages, a window would touch more pages than the TLB of a
core holds. Guards separate the arrays (`pdes.core.guards`).
"""

import functools
import mmap
import re
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nadi.pdes.core.guards import between_guards
from nadi.pdes.core.inputs import Record, Rows
from nadi.pdes.core.rows.row import Row

CACHE_LINE = 64  # bytes of a cache line
HUGE_PAGE = 2 << 20  # bytes of a large page on x86-64 and AArch64 Linux
AREA = 16 * HUGE_PAGE  # bytes of an area for small arrays; from a quarter of it on, an array has an area of its own


def _area(size_bytes: int) -> NDArray[np.uint8]:
    """Return uint8[size_bytes], zeroed, that begin on a large page."""
    # one large page more than asked for, since mmap aligns to small pages; untouched pages take no memory
    memory = mmap.mmap(-1, size_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # a hint: where transparent large pages are off, small ones are used, and only speed differs
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.ctypes.data % HUGE_PAGE
    return raw[skip : skip + size_bytes]


_left = [np.zeros(0, np.uint8)]  # the unused rest of the area from which small arrays are taken, one after another
_taking = threading.Lock()  # lock around `_left`: pools of several threads may grow at the same time


def zeros(length: int, dtype: DTypeLike = np.int64) -> Any:
    """Return a zeroed array of `length` items (at least one) whose first byte is on a cache line.

    Args:
        length: Number of items; an array of 0 gets one.
        dtype: Type of the items.
    """
    kind = np.dtype(dtype)
    # a guard is as long as an item, in whole lines: a write to row -1 or row n then hits it, however long rows are
    size, guard = max(1, int(length)) * kind.itemsize, _whole_lines(kind.itemsize)
    room = _whole_lines(size) + 2 * guard
    # a large array has memory of its own, so that little of an area is left unused
    if room >= AREA // 4:
        memory = _area(room)
    else:
        with _taking:
            if room > len(_left[0]):
                _left[0] = _area(AREA)
            memory = _left[0][:room]
            _left[0] = _left[0][room:]
    array = between_guards(memory, size, guard).view(kind)
    return array.view(np.recarray) if kind.names else array


def _whole_lines(size_bytes: int) -> int:
    return -(-size_bytes // CACHE_LINE) * CACHE_LINE


def rows_of(kind: type[Row], length: int, **columns: ArrayLike) -> Rows:
    """Return an array of rows with initial words.

    Args:
        kind: Class of the rows.
        length: Number of rows; an array of 0 gets one.
        **columns: Initial values of words that differ from the declared ones, by name of the word.
    """
    rows = zeros(length, kind.dtype)
    for name, begins in _beginnings(kind):  # type: ignore[arg-type] # rows have no hash, their classes do
        rows[name] = begins
    for name, column in columns.items():
        rows[name][:length] = column
    return rows


@functools.cache
def _beginnings(kind: type[Row]) -> tuple[tuple[str, int], ...]:
    """Return names and initial values of the words of a row that do not begin as 0."""
    return tuple((name, declared.begins) for name, declared in kind.declared.items() if declared.begins)


def row_of(kind: type[Row], **words: ArrayLike) -> Record:
    """Return one row with initial words.

    Args:
        kind: Class of the row.
        **words: Initial values of words that differ from the declared ones, by name.
    """
    return rows_of(kind, 1, **words)[0]


def words_of(row: Record) -> NDArray[np.int64]:
    """Return the words of a row of `row_of` as int64[words], in the row's own memory."""
    # `row` is a scalar view of a one-row array: its base is that array
    words: NDArray[np.int64] = np.asarray(row.base).view(np.int64)
    return words


def unused(record: Any) -> Any:
    """Return a NamedTuple class (pdes/core/state.py) filled with one-item arrays, for a feature that is not used.

    Args:
        record: Class of the NamedTuple.
    """

    def single_item(declared: Any) -> Any:
        """Return a zeroed item or array of one, as a field of `kind` is annotated.

        Args:
            declared: Annotation of the field.
        """
        if not hasattr(declared, "__metadata__"):
            return unused(declared)  # a record within the record
        kind = declared.__metadata__[0]
        items = rows_of(kind, 1) if issubclass(kind, Row) else zeros(1, kind)
        return items[0] if declared.__origin__ is np.record else items

    return record(**{name: single_item(declared) for name, declared in record.__annotations__.items()})


@functools.cache
def never_used(record: Any) -> Any:
    """Return the `unused` record that all worlds of this process share: nobody writes to it.

    Args:
        record: Class of the NamedTuple.
    """
    return unused(record)


def full(length: int, value: int, dtype: type[np.generic] = np.int64) -> Any:
    """Return an array of `length` items (at least one) on a cache line, each set to `value`.

    Args:
        length: Number of items; an array of 0 gets one.
        value: Value of all items.
        dtype: Type of the items.
    """
    array = zeros(length, dtype)
    array[:] = value
    return array


def aligned(values: ArrayLike, dtype: DTypeLike | None = None) -> Any:
    """Return a flat copy of `values` that begins on a cache line, of type `dtype` (None: that of `values`)."""
    values = np.asarray(values, dtype).reshape(-1)
    array = zeros(len(values), values.dtype)
    array[: len(values)] = values
    return array


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the process that started this one
        match = re.search(r"VmHWM:\s*(\d+)", status.read_text())
        if match:
            return int(match[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes, but bytes on macOS
