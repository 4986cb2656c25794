"""Clusters by name: published counts, what may be asked of them, what is said of the rest; large ones in time."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from nadi import topologies
from nadi.topologies.clusters import clusters, find
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.topologies.test_builders import switches

GBPS = 10**9


def tier_rates(graph):
    """One way between NPUs and switches outside servers, and from tier to tier."""
    return [tier["rate_bps"] for tier in topologies.describe(graph)["tiers"] if not tier["in_server"]]


def without_nvswitches(graph):
    return {word: count for word, count in switches(graph).items() if word != "nvswitch"}


def cables_between(graph, one, other):
    kind = [name.split()[0] for name in ["npu 0"] * graph.npus + list(graph.switch_names)]
    ends = zip(graph.link_src[::2].tolist(), graph.link_dst[::2].tolist(), strict=True)
    return sum({kind[a], kind[b]} == {one, other} for a, b in ends)


def most_ports(graph):
    return max(len(graph.out_links(node)) for node in range(graph.npus, graph.nodes) if graph.node_kind[node] == 1)


@pytest.mark.parametrize("name", clusters())
def test_every_cluster_is_built_small_and_whole(name):
    cluster = find(name)
    for gpus in (8, 64, min(cluster.gpus, 4096)):
        graph = topologies.build(f"{name}:gpus={gpus}")
        assert graph.npus == gpus
        assert graph.name == f"{name}:gpus={gpus}"
        assert graph.accelerator in {"", "a100", "h100", "b200"}
    assert topologies.extent(name).npus == cluster.gpus
    assert cluster.topology(64)["name"] in topologies.topologies()
    assert cluster.most_gpus >= cluster.gpus


@pytest.mark.parametrize(
    ("units", "leaf", "spine", "core"),
    [(2, 16, 8, 0), (4, 32, 16, 0), (8, 64, 32, 0), (16, 128, 128, 64), (32, 256, 256, 128), (64, 512, 512, 256)],
)
def test_dgx_superpods_have_the_switches_and_cables_of_nvidias_table(units, leaf, spine, core):
    """docs.nvidia.com/dgx-superpod, DGX B200 reference architecture, larger configurations."""
    for name in ("dgx-h100-superpod", "dgx-b200-superpod") if units <= 16 else ("dgx-b200-superpod",):
        graph = topologies.build(f"{name}:gpus={256 * units}")
        expected = {"leaf": leaf, "spine": spine} | ({"core": core} if core else {})
        assert without_nvswitches(graph) == expected
        for pair in (("npu", "leaf"), ("leaf", "spine"), *([("spine", "core")] if core else [])):
            assert cables_between(graph, *pair) == 256 * units
        assert most_ports(graph) == 64
        assert set(tier_rates(graph)) == {256 * units * 400 * GBPS}  # nothing is oversubscribed


def test_an_a100_superpod_of_140_servers():
    """NVIDIA RA-09950-001: 56 leaves, 80 spines and 28 cores of 40 ports, 1,120 cables at each tier."""
    graph = topologies.build("selene:gpus=1120")
    assert switches(graph) == {"nvswitch": 140, "leaf": 56, "spine": 80, "core": 28}
    assert {cables_between(graph, *pair) for pair in pairwise(("npu", "leaf", "spine", "core"))} == {1120}
    assert most_ports(graph) == 40
    assert topologies.describe(graph)["diameter_hops"] == 6  # three levels


def test_selene_whole_has_fewer_switches_than_are_published_with_storage():
    graph = topologies.build("selene")
    assert graph.npus == 8 * 560
    assert 600 < sum(without_nvswitches(graph).values()) <= 850  # arXiv 2104.04473, section 5
    assert set(tier_rates(graph)) == {4480 * 200 * GBPS}
    assert most_ports(graph) <= 40


def test_llama3_has_pods_of_3072_gpus_and_one_in_seven_above_them():
    """arXiv 2407.21783, section 3.3.1: racks of 16, 192 racks a pod at full bisection, 8 pods, 1:7."""
    graph = topologies.build("llama3-24k")
    assert graph.npus == 24576
    assert topologies.describe(graph)["pods"] == 8
    assert (graph.pod[: graph.npus] == [npu // 3072 for npu in range(graph.npus)]).all()
    assert switches(graph)["leaf"] == 24576 // 16 == 8 * 192
    at_gpus, to_pod, above = tier_rates(graph)
    assert at_gpus == to_pod == 24576 * 400 * GBPS
    assert to_pod / above == pytest.approx(7, rel=0.03)  # whole cables: 192 / 28
    assert len(topologies.route(graph, 0, 8)) == 2  # two servers of a rack
    assert len(topologies.route(graph, 0, 16)) == 4
    assert len(topologies.route(graph, 0, 3072)) == 6


def test_deepseek_has_eight_planes_of_two_layers():
    """arXiv 2505.09343, table 3: of switches of 64 ports, 768 of them for 16,384 GPUs."""
    graph = topologies.build("deepseek-h800:gpus=16384")
    assert sum(without_nvswitches(graph).values()) == 768
    assert cables_between(graph, "leaf", "spine") == 16384
    built = topologies.build("deepseek-h800")
    assert built.npus == 2048
    assert len(topologies.route(built, 0, 8 * 255)) == 4  # the same plane, other leaves
    planes = {int(built.link_dst[topologies.route(built, npu, 2040 + npu)[0]]) for npu in range(8)}
    assert len(planes) == 8
    inside = built.link_rate_bps[topologies.route(built, 0, 1)]
    assert 2 * inside[0] == 8 * 400 * GBPS  # 400 GB/s both ways
    assert built.link_rate_bps[topologies.route(built, 0, 8)[0]] == 400 * GBPS


def test_hpn_has_two_ports_into_two_planes():
    """Qian et al., SIGCOMM 2024; SimAI's AlibabaHPN: 15 segments of 1,024, 240 ToRs, 120 aggregation switches."""
    graph = topologies.build("alibaba-hpn")
    assert graph.npus == 15 * 1024
    assert without_nvswitches(graph) == {"leaf": 240, "spine": 120}
    nics = [link for link in graph.out_links(0) if graph.node_kind[graph.link_dst[link]] == topologies.SWITCH]
    assert graph.link_rate_bps[nics].tolist() == [200 * GBPS] * 2
    segment = [node for node in range(graph.npus, graph.nodes) if graph.node_name(node).startswith("leaf")][:16]
    assert {int(graph.link_dst[link]) for npu in range(1024) for link in graph.out_links(npu)} >= set(segment)
    leaf = segment[0]
    down = [link for link in graph.out_links(leaf) if graph.link_dst[link] < graph.npus]
    up = [link for link in graph.out_links(leaf) if graph.link_dst[link] >= graph.npus]
    assert (len(down), len(up)) == (128, 60)
    assert set(graph.link_rate_bps[up].tolist()) == {400 * GBPS}
    top = graph.nodes - 1
    assert len(graph.out_links(top)) == 120  # 8 ToRs of a plane in each of 15 segments
    assert topologies.describe(graph)["diameter_hops"] == 4


