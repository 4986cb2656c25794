"""Fat trees with rails, planes, pods and cores: who is linked to whom, counts and capacities."""

import numpy as np
import pytest

from nadi import topologies
from tests.topologies.test_builders import half_cut, switches

GBPS = 10**9


def neighbours(graph, node):
    return {graph.node_name(int(graph.link_dst[link])) for link in graph.out_links(node)}


def node_of(graph, name):
    return graph.npus + graph.switch_names.index(name)


def test_rails_and_ports_lead_to_leaves_of_their_own():
    graph = topologies.build("rail-fat-tree:npus=32,gpus_per_host=4,ports=2,hosts_per_unit=4,spines=3,uplinks=2")
    assert switches(graph) == {"nvswitch": 8, "leaf": 16, "spine": 6}
    for npu in range(32):
        unit, rail = npu // 16, npu % 4
        assert neighbours(graph, npu) == {
            f"nvswitch {npu // 4}",
            f"leaf {8 * unit + rail}",
            f"leaf {8 * unit + 4 + rail}",
        }
    for spine in range(6):
        plane = spine // 3
        below = {f"leaf {8 * unit + 4 * plane + rail}" for unit in range(2) for rail in range(4)}
        assert neighbours(graph, node_of(graph, f"spine {spine}")) == below
    assert graph.links // 2 == 32 * 3 + 16 * 3 * 2
    first = topologies.next_links(graph, 0, 17)  # rail 1 of another unit: by either plane
    assert {graph.node_name(int(graph.link_dst[link])) for link in first} == {"leaf 0", "leaf 4"}
    assert topologies.describe(graph)["diameter_hops"] == 4


def test_spines_of_a_rail_meet_at_the_cores():
    graph = topologies.build(
        "rail-fat-tree:npus=32,gpus_per_host=2,hosts_per_unit=4,units_per_pod=2,rail_spines=true,spines=4,cores=3,"
        "core_planes=2,core_uplinks=2,rate=100Gbps,core_rate=50Gbps"
    )
    assert switches(graph) == {"nvswitch": 16, "leaf": 8, "spine": 16, "core": 6}
    for leaf in range(8):
        pod, rail = leaf // 4, leaf % 2
        spines = {f"spine {8 * pod + 4 * rail + i}" for i in range(4)}
        assert {name for name in neighbours(graph, node_of(graph, f"leaf {leaf}")) if name[0] == "s"} == spines
    for core in range(6):
        plane = core // 3
        below = {f"spine {spine}" for spine in range(16) if spine % 2 == plane}
        assert neighbours(graph, node_of(graph, f"core {core}")) == below
    assert graph.links // 2 == 32 * 2 + 8 * 4 + 16 * 3 * 2
    ways = [len(topologies.route(graph, 0, dst)) for dst in (1, 2, 3, 8, 9, 16, 17)]
    assert ways == [2, 2, 6, 4, 6, 6, 6]  # server, leaf, other rail, unit, both, pod, both
    facts = topologies.describe(graph)
    assert facts["diameter_hops"] == 6
    assert facts["pods"] == 2
    assert facts["tiers"][-1] == {
        "tier": 2,
        "to_nvswitches": False,
        "in_server": False,
        "cables": 96,
        "rate_bps": 96 * 50 * GBPS,
    }


@pytest.mark.parametrize(
    "spec",
    [
        "rail-fat-tree:npus=32,gpus_per_host=1,hosts_per_unit=4,units_per_pod=4,oversubscription=2,cores=2",
        "rail-fat-tree:npus=32,gpus_per_host=1,hosts_per_unit=4,units_per_pod=2,spines=4,cores=1,core_rate=200Gbps",
        "rail-fat-tree:npus=16,gpus_per_host=1,ports=2,hosts_per_unit=4,spines=2,uplink_rate=200Gbps",
    ],
)
def test_the_bisection_is_the_largest_flow_between_two_halves(spec):
    graph = topologies.build(spec)
    assert topologies.describe(graph)["bisection_bps"] == half_cut(graph)


