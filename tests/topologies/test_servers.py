"""Servers from inside: files of NCCL, RCCL and nvidia-smi; parallel NVSwitches, NVLinks and NICs add up."""

import numpy as np
import pytest

from nadi import topologies
from nadi.topologies.graph import NVSWITCH, TopologyError
from nadi.topologies.routing import route
from tests.refusals import refused

GBPS = 10**9
# Azure's ndv5-topo.xml in small: GPUs and NICs are bare pci elements.
PARTIAL = """<system version="1">
  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="00000000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:05.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0009:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0105:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
</system>
"""
# Two pairs of V100 with direct NVLinks; GPUs of different pairs meet at a CPU.
PAIRS = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:01:00.0" class="0x030200"><gpu dev="1" sm="70" rank="1">
      <nvlink target="0000:02:00.0" count="3" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:02:00.0" class="0x030200"><gpu dev="0" sm="70" rank="0">
      <nvlink target="0000:01:00.0" count="3" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:03:00.0" class="0x030200"><gpu dev="2" sm="70" rank="2"/></pci>
  </cpu>
</system>
"""
MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPIX\t16-31,144-159\t1\t\tN/A
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPIX\t16-31,144-159\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPIX\tPIX\tSYS\t X

Legend:

  X    = Self
"""


def built(tmp_path, text, *parameters, name="nccl"):
    path = tmp_path / "host.txt"
    path.write_text(text)
    return topologies.build(f"{name}:path={path}," + ",".join(parameters) if parameters else str(path))


def way(graph, src, dst):
    """Return the names of the switches from an NPU to another, and the slowest rate."""
    links = route(graph, src, dst)
    return [graph.node_name(graph.link_dst[link]) for link in links[:-1]], int(graph.link_rate_bps[links].min()) / GBPS


def test_the_full_file_of_a_dgx_a100_is_its_machine_inside(shared_data):
    path = shared_data / "formats/nccl-topology/dgx_a100_nccl_topo.xml"
    graph = topologies.build(str(path))
    assert (graph.npus, graph.accelerator, len(set(graph.host.tolist()))) == (8, "a100", 1)
    assert way(graph, 0, 7) == (["nvswitch 0"], 2400)  # twelve NVLinks of 25 GB/s to all six switches, which are one
    assert sum(name.startswith("nic") for name in graph.switch_names) == 10
    assert sum(name.startswith("pci ") for name in graph.switch_names) == 12  # 22 without Broadcom's second level
    between_cpus = [rate for rate in graph.link_rate_bps[::2].tolist() if rate == 128 * GBPS]
    assert len(between_cpus) == 15  # pairs of six CPUs, of Zen 2


def test_servers_meet_on_the_rails_of_the_nics_that_gpus_are_nearest_to(shared_data):
    path = shared_data / "formats/nccl-topology/dgx_a100_nccl_topo.xml"
    graph = topologies.build(f"nccl:path={path},servers=2")
    assert (graph.npus, graph.dims) == (16, (8, 2))
    assert sum(name.startswith("rail") for name in graph.switch_names) == 8  # the two storage NICs have none
    ways = {npu: way(graph, npu, npu + 8) for npu in range(8)}
    assert all(rate == 192 for _, rate in ways.values())  # PCIe 4.0, below the 200 Gb/s of the NIC
    assert len({next(name for name in names if name.startswith("rail")) for names, _ in ways.values()}) == 8
    assert all(names[0].startswith("pcie port") and names[1].startswith("nic") for names, _ in ways.values())


def test_bare_elements_are_completed(tmp_path):
    graph = built(tmp_path, PARTIAL)
    assert graph.accelerator == "h100"  # by PCIe 5.0
    assert way(graph, 0, 1) == (["nvswitch 0"], 3600)
    graph = built(tmp_path, PARTIAL, "servers=2", "accelerator=a100", "nic_rate=100Gbps")
    assert graph.accelerator == "a100"
    assert way(graph, 0, 2)[1] == 100
    assert way(graph, 0, 1)[1] == 2400
    names, _ = way(graph, 0, 3)
    assert "cpu 0/0" in names or "cpu 1/0" in names  # to the NIC of the other side, or on the side of the receiver


