"""Clusters, methods and parts: what must hold for every fabric, brute force on small ones, figures by hand."""

import itertools
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import partition, topologies
from nadi.partition.methods import MAX_LOAD, Clusters, blocks, cluster, components, metis
from nadi.partition.weights import TrafficWeights
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.samples import pairwise
from tests.topologies.naive import SMALL

METHODS = tuple(partition.methods())
FABRICS = [*SMALL, "fat-tree:npus=64,hosts_per_leaf=4,leaves_per_pod=4", "rail-optimised:npus=64,gpus_per_host=4"]
PER_NPU = {"keep_hosts": False}
NO_MORE = "as it has no more switches with their NPUs, or servers, that stay together"


def divide(graph, parts, method, **options):
    """The partition, or None where the method or the number of parts does not fit the fabric."""
    try:
        return partition.partition(graph, parts, method=method, **options)
    except partition.PartitionError:
        return None


def test_the_methods_are_found():
    assert METHODS == ("auto", "blocks", "by-pod", "metis", "scatter")


@pytest.mark.parametrize(("spec", "method", "keep_hosts"), pairwise(itertools.product(FABRICS, METHODS, (True, False))))
def test_whatever_holds_for_all(spec, method, keep_hosts):
    graph = topologies.build(spec)
    reach = partition.reach_ps(graph, 82)
    done = 0
    for parts in (1, 2, 3, 4, 7):
        found = divide(graph, parts, method, keep_hosts=keep_hosts, smallest_bytes=82)
        if found is None:
            continue
        done += 1
        assert found.owner.dtype == np.int32
        assert found.owner.shape == (graph.nodes,)
        assert sorted(set(found.owner.tolist())) == list(range(parts))
        cuts = [
            link
            for link in range(graph.links)
            if found.owner[graph.link_src[link]] != found.owner[graph.link_dst[link]]
        ]
        assert found.lookahead_ps == min((int(reach[link]) for link in cuts), default=partition.NO_CUT_PS)
        means = [np.flatnonzero(found.owner[: graph.npus] == p) for p in range(parts)]
        means = [npus.mean() if len(npus) else graph.npus for npus in means]
        assert means == sorted(means)
        if keep_hosts:
            check_hosts(graph, found.owner)
        again = divide(graph, parts, method, keep_hosts=keep_hosts, smallest_bytes=82)
        assert (again.owner == found.owner).all()
    assert done >= 1 or method == "by-pod"


def check_hosts(graph, owner):
    for npu in range(graph.npus):
        others = {int(graph.link_dst[link]) for link in graph.out_links(npu)}
        inside = {n for n in others if graph.node_kind[n] == topologies.NVSWITCH}
        inside |= {n for n in others if len(others) == 1 and n >= graph.npus}
        inside |= {n for n in range(graph.npus) if graph.host[n] == graph.host[npu]}
        assert {int(owner[n]) for n in inside} <= {int(owner[npu])}


EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40)


@bounded(200)
@given(EDGES)
def test_components_are_those_of_networkx(edges):
    a, b = np.array(edges, np.int64).reshape(-1, 2).T
    network = nx.Graph(edges)
    network.add_nodes_from(range(20))
    found = components(20, a, b)
    expected = sorted((sorted(nodes) for nodes in nx.connected_components(network)), key=min)
    assert [np.flatnonzero(found == i).tolist() for i in range(found.max() + 1)] == expected


@pytest.mark.parametrize("spec", FABRICS)
def test_clusters_know_their_weight_and_neighbours(spec):
    graph = topologies.build(spec)
    weights = partition.uniform(graph)
    found = cluster(graph, 2, weights, partition.reach_ps(graph, 66), keep_hosts=True)
    assert found.weight.sum() == weights.node.sum() + graph.nodes
    packets = {}
    for link in range(graph.links):
        a, b = (int(found.of_node[end[link]]) for end in (graph.link_src, graph.link_dst))
        for pair in ((a, b), (b, a)):
            packets[pair] = packets.get(pair, 0) + int(weights.link[link])
    for one in range(found.number):
        near = slice(found.ptr[one], found.ptr[one + 1])
        said = dict(zip(found.neighbour[near].tolist(), found.packets[near].tolist(), strict=True))
        assert said == {b: count for (a, b), count in packets.items() if a == one and b != one}


