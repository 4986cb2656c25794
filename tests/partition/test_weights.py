"""Expected packets: against a walk of every pair, and against what the engine sends; the report's figures by hand."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import partition, topologies, workload
from nadi.partition.owners import Partition
from nadi.partition.weights import TrafficWeights
from nadi.topologies.endpoints import with_host_memories
from nadi.workload.program.traffic import traffic
from tests.budgets import bounded
from tests.every import programs
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.samples import sampled
from tests.scenarios.running import simulate
from tests.topologies.naive import SMALL


def fluid_loads(graph, pairs):
    """Packets of each link when each pair's are shared equally at every branch. pairs: (src, dst, packets)."""
    load = np.zeros(graph.links)

    def walk(node, dst, packets):
        links = topologies.next_links(graph, node, dst)
        for link in links:
            load[link] += packets / len(links)
            following = int(graph.link_dst[link])
            if following != dst:
                walk(following, dst, packets / len(links))

    for src, dst, packets in pairs:
        walk(src, dst, packets)
    return load


def data_and_acks(pairs):
    return [*pairs, *((dst, src, packets) for src, dst, packets in pairs)]


def arrivals(graph, load):
    at = np.zeros(graph.nodes)
    for link in range(graph.links):
        at[graph.link_dst[link]] += load[link]
    return at


FABRICS = [spec for spec in SMALL if spec != "switch:npus=1"]


def loads(graph, src, dst, packets):
    return graph.routing.loads(graph, np.array(src), np.array(dst), np.array(packets, float))


def check(graph, pairs):
    """Compare the loads of pairs (src, dst, packets) with those of the walker."""
    np.testing.assert_allclose(loads(graph, *zip(*pairs, strict=True)), fluid_loads(graph, pairs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", FABRICS)
def test_loads_of_all_pairs_are_what_the_walker_finds(spec):
    graph = topologies.build(spec)
    check(graph, [(a, b, 1 + 7 * a + b) for a in range(graph.npus) for b in range(graph.npus) if a != b])


@pytest.mark.parametrize("spec", FABRICS)
def test_loads_of_a_pair_alone_are_what_the_walker_finds(spec):
    graph = topologies.build(spec)
    for src in range(graph.npus):
        for dst in set(range(graph.npus)) - {src}:
            check(graph, [(src, dst, 3)])


@bounded(60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Ring", "FullyConnected", "Switch"]), st.integers(2, 5)), min_size=1, max_size=3
    ),
    st.randoms(use_true_random=False),
)
def test_any_stack(dimensions, random):
    graph = topologies.build({"name": "stack", "dims": "_".join(f"{kind}({size})" for kind, size in dimensions)})
    pairs = [(*random.sample(range(graph.npus), 2), random.randint(1, 99)) for _ in range(30)]
    check(graph, pairs)


@bounded(80)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), max_size=10),
)
def test_any_network_of_switches_with_several_homes_and_parallel_cables(homes, pairs):
    builder = topologies.GraphBuilder("any", len(homes))
    switch = builder.add_switches("switch", 7)
    cables = [(npu, switch[home]) for npu, of_npu in enumerate(homes) for home in of_npu]
    cables += [(switch[a], switch[b]) for a, b in pairs] + [(switch[6], switch[i]) for i in range(6)]
    builder.add_cables(*np.array(cables).T, 10**9, 0)
    graph = builder.graph()
    pairs = [(a, b, 1 + a + 10 * b) for a in range(graph.npus) for b in range(graph.npus) if a != b]
    check(graph, pairs)


RAILS = "rail-optimised:npus=12,gpus_per_host=2,hosts_per_rail_leaf=4,spines=2,uplinks=2"


@pytest.mark.parametrize(
    ("spec", "limit", "value"),
    [
        (RAILS, "table_loads._MAX_ENTRIES", 3),
        (RAILS, "table_loads._MAX_DENSE", 3),
        ("torus:sizes=4x3", "dimension_routing._MAX_PAIRS", 7),
    ],
)
def test_small_blocks_and_sparse_sums_change_nothing(monkeypatch, spec, limit, value):
    monkeypatch.setattr(f"nadi.topologies.{limit}", value)
    test_loads_of_all_pairs_are_what_the_walker_finds(spec)