def test_direct_nvlinks_and_pcie_without_speeds(tmp_path):
    graph = built(tmp_path, PAIRS)
    assert way(graph, 0, 1) == (["nvlink 0-1"], 600)
    assert way(graph, 0, 2) == (["pcie port 0", "cpu 0"], 96)  # PCIe 3.0 x16 where there is no speed
    assert graph.link_delay_ps[route(graph, 0, 1)].sum() == 25_000


@pytest.mark.parametrize(
    "matrix", [MATRIX, MATRIX.replace("\x1b", ""), MATRIX.replace("\x1b[4m", "").replace("\t", " ")]
)
def test_a_matrix_of_nvidia_smi_has_nvswitches_and_the_tree_of_its_paths(tmp_path, matrix):
    graph = built(tmp_path, matrix)
    assert graph.accelerator == "a100"
    assert way(graph, 0, 3) == (["nvswitch 0"], 2400)
    graph = built(tmp_path, MATRIX, "servers=2", name="nvidia-smi")
    names, rate = way(graph, 2, 6)
    assert rate == 192
    assert [name.partition(" ")[0] for name in names] == ["pcie", "pcie", "nic", "rail", "nic", "pcie", "pcie"]


@pytest.mark.parametrize("word", ["NV3", "NV2"])
def test_few_nvlinks_are_direct(tmp_path, word):
    graph = built(tmp_path, f"     GPU0 GPU1 GPU2\nGPU0 X {word} SYS\nGPU1 {word} X PHB\nGPU2 SYS PHB X\n")
    assert way(graph, 0, 1) == (["nvlink 0-1"], int(word[-1]) * 200)
    assert graph.accelerator == "v100"
    assert way(graph, 1, 2)[0][1].startswith("root")
    assert NVSWITCH in graph.node_kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system/>", "no GPU; expected pci elements"),
        ("<system><cpu><pci class='0x03'", "no XML: "),
        (PARTIAL.replace('link_width="16"', 'link_width="x"'), "pci link_width 'x'; expected a whole number"),
        (PARTIAL.replace('modelid="143"', 'modelid="-1"'), "cpu modelid '-1'"),
        (PAIRS.replace('count="3"', 'count="99999"'), "nvlink count '99999'"),
        ("<system><cpu>" + "<pci>" * 100 + "</pci>" * 100 + "</cpu></system>", "more than 64 deep"),
        (MATRIX.replace("PXB", "PXX"), "GPU0 to NIC0 is 'PXX'; expected X, PIX"),
        (MATRIX.replace("GPU0\t X \tNV12", "GPU0\t X \tNW12"), "GPU0 to GPU1 is 'NW12'; expected X, NV#, PIX"),
        (MATRIX.replace("\t X \tSYS\n", "\t X \tNV12\n"), "NIC0 to NIC1 is 'NV12'; expected X, PIX"),
        (MATRIX.replace("GPU3\tNV12", "GPU4\tNV12"), "row 4 of the matrix; expected GPU3"),
        (MATRIX[:200], "row 3 of the matrix"),
        ("GPU0 GPU0\n", "2 different devices"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, text, message):
    assert message in refused(TopologyError, built, tmp_path, text)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (("accelerator=x100",), "accelerator 'x100'; expected one of v100, a100, h100, b200"),
        (("servers=400000",), "NPUs; expected 1 to"),
        (("servers=0",), "servers"),
    ],
)
def test_parameters_out_of_range_are_named(tmp_path, parameters, message):
    with pytest.raises(TopologyError, match=message):
        built(tmp_path, PARTIAL, *parameters)


