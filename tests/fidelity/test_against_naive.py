"""The kernel against a model in plain Python, to the picosecond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import pdes
from nadi.pdes.fidelity import fidelity
from nadi.topologies import build
from nadi.workload import KINDS as COLLECTIVES
from nadi.workload import collective_program
from tests.budgets import bounded
from tests.every import programs
from tests.fidelity.naive import MODELS, Aware, by_hand
from tests.fidelity.running import KINDS
from tests.pdes.cases import Traces, networks, workloads
from tests.pdes.compare import differences


@st.composite
def runs(draw):
    """Spec of a network, Workload, Settings."""
    spec = draw(networks())
    model = fidelity(
        draw(st.sampled_from(KINDS)),
        endpoint_delay_ps=draw(st.sampled_from([0, 0, 1, 10_000, 3_000_000])),
        reduction_bandwidth_bps=draw(st.sampled_from([None, None, 8e12 / 0.625, 4e11, 8e9])),
        resolution_ps=draw(st.sampled_from([1, 1, 1000, 7])),
    )
    chosen = pdes.Settings(fidelity=model, seed=draw(st.integers(0, 2**31)), concurrent_collectives=draw(st.booleans()))
    return spec, draw(workloads(build(spec).npus)), chosen


def check(graph, program, chosen):
    results = pdes.run(pdes.build_world(graph, program, chosen))
    assert differences(results, by_hand(graph, program, chosen)) == []
    return results


@bounded(80)
@given(runs())
def test_random_runs_agree(case):
    spec, workload, chosen = case
    graph = build(spec)
    check(graph, workload.program(graph.npus), chosen)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_and_algorithm_agrees(collective, kind):
    graph = build("stack:dims=Ring(3)_Switch(2),rates=100Gbps_40Gbps,delays=300ns,switch_latency=50ns")
    model = fidelity(kind, endpoint_delay_ps=10_000, reduction_bandwidth_bps=8e12 / 2.5, resolution_ps=1000)
    for _, fabric, program in programs(collective, graph, 7001):
        if not program.schedules.launch_ps.any():  # the naive model has no launches and no waits of lanes
            check(fabric, program, pdes.Settings(fidelity=model))


@pytest.mark.parametrize("kind", KINDS)
def test_pools_grow(kind):
    """More messages at once, connections and collectives than there is room for at first."""
    traces = Traces(6)
    for seq in range(200):
        for src in range(6):
            traces.message(src, (src + 1 + seq % 5) % 6, 100 * seq, tag=seq)
    for number in range(90):
        traces.collective(range(6), 0, 600 + number, group=f"g{number}")
    model = fidelity(kind, endpoint_delay_ps=1000, reduction_bandwidth_bps=8e12 / 1.0)
    program = traces.program({f"g{number}": tuple(range(6)) for number in range(90)})
    check(build("ring:npus=6"), program, pdes.Settings(fidelity=model))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_messages_and_events_are_used_again(kind):
    """A ring has a message of each NPU under way, however many steps it has."""
    npus = 64
    chosen = pdes.Settings(fidelity=fidelity(kind), record_nodes=False, record_flows=False)
    sim = pdes.build_world(build(f"ring:npus={npus}"), collective_program("all-reduce", npus, npus << 10), chosen)
    results = pdes.run(sim)
    assert results.counters["flows"] == 2 * 63 * npus
    assert sim.lps[0].world.messages.queue.fresh <= 3 * npus
    assert len(sim.lps[0].world.qps.msg_free) == 4 * npus + 2 * 63
    assert len(results.flows["src"]) == 0


class LastSenderFirst(Aware):
    def rank(self, message):
        return -message.src, message.number


class LastMessageFirst(Aware):
    def rank(self, message):
        return message.src, -message.number


@pytest.mark.parametrize("broken", [LastSenderFirst, LastMessageFirst])
def test_who_goes_first_at_one_moment_is_compared(monkeypatch, broken):
    traces = Traces(4)
    for src in range(3):
        traces.message(src, 3, 1000)
        traces.message(src, 3, 2000, tag=1)
    chosen = pdes.Settings(fidelity=fidelity("congestion_aware"))
    graph, program = build("switch:npus=4"), traces.program()
    results = check(graph, program, chosen)
    monkeypatch.setitem(MODELS, "congestion_aware", broken)
    assert differences(results, by_hand(graph, program, chosen)) != []