def test_packets_are_whole_and_acknowledged():
    graph = topologies.build("ring:npus=5")
    # 2 messages of 4097 bytes are 4 packets, one of none is one; an NPU sends nothing to itself
    found = partition.expected(graph, [0, 3, 2], [1, 1, 2], [8194, 0, 999], [2, 1, 1])
    load = fluid_loads(graph, data_and_acks([(0, 1, 4), (3, 1, 1)]))
    assert found.link.tolist() == load.tolist()
    assert found.node.tolist() == arrivals(graph, load).tolist()
    assert partition.expected(graph, [0], [1], [8194], [2], mtu_bytes=8192).link.sum() == 4
    assert found.node.dtype == found.link.dtype == np.int64


def test_no_traffic_weighs_nothing():
    for spec in ("ring:npus=5", "fat-tree:k=4"):
        graph = topologies.build(spec)
        found = partition.expected(graph, [], [], [], [])
        assert found.node.tolist() == [0] * graph.nodes
        assert found.link.tolist() == [0] * graph.links


ONE_WAY = ["ring:npus=7", "torus:sizes=3x5", "fully-connected:npus=6", "leaf-spine:npus=12,hosts_per_leaf=4,spines=1"]
SHARED = ["fat-tree:k=4", "rail-optimised:npus=16,gpus_per_host=4", "torus:sizes=4x4"]


@sampled(
    {
        "size_bytes": [100, 12 * 4096, 1_000_000],
        "kind": ["all-reduce", "all-to-all", "broadcast", "barrier"],
        "spec": ONE_WAY,
    }
)
def test_where_there_is_one_way_the_engine_sends_exactly_so_many(spec, kind, size_bytes):
    graph = topologies.build(spec)
    for _, fabric, program in nonempty(programs(kind, graph, size_bytes)):
        found = partition.expected(fabric, *traffic(program))
        results = simulate(fabric, program)
        if kind == "barrier" or size_bytes % (4096 * graph.npus) == 0 or size_bytes == 100:
            assert found.link.tolist() == results.links["tx_packets"].tolist()
        else:  # messages of a pair differ by a byte, which may be a packet
            np.testing.assert_allclose(found.link, results.links["tx_packets"], rtol=0.1)
        measured = partition.from_links(fabric, results.links["tx_packets"])
        assert measured.node.sum() == measured.link.sum() == results.counters["packet_hops"]


@pytest.mark.parametrize("spec", SHARED)
def test_where_there_are_several_the_engine_sends_as_many_in_all(spec):
    """ECMP by hash against a fluid: the same number of packets and hops, and tiers and NPUs the same."""
    graph = topologies.build(spec)
    program = workload.collective_program("all-to-all", graph.npus, 4096 * graph.npus)
    found = partition.expected(graph, *traffic(program))
    results = simulate(graph, program)
    measured = partition.from_links(graph, results.links["tx_packets"])
    assert found.link.sum() == pytest.approx(results.counters["packet_hops"], abs=graph.links / 2)
    at_npu = graph.link_dst < graph.npus
    if spec.startswith("fat-tree"):
        assert found.link[at_npu].tolist() == measured.link[at_npu].tolist()
    assert np.abs(found.node - measured.node).sum() < 0.15 * measured.node.sum()  # 240 flows leave hashes uneven


def test_measured_weights_are_of_the_same_fabric():
    line = refused(partition.PartitionError, partition.from_links, topologies.build("ring:npus=5"), [1, 2, 3, 4])
    assert line == "ring:npus=5: packets of 4 links; expected 10, one for each link"


