"""Dragonflies: the arrangement of cables, groups, and refusals."""

import numpy as np
import pytest

from nadi.topologies import Graph, TopologyError, build, describe, route


def _switch_pairs(graph: Graph) -> list[tuple[int, int]]:
    """Return the cables between switches as sorted pairs of switches, counted from the first switch, with repeats."""
    ends = np.sort(np.stack([graph.link_src[::2], graph.link_dst[::2]]), axis=0) - graph.npus
    return sorted(map(tuple, ends[:, ends[0] >= 0].T.tolist()))


def test_global_links_are_those_of_other_simulators() -> None:
    # neighbours of the first routers of p4 a8 h4 in dragonfly.adjlist of spcl's simulator
    pairs = set(_switch_pairs(build("dragonfly:p=4,a=8,h=4")))
    expected = {
        0: {1, 2, 3, 4, 5, 6, 7, 15, 23, 31, 39},
        1: {0, 2, 3, 4, 5, 6, 7, 46, 54, 62, 70},
        9: {8, 10, 11, 12, 13, 14, 15, 54, 62, 70, 78},
        201: {200, 202, 203, 204, 205, 206, 207, 6, 246, 254, 262},
    }
    # router 201 is router 1 of group 25: its ports 4 to 7 lead to groups 30 to 32 and 0
    for router, neighbours in expected.items():
        assert {b if a == router else a for a, b in pairs if router in (a, b)} == neighbours


def test_every_group_reaches_every_other() -> None:
    for groups in (2, 3, 4, 9):
        graph = build(f"dragonfly:p=2,a=4,h=2,groups={groups}")
        of = graph.group[graph.npus :]
        between = [(of[a], of[b]) for a, b in _switch_pairs(graph) if of[a] != of[b]]
        expected = 8 // (groups - 1)
        counts = {pair: between.count(pair) for pair in between}
        assert len(counts) == groups * (groups - 1) // 2
        assert set(counts.values()) == {expected}
        # no switch has more than h global ports in use
        ends = np.array([end for a, b in _switch_pairs(graph) if of[a] != of[b] for end in (a, b)])
        assert np.bincount(ends).max() <= 2


def test_minimal_paths_have_at_most_five_links() -> None:
    graph = build("dragonfly:p=2,a=4,h=2")
    assert describe(graph)["diameter_hops"] == 5
    kinds = graph.group[graph.link_dst[route(graph, 0, graph.npus - 1)]]
    assert len(np.unique(kinds[kinds >= 0])) == 2


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(TopologyError, match="groups = 10; expected at most 9"):
        build("dragonfly:p=2,a=4,h=2,groups=10")
