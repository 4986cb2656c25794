"""A permutation over a non-blocking fat tree: packets spread over all paths reach the line rate, flows do not."""

from functools import cache

import pytest

from nadi import topologies
from nadi.pdes import LinkFault, SharedBuffer
from nadi.workload import pairs_program, permutation
from tests.fabric import scenarios as sc
from tests.failures.common import cable, faults_of

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
