"""SimAI's topology text and htsim's .topo: made here, and the projects' own files where they are at hand."""

import numpy as np
import pytest

from nadi import topologies
from nadi.inputs import kind_of
from nadi.inputs.units import GBPS
from nadi.topologies.builders.htsim import read_tree
from tests.fabric.scenarios import messages, simulate
from tests.refusals import refused

TEXT = """6 2 2 2 5 H100
2 3 4 5
0 2 2880Gbps 0.000025ms 0
1 3 2880Gbps 0.000025ms 0
0 4 400Gbps 0.0005ms 0
1 5 400Gbps 0.0005ms 0
4 5 100Gbps 0.001ms 0
"""


def build(tmp_path, text, **arguments):
    path = tmp_path / "net"
    path.write_text(text)
    return topologies.build({"name": "simai", "path": str(path), **arguments}) if arguments else topologies.build(path)


def test_nodes_and_links(tmp_path):
    graph = build(tmp_path, TEXT)
    assert (graph.npus, graph.nodes, graph.links) == (2, 6, 10)
    assert graph.node_kind.tolist() == [0, 0, 2, 2, 1, 1]
    assert [graph.node_name(node) for node in (2, 3, 4, 5)] == ["nvswitch 2", "nvswitch 3", "switch 4", "switch 5"]
    route = topologies.route(graph, 0, 1)
    assert graph.link_rate_bps[route].tolist() == [400 * 10**9, 100 * 10**9, 400 * 10**9]
    assert graph.link_delay_ps[route].tolist() == [500_000, 1_000_000, 500_000]
    assert graph.host.tolist() == [0, 0]


def test_switch_latencies(tmp_path):
    graph = build(tmp_path, TEXT, switch_latency="300ns", nvswitch_latency="50ns")
    assert graph.node_latency_ps.tolist() == [0, 0, 50_000, 50_000, 300_000, 300_000]


def test_the_short_header_and_switches_before_the_gpus(tmp_path):
    graph = build(tmp_path, "4 1 3\n0\n0 1 100Gbps 1us 0\n0 2 100Gbps 1us 0\n\n3 0 200Gbps 1us 0.0\n")
    assert (graph.npus, graph.nodes) == (3, 4)
    assert graph.node_name(3) == "switch 0"
    assert graph.link_rate_bps[topologies.route(graph, 0, 2)].tolist() == [100 * 10**9, 200 * 10**9]


def test_what_follows_the_links_of_the_header_is_not_read(tmp_path):
    """As in ns-3; files of HPCC and of ConWeave end in a description of the form."""
    behind = "\n\nFirst line: nodes, switches, links\nsrc0 dst0 rate delay error_rate\n...\n"
    graph = build(tmp_path, f"4 1 3\n3\n0 3 1Gbps 1us 0\n\n1 3 1Gbps 1us 0\n2 3 1Gbps 1us 0{behind}")
    assert (graph.npus, graph.links) == (3, 6)
    [remark] = graph.warnings
    assert remark.startswith(f"{tmp_path / 'net'}: 3 lines are not read, from line 8 on ('First line: nodes, switches,")
    assert remark.endswith("behind the 3 links of the header")
    assert topologies.extent(tmp_path / "net").cables == 3
    graph = build(tmp_path, TEXT + "5 2 1Gbps 1us 0\n")
    assert "1 line is not read, from line 8 on" in graph.warnings[0]
    assert (graph.links, build(tmp_path, TEXT).warnings) == (10, ())


def test_numbers_of_the_file(tmp_path):
    graph = build(tmp_path, "5 1 4\n1\n1 0 1Gbps 1us 0\n1 2 1Gbps 1us 0\n1 3 1Gbps 1us 0\n1 4 1Gbps 1us 0\n")
    assert graph.numbers == (0, 2, 3, 4, 1)
    text = "7 2 2 1 8 H100\n0 1 2\n" + "".join(f"{a} {b} 1Gbps 1us 0\n" for a in range(3, 7) for b in (0, 1))
    graph = build(tmp_path, text.replace("2 1 8", "2 1 9") + "3 2 1Gbps 1us 0\n")
    assert graph.numbers == (3, 4, 5, 6, 0, 2)  # NVSwitches 0 and 1 are one


@pytest.mark.parametrize(
    ("gpu_type", "model"), [("H100", "h100"), ("H800", "h100"), ("A800", "a100"), ("b200", "b200"), ("NONE", "")]
)
def test_the_gpu_type_selects_the_constants_of_nccl(tmp_path, gpu_type, model):
    graph = build(tmp_path, TEXT.replace("H100", gpu_type))
    assert (graph.accelerator, graph.warnings) == (model, ())


