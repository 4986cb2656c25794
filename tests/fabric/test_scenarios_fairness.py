"""Long flows through one bottleneck share it: Jain's index, for DCQCN and HPCC."""

import itertools

import numpy as np
import pytest

from nadi.pdes import SharedBuffer
from tests.fabric import scenarios as sc
from tests.fabric.cases import star
from tests.samples import each_value

LEAST = 0.99
STAGGER = 100 * sc.US
STARTS = pytest.mark.parametrize("stagger_ps", [0, STAGGER], ids=["together", "one-by-one"])


def received(control, flows, window, *, gbps=100, stagger_ps=0, size_bytes=65_536, **chosen):
    """Bytes of each of so many senders to one NPU that came within a window of time (ps, ps), and the link's rate.

    Each has messages for 1.6 times as long as its fair share needs.
    """
    share = gbps * 1e9 / 8e12 / flows
    count = int(1.6 * window[1] * share / size_bytes) + 1
    sent = sc.streams(np.arange(flows), flows, size_bytes, count, np.arange(flows) * stagger_ps)
    results, sim = sc.simulate(star(flows + 1, rate=gbps, delay=sc.US).graph(), sent, control=control, **chosen)
    sc.check_lossless(results, sim)
    return sc.shares(results.flows, *window), results, gbps * 1e9 / 8e12 * (window[1] - window[0])


@STARTS
@pytest.mark.parametrize("flows", [2, 8, 64])
def test_hpcc(flows, stagger_ps):
    """Packets of 1000 bytes as in the paper; W_AI is for 16 flows."""
    window = (20 * sc.MS, 40 * sc.MS)
    chosen = {"stagger_ps": stagger_ps, "mtu_bytes": 1000, "switch": SharedBuffer()}
    shares, results, most = received("hpcc", flows, window, **chosen)
    assert sc.jain(shares) >= LEAST
    assert 0.94 <= shares.sum() * 1.082 / most <= 1.0
    assert results.counters["pause_frames"] == 0


LINKS = {
    # flows, rate of the link, when bytes are counted, parameters
    "2": (2, 100, (60, 100), {}),
    "8": (8, 100, (60, 100), {}),
    "64": (64, 400, (60, 100), {}),
    "64-long": (64, 100, (200, 400), {}),
    "64-long-least": (64, 100, (150, 250), {"min_rate_bps": 1e8}),
}


@pytest.mark.parametrize(("link", "stagger_ps"), each_value(itertools.product(LINKS, (0, STAGGER))))
def test_dcqcn(link, stagger_ps):
    """The default parameters, or SimAI's least rate.

    A flow's rate goes up in small steps and down in large ones, so bytes come evenly only over long times; at 100 Gb/s
    64 flows that begin one by one also need more than 100 ms to come to their shares.
    """
    flows, gbps, window_ms, values = LINKS[link]
    window = tuple(time * sc.MS for time in window_ms)
    chosen = {"cnp_interval_ps": 4 * sc.US, "window_bytes": 2_000_000, "switch": SharedBuffer(buffer_bytes=256 * 10**6)}
    chosen |= {"values": values, "record_nodes": False}
    shares, results, most = received("dcqcn", flows, window, gbps=gbps, stagger_ps=stagger_ps, **chosen)
    assert sc.jain(shares) >= LEAST
    assert shares.sum() * 1.02 / most >= 0.93
    assert results.counters["marked_packets"] > 1000
    assert results.counters["pause_frames"] == 0


def test_jains_index():
    assert sc.jain([3, 3, 3]) == pytest.approx(1)
    assert sc.jain([1, 0, 0, 0]) == pytest.approx(1 / 4)
    assert sc.jain([1, 3]) == pytest.approx(16 / 20)
