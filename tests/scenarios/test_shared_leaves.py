"""Servers whose GPUs share a leaf: packets inside them take the NVSwitch alone, as the reference walker says."""

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import LinkFault, Settings, build_world, run
from nadi.workload import collective_program, pairs_program
from tests.failures.common import cable, faults_of
from tests.scenarios.running import simulate

RACK = "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=2,spines=2,accelerator=h100"


def used(graph, results):
    """Kinds of the switches to which NPUs have sent data, and how many packets."""
    up = np.flatnonzero((graph.link_src < graph.npus) & (results.links["tx_packets"] > 0))
    kinds = graph.node_kind[graph.link_dst[up]]
    return {int(kind): int(results.links["tx_packets"][up[kinds == kind]].sum()) for kind in set(kinds.tolist())}


@pytest.mark.parametrize("apart", [1, 2, 3])
def test_inside_a_server_the_leaf_is_idle(apart):
    graph = topologies.build(RACK)
    to = np.arange(16) // 4 * 4 + (np.arange(16) + apart) % 4
    results = simulate(graph, pairs_program(to, 1 << 16), nvlink_framing=True)
    assert used(graph, results) == {topologies.NVSWITCH: 2 * 16 * 16}  # data, and acknowledgements back


@pytest.mark.parametrize("apart", [4, 8, 5])
def test_between_servers_the_nvswitch_is_idle(apart):
    graph = topologies.build(RACK)
    results = simulate(graph, pairs_program((np.arange(16) + apart) % 16, 1 << 16), nvlink_framing=True)
    assert used(graph, results) == {topologies.SWITCH: 2 * 16 * 16}


def test_an_all_to_all_loads_ports_as_the_walker_says():
    graph = topologies.build(RACK)
    results = simulate(graph, collective_program("all-to-all", 16, 16 * 4096, "direct"))
    inside, outside = 16 * 3, 16 * 12
    assert used(graph, results) == {topologies.NVSWITCH: 2 * inside, topologies.SWITCH: 2 * outside}


def test_where_nvlink_is_down_the_leaf_takes_over():
    graph = topologies.build(RACK)
    nvswitch = int(graph.link_dst[topologies.route(graph, 0, 1)[0]])
    down = (LinkFault(cable(graph, 0, nvswitch), 0, down=True),)
    to = np.full(16, -1)
    to[[0, 1]] = [1, 0]
    settings = Settings(faults=faults_of(graph, down, detection_ps=0))
    results = run(build_world(graph, pairs_program(to, 1 << 16), settings))
    leaf = int(graph.link_dst[topologies.route(graph, 0, 8)[0]])
    between = cable(graph, 0, leaf)
    assert results.links["tx_bytes"][list(between)].min() > 1 << 16


def test_it_is_the_same_in_parts():
    graph = topologies.build(RACK)
    program = collective_program("all-reduce", 16, 1 << 20, "ring")
    whole, parts = (run(build_world(graph, program, Settings(), owner)) for owner in (None, graph.pod.clip(0)))
    assert whole.digest == parts.digest


def test_servers_pass_on_what_changes_planes():
    """DeepSeek's planes: each pair's packets take as many links as the walker finds, from rail to rail too."""
    graph = topologies.build("deepseek-h800:gpus=32,hosts_per_unit=2,spines=1,uplinks=2")
    for apart, links in ((8, 2), (9, 3), (16, 4), (17, 5)):
        assert len(topologies.route(graph, 0, apart)) == links
        to = np.full(32, -1)
        to[0] = apart
        results = simulate(graph, pairs_program(to, 1 << 16), nvlink_framing=True)
        assert results.counters["packet_hops"] == 2 * 16 * links
