"""How long queues are, as packets of a prober find them: HPCC keeps them near zero, DCQCN above Kmin."""

import numpy as np
import pytest

from nadi.pdes import SharedBuffer
from tests.fabric import scenarios as sc
from tests.fabric.cases import star

PS_PER_BYTE = 80
DCQCN_PAPER = {
    "alpha_update_interval_ps": 55e6,
    "rate_decrease_interval_ps": 0,
    "rp_timer_ps": 55e6,
    "byte_counter_bytes": 10e6,
    "fast_recovery_times": 5,
    "clamp_target_rate": 1,
    "fixed_rate_ai_bps": 100e6,
    "fixed_rate_hai_bps": 1e9,
}
"""Section 5 of the paper, with the increases of 40 Gb/s scaled to 100 Gb/s."""


def queue(control, senders, size_bytes, end_ps, *, values=None, **chosen):
    """The queue towards one NPU at 100 Gb/s while others send it one long message each.

    Returns when probes came and how many bytes each found, and the results.
    """
    graph = star(senders + 2, delay=sc.US).graph()
    prober = senders + 1
    sent = sc.together(sc.incast(senders, size_bytes), sc.probes(prober, senders, 0, end_ps, 10 * sc.US))
    results, sim = sc.simulate(graph, sent, control=control, values=values, **chosen)
    sc.check_lossless(results, sim)
    at, waited = sc.waits(results.flows, prober)
    return at, waited / PS_PER_BYTE, results


def test_the_prober_finds_the_queue():
    """Without control 16 windows of 100 packets stand in the port as soon as they have come in."""
    chosen = {"window_bytes": 100 * 4096, "switch": SharedBuffer(pfc_alpha=1.0)}
    at, found, results = queue("none", 16, 4_000_000, sc.MS, **chosen)
    standing = found[at > 600 * sc.US]
    in_flight = 100 * 16 * 4178
    assert standing.max() <= results.links["buffered_bytes"].max()
    assert np.all(np.abs(standing - in_flight) < 0.02 * in_flight)


def test_hpcc_keeps_the_queue_of_an_incast_near_zero():
    """16:1 at 100 Gb/s, T = 4.2 us: 16 windows of about 50 packets meet at first; then next to none."""
    at, found, results = queue("hpcc", 16, 2_000_000, 2 * sc.MS, mtu_bytes=1000, switch=SharedBuffer())
    w_init = 4_186_880 / PS_PER_BYTE
    first = found[at < 100 * sc.US]
    later = found[(at >= 200 * sc.US) & (at < 2 * sc.MS)]
    assert first.max() <= results.links["buffered_bytes"].max() <= 16 * (w_init + 1082) + 1082
    assert w_init / 1082 == pytest.approx(50, rel=0.05)
    assert np.median(later) < 0.06 * w_init
    assert later.max() < 0.25 * w_init
    assert results.counters["pause_frames"] == 0


def test_dcqcn_holds_the_queue_between_kmin_and_the_pause_threshold():
    """With the paper's parameters throughout: K 5 to 200 kB at 40 Gb/s, Pmax 1 %, notifications every 50 us."""
    marking = SharedBuffer(
        buffer_bytes=64 * 10**6, pfc_alpha=1.0, ecn_kmin_bytes=3125, ecn_kmax_bytes=125_000, ecn_pmax=0.01
    )
    chosen = {"cnp_interval_ps": 50 * sc.US, "window_bytes": 8 * 10**6, "switch": marking}
    at, found, results = queue("dcqcn", 16, 31_250_000, 40 * sc.MS, values=DCQCN_PAPER, **chosen)
    steady = found[(at > 10 * sc.MS) & (at < 38 * sc.MS)]
    assert len(steady) > 2000
    assert steady.min() > 12_500
    assert steady.max() < 600_000
    assert results.counters["pause_frames"] == 0
    assert results.counters["marked_packets"] > 1000
    assert results.counters["congestion_notifications"] > 1000
