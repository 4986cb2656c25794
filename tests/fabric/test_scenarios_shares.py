"""Shares of long flows: Jain's index through one bottleneck, max-min on random networks, queues as probers see them."""

import itertools
from itertools import pairwise

import numpy as np
import pytest

from nadi.pdes import SharedBuffer
from tests.fabric import scenarios as sc
from tests.fabric.cases import Network, star
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


MTU, WIRE, ACK = 1000, 1082, 86
GBPS = 1e9 / 8e12
LINE = 10
DELAY = 20 * sc.US
BEGIN, END = 100 * sc.MS, 200 * sc.MS
N = 16
PER_ROUND_TRIP = {"fast_react": 0.0}


class ParkingLot:
    """Switches in a row; each flow has a source, a destination and its own cables to some two of them."""

    def __init__(self, ends, between, last):
        self.flows, row = len(ends), len(between) + 1
        npus = 2 * self.flows
        self.src, self.dst = 2 * np.arange(self.flows), 2 * np.arange(self.flows) + 1
        cables = [(2 * i, npus + a, LINE, DELAY) for i, (a, _) in enumerate(ends)]
        cables += [(2 * i + 1, npus + b, last[i], DELAY) for i, (_, b) in enumerate(ends)]
        cables += [(npus + i, npus + i + 1, rate, DELAY) for i, rate in enumerate(between)]
        ways = [[2 * i, *range(npus + a, npus + b + 1), 2 * i + 1] for i, (a, b) in enumerate(ends)]
        hops = [set(pairwise(way)) for way in ways]
        links = [link for a, b, _, _ in cables for link in ((a, b), (b, a))]
        self.graph = Network(npus, (0,) * row, tuple(cables)).graph()
        self.crosses = np.array([[link in of_flow for of_flow in hops] for link in links])
        backwards = np.array([[link[::-1] in of_flow for of_flow in hops] for link in links])
        self.weight = self.crosses + backwards * ACK / WIRE
        self.capacity = np.repeat([rate * GBPS for _, _, rate, _ in cables], 2)

    @classmethod
    def drawn(cls, seed):
        rng = np.random.default_rng(seed)
        row, flows = int(rng.integers(2, 5)), int(rng.integers(3, 9))
        begin = rng.integers(0, row - 1, flows)
        ends = [(int(a), int(rng.integers(a + 1, row))) for a in begin]
        return cls(ends, rng.choice([4, 6, 8, 10], row - 1).tolist(), rng.choice([1, 2, 3, 10], flows).tolist())

    def sharers(self):
        """Flows of the narrowest link, each counted by the line rate over the link's: N W_AI is then W_init (1 - eta)
        on the narrowest link too."""
        return int(np.ceil((self.crosses.sum(axis=1) * LINE * GBPS / self.capacity).max()))

    def fair(self, eta, n=N):
        """Bytes on the wire per ps of each flow."""
        step = LINE * GBPS * (1 - eta) / n
        return sc.water_fill(self.weight, eta * self.capacity, self.crosses, step)

    def is_clear(self, eta, next_busy):
        """Whether no link is overloaded, and each flow's second busiest link is less so than that of its busiest."""
        use = self.weight @ self.fair(eta) / self.capacity
        busiest = np.sort(np.where(self.crosses, use[:, None], 0), axis=0)[-2:]
        return busiest.max() < 0.99 and np.all(busiest[0] < next_busy * busiest[1])

    def measured(self, eta, n=N, **values):
        count = (self.fair(eta, n) * MTU / WIRE * END * 2 / 16_000).astype(int) + 1
        sent = sc.streams(self.src, self.dst, 16_000, count)
        chosen = {"mtu_bytes": MTU, "switch": SharedBuffer(), "values": {"eta": eta, "flows": n} | values}
        results, sim = sc.simulate(self.graph, sent, control="hpcc", record_nodes=False, **chosen)
        sc.check_lossless(results, sim)
        assert results.counters["pause_frames"] == 0
        return sc.shares(results.flows, BEGIN, END, self.src) / (END - BEGIN) * WIRE / MTU


def clear(eta, count, next_busy):
    found = (seed for seed in range(1000) if ParkingLot.drawn(seed).is_clear(eta, next_busy))
    return [(eta, next(found)) for _ in range(count)]


@pytest.mark.parametrize(("eta", "seed"), [*clear(0.5, 8, 0.75), *clear(0.8, 4, 0.75), *clear(0.95, 5, 0.65)])
def test_shares_with_an_update_for_each_acknowledgement(eta, seed):
    """Where each flow has one link that is clearly the busiest.

    W_AI is in proportion to 1 - eta; at the default, 0.95, it is a tenth of that at 0.5, and chance weighs more.

    There a flow whose second link is two thirds as busy as its first got 4 % less than its share (seed 0); where it is
    less busy, 1 % at most.
    """
    network = ParkingLot.drawn(seed)
    assert network.measured(eta) == pytest.approx(network.fair(eta), rel=0.02)


@pytest.mark.parametrize("eta", [0.8, 0.9])
@pytest.mark.parametrize("seed", range(10))
def test_shares_with_an_update_for_each_round_trip(eta, seed):
    """Any network. Those of plain water-filling differ as links are filled to between eta and (1 + eta) / 2."""
    network = ParkingLot.drawn(seed)
    n = 2 * network.sharers()
    found = network.measured(eta, n, **PER_ROUND_TRIP)
    assert found == pytest.approx(network.fair(eta, n), rel=0.02)
    if eta == 0.9:
        plain = sc.water_fill(network.weight, network.capacity, network.crosses)
        assert found == pytest.approx(0.925 * plain, rel=0.04)


def two_equal_links():
    """One flow over two links of 8 Gb/s, and three more on each: max-min shares are quarters."""
    return ParkingLot([(0, 2)] + [(0, 1)] * 3 + [(1, 2)] * 3, [8, 8], [10] * 7)


def test_a_flow_over_two_equally_busy_links_gets_its_share():
    network = two_equal_links()
    assert network.sharers() == 5
    found = network.measured(0.8, 10, **PER_ROUND_TRIP)
    assert found == pytest.approx(np.full(7, network.fair(0.8, 10)[0]), rel=0.02)


def test_a_flow_over_two_equally_busy_links_gets_less_with_an_update_for_each_acknowledgement():
    network = two_equal_links()
    fair = network.fair(0.95)
    assert fair == pytest.approx(np.full(7, fair[0]), rel=1e-3)
    long, *others = network.measured(0.95) / fair
    assert 0.5 < long < 0.98
    assert others == pytest.approx([1 + (1 - long) / 3] * 6, rel=0.02)


def test_water_filling():
    """A row of links of 1 and 3: the flow over both and its neighbours."""
    rates = sc.water_fill([[1, 1, 0], [1, 0, 1]], [1.0, 3.0])
    assert rates == pytest.approx([0.5, 0.5, 2.5])
    rates = sc.water_fill([[1, 1, 0], [1, 0, 0.5]], [1.0, 3.0], [[1, 1, 0], [1, 0, 0]])
    assert rates == pytest.approx([0.5, 0.5, 0])
    (rate,) = sc.water_fill([[1]], [1.0], step=0.1)
    assert rate * (1 - 0.1 / rate) == pytest.approx(1)


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
