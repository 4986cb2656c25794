"""Distributions of the times and sizes of messages that are sent at random.

`poisson` has exponential gaps. `lognormal:sigma=2` has gaps of a lognormal distribution with the same mean: many short
ones, which are a burst, and a few long ones. The standard deviation of the gaps is sqrt(exp(sigma^2) - 1) times their
mean, 1.3 for sigma 1 and 7.3 for sigma 2, the burstiness of Backpressure Flow Control (Goyal et al., NSDI 2022) and of
Parsimon (Zhao et al., NSDI 2023); a Poisson process has 1.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs import read_text, refusing
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import MAX_BYTES
from nadi.inputs.units import parse_bytes_within, short
from nadi.workload.errors import WorkloadError

MAX_SIGMA = 3.0  # The gaps' standard deviation is then 90 times their mean, and half of them are below 1 % of it
EXPECTED = f'"poisson", or "lognormal:sigma=2" with a sigma up to {MAX_SIGMA:g}'
_LOGNORMAL = re.compile(r"lognormal:sigma=([0-9]{1,2}(?:\.[0-9]{1,9})?+)")
_FIRST_BLOCK = 64  # gaps that are drawn beyond the expected number


class Arrivals(NamedTuple):
    """An arrival process: the distribution of the gaps between the messages of an NPU."""

    sigma: float = 0.0  # shape of the lognormal distribution of gaps; 0 = exponential gaps, a Poisson process

    def times(self, until: float, mean_gap: float, stream: np.random.Generator) -> NDArray[np.float64]:
        """Return the random times of a process that began long before 0, in the unit of the mean gap.

        Args:
            until: The end of the period; all times are smaller.
            mean_gap: The mean time between messages.
            stream: The generator of random numbers.
        """
        block = int(until / mean_gap * 1.1) + _FIRST_BLOCK
        gaps = self._gaps(block, stream)
        if self.sigma:  # gaps of a Poisson process have no memory
            gaps[0] = self._rest_of_first(stream)
        at = np.cumsum(gaps) * mean_gap
        while at[-1] < until:
            at = np.concatenate((at, at[-1] + np.cumsum(self._gaps(block, stream)) * mean_gap))
        return at[at < until]

    def _gaps(self, count: int, stream: np.random.Generator) -> NDArray[np.float64]:
        """Return random gaps whose mean is 1."""
        if not self.sigma:
            return -np.log1p(-stream.random(count))
        return np.exp(self.sigma * stream.standard_normal(count) - self.sigma**2 / 2)

    def _rest_of_first(self, stream: np.random.Generator) -> float:
        """Return what is left at time 0 of the gap that began before, where the mean of gaps is 1."""
        # Time 0 lies in a gap with a probability proportional to the gap's length, and anywhere in it. Such a gap is
        # exp(sigma^2) times as long as a usual one (a lognormal distribution, too). If a gap began at time 0, short
        # runs would have far more messages than their load.
        longer = math.exp(self.sigma * stream.standard_normal() + self.sigma**2 / 2)
        return float(stream.random() * longer)


def arrivals(text: str) -> Arrivals:
    """Return the arrival process of a text. Raises WorkloadError: it is invalid.

    Args:
        text: "poisson", or "lognormal:sigma=NUMBER".
    """
    if text == "poisson":
        return Arrivals()
    found = _LOGNORMAL.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= MAX_SIGMA:
        raise WorkloadError(f"arrivals {short(text)}: expected {EXPECTED}")
    return Arrivals(float(found[1]))


# Distributions of message sizes: one size, a range, measurements in data centres, or a file of the user.
#
# | text | sizes |
# | --- | --- |
# | 1MiB | one size for all messages |
# | uniform:64KiB-1MiB | uniformly distributed between the two |
# | web-search | a web search cluster: Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, figure 4 |
# | hadoop | Facebook's Hadoop cluster: Roy et al., "Inside the social network's (datacenter) network", SIGCOMM 2015 |
# | storage | Alibaba's distributed storage in 2019, published with HPCC |
# | data-mining | a data-mining cluster: Greenberg et al., "VL2", SIGCOMM 2009, as in pFabric, SIGCOMM 2013 |
# | a file | points of the cumulative distribution: a line `BYTES PERCENT` each, ascending to 100 |
#
# Web search, hadoop and storage are the distributions of HPCC (Li et al., SIGCOMM 2019, traffic_gen of
# alibaba-edu/High-Precision-Congestion-Control), with which papers compare congestion control since; data mining is
# given in packets of 1,460 bytes. All are linearly interpolated.


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
        # Between two points sizes are uniform, with the mean of both ends
        return float(np.diff(self.share) @ (self.bytes[:-1] + self.bytes[1:]) / 2)

    def at(self, shares: NDArray[np.float64]) -> Int64:
        """Return int64[]: quantiles of the distribution in bytes, at least 1.

        Args:
            shares: The shares of messages that are not larger than the quantiles, from 0 to 1.
        """
        return np.maximum(np.rint(np.interp(shares, self.share, self.bytes)), 1).astype(np.int64)


def message_sizes(text: str) -> Sizes:
    """Return the distribution of a text. Raises WorkloadError: it is invalid.

    Args:
        text: A size, a range, the name of a measured distribution, or the path of a file, as in the table above.
    """
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
