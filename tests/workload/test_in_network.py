"""Collectives that switches reduce: trees of aggregators, what members and they do, and the program that runs."""

import numpy as np
import pytest

from nadi import topologies
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.topologies.endpoints import AGGREGATOR_DELAY_PS, added_to_switches, with_aggregators
from nadi.topologies.graph import AGGREGATOR
from nadi.workload import KINDS, CollectiveSettings, WorkloadError, build_program, collective_program
from nadi.workload.collectives import known_algorithms, plan
from nadi.workload.collectives.plans.plan import Lane, each_its_own
from nadi.workload.collectives.schedules import oracle
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.collectives.trees import ROOT, tree_of
from nadi.workload.program.jobs import extended, switches_of
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty
from tests.samples import sampled

NAMES = ("in-network:chunks=3", "nvls:chunks=2")
CASES = [(name, kind) for name in NAMES for kind in known_algorithms()[name.split(":")[0]].KINDS]
LEAVES = "leaf-spine:leaves=5,hosts_per_leaf=4,spines=2"


def names(graph, switches):
    return [graph.node_name(switch) for switch in switches]


def packed(kind, name, graph, members, size_bytes=1 << 20):
    schedules = ScheduleSet()
    index = schedules.add(kind, name, len(members), shape_of(graph, members, trees="all"), size_bytes)
    return schedules.pack(), index


@sampled({"members": range(2, 18), "name, kind": CASES})
def test_does_what_the_kind_promises_on_one_switch(name, kind, members):
    graph = topologies.build(f"switch:npus={members}")
    oracle.check(kind, *packed(kind, name, graph, range(members)), seed=members)


@pytest.mark.parametrize("members", [range(2), range(5), range(3, 20), range(0, 20, 4), [19, 3, 4, 11], range(20)])
@pytest.mark.parametrize("kind", known_algorithms()["in-network"].KINDS)
def test_does_what_the_kind_promises_on_a_tree(kind, members):
    for seed in range(3):
        oracle.check(kind, *packed(kind, "in-network:chunks=3", topologies.build(LEAVES), list(members)), seed=seed)


@pytest.mark.parametrize("kind", known_algorithms()["in-network"].KINDS)
def test_does_what_the_kind_promises_on_three_tiers(kind):
    oracle.check(kind, *packed(kind, "in-network:chunks=2", topologies.build("fat-tree:k=4"), range(16)))


@pytest.mark.parametrize(("npus", "per_host"), [(4, 2), (6, 2), (8, 4), (12, 4), (20, 4), (28, 4), (24, 8), (17, 1)])
@pytest.mark.parametrize("name", ["nvls-tree:chunks=4", "nvls-sharp:chunks=3"])
def test_does_what_the_kind_promises_on_hosts_and_rails(name, npus, per_host):
    graph = topologies.build(f"rail-optimised:npus={npus},gpus_per_host={per_host}")
    trees = known_algorithms()[name.split(":")[0]].TREES
    if per_host == 1:
        with pytest.raises(WorkloadError, match="hosts of 1 to 1 members, expected two or more, equally many"):
            shape_of(graph, range(npus), trees=trees)
        return
    schedules = ScheduleSet()
    index = schedules.add("all-reduce", name, npus, shape_of(graph, range(npus), trees=trees), 1 << 20)
    for seed in range(3):
        oracle.check("all-reduce", schedules.pack(), index, seed=seed)


def test_a_switch_may_serve_several_trees_of_a_group():
    """One spine is the root of every rail's tree: it holds an aggregator for each, members of their own."""
    graph = topologies.build("rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2,spines=1")
    program = collective_program("all-reduce", 16, 40_000, "nvls-sharp", graph)
    switches = program.in_network[0].switches
    spine = next(s for s in switches if graph.node_name(s) == "spine 0")
    assert switches.count(spine) == 4
    assert len(switches) == 4 + 4 * (2 + 1)
    assert switches_of(program) == sorted(switches)
    running = extended(program)
    members = running.group_member[running.group_ptr[0] : running.group_ptr[1]]
    assert sorted(members.tolist()) == list(range(16 + len(switches)))
    assert [switches_of(program)[npu - 16] for npu in members[16:]] == list(switches)


