"""The report's figures, worked out by hand."""

import json

import numpy as np
import pytest

from nadi import partition, topologies
from nadi.partition.owners import Partition
from nadi.partition.weights import TrafficWeights

RING = "ring:npus=4,rate=100Gbps,delay=1us"


@pytest.fixture
def half():
    """A ring of 4 in halves: 2 cables and so 4 links are cut."""
    graph = topologies.build(RING)
    owner = np.array([0, 0, 1, 1], np.int32)
    weights = TrafficWeights(np.array([10, 20, 30, 60]), np.arange(1, 9))
    return graph, Partition(owner, 2, "by hand", 1_005_280), weights


def test_by_hand(half):
    graph, found, weights = half
    said = partition.report(graph, found, weights, duration_ps=10 * 1_005_280 - 1, hop_ns=1e6, sync_us=100)
    cut = [link for link in range(8) if found.owner[graph.link_src[link]] != found.owner[graph.link_dst[link]]]
    assert len(cut) == said.cut_links == 4
    assert said.cut_packets == sum(int(weights.link[link]) for link in cut)
    assert said.cut_share == said.cut_packets / 36
    assert (said.npus.tolist(), said.switches.tolist(), said.events.tolist()) == ([2, 2], [0, 0], [30, 90])
    assert said.share.tolist() == [0.25, 0.75]
    assert said.balance == 1.5
    assert (said.windows, said.duration_is_given) == (10, True)
    assert (said.least_events_per_window, said.mean_events_per_window) == (3, 6)
    # 120 events of 1 ms, against 90 of them and 10 windows of 0.1 ms
    assert said.speed_up == pytest.approx(120 / (90 + 1))


def test_the_duration_is_the_busiest_links_unless_given(half):
    graph, found, weights = half
    said = partition.report(graph, found, weights, mean_packet_bytes=1000)
    assert said.duration_ps == 8 * 1000 * 80  # 8 packets of 1000 bytes at 80 ps a byte
    assert not said.duration_is_given
    assert said.windows == 1


def test_a_single_part_waits_for_nobody(half):
    graph, _, weights = half
    said = partition.report(graph, partition.partition(graph, 1), weights)
    assert (said.windows, said.cut_links, said.balance, said.speed_up) == (0, 0, 1, 1)
    assert said.as_dict()["lookahead_ps"] is None


def test_is_json(half):
    graph, found, weights = half
    said = json.loads(json.dumps(partition.report(graph, found, weights).as_dict()))
    assert said["events"] == [30, 90]
    assert said["lookahead_ps"] == 1_005_280
