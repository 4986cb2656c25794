"""Specs, tables and paths, the one-line errors about them, and how large a network will be, told before it is built."""

import json
import tracemalloc

import numpy as np
import pytest

from nadi import topologies
from nadi.topologies.clusters import clusters
from nadi.topologies.routing import path_links
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.topologies.naive import SMALL

KNOWN = ", ".join(topologies.topologies())
WITH_CLUSTERS = ", ".join(sorted({*topologies.topologies(), *clusters()}))


def test_every_parameter_is_explained():
    for topology in nonempty(topologies.topologies().values()):
        assert topology.summary, topology.name
        for parameter in nonempty(topology.parameters()):
            assert parameter.help, (topology.name, parameter.name)
            assert parameter.form


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "ring",
            {"npus": ("count", None), "rate": ("rate, as 400Gbps", "400Gbps"), "delay": ("time, as 500ns", "500ns")},
        ),
        ("stack", {"rates": ("rates, as 200GB/s_50GB/s", "400Gbps"), "host_dims": ("whole number", "0")}),
        ("fat-tree", {"k": ("count", ""), "spine_rate": ("rate, as 400Gbps", ""), "dims": ("sizes, as 4x4x4", "")}),
    ],
)
def test_parameters_are_shown_as_the_user_writes_them(name, shown):
    assert shown.items() <= {p.name: (p.form, p.default) for p in topologies.topologies()[name].parameters()}.items()


@pytest.mark.parametrize(
    ("name", "required"), [("ring", {"npus": 8}), ("stack", {"dims": "Ring(4)"}), ("rail-optimised", {"npus": 8})]
)
def test_defaults_as_shown_can_be_given(name, required):
    topology = topologies.topologies()[name]
    given = {p.name: p.default for p in topology.parameters() if p.default}
    assert topology.arguments(**required, **given) == topology.arguments(**required)


def test_a_spec_is_a_table():
    spec = "fat-tree:k=16,rate=100Gbps,delay=1us"
    table = {"name": "fat-tree", "k": "16", "rate": "100Gbps", "delay": "1us"}
    assert topologies.parse_spec(spec) == table
    assert topologies.format_spec(table) == spec
    assert topologies.parse_spec("ring") == {"name": "ring"}
    assert topologies.parse_spec("net.toml") == {"name": "file", "path": "net.toml"}
    assert topologies.format_spec({"name": "file", "path": "net.toml"}) == "net.toml"


def test_a_table_of_a_run_file_builds_the_same_network():
    table = {"name": "torus", "sizes": [4, 3], "rate": "100Gbps", "delay": "1us"}
    graph = topologies.build(table)
    assert graph.name == "torus:sizes=4x3,rate=100Gbps,delay=1us"
    again = topologies.build(graph.name)
    assert (graph.link_src == again.link_src).all()
    assert (graph.link_rate_bps == again.link_rate_bps).all()
    stack = topologies.build({"name": "stack", "dims": ["Ring(4)", "Switch(2)"], "rates": ["1Gbps", "2Gbps"]})
    assert stack.name == "stack:dims=Ring(4)_Switch(2),rates=1Gbps_2Gbps"
    assert set(stack.link_rate_bps.tolist()) == {10**9, 2 * 10**9}


@pytest.mark.parametrize("spec", SMALL)
def test_descriptions_are_json(spec):
    facts = topologies.describe(topologies.build(spec))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["routing_bytes"] > 0


