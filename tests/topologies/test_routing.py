"""Every equal-cost choice of the walker against brute force."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import topologies
from tests.budgets import bounded
from tests.topologies.naive import SMALL, Hierarchy, as_networkx, distances_without_transit, nearer_links

TABLES = [spec for spec in SMALL if isinstance(topologies.build(spec).routing, topologies.TableRouting)]
STACKS = [spec for spec in SMALL if spec not in TABLES]


def test_both_kinds_of_routing_are_tested():
    assert len(TABLES) == 15
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
                assert len(links) == distance[src]


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


def test_even_rings_have_two_ways_to_the_opposite_node():
    graph = topologies.build("ring:npus=8")
    assert [len(topologies.next_links(graph, 0, dst)) for dst in range(1, 8)] == [1, 1, 1, 2, 1, 1, 1]
    assert [len(topologies.route(graph, 0, dst)) for dst in range(1, 8)] == [1, 2, 3, 4, 3, 2, 1]


def test_dual_homed_npus_are_reached_through_both_homes():
    graph = topologies.build("rail-optimised:npus=16,gpus_per_host=4")
    same_host, same_rail, other = (topologies.route(graph, 0, dst) for dst in (1, 4, 5))
    names = [graph.node_name(int(graph.link_dst[route[0]])) for route in (same_host, same_rail, other)]
    assert names == ["nvswitch 0", "leaf 0", "leaf 0"]
    assert [len(same_host), len(same_rail), len(other)] == [2, 2, 4]


def test_two_leaves_for_each_npu_share_the_traffic(tmp_path):
    path = tmp_path / "dual.toml"
    path.write_text(
        "npus = 4\n"
        + "".join(f'[[switches]]\nname = "{name}"\n' for name in ("leaf 0", "leaf 1", "leaf 2", "leaf 3", "spine 0"))
        + '[[links]]\nrate = "1Gbps"\ndelay = "1us"\n'
        + "cables = [[0, 4], [0, 5], [1, 4], [1, 5], [2, 6], [2, 7], [3, 6], [3, 7], [4, 8], [5, 8], [6, 8], [7, 8]]\n"
    )
    graph = topologies.build(path)
    assert [int(graph.link_dst[link]) for link in topologies.next_links(graph, 8, 2)] == [6, 7]
    assert [int(graph.link_dst[link]) for link in topologies.next_links(graph, 0, 2)] == [4, 5]


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
    with pytest.raises(topologies.TopologyError) as error:
        topologies.route(topologies.build("ring:npus=8"), src, dst)
    assert str(error.value) == text