def test_one_set_of_trees_in_a_run():
    graph = topologies.build("rail-optimised:npus=16,gpus_per_host=4")
    node = coll_node(0, "a", CollectiveCommType.ALL_REDUCE, 4000)
    chosen = CollectiveSettings({"all-reduce": "nvls-tree", "all-gather": "in-network"})
    with pytest.raises(WorkloadError, match=r"^collectives: found in-network \(trees over all\) and nvls-tree"):
        build_program([table_of(metadata(), [node])], np.zeros(16, int), 16, settings=chosen, fabric=graph)


def test_an_aggregator_may_not_add_data_of_its_own():
    """A sum that begins with what the aggregator holds, which is nothing."""
    members = [[Lane().step(send_to=2, to_lane=m, send=0), Lane().step(receive_from=2, receive=0)] for m in range(2)]
    sums = [Lane().step(receive_from=0, receive=0, reduce=True), Lane().step(receive_from=1, receive=0, reduce=True)]
    down = Lane().step(send_to=0, to_lane=1, send=0, after=(1, 0)).step(send_to=1, to_lane=1, send=0)
    with pytest.raises(oracle.OracleError, match="reduces into chunk 0, which holds nothing"):
        oracle.check("all-reduce", pack([each_its_own(1, [*members, [*sums, down]], aggregators=1)]), 0)


def test_a_sum_sent_too_early_is_found():
    """The result leaves when one of two children has been heard of."""
    members = [[Lane().step(send_to=2, to_lane=m, send=0), Lane().step(receive_from=2, receive=0)] for m in range(2)]
    sums = [Lane().step(receive_from=0, receive=0), Lane().step(receive_from=1, receive=0, reduce=True, after=(0, 0))]
    down = Lane().step(send_to=0, to_lane=1, send=0, after=(0, 0)).step(send_to=1, to_lane=1, send=0)
    schedules = pack([each_its_own(1, [*members, [*sums, down]], aggregators=1)])

    def play():
        for seed in range(50):
            oracle.check("all-reduce", schedules, 0, seed=seed)

    with pytest.raises(oracle.OracleError, match="promised"):
        play()


def test_trees():
    """Roots as near as can be to the farthest member; a switch with one child passes on."""
    fat = topologies.build("fat-tree:k=4")
    assert names(fat, tree_of(fat, [0, 1])[1]) == ["leaf 0"]
    assert names(fat, tree_of(fat, [0, 5, 9])[1]) == ["core 0"]
    whole, switches = tree_of(fat, range(16))
    assert [name.split()[0] for name in names(fat, switches)].count("leaf") == 8
    assert len(switches) == 8 + 4 + 1
    assert whole.parent.count(ROOT) == 1
    rails = topologies.build("rail-optimised:npus=32,gpus_per_host=8")
    assert names(rails, tree_of(rails, range(8))[1]) == ["nvswitch 0"]
    assert names(rails, tree_of(rails, range(3, 32, 8))[1]) == ["leaf 3"]
    assert {tree_of(fat, range(first, 16, 4))[1][0] for first in range(4)} > {tree_of(fat, range(0, 16, 4))[1][0]}


def test_ways_of_a_tree():
    """Links, their latencies and the switch's, and the way into the aggregator at each of its ends."""
    graph = topologies.build(f"{LEAVES},delay=300ns,switch_latency=70ns,rate=100Gbps,uplink_rate=250Gbps")
    tree, switches = tree_of(graph, range(20))
    assert names(graph, switches)[:2] == ["leaf 0", "spine 0"]
    assert tree.latency_ps[0] == 370_000 + AGGREGATOR_DELAY_PS
    assert tree.latency_ps[20] == 300_000 + 2 * 70_000 + 2 * AGGREGATOR_DELAY_PS
    assert (tree.rate_bps[0], tree.rate_bps[20]) == (100 * 10**9, 250 * 10**9)
    assert tree.up(7) == [7, 22]
    assert tree.parent[20] == tree.parent[22] == 21
    assert tree.parent[21] == ROOT
    far = tree_of(graph, [0, 4])[0]
    assert far.links == (2, 2, 0)
    assert far.latency_ps[0] == 2 * 370_000 + AGGREGATOR_DELAY_PS


