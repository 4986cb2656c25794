"""NPUs with NICs of unlike rates: each connection takes one, in proportion to the rates."""

import numpy as np
import pytest

from nadi import partition
from nadi.configuration.sections import NetworkSection
from nadi.pdes import Settings, build_world, run
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.simulation.network_settings import network_settings
from nadi.topologies import GraphBuilder
from nadi.workload import collective_program
from tests.pdes.cases import BASE, Traces
from tests.pdes.compare import check, simulate

GBPS = 10**9
CASES = [(kind, name) for kind in ("all-reduce", "all-to-all") for name in ("ring", "direct", "nccl")]


def planes(npus, *rates_bps, nvlink_bps=0, hosts=2):
    """Return NPUs that are all on as many leaves as there are rates, with an NVSwitch for each host if wanted."""
    builder = GraphBuilder("planes", npus)
    for rate in rates_bps:
        leaf = builder.add_switches("leaf", 1)
        builder.add_cables(np.arange(npus), np.repeat(leaf, npus), rate, 500_000)
    host = np.arange(npus) // (npus // hosts)
    if nvlink_bps:
        builder.add_cables(np.arange(npus), builder.add_switches("nvswitch", hosts, kind=2)[host], nvlink_bps, 25_000)
    return builder.graph(host=host)


def every_pair(npus, size):
    """Return the program of a message from every NPU to every other, each with a queue pair."""
    traces = Traces(npus)
    for src in range(npus):
        for dst in range(npus):
            if src != dst:
                traces.message(src, dst, size)
    return traces.program()


@pytest.mark.parametrize("rates", [(300, 100), (100, 300), (100, 200, 300), (97, 89)])
def test_connections_are_as_in_plain_python(rates):
    graph = planes(6, *(rate * GBPS for rate in rates))
    check(graph, every_pair(6, 3000), Settings(**BASE))


@pytest.mark.parametrize("rates", [(300, 100), (250, 100, 50), (429.4967296, 100)])
def test_shares_of_ports_are_those_of_their_rates(rates):
    npus = 40
    graph = planes(npus, *(round(rate * GBPS) for rate in rates), nvlink_bps=3600 * GBPS)
    sent = simulate(graph, every_pair(npus, 1000), Settings(**BASE)).links["tx_bytes"]
    leaf = graph.link_dst - npus
    out = (graph.link_src < npus) & (leaf < len(rates))
    shares = np.bincount(leaf[out], sent[out]) / sent[out].sum()
    assert shares == pytest.approx(np.array(rates) / sum(rates), abs=0.04)
    far = np.array([(a, b) for a in range(npus) for b in range(npus) if graph.host[a] != graph.host[b]]).T
    loads = partition.link_loads(graph, *far, np.ones(far.shape[1]))
    expected = np.bincount(leaf[out], loads[out]) / loads[out].sum()
    assert expected == pytest.approx(np.array(rates) / sum(rates), abs=0.002)


def test_choices_are_the_same_in_parts_and_by_flows():
    graph = planes(8, 300 * GBPS, 100 * GBPS)
    program = every_pair(8, 3000)
    owner = np.arange(graph.nodes) % 3
    whole, parts = (run(build_world(graph, program, Settings(**BASE), owner=own)) for own in (None, owner))
    assert whole.digest == parts.digest
    flows = run(build_world(graph, program, network_settings(NetworkSection(fidelity="flow"))))
    used = [results.links["tx_bytes"] > 0 for results in (whole, flows)]
    out = graph.link_src < 8
    assert np.array_equal(used[0][out], used[1][out])


@pytest.mark.parametrize("rates", [(200, 200), (300, 100), (100, 100, 100, 100), (250, 150)])
@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_collectives_take_as_long_over_several_nics_as_over_one(rates, kind, algorithm, fidelity):
    settings = network_settings(NetworkSection(fidelity=fidelity))
    times_ps = []
    for nics in (rates, (400,)):
        graph = planes(4, *(rate * GBPS for rate in nics), hosts=4)
        program = collective_program(kind, 4, 64 << 20, algorithm, graph)
        times_ps.append(run(build_world(graph, program, settings)).finish_time_ps)
    several_ps, one_ps = times_ps
    if algorithm == "nccl" and kind == "all-reduce":  # has more channels over more NICs, so that their waits overlap
        assert 0.8 * one_ps < several_ps <= one_ps
    else:
        assert several_ps == pytest.approx(one_ps, rel=0.005)


def test_shares_of_odd_rates_are_small():
    graph = planes(2, 429_496_729_601, 100 * GBPS)
    assert graph.port_shares.tolist()[::2] == [13, 13, 3, 3]
    assert simulate(graph, every_pair(2, 100), Settings(**BASE)).counters["data_packets"] == 2


@pytest.mark.parametrize("rates", [(200, 200), (300, 100), (250, 150)])
@pytest.mark.parametrize("kind", ["all-reduce", "all-to-all"])
def test_the_formula_counts_all_nics(rates, kind):
    times_ps = []
    for nics in (rates, (400,)):
        graph = planes(4, *(rate * GBPS for rate in nics), hosts=4)
        program = collective_program(kind, 4, 64 << 20, "ring", graph)
        form = closed_form(
            *(graph, program, Settings(**BASE), kind, "ring", 0, np.arange(4), 64 << 20), IsolatedCollectives(0)
        )
        times_ps.append(form.time_ps)
    assert times_ps[0] == pytest.approx(times_ps[1], rel=0.005)
