"""Source routes: packets of listed pairs of NPUs on their paths, whatever the tables say."""

from dataclasses import replace
from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import pdes
from nadi.pdes import LinkFault, SharedBuffer
from nadi.pdes.core import ImpossibleRunError
from nadi.pdes.network import detours
from nadi.pdes.nic.entropy import entropy_rule
from nadi.pdes.outcomes.outcome import settled
from nadi.pdes.wire import CreditSwitch
from nadi.simulation.network_settings import circular_waits
from nadi.topologies import GraphBuilder, TopologyError, build, with_source_routes
from nadi.topologies.deadlock import circle_text, dependency_cycle
from tests.budgets import bounded
from tests.fabric import naive, naive_credits
from tests.fabric.cases import settings_of
from tests.fabric.compare import differences, owners, same
from tests.fabric.scenarios import messages, program
from tests.failures.common import cable, faults_of, of_switch

SOURCE = detours.detours("source")
SPEC = "leaf-spine:leaves=4,hosts_per_leaf=2,spines=3,rate=100Gbps"
WIRE, ACK = 4096 + 82, 86


def switch(graph, name):
    return graph.npus + graph.switch_names.index(name)


def listed(graph, paths):
    """The graph with paths by the names of switches, as "leaf 0, spine 1, leaf 3"."""
    named = {pair: [[switch(graph, name) for name in path.split(", ")] for path in own] for pair, own in paths.items()}
    return with_source_routes(graph, named)


def simulated(graph, sent, owner=None, threads=1, **settings):
    chosen = pdes.Settings(routing=SOURCE, **settings)
    return pdes.run(pdes.build_world(graph, program(graph.npus, sent), chosen, owner), threads=threads)


def bytes_between(graph, results, *names):
    """Bytes that one node sent to the next, of all links between them."""
    a, b = (switch(graph, name) for name in names)
    return int(results.links["tx_bytes"][(graph.link_src == a) & (graph.link_dst == b)].sum())


# The engine beside a simulator in plain Python that walks along the lists


def walking(paths, simulator):
    """The simulator whose switches look up the packet's path in the lists of nodes."""

    class Walking(simulator):
        def way(self, node, packet):
            own = paths.get((packet.src, packet.dst), ())
            path = [*own[packet.entropy % len(own)], packet.dst] if own else []
            if node not in path:
                return super().way(node, packet)
            links = self.graph.out_links(node)
            onto = path[path.index(node) + 1]
            return self.one_of(links[self.graph.link_dst[links] == onto].tolist(), node, packet.entropy)

        def in_order(self, node, arrivals):
            return self.ties[node].in_order(self.now, arrivals)

    return Walking


SWITCHES = {
    "output queues": None,
    "shared buffers": {"buffer_bytes": 400_000, "pfc": True},
    "drops": {"buffer_bytes": 9000, "pfc": False},
    "credits": {"virtual_lanes": 1, "lane_buffer_bytes": 2500},
}


@st.composite
def meshes(draw):
    """Switches with random cables, some of them parallel, an NPU or two at each, and random simple paths of pairs."""
    count = draw(st.integers(3, 6))
    mesh = nx.random_labeled_tree(count, seed=draw(st.integers(0, 99)))
    chords = [pair for pair in permutations(range(count), 2) if pair[0] < pair[1]]
    mesh.add_edges_from(draw(st.lists(st.sampled_from(chords), max_size=5)))
    hosts = [draw(st.integers(1, 2)) for _ in range(count)]
    npus = sum(hosts)
    builder = GraphBuilder("mesh", npus)
    builder.add_switches("s", count, latency_ps=draw(st.sampled_from([0, 7000])))
    home = np.repeat(np.arange(count), hosts)
    builder.add_cables(np.arange(npus), npus + home, 100 * 10**9, 30_000)
    for a, b in mesh.edges:
        builder.add_cables(
            npus + a, npus + b, draw(st.sampled_from([100, 40])) * 10**9, 50_000, draw(st.integers(1, 2))
        )
    pairs = draw(st.lists(st.sampled_from(list(permutations(range(npus), 2))), min_size=1, max_size=8, unique=True))
    paths = {}
    for src, dst in pairs:
        between = list(nx.all_simple_paths(mesh, home[src], home[dst])) if home[src] != home[dst] else [[home[src]]]
        chosen = draw(st.lists(st.sampled_from(between), min_size=1, max_size=4))
        paths[src, dst] = [[npus + int(node) for node in path] for path in chosen]
    return builder.graph(), paths


