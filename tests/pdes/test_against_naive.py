import dataclasses

import pytest
from hypothesis import given

from nadi.pdes import Settings
from nadi.topologies import GraphBuilder, build
from nadi.workload import KINDS, collective_program
from tests.budgets import bounded
from tests.every import programs
from tests.pdes import naive
from tests.pdes.cases import BASE, Traces, runs
from tests.pdes.compare import by_hand, check, differences, simulate


def agree(case):
    spec, workload, chosen = case
    graph = build(spec)
    check(graph, workload.program(graph.npus), chosen)


@bounded(120)
@given(runs(lossy=False))
def test_random_runs_agree_without_losses(case):
    agree(case)


@bounded(120)
@given(runs(lossy=True))
def test_random_runs_agree_with_losses(case):
    agree(case)


def incast(senders, size, *, spec="rate=100Gbps,delay=500ns", **chosen):
    """All send to the last NPU of a switch at the same time."""
    traces = Traces(senders + 1)
    for src in range(senders):
        traces.message(src, senders, size)
    return build(f"switch:npus={senders + 1},{spec}"), traces.program(), Settings(**(BASE | chosen))


def test_incast_in_which_all_tie():
    results = check(*incast(7, 20_000, seed=3))
    assert results.links["max_queue_bytes"].max() > 6 * 594


def test_incast_with_losses_recovers_by_negative_acknowledgements():
    results = check(*incast(7, 60_000, queue_limit_bytes=5000, rto_ps=10**12))
    assert results.counters["dropped_packets"] > 0
    assert results.counters["retransmitted_packets"] > 0


def test_a_lost_tail_is_found_by_the_timeout_only():
    # two messages of one packet each, room for one: nothing follows that could be out of order
    results = check(*incast(2, 500, queue_limit_bytes=600, rto_ps=50_000_000))
    assert results.counters["dropped_packets"] == 1
    assert results.counters["timeouts"] == 1
    assert results.finish_time_ps > 50_000_000


def test_timeouts_that_come_too_early_do_no_harm():
    traces = Traces(4)
    for dst in (1, 2, 3):
        traces.message(0, dst, 30_000)
        traces.message(dst, 0, 30_000)
    chosen = Settings(**(BASE | {"rto_ps": 1_500_000}))
    results = check(build("switch:npus=4,rate=100Gbps,delay=500ns"), traces.program(), chosen)
    assert results.counters["timeouts"] > 0
    assert results.counters["payload_bytes"] == 180_000


@pytest.mark.parametrize("rto_ps", [300_000, 700_000, 1_000_000, 2_000_000, 2_500_000])
def test_a_pair_that_went_back_and_is_then_acknowledged_has_nothing_to_send(rto_ps):
    # its packet waits for its turn to be sent again behind the long message, when the late acknowledgement comes
    traces = Traces(3)
    traces.message(0, 1, 100)
    traces.message(0, 2, 400_000)
    chosen = Settings(rto_ps=rto_ps, window_bytes=10**6, max_retries=1000)
    results = check(build("switch:npus=3,rate=100Gbps,delay=500ns"), traces.program(), chosen)
    assert results.counters["payload_bytes"] == 400_100


def test_rows_without_duration_let_the_next_of_their_lane_go():
    traces = Traces(2)
    for micros in (10, 0, 0, 10, 0):
        traces.compute(0, micros)
    results = check(build("switch:npus=2"), traces.program(), Settings())
    assert results.node_finish_ps.tolist() == [10**7, 10**7, 10**7, 2 * 10**7, 2 * 10**7]


