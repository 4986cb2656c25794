"""Times at which an NPU sends random messages: a Poisson process, or one with bursts.

`poisson` has exponential gaps. `lognormal:sigma=2` has gaps of a lognormal distribution with the same mean: many short
ones, which are a burst, and a few long ones. The standard deviation of the gaps is sqrt(exp(sigma^2) - 1) times their
mean, 1.3 for sigma 1 and 7.3 for sigma 2, the burstiness of Backpressure Flow Control (Goyal et al., NSDI 2022) and of
Parsimon (Zhao et al., NSDI 2023); a Poisson process has 1.
"""

import math
import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.units import short
from nadi.workload.errors import WorkloadError

MAX_SIGMA = 3.0  # The gaps' standard deviation is then 90 times their mean, and half of them are below 1 % of it
EXPECTED = f'"poisson", or "lognormal:sigma=2" with a sigma up to {MAX_SIGMA:g}'
_LOGNORMAL = re.compile(r"lognormal:sigma=([0-9]{1,2}(?:\.[0-9]{1,9})?+)")
_FIRST_BLOCK = 64  # gaps that are drawn beyond the expected number


class Arrivals(NamedTuple):
    """An arrival process: the distribution of the gaps between the messages of an NPU."""

    sigma: float = 0.0  # shape of the lognormal distribution of gaps; 0 = exponential gaps, a Poisson process

    def times(self, until: float, mean_gap: float, stream: np.random.Generator) -> NDArray[np.float64]:
        """Return the random times below `until` of a process that began long before 0, in the unit of the mean gap."""
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
    """Return the arrival process of a text; raise WorkloadError for another text."""
    if text == "poisson":
        return Arrivals()
    found = _LOGNORMAL.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= MAX_SIGMA:
        raise WorkloadError(f"arrivals {short(text)}: expected {EXPECTED}")
    return Arrivals(float(found[1]))
