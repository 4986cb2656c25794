"""Collectives that switches reduce, packet by packet: times, what links carry, congestion control, losses."""

import numpy as np
import pytest

from nadi import pdes, topologies
from nadi.pdes.nic import congestion
from nadi.simulation.assembly import engine_inputs, results_of_traces
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.workload import collective_program
from nadi.workload.collectives import known_algorithms
from tests.closed_forms import form_of_all
from tests.nonempty import nonempty
from tests.scenarios.running import check

MIB = 1 << 20
HEADER, ACK, MTU = 82, 86, 4096
KINDS = known_algorithms()["in-network"].KINDS


def run(spec, kind, size_bytes, algorithm, **chosen):
    """Graph, program of the user, and results with aggregators and without."""
    graph = topologies.build(spec)
    program = collective_program(kind, graph.npus, size_bytes, algorithm, graph)
    settings = pdes.Settings(**chosen)
    fabric, running, _ = engine_inputs(graph, program)
    results = pdes.run(pdes.build_world(fabric, running, settings))
    check(results, running, settings)
    return graph, program, results, results_of_traces(results, graph, program)


def ratio(spec, kind, size_bytes, algorithm, **chosen):
    """Time over the formula's."""
    graph, program, results, _ = run(spec, kind, size_bytes, algorithm, **chosen)
    settings = pdes.Settings(**chosen)
    formula = form_of_all(graph, program, kind, algorithm, settings, isolated=IsolatedCollectives(0))
    return results.finish_time_ps / formula.time_ps


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "barrier"])
@pytest.mark.parametrize("spec", ["switch:npus=5", "leaf-spine:leaves=4,hosts_per_leaf=4,spines=4", "fat-tree:k=4"])
def test_closed_form(spec, kind):
    assert ratio(spec, kind, 8 * MIB, "in-network") == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("npus", [2, 8, 16])
def test_an_all_reduce_on_one_switch(npus):
    """Chunks of full packets up, each summed when the last member's has come, and down: S, one chunk and the ways."""
    chunk_packets, chunks, rate_bps = 16, 64, 400e9
    _, _, results, _ = run(f"switch:npus={npus},delay=500ns", "all-reduce", chunks * 65_536, "in-network:chunks=64")
    packet_ps, answer_ps = 8e12 * (MTU + HEADER) / rate_bps, 8e12 * ACK / rate_bps
    ways_ps = 2 * (500_000 + 100_000)
    first_ps = chunk_packets * packet_ps
    rest_ps = chunks * chunk_packets * (packet_ps + answer_ps)
    assert results.finish_time_ps == pytest.approx(first_ps + rest_ps + ways_ps, rel=0.002)


def test_each_link_of_the_tree_carries_the_buffer_once_each_way():
    """However many members there are below it; other links carry nothing."""
    size = 4 * MIB
    graph, _, _, results = run("leaf-spine:leaves=4,hosts_per_leaf=8,spines=2", "all-reduce", size, "in-network")
    packets = size // MTU
    once = size + packets * (HEADER + ACK)
    sent = results.links["tx_bytes"]
    used = np.flatnonzero(sent)
    assert len(used) == 2 * (32 + 4)
    assert sent[used].tolist() == [once] * len(used)
    assert len(sent) == graph.links


def test_bus_bandwidth_passes_that_of_rings():
    """2 (n-1)/n of the link for all switches, 2 (n-1)/(n+1) for NVLS, 1 for a ring; less headers and answers.

    Acknowledgements go first, as they do at switches that share a buffer.
    """
    n, size, buffer = 8, 64 * MIB, pdes.SharedBuffer(buffer_bytes=20_000_000)
    found = {}
    for algorithm in ("in-network", "nvls", "ring"):
        _, _, results, _ = run(f"switch:npus={n},delay=100ns", "all-reduce", size, algorithm, switch=buffer)
        found[algorithm] = 2 * (n - 1) / n * size / (results.finish_time_ps * 1e-12) / 50e9
    wire = MTU / (MTU + HEADER + ACK)
    assert found["in-network"] == pytest.approx(2 * (n - 1) / n * wire, rel=0.01)
    assert found["nvls"] == pytest.approx(2 * (n - 1) / (n + 1) * wire, rel=0.02)
    assert found["ring"] == pytest.approx(wire, rel=0.01)


@pytest.mark.parametrize("kind", known_algorithms()["nvls"].KINDS)
@pytest.mark.parametrize("npus", [2, 4, 8])
def test_nvls_closed_form(kind, npus):
    assert ratio(f"switch:npus={npus}", kind, 16 * MIB, "nvls") == pytest.approx(1.0, rel=0.01)


