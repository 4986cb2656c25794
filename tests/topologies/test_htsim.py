"""htsim's .topo files: small trees whose cables one counts by hand, and the project's own files."""

import numpy as np
import pytest

from nadi import topologies
from nadi.inputs import kind_of
from nadi.inputs.units import GBPS
from nadi.topologies.builders.htsim import read_tree

SMALL_TREE = """Nodes 4
Tiers 2
Podsize 4
Tier 0
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Downlink_Latency_ns 1000
"""
TREE = """# a comment
Nodes 16
Tiers 3
Podsize 8

Tier 0
Oversubscribed 2
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 1
Downlink_Latency_ns 1000
Switch_Latency_ns 10

Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 1
Downlink_Latency_ns 500
Bundle 1
Oversubscribed 1

Tier 2
Downlink_speed_Gbps 400
Radix_Down 2
Downlink_Latency_ns 2000
Bundle 1
"""
"""16 hosts on 4 ToRs: 800 Gb/s up, so 4 uplinks of 200 Gb/s, 2 aggregation switches, and 2 uplinks of 400 Gb/s."""


def build(tmp_path, text):
    (tmp_path / "x.topo").write_text(text)
    return topologies.build(tmp_path / "x.topo")


def cables(graph):
    """Names of the ends, rate in Gb/s and delay in ns of each cable between switches."""
    rows = [i for i in range(0, graph.links, 2) if graph.link_src[i] >= graph.npus]
    name = graph.node_name
    return [
        (
            name(graph.link_src[i]),
            name(graph.link_dst[i]),
            graph.link_rate_bps[i] // GBPS,
            graph.link_delay_ps[i] // 1000,
        )
        for i in rows
    ]