def test_several_servers_need_a_nic(tmp_path):
    with pytest.raises(TopologyError, match="no NIC"):
        built(tmp_path, PAIRS, "servers=2")


PCI = 'class="0x120000" vendor="0x1002" device="0x74a1" link_speed="32.0 GT/s PCIe" link_width="16"'


def xml(gpus=4, gcn="gfx942", count=1, ring=False, more="", begin=""):
    """Return GPUs in a full mesh, or each joined to the next."""
    text = f'{begin}<system version="2"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">'
    for gpu in range(gpus):
        others = [(gpu + 1) % gpus, (gpu - 1) % gpus] if ring else [other for other in range(gpus) if other != gpu]
        links = "".join(f'<xgmi target="{other}" count="{count}" tclass="0x120000"/>' for other in others)
        text += f'<pci busid="{gpu}" {PCI}><gpu dev="{gpu}" sm="94" gcn="{gcn}" rank="{gpu}">{links}{more}</gpu></pci>'
    return text + "</cpu></system>"


def built_of_rccl(tmp_path, text, **arguments):
    path = tmp_path / "topo.xml"
    path.write_text(text)
    return topologies.build({"name": "nccl", "path": str(path), **arguments} if arguments else str(path))


def way_of_rccl(graph, src, dst):
    links = topologies.route(graph, src, dst)
    return graph.node_name(graph.link_dst[links[0]]), int(graph.link_rate_bps[links].min()) / GBPS


@pytest.mark.parametrize(
    ("gcn", "model", "gbps"),
    [
        ("gfx942", "mi300x", 384),
        ("940", "mi300x", 384),
        ("gfx950", "mi355x", 460.8),
        ("910", "mi250x", 300),
        ("gfx90a", "mi250x", 300),
        ("908", "mi100", 276),
        ("906", "mi50", 276),
    ],
)
def test_xgmi_joins_pairs_at_the_rate_of_the_generation(tmp_path, gcn, model, gbps):
    graph = built_of_rccl(tmp_path, xml(gcn=gcn))
    assert (graph.npus, graph.accelerator, graph.warnings) == (4, model, ())
    assert sum(name.startswith("xgmi") for name in graph.switch_names) == 6
    assert all(way_of_rccl(graph, a, b) == (f"xgmi {a}-{b}", gbps) for a in range(4) for b in range(a + 1, 4))


def test_several_links_of_a_pair_and_pairs_without(tmp_path):
    graph = built_of_rccl(tmp_path, xml(count=4, ring=True))
    assert way_of_rccl(graph, 0, 1) == ("xgmi 0-1", 1536)
    assert way_of_rccl(graph, 0, 2) == ("pcie port 0", 384)


def test_a_partial_file_is_a_full_mesh_if_the_gpus_have_the_links(tmp_path):
    bare = '<system version="2"><cpu numaid="0">' + "".join(f'<pci busid="{i}" {PCI}/>' for i in range(8))
    graph = built_of_rccl(tmp_path, bare + "</cpu></system>")
    assert (graph.npus, graph.accelerator, way_of_rccl(graph, 2, 7)) == (8, "mi300x", ("xgmi 2-7", 384))
    with pytest.raises(TopologyError, match="mi250x has 3 xGMI links for 7 other GPUs; expected a full file"):
        built_of_rccl(tmp_path, bare + "</cpu></system>", accelerator="mi250x")


def test_a_comment_may_precede_the_system(tmp_path):
    begin = '<?xml version="1.0"?>\n<!--\n - Copyright (c) -> 2022 - of\n -->\n'
    assert built_of_rccl(tmp_path, xml(begin=begin)).npus == 4


def test_an_unknown_gcn_is_refused_unless_the_user_names_the_gpu(tmp_path):
    with pytest.raises(TopologyError, match="gpu gcn 'gfx1201'; expected 906 to 95x, or the parameter accelerator"):
        built_of_rccl(tmp_path, xml(gcn="gfx1201"))
    assert built_of_rccl(tmp_path, xml(gcn="gfx1201"), accelerator="mi300x").accelerator == "mi300x"


