"""Every equal-cost choice of the walker against brute force; memories of hosts are on nobody else's way."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import topologies
from nadi.topologies.endpoints import with_host_memories
from nadi.topologies.routing import next_links
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.topologies.naive import LONG, SMALL, Hierarchy, as_networkx, distances_without_transit, nearer_links

TABLES = [spec for spec in SMALL if topologies.build(spec).routing.goes_around]
STACKS = [spec for spec in SMALL if spec not in TABLES]


def test_both_kinds_of_routing_are_tested():
    assert len(TABLES) == 28
    assert len(STACKS) == 9


@pytest.mark.parametrize("spec", TABLES)
def test_table_routing_offers_exactly_the_links_that_come_nearer(spec):
    graph = topologies.build(spec)
    network = as_networkx(graph)
    checked = 0
    for dst in range(graph.npus):
        distance = distances_without_transit(graph, network, dst)
        for node in set(distance) - {dst}:
            assert topologies.next_links(graph, node, dst) == nearer_links(network, distance, node, range(graph.npus))
            checked += 1
    assert checked >= graph.npus * (graph.npus - 1)


@pytest.mark.parametrize("spec", SMALL)
def test_a_route_is_a_chain_of_links_and_ends_at_the_destination(spec):
    graph = topologies.build(spec)
    network = as_networkx(graph)
    choose = np.random.default_rng(1).choice
    for dst in range(graph.npus):
        distance = distances_without_transit(graph, network, dst)
        for src in set(range(graph.npus)) - {dst}:
            links = topologies.route(graph, src, dst, choose)
            assert graph.link_src[links[0]] == src
            assert graph.link_dst[links[-1]] == dst
            assert (graph.link_dst[links[:-1]] == graph.link_src[links[1:]]).all()
            if spec in TABLES:
                assert (graph.link_src[links[1:]] >= graph.npus).all()
                assert len(links) == sum(divmod(distance[src], LONG))


@pytest.mark.parametrize("spec", STACKS)
def test_dimension_routing_is_the_shortest_way_when_npus_forward(spec):
    graph = topologies.build(spec)
    distance = dict(nx.all_pairs_shortest_path_length(as_networkx(graph)))
    for src in range(graph.npus):
        for dst in set(range(graph.npus)) - {src}:
            assert len(topologies.route(graph, src, dst)) == distance[src][dst]


def check_stack(dimensions, graph):
    """Cables, choices and lengths against the definition; gives the number of pairs that were compared."""
    naive = Hierarchy(dimensions)
    assert graph.dims == tuple(n for _, n in dimensions)
    assert graph.npus == len(naive.npus)
    digits = [tuple(None if x < 0 else int(x) for x in row) for row in graph.routing.digit]
    assert digits[: graph.npus] == naive.npus
    assert len(set(digits)) == graph.nodes
    ends = zip(graph.link_src[::2], graph.link_dst[::2], strict=True)
    cables = [frozenset((digits[a], digits[b])) for a, b in ends]
    assert len(set(cables)) == len(cables)
    assert set(cables) == {frozenset(edge) for line in naive.lines for edge in line.edges}
    pairs = 0
    for dst in range(graph.npus):
        for node in range(graph.nodes):
            if node == dst or (node >= graph.npus and not serves(digits[node], digits[dst])):
                continue
            links = topologies.next_links(graph, node, dst)
            assert {digits[graph.link_dst[link]] for link in links} == naive.next_nodes(digits[node], digits[dst])
            pairs += 1
    generator = np.random.default_rng(2)
    for _ in range(40):
        src, dst = generator.choice(graph.npus, 2, replace=False)
        length = len(topologies.route(graph, src, dst, generator.choice))
        assert length == naive.distance(digits[src], digits[dst])
    return pairs


def serves(switch, npu):
    """Whether dimension order brings packets for the NPU to the switch: all dimensions before its own are corrected."""
    return switch[: switch.index(None)] == npu[: switch.index(None)]


@pytest.mark.parametrize(
    ("spec", "dimensions"),
    [
        ("ring:npus=2", [("Ring", 2)]),
        ("ring:npus=8", [("Ring", 8)]),
        ("ring:npus=9", [("Ring", 9)]),
        ("fully-connected:npus=6", [("FullyConnected", 6)]),
        ("torus:sizes=4x3x2", [("Ring", 4), ("Ring", 3), ("Ring", 2)]),
        ("stack:dims=SW(3)_R(4)_FC(2)", [("Switch", 3), ("Ring", 4), ("FullyConnected", 2)]),
    ],
)
def test_stacks_follow_their_definition(spec, dimensions):
    graph = topologies.build(spec)
    assert check_stack(dimensions, graph) >= graph.npus * (graph.npus - 1)


KIND = st.sampled_from(["Ring", "FullyConnected", "Switch"])


@bounded(25)
@given(st.lists(st.tuples(KIND, st.integers(2, 5)), min_size=1, max_size=3))
def test_any_stack_follows_its_definition(dimensions):
    graph = topologies.build({"name": "stack", "dims": "_".join(f"{kind}({size})" for kind, size in dimensions)})
    assert check_stack(dimensions, graph) >= graph.npus * (graph.npus - 1)


SWITCH_PAIRS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] != pair[1]), max_size=14
)


@bounded(60)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=2, max_size=6), SWITCH_PAIRS)
def test_any_network_of_switches_is_routed_or_refused(homes, pairs):
    builder = topologies.GraphBuilder("any", len(homes))
    switch = builder.add_switches("switch", 7)
    cables = [(npu, switch[home]) for npu, of_npu in enumerate(homes) for home in of_npu]
    cables += [(switch[a], switch[b]) for a, b in pairs]
    builder.add_cables(*np.array(cables).T, 10**9, 0)
    naive = nx.Graph()
    naive.add_edges_from((int(a), int(b)) for a, b in cables[sum(map(len, homes)) :])
    naive.add_nodes_from(int(node) for node in switch)
    reach = [{x for home in of_npu for x in nx.node_connected_component(naive, int(switch[home]))} for of_npu in homes]
    apart = [(a, b) for a in range(len(homes)) for b in range(a) if not reach[a] & reach[b]]
    if apart:
        with pytest.raises(topologies.TopologyError, match="no path of switches from npu") as error:
            builder.graph()
        words = str(error.value).replace(";", "").split()
        assert (int(words[10]), int(words[7])) in apart
        return
    graph = builder.graph()
    network = as_networkx(graph)
    for dst in range(graph.npus):
        distance = distances_without_transit(graph, network, dst)
        assert set(range(graph.npus)) <= set(distance)
        for node in set(distance) - {dst}:
            assert topologies.next_links(graph, node, dst) == nearer_links(network, distance, node, range(graph.npus))


@pytest.mark.parametrize("spec", TABLES)
def test_tables_have_the_shapes_of_the_contract(spec):
    graph = topologies.build(spec)
    routing = graph.routing
    homes, rows = len(routing.home_node), graph.nodes - graph.npus
    assert routing.hops.shape == routing.next_set.shape == (rows, homes)
    assert (routing.row[: graph.npus] == -1).all()
    assert sorted(routing.row[graph.npus :]) == list(range(rows))
    assert (routing.hops[routing.row[routing.home_node], np.arange(homes)] == 0).all()
    assert ((routing.next_set == -1) == ((routing.hops == 0) | (routing.hops == topologies.UNREACHABLE))).all()
    for row, home in np.argwhere(routing.next_set >= 0):
        port_set = routing.next_set[row, home]
        links = routing.set_link[routing.set_ptr[port_set] : routing.set_ptr[port_set + 1]]
        assert (routing.row[graph.link_src[links]] == row).all()
        assert (np.diff(links) > 0).all()


def test_equal_port_sets_are_shared():
    graph = topologies.build("fat-tree:k=8")
    routing = graph.routing
    sets = [tuple(s) for s in np.split(routing.set_link, routing.set_ptr[1:-1])]
    assert len(set(sets)) == len(sets)
    # A leaf has one way up, a spine one up and one for each of 4 leaves, a core one for each of 8 pods; 128 for NPUs.
    assert len(sets) == 32 * 1 + 32 * 5 + 16 * 8 + 128


@pytest.mark.parametrize(
    ("src", "dst", "text"),
    [
        (0, 8, "ring:npus=8: no npu 8; expected 0 to 7"),
        (-1, 2, "ring:npus=8: no npu -1; expected 0 to 7"),
        (3, 3, "ring:npus=8: route from npu 3 to itself; expected two different NPUs"),
    ],
)
def test_a_route_joins_two_npus(src, dst, text):
    assert refused(topologies.TopologyError, topologies.route, topologies.build("ring:npus=8"), src, dst) == text


SPECS = ("dgx-h100:npus=24,hosts_per_rail_leaf=2", "rail-optimised:npus=12,gpus_per_host=4", "nvswitch-pairs")
PAIRS = """
npus = 5
host = [7, 3, 7, 3, 3]
[[switches]]
name = "a"
[[switches]]
name = "b"
[[switches]]
name = "b again"
[[switches]]
name = "spine"
[[links]]
rate = "100Gbps"
delay = "20ns"
cables = [[0, "a"], [2, "a"], [1, "b"], [3, "b"], [4, "b"], [1, "b again"], [3, "b again"], [4, "b again"]]
[[links]]
rate = "50Gbps"
delay = "1us"
cables = [["a", "spine"], ["b", "spine"], ["b again", "spine"]]
"""


@pytest.fixture(params=SPECS)
def graph(request, tmp_path):
    if request.param != "nvswitch-pairs":
        return topologies.build(request.param)
    (tmp_path / "pairs.toml").write_text(PAIRS)
    return topologies.build(f"file:path={tmp_path / 'pairs.toml'}")


def walk(graph, source, target):
    """All links of shortest paths from one endpoint to another."""
    found, at = set(), {source}
    while at - {target}:
        links = {int(link) for node in at - {target} for link in next_links(graph, node, target)}
        found |= links
        at = {int(graph.link_dst[link]) for link in links}
    return found


def test_paths_between_npus_are_as_before(graph):
    more = with_host_memories(graph)
    assert more.npus == graph.npus + len(np.unique(graph.host))
    for source in range(graph.npus):
        for target in range(graph.npus):
            assert walk(graph, source, target) == walk(more, source, target)


def test_a_memory_is_on_all_switches_of_its_host(graph):
    more = with_host_memories(graph)
    for number, host in nonempty(enumerate(np.unique(graph.host).tolist())):
        memory = graph.npus + number
        own = np.flatnonzero(more.host[: graph.npus] == host)
        assert more.host[memory] == host
        switches = {int(more.link_dst[link]) for link in more.out_links(memory)}
        expected = [set(more.link_dst[more.out_links(npu)].tolist()) for npu in own.tolist()]
        others = {
            int(more.link_dst[link]) for npu in range(graph.npus) if npu not in own for link in more.out_links(npu)
        }
        assert switches == set.intersection(*expected) - others != set()
        for npu in nonempty(own.tolist()):
            links = walk(more, npu, memory)
            assert {int(more.link_dst[link]) for link in links} == switches | {memory}
        for link in nonempty(more.out_links(memory)):
            beside = [i for i in more.out_links(int(more.link_dst[link])) if more.link_dst[i] in own]
            assert more.link_rate_bps[link] == sum(more.link_rate_bps[i] for i in beside)
            assert more.link_delay_ps[link] == max(more.link_delay_ps[i] for i in beside)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ring:npus=4", "ring:npus=4: its NPUs are in no hosts with switches of their own"),
        ("leaf-spine:npus=8", "leaf-spine:npus=8: its NPUs are in no hosts with switches of their own"),
        ("shared", "no switch joins all NPUs of the host of npu 0 and no others"),
    ],
)
def test_hosts_without_a_switch_of_their_own(spec, words, tmp_path):
    (tmp_path / "shared.toml").write_text(PAIRS.replace('[1, "b"]', '[1, "a"]').replace('[2, "a"]', '[2, "b"]'))
    graph = topologies.build(f"file:path={tmp_path / 'shared.toml'}" if spec == "shared" else spec)
    assert words in refused(topologies.TopologyError, with_host_memories, graph)