RAILS = "rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2,spines=1"


@pytest.mark.parametrize("size_bytes", [4 * MIB, 16 * MIB])
def test_nvls_and_sharp_closed_form(size_bytes):
    assert ratio(RAILS, "all-reduce", size_bytes, "nvls-sharp") == pytest.approx(1.0, rel=0.01)


def test_nics_carry_a_share_once_with_switches_and_twice_with_trees():
    """Of S bytes and g members of a host, S/g over each NIC with SHARP; inner hosts of a double tree get two shares."""
    size = 4 * MIB
    most = {}
    for name in ("nvls-sharp", "nvls-tree"):
        graph, _, _, results = run(RAILS, "all-reduce", size, name)
        nics = (graph.link_src < 16) & (graph.node_kind[graph.link_dst] != topologies.NVSWITCH)
        most[name] = results.links["tx_bytes"][nics].max() / (size / 4)
    assert most["nvls-sharp"] == pytest.approx(1.04, abs=0.01)
    assert 1.5 < most["nvls-tree"] <= 2.1


def test_switches_beat_what_members_do_by_themselves():
    times = {
        name: run(RAILS, "all-reduce", 16 * MIB, name)[2].finish_time_ps
        for name in ("nvls-sharp", "nvls-tree", "nccl", "ring")
    }
    assert times["nvls-sharp"] < times["nvls-tree"] < times["nccl"]
    assert times["nvls-sharp"] < times["ring"] / 2


def test_a_tree_beats_rings_where_latency_counts():
    """64 KiB among 128 NPUs on three tiers: a way up and down in place of 254 steps."""
    spec = "fat-tree:k=8,delay=500ns"
    times = {
        name: run(spec, "all-reduce", 65_536, name)[2].finish_time_ps
        for name in ("in-network", "ring", "halving-doubling")
    }
    assert times["in-network"] * 3 < times["halving-doubling"] < times["ring"]


@pytest.mark.parametrize("kind", KINDS)
def test_shared_buffers_pauses_and_dcqcn(kind):
    """Lossless: the incast at an aggregator's children is none, since its port is as fast as all others."""
    buffer = pdes.SharedBuffer(buffer_bytes=2_000_000)
    chosen = {"switch": buffer, "congestion_control": congestion.control("dcqcn")}
    spec = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps"
    _, _, results, _ = run(spec, kind, MIB, "in-network", **chosen)
    assert results.counters["dropped_packets"] == 0


def test_lost_packets_are_sent_again():
    """Queues of two packets between members and aggregators."""
    _, program, results, without = run(
        "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,uplink_rate=50Gbps",
        "all-reduce",
        MIB,
        "in-network",
        queue_limit_bytes=9000,
        rto_ps=50_000_000,
        max_retries=1000,
    )
    assert results.counters["dropped_packets"] > 0
    assert len(without.node_finish_ps) == program.npus


def test_the_engine_wants_aggregators():
    graph = topologies.build("switch:npus=4")
    program = collective_program("all-reduce", 4, MIB, "in-network", graph)
    with pytest.raises(pdes.RunError, match="needs switches that reduce"):
        pdes.build_world(graph, program, pdes.Settings())


def test_idle_npus_are_none():
    graph = topologies.build("switch:npus=4")
    with pytest.raises(pdes.RunError, match="the program has 3 NPUs, the fabric 4"):
        engine_inputs(graph, collective_program("all-reduce", 3, MIB, "in-network", graph))


def test_what_the_user_sees():
    """NPUs, links and messages of the fabric, those of its switch too; times and digest of the whole run."""
    graph, program, results, without = run("switch:npus=4", "all-reduce", MIB, "in-network")
    assert len(results.npu_node_ptr) == 6
    assert without.npu_node_ptr.tolist() == [0, 1, 2, 3, 4]
    assert all(len(column) == graph.links for column in nonempty(without.links.values()))
    ends = without.flows["src"], without.flows["dst"]
    assert len(ends[0]) == results.counters["flows"]
    assert np.array_equal(np.unique(np.minimum(*ends)), range(4))
    assert np.array_equal(np.unique(np.maximum(*ends)), [4])  # the switch
    assert (without.digest, without.finish_time_ps) == (results.digest, results.finish_time_ps)
    assert results_of_traces(without, graph, program) is without
    assert len(program.in_network) == 1