@pytest.mark.parametrize(("gpus", "extents"), [(64, (4, 4, 4)), (512, (8, 8, 8)), (4096, (16, 16, 16))])
def test_tpu_v4_is_a_torus_of_cubes(gpus, extents):
    graph = topologies.build(f"tpu-v4:gpus={gpus}")
    assert graph.dims == extents
    assert {len(graph.out_links(npu)) for npu in range(gpus)} == {6}
    assert set(graph.link_rate_bps.tolist()) == {400 * GBPS}


def test_tpu_v4_has_about_the_published_bisection():
    """cloud.google.com/tpu/docs/v4: 24 TB/s for 4,096 chips; 2 x 16 x 16 links of 50 GB/s are 25.6."""
    bisection_bps = topologies.describe(topologies.build("tpu-v4"))["bisection_bps"]
    assert bisection_bps == 2 * 16 * 16 * 400 * GBPS
    assert bisection_bps / 8e12 == pytest.approx(24, rel=0.07)


def test_the_small_one_is_one_switch_of_64_ports():
    graph = topologies.build("small-a100")
    assert switches(graph) == {"nvswitch": 8, "leaf": 1}
    assert len(graph.out_links(graph.nodes - 1)) == 64


@pytest.mark.parametrize("tell", [topologies.build, topologies.extent])
def test_a_part_that_cannot_be_is_said_in_one_line(tell):
    """By both; tests/records has other parts."""
    line = refused(topologies.TopologyError, tell, "selene:gpus=9")
    assert line == "gpus = 9 of selene; expected 1 to 8, or a multiple of 8 up to 4480; nearest: 8 and 16"


def test_unknown_clusters_name_the_nearest():
    line = refused(topologies.TopologyError, find, "lama3-24k")
    assert "unknown cluster 'lama3-24k'; did you mean 'llama3-24k'" in line


def test_a_part_of_a_server_is_a_server_of_so_many():
    graph = topologies.build("dgx-h100-superpod:gpus=4")
    assert (graph.npus, len(set(graph.host.tolist()))) == (4, 1)


def test_parameters_of_the_fabric_may_be_given_beside_gpus():
    graph = topologies.build("llama3-24k:gpus=64,units_per_pod=2,spines=4")
    assert topologies.describe(graph)["pods"] == 2
    assert switches(graph) == {"nvswitch": 8, "leaf": 4, "spine": 8, "core": 28}
    table = {"name": "selene", "gpus": 16, "rate": "100Gbps"}
    assert 100 * GBPS in topologies.build(table).link_rate_bps


def test_hosts_have_the_memory_of_their_data_sheets():
    host = find("selene").host
    assert (host.memory, host.memory_bandwidth, host.pcie_rate) == (2 * 10**12, 8 * 4096 * 10**8, 256 * GBPS)
    assert find("tpu-v4").host.memory is None


