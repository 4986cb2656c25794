"""Slim fly, dragonfly+, HyperX, rail-only, ZCube, twisted tori and planes: published counts and known graphs."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from nadi import topologies
from nadi.energy import port_uses
from nadi.topologies import NVSWITCH, Graph, TopologyError
from nadi.topologies.endpoints import with_aggregators
from nadi.topologies.routing import route
from tests.refusals import refused


def switch_graph(graph: Graph) -> "nx.MultiGraph[int]":
    """Return the switches, counted from the first, and the cables between them."""
    ends = np.stack([graph.link_src[::2], graph.link_dst[::2]]).astype(int) - graph.npus
    network = nx.MultiGraph()
    network.add_nodes_from(range(graph.nodes - graph.npus))
    network.add_edges_from(ends[:, ends.min(axis=0) >= 0].T.tolist())
    return network


def degrees(network) -> set[int]:
    return set(dict(network.degree).values())


def neighbours(graph: Graph, node: int) -> list[str]:
    return sorted(graph.node_name(int(graph.link_dst[link])) for link in graph.out_links(node))


# degrees of the paper's q = 5, 7, 9 and 19 (Besta and Hoefler, table II and section III) and of Hafner's q = 4 and 8
@pytest.mark.parametrize(("q", "degree"), [(3, 5), (4, 6), (5, 7), (7, 11), (8, 12), (9, 13), (13, 19), (19, 29)])
def test_slim_fly_has_diameter_two(q: int, degree: int) -> None:
    network = switch_graph(topologies.build(f"slim-fly:q={q},p=1"))
    assert len(network) == 2 * q * q
    assert degrees(network) == {degree}
    assert len(nx.Graph(network).edges) == len(network.edges)
    assert nx.diameter(network) == 2


def test_slim_fly_of_five_is_the_graph_of_hoffman_and_singleton() -> None:
    """The one graph of degree 7 and diameter 2 with 50 nodes, in which no two nodes have more than one path of two."""
    ours = nx.Graph(switch_graph(topologies.build("slim-fly:q=5,p=1")))
    assert nx.is_isomorphic(ours, nx.hoffman_singleton_graph())


def test_slim_fly_has_as_many_npus_as_give_it_full_bandwidth() -> None:
    # Besta and Hoefler, section II-B: p = k' / 2, rounded up; Kathareios et al. and the simulator Spritz have q 9, p 7
    graph = topologies.build("slim-fly:q=9")
    assert (graph.npus, graph.nodes - graph.npus) == (1134, 162)
    assert topologies.describe(graph)["diameter_hops"] == 4


def test_slim_fly_is_that_of_another_simulator(shared_data) -> None:
    lines = (shared_data / "fabrics/spritz/sf/slimfly.adjlist").read_text().splitlines()
    theirs = nx.parse_adjlist(lines, nodetype=int)
    q = 9
    # its field, read from its cables: (0, x, y) is 9 x + y and (1, m, c) is 81 + 9 m + c, and m x is the y of c = 0
    product = np.array([[y % q for m in range(q) for y in theirs[81 + 9 * m] if y // q == x] for x in range(q)])
    ours = nx.Graph(switch_graph(topologies.build("slim-fly:q=9,p=1")))
    own = np.array([[y % q for m in range(q) for y in ours[81 + 9 * m] if y // q == x] for x in range(q)])

    def powers(table, element):
        one = next(x for x in range(q) if (table[x] == np.arange(q)).all())
        return [*itertools.accumulate(range(q - 2), lambda power, _: int(table[power, element]), initial=one)]

    root = next(x for x in range(q) if len({*powers(own, x)}) == q - 1)
    # their generators of the first half are ours of the second: times `root`, as y, m and c are if cables shall stay
    times = [int(own[root, x]) for x in range(q)]
    # equal up to the names of the field's elements, of which there are as many as primitive elements
    found = []
    for theirs_root in range(q):
        name = {0: 0} | dict(zip(powers(own, root), powers(product, theirs_root), strict=True))
        if len(set(name.values())) == q:
            renamed = {x * q + y: name[x] * q + name[times[y]] for x in range(q) for y in range(q)}
            renamed |= {81 + m * q + c: 81 + name[times[m]] * q + name[times[c]] for m in range(q) for c in range(q)}
            found.append(nx.utils.graphs_equal(nx.relabel_nodes(ours, renamed), nx.Graph(theirs)))
    assert any(found)


def test_dragonfly_plus_has_the_size_of_another_simulator() -> None:
    # dfp_8k of CODES: 33 groups of 16 leaves and 16 spines, 16 NPUs of a leaf and 16 global ports of a spine
    graph = topologies.build("dragonfly-plus:p=16,leaves=16,groups=33")
    assert (graph.npus, graph.nodes - graph.npus) == (8448, 33 * 32)
    network = switch_graph(graph)
    assert {network.degree(leaf) for leaf in range(528)} == {16}
    assert {network.degree(spine) for spine in range(528, 1056)} == {32}
    assert topologies.describe(graph)["diameter_hops"] == 5


@pytest.mark.parametrize("groups", [2, 3, 5, 9])
def test_groups_of_a_dragonfly_plus_meet_at_different_spines(groups: int) -> None:
    graph = topologies.build(f"dragonfly-plus:p=2,leaves=3,spines=4,h=2,groups={groups}")
    of = graph.group[graph.npus :]
    between = [(a, b) for a, b in switch_graph(graph).edges() if of[a] != of[b]]
    parallel = 8 // (groups - 1)
    for here, there in itertools.combinations(range(groups), 2):
        ends = [(a, b) if of[a] == here else (b, a) for a, b in between if {of[a], of[b]} == {here, there}]
        assert len(ends) == parallel
        for side in zip(*ends, strict=True):
            assert len(set(side)) == min(parallel, 4)
    assert max(np.bincount(np.array(between).reshape(-1))) <= 2
    # up, across and down: no path takes two links between groups
    for src, dst in [(0, graph.npus - 1), (graph.npus - 1, 0), (6, 0)]:
        switches = graph.link_dst[topologies.route(graph, src, dst)[:-1]]
        assert (np.diff(graph.group[switches]) != 0).sum() == 1


def test_a_hyperx_is_a_hypercube_or_a_full_mesh() -> None:
    cube = nx.Graph(switch_graph(topologies.build("hyperx:sizes=2x2x2x2,p=1")))
    assert nx.is_isomorphic(cube, nx.hypercube_graph(4))
    mesh = switch_graph(topologies.build("hyperx:sizes=6,p=3,width=2"))
    assert degrees(mesh) == {10}
    assert nx.is_isomorphic(nx.Graph(mesh), nx.complete_graph(6))


def test_packets_cross_the_dimensions_of_a_hyperx_in_order() -> None:
    graph = topologies.build("hyperx:sizes=3x4x2,p=1,width=1x2x1,dimension_order=true")
    digits = np.stack(np.unravel_index(np.arange(24), (2, 4, 3)))[::-1]
    for src, dst in itertools.permutations(range(24), 2):
        nodes = graph.link_dst[route(graph, src, dst, max)[:-1]] - graph.npus
        wanted = [src]
        for dimension in np.flatnonzero(digits[:, src] != digits[:, dst]):
            wanted.append(wanted[-1] + (digits[dimension, dst] - digits[dimension, src]) * (1, 3, 12)[dimension])
        assert nodes.tolist() == wanted
    assert graph.routing.ecmp_width() == 2, "parallel cables alone are equal"
    # around a cable that is down, and with an endpoint more, the order of what is left stays
    down = route(graph, 0, 1)[1]
    around = replace(graph, routing=graph.routing.without(graph, [down, down ^ 1]))
    assert len(route(around, 0, 1)) == 4
    assert route(around, 0, 23) == route(graph, 0, 23)
    assert route(with_aggregators(graph, [graph.npus]), 0, 23) == route(graph, 0, 23)


def test_a_hyperx_has_the_published_degree_and_diameter() -> None:
    """Ahn et al.: T + sum K (S - 1) ports of a switch, and as many switches further as there are dimensions."""
    graph = topologies.build("hyperx:sizes=3x4x2,p=5,width=1x2x3")
    network = switch_graph(graph)
    assert (graph.npus, len(network), degrees(network)) == (120, 24, {2 + 2 * 3 + 3})
    assert nx.diameter(network) == 3
    # a rook's graph: two switches of one line have the other two of it in common, two of no line two corners
    rook = nx.Graph(switch_graph(topologies.build("hyperx:sizes=4x4,p=1")))
    assert nx.is_isomorphic(rook, nx.line_graph(nx.complete_bipartite_graph(4, 4)))


def test_rails_meet_in_servers_only() -> None:
    graph = topologies.build("rail-only:npus=64,gpus_per_host=4,hosts_per_rail_leaf=4,spines=2")
    network = switch_graph(graph)
    network.remove_nodes_from([v for v in range(len(network)) if graph.node_kind[graph.npus + v] == NVSWITCH])
    # four rails of four leaves and two spines
    assert sorted(map(len, nx.connected_components(network))) == [6] * 4
    one_switch = topologies.build("rail-only:npus=64")
    assert topologies.describe(one_switch)["switches"] == {"nvswitch": 8, "leaf": 8}
    assert [len(topologies.route(one_switch, 0, dst)) for dst in (7, 8, 15)] == [2, 2, 3]


@pytest.mark.parametrize("more", ["", ",hosts_per_rail_leaf=2,spines=2"])
def test_what_servers_of_rails_pass_on_takes_no_cables(more) -> None:
    """As in the source, a GPU has one NIC, and a rail switch a port for each: half of what the links are."""
    graph = topologies.build(f"rail-only:npus=64{more}")
    uplinks = 8 * 4 * 2 if more else 0
    assert topologies.describe(graph)["cables"] == 64 + 64 + uplinks
    assert topologies.describe(graph)["rates_bps"] == {str(400 * 10**9): 64 + uplinks, str(3600 * 10**9): 64}
    is_npu, is_nvswitch = np.arange(graph.nodes) < graph.npus, graph.node_kind == NVSWITCH
    sent = np.arange(graph.links)
    uses, _ = port_uses(graph.link_src, graph.link_dst, is_npu, is_nvswitch, graph.link_rate_bps, sent)
    assert {sort: used.present for sort, used in uses.items()} == {
        "nic": 64, "direct_port": 64, "nvswitch_port": 64, "switch_port": 64 + 2 * uplinks
    }  # fmt: skip
    # what is passed on leaves and enters by the NICs: no byte is lost
    assert sum(used.tx_bytes for used in uses.values()) == sent.sum()
    # rails that spines join have as many
    if uplinks:
        rails = topologies.build("rail-optimised:npus=64,hosts_per_rail_leaf=2,spines=2")
        assert topologies.describe(rails)["rates_bps"] == topologies.describe(graph)["rates_bps"]


def test_zcube_has_two_thirds_of_the_switches_of_a_fat_tree_with_rails() -> None:
    graph = topologies.build("zcube:npus=1024,npus_per_switch=32,uplinks=1")
    assert graph.nodes - graph.npus == 2 * 1024 // 32
    assert degrees(switch_graph(graph)) == {32}
    # with the same two ports of an NPU and 64 ports of a switch
    rails = topologies.build(
        "rail-fat-tree:npus=1024,gpus_per_host=1,rails=1,ports=2,hosts_per_unit=32,spines=16,uplinks=2"
    )
    others = rails.node_kind[rails.npus :] != NVSWITCH
    assert (graph.nodes - graph.npus) / others.sum() == 2 / 3


def test_zcube_is_a_rail_on_odd_switches_and_a_rack_on_even_ones() -> None:
    graph = topologies.build("zcube:npus=12,npus_per_switch=3")
    for npu in range(1, 13):  # numbers of the source begin with 1; odd switch 1 is "odd 0", even switch 2 is "even 0"
        odd, even = ((npu - 1) % 4) * 2 + 1, -(-npu // 3) * 2
        assert neighbours(graph, npu - 1) == [f"even {even // 2 - 1}", f"odd {odd // 2}"]
    between = nx.Graph(switch_graph(graph))
    assert nx.is_isomorphic(between, nx.complete_bipartite_graph(4, 4))
    # over one switch in the same rack or rail, over two otherwise: odd, then even, or even, then odd
    assert [len(topologies.route(graph, 0, dst)) for dst in (1, 4, 5)] == [2, 2, 3]
    ways = {
        tuple(
            graph.node_name(int(node)).split()[0] for node in graph.link_dst[topologies.route(graph, 0, 5, choose)[:2]]
        )
        for choose in (min, max)
    }
    assert ways == {("odd", "even"), ("even", "odd")}


def cubic_distance(sizes: str, k: int) -> float:
    """Return the mean distance of even k from the closed forms of Camarero, Martinez and Beivide, table 2."""
    if sizes.count("2k") == 1:
        return (7 * k**4 - 2 * k**2) / (4 * (2 * k**3 - 1))
    return (35 * k**4 - 8 * k**2) / (8 * (4 * k**3 - 1))


@pytest.mark.parametrize("k", [2, 4, 6])
@pytest.mark.parametrize("sizes", ["k x k x 2k", "2k x k x k", "k x 2k x 2k"])
def test_twisted_tori_are_cubic_lattices(sizes: str, k: int) -> None:
    numbers = "x".join(str(2 * k if size == "2k" else k) for size in sizes.split(" x "))
    graph = topologies.build(f"twisted-torus:sizes={numbers}")
    network = switch_graph(graph)
    assert degrees(network) == {6}
    distance = dict(nx.single_source_shortest_path_length(network, 0))
    assert max(distance.values()) == 3 * k // 2
    assert sum(distance.values()) / (len(network) - 1) == pytest.approx(cubic_distance(sizes, k), rel=1e-12)
    assert topologies.describe(graph)["diameter_hops"] == 3 * k // 2 + 2


def test_a_twisted_ring_ends_k_places_further_on() -> None:
    graph = topologies.build("twisted-torus:sizes=4x4x8")
    # node x + 4 y + 16 z: the ring along x leads from (3, 1, 2) to (0, 1, 6), that along y from (1, 3, 6) to (1, 0, 2)
    assert "router 100" in neighbours(graph, 128 + 39)
    assert "router 33" in neighbours(graph, 128 + 109)
    # along the long dimension it closes plainly
    assert "router 0" in neighbours(graph, 128 + 112)


def test_each_plane_has_a_port_of_every_nic() -> None:
    graph = topologies.build("multi-plane:npus=24,planes=4,nics_per_leaf=8,spines=2,rate=400Gbps")
    assert {int(rate) for rate in graph.link_rate_bps} == {100 * 10**9}
    for npu in (0, 7, 8, 23):
        assert neighbours(graph, npu) == sorted(f"leaf {3 * plane + npu // 8}" for plane in range(4))
    planes = list(nx.connected_components(switch_graph(graph)))
    assert sorted(map(len, planes)) == [5] * 4
    for plane in planes:
        part = nx.Graph(switch_graph(graph).subgraph(plane))
        assert nx.is_isomorphic(part, nx.complete_bipartite_graph(3, 2))


def test_planes_with_rails_put_equal_nics_on_one_leaf() -> None:
    graph = topologies.build("multi-plane:npus=32,planes=2,nics_per_leaf=4,gpus_per_host=4,rails=true")
    for npu in range(32):
        leaf = npu // 16 * 4 + npu % 4
        assert neighbours(graph, npu) == sorted([f"leaf {leaf}", f"leaf {8 + leaf}", f"nvswitch {npu // 4}"])
    assert topologies.describe(graph)["switches"] == {"nvswitch": 8, "leaf": 16, "spine": 8}
    assert topologies.describe(graph)["oversubscription"] == {"leaf": 1.0}


def test_two_tiers_of_eight_planes_join_131072_nics() -> None:
    # arXiv 2605.04333, section 2: switches of 512 ports of 100 Gb/s
    said = topologies.extent("multi-plane:npus=131072")
    assert said.switches == 8 * (512 + 256)
    assert said.cables == 131_072 * 8 * 2  # as many uplinks as links of NICs
    assert said.peak_bytes < 2 << 30


PRIME_POWER = "expected a prime power from 3 to 107 that is no multiple of 4 plus 2, as 5, 7, 8, 9, 11, 13, 17"
TWISTED = "expected k x 2k, k x k x 2k or k x 2k x 2k in any order, k from 2"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("slim-fly:q=6", "q = 6; " + PRIME_POWER),
        ("slim-fly:q=15", "q = 15; " + PRIME_POWER),
        ("slim-fly:q=2", "q = 2; " + PRIME_POWER),
        ("dragonfly-plus:p=2,leaves=2,groups=6", "groups = 6; expected at most 5, for 4 global ports of a group"),
        ("hyperx:sizes=1x4,p=1", "sizes = 1x4; expected one to 7 sizes of 2 or more"),
        ("hyperx:sizes=4x4x4,p=1,width=1x2", "width has 2 entries; expected 1 or 3, one for each dimension"),
        ("rail-only:npus=12", "npus = 12; expected a multiple of gpus_per_host = 8"),
        ("zcube:npus=12,npus_per_switch=5", "npus = 12; expected a multiple of npus_per_switch = 5"),
        ("twisted-torus:sizes=4x4x4", "sizes = 4x4x4; " + TWISTED),
        ("twisted-torus:sizes=4x8x12", "sizes = 4x8x12; " + TWISTED),
        (
            "multi-plane:npus=8,rails=true",
            "rails = true with gpus_per_host = 1; expected several GPUs, each with a NIC, to a server",
        ),
        ("multi-plane:npus=8,planes=3,rate=1Gbps", "a rate of 1000000000 bps; expected a multiple of planes = 3"),
        ("multi-plane:npus=9,gpus_per_host=2", "npus = 9; expected a multiple of gpus_per_host = 2"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(spec: str, text: str) -> None:
    assert refused(TopologyError, topologies.build, spec) == f"{spec}: {text}"
    assert refused(TopologyError, topologies.extent, spec) == f"{spec}: {text}"


def smallest_cut(network, halves) -> int:
    """Return the smallest number of cables between a half of the switches and the others."""
    ends = np.array([(a, b) for a, b in network.edges()])
    sides = np.zeros((len(halves), len(network)), bool)
    np.put_along_axis(sides, np.array(halves), values=True, axis=1)
    return int((sides[:, ends[:, 0]] != sides[:, ends[:, 1]]).sum(axis=1).min())


def halves_of(network):
    """Return all halves of the switches that hold the first."""
    first, *others = network
    return [(first, *some) for some in itertools.combinations(others, len(network) // 2 - 1)]


def test_a_bisection_without_a_proof_is_an_estimate() -> None:
    # with so many global cables, halves of every group have fewer cables to the others than halves of the groups
    graph = topologies.build("dragonfly:p=1,a=3,h=2,groups=4,rate=4Tbps,local_rate=100Gbps,global_rate=100Gbps")
    facts, network = topologies.describe(graph), switch_graph(graph)
    assert smallest_cut(network, halves_of(network)) == 6
    assert (facts["bisection_bps"], facts["bisection_is_exact"]) == (8 * 100 * 10**9, False)
    for spec in ("dragonfly:p=4,a=8,h=4", "dragonfly-plus:p=2,leaves=2,groups=5", "slim-fly:q=9", "hyperx:sizes=3,p=2"):
        assert not topologies.describe(topologies.build(spec))["bisection_is_exact"]


# with rates at which NPUs' own links limit nothing
@pytest.mark.parametrize(
    "spec",
    [
        "dragonfly:p=1,a=4,h=1,groups=4,rate=4Tbps,local_rate=100Gbps,global_rate=100Gbps",
        "dragonfly:p=1,a=6,h=1,groups=2,rate=4Tbps,local_rate=200Gbps,global_rate=100Gbps",
        "hyperx:sizes=2x4,p=1,rate=4Tbps,switch_rate=100Gbps",
        "hyperx:sizes=4x4,p=1,width=1x2,rate=4Tbps,switch_rate=100Gbps",
        "twisted-torus:sizes=2x4,rate=100Gbps",
        "twisted-torus:sizes=2x2x4,rate=100Gbps",
        "twisted-torus:sizes=2x4x2,rate=100Gbps",
    ],
)
def test_a_bisection_in_closed_form_is_the_smallest_cut_of_all(spec: str) -> None:
    graph = topologies.build(spec)
    facts = topologies.describe(graph)
    network = switch_graph(graph)
    assert facts["bisection_is_exact"]
    assert facts["bisection_bps"] == smallest_cut(network, halves_of(network)) * 100 * 10**9


@pytest.mark.parametrize("q", [4, 8])
def test_the_bisection_of_a_slim_fly_is_its_spectral_bound(q: int) -> None:
    facts = topologies.describe(
        topologies.build(f"slim-fly:q={q},p=1,rate=4Tbps,local_rate=100Gbps,global_rate=100Gbps")
    )
    network = switch_graph(topologies.build(f"slim-fly:q={q},p=1"))
    # no half has fewer cables to the other than n / 4 times the second eigenvalue (Fiedler, 1973)
    bound = 2 * q * q / 4 * np.linalg.eigvalsh(nx.laplacian_matrix(network).toarray().astype(float))[1]
    half = [switch for switch in network if switch % (q * q) // q < q // 2]
    assert smallest_cut(network, [half]) == pytest.approx(bound)
    assert (facts["bisection_bps"], facts["bisection_is_exact"]) == (round(bound) * 100 * 10**9, True)


def test_twisting_doubles_the_bisection_of_a_torus() -> None:
    # TPU v4's 4 x 4 x 8: 32 cables of the plain torus, 64 of the twisted one
    plain, twisted = (
        topologies.describe(topologies.build(f"{name}:sizes=4x4x8")) for name in ("torus", "twisted-torus")
    )
    assert plain["bisection_bps"] == 32 * 400 * 10**9
    assert twisted["bisection_bps"] == 64 * 400 * 10**9


def busiest_in_all_to_all(spec: str) -> float:
    """Return the messages over the busiest cable between routers, where each NPU sends one to each other."""
    graph = topologies.build(spec)
    src, dst = np.divmod(np.arange(graph.npus**2), graph.npus)
    other = src != dst
    loads = graph.routing.loads(graph, src[other], dst[other], np.ones(int(other.sum())))
    is_own = (graph.link_src < graph.npus) != (graph.link_dst < graph.npus)
    return float(loads[~is_own].max())


@pytest.mark.parametrize(("sizes", "ratio"), [("4x4x8", 96 / 55), ("4x8x8", 32 / 23)])
def test_a_twist_gains_no_less_in_all_to_all_than_was_measured(sizes: str, ratio: float) -> None:
    """Jouppi et al., ISCA 2023, section 2.8, measured gains of 1.3 to 1.6 for uniform all-to-all on twisted tori.

    Loads are what full links allow at most; by packets a twist gains 1.49 on 4x4x8 (docs/explanation/fabric.md).
    """
    plain, twisted = (busiest_in_all_to_all(f"{name}:sizes={sizes}") for name in ("torus", "twisted-torus"))
    # half of what an NPU sends over its longest rings, 8 NPUs: distances 1 to 4 and back, to all places of the others
    places = np.prod([int(size) for size in sizes.split("x")]) / 8
    assert plain == 16 * places / 2
    assert plain / twisted == pytest.approx(ratio)
    assert 1.3 <= ratio <= 2


def test_zcube_has_one_best_path_where_rails_with_spines_have_many() -> None:
    """Zhipu's comparison with rails and spines (ROFT): a third fewer switches, one shortest path from a port."""
    zcube = topologies.build("zcube:npus=256,npus_per_switch=16,uplinks=1")
    roft = topologies.build(
        "rail-fat-tree:npus=256,gpus_per_host=1,rails=1,ports=2,hosts_per_unit=16,spines=8,uplinks=2"
    )
    switches = [int((graph.node_kind[graph.npus :] != NVSWITCH).sum()) for graph in (zcube, roft)]
    assert switches == [32, 48]
    far = {"zcube": (zcube, 255 - 16), "roft": (roft, 255)}
    ways = {}
    for name, (graph, dst) in far.items():
        network = nx.Graph(zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True))
        ways[name] = len(list(nx.all_shortest_paths(network, 0, dst)))
    # from each of the sender's two ports
    assert ways == {"zcube": 2 * 1, "roft": 2 * 8}