def test_an_unknown_gpu_type_is_named(tmp_path):
    graph = build(tmp_path, TEXT.replace("H100", "X1"))
    assert graph.accelerator == ""
    assert "gpu_type 'X1' is unknown: NCCL's constants follow from the rate of NVLink" in graph.warnings[0]


def test_an_empty_and_a_binary_file(tmp_path):
    with pytest.raises(topologies.TopologyError, match="line 1: '' is no header"):
        build(tmp_path, "")
    (tmp_path / "net").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(topologies.TopologyError, match="not a text"):
        topologies.build(tmp_path / "net")


@pytest.mark.parametrize(
    ("name", "switches", "rails"),
    [
        ("Spectrum-X_8g_8gps_400Gbps_H100", {"nvswitch": 1, "switch": 9}, True),
        ("Spectrum-X_128g_8gps_400Gbps_H100", {"nvswitch": 16, "switch": 9}, True),
        ("DCN+SingleToR_128g_8gps_400Gbps_H100", {"nvswitch": 16, "switch": 10}, False),
    ],
)
def test_files_of_simai(shared_data, name, switches, rails, tmp_path):
    path = shared_data / "simai" / name
    nodes, per_server, nvswitches, count, links, _ = path.read_text().split("\n", 1)[0].split()
    graph = topologies.build(path)
    assert graph.nodes == int(nodes)
    assert graph.links == 2 * int(links)
    assert graph.npus == int(nodes) - int(nvswitches) - int(count)
    assert topologies.describe(graph)["switches"] == switches
    assert (graph.node_kind == topologies.NVSWITCH).sum() == int(nvswitches)
    assert graph.host.tolist() == [npu // int(per_server) for npu in range(graph.npus)]
    for npu in range(graph.npus):
        assert graph.node_kind[graph.link_dst[graph.out_links(npu)]].tolist() == [2, 1]
    assert len(topologies.route(graph, 0, 7)) == 2
    if graph.npus > 8:
        assert len(topologies.route(graph, 0, 8)) == 2
        assert len(topologies.route(graph, 0, 9)) == (4 if rails else 2)
    topologies.write_toml(graph, tmp_path / "net.toml")
    again = topologies.build(tmp_path / "net.toml")
    assert (again.link_src == graph.link_src).all()
    assert (again.link_rate_bps == graph.link_rate_bps).all()


FOUR = "5 1 5\n0\n" + "".join(f"{gpu} 0 {gpu}00Gbps 1us 0\n" for gpu in (1, 2, 3, 4)) + "0 2 700Gbps 1us 0\n"


def test_logical_dimensions_are_those_of_the_first_gpus(tmp_path):
    """GPUs 1 and 2 of four, the second with two links."""
    graph = build(tmp_path, FOUR, dims="2x1")
    assert (graph.npus, graph.nodes, graph.dims, graph.switch_names) == (2, 3, (2, 1), ("switch 0",))
    assert sorted(graph.link_rate_bps[::2]) == [10**11, 2 * 10**11, 7 * 10**11]
    assert build(tmp_path, FOUR, dims="2x2").dims == (2, 2)
    assert build(tmp_path, FOUR).dims == (4,)
    with pytest.raises(topologies.TopologyError, match="dims 3x2 for 4 GPUs; expected at most as many"):
        build(tmp_path, FOUR, dims="3x2")


def test_the_last_of_parallel_links(tmp_path):
    graph = build(tmp_path, FOUR, parallel_links="last")
    assert sorted(graph.link_rate_bps[::2]) == [10**11, 3 * 10**11, 4 * 10**11, 7 * 10**11]
    assert build(tmp_path, FOUR).links == 10
    with pytest.raises(topologies.TopologyError, match="parallel_links"):
        build(tmp_path, FOUR, parallel_links="first")


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


def build_htsim(tmp_path, text):
    (tmp_path / "x.topo").write_text(text)
    return topologies.build(tmp_path / "x.topo")


def cables(graph):
    """Names of the ends, rate in Gb/s and delay in ns of each cable between switches."""
    columns = (graph.link_src, graph.link_dst, graph.link_rate_bps // GBPS, graph.link_delay_ps // 1000)
    rows = zip(*(column[::2].tolist() for column in columns), strict=True)
    return [(graph.node_name(a), graph.node_name(b), gbps, ns) for a, b, gbps, ns in rows if a >= graph.npus]


def test_uplinks_have_the_speed_of_the_tier_above(tmp_path):
    graph = build_htsim(tmp_path, TREE)
    assert (graph.npus, graph.nodes, graph.links // 2) == (16, 16 + 4 + 2 + 1, 16 + 4 + 2)
    tors = [(f"tor {tor}", f"agg {tor // 2}", 200, 500) for tor in range(4)]
    assert cables(graph) == [*tors, ("agg 0", "core 0", 400, 2000), ("agg 1", "core 0", 400, 2000)]
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
    graph = build_htsim(tmp_path, text)
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
    graph = build_htsim(tmp_path, text)
    assert [cable[:2] for cable in cables(graph)] == [(f"tor {i}", "agg 0") for i in range(4)]
    assert (graph.pod == -1).all()


def test_queue_sizes_are_not_read_and_named(tmp_path):
    path = tmp_path / "tree.topo"
    path.write_text(SMALL_TREE)
    assert topologies.build(path).warnings == ()
    path.write_text(SMALL_TREE + "Queue_Down 90\n")
    assert topologies.build(path).warnings == (
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
def test_what_is_wrong_in_htsims_files_is_said_in_one_line(tmp_path, old, new, complaint):
    assert old in TREE
    assert complaint in refused(topologies.TopologyError, build_htsim, tmp_path, TREE.replace(old, new))


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


RATES = """Switch_latency_ns 500
Link_speed_global_Gbps 200
Link_speed_local_Gbps 100
Link_speed_host_Gbps 400
Link_latency_global_ns 500
Link_latency_local_ns 25
Link_latency_host_ns 10
"""
DRAGONFLY = "# Dragonfly\np 2\na 2\nh 1\n\n" + RATES
ROUTERS = "0 1 3\n1 4\n2 3 5\n4 5\n"


def direct(tmp_path, text=DRAGONFLY, routers=ROUTERS):
    path = tmp_path / "net.topo"
    path.write_text(text)
    if routers is not None:
        (tmp_path / "net.adjlist").write_text(routers)
    return path


def test_a_dragonfly_of_htsim(tmp_path):
    path = direct(tmp_path)
    graph, said = topologies.build(path), topologies.extent(path)
    assert (graph.npus, graph.nodes, graph.links) == (12, 18, 2 * (12 + 6)) == (said.npus, said.nodes, 2 * said.cables)
    assert graph.group[12:].tolist() == [0, 0, 1, 1, 2, 2]
    assert [graph.node_name(node) for node in (11, 12, 17)] == ["npu 11", "router 0", "router 5"]
    # hosts of routers 0 and 2: over router 3, to which the global link of router 0 leads
    route = topologies.route(graph, 0, 4)
    assert graph.link_rate_bps[route].tolist() == [rate * GBPS for rate in (400, 200, 100, 400)]
    assert graph.link_delay_ps[route].tolist() == [10_000, 500_000, 25_000, 10_000]
    assert set(graph.node_latency_ps[12:].tolist()) == {500_000}


@pytest.mark.parametrize(
    ("text", "routers", "complaint"),
    [
        (DRAGONFLY.replace("h 1", "h 0"), ROUTERS, ": sizes a, h, p; expected p, a and h, or p and q, from 1"),
        (DRAGONFLY.replace("h 1", "q 1"), ROUTERS, ": sizes a, p, q; expected p, a and h, or p and q, from 1"),
        (DRAGONFLY.replace("Switch_latency_ns 500\n", ""), ROUTERS, ": no Switch_latency_ns; expected it in a line"),
        (DRAGONFLY + "p 2\n", ROUTERS, ": line 13: a second 'p'; expected one of"),
        (DRAGONFLY.replace("p 2", "p two"), ROUTERS, ": line 2: 'p two'; expected a whole number from 0 to 4194303"),
        (DRAGONFLY.replace("p 2", "p 999999"), ROUTERS, ": 6000000 nodes; expected at most 4194303"),
        (DRAGONFLY, None, "net.adjlist: No such file or directory; expected routers and their neighbours"),
        (DRAGONFLY, "0 6\n", "net.adjlist: line 1: router 6; expected others below 6"),
        (DRAGONFLY, "0 0\n", "net.adjlist: line 1: router 0; expected others below 6"),
        (DRAGONFLY, "0 x\n", "net.adjlist: line 1: '0 x'; expected numbers of routers"),
        (DRAGONFLY, "0 1\n", "no path of switches from npu 0 to npu 4"),
    ],
)
def test_what_is_wrong_in_direct_networks_is_one_line(tmp_path, text, routers, complaint):
    path = direct(tmp_path, text, routers)
    assert complaint in refused(topologies.TopologyError, topologies.build, str(path))


@pytest.mark.parametrize(
    ("file", "spec"),
    [
        ("df/dragonfly", "dragonfly:p=4,a=8,h=4,switch_latency=500ns"),
        ("sf/slimfly", "slim-fly:q=9,p=7,switch_latency=500ns"),
    ],
)
def test_their_direct_networks(shared_data, file, spec):
    """Rates, delays and sizes are the same; of the dragonfly, which numbers switches in the same way, cables, too."""
    theirs, ours = topologies.build(str(shared_data / f"fabrics/spritz/{file}.topo")), topologies.build(spec)
    assert (theirs.npus, theirs.nodes, theirs.links) == (ours.npus, ours.nodes, ours.links)
    assert (theirs.group == ours.group).all()

    def cables(graph):
        ends = np.sort(np.stack([graph.link_src[::2], graph.link_dst[::2]]), axis=0)
        return sorted(zip(*ends.tolist(), graph.link_rate_bps[::2], graph.link_delay_ps[::2], strict=True))

    kinds = [sorted(cable[2:] for cable in cables(graph)) for graph in (theirs, ours)]
    assert kinds[0] == kinds[1]
    if file.startswith("df"):
        assert cables(theirs) == cables(ours)


# Dual ToRs of SimAI's generator (AlibabaHPN): each GPU has a port at a ToR of either plane; planes share their spines
# ("single plane") or have spines of their own ("dual plane")

SERVERS, GPUS, SPINES = 4, 2, 4


def dual_tor(planes):
    """A file as SimAI writes it: 4 servers of 2 GPUs, a ToR per rail and plane, and links of 200 Gb/s from a ToR up."""
    npus = SERVERS * GPUS
    tors = npus + SERVERS
    spines = tors + 2 * GPUS
    lines = [f"{gpu} {npus + gpu // GPUS} 2880Gbps 0.000025ms 0" for gpu in range(npus)]
    lines += [f"{gpu} {tors + GPUS * port + gpu % GPUS} 200Gbps 0.0005ms 0" for gpu in range(npus) for port in range(2)]
    for tor in range(2 * GPUS):
        own = range(SPINES) if planes == 1 else range(tor // GPUS * 2, tor // GPUS * 2 + 2)
        lines += [f"{tors + tor} {spines + spine} 100Gbps 0.001ms 0" for spine in own]
    switches = range(npus, spines + SPINES)
    header = f"{spines + SPINES} {GPUS} {SERVERS} {len(switches) - SERVERS} {len(lines)} H100"
    return "\n".join([header, " ".join(map(str, switches)), *lines, ""])


@pytest.mark.parametrize("planes", [1, 2])
def test_ports_of_dual_tors_are_in_their_planes(planes, tmp_path):
    graph = build(tmp_path, dual_tor(planes))
    assert (graph.npus, graph.host.tolist()) == (8, [0, 0, 1, 1, 2, 2, 3, 3])
    nics = [link for link in graph.out_links(0) if graph.node_kind[graph.link_dst[link]] != 2]
    assert [graph.node_name(int(graph.link_dst[link])) for link in nics] == ["switch 12", "switch 14"]
    # another rail is two hops further on, over a spine of either plane, and each port carries half
    loads = graph.routing.loads(graph, np.array([0]), np.array([7]), np.ones(1))
    assert loads[nics].tolist() == [0.5, 0.5]
    used = {graph.node_name(int(graph.link_dst[link])) for link in np.flatnonzero(loads)}
    assert used == {"npu 7", *(f"switch {tor}" for tor in range(12, 20))}
    # from ToR to ToR of one plane: where planes have spines of their own, no packet changes the plane
    spines_of = {
        tor: {int(graph.link_dst[link]) for link in graph.out_links(tor) if graph.link_dst[link] >= 16}
        for tor in range(12, 16)
    }
    assert (spines_of[12] & spines_of[14] == set()) == (planes == 2)
    assert spines_of[12] == spines_of[13]


@pytest.mark.parametrize("planes", [1, 2])
def test_a_message_over_dual_tors_takes_the_sum_of_its_links(planes, tmp_path):
    graph = build(tmp_path, dual_tor(planes), switch_latency="300ns")
    links = topologies.route(graph, 0, 7)
    # 4178 bytes over a port of 200 Gb/s at each end, and two uplinks of 100 Gb/s; four cables and three switches
    sends_ps = 2 * 4178 * 40 + 2 * 4178 * 80
    path_ps = sends_ps + 2 * 500_000 + 2 * 1_000_000 + 3 * 300_000
    assert graph.link_rate_bps[links].tolist() == [200 * GBPS, 100 * GBPS, 100 * GBPS, 200 * GBPS]
    results, _ = simulate(graph, messages([0], [7], 4096), nvlink_framing=False)
    assert results.flows["finish_ps"].tolist() == [path_ps]