@pytest.mark.parametrize("spec", FABRICS)
def test_uniform_reaches_every_npu_alike(spec):
    graph = topologies.build(spec)
    found = partition.uniform(graph)
    arrived = np.bincount(graph.link_dst, found.link, minlength=graph.nodes)[: graph.npus]
    assert (found.node[: graph.npus] > 0).all()
    if graph.routing.goes_around:
        assert np.ptp(arrived) <= graph.links
    np.testing.assert_allclose(found.node.sum(), found.link.sum(), atol=graph.links)


@pytest.mark.parametrize("spec", ["dgx-h100:npus=16", "rail-optimised:npus=8,gpus_per_host=4,spines=2"])
def test_uniform_leaves_out_what_no_path_joins(spec):
    """The memory of a host is an endpoint to which only NPUs of that host have a path."""
    graph = with_host_memories(topologies.build(spec))
    src, dst = (pairs.reshape(-1) for pairs in np.indices((graph.npus, graph.npus)))
    found = graph.routing.reaches(src, dst)
    npus = len(graph.host) - len(set(graph.host.tolist()))
    both_are_npus = (src < npus) & (dst < npus)
    assert found.tolist() == (both_are_npus | (graph.host[src] == graph.host[dst])).tolist()
    weights = partition.uniform(graph)
    assert (weights.node[:npus] > 0).all()
    assert (weights.link >= 0).all()


@pytest.mark.parametrize("spec", ["fat-tree:npus=16384", "torus:sizes=32x32x16", "ring:npus=16384"])
def test_16384_npus_take_seconds(spec):
    graph = topologies.build(spec)
    to = workload.permutation(graph.npus)
    ones = np.ones(graph.npus)
    begin = time.process_time()
    found = partition.expected(graph, np.arange(graph.npus), to, ones, ones)
    assert time.process_time() - begin < 6  # about one on an idle core
    if graph.routing.goes_around:
        assert (found.node[: graph.npus] == 2).all()


RING = "ring:npus=4,rate=100Gbps,delay=1us"


@pytest.fixture
def half():
    """A ring of 4 in halves: 2 cables and so 4 links are cut."""
    graph = topologies.build(RING)
    owner = np.array([0, 0, 1, 1], np.int32)
    weights = TrafficWeights(np.array([10, 20, 30, 60]), np.arange(1, 9))
    return graph, Partition(owner, 2, "by hand", 1_005_280), weights


def test_by_hand(half):
    graph, found, weights = half
    said = partition.report(graph, found, weights, duration_ps=10 * 1_005_280 - 1, hop_ns=1e6, sync_us=100)
    cut = [link for link in range(8) if found.owner[graph.link_src[link]] != found.owner[graph.link_dst[link]]]
    assert len(cut) == said.cut_links == 4
    assert said.cut_packets == sum(int(weights.link[link]) for link in cut)
    assert said.cut_share == said.cut_packets / 36
    assert (said.npus.tolist(), said.switches.tolist(), said.events.tolist()) == ([2, 2], [0, 0], [30, 90])
    assert said.share.tolist() == [0.25, 0.75]
    assert said.balance == 1.5
    assert (said.windows, said.duration_is_given) == (10, True)
    assert (said.least_events_per_window, said.mean_events_per_window) == (3, 6)
    # 120 events of 1 ms, against 90 of them and 10 windows of 0.1 ms
    assert said.speed_up == pytest.approx(120 / (90 + 1))


def test_the_duration_is_the_busiest_links_unless_given(half):
    graph, found, weights = half
    said = partition.report(graph, found, weights, mean_packet_bytes=1000)
    assert said.duration_ps == 8 * 1000 * 80  # 8 packets of 1000 bytes at 80 ps a byte
    assert not said.duration_is_given
    assert said.windows == 1


def test_a_single_part_waits_for_nobody(half):
    graph, found, weights = half
    said = partition.report(graph, partition.partition(graph, 1), weights)
    assert (said.windows, said.cut_links, said.balance, said.speed_up) == (0, 0, 1, 1)
    assert said.as_dict()["lookahead_ps"] is None
    halves = json.loads(json.dumps(partition.report(graph, found, weights).as_dict()))
    assert (halves["events"], halves["lookahead_ps"]) == ([30, 90], 1_005_280)