def test_elements_and_links_that_are_not_read_are_named(tmp_path):
    graph = built_of_rccl(tmp_path, xml(more='<c2c bw="1"/><xgmi target="9" count="1" tclass="0x120000"/>'))
    path = tmp_path / "topo.xml"
    assert graph.warnings == (
        f"{path}: elements that are not read: <c2c> (4)",
        f"{path}: 4 links to no GPU or NVSwitch of the file are left out, the first to '9'",
    )


SAME = ("node_kind", "link_src", "link_dst", "link_rate_bps", "link_delay_ps", "host")


def built_of_parts(tmp_path, text, file="net.txt", **arguments):
    path = tmp_path / file
    path.write_text(text)
    return topologies.build({"path": str(path), **arguments}) if arguments else topologies.build(str(path))


def simai(*rates, delay="0.000025ms"):
    """Return four GPUs on as many NVSwitches as there are rates."""
    switches = range(4, 4 + len(rates))
    lines = [f"{4 + len(rates)} 4 {len(rates)} 0 {4 * len(rates)} H100", " ".join(map(str, switches))]
    lines += [f"{gpu} {nv} {rate}Gbps {delay} 0" for nv, rate in zip(switches, rates, strict=True) for gpu in range(4)]
    return "\n".join(lines)


def toml(*blocks, kind="nvswitch", switches=2):
    """Return four NPUs and switches; a block is rate, count and cables."""
    named = "".join(f'[[switches]]\nname = "s{i}"\nkind = "{kind}"\n' for i in range(switches))
    links = "".join(
        f'[[links]]\nrate = "{rate}Gbps"\ndelay = "25ns"\ncount = {count}\ncables = {cables}\n'
        for rate, count, cables in blocks
    )
    return f"npus = 4\nhost = [0, 0, 0, 0]\n{named}{links}"


def to(switch, npus=range(4)):
    return [[npu, switch] for npu in npus]


def alike(one, other):
    assert all(np.array_equal(getattr(one, key), getattr(other, key)) for key in SAME)


@pytest.mark.parametrize("rates", [(900, 900, 900, 900), (1000, 800, 800, 1000), (3000, 600)])
def test_nvswitches_of_one_host_are_one_in_simais_files(tmp_path, rates):
    alike(built_of_parts(tmp_path, simai(*rates)), built_of_parts(tmp_path, simai(3600)))


def test_parallel_nvswitches_and_nvlinks_are_one_in_toml(tmp_path):
    one = built_of_parts(tmp_path, toml((3600, 1, to(4)), switches=1), "one.toml")
    alike(built_of_parts(tmp_path, toml((200, 18, to(4)), switches=1), "count.toml"), one)
    alike(built_of_parts(tmp_path, toml((200, 10, to(4)), (1600, 1, to(5))), "two.toml"), one)


def test_direct_nvlinks_of_a_pair_are_one_in_infragraph(tmp_path):
    edges = "".join(
        f"      - {{ep1: {{component: 'gpu[0]'}}, ep2: {{component: 'gpu[1]'}}, scheme: one2one, link: {link}}}\n"
        for link in ("nvlink_a", "nvlink_b")
    )
    text = f"""name: pair
devices:
  - name: server
    components: [{{name: gpu, choice: xpu, count: 2}}]
    links: [{{name: nvlink_a}}, {{name: nvlink_b}}]
    edges:
{edges}instances: [{{name: server, device: server, count: 1}}]
"""
    graph = built_of_parts(tmp_path, text, "pair.yaml")
    assert (graph.nodes, graph.links) == (3, 4)
    assert set(graph.link_rate_bps.tolist()) == {400 * GBPS}  # twice the rate of a link without one


