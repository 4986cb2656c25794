"""Counts, rates and capacities of each topology against closed forms; who is linked to whom in fat trees with rails."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from nadi import topologies
from tests.topologies.naive import SMALL, as_networkx

GBPS = 10**9


def switches(graph):
    return topologies.describe(graph)["switches"]


def half_cut(graph):
    network = nx.DiGraph()
    for a, b, data in as_networkx(graph).edges(data=True):
        rate = network.get_edge_data(a, b, {"capacity": 0})["capacity"] + data["rate"]
        network.add_edge(a, b, capacity=rate)
    for npu in range(graph.npus):
        source = npu < graph.npus // 2
        network.add_edge(*(("source", npu) if source else (npu, "sink")))
    return nx.maximum_flow_value(network, "source", "sink")


@pytest.mark.parametrize("spec", SMALL)
def test_every_graph_keeps_the_contract(spec):
    graph = topologies.build(spec)
    assert graph.name == spec
    assert graph.links == len(graph.link_src) == len(graph.link_dst) > 0
    assert (graph.link_src[::2] == graph.link_dst[1::2]).all()
    assert (graph.link_dst[::2] == graph.link_src[1::2]).all()
    assert (graph.link_rate_bps > 0).all()
    assert (graph.link_delay_ps >= 0).all()
    assert np.prod(graph.dims) == graph.npus
    assert (graph.node_kind[: graph.npus] == topologies.graph.NPU).all()
    assert (graph.node_kind[graph.npus :] != topologies.graph.NPU).all()
    assert len(graph.host) == graph.npus
    assert len(graph.pod) == len(graph.node_latency_ps) == len(graph.node_kind) == graph.nodes
    assert len({graph.node_name(node) for node in range(graph.nodes)}) == graph.nodes
    types = {"node_kind": "int8", "node_latency_ps": "int64", "link_src": "int32", "link_dst": "int32", "host": "int32"}
    types |= {"link_rate_bps": "int64", "link_delay_ps": "int64", "pod": "int32"}
    assert {key: getattr(graph, key).dtype.name for key in types} == types
    routing = {key: array.dtype.name for key, array in vars(graph.routing).items() if key != "cut_hops"}
    narrow = {"hops": "int8", "mode": "int8", "offset": "int64"}
    assert routing == {key: narrow.get(key, "int32") for key in routing}


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_k_ary_fat_tree(k):
    graph = topologies.build(f"fat-tree:k={k},rate=100Gbps,delay=1us,switch_latency=300ns")
    assert graph.npus == k**3 // 4
    assert graph.nodes - graph.npus == 5 * k**2 // 4
    assert switches(graph) == {"leaf": k * k // 2, "spine": k * k // 2, "core": k * k // 4}
    assert graph.links // 2 == 3 * k**3 // 4
    degree = np.bincount(graph.link_src, minlength=graph.nodes)
    assert (degree[: graph.npus] == 1).all()
    assert (degree[graph.npus :] == k).all()
    assert (graph.node_latency_ps[graph.npus :] == 300_000).all()
    assert (graph.node_latency_ps[: graph.npus] == 0).all()
    facts = topologies.describe(graph)
    assert facts["diameter_hops"] == 6
    assert facts["ecmp_width"] == k // 2
    assert facts["bisection_bps"] == graph.npus * 100 * GBPS // 2
    assert facts["pods"] == k


def test_fat_tree_planes_join_equal_spines_of_all_pods():
    graph = topologies.build("fat-tree:k=4")
    for core in range(4):
        node = graph.nodes - 4 + core
        names = {graph.node_name(int(graph.link_dst[link])) for link in graph.out_links(node)}
        assert names == {f"spine {2 * pod + core // 2}" for pod in range(4)}


@pytest.mark.parametrize(
    "spec",
    [
        "fat-tree:k=4",
        "fat-tree:npus=64,oversubscription=2",
        "fat-tree:npus=64,hosts_per_leaf=4,leaves_per_pod=4,core_oversubscription=4",
        "fat-tree:npus=64,spine_rate=800Gbps,core_rate=1600Gbps",
        "leaf-spine:leaves=8,hosts_per_leaf=6,oversubscription=3",
        "leaf-spine:leaves=8,hosts_per_leaf=8,uplink_rate=800Gbps,uplinks=2",
        "ring:npus=8",
        "torus:sizes=2x4x4",
        "fully-connected:npus=6",
        "stack:dims=Ring(4)_Switch(4),rates=900Gbps_100Gbps",
        "stack:dims=Switch(4)_FullyConnected(4),rates=10Gbps_400Gbps",
        "switch:npus=8",
        "rail-fat-tree:npus=32,gpus_per_host=1,hosts_per_unit=4,units_per_pod=4,oversubscription=2,cores=2",
        "rail-fat-tree:npus=32,gpus_per_host=1,hosts_per_unit=4,units_per_pod=2,spines=4,cores=1,core_rate=200Gbps",
        "rail-fat-tree:npus=16,gpus_per_host=1,ports=2,hosts_per_unit=4,spines=2,uplink_rate=200Gbps",
    ],
)
def test_the_bisection_is_the_largest_flow_between_two_halves(spec):
    graph = topologies.build(spec)
    halves = half_cut(graph)
    bisection = topologies.describe(graph)["bisection_bps"]
    if spec.startswith("stack:dims=Switch"):  # the cut through the first dimension is the smaller one
        assert bisection == 80 * GBPS < halves
    else:
        assert bisection == halves


def test_a_rack_is_one_nvlink_domain_with_four_rails():
    graph = topologies.build("gb200-nvl72:npus=144")
    assert graph.host.tolist() == [0] * 72 + [1] * 72
    assert {tier: count for tier, count in switches(graph).items() if tier in {"nvswitch", "leaf"}} == {
        "nvswitch": 2,
        "leaf": 8,
    }
    for npu in range(72):  # the NICs of the servers of 4 are on rails 0 to 3
        assert len(topologies.route(graph, npu, 72 + npu)) == 4
        assert len(topologies.route(graph, npu, (npu + 5) % 72)) == 2
    assert set(topologies.build("gb300-nvl72:npus=4").link_rate_bps.tolist()) == {7200 * GBPS, 800 * GBPS}


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300"])
def test_machines_have_as_many_spines_as_their_oversubscription_needs(machine):
    for ratio, spines in ((1, 4), (2, 2), ("4/3", 3)):
        graph = topologies.build(f"{machine}:npus=64,hosts_per_rail_leaf=4,oversubscription={ratio}")
        assert sum(graph.node_name(node).startswith("spine") for node in range(graph.npus, graph.nodes)) == spines


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fat-tree:hosts_per_leaf=4,leaves_per_pod=2,pods=1", {"leaf": 2, "spine": 4}),
        ("rail-fat-tree:npus=32,rails=1,hosts_per_unit=4,cores=5", {"nvswitch": 4, "leaf": 1}),
        (
            "rail-fat-tree:npus=32,rails=1,hosts_per_unit=2,units_per_pod=2,spines=2,cores=5",
            {"nvswitch": 4, "leaf": 2, "spine": 2},
        ),
    ],
)
def test_one_leaf_needs_no_spines_and_one_pod_no_cores(spec, expected):
    assert switches(topologies.build(spec)) == expected


FAT_TREE = "fat-tree:hosts_per_leaf=8,leaves_per_pod=4,pods=3,oversubscription=2,core_oversubscription=4"


@pytest.mark.parametrize(
    ("spec", "expected", "ratios"),
    [
        *(
            (
                f"leaf-spine:leaves=4,hosts_per_leaf=8,oversubscription={ratio}",
                {"leaf": 4, "spine": spines},
                [float(ratio)],
            )
            for ratio, spines in ((1, 8), (2, 4), (4, 2), (8, 1), (1.6, 5))
        ),
        (FAT_TREE, {"leaf": 12, "spine": 12, "core": 4}, [2, 4]),
        *((f"fat-tree:npus={npus}", None, [1.0, 1.0]) for npus in (100, 1000, 1024, 2048)),
        ("switch:npus=8", {"switch": 1}, []),
    ],
)
def test_oversubscription_is_the_rate_below_a_tier_over_that_above(spec, expected, ratios):
    graph = topologies.build(spec)
    facts = topologies.describe(graph)
    assert expected in (None, switches(graph))
    rates = [tier["rate_bps"] for tier in facts["tiers"]]
    assert [below / above for below, above in pairwise(rates)] == pytest.approx(ratios, rel=1e-12)
    assert [*facts["oversubscription"].values()] == pytest.approx(ratios, rel=1e-12)


def test_oversubscription_is_that_of_the_worst_switch():
    """Leaf 0 has three NPUs and leaf 1 has one; each has an uplink as fast as an NPU's."""
    builder = topologies.GraphBuilder("uneven", npus=4)
    leaves, spine = builder.add_switches("leaf", 2), builder.add_switches("spine", 1)
    builder.add_cables([0, 1, 2, 3], leaves[[0, 0, 0, 1]], rate_bps=100 * GBPS, delay_ps=1000)
    builder.add_cables(leaves, spine[0], rate_bps=100 * GBPS, delay_ps=1000)
    assert topologies.describe(builder.graph())["oversubscription"] == {"leaf": 3.0}