def test_the_window_that_is_settled_holds_for_fast_ports():
    graph = build("rail-optimised:npus=8,gpus_per_host=4")
    settings = Settings(nvlink_framing=False)
    results = check(graph, collective_program("all-reduce", 8, 40_000), settings)
    round_trip_ps = 4 * (2 * 500_000 + (4096 + 82 + 86) * 20)  # to another rail: leaf, spine, leaf, at 400 Gb/s
    assert results.settled["window_packets"] == -(-round_trip_ps * 3600 // (1000 * 8 * (4096 + 82))) + 2


def test_incast_without_delay_on_the_wire():
    for link_rate in ("100Gbps", "600Gbps"):
        check(*incast(5, 1500, spec=f"rate={link_rate},delay=0ns", queue_limit_bytes=1300))


def test_packets_take_a_picosecond_over_the_fastest_links():
    """An acknowledgement of a byte over 1,000 Tb/s would take 0.008 ps."""
    settings = Settings(header_bytes=1, ack_bytes=1)
    for spec in ("ring:npus=2,rate=1000Tbps,delay=1us", "switch:npus=5,rate=1000Tbps,delay=1us"):
        graph = build(spec)
        check(graph, collective_program("all-reduce", graph.npus, 1_000_003), settings)


def test_a_packet_that_waits_for_its_own_last_byte_fills_no_queue():
    """From 10 to 400 Gb/s a packet of 4 KiB takes 3.3 us to come in: 167 kB at the rate of the fast port."""
    builder = GraphBuilder("star", 2)
    builder.add_named_switches(["s"])
    for npu, rate_bps in enumerate((10 * 10**9, 400 * 10**9)):
        builder.add_cables(npu, 2, rate_bps, 500_000)
    graph, traces = builder.graph(), Traces(2)
    traces.message(0, 1, 100_000)
    results = check(graph, traces.program(), Settings(cut_through=True, queue_limit_bytes=8192))
    assert (results.counters["dropped_packets"], results.counters["payload_bytes"]) == (0, 100_000)


@pytest.mark.parametrize("cut_through", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_collectives_on_all_fabrics(kind, cut_through):
    for spec in ("ring:npus=5", "leaf-spine:npus=6,hosts_per_leaf=2,rate=600Gbps", "stack:dims=Ring(2)_Switch(3)"):
        graph = build(spec)
        for _, fabric, program in programs(kind, graph, 4001):
            if not program.schedules.launch_ps.any():  # the naive model has no launches and no waits of lanes
                check(fabric, program, Settings(**(BASE | {"cut_through": cut_through})))


@pytest.mark.parametrize("concurrent", [False, True])
def test_collectives_one_after_another_and_side_by_side(concurrent):
    traces = Traces(5)
    for size in (9000, 500, 7000):
        traces.collective(range(5), 0, size)
        traces.collective((0, 2, 4), 6, size, "a")
    program = traces.program({"a": (0, 2, 4)})
    check(build("ring:npus=5"), program, Settings(concurrent_collectives=concurrent))


class TiesByLink(naive.Simulator):
    def in_order(self, _node, arrivals):
        return sorted(arrivals, key=lambda arrival: arrival[0])


class NoAlternation(naive.Simulator):
    def choose_packet(self, npu, port):
        port.pair_sent_last = False
        return super().choose_packet(npu, port)


class NoBackoff(naive.Simulator):
    def arm(self, npu, pair):
        pair.retries = 0
        super().arm(npu, pair)


class OneLatePacket(naive.Simulator):
    def transmit(self, link, packet, start, since):
        super().transmit(link, packet, start + int(self.count["packet_hops"] == 40), since)


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (TiesByLink, incast(7, 20_000)),
        (NoAlternation, (build("ring:npus=6"), collective_program("all-to-all", 6, 60_000), Settings(**BASE))),
        (OneLatePacket, incast(3, 20_000)),
        (NoBackoff, incast(6, 500, queue_limit_bytes=600, rto_ps=2_000_000, max_retries=1000)),
    ],
)
def test_the_comparison_notices_a_broken_rule(broken, case):
    results = simulate(*case)
    assert differences(results, by_hand(*case, results)) == []
    assert differences(results, by_hand(*case, results, broken)) != []


@pytest.mark.parametrize("changed", [{"header_bytes": 83}, {"ack_bytes": 87}, {"seed": 2}, {"mtu_bytes": 511}])
def test_the_comparison_notices_another_setting(changed):
    graph, program, chosen = incast(7, 20_000)
    results = simulate(graph, program, chosen)
    other = dataclasses.replace(chosen, **changed)
    assert differences(results, by_hand(graph, program, other, results)) != []
