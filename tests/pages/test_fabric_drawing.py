"""Pictures of fabrics: every node and cable once, no mark on another, colours of planes, the same bytes each time."""

import itertools
import re
from collections import Counter
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from nadi import topologies
from nadi.reports.fabric_drawing import write_drawing
from tests.nonempty import nonempty

SVG = "{http://www.w3.org/2000/svg}"
FABRICS = (
    *("ring:npus=2", "fully-connected:npus=6", "switch:npus=3", "torus:sizes=2x2", "torus:sizes=2x3x4"),
    *("twisted-torus:sizes=8x4", "twisted-torus:sizes=2x2x4", "stack:dims=Ring(4)_FullyConnected(4)"),
    *("stack:dims=Switch(4)_Switch(2)", "dgx-h100:npus=8", "dgx-h100:npus=32", "mi300x-servers:npus=16"),
    *("fat-tree:k=4", "leaf-spine:npus=5,hosts_per_leaf=2,spines=2,uplinks=3", "rail-only:npus=16,gpus_per_host=4"),
    *("hyperx:sizes=4x4,p=2", "hyperx:sizes=2x2x2,p=1", "slim-fly:q=3,p=2", "slim-fly:q=5", "dragonfly:p=2,a=4,h=2"),
    *("dragonfly:p=1,a=1,h=3", "dragonfly-plus:p=2,leaves=3", "zcube:npus=16,npus_per_switch=4"),
    *("multi-plane:npus=8,planes=4,nics_per_leaf=4", "multi-plane:npus=4,nics_per_leaf=4"),
)


def drawn(spec, tmp_path):
    """Return a fabric, and its picture as an element of XML."""
    graph = topologies.build(spec)
    write_drawing(graph, tmp_path / "fabric.svg")
    return graph, ET.parse(tmp_path / "fabric.svg").getroot()  # noqa: S314 - of this program


def cables_of(picture):
    """Return the cables of a picture: title and colour of each line."""
    return [
        (path.find(f"{SVG}title").text, path.get("stroke"))
        for path in picture.iterfind(f"{SVG}g/{SVG}path[{SVG}title]")
    ]


def marks_of(picture):
    """Return the places of marks by the names of their nodes."""
    found = {}
    for group in picture.iterfind(f"{SVG}g[{SVG}title]"):
        box, circle = group.find(f"{SVG}rect"), group.find(f"{SVG}circle")
        if box is None:
            place = float(circle.get("cx")), float(circle.get("cy"))
        else:
            place = float(box.get("x")) + float(box.get("width")) / 2, float(box.get("y")) + 9
        found[group.find(f"{SVG}title").text] = np.array(place)
    return found


@pytest.mark.parametrize("spec", FABRICS)
def test_every_node_and_cable_is_drawn_once(spec, tmp_path):
    graph, picture = drawn(spec, tmp_path)
    places = marks_of(picture)
    assert list(places) == [graph.node_name(node) for node in range(graph.nodes)]
    expected = Counter(
        tuple(sorted(map(graph.node_name, map(int, ends))))
        for ends in zip(graph.link_src[::2], graph.link_dst[::2], strict=True)
    )
    found = Counter()
    for title, _ in cables_of(picture):
        a, b = title.partition(", ")[0].split(" - ")
        count = re.search(r", (\d+) cables$", title)
        found[tuple(sorted((a, b)))] += int(count[1]) if count else 1
    assert found == expected
    left, top, width, height = map(float, picture.get("viewBox").split())
    for x, y in places.values():
        assert left + 9 <= x <= left + width - 9
        assert top + 9 <= y <= top + height - 9
    for (one, a), (other, b) in itertools.combinations(nonempty(places.items()), 2):
        assert np.hypot(*(a - b)) >= 12, (one, other)


def test_planes_have_colours(tmp_path):
    """A cable has the colour of the plane of its leaf."""
    _, picture = drawn("multi-plane:npus=8,planes=4,nics_per_leaf=4", tmp_path)
    colours = {title.partition(",")[0]: colour for title, colour in cables_of(picture)}
    of_plane = [
        {colour for ends, colour in colours.items() if re.search(rf"leaf [{leaves}]\b", ends)}
        for leaves in ("01", "23", "45", "67")
    ]
    assert [len(each) for each in of_plane] == [1, 1, 1, 1]
    assert len(set.union(*of_plane)) == 4


def test_a_cable_that_closes_a_twisted_ring_names_the_other_end(tmp_path):
    """The column of NPU 0 of 8 x 4 begins beside the end of the column that is 4 further on."""
    _, picture = drawn("twisted-torus:sizes=8x4", tmp_path)
    texts = [text.text for text in picture.iterfind(f"{SVG}g/{SVG}text")]
    assert {"28", "29", "30", "31", "24", "25", "26", "27"} <= set(texts)
    assert "router 0 - router 28, 400 Gb/s, 500 ns" in dict(cables_of(picture))