def test_uplinks_have_the_speed_of_the_tier_above(tmp_path):
    graph = build(tmp_path, TREE)
    assert (graph.npus, graph.nodes, graph.links // 2) == (16, 16 + 4 + 2 + 1, 16 + 4 + 2)
    assert cables(graph) == [
        ("tor 0", "agg 0", 200, 500),
        ("tor 1", "agg 0", 200, 500),
        ("tor 2", "agg 1", 200, 500),
        ("tor 3", "agg 1", 200, 500),
        ("agg 0", "core 0", 400, 2000),
        ("agg 1", "core 0", 400, 2000),
    ]
    assert graph.node_latency_ps[16:].tolist() == [10_000] * 4 + [0] * 3
    route = topologies.route(graph, 0, 15)
    assert graph.link_rate_bps[route].tolist() == [rate * GBPS for rate in (100, 200, 400, 400, 200, 100)]
    assert graph.pod.tolist() == [0] * 8 + [1] * 8 + [0, 0, 1, 1] + [0, 1] + [-1]


def test_bundles_are_parallel_cables(tmp_path):
    text = TREE.replace("Downlink_speed_Gbps 200", "Downlink_speed_Gbps 100")
    text = text.replace("Radix_Up 1\nDownlink_Latency_ns 1000", "Radix_Up 2\nDownlink_Latency_ns 1000")
    text = text.replace(
        "Radix_Down 2\nRadix_Up 1\nDownlink_Latency_ns 500\nBundle 1",
        "Radix_Down 4\nRadix_Up 1\nDownlink_Latency_ns 500\nBundle 2",
    )
    graph = build(tmp_path, text)
    assert [cable[:2] for cable in cables(graph)][:4] == [("tor 0", "agg 0")] * 2 + [("tor 1", "agg 0")] * 2


def test_aggregation_switch_a_has_the_cores_of_its_place(tmp_path):
    tree = read_tree(str(named_fat_tree(tmp_path)), "x")
    graph = topologies.build(tmp_path / "k4.topo")
    assert (tree.pods, tree.tors, tree.aggs, tree.cores) == (4, 2, 2, 4)
    up = {cable[:2] for cable in cables(graph) if cable[0].startswith("agg")}
    assert {core for agg, core in up if agg in {"agg 0", "agg 2", "agg 4", "agg 6"}} == {"core 0", "core 2"}
    assert {core for agg, core in up if agg in {"agg 1", "agg 3", "agg 5", "agg 7"}} == {"core 1", "core 3"}
    same = topologies.build("fat-tree:k=4,rate=100Gbps,delay=1us")
    assert sorted(np.bincount(graph.link_src)) == sorted(np.bincount(same.link_src))


def named_fat_tree(tmp_path):
    """htsim's form of a fat tree of switches with four ports."""
    tier = "\nTier {}\nDownlink_speed_Gbps 100\nRadix_Down {}\nDownlink_Latency_ns 1000\n{}"
    tiers = tier.format(0, 2, "Radix_Up 2\n") + tier.format(1, 2, "Radix_Up 2\n") + tier.format(2, 4, "")
    (tmp_path / "k4.topo").write_text(f"Nodes 16\nTiers 3\nPodsize 4\n{tiers}")
    return tmp_path / "k4.topo"


def test_two_tiers(tmp_path):
    text = TREE.split("\nTier 2", maxsplit=1)[0].replace("Tiers 3", "Tiers 2").replace("Podsize 8", "Podsize 16")
    text = text.replace("Radix_Down 2\n", "Radix_Down 4\n")
    graph = build(tmp_path, text)
    assert [cable[:2] for cable in cables(graph)] == [(f"tor {i}", "agg 0") for i in range(4)]
    assert (graph.pod == -1).all()


def test_queue_sizes_are_not_read_and_named(tmp_path):
    path = tmp_path / "tree.topo"
    path.write_text(SMALL_TREE)
    assert topologies.build(path).remarks == ()
    path.write_text(SMALL_TREE + "Queue_Down 90\n")
    assert topologies.build(path).remarks == (
        f"{path}: Queue_up and Queue_down are not read; [network] sets the queues of switches",
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("Nodes 16", "Nodes 17", "17 nodes in pods of 8 on ToRs of 4, bundle 1; expected that each divides"),
        ("Nodes 16\n", "", "no nodes; expected Nodes, Tiers 2 or 3"),
        ("Tiers 3", "Tiers 4", "tiers 4 and 3 sections of tiers; expected Nodes"),
        ("Tier 1", "Tier 2", "line 14: tier 2; expected tier 1"),
        ("Radix_Down 4", "Radix_Down four", "line 9: 'Radix_Down four'; expected a whole number from 0 to"),
        ("Radix_Down 4", "Radix_Sideways 4", "line 9: unknown 'Radix_Sideways'; expected one of downlink_speed_gbps"),
        ("Radix_Down 4", "Radix_Down 4\nRadix_Down 4", "line 10: a second 'Radix_Down'"),
        ("Downlink_Latency_ns 1000\n", "", "tier 0 has no downlink_latency_ns; expected a number above 0"),
        (
            "Radix_Up 1\nDownlink_Latency_ns 1000",
            "Radix_Up 3\nDownlink_Latency_ns 1000",
            "radix_up of tier 0 is 3; expected 1",
        ),
        ("Oversubscribed 2", "Oversubscribed 3", "1600 / 600 uplinks of ToRs; expected a whole number"),
        ("Nodes 16", "Nodes 4000000000", "expected a whole number from 0 to"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, old, new, complaint):
    assert old in TREE
    with pytest.raises(topologies.TopologyError) as error:
        build(tmp_path, TREE.replace(old, new))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


OWN = {
    "fat_tree_1024.topo": (1024, 128, 128, 64, 100, 1),
    "fat_tree_1024_1os.topo": (1024, 128, 128, 64, 200, 1),
    "fat_tree_1024_4os.topo": (1024, 128, 32, 16, 200, 4),
    "fat_tree_1024_8os.topo": (1024, 128, 32, 8, 100, 8),
    "fat_tree_128_1os.topo": (128, 32, 32, 16, 100, 1),
    "fat_tree_128_4os.topo": (128, 32, 32, 4, 100, 4),
    "fat_tree_128_8os.topo": (128, 32, 8, 2, 100, 8),
    "fat_tree_8192_1os.topo": (8192, 512, 512, 256, 100, 1),
    "fat_tree_8192_4os.topo": (8192, 512, 128, 64, 100, 4),
    "fat_tree_8192_8os.topo": (8192, 512, 128, 32, 100, 8),
    "leaf_spine_1024.topo": (1024, 32, 32, 0, 100, 1),
    "leaf_spine_1024_oversub.topo": (1024, 32, 8, 0, 100, 4),
}
"""Hosts, ToRs, aggregation switches, cores, Gb/s of the hosts, and the hosts' rate over that of the top links."""


@pytest.mark.parametrize("name", OWN)
def test_their_own_files(shared_data, name):
    path = shared_data / "formats" / "htsim" / name
    hosts, tors, aggs, cores, gbps, ratio = OWN[name]
    assert kind_of(path).key == "htsim-topology"
    said, graph = topologies.extent(path), topologies.build(path)
    assert (said.npus, said.nodes, 2 * said.cables, said.homes) == (hosts, graph.nodes, graph.links, tors)
    kinds = [graph.node_name(node).split()[0] for node in range(graph.npus, graph.nodes)]
    assert [kinds.count(kind) for kind in ("tor", "agg", "core")] == [tors, aggs, cores]
    top = "core" if cores else "agg"
    ends = [graph.node_name(node).split()[0] for node in graph.link_dst.tolist()]
    top_bps = sum(rate for rate, end in zip(graph.link_rate_bps.tolist(), ends, strict=True) if end == top)
    assert hosts * gbps * GBPS == top_bps * ratio
