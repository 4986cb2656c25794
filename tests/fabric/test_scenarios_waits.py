"""Waits, incasts, permutations and cycles of pauses, against what must hold."""

from functools import cache

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import LinkFault, RunError, SharedBuffer
from nadi.pdes.nic import congestion
from nadi.workload import pairs_program, permutation
from tests.fabric import scenarios as sc
from tests.fabric.cases import Network, star
from tests.failures.common import cable, faults_of

SOURCES = 16
WIRE = sc.MTU + sc.HEADER
PACKET = WIRE * 800
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


CONTROLS = congestion.names()
SIZE = 200_000
EVERYBODY_TO_ONE = 31


def leaf_spine():
    return topologies.build(
        "leaf-spine:leaves=4,hosts_per_leaf=8,spines=2,rate=100Gbps,delay=500ns,uplink_rate=200Gbps,switch_latency=300ns"
    )


def hops(flows, hosts):
    """Links of each flow's way over leaves with so many hosts."""
    return np.where(flows["src"] // hosts == flows["dst"] // hosts, 2, 4)


def test_controls_are_all_there():
    assert CONTROLS == ["none", "dcqcn", "dctcp", "hpcc", "nscc", "swift", "timely"]


@pytest.mark.parametrize("senders", [2, 3, 16, 64, 255])
@pytest.mark.parametrize("control", CONTROLS)
def test_pfc_loses_nothing_on_one_switch(control, senders):
    """Headrooms as computed, and so little to share that every sender is paused in the first round trip."""
    graph = star(senders + 1).graph()
    switch = sc.buffer_of(graph, 8 * WIRE, pfc_alpha=1.0)
    results, sim = sc.simulate(graph, sc.incast(senders, SIZE), control=control, switch=switch)
    sc.check_lossless(results, sim)
    pauses = results.counters["pause_frames"]
    assert pauses >= senders
    notified = results.counters["congestion_notifications"]
    assert sc.frames_and_notifications(results, 2) == 2 * pauses + 2 * notified


@pytest.mark.parametrize("control", CONTROLS)
def test_pfc_loses_nothing_over_leaves_and_spines(control):
    graph = leaf_spine()
    switch = sc.buffer_of(graph, 8 * WIRE, pfc_alpha=1.0)
    sent = sc.incast(EVERYBODY_TO_ONE, SIZE)
    results, sim = sc.simulate(graph, sent, control=control, switch=switch)
    sc.check_lossless(results, sim)
    pauses, notified = results.counters["pause_frames"], results.counters["congestion_notifications"]
    assert pauses > EVERYBODY_TO_ONE
    others = sc.frames_and_notifications(results, hops(results.flows, 8)) - 2 * pauses
    assert 2 * notified <= others <= 4 * notified
    # the leaf of the receiver has paused spines, they have paused the other leaves, and these their NPUs
    paused = results.links["paused_ps"] > 0
    of_npus, of_switches = graph.link_src < graph.npus, graph.link_src >= graph.npus
    assert np.any(paused & of_npus)
    assert np.any(paused & of_switches)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_switch_that_has_enough_to_share_pauses_nobody(control):
    """Windows of all senders fit: 16 x 11 packets, each of which may use an eighth of what is free."""
    graph = star(17).graph()
    results, sim = sc.simulate(graph, sc.incast(16, SIZE), control=control, switch=sc.buffer_of(graph, 16 * 10**6))
    sc.check_lossless(results, sim)
    assert results.counters["pause_frames"] == 0


@pytest.mark.parametrize("senders", [2, 16, 255])
def test_an_incast_without_control_keeps_the_link_busy(senders):
    """Pauses come and go, but the bottleneck sends back to back from the first packet on, to the picosecond."""
    graph = star(senders + 1).graph()
    results, _ = sc.simulate(graph, sc.incast(senders, SIZE), switch=sc.buffer_of(graph, 12 * WIRE, pfc_alpha=1.0))
    count, last = divmod(SIZE, sc.MTU)
    wire = senders * (count * WIRE + last + sc.HEADER)
    assert results.counters["pause_frames"] >= senders
    assert results.finish_time_ps == 80 * (wire + WIRE) + 10**6


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("control", CONTROLS)
def test_without_pfc_packets_are_lost_and_all_come_in_the_end(control, selective):
    graph = star(17).graph()
    switch = SharedBuffer(buffer_bytes=20 * WIRE, pfc=False, pfc_alpha=4.0)
    chosen = {"selective_repeat": selective, "max_retries": 60}
    results, sim = sc.simulate(graph, sc.incast(16, SIZE), control=control, switch=switch, **chosen)
    assert sim.lps[0].world.net.const.rto_ps > 0
    count = results.counters
    assert count["dropped_packets"] > 0
    assert count["pause_frames"] == 0
    assert count["retransmitted_packets"] >= count["dropped_packets"]
    assert count["data_packets"] - count["retransmitted_packets"] == 16 * 49


def test_selective_repeat_sends_less_again_than_go_back_n():
    graph = star(17).graph()
    switch = SharedBuffer(buffer_bytes=100 * WIRE, pfc=False, pfc_alpha=4.0)
    again, lost = [], []
    for selective in (False, True):
        chosen = {"switch": switch, "selective_repeat": selective, "max_retries": 60}
        results, _ = sc.simulate(graph, sc.incast(16, 10 * SIZE), control="dctcp", **chosen)
        again.append(results.counters["retransmitted_packets"])
        lost.append(results.counters["dropped_packets"])
    assert again[1] == lost[1] > 0
    assert again[0] > 2 * lost[0]


def test_trimmed_packets_are_asked_for_again_and_nothing_waits_for_a_timeout():
    graph = star(17).graph()
    switch = SharedBuffer(buffer_bytes=60 * WIRE, pfc=False, pfc_alpha=4.0, trimming=True)
    chosen = {"switch": switch, "selective_repeat": True, "reorder_packets": 0, "max_retries": 60}
    results, _ = sc.simulate(graph, sc.incast(16, SIZE), control="nscc", **chosen)
    count = results.counters
    assert count["trimmed_packets"] == count["retransmitted_packets"] > 0
    assert count["dropped_packets"] == count["timeouts"] == 0


@pytest.mark.parametrize("selective", [False, True])
def test_leaves_and_spines_without_pfc_recover(selective):
    graph = leaf_spine()
    switch = SharedBuffer(buffer_bytes=60 * WIRE, pfc=False, pfc_alpha=4.0)
    sent = sc.incast(EVERYBODY_TO_ONE, SIZE)
    chosen = {"switch": switch, "selective_repeat": selective, "max_retries": 60}
    results, _ = sc.simulate(graph, sent, control="dctcp", **chosen)
    assert results.counters["dropped_packets"] > 0
    assert results.counters["data_packets"] - results.counters["retransmitted_packets"] == EVERYBODY_TO_ONE * 49


MIB = 2**20
PER_PACKET = (sc.MTU + sc.HEADER + sc.ACK) * 20
"""At 400 Gb/s, of data and of the acknowledgement of what the NPU receives, which share its link."""
FIRST_PACKET = 6 * (500_000 + (sc.MTU + sc.HEADER) * 20)
REORDERS = {"selective_repeat": True, "reorder_packets": 0}
SWITCHES = pytest.mark.parametrize("switch", [None, SharedBuffer(buffer_bytes=64 * 10**6)], ids=["plain", "shared"])


@cache
def rates(rule, switch, seed=0, k=8, size=16 * MIB):
    """Each flow's rate over that of an idle network, to the farthest NPU."""
    graph = topologies.build(f"fat-tree:k={k},rate=400Gbps")
    results, _ = sc.simulate(
        graph,
        pairs_program(permutation(graph.npus, seed), size),
        balance=rule,
        switch=switch,
        window_bytes=1_500_000,
        **(REORDERS if rule in {"spray", "adaptive"} else {}),
    )
    assert results.counters["dropped_packets"] == results.counters["retransmitted_packets"] == 0
    return (size // sc.MTU * PER_PACKET + FIRST_PACKET) / results.flows["finish_ps"]


@SWITCHES
def test_packets_over_all_paths_reach_the_line_rate(switch):
    spray, adaptive = rates("spray", switch), rates("adaptive", switch)
    assert spray.min() >= 0.95
    assert spray.mean() >= 0.97
    assert adaptive.min() >= 0.99


@SWITCHES
def test_flows_by_hash_do_not(switch):
    ecmp, spray = rates("ecmp", switch), rates("spray", switch)
    assert spray.min() > 2 * ecmp.min()
    assert spray.mean() > 1.5 * ecmp.mean()


@SWITCHES
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("k", "size"), [(4, 4 * MIB), (8, 4 * MIB)])
def test_adaptive_is_better_than_spraying_on_the_mean_and_on_the_slowest_flow(k, size, seed, switch):
    spray, adaptive = (rates(rule, switch, seed, k, size) for rule in ("spray", "adaptive"))
    assert adaptive.min() >= spray.min()
    assert adaptive.mean() >= spray.mean()


@SWITCHES
def test_adaptive_gives_a_slow_link_what_it_can_carry(switch):
    """Four NPUs at 100 Gb/s over four uplinks, one of which has a quarter of its rate."""
    graph = topologies.build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=4,rate=100Gbps,delay=500ns")
    slow = [LinkFault(cable(graph, 8, 10), 0, rate_bps=25 * 10**9)]
    size = 8 * MIB
    took_ps = {}
    for rule in ("spray", "adaptive"):
        results, _ = sc.simulate(
            graph,
            sc.messages(range(4), range(4, 8), size),
            balance=rule,
            switch=switch,
            faults=faults_of(graph, slow),
            window_bytes=1_000_000,
            rto_ps=10 * sc.MS,
            **REORDERS,
        )
        took_ps[rule] = results.finish_time_ps
    all_bits = 4 * size / sc.MTU * (sc.MTU + sc.HEADER) * 8
    assert took_ps["adaptive"] == pytest.approx(all_bits / 325e9 * 1e12, rel=0.02)
    assert took_ps["spray"] > 0.98 * all_bits / 100e9 * 1e12


@SWITCHES
def test_grades_keep_off_a_slow_link_while_queues_are_short(switch):
    """Four NPUs send 75 Gb/s each over three uplinks of 100 Gb/s and one of 25, which hashes would give 75."""
    graph = topologies.build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=4,rate=100Gbps,delay=500ns")
    slow = [LinkFault(cable(graph, 8, 10), 0, rate_bps=25 * 10**9)]
    size, took_ps = 8 * MIB, {}
    for rule in ("spray", "grades"):
        sent = sc.messages(range(4), range(4, 8), size)
        chosen = {"window_bytes": 1_000_000, "rto_ps": 10 * sc.MS, "p2p_share": 0.75} | REORDERS
        results, _ = sc.simulate(graph, sent, balance=rule, switch=switch, faults=faults_of(graph, slow), **chosen)
        took_ps[rule] = results.finish_time_ps
    bits = size / sc.MTU * (sc.MTU + sc.HEADER) * 8
    assert took_ps["grades"] == pytest.approx(bits / 75e9 * 1e12, rel=0.02)
    assert took_ps["spray"] > 0.98 * bits / 25e9 * 1e12


DEADLOCK_SIZE = 2_000_000


def ring(switches, npus_each=1):
    """Switches in a ring; the NPUs of one have numbers that follow one another."""
    npus = switches * npus_each
    own = tuple((npu, npus + npu // npus_each, 100, 500_000) for npu in range(npus))
    between = tuple((npus + i, npus + (i + 1) % switches, 100, 500_000) for i in range(switches))
    return Network(npus, (0,) * switches, own + between).graph()


def clockwise(graph, switches):
    """From each switch's first NPU to that NPU of the switch two on to which the way leads clockwise.

    In a ring of four both ways are equally long, and D-mod-k chooses by the destination's number.
    """
    each = graph.npus // switches
    for i in range(switches):
        for npu in range((i + 2) % switches * each, (i + 2) % switches * each + each):
            sent = sc.messages(i * each, npu, sc.MTU)
            results, _ = sc.simulate(graph, sent, balance="static")
            used = np.flatnonzero(results.links["tx_bytes"] > sc.ACK)
            passed = set(graph.link_dst[used].tolist()) - {npu}
            if passed == {graph.npus + (i + hop) % switches for hop in range(3)}:
                yield i * each, npu
                break


def load(graph, switches):
    src, dst = zip(*clockwise(graph, switches), strict=True)
    assert len(src) == switches
    return sc.messages(src, dst, DEADLOCK_SIZE)


@pytest.mark.parametrize(("switches", "npus_each"), [(4, 2), (5, 1), (6, 1)])
def test_a_ring_with_tiny_buffers_locks_and_the_run_ends(switches, npus_each):
    graph = ring(switches, npus_each)
    switch = sc.buffer_of(graph, 4 * WIRE, pfc_alpha=1.0)
    sent = load(graph, switches)
    with pytest.raises(RunError, match="deadlock") as caught:
        sc.simulate(graph, sent, balance="static", switch=switch, window_bytes=DEADLOCK_SIZE)
    assert "pause" in str(caught.value)


@pytest.mark.parametrize(("switches", "npus_each"), [(4, 2), (5, 1), (6, 1)])
def test_the_same_ring_with_room_for_all_does_not_lock(switches, npus_each):
    graph = ring(switches, npus_each)
    switch = sc.buffer_of(graph, 60 * 10**6, pfc_alpha=1.0)
    results, sim = sc.simulate(
        graph, load(graph, switches), balance="static", switch=switch, window_bytes=DEADLOCK_SIZE
    )
    sc.check_lossless(results, sim)


def test_the_same_ring_without_pauses_loses_packets_instead():
    graph = ring(5)
    switch = SharedBuffer(buffer_bytes=20 * WIRE, pfc=False, pfc_alpha=4.0, ecn=False)
    chosen = {"balance": "static", "switch": switch, "window_bytes": 50 * sc.MTU, "selective_repeat": True}
    results, _ = sc.simulate(graph, load(graph, 5), **chosen, max_retries=100)
    assert results.counters["dropped_packets"] > 0


@pytest.mark.parametrize("spines", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_trees_with_tiny_buffers_do_not_lock(seed, spines):
    """Everybody sends to two others, so that pauses spread over leaves and spines."""
    graph = topologies.build(
        f"leaf-spine:leaves=4,hosts_per_leaf=4,spines={spines},rate=100Gbps,delay=500ns,uplink_rate=100Gbps"
    )
    switch = sc.buffer_of(graph, 4 * WIRE, pfc_alpha=1.0)
    rng = np.random.default_rng(seed)
    dst = np.stack([(np.arange(16) + rng.integers(1, 16, 16)) % 16 for _ in range(2)])
    sent = sc.messages(np.arange(16), dst, 400_000)
    results, sim = sc.simulate(graph, sent, switch=switch, window_bytes=DEADLOCK_SIZE)
    sc.check_lossless(results, sim)
    assert results.counters["pause_frames"] > 100
