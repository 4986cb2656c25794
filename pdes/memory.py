"""Arrays that begin on a cache line, so that a row of eight words is one line and not two; and memory in use."""

import re
import resource
import sys
from pathlib import Path

import numpy as np

CACHE_LINE = 64


def zeros(length, dtype=np.int64):
    """A zeroed array of `length` items (at least one) whose first byte is on a cache line."""
    size = max(1, int(length)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    skip = -raw.ctypes.data % CACHE_LINE
    return raw[skip : skip + size].view(dtype)


def full(length, value, dtype=np.int64):
    """The same with every item set to `value`."""
    array = zeros(length, dtype)
    array[:] = value
    return array


def aligned(values, dtype=None):
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