FAR_CORES = "fat-tree:npus=64,hosts_per_leaf=4,leaves_per_pod=4,delay=100ns,spine_delay=500ns,core_delay=5us"


@pytest.mark.parametrize(("parts", "delay_ns"), [(2, 5000), (4, 5000), (8, 500), (32, 500)])
def test_short_links_are_cut_only_where_balance_needs_it(parts, delay_ns):
    graph = topologies.build(FAR_CORES)  # 4 pods
    found = partition.partition(graph, parts, smallest_bytes=50)  # 1 ns at 400 Gbps
    assert found.lookahead_ps == delay_ns * 1000 + 1000


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("spec", [FAR_CORES, "stack:dims=Ring(4)_Ring(3)_Switch(4),delays=50ns_500ns_2us"])
def test_the_threshold_is_the_largest_that_leaves_balance(spec, parts):
    """Against every subset of links, by its components in networkx and an exhaustive or greedy fill."""
    graph = topologies.build(spec)
    weights = partition.uniform(graph)
    reach = partition.reach_ps(graph, 66)
    found = cluster(graph, parts, weights, reach, keep_hosts=False)
    for threshold in sorted(set(reach.tolist()), reverse=True):
        network = nx.Graph()
        network.add_nodes_from(range(graph.nodes))
        short = np.flatnonzero(reach < threshold).tolist()
        network.add_edges_from((int(graph.link_src[link]), int(graph.link_dst[link])) for link in short)
        groups = list(nx.connected_components(network))
        sizes = sorted((sum(int(weights.node[n]) + 1 for n in group) for group in groups), reverse=True)
        load = [0] * parts
        for size in sizes:
            load[load.index(min(load))] += size
        if len(groups) >= parts and max(load) <= MAX_LOAD * sum(load) / parts:
            break
    assert found.number == len(groups)


def best_cut(graph, parts, weights, most_load):
    """Fewest packets over any cut with parts of at most most_load times the mean, by trying them all."""
    clusters = cluster(graph, parts, weights, partition.reach_ps(graph, 66), keep_hosts=True)
    src = np.repeat(np.arange(clusters.number), np.diff(clusters.ptr))
    best = None
    for choice in itertools.product(range(parts), repeat=clusters.number):
        part = np.array(choice)
        load = np.bincount(part, clusters.weight, minlength=parts)
        if load.max() <= most_load * load.mean():
            cut = int(clusters.packets[part[src] != part[clusters.neighbour]].sum()) // 2
            best = cut if best is None else min(best, cut)
    return best


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("ring:npus=12", 2),
        ("torus:sizes=4x3", 2),
        ("leaf-spine:npus=24,hosts_per_leaf=4,spines=4", 2),
        ("ring:npus=9", 3),
    ],
)
def test_metis_is_as_good_as_trying_all(spec, parts):
    graph = topologies.build(spec)
    weights = partition.uniform(graph)
    found = partition.partition(graph, parts, method="metis", weights=weights)
    said = partition.report(graph, found, weights)
    assert said.cut_packets <= 1.05 * best_cut(graph, parts, weights, max(said.balance, 1.05))
    assert said.balance < 1.12


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("spec", ["fat-tree:k=8", "torus:sizes=8x8x4", "rail-optimised:npus=512", "ring:npus=240"])
def test_metis_balances_and_cuts_no_more_than_the_others(spec, parts):
    graph = topologies.build(spec)
    weights = partition.uniform(graph)
    found = {method: divide(graph, parts, method, weights=weights) for method in METHODS}
    said = {method: partition.report(graph, each, weights) for method, each in found.items() if each}
    assert said["metis"].balance < 1.15
    if parts in {2, 4, 8}:
        assert said["metis"].cut_share <= 1.05 * min(each.cut_share for each in said.values())