def test_other_nvswitches_and_their_cables_to_switches_stay(tmp_path):
    halves = toml((400, 1, [*to(4, (0, 1)), *to(5, (2, 3)), [4, 5]]))
    assert (built_of_parts(tmp_path, halves, "halves.toml").node_kind == NVSWITCH).sum() == 2
    leaf = toml((400, 1, to(4)), (100, 3, [[4, 5]])).replace('name = "s1"\nkind = "nvswitch"', 'name = "s1"')
    assert (built_of_parts(tmp_path, leaf, "leaf.toml").link_rate_bps == 100 * GBPS).sum() == 6


def test_ethernet_stays_as_it_is(tmp_path):
    graph = built_of_parts(tmp_path, toml((100, 2, to(4)), (100, 1, to(5)), kind="switch"), "leaves.toml")
    assert (graph.nodes, graph.links) == (6, 24)


def test_the_slowest_switch_and_the_longest_cable_count(tmp_path):
    text = toml((100, 1, to(4)), (100, 1, to(5))).replace('kind = "nvswitch"', 'kind = "nvswitch"\nlatency = "9ns"', 1)
    first, _, last = text.rpartition('delay = "25ns"')
    text = f'{first}delay = "30ns"{last}'
    graph = built_of_parts(tmp_path, text, "slow.toml")
    assert graph.node_latency_ps.tolist() == [0, 0, 0, 0, 9_000]
    assert set(graph.link_delay_ps.tolist()) == {30_000}


def test_a_sum_beyond_what_links_may_have_is_refused(tmp_path):
    with pytest.raises(TopologyError, match=r"s0 has a rate of \d+ bps; expected"):
        built_of_parts(tmp_path, toml((900_000, 2, to(4)), switches=1), "fast.toml")


def nccl(*gbps):
    """Return two GPUs, each with NICs of these rates behind a PCIe switch of its own."""
    link = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    text = '<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">'
    for gpu in range(2):
        text += f'<pci busid="{gpu}" class="0x060400" {link}>'
        text += f'<pci busid="{gpu}g" class="0x030200" {link}><gpu dev="{gpu}" sm="90" rank="{gpu}"/></pci>'
        for nic, rate in enumerate(gbps):
            text += f'<pci busid="{gpu}n{nic}" class="0x020700" {link}><nic><net speed="{rate * 1000}"/></nic></pci>'
        text += "</pci>"
    return text + "</cpu></system>"


@pytest.mark.parametrize("gbps", [(100, 100), (150, 50), (100, 60, 40)])
def test_nics_at_one_place_are_one(tmp_path, gbps):
    graph = built_of_parts(tmp_path, nccl(*gbps), "net.xml", name="nccl", servers=2)
    assert [name for name in graph.switch_names if name.startswith("rail")] == ["rail 0", "rail 1"]
    assert sum(name.startswith("nic") for name in graph.switch_names) == 4
    path = topologies.route(graph, 0, 2)
    assert graph.link_rate_bps[path].min() == 200 * GBPS


def test_unequal_nics_that_gpus_share_are_one_for_both(tmp_path):
    text = nccl(300, 100)
    begin, end = text.index('<pci busid="0"'), text.index('<pci busid="1"')
    first, second = text[begin:end], text[end:].partition("</cpu>")[0]
    gpu = second[second.index('<pci busid="1g"') :].partition("</pci>")[0] + "</pci>"
    shared = text.replace(second, "").replace(first, first.removesuffix("</pci>") + gpu + "</pci>")
    graph = built_of_parts(tmp_path, shared, "net.xml", name="nccl", servers=2)
    assert [name for name in graph.switch_names if name.startswith("rail")] == ["rail 0"]
    for gpu in (0, 1):
        assert graph.link_rate_bps[topologies.route(graph, gpu, gpu + 2)].min() == 384 * GBPS  # of PCIe 5.0
