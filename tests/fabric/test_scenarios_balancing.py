"""A permutation over a non-blocking fat tree: packets spread over all paths reach the line rate, flows do not."""

from functools import cache

import pytest

import topologies
from pdes import SharedBuffer
from tests.fabric import scenarios as sc
from workload import pairs_program, permutation

SIZE = 16 * 2**20
PACKETS = SIZE // sc.MTU
PER_PACKET = (sc.MTU + sc.HEADER + sc.ACK) * 20
"""At 400 Gb/s, of data and of the acknowledgement of what the NPU receives, which share its link."""
FIRST_PACKET = 6 * (500_000 + (sc.MTU + sc.HEADER) * 20)
IDLE = PACKETS * PER_PACKET + FIRST_PACKET
SWITCHES = pytest.mark.parametrize("switch", [None, SharedBuffer(buffer_bytes=64 * 10**6)], ids=["plain", "shared"])


@cache
def rates(rule, switch, seed=0):
    """Each flow's rate over that of an idle network."""
    graph = topologies.build("fat-tree:k=8,rate=400Gbps")
    reorders = {"selective_repeat": True, "reorder_packets": 0} if rule in {"spray", "adaptive"} else {}
    results, _ = sc.simulate(
        graph,
        pairs_program(permutation(128, seed), SIZE),
        balance=rule,
        switch=switch,
        window_bytes=1_500_000,
        **reorders,
    )
    assert results.counters["dropped_packets"] == results.counters["retransmitted_packets"] == 0
    return IDLE / results.flows["finish_ps"]


@SWITCHES
@pytest.mark.parametrize("rule", ["spray", "adaptive"])
def test_packets_over_all_paths_reach_the_line_rate(rule, switch):
    found = rates(rule, switch)
    assert found.min() >= 0.95
    assert found.mean() >= 0.97


@SWITCHES
def test_adaptive_is_as_good_as_spraying_and_both_beat_flows_by_hash(switch):
    ecmp, spray, adaptive = (rates(rule, switch) for rule in ("ecmp", "spray", "adaptive"))
    assert adaptive.mean() >= spray.mean()
    assert adaptive.min() >= 0.99 * spray.min()
    assert spray.min() > 2 * ecmp.min()
    assert spray.mean() > 1.5 * ecmp.mean()
