"""Networks as InfraGraph's devices, and as graphs of networkx."""

import json
import re

import networkx as nx
import numpy as np
import pytest

from nadi import topologies
from nadi.topologies.graph import NPU, TopologyError
from nadi.topologies.routing import next_links, route
from nadi.workload.shape import stripes_between
from tests.refusals import refused

GBPS = 10**9
# The dialect of the package: two servers of two GPUs with a NIC each, on a switch.
NEW = """name: pair
devices:
- name: server
  components:
  - {choice: xpu, count: 2, name: xpu}
  - {choice: cx, count: 1, name: nvsw}
  - {choice: device, count: 2, name: cx7}
  links:
  - name: nvlink_4
    physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 3600}, latency: {choice: ns, ns: 30}}
  - name: pcie
    physical: {bandwidth: {choice: gigatransfers_per_second, gigatransfers_per_second: 32}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: "nvsw[0]"}, link: nvlink_4, scheme: many2many}
  - {ep1: {component: "xpu[0:2]"}, ep2: {device: "cx7[:]", component: "asic[0]"}, link: pcie, scheme: one2one}
- name: cx7
  components:
  - {choice: nic, count: 1, name: asic}
  - {choice: port, count: 1, name: port}
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, link: pcie, scheme: one2one}
- name: switch
  components:
  - {choice: custom, custom: {type: asic}, count: 1, name: asic}
  - {choice: port, count: 4, name: port}
  edges:
  - {ep1: {component: asic}, ep2: {component: "port[-4:]"}, link: ic, scheme: many2many}
links:
- {name: eth, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 50}}}
instances:
- {name: host, device: server, count: 2}
- {name: leaf, device: switch, count: 1}
edges:
- ep1: {instance: "host[0]", component: "cx7[0:2].port"}
  ep2: {instance: "leaf[0]", component: "port[0:2]"}
  link: eth
  scheme: one2one
- ep1: {instance: "host[1]", component: "cx7.port[0]"}
  ep2: {instance: leaf, component: "port[2:4]"}
  link: eth
  scheme: one2one
"""


def built(tmp_path, text, *parameters, ending="yaml"):
    path = tmp_path / f"graph.{ending}"
    path.write_text(text)
    return topologies.build(f"infragraph:path={path}," + ",".join(parameters) if parameters else str(path))


def way(graph, src, dst):
    """Return the kinds of the switches from an NPU to another, and the slowest rate in Gb/s."""
    links = route(graph, src, dst)
    names = [graph.node_name(graph.link_dst[link]).rpartition(" ")[0] for link in links[:-1]]
    return names, int(graph.link_rate_bps[links].min()) / GBPS


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_the_dialect_of_the_package(tmp_path, ending):
    import yaml

    text = NEW if ending == "yaml" else json.dumps(yaml.safe_load(NEW))
    graph = built(tmp_path, text, ending=ending)
    assert (graph.npus, graph.dims, graph.host.tolist()) == (4, (2, 2), [0, 0, 1, 1])
    assert way(graph, 0, 1) == (["nvswitch"], 3600)
    inside = ["pcie port", "asic", "port"]
    assert way(graph, 1, 3) == ([*inside, "port", "asic", "port", *inside[::-1]], 192)  # a pcie link without a rate
    assert way(built(tmp_path, text, "pcie_rate=800Gbps", ending=ending), 1, 3)[1] == 384  # PCIe 5.0 x16, as in NCCL


def test_the_clos_of_the_documentation_takes_its_devices_from_other_files(shared_data):
    path = shared_data / "formats/infragraph/two-tier-clos-fabric-infrastructure.yaml"
    graph = topologies.build(str(path))
    assert (graph.npus, graph.dims) == (16, (4, 4))
    assert way(graph, 0, 3) == (["nvswitch"], 1024)
    names, rate = way(graph, 0, 5)
    assert rate == 256  # PCIe of 32 GB/s
    assert names.count("asic") == 3  # leaf, spine, leaf
    assert len({int(graph.link_rate_bps[link]) for link in route(graph, 0, 5)}) == 4


def test_the_dgx_of_the_documentation(shared_data):
    graph = topologies.build(str(shared_data / "formats/infragraph/dgxa100.yaml"))
    assert graph.npus == 8
    assert way(graph, 0, 7) == (["nvswitch"], 1600)  # eight links of 200 Gb/s, which the parameter gives
    assert sum(name.startswith("asic server-nic.") for name in graph.switch_names) == 8  # of cx5.yaml