@pytest.mark.parametrize("kind", SWITCHES)
@bounded(20)
@given(st.data())
def test_random_paths_agree_with_a_walk_along_them(kind, data):
    graph, paths = data.draw(meshes())
    every = np.array(list(permutations(range(graph.npus), 2)))
    sent = messages(*every.T, data.draw(st.sampled_from([900, 9000])))
    lossy = {"rto_ps": 30_000_000, "max_retries": 60} if kind == "drops" else {}
    # a lane with room for all: paths may wait for each other in a circle
    rules = {"virtual_lanes": 1, "lane_buffer_bytes": 900_000} if kind == "credits" else SWITCHES[kind]
    if kind == "shared buffers":
        rules = rules | {"buffer_bytes": 10**8}
    settings = settings_of(rules, mtu_bytes=900, routing=SOURCE, seed=data.draw(st.integers(0, 9)), **lossy)
    world = with_source_routes(graph, paths)
    sim = pdes.build_world(world, program(graph.npus, sent), settings)
    known = settled(sim)
    results = pdes.run(sim)
    reference = walking(paths, (naive_credits if kind == "credits" else naive).Simulator)
    by_hand = reference(world, program(graph.npus, sent), settings, known["window_packets"], known["rto_ps"], None)
    assert differences(results, by_hand.run()) == []
    divided = pdes.build_world(world, program(graph.npus, sent), settings, owners(graph, 3, settings.seed))
    assert same(results, pdes.run(divided)) == []


def test_without_pairs_all_follow_the_tables():
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,rate=100Gbps")
    sent = messages([0, 1], [2, 3], 9000)
    found = simulated(with_source_routes(graph, {}), sent)
    by_tables = pdes.run(pdes.build_world(graph, program(4, sent), pdes.Settings()))
    assert same(found, by_tables) == []


def test_a_path_over_another_leaf_has_every_byte():
    path = ["leaf 0", "spine 2", "leaf 1", "spine 0", "leaf 3"]
    graph = listed(build(SPEC), {(1, 7): [", ".join(path)]})
    results = simulated(graph, messages([1], [7], 16 * 4096))
    for ends in pairwise(path):
        assert bytes_between(graph, results, *ends) == 16 * WIRE
    # acknowledgements are packets of the other pair, which has no paths
    assert results.links["tx_packets"].sum() == 16 * 6 + 16 * 4


