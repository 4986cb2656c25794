import pytest

from nadi import topologies
from nadi.topologies.graph import NVSWITCH, TopologyError
from nadi.topologies.routing import route

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
    with pytest.raises(TopologyError) as caught:
        built(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
