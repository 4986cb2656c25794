"""Faults without a way on: routing around what is down, NPUs that have lost their path, NICs that pause for ever."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from nadi import et
from nadi.pdes import LinkFault, RunError, Settings, build_world, run
from nadi.pdes.outcomes.stall import LostPaths
from nadi.topologies import UNREACHABLE, TopologyError, build, next_links
from nadi.workload import pairs_program
from tests.budgets import bounded
from tests.cli.conftest import nadi, write_run  # noqa: F401 - fixtures
from tests.failures.common import cable, faults_of, of_switch
from tests.nonempty import nonempty

SPEC = "leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,uplinks=2,rate=100Gbps,delay=1us"
"""NPUs 0 to 3, leaves 4 and 5, spines 6 and 7."""
GRAPH = build(SPEC)
LASTING = {"rto_ps": 20_000_000, "max_retries": 2}
MS = 10**9


def fails(links, owner=None, **more):
    """The line of a run with these faults in which NPUs 0 and 2 send to each other."""
    program = pairs_program(np.array([2, -1, 0, -1]), 1 << 20)
    settings = Settings(faults=faults_of(GRAPH, links), **LASTING, **more)
    with pytest.raises(RunError) as caught:
        run(build_world(GRAPH, program, settings, owner))
    return str(caught.value)


def down(links, at_ps=0, until_ps=None):
    return LinkFault(links, at_ps, down=True, **({} if until_ps is None else {"until_ps": until_ps}))


def paths(*faults, now_ps=10 * MS):
    return LostPaths(GRAPH, faults_of(GRAPH, faults), now_ps)


@pytest.mark.parametrize("owner", [None, [0, 0, 1, 1, 0, 1, 0, 1]])
@pytest.mark.parametrize(
    ("links", "why"),
    [(cable(GRAPH, 0, 4), "link npu 0 - leaf 0 went down at 0 ms"), (of_switch(GRAPH, 5), "leaf 1 went down at 0 ms")],
)
def test_an_npu_that_has_lost_its_path_says_since_when(owner, links, why):
    line = fails([down(links)], None if owner is None else np.array(owner))
    assert line.startswith(("npu 0 has no path to npu 2 since ", "npu 2 has no path to npu 0 since "))
    assert f"{why}: packet 0 unacknowledged after 3 timeouts" in line
    assert "\n" not in line


def test_with_a_path_that_is_left_it_lists_what_is_down():
    lossy = LinkFault(cable(GRAPH, 0, 4), 0, error_rate=0.999)
    line = fails([lossy, down(cable(GRAPH, 4, 6))])
    assert "npu 2: packet" in line or "npu 0: packet" in line
    assert line.endswith(
        "an rto that is too short; down by faults: link leaf 0 - spine 0; "
        "lossy by faults: link npu 0 - leaf 0 (error_rate 0.999)"
    )


def test_nothing_is_down():
    line = fails([LinkFault(cable(GRAPH, 0, 4), 0, error_rate=0.999)])
    assert "unacknowledged" in line
    assert "down" not in line


def test_the_last_of_several_failures_cuts():
    both = down(of_switch(GRAPH, 6), MS), down(of_switch(GRAPH, 7), 2 * MS)
    assert paths(*both).between(1, 3) == "npu 1 has no path to npu 3 since spine 1 went down at 2 ms"
    assert paths(*both).between(0, 1) == ""
    assert paths(*both, now_ps=MS).between(1, 3) == ""


def test_a_path_that_came_back_is_cut_since_it_failed_again():
    link = cable(GRAPH, 1, 4)
    assert paths(down(link, 0, MS), down(link, 3 * MS)).between(1, 0) == (
        "npu 1 has no path to npu 0 since link npu 1 - leaf 0 went down at 3 ms"
    )
    assert paths(down(link, 0, MS)).between(1, 0) == ""


def test_places_that_fail_together_are_listed():
    together = down(cable(GRAPH, 0, 4), MS), down(of_switch(GRAPH, 5), MS)
    assert paths(*together).between(0, 2) == (
        "npu 0 has no path to npu 2 since leaf 1 and link npu 0 - leaf 0 went down at 1 ms"
    )


def test_names_of_what_is_down_now():
    back = down(cable(GRAPH, 4, 6), 0, MS)
    slow = LinkFault(cable(GRAPH, 4, 7), 0, rate_bps=10**10)
    late = down(cable(GRAPH, 5, 7), 100 * MS)
    lost = LinkFault(cable(GRAPH, 1, 4), 0, error_rate=1.0)
    now = paths(back, slow, late, lost, down(cable(GRAPH, 5, 6)[2:]), down(cable(GRAPH, 2, 5)))
    assert now.clause() == "; down by faults: link npu 1 - leaf 0, link npu 2 - leaf 1, link leaf 1 - spine 0 cable 1"
    many = paths(*(down(cable(GRAPH, npu, 4 + npu // 2)) for npu in range(4)), down(of_switch(GRAPH, 6)))
    assert many.clause().startswith("; down by faults: spine 0, link npu 0 - leaf 0, ")


def test_an_npu_and_the_first_peer_that_it_has_lost():
    lost = paths(down(of_switch(GRAPH, 6)), down(of_switch(GRAPH, 7), MS))
    assert lost.of_npu(0, [0, 1, 2, 3]) == "npu 0 has no path to npu 2 since spine 1 went down at 1 ms"
    assert lost.of_npu(0, [1]) == ""


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
    routing = graph.routing.without(graph, down)
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
        routing = graph.routing.without(graph, ())
        for node in nonempty(range(graph.npus, graph.nodes)):
            for npu in range(graph.npus):
                assert sorted(chosen(routing, node, npu)) == sorted(chosen(graph.routing, node, npu))
                assert sorted(chosen(routing, node, npu)) == sorted(next_links(graph, node, npu))


def test_dimensions_have_no_other_way():
    with pytest.raises(TopologyError, match="no way around"):
        (ring := build("ring:npus=4")).routing.without(ring, (0, 1))


FABRIC = 'spec = "leaf-spine:npus=8,hosts_per_leaf=4,spines=1,rate=100Gbps,uplink_rate=100Gbps"'
PAUSING = '[network]\nswitch = "shared-buffer"\nbuffer = "500kB"\n'
STORM = '[[faults]]\nat = "10us"\nnpu = 0\npause_storm = true\n'
SIZE = 2_000_000


def nodes(*pairs):
    """Messages of SIZE from the first of each pair to the second."""
    of_npu = [[] for _ in range(8)]
    for src, dst in pairs:
        of_npu[src].append(et.send_node(len(of_npu[src]) + 1, "s", src, dst, SIZE))
        of_npu[dst].append(et.recv_node(len(of_npu[dst]) + 1, "r", src, dst, SIZE))
    return of_npu


def test_traffic_that_avoids_the_nic_is_as_without(nadi, write_run, tmp_path):  # noqa: F811
    digests = []
    for faults in ("", STORM):
        run = write_run(nodes((4, 1), (2, 5)), PAUSING + faults, FABRIC)
        outcome = nadi("run", run, "--out", tmp_path / f"out{len(digests)}", "-q")
        assert outcome.code == 0, outcome.err
        digests.append(json.loads((tmp_path / f"out{len(digests)}" / "summary.json").read_text())["digest"])
    assert digests[0] == digests[1]


def test_a_pause_that_lasts_counts_to_the_end_of_the_run(nadi, write_run, tmp_path):  # noqa: F811
    """Storms last: the link to the NIC is paused from the storm's frame, the only one, until the end."""
    assert nadi("run", write_run(nodes((4, 1)), PAUSING + STORM, FABRIC), "--out", tmp_path / "out", "-q").code == 0
    finish_ps = json.loads((tmp_path / "out" / "summary.json").read_text())["finish_time_ps"]
    links, pauses = (pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in ("links", "pauses"))
    (begin_ps,) = (pause["time_ps"] for pause in pauses)
    assert 10_000_000 <= begin_ps < 11_000_000
    assert {link["dst"]: link["paused_ps"] for link in links if link["paused_ps"]} == {"npu 0": finish_ps - begin_ps}


def test_pauses_spread_to_messages_that_share_links_with_those_that_wait(nadi, write_run):  # noqa: F811
    """NPUs 4 and 5 send over the one uplink of their leaf, which packets for NPU 0 fill; 2 to 3 stay below leaf 0."""
    outcome = nadi("run", write_run(nodes((4, 0), (5, 1), (2, 3)), PAUSING + STORM, FABRIC), "-q")
    assert outcome.code == 1
    assert "pause storms: npu 0" in outcome.err
    waiting = [line.split(":")[0].strip() for line in outcome.err.splitlines() if " row " in line]
    assert {line.split(" row")[0] for line in waiting} == {"npu 0", "npu 1", "npu 4", "npu 5"}