@pytest.mark.parametrize("name", clusters())
def test_every_value_of_a_file_has_a_source_or_says_that_it_has_none(name):
    """A comment beside the value, or above the block it stands in, or from the top of the file."""
    lines = (Path(topologies.__file__).parent / "clusters" / f"{name}.toml").read_text().splitlines()
    cited = [line for line in lines if "#" in line]
    assert len(cited) >= 8
    marks = re.compile(r"arXiv|NVIDIA|AMD|SIGCOMM|ISCA|cloud\.google|imagined")
    assert marks.search("\n".join(lines[:4]) + find(name).source)
    bare = [line for line in lines if re.match(r"(rate|nvlink_rate|buffer|congestion_control|hosts_per_unit) =", line)]
    for line in nonempty(bare):
        at = lines.index(line)
        assert "#" in line or "#" in lines[at - 1] or name == "small-a100", line


def test_an_oversubscription_takes_the_place_of_the_spines(tmp_path):
    """Of a listed cluster, of the file of one, and beside gpus; spines take that of an oversubscription."""
    halved = topologies.build("dgx-h100-superpod:gpus=512,oversubscription=2")
    assert switches(halved)["spine"] == 16  # leaves of 32 NICs, so 16 cables up
    assert cables_between(halved, "leaf", "spine") == 256
    path = tmp_path / "mine.toml"
    fabric = 'name = "rail-optimised"\nhosts_per_rail_leaf = 4\noversubscription = 2\n'
    path.write_text(f'gpu = "h100"\ngpus_per_host = 8\ngpus = 64\n[fabric]\n{fabric}')
    assert switches(topologies.build(str(path)))["spine"] == 2
    assert switches(topologies.build(f"{path}:spines=3"))["spine"] == 3
    assert switches(topologies.build(f"{path}:oversubscription=1,gpus=32"))["spine"] == 4
    with pytest.raises(topologies.TopologyError, match="up to 64; nearest: 64"):
        topologies.build(f"{path}:gpus=72")  # without [[sizes]], as many as there are


def test_files_need_no_parameters_that_their_topology_lacks(tmp_path):
    path = tmp_path / "racks.toml"
    path.write_text('gpu = "a100"\ngpus_per_host = 1\ngpus = 64\n[fabric]\nname = "leaf-spine"\nhosts_per_leaf = 8\n')
    assert topologies.build(f"{path}:gpus=16").npus == 16


@pytest.mark.parametrize("fabric", ["rail-fat-tree:hosts_per_unit=4", "rail-optimised:hosts_per_rail_leaf=4"])
def test_gpus_share_the_nics_of_their_server(fabric):
    """Four NICs for eight GPUs: GPUs 2j and 2j + 1 are on the leaf of NIC j, each with half of its rate."""
    graph = topologies.build(f"{fabric},npus=64,nics_per_host=4,rate=200Gbps")
    assert switches(graph)["leaf"] == 2 * 4
    assert switches(graph)["spine"] == 4
    leaves = []
    for npu in range(8):
        [link] = [link for link in graph.out_links(npu) if graph.node_kind[graph.link_dst[link]] == topologies.SWITCH]
        assert graph.link_rate_bps[link] == 100 * GBPS
        leaves.append(int(graph.link_dst[link]))
    assert leaves == [leaf for leaf in leaves[::2] for _ in range(2)]
    assert len(set(leaves)) == 4
    with pytest.raises(topologies.TopologyError, match="gpus_per_host = 8; expected a multiple of nics_per_host = 3"):
        topologies.build(f"{fabric},npus=64,nics_per_host=3")


def test_a_part_of_a_server_has_its_part_of_the_nics(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'gpu = "h100"\ngpus_per_host = 8\ngpus = 64\n'
        '[fabric]\nname = "rail-fat-tree"\nnics_per_host = 4\nrate = "200Gbps"\n'
    )
    assert topologies.build(f"{path}:gpus=4").link_rate_bps.min() == 100 * GBPS
    assert topologies.build(f"{path}:gpus=4,nics_per_host=8").link_rate_bps.min() == 200 * GBPS


SCRIPT = """
import json, random, re, sys, time
from pathlib import Path
from nadi import topologies
begin = time.process_time()
graph = topologies.build(sys.argv[1])
seconds = time.process_time() - begin
peak = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # ru_maxrss survives exec
choose = random.Random(1)
hops = [len(topologies.route(graph, *choose.sample(range(graph.npus), 2), choose.choice)) for _ in range(200)]
print(json.dumps([seconds, peak, graph.npus, graph.nodes - graph.npus, graph.links, max(hops)]))
"""


@pytest.mark.parametrize(
    ("spec", "switches", "cables", "hops"),
    [
        ("fat-tree:npus=16384", 2304, 49152, 6),
        ("rail-optimised:npus=16384", 2592, 49152, 4),
        ("deepseek-h800:gpus=16384", 2816, 65536, 5),
        ("torus:sizes=32x32x16", 0, 49152, 40),
    ],
)
def test_16384_npus(spec, switches, cables, hops):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, spec],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    seconds, peak_bytes, npus, switches_found, links, longest = json.loads(result.stdout)
    assert (npus, switches_found, links) == (16384, switches, 2 * cables)
    assert 2 < longest <= hops
    assert seconds < 30
    assert peak_bytes < 500e6