def test_fat_tree_with_a_part_of_a_leaf_and_pod():
    graph = topologies.build("fat-tree:npus=11,hosts_per_leaf=2,leaves_per_pod=2")
    assert switches(graph) == {"leaf": 6, "spine": 6, "core": 4}
    assert graph.pod[:11].tolist() == [0] * 4 + [1] * 4 + [2] * 3


def test_fat_tree_rates_and_delays_of_each_tier():
    graph = topologies.build(
        "fat-tree:k=4,rate=100Gbps,spine_rate=200Gbps,core_rate=400Gbps,delay=1us,spine_delay=2us,core_delay=0,"
        "spines_per_pod=2,cores_per_plane=2"
    )
    route = topologies.route(graph, 0, 15)
    assert graph.link_rate_bps[route].tolist() == [x * GBPS for x in (100, 200, 400, 400, 200, 100)]
    assert graph.link_delay_ps[route].tolist() == [10**6, 2 * 10**6, 0, 0, 2 * 10**6, 10**6]


def test_leaf_spine_joins_every_leaf_to_every_spine_with_parallel_cables():
    graph = topologies.build(
        "leaf-spine:npus=10,hosts_per_leaf=4,spines=3,uplinks=2,uplink_rate=800Gbps,uplink_delay=2us,switch_latency=5ns"
    )
    assert switches(graph) == {"leaf": 3, "spine": 3}
    assert graph.links // 2 == 10 + 3 * 3 * 2
    assert len(topologies.next_links(graph, graph.npus, 9)) == 6
    route = topologies.route(graph, 0, 9)
    assert graph.link_rate_bps[route].tolist() == [400 * GBPS, 800 * GBPS, 800 * GBPS, 400 * GBPS]
    assert graph.link_delay_ps[route].tolist() == [500_000, 2_000_000, 2_000_000, 500_000]
    assert set(graph.node_latency_ps[10:].tolist()) == {5_000}
    assert graph.pod.tolist() == [0] * 4 + [1] * 4 + [2] * 2 + [0, 1, 2] + [-1] * 3


