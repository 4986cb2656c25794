"""Poisson arrivals of equal packets at one link (M/D/1): each wait, and their mean.

Sources send over links a thousand times faster than the one where all meet, so there is no wait elsewhere. With load r
and time of a packet P the mean wait is r P / (2 (1 - r)) (Pollaczek and Khinchine).
"""

import numpy as np
import pytest

from tests.fabric import scenarios as sc
from tests.fabric.cases import Network

SOURCES = 16
PACKET = (sc.MTU + sc.HEADER) * 800
FAST = 3342  # (4096 + 82) bytes at 10 Tb/s
DELAY = sc.US


def network():
    fast = tuple((i, SOURCES + 1, 10_000, DELAY) for i in range(SOURCES))
    return Network(SOURCES + 1, (0,), (*fast, (SOURCES, SOURCES + 1, 10, DELAY))).graph()


def arrivals(load, packets, seed=1):
    """Each source is a Poisson process of its own; they end together."""
    gap = np.random.default_rng(seed).exponential(SOURCES * PACKET / load, (SOURCES, packets // SOURCES))
    start = np.cumsum(gap, axis=1).astype(np.int64) + 1
    source = np.broadcast_to(np.arange(SOURCES)[:, None], start.shape)
    among = start <= start[:, -1].min()
    return sc.messages(source[among], SOURCES, sc.MTU, start[among])


def measured(sent):
    """Gaps between arrivals, and how long each packet waited (ps), in the order in which they came."""
    results, _ = sc.simulate(network(), sent, window_bytes=100_000 * sc.MTU)
    begin = results.flows["start_ps"]
    wait = results.flows["finish_ps"] - begin - (FAST + PACKET + 2 * DELAY)
    order = np.argsort(begin, kind="stable")
    return np.diff(begin[order]), wait[order]


def lindley(gap):
    """Wait of each packet: W' = max(0, W + P - gap), from 0 on."""
    walk = np.concatenate([[0], np.cumsum(PACKET - gap)])
    return walk - np.minimum.accumulate(walk)


def mean_and_error(values, batches=50):
    """Mean, and its standard error from the means of batches."""
    means = [batch.mean() for batch in np.array_split(values, batches)]
    return np.mean(means), np.std(means, ddof=1) / np.sqrt(batches)


@pytest.mark.parametrize(
    ("load", "packets"), [(0.5, 800_000), (0.8, 800_000), pytest.param(0.95, 2_000_000, marks=pytest.mark.full)]
)
def test_mean_wait(load, packets):
    """Each wait is that of the recursion, to the picosecond; the mean is that of the formula within 1 %.

    At high load waits are alike for so long that the plain mean of a million has a standard error of some per cent; it
    must lie within three of these. So what happened to the gaps by chance is taken out (a control variate): with
    X = P - gap, W (X - E X) has the mean 0, since a gap knows nothing of the wait before it, and it moves with the mean
    wait: the sum of W'^2 = (W + X)^2 - I^2, where I is how long the link is idle, says that
    -2 E[X] mean W = 2 mean W (X - E X) + mean X^2 - mean I^2. What is left has an error of three parts in a thousand.
    """
    gap, wait = measured(arrivals(load, packets))
    same = np.array_equal(wait, lindley(gap))
    assert same
    expected = load * PACKET / (2 * (1 - load))
    raw, error = mean_and_error(wait)
    assert abs(raw - expected) < 3 * error
    drift = PACKET - PACKET / load
    by_chance = wait[:-1] * (PACKET - gap - drift) / -drift
    mean, error = mean_and_error(wait[:-1] - by_chance)
    assert 2.5 * error < 0.01 * expected
    assert mean == pytest.approx(expected, rel=0.01)
