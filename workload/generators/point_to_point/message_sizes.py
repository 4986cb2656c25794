"""Distributions of message sizes: one size, a range, measurements in data centres, or a file of the user.

| text | sizes |
| --- | --- |
| 1MiB | one size for all messages |
| uniform:64KiB-1MiB | uniformly distributed between the two |
| web-search | a web search cluster: Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, figure 4 |
| hadoop | a Hadoop cluster of Facebook: Roy et al., "Inside the social network's (datacenter) network", SIGCOMM 2015 |
| storage | Alibaba's distributed storage in 2019, published with HPCC |
| data-mining | a data-mining cluster: Greenberg et al., "VL2", SIGCOMM 2009, as in pFabric, SIGCOMM 2013 |
| a file | points of the cumulative distribution: a line `BYTES PERCENT` each, ascending to 100 |

Web search, hadoop and storage are the distributions of HPCC (Li et al., SIGCOMM 2019, traffic_gen of
alibaba-edu/High-Precision-Congestion-Control), with which papers compare congestion control since; data mining is given
in packets of 1,460 bytes. All are linearly interpolated.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et.arrays import Int64
from nadi.inputs import read_text, refusing
from nadi.inputs.limits import MAX_BYTES
from nadi.inputs.units import parse_bytes_within, short
from nadi.workload.errors import WorkloadError

_MEASURED = {
    "web-search": (
        *((0, 0), (10_000, 15), (20_000, 20), (30_000, 30), (50_000, 40), (80_000, 53), (200_000, 60)),
        *((1_000_000, 70), (2_000_000, 80), (5_000_000, 90), (10_000_000, 97), (30_000_000, 100)),
    ),
    "hadoop": (
        *((0, 0), (100, 1), (200, 2), (300, 5), (350, 15), (400, 20), (500, 30), (600, 40), (700, 50), (1000, 60)),
        *((2000, 67), (7000, 70), (30_000, 72), (50_000, 82), (80_000, 87), (120_000, 90), (300_000, 95)),
        *((1_000_000, 97.5), (2_000_000, 99), (10_000_000, 100)),
    ),
    "storage": (
        *((0, 0), (4000, 22.93), (8000, 69.21), (16_000, 80.61), (32_000, 90.47), (64_000, 93.53), (128_000, 96.77)),
        *((256_000, 97.53), (2_000_000, 100)),
    ),
    "data-mining": (
        *((1460, 0), (1460, 50), (2920, 60), (4380, 70), (10_220, 80), (389_820, 90), (3_076_220, 95)),
        *((97_333_820, 99), (973_333_820, 100)),
    ),
}
"""Points of cumulative distributions: bytes, and the percentage of messages that are not larger."""
_PERCENT = 100.0


class Sizes(NamedTuple):
    """A distribution of sizes, given by points of its cumulative distribution, linearly interpolated."""

    bytes: NDArray[np.float64]  # float64[n], sizes in bytes, ascending
    share: NDArray[np.float64]  # float64[n], shares of messages that are not larger, from 0 to 1

    @property
    def mean_bytes(self) -> float:
        """Expected size of a message in bytes."""
        return float(np.diff(self.share) @ (self.bytes[:-1] + self.bytes[1:]) / 2)

    def at(self, shares: NDArray[np.float64]) -> Int64:
        """Return int64[]: the quantiles for shares of messages, in bytes, at least 1."""
        return np.maximum(np.rint(np.interp(shares, self.share, self.bytes)), 1).astype(np.int64)


def message_sizes(text: str) -> Sizes:
    """Return the distribution of a text as in the table above."""
    if text in _MEASURED:
        size, percentage = np.array(_MEASURED[text], np.float64).T
        return Sizes(size, percentage / _PERCENT)
    if Path(text).is_file():
        return _of_file(text)
    name, colon, rest = text.partition(":")
    ends = rest.split("-") if name == "uniform" and colon else [text, text]
    try:
        smallest, largest = (parse_bytes_within(end, MAX_BYTES) for end in ends)
    except ValueError:
        expected = f"a size, uniform:64KiB-1MiB, one of {', '.join(_MEASURED)}, or a file"
        raise WorkloadError(f"sizes {short(text)}: expected {expected}") from None
    if not 1 <= smallest <= largest:
        raise WorkloadError(f"sizes {short(text)}: expected at least 1 byte, and the smaller size first")
    return Sizes(np.array([smallest, largest], np.float64), np.array([0.0, 1.0]))


def _of_file(path: str) -> Sizes:
    """Return the distribution of a file; WorkloadError names the line that is wrong."""
    points: list[tuple[float, float]] = []
    with refusing(path, "lines of bytes and percentage", WorkloadError):
        text = read_text(path)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            size, percentage = map(float, line.split())
        except ValueError:
            size = percentage = math.nan
        before_size, before = points[-1] if points else (0.0, 0.0)
        if not (before_size <= size <= MAX_BYTES and before <= percentage <= _PERCENT):
            raise WorkloadError(
                f"{path}: line {number}: found {short(line.strip())}; expected bytes up to 64 TiB and a percentage, "
                "none less than on the line before"
            )
        points.append((size, percentage))
    if not points or points[-1][1] < _PERCENT or points[-1][0] < 1:
        found = f"{points[-1][0]:g} bytes and {points[-1][1]:g} %" if points else "no line"
        raise WorkloadError(f"{path}: found {found} at its end; expected at least 1 byte, and 100 %")
    if points[0][1] > 0:
        points.insert(0, (points[0][0], 0.0))  # as many messages have the first size
    size_bytes, percentages = np.array(points, np.float64).T
    return Sizes(size_bytes, percentages / _PERCENT)
