"""What a run is estimated to take is what it takes: packets and packet-hops, of runs in which nothing is lost."""

import numpy as np
import pytest

from nadi import et, pdes, topologies, workload
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.assembly.resource_checks import estimate
from nadi.workload.program.traffic import sample, traffic
from tests.scenarios.running import simulate

FABRICS = (
    "switch:npus=8",
    "ring:npus=5",
    "torus:sizes=4x4",
    "fat-tree:k=4",
    "rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2",
)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize(
    ("kind", "size", "algorithm"),
    [("all-reduce", 1 << 20, "ring"), ("all-to-all", 70_001, "direct"), ("all-reduce", 1 << 18, "halving-doubling")],
)
def test_packets_and_hops_are_those_of_the_run(fabric, kind, size, algorithm):
    graph = topologies.build(fabric)
    program = workload.collective_program(kind, graph.npus, size, algorithm, graph)
    found, settings = estimate(graph, program, pdes.Settings()), pdes.Settings()
    count = simulate(graph, program).counters
    assert found.messages == count["flows"]
    assert found.packets == pytest.approx(count["data_packets"], rel=0.02)
    assert found.packet_hops == pytest.approx(count["packet_hops"], rel=0.05)
    whole = pdes.Settings(fidelity=pdes.fidelity.fidelity("congestion_aware"))
    results = pdes.run(pdes.build_world(graph, program, whole))
    assert estimate(graph, program, whole).packet_hops == pytest.approx(results.counters["packet_hops"], rel=0.05)
    assert found.memory_bytes > estimate(graph, program, pdes.Settings(record_flows=False)).memory_bytes
    assert settings.record_flows


def test_every_npu_has_rows_of_its_own_where_they_share_a_trace():
    """4 B a row for the parents that are left, 16 B for its times, 200 B for their analysis."""
    graph = topologies.build("switch:npus=8")
    nodes = [et.comp_node(i, "c") for i in range(1000)]
    traces = [et.table_of(et.metadata(), nodes[:n]) for n in (1, 1000)]
    one, many = (workload.build_program([table], [0] * 8, 8) for table in traces)
    for recorded, row_bytes in ((True, 220), (False, 4)):
        settings = pdes.Settings(record_nodes=recorded)
        more = estimate(graph, many, settings).memory_bytes - estimate(graph, one, settings).memory_bytes
        assert more == 8 * 999 * row_bytes


def test_messages_between_two_npus_count_too():
    graph = topologies.build("fat-tree:k=4")
    program = workload.pairs_program(workload.permutation(graph.npus, 3), 1_000_000)
    count = simulate(graph, program).counters
    found = estimate(graph, program, pdes.Settings())
    assert (found.packets, found.packet_hops) == (count["data_packets"], count["packet_hops"])


@pytest.mark.parametrize(
    ("kind", "algorithm", "pairs"),
    [("all-to-all", "direct", (1071, 64 * 63)), ("all-reduce", "recursive-doubling", (64 * 6, 64 * 6))],
)
def test_a_sample_stands_for_all(kind, algorithm, pairs):
    """A sample of the messages of 64 NPUs has as many bytes and messages, from fewer pairs where pairs are many."""
    program = workload.collective_program(kind, 64, 1 << 20, algorithm)
    exact, few, every = traffic(program), sample(program, 1), sample(program, 1 << 20)
    for one in (few, every):
        assert (one.weight * one.bytes).sum() == pytest.approx(exact.bytes.sum(), rel=0.02)
        assert (one.weight * one.messages).sum() == pytest.approx(exact.messages.sum(), rel=0.02)
    assert set(every.weight.tolist()) == {1.0}
    assert (len(few.src), len(every.src)) == pairs
    assert np.array_equal(np.unique(every.src * 64 + every.dst), exact.src.astype(np.int64) * 64 + exact.dst)


def test_a_sample_has_its_share_of_what_switches_send():
    """Of all-reduces in 128 hosts whose switches reduce: what GPUs and aggregators send, from half of the pairs."""
    graph = topologies.build("dgx-h100:npus=1024")
    hosts = [tuple(range(first, first + 8)) for first in range(0, 1024, 8)]
    node = et.coll_node(1, "sum", et.CollectiveCommType.ALL_REDUCE, 1 << 20, pg_name="host")
    program = workload.build_program(
        [et.table_of(et.metadata(), [node])],
        [0] * 1024,
        1024,
        {},
        workload.ComputeModel(),
        workload.CollectiveSettings({"all-reduce": "nvls"}),
        fabric=graph,
        example_npu=np.zeros(1, np.int32),
        families={"host": tuple(hosts)},
    )
    _, running, _ = engine_inputs(graph, program)
    exact, few = traffic(running), sample(running, 1)
    assert len(few.src) < len(exact.src) * 0.6
    for of_gpus in (True, False):
        sent = (few.weight * few.bytes)[(few.src < 1024) == of_gpus].sum()
        assert sent == pytest.approx(exact.bytes[(exact.src < 1024) == of_gpus].sum(), rel=0.02)