@pytest.mark.parametrize("rule", ["oblivious", "bitmap", "reps", "mixed", "mrc"])
def test_turns_of_entropies_take_all_paths_alike(rule):
    paths = [f"leaf 0, spine {spine}, leaf 3" for spine in (0, 1, 2)] + ["leaf 0, spine 0, leaf 1, spine 1, leaf 3"]
    graph = listed(build(SPEC), {(0, 6): paths})
    sent = messages([0], [6], 256 * 4096)
    results = simulated(graph, sent, entropy=entropy_rule(rule), paths=16, window_bytes=32 * 4096)
    by_spine = [bytes_between(graph, results, "leaf 0", f"spine {spine}") // WIRE for spine in range(3)]
    longer = bytes_between(graph, results, "leaf 1", "spine 1") // WIRE
    if rule in {"reps", "mixed"}:  # they go on with the paths whose acknowledgements came first
        assert sum(by_spine) == 256
        assert min(longer, *by_spine) > 0
    else:
        assert [longer, *by_spine] == [64, 128, 64, 64]


def test_queue_pairs_share_the_paths_by_a_hash():
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=16,spines=4,rate=100Gbps")
    pairs = [(src, dst) for src in range(16) for dst in range(16, 32)]
    graph = listed(graph, {pair: ["leaf 0, spine 1, leaf 1", "leaf 0, spine 3, leaf 1"] for pair in pairs})
    results = simulated(graph, messages(*np.array(pairs).T, 4096))
    by_spine = [bytes_between(graph, results, "leaf 0", f"spine {spine}") // WIRE for spine in range(4)]
    assert by_spine[0] == by_spine[2] == 0
    assert sum(by_spine) == 256
    # 256 fair coins: within four standard deviations of 8
    assert abs(by_spine[1] - 128) < 32


def test_a_cable_of_several_is_the_only_one():
    builder = GraphBuilder("two", 2)
    a, b = builder.add_switches("s", 2)
    builder.add_cables([0, 1], [a, b], 10**11, 1000)
    builder.add_cables(a, b, 10**11, 1000, count=4)
    graph = builder.graph()
    between = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
    for number in range(4):
        results = simulated(with_source_routes(graph, {(0, 1): [[a, (b, number)]]}), messages([0], [1], 4096))
        assert results.links["tx_packets"][between].tolist() == [int(each == number) for each in range(4)]


# Faults


def test_a_path_with_a_dead_link_rests_while_it_is_down():
    paths = ["leaf 0, spine 0, leaf 3", "leaf 0, spine 1, leaf 3"]
    graph = listed(build(SPEC), {(0, 6): paths})
    count, us = 4000, 10**6
    sent = messages(np.zeros(count), np.full(count, 6), 4096, np.arange(count) * us)
    dead = cable(graph, switch(graph, "spine 1"), switch(graph, "leaf 3"))
    settings = {"entropy": entropy_rule("oblivious"), "rto_ps": 20 * us, "max_retries": 100}

    def shares(*faults):
        results = simulated(graph, sent, faults=faults_of(graph, faults, detection_ps=us), **settings)
        assert results.counters["flows"] == count
        return np.array([bytes_between(graph, results, "leaf 0", f"spine {spine}") // WIRE for spine in range(3)])

    assert shares().tolist() == [2000, 2000, 0]
    # from 1 ms to 3 ms, half of the time
    found = shares(LinkFault(dead, 1000 * us, 3000 * us, down=True))
    assert found == pytest.approx([3000, 1000, 0], abs=10)
    # with no path left, the tables have both other spines
    other = cable(graph, switch(graph, "spine 0"), switch(graph, "leaf 3"))
    found = shares(LinkFault(dead, 0, down=True), LinkFault(other, 2000 * us, down=True))
    assert found == pytest.approx([2000, 0, 2000], abs=10)


@pytest.mark.parametrize("kind", ["output queues", "credits"])
def test_packets_arrive_wherever_they_are_when_paths_change(kind):
    # a long path, of which each link goes down once while it is full: those behind the dead link turn back
    path = ["leaf 0", "spine 2", "leaf 1", "spine 0", "leaf 2", "spine 1", "leaf 3"]
    graph = listed(build(SPEC), {(0, 6): [", ".join(path)], (6, 0): [", ".join(reversed(path))]})
    sent = messages([0, 6], [6, 0], 400 * 4096)
    own = {"rto_ps": 20 * 10**6, "max_retries": 100, "window_bytes": 200_000}
    if kind == "credits":
        own["credits"] = CreditSwitch(lane_buffer_bytes=10**6)
    for number, (a, b) in enumerate(pairwise(path)):
        dead = cable(graph, switch(graph, a), switch(graph, b))
        faults = faults_of(graph, [LinkFault(dead, 20 * 10**6, (60 + number) * 10**6, down=True)], detection_ps=10**6)
        results = simulated(graph, sent, faults=faults, **own)
        assert results.counters["flows"] == 2
        assert same(results, simulated(graph, sent, owners(graph, 3, number), faults=faults, **own)) == []


# Planes


def test_each_plane_has_paths_of_its_own():
    graph = build("multi-plane:npus=8,planes=2,nics_per_leaf=4,spines=4")
    first, last = ([int(graph.link_dst[link]) for link in graph.out_links(npu)] for npu in (0, 7))
    spines = [[int(end) for end in graph.link_dst[graph.out_links(leaf)] if end >= graph.npus] for leaf in first]
    every = [[[first[plane], spine, last[plane]] for spine in spines[plane]] for plane in (0, 1)]
    sent = messages([0], [7], 128 * 4096)

    def packets(paths):
        """Packets over each spine of each plane."""
        listed_paths = {(0, 7): [path for own in paths for path in own]}
        settings = {"entropy": entropy_rule("mrc"), "nic_ports": "all", "paths": 64}
        sent_bytes = simulated(with_source_routes(graph, listed_paths), sent, **settings).links["tx_bytes"]
        ends = [[(graph.link_src == a) & (graph.link_dst == b) for a, b, _ in own] for own in every]
        return [[int(sent_bytes[links].sum()) // WIRE for links in own] for own in ends]

    assert packets([every[0][:1], every[1][3:]]) == [[64, 0, 0, 0], [0, 0, 0, 64]]
    # turns take all paths of each plane alike
    assert packets(every) == [[16] * 4] * 2
    # a plane without paths sends by the tables
    by_tables, by_list = packets([[], every[1][1:2]])
    assert by_list == [0, 64, 0, 0]
    assert sum(by_tables) == 64
    assert max(by_tables) < 64


# Circles of waiting


def test_circles_are_those_of_a_naive_graph_of_channels():
    graph = build(SPEC)
    generator = np.random.default_rng(1)
    found = set()
    for _ in range(60):
        paths = {}
        for src, dst in generator.permutation(list(permutations(range(8), 2)))[:6].tolist():
            leaves = [src // 2, *generator.permutation([leaf for leaf in range(4) if leaf not in (src // 2, dst // 2)])]
            leaves = [*leaves[: generator.integers(1, 4)], dst // 2]
            if src // 2 != dst // 2:
                spines = generator.permutation(3)[: len(leaves) - 1]
                hops = [f"leaf {leaf}, spine {spine}" for leaf, spine in zip(leaves, spines, strict=False)]
                paths[src, dst] = [", ".join([*hops, f"leaf {dst // 2}"])]
        own = listed(graph, paths)
        cycle = dependency_cycle(own)
        assert (cycle is None) == nx.is_directed_acyclic_graph(_channels(own, paths))
        found.add(cycle is None)
        if cycle is not None:
            assert (own.link_src[np.roll(cycle, -1)] == own.link_dst[cycle]).all()
    assert found == {True, False}


def _channels(graph, paths):
    """An edge for each two links in a row, of listed paths and of the shortest ones of other pairs."""
    channels = nx.DiGraph()
    link = {(int(a), int(b)): number for number, (a, b) in enumerate(zip(graph.link_src, graph.link_dst, strict=True))}
    for src, dst in permutations(range(graph.npus), 2):
        named = [f"leaf {src // 2}, spine {spine}, leaf {dst // 2}" for spine in range(3)]
        for path in paths.get((src, dst), named if src // 2 != dst // 2 else [f"leaf {src // 2}"]):
            nodes = [src, *(switch(graph, name) for name in path.split(", ")), dst]
            channels.add_edges_from(pairwise(link[ends] for ends in pairwise(nodes)))
    return channels


def test_a_circle_is_refused_or_named_before_the_run():
    # each leaf sends over the next one to that behind it, by both spines: up, down, up, down
    paths = {}
    for leaf in range(4):
        first, second = (0, 1) if leaf % 2 == 0 else (1, 0)
        path = f"leaf {leaf}, spine {first}, leaf {(leaf + 1) % 4}, spine {second}, leaf {(leaf + 2) % 4}"
        paths[2 * leaf, (2 * leaf + 4) % 8] = [path]
    graph = listed(build(SPEC), paths)
    cycle = dependency_cycle(graph)
    assert "spine 0" in circle_text(graph, cycle)
    for own in ({"credits": CreditSwitch()}, {"switch": SharedBuffer()}):
        (said,) = circular_waits(graph, pdes.Settings(routing=SOURCE, **own))
        assert "packets may wait in a circle" in said
        # the paths are not taken
        assert circular_waits(graph, pdes.Settings(**own)) == []
    # while a spine is down, no path is left, and those of the tables form no circle
    dead = of_switch(graph, switch(graph, "spine 1"))
    routing = graph.routing.without(graph, dead)
    assert dependency_cycle(replace(graph, routing=routing), down=dead) is None


def test_packets_that_join_a_path_on_another_plane_count():
    # NPUs with a port at each of two leaves under common spines: some paths begin at one leaf alone
    builder = GraphBuilder("dual", 3)
    leaf, spine = builder.add_switches("leaf", 4), builder.add_switches("spine", 2)
    builder.add_cables([0, 0, 1, 2], [leaf[0], leaf[1], leaf[2], leaf[3]], 10**11, 1000)
    builder.add_cables(np.repeat(leaf, 2), np.tile(spine, 4), 10**11, 1000)
    graph = with_source_routes(builder.graph(), {(0, 1): [[leaf[0], spine[0], leaf[3], spine[1], leaf[2]]]})
    # from leaf 1 by the tables to a spine, which is on the path, and on along it over leaf 3
    results = simulated(graph, messages(np.zeros(64), np.ones(64), 4096, np.arange(64) * 10**7), queue_pairs="message")
    assert bytes_between(graph, results, "leaf 1", "spine 0") > 0
    assert bytes_between(graph, results, "leaf 3", "spine 1") > 0
    assert dependency_cycle(graph) is None
    # the way back from leaf 2 over leaf 3 to the same spine closes a circle
    back = with_source_routes(
        builder.graph(),
        {
            (0, 1): [[leaf[0], spine[0], leaf[3], spine[1], leaf[2]]],
            (1, 0): [[leaf[2], spine[0], leaf[3], spine[1], leaf[0]]],
            (2, 1): [[leaf[3], spine[1], leaf[0], spine[0], leaf[2]]],
        },
    )
    assert dependency_cycle(back) is not None


# Refusals


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        ({(0, 6): ["leaf 1, spine 0, leaf 3"]}, "begins at leaf 1; expected one that begins at leaf 0"),
        ({(0, 6): ["leaf 0, spine 0, leaf 2"]}, "ends at leaf 2; expected one that ends at leaf 3"),
        ({(0, 6): ["leaf 0, leaf 3"]}, "leaf 0 and leaf 3, which are not linked; expected one of spine 0, spine 1"),
        ({(0, 6): ["leaf 0, spine 0, leaf 0, spine 1, leaf 3"]}, "leaf 0 twice on a path; expected each switch once"),
        ({(0, 8): ["leaf 0"]}, "a pair 0, 8; expected two of the NPUs 0 to 7"),
    ],
)
def test_wrong_paths_are_refused_in_one_line(paths, complaint):
    with pytest.raises(TopologyError) as error:
        listed(build(SPEC), paths)
    assert complaint in str(error.value)


def test_what_cannot_work_is_refused():
    graph = build(SPEC)
    leaf, spine = switch(graph, "leaf 0"), switch(graph, "spine 0")
    for path, complaint in (
        ([], "a path without switches"),
        ([99], "node 99 on a path; expected switches outside"),
        ([1], "npu 1 on a path; expected switches outside"),
        ([leaf, (spine, 1), leaf + 3], "cable 1 from leaf 0 to spine 0; expected 0 to 0"),
    ):
        with pytest.raises(TopologyError, match=complaint):
            with_source_routes(graph, {(0, 6): [path]})
    with pytest.raises(TopologyError, match="routed by dimensions"):
        with_source_routes(build("ring:npus=4"), {})
    with pytest.raises(ImpossibleRunError, match="without source routes"):
        simulated(graph, messages([0], [6], 4096))
    builder = GraphBuilder("dual", 2)
    leaves, spines = builder.add_switches("leaf", 4), builder.add_switches("spine", 1)
    builder.add_cables([0, 0, 1, 1], leaves, 10**11, 1000)
    builder.add_cables(leaves, spines, 10**11, 1000)
    crossing = [[leaves[0], spines[0], leaves[2]], [leaves[1], spines[0], leaves[3]]]
    with pytest.raises(TopologyError, match="paths from leaf 0 and leaf 1 that meet at spine 0"):
        with_source_routes(builder.graph(), {(0, 1): crossing})
