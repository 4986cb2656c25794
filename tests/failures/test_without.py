"""Routing around what is down, against a search over the links that are up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.topologies import UNREACHABLE, TopologyError, build, next_links, routing_without
from tests.budgets import bounded
from tests.nonempty import nonempty

SPECS = [
    "leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,uplinks=2",
    "fat-tree:pods=3,leaves_per_pod=2,hosts_per_leaf=1,spines_per_pod=2,cores_per_plane=2",
    "rail-optimised:npus=8,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2",
    "switch:npus=3",
]


def distance(graph, up, start, goal):
    """Links on a shortest path over switches, None if there is none."""
    at, seen, steps = {start}, {start}, 0
    while at:
        if goal in at:
            return steps
        following = set()
        for node in at:
            if node >= graph.npus or node == start:
                following |= {int(graph.link_dst[link]) for link in graph.out_links(node) if up[link]}
        at = following - seen
        seen |= at
        steps += 1
    return None


@st.composite
def damaged(draw):
    graph = build(draw(st.sampled_from(SPECS)))
    cables = draw(st.sets(st.integers(0, graph.links // 2 - 1), max_size=graph.links // 2))
    return graph, {link for c in cables for link in (2 * c, 2 * c + 1)}


def chosen(routing, node, npu):
    """Links that the kernel may choose at a switch: those of the homes that are nearest."""
    row, found, best = routing.row[node], [], UNREACHABLE
    for home, attach in zip(routing.home[npu], routing.attach_set[npu], strict=True):
        if home >= 0:
            hops = routing.hops[row, home]
            number = attach if routing.home_node[home] == node else routing.next_set[row, home]
            if hops < best:
                best, found = hops, []
            if hops == best < UNREACHABLE:
                found += routing.set_link[routing.set_ptr[number] : routing.set_ptr[number + 1]].tolist()
    return found


@bounded(150)
@given(damaged())
def test_shortest_ways_around_or_to_a_link_that_is_down(drawn):
    graph, down = drawn
    routing = routing_without(graph, down)
    up = np.ones(graph.links, bool)
    up[list(down)] = False
    assert routing.hops.shape == graph.routing.hops.shape
    assert routing.home.shape == graph.routing.home.shape
    for npu in range(graph.npus):
        for start in nonempty(range(graph.npus, graph.nodes)):
            left = distance(graph, up, start, npu)
            at, steps = {start}, 0
            while at - {npu}:
                links = {link for node in at if node >= graph.npus for link in chosen(routing, node, npu)}
                if not links:  # the kernel drops it
                    assert graph.routing.home.shape[1] > 1
                    assert left is None
                    at = set()
                    break
                if left is not None:
                    assert not links & down
                at = {int(graph.link_dst[link]) for link in links if up[link]}
                steps += 1
                assert steps <= 2 * graph.nodes
            if left is not None:
                assert (at, steps) == ({npu}, left)
            else:
                assert not at


def test_nothing_down_is_the_whole_fabric():
    for spec in SPECS:
        graph = build(spec)
        routing = routing_without(graph, ())
        for node in nonempty(range(graph.npus, graph.nodes)):
            for npu in range(graph.npus):
                assert sorted(chosen(routing, node, npu)) == sorted(chosen(graph.routing, node, npu))
                assert sorted(chosen(routing, node, npu)) == sorted(next_links(graph, node, npu))


def test_dimensions_have_no_other_way():
    with pytest.raises(TopologyError, match="no way around"):
        routing_without(build("ring:npus=4"), (0, 1))