def test_servers_pass_on_between_planes_that_nothing_joins():
    graph = topologies.build(
        "rail-fat-tree:npus=16,gpus_per_host=4,hosts_per_unit=2,rail_spines=true,spines=1,forwarding=true"
    )
    assert switches(graph) == {"nvswitch": 4, "leaf": 8, "spine": 4}
    route = {dst: topologies.route(graph, 0, dst) for dst in (1, 4, 5, 8, 9)}
    assert {dst: len(links) for dst, links in route.items()} == {1: 2, 4: 2, 5: 3, 8: 4, 9: 5}
    for dst in (5, 9):  # no other server carries it on
        hosts = {0, dst // 4}
        passed = [graph.node_name(int(graph.link_dst[link])) for link in route[dst]]
        assert {int(name.split()[1]) for name in passed if name.startswith("nvswitch")} <= hosts
    names = {graph.node_name(int(graph.link_dst[topologies.route(graph, 0, 5, choose)[0]])) for choose in (min, max)}
    assert names == {"nvswitch 0", "leaf 0"}  # at either end


def test_one_leaf_needs_no_spines_and_one_pod_no_cores():
    assert switches(topologies.build("rail-fat-tree:npus=32,rails=1,hosts_per_unit=4,cores=5")) == {
        "nvswitch": 4,
        "leaf": 1,
    }
    graph = topologies.build("rail-fat-tree:npus=32,rails=1,hosts_per_unit=2,units_per_pod=2,spines=2,cores=5")
    assert switches(graph) == {"nvswitch": 4, "leaf": 2, "spine": 2}


def test_rates_delays_and_latencies_of_each_tier():
    graph = topologies.build(
        "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=1,units_per_pod=2,spines=2,cores=2,rate=100Gbps,"
        "delay=1us,nvlink_rate=300GB/s,nvlink_delay=25ns,uplink_rate=200Gbps,uplink_delay=2us,core_rate=400Gbps,"
        "core_delay=3us,switch_latency=300ns,nvswitch_latency=50ns,accelerator=a100"
    )
    far = topologies.route(graph, 0, 15)
    assert graph.link_rate_bps[far].tolist() == [rate * GBPS for rate in (100, 200, 400, 400, 200, 100)]
    assert graph.link_delay_ps[far].tolist() == [delay * 10**6 for delay in (1, 2, 3, 3, 2, 1)]
    assert graph.node_latency_ps[graph.link_dst[far[:-1]]].tolist() == [300_000] * 5
    near = topologies.route(graph, 0, 3)
    assert graph.link_rate_bps[near].tolist() == [2400 * GBPS] * 2
    assert graph.node_latency_ps[graph.link_dst[near[0]]] == 50_000
    assert (graph.accelerator, graph.dims) == ("a100", (4, 4))
    assert graph.host.tolist() == [npu // 4 for npu in range(16)]


def test_npus_behind_an_nvswitch_do_not_meet_at_their_leaf():
    graph = topologies.build("rail-fat-tree:npus=16,rails=1,hosts_per_unit=2")
    inside, outside = topologies.next_links(graph, 0, 7), topologies.next_links(graph, 0, 8)
    assert [graph.node_name(int(graph.link_dst[links[0]])) for links in (inside, outside)] == ["nvswitch 0", "leaf 0"]
    assert len(inside) == len(outside) == 1


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("npus=12", "npus = 12; expected a multiple of gpus_per_host = 8"),
        ("npus=16,rails=3", "gpus_per_host = 8; expected a multiple of rails = 3"),
        (
            "npus=512,rail_spines=true,cores=2,spines=5,core_planes=2",
            "spines = 5; expected a multiple of core_planes = 2",
        ),
        ("npus=512,oversubscription=3", "oversubscription = 3 needs 10.6667 spines; expected a whole number"),
        ("npus=512,spines=2,oversubscription=3", "both spines and oversubscription are given; expected one of them"),
        ("npus=512,rail_spines=true", "no path of switches from npu 0 to npu 9"),
        ("npus=512,rail_spines=perhaps", "rail_spines: found 'perhaps'; expected a valid boolean"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(parameters, text):
    with pytest.raises(topologies.TopologyError) as error:
        topologies.build(f"rail-fat-tree:{parameters}")
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_with_a_spine_for_each_uplink_it_is_the_rail_optimised_network():
    ours, other = (
        topologies.build(f"{name}:npus=96,gpus_per_host=4,{unit}=6,uplinks=2,oversubscription=1.5,switch_latency=1ns")
        for name, unit in (("rail-fat-tree", "hosts_per_unit"), ("rail-optimised", "hosts_per_rail_leaf"))
    )
    assert ours.switch_names == other.switch_names
    for field in ("node_kind", "node_latency_ps", "link_src", "link_dst", "link_rate_bps", "link_delay_ps", "pod"):
        assert np.array_equal(getattr(ours, field), getattr(other, field)), field
