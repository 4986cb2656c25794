"""Pictures show what is asked for, say what they leave out, and are what their readers take."""

import io
from xml.etree import ElementTree as ET

import networkx as nx
import pytest

from nadi import et
from nadi.et.schema import Node
from nadi.et.statistics import Rank
from nadi.et.views import Edge, NodeFilter, drawn, picture, places
from tests.nonempty import nonempty

STRANGE = 'a"b\\<&>\n\x01é'


def chain(n, npu=0, **more):
    nodes = [et.comp_node(i, f"step0/c{i}", duration_micros=5, deps=[i - 1] if i else []) for i in range(n)]
    return Rank(npu, et.table_of(et.metadata(), nodes), **more)


def test_all_of_a_small_trace():
    nodes = [
        et.comp_node(7, "a"),
        et.coll_node(5, "x", 0, 2**20, deps=[7]),
        Node(id=1, name="m", type=1, ctrl_deps=[5, 7]),
    ]
    shown = picture([Rank(3, et.table_of(et.metadata(), nodes))], NodeFilter(), 10)
    assert [(node.npu, node.id, node.kind, node.layer) for node in shown.nodes] == [
        (3, 7, "compute", 0),
        (3, 5, "collectives", 1),
        (3, 1, "metadata", 2),
    ]
    assert shown.nodes[1].detail == "all-reduce, 1.05 MB"
    assert sorted(shown.edges) == [Edge(0, 1, "depends"), Edge(0, 2, "depends"), Edge(1, 2, "depends")]
    assert (shown.left_out, shown.cut, shown.notes()) == (0, 0, [])


def test_the_first_nodes_of_a_large_one():
    shown = picture([chain(50)], NodeFilter(), 10)
    assert [node.id for node in shown.nodes] == list(range(10))
    assert (shown.left_out, shown.cut) == (40, 1)
    assert shown.notes() == ["40 nodes are not shown", "1 dependencies lead to nodes that are not shown"]


def test_what_is_between_is_bridged():
    shown = picture([chain(9)], NodeFilter(names=("*c2", "*c6", "*c7")), 10)
    assert [node.id for node in shown.nodes] == [2, 6, 7]
    assert shown.edges == (Edge(0, 1, "through"), Edge(1, 2, "depends"))


def test_around_a_node():
    shown = picture([chain(50)], NodeFilter(around=20, hops=2), 10)
    assert [node.id for node in shown.nodes] == [18, 19, 20, 21, 22]
    assert shown.cut == 2


def test_ids_and_nothing():
    assert len(picture([chain(5)], NodeFilter(ids=((1, 2), (4, 9))), 10).nodes) == 3
    with pytest.raises(et.TraceError, match="no node matches the selection"):
        picture([chain(5)], NodeFilter(ids=((7, 9),)), 10)


def test_small_traces_leave_room_to_large_ones():
    shown = picture([chain(2, 0), chain(50, 1), chain(50, 2)], NodeFilter(), 22)
    assert [sum(node.npu == npu for node in shown.nodes) for npu in range(3)] == [2, 10, 10]


@pytest.fixture
def pair():
    """A message between two NPUs, with a name that no format takes as it is."""
    first = [et.comp_node(0, STRANGE), et.send_node(1, "s", 0, 1, 8, deps=[0])]
    second = [et.recv_node(0, "r", 0, 1, 8), et.comp_node(1, "c", deps=[0])]
    return picture(
        [Rank(npu, et.table_of(et.metadata(), nodes)) for npu, nodes in enumerate((first, second))], NodeFilter(), 9
    )


def test_messages_are_arrows_between_npus(pair):
    assert pair.edges[-1] == Edge(1, 2, "message")
    assert [node.layer for node in pair.nodes] == [0, 1, 2, 3]


def test_graphml_is_read_by_networkx(pair):
    read = nx.read_graphml(io.BytesIO("".join(drawn(pair, "graphml")).encode()))
    assert {(a, b, data["kind"]) for a, b, data in read.edges(data=True)} == {
        ("n0", "n1", "depends"),
        ("n2", "n3", "depends"),
        ("n1", "n2", "message"),
    }
    assert read.nodes["n2"]["kind"] == "receives"
    assert read.nodes["n0"]["name"] == STRANGE.replace("\x01", "\ufffd")


def test_svg_is_xml_with_a_box_for_each_node(pair):
    root = ET.fromstring("".join(drawn(pair, "svg")))  # noqa: S314 - our own
    space = {"s": "http://www.w3.org/2000/svg"}
    assert len(root.findall("s:g/s:rect", space)) == 4
    assert len(root.findall("s:path", space)) == 3
    assert "NPU 0, node 0: a" in root.find("s:g/s:title", space).text


def test_no_boxes_overlap():
    nodes = [et.comp_node(i, "c", deps=[d for d in (i // 2 - 1, i // 3 - 1) if d >= 0]) for i in range(60)]
    corners = places(picture([Rank(0, et.table_of(et.metadata(), nodes))], NodeFilter(), 60))
    boxes = [(x, y) for x, y in corners]
    assert all(abs(a - c) >= 210 or abs(b - d) >= 40 for i, (a, b) in nonempty(enumerate(boxes)) for c, d in boxes[:i])


def test_dot_quotes_names_and_groups_npus(pair):
    text = "".join(drawn(pair, "dot"))
    assert r'n0 [label="0: a\"b\\<&>\n' in text
    assert 'subgraph cluster_1 { label="NPU 1"' in text
    assert '  n1 -> n2 [style="dotted"' in text
    assert text.count("{") == text.count("}")
