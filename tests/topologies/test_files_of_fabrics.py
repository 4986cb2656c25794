"""Dragonflies, slim flies, HyperX, planes and rails as files of other simulators: the networks of the builders."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nadi import topologies
from nadi.inputs.units import GBPS
from tests.nonempty import nonempty

FABRICS = (
    "dragonfly:p=2,a=2,h=1,groups=3,rate=100Gbps",
    "dragonfly-plus:p=2,leaves=2,groups=3",
    "slim-fly:q=5,p=2",
    "hyperx:sizes=3x4,p=2",
    "twisted-torus:sizes=2x4",
    "zcube:npus=16,npus_per_switch=4,uplinks=1",
    "multi-plane:npus=16,planes=4,nics_per_leaf=4,spines=2",
    "multi-plane:npus=16,planes=2,nics_per_leaf=4,gpus_per_host=4,spines=2",
    "rail-only:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2,spines=1",
)
NVSWITCH = topologies.NVSWITCH


def as_simai(graph):
    """The text of SimAI for a graph; GPUs, NVSwitches and switches have the numbers of its nodes."""
    switches = sorted(range(graph.npus, graph.nodes), key=lambda node: graph.node_kind[node] != NVSWITCH)
    nvswitches = int((graph.node_kind == NVSWITCH).sum())
    per_server = int((graph.host == 0).sum())
    rows = (graph.link_src, graph.link_dst, graph.link_rate_bps // GBPS, graph.link_delay_ps / 1e9)
    lines = [
        f"{a} {b} {rate}Gbps {delay:.9f}ms 0" for a, b, rate, delay in zip(*(row[::2] for row in rows), strict=True)
    ]
    header = f"{graph.nodes} {per_server} {nvswitches} {len(switches) - nvswitches} {len(lines)} NONE"
    return "\n".join([header, " ".join(map(str, switches)), *lines, ""])


def as_infragraph(graph):
    """InfraGraph of a graph: servers with GPUs and perhaps an NVSwitch, and boxes with a switch each."""
    per_server = int((graph.host == 0).sum())
    names = {npu: (f"server[{npu // per_server}]", f"gpu[{npu % per_server}]") for npu in range(graph.npus)}
    joins = (graph.link_src < graph.npus) & (graph.node_kind[graph.link_dst] == NVSWITCH)
    server_of = dict(zip(graph.link_dst[joins].tolist(), graph.host[graph.link_src[joins]].tolist(), strict=True))
    names |= {node: (f"server[{server}]", "nvswitch[0]") for node, server in server_of.items()}
    switches = [node for node in range(graph.npus, graph.nodes) if node not in server_of]
    names |= {node: (f"box[{number}]", "asic[0]") for number, node in enumerate(switches)}
    links, edges = {}, []
    for link in range(0, graph.links, 2):
        ends = int(graph.link_src[link]), int(graph.link_dst[link])
        rate, delay = int(graph.link_rate_bps[link]) // GBPS, int(graph.link_delay_ps[link]) / 1000
        kind = "nvlink" if ends[0] < graph.npus and ends[1] in server_of else "eth"
        title = f"{kind}-{rate}-{delay:g}"
        links[title] = {
            "name": title,
            "physical": {
                "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": rate},
                "latency": {"choice": "ns", "ns": delay},
            },
        }
        ep1, ep2 = ({"instance": names[end][0], "component": names[end][1]} for end in ends)
        edges.append({"ep1": ep1, "ep2": ep2, "scheme": "one2one", "link": title})
    gpus = [{"name": "gpu", "choice": "xpu", "count": per_server}]
    nvswitch = [{"name": "nvswitch", "choice": "switch", "count": 1}] if server_of else []
    devices = [
        {"name": "server", "components": gpus + nvswitch},
        {"name": "box", "components": [{"name": "asic", "choice": "switch", "count": 1}]},
    ]
    instances = [
        {"name": "server", "device": "server", "count": graph.npus // per_server},
        {"name": "box", "device": "box", "count": len(switches)},
    ]
    found = {"name": "net", "devices": devices, "links": list(links.values()), "instances": instances, "edges": edges}
    return json.dumps(found)


WRITERS = {"net": as_simai, "net.json": as_infragraph}


def carried(graph):
    """What each cable of a switch carries of a message from each NPU to each other, with rate and delay, sorted."""
    src, dst = np.divmod(np.arange(graph.npus**2), graph.npus)
    others = src != dst
    loads = graph.routing.loads(graph, src[others], dst[others], np.ones(int(others.sum())))
    # without what is within a server: InfraGraph's GPUs have ports of PCIe before their NICs' cables
    is_inside = np.array([graph.node_name(node).startswith(("npu", "nvswitch", "pcie")) for node in range(graph.nodes)])
    seen = ~(is_inside[graph.link_src] & is_inside[graph.link_dst])
    columns = loads[seen].round(9), graph.link_rate_bps[seen], graph.link_delay_ps[seen]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


# InfraGraph's NVSwitches are what joins the XPUs of a server, and have no cables to leaves
FILES = [(spec, file) for spec in FABRICS for file in WRITERS if file == "net" or not spec.startswith("rail-only")]


@pytest.mark.parametrize(("spec", "file"), FILES)
def test_a_fabric_in_a_file_is_that_of_its_builder(spec, file, tmp_path):
    own = topologies.build(spec)
    if spec.startswith("dragonfly"):  # files name no groups: packets take all shortest paths, some over two groups
        ends = own.npus, own.nodes, own.link_src, own.link_dst
        own = replace(own, routing=topologies.build_table_routing(*ends, np.full(own.nodes, -1)))
    (tmp_path / file).write_text(WRITERS[file](own))
    graph = topologies.build(tmp_path / file)
    assert (graph.npus, graph.host.tolist(), graph.warnings) == (own.npus, own.host.tolist(), ())
    assert carried(graph) == carried(own)
    npu = np.arange(own.npus)
    # a GPU with NVLinks has a port more in InfraGraph
    more = 2 * (file == "net.json" and (own.node_kind == NVSWITCH).any())
    for far in range(own.npus // 2, own.npus):
        ends = npu, (npu + far) % own.npus
        apart = own.host[ends[0]] != own.host[ends[1]]
        lengths = topologies.path_links(own, *ends)[apart] + more
        assert topologies.path_links(graph, *ends)[apart].tolist() == nonempty(lengths.tolist())


def test_nvswitches_of_simais_files_are_those_that_come_first(tmp_path):
    """Line 2 lists them before other switches, whatever their numbers."""
    cables = "".join(f"{a} {b} 1Gbps 1us 0\n" for a, b in ((0, 4), (1, 4), (0, 3), (1, 3), (2, 3)))
    (tmp_path / "net").write_text(f"5 2 1 1 5 NONE\n4 3\n{cables}")
    graph = topologies.build(tmp_path / "net")
    assert [graph.node_name(node) for node in (3, 4)] == ["nvswitch 4", "switch 3"]
    assert graph.node_kind.tolist() == [0, 0, 0, NVSWITCH, topologies.graph.SWITCH]
