"""The TOML form: round trips and what it may say; tests/records has what is wrong with it."""

import numpy as np
import pytest

from nadi import topologies
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.topologies.naive import SMALL

LINKS = '[[links]]\nrate = "1Gbps"\ndelay = "1us"\n'


def assert_same(first, second):
    for value, other in ((first, second), (first.routing, second.routing)):
        for key, expected in nonempty(vars(value).items()):
            # a file, which users edit, says nothing about its bisection
            if key in {"name", "routing", "_out", "bisection"}:
                continue
            found = vars(other)[key]
            if isinstance(expected, np.ndarray):
                assert expected.dtype == found.dtype, key
                assert np.array_equal(expected, found), key
            else:
                assert expected == found, key


@pytest.mark.parametrize("spec", SMALL)
def test_a_written_network_reads_back(spec, tmp_path):
    graph = topologies.build(spec)
    path = tmp_path / "net.toml"
    topologies.write_toml(graph, path)
    again = topologies.build(path)
    assert_same(graph, again)
    assert again.name == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["net.toml"]
    topologies.write_toml(again, path)
    assert_same(graph, topologies.build({"name": "file", "path": str(path)}))


def test_writing_replaces_the_file_only_when_it_is_complete(tmp_path, monkeypatch):
    graph = topologies.build("ring:npus=4")
    path = tmp_path / "net.toml"
    path.write_text("before")

    def fail(_graph):
        yield "npus = 4"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nadi.topologies.builders.file._toml", fail)
    line = refused(topologies.TopologyError, topologies.write_toml, graph, path)
    assert line == f"cannot write {path}: No space left on device; expected the name of a file"
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"), [("missing/net.toml", "No such file or directory"), ("folder", "a folder")]
)
def test_an_output_that_cannot_be_written(name, reason, tmp_path):
    (tmp_path / "folder").mkdir()
    line = refused(topologies.TopologyError, topologies.write_toml, topologies.build("ring:npus=4"), tmp_path / name)
    assert line == f"cannot write {tmp_path / name}: {reason}; expected the name of a file"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def build(tmp_path, text):
    path = tmp_path / "net.toml"
    path.write_text(text)
    return topologies.build(path)


def test_names_counts_and_kinds(tmp_path):
    text = (
        "npus = 4\ndims = [2, 2]\nhost = [0, 0, 1, 1]\npods = [0, 0, 1, 1]\n"
        '[[switches]]\nname = "left"\npod = 0\nlatency = "300ns"\n'
        '[[switches]]\nname = "right"\npod = 1\n[[switches]]\nkind = "nvswitch"\n'
        + LINKS
        + 'cables = [["npu 0", "left"], [1, "left"], [2, "right"], ["npu 3", 5]]\n'
        + LINKS
        + 'count = 3\ncables = [["left", "right"]]\n'
        + LINKS
        + "cables = [[0, 6], [1, 6]]\n"
    )
    graph = build(tmp_path, text)
    assert [graph.node_name(node) for node in range(4, 7)] == ["left", "right", "switch 2"]
    assert graph.node_kind.tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert graph.node_latency_ps.tolist() == [0, 0, 0, 0, 300_000, 0, 0]
    assert graph.host.tolist() == [0, 0, 1, 1]
    assert graph.pod.tolist() == [0, 0, 1, 1, 0, 1, -1]
    assert graph.links // 2 == 4 + 3 + 2
    assert len(topologies.next_links(graph, 4, 2)) == 3
    assert [int(graph.link_dst[link]) for link in topologies.next_links(graph, 0, 1)] == [6]  # an NVSwitch goes first
    plain = build(tmp_path, text.replace('kind = "nvswitch"', ""))
    assert [int(plain.link_dst[link]) for link in topologies.next_links(plain, 0, 1)] == [4, 6]


def test_a_stack_may_have_parallel_links_and_other_rates(tmp_path):
    graph = build(
        tmp_path,
        'npus = 3\nstack = "Ring(3)"\n'
        + LINKS
        + "count = 2\ncables = [[0, 1]]\n"
        + '[[links]]\nrate = "9Gbps"\ndelay = 0\ncables = [[1, 2], [2, 0]]\n',
    )
    assert topologies.next_links(graph, 0, 1) == [0, 2]
    assert topologies.next_links(graph, 1, 0) == [1, 3]
    assert graph.link_rate_bps[topologies.next_links(graph, 0, 2)] == 9 * 10**9


def test_a_path_of_more_switches_than_the_table_can_count(tmp_path):
    def chain(switches):
        cables = [[0, 2], [1, switches + 1], *([i, i + 1] for i in range(2, switches + 1))]
        return "npus = 2\n" + "[[switches]]\n" * switches + LINKS + f"cables = {cables}\n"

    assert len(topologies.route(build(tmp_path, chain(126)), 0, 1)) == 127
    with pytest.raises(topologies.TopologyError, match="a path of more than 125 links between switches"):
        build(tmp_path, chain(127))


@pytest.mark.parametrize(
    ("cable", "text"),
    [
        ((0, 1, 0, 0), f"link npu 0 - npu 1 has a rate of 0 bps; expected {10**6} to {10**15}"),
        ((0, 1, 10**16, 0), f"link npu 0 - npu 1 has a rate of {10**16} bps; expected {10**6} to {10**15}"),
        ((0, 1, 10**9, -1), f"link npu 0 - npu 1 has a delay of -1 ps; expected 0 to {10**12}"),
        ((0, 1, 10**9, 10**13), f"link npu 0 - npu 1 has a delay of {10**13} ps; expected 0 to {10**12}"),
        ((0, 5, 10**9, 0), "link npu 0 - node 5; expected nodes 0 to 1"),
        ((-1, 0, 10**9, 0), "link node -1 - npu 0; expected nodes 0 to 1"),
    ],
)
def test_the_builder_refuses_impossible_cables(cable, text):
    builder = topologies.GraphBuilder("x", 2)
    builder.add_cables(*cable)
    assert refused(topologies.TopologyError, builder.graph) == f"x: {text}"


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("add_switches", ("leaf", 10**7), "x: 10000002 nodes; expected at most 4194303"),
        ("add_cables", (0, 1, 10**9, 0, 10**12), "x: 1000000000000 cables; expected at most 2097152"),
        ("__init__", ("x", 0), "x: 0 NPUs; expected 1 to 524287"),
    ],
)
def test_too_many_nodes_and_cables_are_refused_before_they_are_made(method, arguments, text):
    builder = topologies.GraphBuilder("x", 2)
    assert refused(topologies.TopologyError, getattr(builder, method), *arguments) == text