def test_fabrics_that_cannot():
    rails = topologies.build("rail-optimised:npus=12,gpus_per_host=4")
    for members, found in ((range(3), "one host, expected two"), ([0, 1, 4], "hosts of 1 to 2 members")):
        with pytest.raises(WorkloadError, match=found):
            shape_of(rails, members, trees="hosts and rails")
    torus = topologies.build("torus:sizes=4x4")
    with pytest.raises(WorkloadError, match=r"^torus:sizes=4x4: in-network reduction on a fabric without switches"):
        collective_program("all-reduce", 16, 1000, "in-network", torus)
    with pytest.raises(WorkloadError, match=r"nvls for all-reduce of 20: members on several switches"):
        collective_program("all-reduce", 20, 1000, "nvls", topologies.build(LEAVES))
    with pytest.raises(WorkloadError, match=r"no fabric is known here"):
        plan("all-reduce", "in-network", 4)
    with pytest.raises(WorkloadError, match=r"expected fewer chunks or members"):
        collective_program("all-reduce", 1024, 1 << 26, "in-network:chunks=4096", topologies.build("switch:npus=1024"))


def test_a_graph_with_aggregators():
    graph = topologies.build(LEAVES)
    leaf, spine = 20, 26
    more = with_aggregators(graph, [leaf, spine])
    assert (more.npus, more.nodes, more.links) == (22, graph.nodes + 2, graph.links + 4)
    assert np.flatnonzero(more.node_kind == AGGREGATOR).tolist() == [20, 21]
    assert np.array_equal(more.link_rate_bps[: graph.links], graph.link_rate_bps)
    assert [more.node_name(n) for n in more.link_dst[[-4, -2]]] == [graph.node_name(leaf), graph.node_name(spine)]
    ends = [topologies.route(more, 7, 21), topologies.route(more, 20, 0), topologies.route(more, 20, 21)]
    assert [len(links) for links in ends] == [3, 2, 3]
    counts = np.ones(more.nodes, np.int64)
    assert added_to_switches(counts, graph, [leaf, spine]).tolist() == [
        2 if n in {leaf, spine} else 1 for n in range(graph.nodes)
    ]


def test_the_program_that_runs():
    """Two groups and all NPUs; an aggregator is a member of each group that it serves, and does all its collectives."""
    graph = topologies.build(LEAVES)
    reduce, gather = CollectiveCommType.ALL_REDUCE, CollectiveCommType.ALL_GATHER
    groups = {"even": tuple(range(0, 20, 2)), "odd": tuple(range(1, 20, 2))}
    tables = [
        table_of(metadata(), [
            coll_node(0, "a", reduce, 4000, pg_name=name), coll_node(1, "b", gather, 500, pg_name=name),
            coll_node(2, "c", reduce, 9000, pg_name=name), coll_node(3, "d", reduce, 100),
        ])
        for name in groups
    ]  # fmt: skip
    chosen = CollectiveSettings({"all-reduce": "in-network"})
    program = build_program(tables, np.arange(20) % 2, 20, groups, settings=chosen, fabric=graph)
    uses = {use.group: use for use in program.in_network}
    assert len(uses) == 3
    assert [uses[g].schedule.tolist().count(-1) for g in sorted(uses)] == [0, 1, 1]
    assert uses[0].bytes.tolist() == [100]
    running = extended(program)
    switches = switches_of(program)
    assert running.npus == 20 + len(switches)
    assert np.array_equal(running.trace_of_npu[:20], program.trace_of_npu)
    for npu, switch in enumerate(switches, start=20):
        own = slice(int(running.slot_ptr[npu]), int(running.slot_ptr[npu + 1]))
        served = [group for group in sorted(uses) if switch in uses[group].switches]
        assert running.slot_group[own].tolist() == served
        for group, member in nonempty(zip(served, running.slot_member[own].tolist(), strict=True)):
            members = running.group_member[running.group_ptr[group] : running.group_ptr[group + 1]]
            assert members[member] == npu
        trace = int(running.trace_of_npu[npu])
        rows = slice(int(running.trace_ptr[trace]), int(running.trace_ptr[trace + 1]))
        expected = np.concatenate([uses[group].bytes for group in served])
        assert np.array_equal(running.node_bytes[rows], expected)
    assert extended(program, is_acting=False).trace_of_npu[20:].tolist() == [-1] * len(switches)


def test_other_programs_have_none():
    assert collective_program("all-reduce", 20, 1000, "ring", topologies.build(LEAVES)).in_network == ()
    assert all(kind in KINDS for _, kind in CASES)
