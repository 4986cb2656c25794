"""Findings from tables made by hand."""

import numpy as np
import pytest

from nadi.insight.network import (
    causes,
    completion,
    find_pauses,
    possible_links,
    root_links,
    spread,
    tiers,
    top_links,
    victims,
)
from nadi.topologies import build
from tests.nonempty import nonempty

US = 10**6
ENDS = [("npu 0", "leaf 0"), ("npu 1", "leaf 0"), ("leaf 0", "spine 0"), ("spine 0", "leaf 1"), ("leaf 1", "npu 2")]
IN0, IN1, UP, DOWN, OUT = range(5)


@pytest.fixture
def links():
    return {
        "src": [src for src, _ in ENDS],
        "dst": [dst for _, dst in ENDS],
        "name": [f"{src} → {dst}" for src, dst in ENDS],
        "rate_bps": np.full(5, 10**11),
        "delay_ps": np.full(5, US),
        "utilisation": np.array([0.1, 0.2, 0.9, 0.0, 0.5]),
        "marked_packets": np.array([0, 0, 7, 9, 0]),
        "buffered_bytes": np.array([0, 0, 100, 100, 900]),
    }


def log(*events):
    """Columns of pauses.parquet: (µs, link, 1 paused or 0) of class 0."""
    time_us, link, paused = np.array(events).T
    zeros = np.zeros(len(link), np.int64)
    return {"time_ps": time_us * US, "link": link, "data_class": zeros, "paused": paused == 1}


def test_links_with_most(links):
    assert [row["name"] for row in top_links(links, "utilisation", 2)] == ["leaf 0 → spine 0", "leaf 1 → npu 2"]
    assert [(row["link"], row["marked_packets"]) for row in top_links(links, "marked_packets", 9)] == [(3, 9), (2, 7)]
    assert top_links(links, "paused_ps", 3) == []
    assert tiers(links) == ["npu → leaf"] * 2 + ["leaf → spine", "spine → leaf", "leaf → npu"]


def test_completion_times_by_decade():
    size = np.array([0, 5, 9, *[1000] * 100])
    time_ps = np.array([1, 2, 3, *range(1, 101)]) * US
    flows = {"bytes": size, "start_ps": np.full(103, 7), "finish_ps": time_ps + 7, "slowdown": time_ps / US}
    every, small, large = completion(flows)
    assert (every["from_bytes"], small["from_bytes"], large["from_bytes"]) == (None, 1, 1000)
    assert (every["messages"], small["messages"], large["messages"]) == (103, 3, 100)
    none = {"p95": None, "p99": None, "p99.9": None}  # too few messages
    assert small["time_ps"] == {"p50": 2 * US, **none, "p100": 3 * US}
    assert large["time_ps"] == {"p50": 50 * US, "p95": 95 * US, "p99": 99 * US, "p99.9": None, "p100": 100 * US}
    assert large["slowdown"]["p99"] == 99.0
    unknown = {**flows, "slowdown": np.full(103, np.nan)}
    assert all(row["slowdown"] is None for row in nonempty(completion(unknown)))
    assert completion({name: column[:0] for name, column in flows.items()}) == []