def test_scale_up_over_a_switch(shared_data):
    graph = topologies.build(str(shared_data / "formats/infragraph/scaleup-scaleout.yaml"))
    assert way(graph, 0, 7) == (["nic", "port", "asic", "port", "nic"], 96)  # PCIe of 8 GT/s


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("cx5", "no component of type xpu"),
        ("two-tier-clos-fabric-switch", "no component of type xpu"),
        ("symmetric-device", "npu 0 has no link"),
        ("hierarchical-device", "no path of switches from npu 0 to npu 1"),
    ],
)
def test_devices_that_are_no_network_say_why(shared_data, file, message):
    with pytest.raises(TopologyError, match=message):
        topologies.build(str(shared_data / f"formats/infragraph/{file}.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 2, name: xpu", "count: x, name: xpu", "count 'x'; expected a whole number"),
        ('"nvsw[0]"', '"nvsw[1]"', "'nvsw[1]'; expected indices below 1"),
        ('"nvsw[0]"', '"nvxx[0]"', "'nvxx[0]' of server; expected components of the device"),
        ('"xpu[0:2]"', '"xpu[0:2:0]"', "expected a step other than 0"),
        ("scheme: many2many}\n  - {ep1: {comp", "scheme: ring}\n  - {ep1: {comp", "scheme 'ring'; expected one2one"),
        ("gigabits_per_second: 3600", "gigabits_per_second: -1", "bandwidth of nvlink_4: -1 gigabits_per_second"),
        ("gigabits_per_second: 3600", "gigabits_per_second: x", "'x'; expected a number"),
        ("ns: 30", "ns: 1e300", "latency of nvlink_4"),
        ('"host[1]"', '"hast[1]"', "instance 'hast[1]'; expected one of the file"),
        ("device: server", "device: none", "'cx7[0:2].port' of none; expected components of the device"),
        ("instances:\n", "instances: 3\nrest:\n", "instances is no list of mappings"),
        ("name: pair", "name: &a pair\nx: *a", "an alias; expected values"),
        ("name: pair", "name: [", "expected InfraGraph"),
        ("count: 2}", "count: 1000000}", "more than 2097152 links"),
        ("count: 2}", "count: 4000000}", "count '4000000'; expected a whole number to 1048576"),
        ("count: 2, name: xpu", "count: 1000000, name: xpu", "components of type xpu; expected at most"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, old, new, message):
    assert old in NEW
    assert message in refused(TopologyError, built, tmp_path, NEW.replace(old, new, 1), "rate=400Gbps")


@pytest.mark.parametrize("words", ["a.0.eth", "a.0.b.0.eth.a.1", "a.0.b.x.eth.a.1.b.0", "a.0.b.0.eth.c.0.b.0", ""])
def test_connections_in_other_forms_are_named(tmp_path, words):
    text = f"""devices:
  - name: a
    components: [{{name: b, type: xpu}}]
instances: [{{name: a, device: a}}]
connections: ["{words}"]
"""
    with pytest.raises(TopologyError, match=r"connection|instance"):
        built(tmp_path, text, "rate=400Gbps")


def test_keys_that_are_not_read_are_named(tmp_path):
    assert built(tmp_path, NEW).warnings == ()
    text = (
        NEW.replace("- {name: eth, physical: {", "- {name: eth, loss: 0.1, physical: {mtu: 9000, ")
        + "annotations: []\n"
    )
    graph = built(tmp_path, text)
    assert graph.warnings == (
        f"{tmp_path / 'graph.yaml'}: keys that are not read: annotations, links.loss, links.physical.mtu",
    )


def two_servers(gbps, *, nvlink, behind_switch):
    """Two servers of one GPU, with or without NVLink; its NICs are on a leaf each, and on a PCIe switch or the GPU."""
    numbers = range(len(gbps))
    devices = NEW[: NEW.index("links:\n- {name: eth")].replace("choice: xpu, count: 2", "choice: xpu, count: 1")
    devices = devices.replace("gigatransfers_per_second: 32", "gigabits_per_second: 800").replace(
        "gigatransfers", "gigabits"
    )
    devices = "\n".join(line for line in devices.splitlines() if nvlink or "nvsw" not in line)
    to_nics = next(line for line in devices.splitlines() if "cx7[:]" in line)
    gpu = "pciesw[0]" if behind_switch else "xpu[0]"
    each = [to_nics.replace("xpu[0:2]", gpu).replace("cx7[:]", f"cx7[{nic}]") for nic in numbers]
    if behind_switch:
        each.append('  - {ep1: {component: "xpu[0]"}, ep2: {component: "pciesw[0]"}, link: pcie, scheme: one2one}')
        port = next(line for line in devices.splitlines() if "choice: xpu" in line)
        switch = port.replace("choice: xpu, count: 1, name: xpu", "choice: switch, count: 1, name: pciesw")
        assert switch != port
        devices = devices.replace(port, f"{port}\n{switch}")
    devices = devices.replace(to_nics, "\n".join(each)).replace("count: 2, name: cx7", f"count: {len(gbps)}, name: cx7")
    rate = "physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: "
    links = [f"- {{name: eth{nic}, {rate}{gbps[nic]}}}}}}}" for nic in numbers]
    instances = ["- {name: host, device: server, count: 2}", f"- {{name: leaf, device: switch, count: {len(gbps)}}}"]
    edges = [
        f'- ep1: {{instance: "host[{host}]", component: "cx7[{nic}].port"}}\n'
        f'  ep2: {{instance: "leaf[{nic}]", component: "port[{host}]"}}\n'
        f"  link: eth{nic}\n  scheme: one2one"
        for nic in numbers
        for host in range(2)
    ]
    return "\n".join([devices, "links:", *links, "instances:", *instances, "edges:", *edges])


@pytest.mark.parametrize("behind_switch", [False, True])
@pytest.mark.parametrize("nvlink", [False, True])
@pytest.mark.parametrize(("gbps", "shares"), [((50,), [1]), ((50, 50), [1, 1]), ((90, 30), [3, 1])])
def test_nics_of_a_gpu_share_what_it_sends_by_the_rates_behind_their_chips(
    tmp_path, gbps, shares, nvlink, behind_switch
):
    graph = built(tmp_path, two_servers(gbps, nvlink=nvlink, behind_switch=behind_switch))
    assert sorted(graph.port_shares[next_links(graph, 0, 1)].tolist(), reverse=True) == shares
    assert stripes_between(graph, np.array([0]), np.array([1])).tolist() == [sum(shares)]


def as_networkx(graph):
    """A Graph of ours as networkx would draw it."""
    drawn = nx.MultiGraph(name=graph.name)
    kinds = {NPU: "npu", topologies.SWITCH: "switch", topologies.NVSWITCH: "nvswitch"}
    for node in range(graph.nodes):
        more = {"host": int(graph.host[node])} if node < graph.npus else {}
        more["latency"] = int(graph.node_latency_ps[node])
        drawn.add_node(graph.node_name(node), kind=kinds[int(graph.node_kind[node])], pod=int(graph.pod[node]), **more)
    for link in range(0, graph.links, 2):
        ends = (graph.node_name(int(node)) for node in (graph.link_src[link], graph.link_dst[link]))
        drawn.add_edge(*ends, rate=int(graph.link_rate_bps[link]), delay=int(graph.link_delay_ps[link]))
    return drawn


def cables(graph):
    """Sorted rows of the links: both ends, rate and delay."""
    columns = (graph.link_src, graph.link_dst, graph.link_rate_bps, graph.link_delay_ps)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("spec", ["fat-tree:k=4,rate=100Gbps,delay=1us", "dgx-h100:npus=16", "leaf-spine:npus=8"])
def test_what_is_drawn_is_what_is_built(spec):
    wanted = topologies.build(spec)
    found = topologies.from_networkx(as_networkx(wanted), dims=wanted.dims, accelerator=wanted.accelerator)
    assert cables(found) == cables(wanted)
    for name in ("node_kind", "node_latency_ps", "host", "pod"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    assert (found.dims, found.switch_names, found.name) == (wanted.dims, wanted.switch_names, wanted.name)


def star(**edge):
    drawn = nx.Graph()
    drawn.add_node("s", kind="switch")
    for npu in range(3):
        drawn.add_node(npu, kind="npu")
        drawn.add_edge(npu, "s", **edge)
    return drawn


def test_what_edges_do_not_say_is_one_for_all():
    found = topologies.from_networkx(star(delay="2us", count=2), rate="10Gbps")
    assert found.links == 12
    assert set(found.link_rate_bps.tolist()) == {10**10}
    assert set(found.link_delay_ps.tolist()) == {2 * 10**6}


def with_node(**data):
    drawn = star(rate="1Gbps", delay=0)
    drawn.add_node("more", **data)
    return drawn


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (star(delay=1), "no rate; expected one on the edge"),
        (star(rate="1Gbps"), "no delay"),
        (star(rate="fast", delay=1), "edge 's' - 0.*'fast'"),
        (star(rate=1, delay=1), "has a rate of 1 bps"),
        (star(rate="1Gbps", delay=1, count=0), "count 0; expected a whole number from 1"),
        (with_node(), "node 'more': kind None; expected npu, switch or nvswitch"),
        (with_node(kind="router"), "node 'more': kind 'router'"),
        (with_node(kind="npu"), "npu 3 has no link"),
        (with_node(kind="switch", pod="x"), "pod 'x'; expected a whole number"),
        (with_node(kind="switch", latency="2 parsecs"), "node 'more': '2 parsecs'"),
        (star(rate="1Gbps", delay=0).to_directed(), "a directed graph"),
    ],
)
def test_what_is_wrong_is_one_line(drawn, said):
    assert re.search(said, refused(TopologyError, topologies.from_networkx, drawn))


def test_hosts_are_for_all_npus_or_for_none():
    drawn = star(rate="1Gbps", delay=0)
    drawn.nodes[1]["host"] = 0
    with pytest.raises(TopologyError, match="node 0: no host; expected one for each NPU, or for none"):
        topologies.from_networkx(drawn)