COUNT = "is not a count; expected a whole number from 1 to 4194303"


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        ("rnig:npus=8", f"unknown topology 'rnig', and no such file; did you mean 'ring'? known: {WITH_CLUSTERS}"),
        ("zzz", f"unknown topology 'zzz', and no such file; known: {WITH_CLUSTERS}"),
        ({"name": "tours"}, f"unknown topology 'tours'; did you mean 'torus'? known: {WITH_CLUSTERS}"),
        ({"k": 4}, f"topology 'None:k=4': key 'name' is missing; known: {KNOWN}"),
        ({"name": "ring", "npus": True}, f"@: npus: True {COUNT}"),
        ({"name": "ring", "npus": 2.5}, f"@: npus: 2.5 {COUNT}"),
        ({"name": "torus", "sizes": []}, "@: sizes: [] is no list of sizes; expected a form like 4x4x4"),
        ({"name": "stack", "dims": 4}, "@: dims: 4 is no list of dimensions; expected a form like Ring(4)_Switch(8)"),
        ("fat-tree:k=1000", "@: 250000000 NPUs; expected 1 to 524287"),
        (
            "rail-optimised:npus=524280",
            "@: a routing table of 81951 switches by 81919 first switches is too large; expected at most 536870912 entries",  # noqa: E501
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(topology, text):
    """An @ stands for the spec itself; tests/records has other specs and files."""
    spec = topology if isinstance(topology, str) else topologies.format_spec(topology)
    assert refused(topologies.TopologyError, topologies.build, topology) == text.replace("@", spec, 1)


SPECS = [
    "switch:npus=9",
    "ring:npus=2",
    "ring:npus=7",
    "fully-connected:npus=6",
    "torus:sizes=4x2x3",
    "stack:dims=Ring(4)_FullyConnected(3)_Switch(2)",
    "stack:dims=Switch(2)_Ring(2)",
    "leaf-spine:npus=70,hosts_per_leaf=16,spines=4,uplinks=3",
    "leaf-spine:leaves=3,hosts_per_leaf=4",
    "fat-tree:k=4",
    "fat-tree:npus=60",
    "dragonfly:p=2,a=3,h=1",
    "slim-fly:q=3",
    "slim-fly:q=5,p=2",
    "dragonfly-plus:p=2,leaves=2",
    "dragonfly-plus:p=1,leaves=3,spines=2,h=3,groups=4",
    "hyperx:sizes=3x2x2,p=2,width=1x2x1",
    "rail-only:npus=16,gpus_per_host=4",
    "rail-only:npus=16,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2",
    "zcube:npus=12,npus_per_switch=3",
    "zcube:npus=16,npus_per_switch=4,gpus_per_host=4,uplinks=2",
    "twisted-torus:sizes=2x4",
    "twisted-torus:sizes=2x2x4",
    "multi-plane:npus=10,planes=4,nics_per_leaf=4,spines=2",
    "multi-plane:npus=16,planes=2,nics_per_leaf=2,gpus_per_host=4,rails=true",
    "fat-tree:npus=16",
    "fat-tree:hosts_per_leaf=4,leaves_per_pod=2,pods=1",
    "fat-tree:npus=100,hosts_per_leaf=4,leaves_per_pod=3,spines_per_pod=2,cores_per_plane=5",
    "rail-optimised:npus=64",
    "dgx-h100:npus=16",
    "dgx-a100:npus=4",
    "rail-fat-tree:npus=20,gpus_per_host=4,rails=2,hosts_per_unit=2,units_per_pod=2,spines=2,cores=3,uplinks=2",
    "rail-fat-tree:npus=64,gpus_per_host=4,ports=2,hosts_per_unit=4,rail_spines=true,cores=2,core_uplinks=3,spines=2",
    "rail-fat-tree:npus=24,gpus_per_host=4,hosts_per_unit=4,rail_spines=true,spines=2,forwarding=true",
    "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=8",
    "selene:gpus=64",
    "tpu-v4:gpus=8",
    "rail-optimised:npus=40,gpus_per_host=4,hosts_per_rail_leaf=4,spines=3,uplinks=2",
]


@pytest.mark.parametrize("spec", SPECS)
def test_it_is_as_large_as_it_was_said_to_be(spec):
    graph, said = topologies.build(spec), topologies.extent(spec)
    assert (said.npus, said.nodes, 2 * said.cables) == (graph.npus, graph.nodes, graph.links)
    if hasattr(graph.routing, "hops"):
        assert said.switches * said.homes == graph.routing.hops.size
    else:
        assert said.homes == 0
    assert said.peak_bytes > 0


def test_every_topology_with_parameters_says_it():
    assert {name for name, known in topologies.topologies().items() if known.extent is None} == {
        "file",
        "htsim",
        "infragraph",
        "nccl",
        "nvidia-smi",
        "simai",
    }
    assert topologies.extent("nothing.toml") is None


def written(spec, folder, form):
    graph = topologies.build(spec)
    if form == "toml":
        topologies.write_toml(graph, folder / "fabric.toml")
        return folder / "fabric.toml"
    ends = zip(graph.link_src[::2].tolist(), graph.link_dst[::2].tolist(), strict=True)
    lines = [f"{graph.nodes} 1 0 {graph.nodes - graph.npus} {graph.links // 2} X"]
    lines.append(" ".join(map(str, range(graph.npus, graph.nodes))))
    lines += [f"{a} {b} 400Gbps 0.0005ms 0" for a, b in ends]
    (folder / "fabric.txt").write_text("\n".join(lines) + "\n")
    return folder / "fabric.txt"


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ("leaf-spine:npus=512,hosts_per_leaf=16,spines=8", "toml"),
        ("leaf-spine:npus=512,hosts_per_leaf=16,spines=8", "simai"),
        ("fat-tree:k=16", "toml"),
        ("fat-tree:k=16", "simai"),
        ("torus:sizes=16x16x4", "toml"),
        ("rail-optimised:npus=2048", "toml"),
    ],
)
def test_files_are_estimated_within_a_factor_of_two(spec, form, tmp_path):
    path = written(spec, tmp_path, form)
    said = topologies.extent(str(path))
    tracemalloc.start()
    graph = topologies.build(str(path))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (said.npus, said.nodes, 2 * said.cables) == (graph.npus, graph.nodes, graph.links)
    assert said.homes == len(getattr(graph.routing, "home_node", ()))
    assert peak_bytes / 2 < said.peak_bytes < peak_bytes * 2