def test_pauses_from_their_log():
    found = find_pauses(log((5, UP, 1), (1, IN0, 1), (3, IN0, 0), (4, IN0, 1), (2, IN1, 0)), 9 * US)
    assert found.link.tolist() == [IN0, IN0, UP]
    assert (found.start_ps // US).tolist() == [1, 4, 5]
    assert (found.end_ps // US).tolist() == [3, 9, 9]


def test_classes_are_paused_apart():
    two = log((1, UP, 1), (2, UP, 1), (3, UP, 0), (4, UP, 0))
    two["data_class"] = np.array([0, 1, 0, 1])
    found = find_pauses(two, 9 * US)
    assert (found.end_ps // US).tolist() == [3, 4]


# leaf 1 pauses DOWN, so spine 0 pauses UP, so leaf 0 pauses IN0 and, later, IN1; then all again, from spine 0
STORY = (
    *((10, DOWN, 1), (12, UP, 1), (14, IN0, 1), (15, IN1, 1)),
    *((20, DOWN, 0), (22, UP, 0), (24, IN0, 0), (25, IN1, 0)),
    *((40, UP, 1), (42, IN0, 1), (50, UP, 0), (52, IN0, 0)),
)


def test_the_tree_of_a_spread(links):
    pauses = find_pauses(log(*STORY), 99 * US)
    cause = causes(pauses, links)
    assert pauses.link.tolist() == [DOWN, UP, IN0, IN1, UP, IN0]
    assert cause.tolist() == [-1, 0, 1, 1, -1, 4]
    first, second = spread(pauses, cause, links)
    assert (first.name, first.size(), first.whole_ps()) == ("leaf 1", 4, 40 * US)
    assert (second.name, second.size(), second.whole_ps()) == ("spine 0", 2, 20 * US)
    tree = first.as_dict()
    assert tree["switch"] == "leaf 1"
    (down,) = tree["spread"]
    (up,) = down["spread"]
    assert (down["link"], up["link"]) == ("spine 0 → leaf 1", "leaf 0 → spine 0")
    assert [branch["link"] for branch in up["spread"]] == ["npu 0 → leaf 0", "npu 1 → leaf 0"]
    assert up["first_ps"] == 12 * US
    assert root_links([first], links).tolist() == [OUT]
    assert root_links([second], links).tolist() == [DOWN]


def test_a_cause_was_in_force_when_the_pause_was_asked_for(links):
    # asked for a link's delay (1 µs) before: UP was paused from 10 to 20
    for in0_us, cause in ((10, -1), (11, 0), (20, 0), (21, -1)):
        pauses = find_pauses(log((10, UP, 1), (20, UP, 0), (in0_us, IN0, 1)), 99 * US)
        assert causes(pauses, links)[pauses.link == IN0].tolist() == [cause]


def test_the_longest_pause_is_taken_for_the_cause(links):
    links["src"][OUT] = "leaf 0"
    pauses = find_pauses(log((5, OUT, 1), (3, UP, 1), (9, IN0, 1)), 99 * US)
    assert causes(pauses, links)[2] == pauses.link.tolist().index(UP)


def test_repeated_pauses_are_one_branch(links):
    again = [
        (at + 100 * i, link, on)
        for i in range(3)
        for at, link, on in ((10, UP, 1), (12, IN0, 1), (20, UP, 0), (22, IN0, 0))
    ]
    pauses = find_pauses(log(*again), 999 * US)
    (root,) = spread(pauses, causes(pauses, links), links)
    (up,) = root.in_order()
    assert (up.pauses, up.paused_ps, up.first_ps) == (3, 30 * US, 10 * US)
    assert (root.size(), root.whole_ps()) == (2, 60 * US)


def test_victims_cross_a_paused_link_and_no_congested_one():
    graph = build("leaf-spine:npus=8,hosts_per_leaf=2,spines=1")
    link = {(int(graph.link_src[i]), int(graph.link_dst[i])): i for i in range(graph.links)}
    leaf = [int(graph.link_dst[link_of]) for link_of in (graph.out_links(npu)[0] for npu in range(8))]
    spine = int(next(iter(set(graph.link_dst[graph.out_links(leaf[0])]) - {0, 1})))
    up, congested = link[leaf[2], spine], link[spine, leaf[0]]
    pauses = find_pauses(log((10, up, 1), (20, up, 0)), 99 * US)
    flows = {
        "src": np.array([2, 3, 3, 3, 4, 3]),
        "dst": np.array([0, 5, 5, 2, 5, 7]),
        "start_ps": np.array([0, 0, 20, 0, 0, 15]) * US,
        "finish_ps": np.array([50, 50, 50, 50, 50, 16]) * US,
        "slowdown": np.array([9.0, 3.0, 3.0, 3.0, 3.0, 4.0]),
    }
    found = victims(graph, flows, pauses, np.array([congested]))
    assert [(v.row, v.paused_ps, v.link, v.is_sure) for v in found] == [(5, US, up, True), (1, 10 * US, up, True)]


def test_of_several_equal_paths_it_is_not_sure_which():
    graph = build("leaf-spine:npus=8,hosts_per_leaf=2,spines=2")
    path = possible_links(graph, 0, 7)
    assert sorted(path.values()) == [False] * 4 + [True] * 2
    maybe = next(link for link, sure in path.items() if not sure)
    flows = {"src": np.array([0]), "dst": np.array([7]), "start_ps": np.array([0]), "finish_ps": np.array([50 * US])}
    (found,) = victims(graph, flows, find_pauses(log((10, maybe, 1)), 99 * US), np.zeros(0, np.int64))
    assert not found.is_sure
    assert np.isnan(found.slowdown)
