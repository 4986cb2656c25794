"""Links with credits: the engine against the naive model, and what credits must show."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, strategies as st

from nadi.pdes import LinkFault, RunError, build_world, run
from nadi.simulation.network_settings import circular_waits
from nadi.topologies import build
from nadi.workload import CollectiveSettings
from tests.budgets import bounded
from tests.fabric.cases import Flows, Network, Scenario, credit_scenarios, scenarios, settings_of, star
from tests.fabric.compare import check, owners, same
from tests.fabric.test_against_naive import ADAPTIVE, BASE, CABLES, CROWD, EACH, EVEN, LONG, ROW
from tests.failures.common import faults_of
from tests.pdes.cases import Traces


@pytest.mark.slow
@bounded(40)
@given(credit_scenarios())
def test_random_runs_agree(scenario):
    found = check(*scenario.build(), lps=scenario.lps)
    assert found.reference.unfinished() == []
    assert found.reference.count["dropped_packets"] == 0
    assert found.reference.count["bytes_sent"] == found.reference.count["bytes_received"]


ONE_PACKET = {"virtual_lanes": 2, "lane_buffer_bytes": 1024, "credit_unit_bytes": 64}
WEIGHTS = {"virtual_lanes": 4, "lane_buffer_bytes": 4000, "lane_weights": (1, 20, 40, 80), "high_lanes": 1}
RUNS = {
    "even": Scenario(star(5, delay=100_000), EVEN, ONE_PACKET, BASE),
    "all to all": Scenario(star(5, [100, 100, 100, 50, 25], 1000), EACH, ONE_PACKET, BASE | {"window_bytes": 20_000}),
    "row": Scenario(ROW, CROWD, WEIGHTS, BASE | {"p2p_class": 3}),
    "returned late": Scenario(ROW, CROWD, WEIGHTS | {"credit_return_bytes": 3000}, BASE | {"p2p_class": 2}),
    "high, limited": Scenario(CABLES, EACH, WEIGHTS | {"high_limit_bytes": 0}, BASE | {"p2p_class": 3}),
    "control": Scenario(ROW, CROWD, WEIGHTS, BASE, (("rtt",), 1.0)),
    "adaptive": Scenario(CABLES, LONG, ONE_PACKET, ADAPTIVE | {"window_bytes": 60_000}),
}


@cache
def agreed(name):
    parts = RUNS[name].build()
    return parts, check(*parts)


@pytest.mark.parametrize("name", RUNS)
def test_fixed_runs_agree_on_any_partition(name):
    (graph, program, chosen), found = agreed(name)
    assert found.results.links["paused_ps"].max() > 0
    for lps in (2, 3):
        owner = owners(graph, lps, chosen.seed)
        assert same(found.results, run(build_world(graph, program, chosen, owner))) == []


@pytest.mark.parametrize("spec", ["dragonfly:p=1,a=2,h=1", "dragonfly-plus:p=1,leaves=2", "slim-fly:q=3,p=1"])
@pytest.mark.parametrize("p2p_class", [0, 1])
def test_lanes_rise_on_the_way(spec, p2p_class):
    graph = build(spec)
    npus = range(graph.npus)
    posted = Flows(tuple((npu, (npu * 3 + shift) % graph.npus, 9000, 0) for shift in (1, 2) for npu in npus))
    posted = posted._replace(messages=tuple(each for each in posted.messages if each[0] != each[1]))
    rules = {"virtual_lanes": 4, "lane_buffer_bytes": 1100, "credit_unit_bytes": 64}
    chosen = settings_of(rules, **BASE | {"p2p_class": p2p_class})
    program = posted.program(graph.npus)
    found = check(graph, program, chosen)
    assert found.results.links["paused_ps"].max() > 0
    for lps in (2, 3):
        assert same(found.results, run(build_world(graph, program, chosen, owners(graph, lps, 5)))) == []


# What credits must show

PACKET_PS, FRAME_PS, DELAY_PS = 80_000, 640, 500_000  # 1000 bytes and 8 bytes at 100 Gb/s
ROUND_TRIP_PS = PACKET_PS + DELAY_PS + FRAME_PS + DELAY_PS


@pytest.mark.parametrize("packets", [1, 2, 3, 5, 10, 13, 14, 20, 50])
def test_throughput_is_the_buffer_per_round_trip(packets):
    """A buffer of k packets lets k go in each round trip: min(1, B / (round trip x rate)), exactly."""
    count = 40 * packets
    rules = {"virtual_lanes": 1, "lane_buffer_bytes": 1000 * packets, "credit_unit_bytes": 50}
    chosen = {"mtu_bytes": 918, "window_bytes": 10**6, "ack_bytes": 10}
    found = check(*Scenario(star(2), Flows(((0, 1, 918 * count, 0),)), rules, chosen).build())
    idle_ps = 2 * (PACKET_PS + DELAY_PS)
    burst_ps = max(ROUND_TRIP_PS, packets * PACKET_PS)
    last_begins_ps = (count // packets - 1) * burst_ps + (packets - 1) * PACKET_PS
    assert found.results.finish_time_ps == last_begins_ps + idle_ps


def test_a_unit_too_few_is_a_packet_too_few():
    times = []
    for size in (1999, 2000):
        rules = {"virtual_lanes": 1, "lane_buffer_bytes": size, "credit_unit_bytes": 1}
        chosen = {"mtu_bytes": 918, "window_bytes": 10**6, "ack_bytes": 10}
        results = check(*Scenario(star(2), Flows(((0, 1, 918 * 100, 0),)), rules, chosen).build()).results
        times.append(results.finish_time_ps - 2 * (PACKET_PS + DELAY_PS))
    assert times == [99 * ROUND_TRIP_PS, 49 * ROUND_TRIP_PS + PACKET_PS]


INCAST, VICTIM = 5, 300_000
"""Senders of the incast, and bytes that the victim sends."""
TWO_TIERS = Network(
    INCAST + 3,
    (0, 0),
    (
        *((npu, INCAST + 3, 100, 100_000) for npu in range(INCAST + 1)),  # the last is the victim's sender
        (INCAST + 1, INCAST + 4, 100, 100_000),  # the incast's receiver
        (INCAST + 2, INCAST + 4, 100, 100_000),  # the victim's receiver
        (INCAST + 3, INCAST + 4, 400, 100_000),
    ),
)


def victim_ps(lanes, senders):
    """Time of a collective of two NPUs, in lane 0, beside an incast in the last lane."""
    traces = Traces(INCAST + 3)
    traces.collective((INCAST, INCAST + 2), 0, VICTIM, "victim")
    for sender in range(senders):
        traces.message(sender, INCAST + 1, 10 * VICTIM, 0)
    rules = {"virtual_lanes": lanes, "lane_buffer_bytes": 20_000}
    chosen = settings_of(rules, mtu_bytes=918, p2p_class=lanes - 1)
    program = traces.program({"victim": (INCAST, INCAST + 2)}, CollectiveSettings({"all-reduce": "direct"}))
    results = run(build_world(TWO_TIERS.graph(), program, chosen))
    first, behind = results.npu_node_ptr[INCAST : INCAST + 2]
    return int(results.node_finish_ps[first:behind].max())


def test_one_lane_saturates_the_tree_and_two_do_not():
    """The victim shares the link of the incast, which has room for both, but not its receiver."""
    alone = victim_ps(1, 0)
    assert victim_ps(1, INCAST) > 3 * alone
    assert victim_ps(2, INCAST) < 1.05 * alone


def ring_of_switches(hosts):
    """Five switches in a ring; each NPU sends to the one two switches on, so every link waits for the next."""
    npus = 5 * hosts
    cables = [(npu, npus + npu // hosts, 100, 1000) for npu in range(npus)]
    cables += [(npus + i, npus + (i + 1) % 5, 100, 1000) for i in range(5)]
    messages = tuple((npu, (npu + 2 * hosts) % npus, 60_000, 0) for npu in range(npus))
    return Network(npus, (0,) * 5, tuple(cables)), Flows(messages)


def test_a_deadlock_of_one_lane_on_a_ring_is_named():
    network, posted = ring_of_switches(3)
    rules = {"virtual_lanes": 1, "lane_buffer_bytes": 2000}
    graph, program, chosen = Scenario(network, posted, rules, BASE | {"p2p_class": 0}).build()
    with pytest.raises(RunError, match=r"deadlock: every link of .* waits for the next, without credits") as stalled:
        run(build_world(graph, program, chosen))
    assert "15 -> 16 -> 17 -> 18 -> 19 -> 15" in str(stalled.value)
    (warning,) = circular_waits(graph, chosen)  # before the run
    assert "in a circle: s1 -> s2 -> s3 -> s4 -> s0 -> s1" in warning
    tree, _, chosen = RUNS["even"].build()
    assert circular_waits(tree, chosen) == []
    enough = {"virtual_lanes": 1, "lane_buffer_bytes": 10**6}
    assert check(*Scenario(network, posted, enough, BASE | {"p2p_class": 0}).build()).results.finish_time_ps > 0


LOADS = st.one_of(credit_scenarios(), scenarios(pfc=True))


@pytest.mark.full
@bounded(30_000)  # a third of them where they are the same ones in every run
@given(LOADS)
def test_random_loads_never_stall(scenario):
    """Lossless fabrics without circles of links: stars, rows and leaf-spines, with credits or with pauses."""
    results = run(build_world(*scenario.build()))
    assert results.counters["dropped_packets"] == 0


def test_a_buffer_below_a_packet_is_refused():
    rules = {"virtual_lanes": 1, "lane_buffer_bytes": 960, "credit_unit_bytes": 64}
    with pytest.raises(RunError, match=r"of 15 to 15 units of 64 bytes; expected at least the 16 of a packet"):
        build_world(*Scenario(star(2), Flows(((0, 1, 918, 0),)), rules, {"mtu_bytes": 918}).build())


@pytest.mark.parametrize("until", [400_000_000, 20_000_000])
def test_credits_of_packets_that_a_fault_loses_come_back(until):
    # a buffer of two packets, and more than two are lost
    graph, program, chosen = Scenario(
        star(3), Flows(((0, 1, 400_000, 0), (2, 1, 400_000, 0))), ONE_PACKET, BASE
    ).build()
    up = int(graph.out_links(0)[0])
    faults = faults_of(graph, [LinkFault((up, up ^ 1), 5_000_000, until, down=True)])
    chosen = replace(chosen, faults=faults, rto_ps=10_000_000, max_retries=100)
    sim = build_world(graph, program, chosen)
    results = run(sim)
    assert results.counters["lost_packets"] > 2
    world = sim.lps[0].world
    lanes = world.net.lane[: graph.links * int(world.net.const.queues)].free_units.reshape(graph.links, -1)
    assert (lanes == 1024 // 64).all()
    for lps in (2, 3):
        assert same(results, run(build_world(graph, program, chosen, owners(graph, lps, 3)))) == []
