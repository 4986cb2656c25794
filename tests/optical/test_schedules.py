"""Schedules of circuits: routes against a search over all moments, flows in closed form, ways of running."""

import pytest
from hypothesis import given, strategies as st

from nadi.pdes import LinkFault
from nadi.pdes.construction.circuits import Circuit, Circuits
from nadi.pdes.construction.faults import Faults
from nadi.pdes.fidelity import fidelity
from nadi.workload import pairs_program
from tests.budgets import bounded
from tests.failures.common import cable, faults_of
from tests.optical.common import HELD, LEAVES, MTU, ROTOR, SIZE, US, optical_fabric, simulate, wire_ps
from tests.optical.test_circuits import CHANGE, DETOUR, PAIR
from tests.pdes.cases import Traces

FOREVER = 1 << 62


@st.composite
def schedules(draw):
    """Faults, and circuits in windows of a period of 20 ps, or once, and what is down at each time by definition."""
    period = draw(st.sampled_from([0, 20]))
    circuits = []
    for number in range(draw(st.integers(0, 3))):
        bounds = sorted(draw(st.sets(st.integers(0, 30), min_size=0, max_size=6)))
        windows = tuple(zip(bounds[::2], bounds[1::2], strict=False))
        if period:
            windows = tuple(each for each in windows if each[0] < 20 and each[1] <= 20 + min([20, *bounds]))
        circuits.append(Circuit(number, windows, windows if draw(st.booleans()) else None))
    faults = []
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, 60))
        links = draw(st.sampled_from([(0, 1), (6, 7), (8, 9)]))
        faults.append(LinkFault(links, at, draw(st.sampled_from([FOREVER, at + 5, at + 30])), down=True))
    return Faults(tuple(faults), detection_time_ps=draw(st.integers(0, 9)), circuits=Circuits(tuple(circuits), period))


def avoided(faults, time):
    """The links that routes avoid at a time, by definition."""
    known = time - faults.detection_time_ps
    period = faults.circuits.period_ps
    links = {link for fault in faults.links if fault.at_ps <= known < fault.until_ps for link in fault.links}
    for each in faults.circuits.circuits:
        moments = [time % period, time % period + period] if period else [time]
        if each.routed is not None and not any(a <= moment < b for a, b in each.routed for moment in moments):
            links |= set(each.links)
    return links


@bounded(600)
@given(schedules())
def test_routes_avoid_what_is_down_or_dark_at_each_time(faults):
    once, repeated = faults.route_changes()
    period = faults.circuits.period_ps
    assert [ps for ps, _ in (*once, *repeated)] == sorted(ps for ps, _ in (*once, *repeated))
    changes = [*once, *((ps + turn * period, links) for turn in range(10 if period else 1) for ps, links in repeated)]
    for time in range(180):
        found = [links for ps, links in changes if ps <= time]
        assert (found[-1] if found else frozenset()) == avoided(faults, time)


@pytest.mark.parametrize("rule", [HELD, {"routes": "epoch"}])
def test_a_flow_over_a_rotor_has_the_rate_of_its_windows(rule):
    packets, npus = 2000, 6
    graph, faults = optical_fabric(LEAVES.format(npus), ROTOR | rule)
    results = simulate(graph, pairs_program([3] + [-1] * 5, packets * MTU), faults=faults, fidelity=fidelity("flow"))
    (on, off) = next(
        each.lit[0] for each in faults.circuits.circuits if set(graph.link_src[list(each.links)]) == {6, 9}
    )
    left_ps, turn = packets * SIZE * 80, 0  # 80 ps per byte
    while left_ps > off - on:
        left_ps, turn = left_ps - (off - on), turn + 1
    last_out = turn * faults.circuits.period_ps + on + left_ps
    expected = last_out + 3 * US + 2 * wire_ps(100)
    assert abs(results.finish_time_ps - expected) <= 4 + turn


def test_a_flow_moves_to_the_spine_when_its_circuit_goes_dark():
    packets = 600
    graph, faults = optical_fabric(DETOUR, PAIR | {"at": ["0s", "100us"]})
    results = simulate(graph, pairs_program([1, -1], packets * MTU), faults=faults, fidelity=fidelity("flow"))
    left_bytes = packets * SIZE - CHANGE * 60e9 / 8e12
    # at the rate of the spine; four links of 1 us, and a packet's time on all of them but the slowest
    expected = CHANGE + left_bytes * 8e12 / 25e9 + 4 * US + 2 * wire_ps(100) + wire_ps(25)
    # routes change at the next begin of a cell, which is as long as the smallest packet is on a link
    assert expected - 10 <= results.finish_time_ps <= expected + US + wire_ps(100, 82) + 10


def test_a_long_idle_time_costs_nothing():
    """Two messages, hours apart, while routes change every 10 us."""
    graph, faults = optical_fabric(LEAVES.format(4), ROTOR | {"slot": "10us", "dark": "1us", "in_flight": "hold"})
    traces = Traces(4)
    traces.message(0, 1, MTU)
    later = traces.compute(0, 2 * 3600 * 10**6, deps=(0,))
    traces.message(0, 1, MTU, deps=((later,), ()))
    traces.message(0, 1, MTU, tag=1)
    program = traces.program()
    first, _, last = sorted(simulate(graph, program, faults=faults).flows["finish_ps"].tolist())
    period = faults.circuits.period_ps
    assert (last - first) // period == 2 * 3600 * 10**12 // period
    (window,) = (each.lit[0] for each in faults.circuits.circuits if each.cable == cable(graph, 4, 5)[0] // 2)
    sent = (last - 2 * US - wire_ps(100)) % period
    assert window[0] <= sent - wire_ps(100) < sent <= window[1]


def test_flows_with_a_repeating_schedule_end():
    graph, faults = optical_fabric(LEAVES.format(4), ROTOR | HELD)
    results = simulate(graph, pairs_program([1, -1, -1, -1], MTU), faults=faults, fidelity=fidelity("flow"))
    assert results.counters["events"] < 200


def test_a_fault_and_a_schedule_go_together():
    """A circuit of a rotor that fails for a while: packets that it loses then are sent again."""
    graph, faults = optical_fabric(LEAVES.format(4), ROTOR | {"routes": "epoch"})
    down = LinkFault(cable(graph, 4, 5), 120 * US, 600 * US, down=True)
    both = Faults((down,), detection_time_ps=US, circuits=faults.circuits)
    routings = {
        links: graph.routing.without(graph, links) for changes in both.route_changes() for _, links in changes if links
    }
    both = Faults((down,), detection_time_ps=US, circuits=faults.circuits, routings=routings)
    results = simulate(graph, pairs_program([1, -1, -1, -1], 400 * MTU), faults=both, rto_ps=100 * US, max_retries=99)
    assert results.counters["lost_packets"] > 0
    assert results.flows["finish_ps"][0] > 0
    assert faults_of(graph, [down]).routings.keys() <= routings.keys() | {frozenset(down.links)}
