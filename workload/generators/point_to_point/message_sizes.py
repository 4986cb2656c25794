"""How large messages are: one size, a range, or what was measured in data centres.

| text | sizes |
| --- | --- |
| 1MiB | all the same |
| uniform:64KiB-1MiB | any between the two, as likely as each other |
| web-search | a web search cluster: Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, figure 4 |
| hadoop | a Hadoop cluster of Facebook: Roy et al., "Inside the social network's (datacenter) network", SIGCOMM 2015 |

The last two are the points that congestion control is compared by since HPCC (Li et al., SIGCOMM 2019, traffic_gen of
alibaba-edu/High-Precision-Congestion-Control), straight lines between.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies.bounds import MAX_BYTES
from topologies.units import parse_bytes_within, short
from workload.errors import WorkloadError

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
}
"""Bytes, and the percentage of messages that are not larger."""
_PERCENT = 100.0


class Sizes(NamedTuple):
    """A distribution, by points of its cumulative one with straight lines between.

    Attributes:
        bytes: float64[n], ascending.
        share: float64[n], of messages that are not larger: 0 first, 1 last.
    """

    bytes: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def mean_bytes(self) -> float:
        """Of a message in the long run."""
        return float(np.diff(self.share) @ (self.bytes[:-1] + self.bytes[1:]) / 2)

    def at(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """The sizes, 1 byte or more, which these shares of all messages do not exceed."""
        return np.maximum(np.rint(np.interp(shares, self.share, self.bytes)), 1).astype(np.int64)


def message_sizes(text: str) -> Sizes:
    """The distribution that a text means, see above.

    Raises:
        WorkloadError: another text, a size of 0 or beyond what a message can have, or a range that ends below its
            beginning.
    """
    if text in _MEASURED:
        size, percentage = np.array(_MEASURED[text], np.float64).T
        return Sizes(size, percentage / _PERCENT)
    name, colon, rest = text.partition(":")
    ends = rest.split("-") if name == "uniform" and colon else [text, text]
    try:
        least, most = (parse_bytes_within(end, MAX_BYTES) for end in ends)
    except ValueError:
        expected = f"a size, uniform:64KiB-1MiB, or one of {', '.join(_MEASURED)}"
        raise WorkloadError(f"sizes {short(text)}: expected {expected}") from None
    if not 1 <= least <= most:
        raise WorkloadError(f"sizes {short(text)}: expected at least 1 byte, and the smaller size first")
    return Sizes(np.array([least, most], np.float64), np.array([0.0, 1.0]))