@pytest.mark.parametrize("method", ["metis", "blocks", "by-pod"])
def test_methods_cut_less_than_the_worst_case(method):
    graph = topologies.build("fat-tree:k=8")
    weights = partition.uniform(graph)
    for parts in (2, 4, 8):
        said, worst = (
            partition.report(graph, partition.partition(graph, parts, method=m, weights=weights), weights)
            for m in (method, "scatter")
        )
        assert said.cut_share < 0.7 * worst.cut_share
        assert said.balance < 1.1


@pytest.mark.parametrize(("parts", "method"), [(4, "by-pod"), (4, "blocks"), (16, "by-pod")])
def test_pods_or_their_halves_stay_whole_and_cores_are_shared_out(parts, method):
    graph = topologies.build("fat-tree:k=8")
    found = partition.partition(graph, parts, method=method)
    for pod in range(8):
        first = pod * parts // 8
        assert set(found.owner[graph.pod == pod]) == {first, max(first, (pod + 1) * parts // 8 - 1)}
    assert np.bincount(found.owner[graph.pod < 0], minlength=parts).tolist() == [16 // parts] * parts


def test_parts_of_a_pod_have_as_much_of_each_tier():
    graph = topologies.build("fat-tree:k=8")
    found = partition.partition(graph, 16, method="by-pod")
    of_switch = found.owner[graph.npus :]
    pods, cores = of_switch[:64].reshape(8, 8), of_switch[64:]  # of each pod four leaves, then four switches above them
    for switches, each in ((pods[:, :4], 2), (pods[:, 4:], 2), (cores, 1)):
        assert np.bincount(switches.reshape(-1), minlength=16).tolist() == [each] * 16
    assert np.bincount(found.owner[: graph.npus]).tolist() == [8] * 16


@pytest.mark.parametrize("parts", [2, 3, 16, 32])
@pytest.mark.parametrize("spec", ["fat-tree:k=8", "rail-optimised:npus=256", "ring:npus=250"])
def test_the_default_is_no_worse_than_metis_nor_by_pod(spec, parts):
    graph = topologies.build(spec)
    weights = partition.uniform(graph)
    found = {method: divide(graph, parts, method, weights=weights) for method in ("auto", "metis", "by-pod")}
    said = {method: partition.report(graph, each, weights) for method, each in found.items() if each}
    auto = said.pop("auto")
    assert auto.balance <= 1.02 * min(each.balance for each in said.values())
    assert any(auto.cut_packets == each.cut_packets and auto.balance == each.balance for each in said.values())
    assert found["by-pod"] is not None or np.array_equal(found["auto"].owner, found["metis"].owner)


def test_the_default_cuts_pods_where_metis_leaves_parts_heavier():
    graph = topologies.build("fat-tree:npus=1024,rate=100Gbps,delay=1us")
    weights = partition.uniform(graph)
    by_auto, by_metis = (partition.partition(graph, 64, method=each, weights=weights) for each in ("auto", "metis"))
    assert partition.report(graph, by_metis, weights).balance > 1.03
    assert partition.report(graph, by_auto, weights).balance < 1.02


def test_blocks_are_contiguous():
    found = partition.partition(topologies.build("fat-tree:k=8"), 4, method="blocks")
    assert found.owner[:128].tolist() == np.repeat(range(4), 32).tolist()


def test_blocks_of_a_fabric_with_a_switch_above_all():
    graph = topologies.build("leaf-spine:npus=12,hosts_per_leaf=4,spines=1")
    clusters = cluster(graph, 3, partition.uniform(graph), partition.reach_ps(graph, 66), keep_hosts=True)
    assert blocks.assign(graph, clusters, 3).tolist() == [0, 1, 2, 0]


def test_scatter_may_split_hosts():
    graph = topologies.build("leaf-spine:npus=8,hosts_per_leaf=4,spines=1")
    found = partition.partition(graph, 2, method="scatter", keep_hosts=False)
    assert found.owner.tolist() == [0, 1] * 5 + [0]


def test_empty_parts_are_filled(monkeypatch):
    graph = topologies.build("fat-tree:k=4")
    monkeypatch.setattr(metis, "assign", lambda _graph, clusters, _parts: np.zeros(clusters.number, np.int32))
    found = partition.partition(graph, 5, method="metis")
    assert set(found.owner.tolist()) == set(range(5))


def test_heavy_nodes_get_more_of_a_part():
    graph = topologies.build("ring:npus=16")
    weights = TrafficWeights(np.where(np.arange(16) < 4, 300, 100), np.ones(graph.links, np.int64))
    found = partition.partition(graph, 2, weights=weights)
    load = np.bincount(found.owner, weights.node)
    assert load.max() == 1200


@given(st.lists(st.integers(1, 2**60), min_size=1, max_size=50))
def test_scaled_weights_fit_into_32_bits_and_keep_proportion(weights):
    weight = np.array(weights, np.int64)
    scaled = metis.scaled(weight)
    assert scaled.dtype == np.int32
    assert (scaled >= 1).all()
    assert scaled.sum(dtype=np.int64) <= 2**30
    exact = weight * (min(1.0, 2**30 / float(sum(weights))))
    np.testing.assert_allclose(scaled, exact, rtol=1e-6, atol=2)


def test_no_traffic_at_all_is_divided_by_nodes():
    graph = topologies.build("torus:sizes=4x4")
    nothing = TrafficWeights(np.zeros(16, np.int64), np.zeros(graph.links, np.int64))
    found = partition.partition(graph, 4, weights=nothing)
    assert np.bincount(found.owner).tolist() == [4] * 4
    said = partition.report(graph, found, nothing)
    assert (said.balance, said.cut_share, said.windows, said.speed_up) == (1, 0, 0, 1)


@pytest.mark.parametrize(
    ("spec", "options", "text"),
    [
        ("ring:npus=8", PER_NPU, "ring:npus=8: 9 parts; expected at most 8, as it has no more nodes"),
        ("switch:npus=8", {}, f"switch:npus=8: 9 parts; expected at most 1, {NO_MORE}"),
    ],
)
def test_what_cannot_be_divided(spec, options, text):
    """tests/records has other numbers of parts, and methods."""
    graph = topologies.build(spec)
    assert refused(partition.PartitionError, partition.partition, graph, 9, **options) == text


def test_reach_is_delay_and_smallest_packet():
    graph = topologies.build("ring:npus=4,rate=100Gbps,delay=1us")
    assert partition.reach_ps(graph, 66).tolist() == [1_000_000 + 66 * 80] * 8
    slow = topologies.build("ring:npus=4,rate=600Gbps,delay=0")
    assert partition.reach_ps(slow, 82).tolist() == [1093] * 8  # 656 bits at 600 Gbps are 1093.3 ps


def test_another_process_finds_the_same():
    code = (
        "import sys; sys.path.insert(0, '.'); import hashlib, partition, topologies; "
        "owner = partition.partition(topologies.build('fat-tree:k=8'), 5).owner; "
        "print(hashlib.sha256(owner.tobytes()).hexdigest())"
    )
    found = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(found) == 1


@bounded(100)
@given(st.lists(st.integers(1, 100), min_size=4, max_size=30), st.integers(2, 4), st.randoms(use_true_random=False))
def test_levelling_never_makes_the_heaviest_part_heavier(weights, parts, random):
    weight = np.array(weights, np.int64)
    clusters = Clusters(len(weight), None, weight, None, None, None)
    before = np.array([random.randrange(parts) for _ in weights], np.int32)
    after = metis.levelled(before, clusters, parts)
    loads = [np.bincount(part, weight, minlength=parts) for part in (before, after)]
    assert loads[1].max() <= loads[0].max()
    if loads[1].max() > 1.05 * loads[1].mean():  # then no single cluster of a heaviest part can go anywhere
        heaviest = int(np.argmax(loads[1]))
        for one in nonempty(weight[after == heaviest].tolist()):
            assert loads[1].min() + one >= loads[1].max()
