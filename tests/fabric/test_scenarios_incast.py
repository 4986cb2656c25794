"""Incasts: nothing is lost with PFC, everything comes without."""

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import SharedBuffer
from nadi.pdes.nic import congestion
from tests.fabric import scenarios as sc
from tests.fabric.cases import star

CONTROLS = congestion.names()
SIZE = 200_000
PACKET = sc.MTU + sc.HEADER
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
    switch = sc.buffer_of(graph, 8 * PACKET, pfc_alpha=1.0)
    results, sim = sc.simulate(graph, sc.incast(senders, SIZE), control=control, switch=switch)
    sc.check_lossless(results, sim)
    pauses = results.counters["pause_frames"]
    assert pauses >= senders
    notified = results.counters["congestion_notifications"]
    assert sc.frames_and_notifications(results, 2) == 2 * pauses + 2 * notified


@pytest.mark.parametrize("control", CONTROLS)
def test_pfc_loses_nothing_over_leaves_and_spines(control):
    graph = leaf_spine()
    switch = sc.buffer_of(graph, 8 * PACKET, pfc_alpha=1.0)
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
    results, _ = sc.simulate(graph, sc.incast(senders, SIZE), switch=sc.buffer_of(graph, 12 * PACKET, pfc_alpha=1.0))
    count, last = divmod(SIZE, sc.MTU)
    wire = senders * (count * PACKET + last + sc.HEADER)
    assert results.counters["pause_frames"] >= senders
    assert results.finish_time_ps == 80 * (wire + PACKET) + 10**6


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("control", CONTROLS)
def test_without_pfc_packets_are_lost_and_all_come_in_the_end(control, selective):
    graph = star(17).graph()
    switch = SharedBuffer(buffer_bytes=20 * PACKET, pfc=False, pfc_alpha=4.0)
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
    switch = SharedBuffer(buffer_bytes=100 * PACKET, pfc=False, pfc_alpha=4.0)
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
    switch = SharedBuffer(buffer_bytes=60 * PACKET, pfc=False, pfc_alpha=4.0, trimming=True)
    chosen = {"switch": switch, "selective_repeat": True, "reorder_packets": 0, "max_retries": 60}
    results, _ = sc.simulate(graph, sc.incast(16, SIZE), control="nscc", **chosen)
    count = results.counters
    assert count["trimmed_packets"] == count["retransmitted_packets"] > 0
    assert count["dropped_packets"] == count["timeouts"] == 0


@pytest.mark.parametrize("selective", [False, True])
def test_leaves_and_spines_without_pfc_recover(selective):
    graph = leaf_spine()
    switch = SharedBuffer(buffer_bytes=60 * PACKET, pfc=False, pfc_alpha=4.0)
    sent = sc.incast(EVERYBODY_TO_ONE, SIZE)
    chosen = {"switch": switch, "selective_repeat": selective, "max_retries": 60}
    results, _ = sc.simulate(graph, sent, control="dctcp", **chosen)
    assert results.counters["dropped_packets"] > 0
    assert results.counters["data_packets"] - results.counters["retransmitted_packets"] == EVERYBODY_TO_ONE * 49
