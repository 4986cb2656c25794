"""How large a network will be is told without building it, and right; so are the lengths of its ways."""

import tracemalloc

import numpy as np
import pytest

from nadi import topologies
from nadi.topologies.routing import path_links
from tests.nonempty import nonempty

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
    """The fabric of a spec in a file: TOML as `nadi topology build` writes it, or SimAI's text."""
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
    said = topologies.extent({"name": "simai", "path": str(tmp_path / "wrong")})
    assert said is None
    with pytest.raises(topologies.TopologyError):
        topologies.build({"name": "simai", "path": str(tmp_path / "wrong")})


def test_what_can_never_be_built_is_told_at_once():
    spec = "leaf-spine:npus=500000,hosts_per_leaf=1,spines=1000000"
    for tell in (topologies.extent, topologies.build):
        with pytest.raises(topologies.TopologyError, match="500000500000 cables; expected at most 2097151"):
            tell(spec)


@pytest.mark.parametrize("spec", SPECS)
def test_ways_are_as_long_as_those_that_packets_take(spec):
    graph = topologies.build(spec)
    src, dst = (ends.reshape(-1) for ends in np.meshgrid(np.arange(graph.npus)[:12], np.arange(graph.npus)[-12:]))
    found = path_links(graph, src, dst)
    for a, b, links in nonempty(zip(src.tolist(), dst.tolist(), found.tolist(), strict=True)):
        assert links == (len(topologies.route(graph, a, b)) if a != b else 0)
