"""Pauses that wait for each other round a cycle: the run ends and says so. Trees cannot lock."""

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import RunError
from tests.fabric import scenarios as sc
from tests.fabric.cases import Network

PACKET = sc.MTU + sc.HEADER
SIZE = 2_000_000


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
    return sc.messages(src, dst, SIZE)


@pytest.mark.parametrize(("switches", "npus_each"), [(4, 2), (5, 1), (6, 1)])
def test_a_ring_with_tiny_buffers_locks_and_the_run_ends(switches, npus_each):
    graph = ring(switches, npus_each)
    switch = sc.buffer_of(graph, 4 * PACKET, pfc_alpha=1.0)
    sent = load(graph, switches)
    with pytest.raises(RunError, match="deadlock") as caught:
        sc.simulate(graph, sent, balance="static", switch=switch, window_bytes=SIZE)
    assert "pause" in str(caught.value)


@pytest.mark.parametrize(("switches", "npus_each"), [(4, 2), (5, 1), (6, 1)])
def test_the_same_ring_with_room_for_all_does_not_lock(switches, npus_each):
    graph = ring(switches, npus_each)
    switch = sc.buffer_of(graph, 60 * 10**6, pfc_alpha=1.0)
    results, sim = sc.simulate(graph, load(graph, switches), balance="static", switch=switch, window_bytes=SIZE)
    sc.check_lossless(results, sim)


def test_the_same_ring_without_pauses_loses_packets_instead():
    graph = ring(5)
    switch = sc.SharedBuffer(buffer_bytes=20 * PACKET, pfc=False, pfc_alpha=4.0, ecn=False)
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
    switch = sc.buffer_of(graph, 4 * PACKET, pfc_alpha=1.0)
    rng = np.random.default_rng(seed)
    dst = np.stack([(np.arange(16) + rng.integers(1, 16, 16)) % 16 for _ in range(2)])
    sent = sc.messages(np.arange(16), dst, 400_000)
    results, sim = sc.simulate(graph, sent, switch=switch, window_bytes=SIZE)
    sc.check_lossless(results, sim)
    assert results.counters["pause_frames"] > 100
