"""Collectives that users bring, packet by packet."""

import numpy as np
import pytest

from nadi import et, topologies
from nadi.workload import WorkloadError, collective_program, collectives
from nadi.workload.collectives.custom import to_msccl
from nadi.workload.program.traffic import traffic
from tests.closed_forms import form_of_all
from tests.scenarios.running import simulate
from tests.workload import msccl_files

MIB = 1 << 20


def run(network, spec, size, kind="all-reduce"):
    graph = topologies.build(network)
    return simulate(graph, collective_program(kind, graph.npus, size, spec, graph))


@pytest.mark.parametrize("size", [4, 100_003, MIB])
@pytest.mark.parametrize("network", ["ring:npus=4,rate=100Gbps,delay=1us", "switch:npus=4,rate=100Gbps,delay=500ns"])
def test_a_ring_in_a_file_takes_as_long_as_the_ring(network, size, tmp_path):
    file = tmp_path / "ring.xml"
    file.write_text(msccl_files.ring(4), encoding="utf-8")
    brought, own = run(network, f"custom:file={file}", size), run(network, "ring", size)
    assert brought.finish_time_ps == own.finish_time_ps
    assert brought.digest == own.digest


@pytest.mark.parametrize(("kind", "name"), [("all-reduce", "direct"), ("all-gather", "ring"), ("all-to-all", "direct")])
def test_own_algorithms_written_and_read_take_as_long(kind, name, tmp_path):
    network, file = "ring:npus=5,rate=100Gbps,delay=1us", tmp_path / "own.xml"
    file.write_text(to_msccl(collectives.plan(kind, name, 5), kind, name), encoding="utf-8")
    brought, own = (run(network, spec, 100_003, kind) for spec in (f"custom:file={file}", name))
    assert brought.finish_time_ps == own.finish_time_ps


@pytest.mark.parametrize("text", [msccl_files.ring(8), msccl_files.fused_ring(8)])
def test_its_time_on_an_idle_network_is_that_of_the_ring(text, tmp_path):
    file = tmp_path / "ring.xml"
    file.write_text(text, encoding="utf-8")
    graph = topologies.build("ring:npus=8,rate=100Gbps,delay=1us")
    brought, own = (
        form_of_all(graph, collective_program("all-reduce", 8, MIB, algorithm, graph), "all-reduce", algorithm)
        for algorithm in (f"custom:file={file}", "ring")
    )
    assert brought.is_simulated
    assert own.is_simulated
    assert brought.time_ps == own.time_ps == run("ring:npus=8,rate=100Gbps,delay=1us", "ring", MIB).finish_time_ps


@pytest.mark.parametrize(
    ("kind", "text", "npus", "messages", "part"),
    [
        ("all-reduce", msccl_files.fused_ring(5), 5, 40, 5),
        ("all-reduce", msccl_files.all_pairs(4), 4, 24, 4),
        ("all-gather", msccl_files.hierarchical_all_gather(), 4, 12, 4),
        ("reduce", msccl_files.sum_chain(4), 4, 3, 1),
        ("all-to-all", msccl_files.exchange_of_two(inplace=0), 2, 2, 2),
        ("all-to-all", msccl_files.exchange_of_two(inplace=1), 2, 2, 2),
        ("reduce-scatter", msccl_files.reduce_scatter_of_two(inplace=0), 2, 2, 2),
    ],
)
def test_what_files_send(kind, text, npus, messages, part, tmp_path):
    file = tmp_path / "a.xml"
    file.write_text(text, encoding="utf-8")
    results = run(f"switch:npus={npus}", f"custom:file={file}", 100_000, kind)
    assert results.flows["bytes"].tolist() == [100_000 // part] * messages


ASTRA_RING = "astra-sim/system/custom_collectives/custom_ring_allreduce_8npus_1MB/custom_allreduce"


def test_the_ring_of_astra_sim_runs_as_traces(shared_data):
    for size, made_for, factor in ((MIB, "", 1), (MIB // 2, "", 1), (4 * MIB, ",size=1MiB", 4)):
        spec = f"custom:file={shared_data / ASTRA_RING}{made_for}"
        results = run("ring:npus=8,rate=100Gbps,delay=1us", spec, size)
        assert results.flows["bytes"].tolist() == [factor * 131072] * (8 * 14)
        assert np.all((results.flows["dst"] - results.flows["src"]) % 8 == 1)


def test_the_ring_of_astra_sim_takes_as_long_as_the_ring_and_its_computation(shared_data):
    """Seven sums of 7 us each lie between the steps of the first half."""
    network = "ring:npus=8,rate=100Gbps,delay=1us"
    brought, own = (run(network, spec, MIB) for spec in (f"custom:file={shared_data / ASTRA_RING}", "ring"))
    assert brought.finish_time_ps == own.finish_time_ps + 7 * 7_000_000


def test_the_ring_of_astra_sim_is_refused_for_more_than_its_bytes_do(shared_data):
    with pytest.raises(WorkloadError, match=r"\.0\.et: sends 1835008 B, expected at least 2097152 B for all-reduce of"):
        run("ring:npus=8", f"custom:file={shared_data / ASTRA_RING}", 2 * MIB)


def test_the_ring_of_astra_sim_runs_as_xml(shared_data):
    """It says LL128: 16 bytes of payload for 15 of data."""
    results = run("ring:npus=8,rate=100Gbps,delay=1us", f"custom:file={shared_data / ASTRA_RING}.xml", MIB)
    assert results.flows["bytes"].tolist() == [-(-131072 * 16 // 15)] * (8 * 14)


def test_expected_traffic_is_what_is_sent(tmp_path):
    """What partitions are weighed by, of messages of fixed bytes that do not divide the buffer."""
    for me in range(3):
        others = [p for p in range(3) if p != me]
        sends = [et.send_node(p, "s", me, p, 401 + p) for p in others]
        receives = [et.recv_node(3 + p, "r", p, me, 401 + me) for p in others]
        et.write_trace(tmp_path / f"c.{me}.et", et.metadata(), sends + receives)
    graph = topologies.build("ring:npus=3")
    program = collective_program("all-to-all", 3, 1201, f"custom:file={tmp_path}/c", graph)
    flows, expected = simulate(graph, program).flows, traffic(program)
    sent = dict(
        zip(zip(flows["src"].tolist(), flows["dst"].tolist(), strict=True), flows["bytes"].tolist(), strict=True)
    )
    assert sent == {(me, p): 401 + p for me in range(3) for p in range(3) if p != me}
    pairs = zip(expected.src.tolist(), expected.dst.tolist(), strict=True)
    assert dict(zip(pairs, expected.bytes.tolist(), strict=True)) == sent