def test_rail_optimised_puts_equal_nics_on_one_leaf():
    graph = topologies.build(
        "rail-optimised:npus=48,gpus_per_host=4,hosts_per_rail_leaf=6,uplinks=2,nvlink_rate=450GB/s,nvlink_delay=25ns,"
        "rate=400Gbps,delay=500ns,uplink_rate=800Gbps,uplink_delay=1us,switch_latency=300ns,nvswitch_latency=50ns,"
        "oversubscription=1.5"
    )
    assert switches(graph) == {"nvswitch": 12, "leaf": 8, "spine": 1}
    assert graph.dims == (4, 12)
    assert graph.host.tolist() == [npu // 4 for npu in range(48)]
    assert (graph.node_kind == topologies.NVSWITCH).sum() == 12
    for npu in range(48):
        names = {graph.node_name(int(graph.link_dst[link])) for link in graph.out_links(npu)}
        assert names == {f"nvswitch {npu // 4}", f"leaf {npu // 24 * 4 + npu % 4}"}
    rails = topologies.route(graph, 0, 25)
    assert graph.link_rate_bps[rails].tolist() == [x * GBPS for x in (400, 800, 800, 400)]
    server = topologies.route(graph, 0, 3)
    assert graph.link_rate_bps[server].tolist() == [3600 * GBPS] * 2
    assert graph.link_delay_ps[server].tolist() == [25_000] * 2
    assert set(graph.node_latency_ps[graph.node_kind == topologies.NVSWITCH].tolist()) == {50_000}
    assert set(graph.node_latency_ps[graph.node_kind == topologies.SWITCH].tolist()) == {300_000}
    assert topologies.describe(graph)["pods"] == 2


def test_stack_rates_delays_latency_and_hosts_of_each_dimension():
    graph = topologies.build(
        "stack:dims=Ring(4)_FullyConnected(2)_Switch(8),rates=200GB/s_100GB/s_50GB/s,delays=50ns_500ns_2us,"
        "switch_latency=300ns,host_dims=2"
    )
    assert (graph.npus, graph.nodes, graph.dims) == (64, 72, (4, 2, 8))
    assert graph.links // 2 == 64 + 32 + 64
    route = topologies.route(graph, 0, 63)  # digits (3, 1, 7): one link round the ring, one across, two by the switch
    assert graph.link_rate_bps[route].tolist() == [1600 * GBPS, 800 * GBPS, 400 * GBPS, 400 * GBPS]
    assert graph.link_delay_ps[route].tolist() == [50_000, 500_000, 2_000_000, 2_000_000]
    assert set(graph.node_latency_ps[64:].tolist()) == {300_000}
    assert graph.host.tolist() == [npu // 8 for npu in range(64)]
    assert graph.pod.tolist() == [npu // 8 for npu in range(64)] + [-1] * 8


@pytest.mark.parametrize(
    ("spec", "cables", "diameter"),
    [
        ("ring:npus=2", 1, 1),
        ("ring:npus=9", 9, 4),
        ("fully-connected:npus=6", 15, 1),
        ("switch:npus=6", 6, 2),
        ("torus:sizes=4x4x4", 192, 6),
        ("torus:sizes=2x2", 4, 2),
    ],
)
def test_cables_and_diameter(spec, cables, diameter):
    facts = topologies.describe(topologies.build(spec))
    assert facts["cables"] == cables
    assert facts["diameter_hops"] == diameter


@pytest.mark.parametrize("spec", SMALL)
def test_the_diameter_is_the_longest_route(spec):
    graph = topologies.build(spec)
    pairs = [(a, b) for a in range(graph.npus) for b in range(graph.npus) if a != b]
    longest = max((len(topologies.route(graph, a, b)) for a, b in pairs), default=0)
    assert topologies.describe(graph)["diameter_hops"] == longest


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


def test_with_a_spine_for_each_uplink_it_is_the_rail_optimised_network():
    ours, other = (
        topologies.build(f"{name}:npus=96,gpus_per_host=4,{unit}=6,uplinks=2,oversubscription=1.5,switch_latency=1ns")
        for name, unit in (("rail-fat-tree", "hosts_per_unit"), ("rail-optimised", "hosts_per_rail_leaf"))
    )
    assert ours.switch_names == other.switch_names
    for field in ("node_kind", "node_latency_ps", "link_src", "link_dst", "link_rate_bps", "link_delay_ps", "pod"):
        assert np.array_equal(getattr(ours, field), getattr(other, field)), field