def test_names_and_parallel_cables_of_a_file_count(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'npus = 3\n[[switches]]\nname = "a"\n[[switches]]\nname = "b"\n[[switches]]\n'
        '[[links]]\nrate = "1Gbps"\ndelay = "1us"\ncount = 2\n'
        'cables = [["npu 0", "a"], ["npu 1", "b"], [2, "b"]]\n'
        '[[links]]\nrate = "1Gbps"\ndelay = "1us"\ncables = [["a", "switch 2"], ["b", 5]]\n'
    )
    said, graph = topologies.extent(str(path)), topologies.build(str(path))
    assert (said.npus, said.switches, 2 * said.cables) == (3, 3, graph.links) == (3, 3, 16)
    assert said.homes == len(graph.routing.home_node) == 2


@pytest.mark.parametrize("text", ["", "npus = 4", "4 1 0 1 9 X\nnothing", "3 1 2\n2\n0 x 1Gbps 1ms 0\n"])
def test_a_wrong_file_is_told_by_building_it(text, tmp_path):
    (tmp_path / "wrong").write_text(text)
    wrong = {"name": "simai", "path": str(tmp_path / "wrong")}
    assert topologies.extent(wrong) is None
    refused(topologies.TopologyError, topologies.build, wrong)


@pytest.mark.parametrize("tell", [topologies.extent, topologies.build])
def test_what_can_never_be_built_is_told_at_once(tell):
    line = refused(topologies.TopologyError, tell, "leaf-spine:npus=500000,hosts_per_leaf=1,spines=1000000")
    assert "500000500000 cables; expected at most 2097152" in line


@pytest.mark.parametrize("spec", SPECS)
def test_ways_are_as_long_as_those_that_packets_take(spec):
    graph = topologies.build(spec)
    src, dst = (ends.reshape(-1) for ends in np.meshgrid(np.arange(graph.npus)[:12], np.arange(graph.npus)[-12:]))
    found = path_links(graph, src, dst)
    for a, b, links in nonempty(zip(src.tolist(), dst.tolist(), found.tolist(), strict=True)):
        assert links == (len(topologies.route(graph, a, b)) if a != b else 0)
