"""Circles of waiting links: found where they are known to be, and nowhere else."""

from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest

from nadi.topologies import build
from nadi.topologies.deadlock import circle_text, dependency_cycle
from nadi.topologies.endpoints import with_cables
from nadi.topologies.routing import route
from tests.topologies.naive import SMALL


def _closed(graph, cycle):
    ends = graph.link_dst[cycle]
    return (graph.link_src[np.roll(cycle, -1)] == ends).all()


@pytest.mark.parametrize("spec", ["fat-tree:k=4", "leaf-spine:leaves=4,hosts_per_leaf=2,spines=3", "dgx-h100:npus=16"])
def test_trees_have_none(spec):
    assert dependency_cycle(build(spec)) is None


@pytest.mark.parametrize("more", ["", ",gpus_per_host=4"])
def test_only_paths_that_packets_of_npus_take_count(more):
    # an NPU of a ZCube sends by the switch that is nearest to its destination: not from an odd switch over an even one
    # to another odd one, of which all such paths together would wait in a circle
    graph = build(f"zcube:npus=16,npus_per_switch=4{more}")
    assert nx.is_directed_acyclic_graph(_channels(graph))
    assert dependency_cycle(graph) is None
    # with detours packets go on from any switch
    assert dependency_cycle(graph, detours=True) is not None


def _channels(graph):
    """The naive channel dependency graph: an edge for each two links in a row of the first and last of equal paths."""
    channels = nx.DiGraph()
    for src, dst in permutations(range(graph.npus), 2):
        for choose in (min, max):
            channels.add_edges_from(pairwise(route(graph, src, dst, choose)))
    return channels


def test_a_ring_with_one_class_has_one():
    graph = build("ring:npus=5")
    cycle = dependency_cycle(graph)
    assert cycle is not None
    assert len(cycle) == 5
    assert _closed(graph, cycle)
    assert circle_text(graph, cycle).count("npu") == 6
    assert dependency_cycle(build("ring:npus=3")) is None, "each path is one link"


@pytest.mark.parametrize("seed", range(8))
def test_circuits_beside_dimensions_that_are_taken_in_order(seed):
    # paths take the dimensions in their order, begin anew behind a circuit, and then wait in no circle in the next lane
    graph = build("hyperx:sizes=3x3x3,p=1,dimension_order=true")
    ends = np.random.default_rng(seed).permutation(np.arange(graph.npus, graph.nodes))[:12].reshape(2, 6)
    extended = with_cables(graph, np.stack([*ends, np.full(6, 10**11), np.full(6, 10**6)]))
    longest = 0
    for src, dst in permutations(range(graph.npus), 2):
        for choose in (min, max):
            path = route(extended, src, dst, choose)[1:-1]
            places = [int(graph.link_order[link]) if link < graph.links else -1 for link in path]
            longest = max(longest, places.count(-1))
            assert all(b == -1 or a < b for a, b in pairwise(places))
    assert longest >= 1
    assert dependency_cycle(extended, classes=1 + longest) is None


# As published: a dragonfly needs 2 virtual channels for shortest paths, 3 for detours (Kim et al., ISCA 2008, section
# 4.3), and one more where a switch on the way decides again (Jiang et al., ISCA 2009, section 3.3); a slim fly 2 and 4,
# as many as links of a path (Besta and Hoefler, SC 2014, section IV-D).
NEEDED = {
    "dragonfly:p=2,a=4,h=2": (2, 3, 4, 5),
    "dragonfly-plus:p=2,leaves=2": (1, 3, 4, 4),
    "slim-fly:q=3,p=2": (2, 4, 4, 4),
    "hyperx:sizes=3x3,p=2": (2, 4, 4, 4),
    "hyperx:sizes=3x3,p=2,dimension_order=true": (1, 2, 3, 3),
    "fat-tree:k=4": (1, 2, 3, 3),
    "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2": (1, 2, 3, 3),
}


@pytest.mark.parametrize("spec", NEEDED)
@pytest.mark.parametrize("kind", range(4), ids=["minimal", "detours", "changes", "two changes"])
def test_a_class_for_each_rise_breaks_all_circles(spec, kind):
    graph = build(spec)
    rule = {"detours": kind > 0, "changes": max(kind - 1, 0)}
    for classes in range(1, NEEDED[spec][kind]):
        cycle = dependency_cycle(graph, classes=classes, **rule)
        assert cycle is not None
        assert _closed(graph, cycle)
    assert dependency_cycle(graph, classes=NEEDED[spec][kind], **rule) is None


@pytest.mark.parametrize("spec", [spec for spec in SMALL if not spec.startswith("switch")])
def test_cycles_are_those_of_all_paths(spec):
    graph = build(spec)
    if not nx.is_directed_acyclic_graph(_channels(graph)):
        assert dependency_cycle(graph) is not None
