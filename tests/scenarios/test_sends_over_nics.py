"""A message of a trace over several NICs of its sender takes as long as over one of the same rate together."""

from dataclasses import replace

import numpy as np
import pytest

from nadi.configuration.sections import NetworkSection
from nadi.et import metadata, recv_node, send_node, table_of
from nadi.launching.progress import NoProgress
from nadi.pdes import RunError, Settings, build_world, run
from nadi.simulation.assembly import engine_inputs, results_of_traces
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.network_settings import network_settings
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from tests.pdes.cases import BASE, Traces
from tests.pdes.compare import check
from tests.pdes.test_places import GBPS, planes

SIZE = 64 << 20
RATES = [(200, 200), (300, 100), (250, 150), (100, 100, 100, 100)]


def pipeline(graph, *sizes, **settings):
    """The program of a message of each size from every NPU to the next, the later after the earlier."""
    traces = Traces(graph.npus)
    for size in sizes:
        for src in range(graph.npus - 1):
            before = [[len(traces.nodes[npu]) - 1] if traces.nodes[npu] else [] for npu in (src, src + 1)]
            traces.message(src, src + 1, size, 5, before)
    npus = graph.npus
    chosen = CollectiveSettings(**settings)
    return build_program(traces.tables(), range(npus), npus, {}, ComputeModel("trace"), chosen, fabric=graph)


def took(graph, program, settings, **parts):
    """Results by the rows of traces."""
    fabric, divided, _ = engine_inputs(graph, program)
    return results_of_traces(run(build_world(fabric, divided, settings, **parts)), graph, program)


def time_ps(graph, program, fidelity, **network):
    settings = network_settings(NetworkSection(fidelity=fidelity, **network))
    if fidelity != "closed-form":
        return took(graph, program, settings).finish_time_ps
    costs = CollectiveCosts(graph, settings)
    folded = running.laid_out(graph, program, costs)
    costed = running.costed(folded, costs, CollectiveSettings())
    return running.run(graph, folded, costed, costs, settings, NoProgress()).finish_time_ps


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("fidelity", ["packet", "flow", "closed-form"])
def test_as_long_as_over_one_nic(rates, fidelity):
    several_ps, one_ps = (
        time_ps(graph, pipeline(graph, SIZE), fidelity)
        for graph in (planes(3, *(rate * GBPS for rate in nics), hosts=3) for nics in (rates, (400,)))
    )
    lone_ps = 2 * SIZE * 8e12 / 400e9
    assert lone_ps < several_ps < 1.09 * lone_ps  # headers, and latencies
    # packets on slower links wait longer for acknowledgements behind others: 4.5 % of four NICs of 100 Gb/s
    assert several_ps == pytest.approx(one_ps, rel=0.045 if fidelity == "packet" else 0.005)


@pytest.mark.parametrize("algorithm", [{}, {"all-to-all": "nccl:generation=h100"}])
@pytest.mark.parametrize("rates", [(200, 200), (300, 100)])
@pytest.mark.parametrize("size", [1, 30_000, 16 << 20])
def test_as_long_by_packets_and_by_closed_forms(rates, size, algorithm):
    graph = planes(4, *(rate * GBPS for rate in rates), nvlink_bps=3600 * GBPS, hosts=2)
    traces = Traces(4)
    traces.message(0, 2, size)
    chosen = CollectiveSettings(algorithm)
    program = build_program(traces.tables(), range(4), 4, {}, ComputeModel("trace"), chosen, fabric=graph)
    assert sorted(program.node_parts.tolist()) == [len(rates) if rates[0] == 200 else 4] * 2
    by_packets = time_ps(graph, program, "packet")
    assert time_ps(graph, program, "closed-form") == pytest.approx(by_packets, rel=0.02 if size > 1 else 0.05)


def test_rows_are_those_of_the_trace_and_messages_those_of_the_parts():
    graph = planes(3, 300 * GBPS, 100 * GBPS, hosts=3)
    program = pipeline(graph, 40_000, 3)
    results = took(graph, program, Settings(**BASE))
    assert np.diff(results.npu_node_ptr).tolist() == [2, 4, 2]
    assert results.flows["bytes"].sum() == 2 * 40_003
    assert len(results.flows["bytes"]) == 4 * 4
    assert sorted(set(results.flows["seq"].tolist())) == list(range(8))
    ends = results.node_finish_ps[results.npu_node_ptr[1] :][:1]  # NPU 1 has received all parts of the first message
    first = (results.flows["src"] == 0) & (results.flows["seq"] < 4)
    assert ends[0] == results.flows["finish_ps"][first].max()


@pytest.mark.parametrize("rendezvous_bytes", [0, 10_000])
@pytest.mark.parametrize(
    "network",
    [
        {},
        {"congestion_control": "dcqcn"},
        {"buffer": "64KB", "queue_limit": None, "pfc": False, "ecn": False},
        {"endpoint_delay": "3us"},
        {"selective_repeat": True, "load_balancing": "spray"},
    ],
)
def test_one_digest_in_parts_and_whole(network, rendezvous_bytes):
    graph = planes(6, 300 * GBPS, 100 * GBPS, nvlink_bps=3600 * GBPS, hosts=3)
    program = pipeline(graph, 100_000, 3, 5000)
    settings = network_settings(NetworkSection.model_validate(network))
    settings = replace(settings, rendezvous_bytes=rendezvous_bytes)
    owner = np.arange(graph.nodes) % 3
    whole, parts = (took(graph, program, settings, owner=own) for own in (None, owner))
    assert whole.digest == parts.digest
    assert whole.node_finish_ps.tolist() == parts.node_finish_ps.tolist()


@pytest.mark.parametrize("settings", [{}, {"queue_limit_bytes": 4000}])
@pytest.mark.parametrize("rates", [(300, 100), (97, 89)])
def test_every_part_is_as_in_plain_python(rates, settings):
    graph = planes(4, *(rate * GBPS for rate in rates), hosts=4)
    _, divided, _ = engine_inputs(graph, pipeline(graph, 30_000, 3))
    check(graph, divided, Settings(**BASE, **settings))


def test_a_missing_part_is_named_by_the_row_of_the_trace():
    graph = planes(2, 200 * GBPS, 200 * GBPS)
    nodes = [send_node(0, "s", 0, 1, 100, 0), send_node(1, "s", 0, 1, 100, 7)], [recv_node(0, "r", 0, 1, 100, 0)]
    nodes[1].append(recv_node(1, "r", 0, 1, 100, 7, deps=[2]))
    nodes[1].append(recv_node(2, "r", 0, 1, 100, 9))
    nodes[0].append(send_node(2, "s", 0, 1, 100, 9, deps=[3]))
    nodes[0].append(recv_node(3, "r", 1, 0, 100, 9))
    nodes[1].append(send_node(3, "s", 1, 0, 100, 9, deps=[1]))
    tables = [table_of(metadata(), own, f"t.{npu}.et") for npu, own in enumerate(nodes)]
    program = build_program(tables, range(2), 2, {}, ComputeModel("trace"), fabric=graph)
    with pytest.raises(RunError, match=r"npu 0 row 3: receive \d of tag 9 waits for npu 1") as found:
        took(graph, program, Settings(**BASE))
    assert "npu 1 row 2: receive" in str(found.value)
