"""The engine against the naive simulator, and what must hold in every run."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.pdes import RunError, Settings, build_world, run
from nadi.pdes.core import state as s
from nadi.pdes.outcomes.outcome import check as check_promises, outcome_of
from nadi.topologies import GraphBuilder, build
from nadi.workload import KINDS, collective_program, pairs_program, permutation
from tests.budgets import bounded
from tests.every import programs
from tests.pdes import naive
from tests.pdes.cases import BASE, Traces, runs
from tests.pdes.compare import by_hand, check, differences, simulate


@pytest.mark.parametrize("lossy", [False, True])
@bounded(120)
@given(st.data())
def test_random_runs_agree(lossy, data):
    spec, workload, chosen = data.draw(runs(lossy=lossy))
    graph = build(spec)
    check(graph, workload.program(graph.npus), chosen)


def incast(senders, size, *, spec="rate=100Gbps,delay=500ns", **chosen):
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


def test_the_seed_chooses_paths_and_conserves_bytes():
    graph = build("leaf-spine:leaves=4,hosts_per_leaf=4,spines=4")
    program = pairs_program(permutation(16, seed=4), 100_000)
    runs = [simulate(graph, program, Settings(seed=seed)) for seed in range(1, 9)]
    assert {r.counters["payload_bytes"] for r in runs} == {1_600_000}
    at_npus = np.flatnonzero((graph.link_src < 16) | (graph.link_dst < 16))
    between = np.setdiff1d(np.arange(graph.links), at_npus)
    assert len({r.links["tx_packets"][between].tobytes() for r in runs}) == 8
    assert len({r.links["tx_packets"][at_npus].tobytes() for r in runs}) == 1
    assert len({int(r.links["tx_packets"][between].sum()) for r in runs}) == 1


def shares(flows, senders):
    order = sorted(flows, key=lambda flow: flow[1])
    early = [src for src, _ in order[: len(order) // 2]]
    return [early.count(src) for src in range(senders)]


@pytest.mark.parametrize("senders", [2, 4, 7])
def test_senders_that_always_tie_get_equal_shares(senders):
    # more is offered than the queue holds, so whoever comes second at a tie is lost; each message is one packet
    traces = Traces(senders + 1)
    for _ in range(400):
        for src in range(senders):
            traces.message(src, senders, 512)
    graph, program = build(f"switch:npus={senders + 1},rate=100Gbps,delay=200ns"), traces.program()
    chosen = Settings(**(BASE | {"window_bytes": 2048, "queue_limit_bytes": 0}))
    results = simulate(graph, program, chosen)
    flows = list(zip(results.flows["src"].tolist(), results.flows["finish_ps"].tolist(), strict=True))
    fair = shares(flows, senders)
    mean = sum(fair) / senders
    assert max(abs(share - mean) for share in fair) <= 0.1 * mean


def test_ties_are_won_equally_often():
    """With room for one packet only, each round of a tie has one winner; a stable order would always name the same."""
    senders, wins = 4, [0, 0, 0, 0]
    graph = build("switch:npus=5,rate=100Gbps,delay=200ns")
    for seed in range(1, 201):
        traces = Traces(5)
        for src in range(senders):
            traces.message(src, 4, 500)
        chosen = Settings(**(BASE | {"queue_limit_bytes": 600, "rto_ps": 10**7, "seed": seed, "max_retries": 1000}))
        results = simulate(graph, traces.program(), chosen)
        wins[int(results.flows["src"][np.argmin(results.flows["finish_ps"])])] += 1
    assert sum(wins) == 200
    assert min(wins) >= 30
    steady = by_hand(graph, traces.program(), chosen, results, TiesByLink).flows
    assert min(steady, key=lambda flow: flow[-1])[0] == 0


@pytest.fixture(scope="module")
def finished():
    sim = build_world(build("switch:npus=4"), collective_program("all-reduce", 4, 9000), Settings())
    run(sim)
    return sim


@pytest.mark.parametrize(
    ("row", "word", "said"),
    [
        ("count", "sent_bytes", "bytes sent"),
        ("count", "received_bytes", "bytes sent"),
        ("count", "dropped_bytes", "bytes sent"),
        ("count", "data_packets", "packets made"),
        ("count", "consumed_packets", "packets made"),
        ("ctl", "free_blocks", "blocks"),
        ("ctl", "free_messages", "messages"),
        ("ctl", "free_instances", "collective instances"),
    ],
)
def test_a_broken_promise_is_an_error(finished, row, word, said):
    check_promises(outcome_of(finished))
    values = getattr(finished.lps[0].world.net, row)
    values[word] += 1
    try:
        with pytest.raises(RunError, match=f"engine defect: .*{said}"):
            check_promises(outcome_of(finished))
    finally:
        values[word] -= 1


def test_a_run_looks_at_its_promises():
    sim = build_world(build("switch:npus=4"), collective_program("all-reduce", 4, 9000), Settings())
    sim.lps[0].world.net.count.sent_bytes += 1
    with pytest.raises(RunError, match="engine defect") as caught:
        run(sim)
    assert caught.value.exit_code == 1


@pytest.fixture
def unchecked(monkeypatch):
    """Lets programs be built whose traces do not fit together."""
    monkeypatch.setattr("nadi.workload.program.building.check_collectives", lambda *_: None)
    monkeypatch.setattr("nadi.workload.program.building.check_messages", lambda *_: None)


def stalled(npus, traces, **chosen):
    with pytest.raises(RunError) as caught:
        simulate(build(f"switch:npus={npus}"), traces.program(), Settings(**chosen))
    assert caught.value.exit_code == 1
    head, *lines = str(caught.value).splitlines()
    assert head.startswith("nothing is left to happen at ")
    return head, [line.strip() for line in lines]


@pytest.mark.usefixtures("unchecked")
def test_a_missing_member_is_waited_for():
    traces = Traces(4)
    traces.collective((0, 1, 3), 9, 1)
    traces.collective((0, 1, 3), 9, 1)
    traces.compute(2, 1)
    head, lines = stalled(4, traces)
    assert "6 trace nodes are not done" in head
    assert len(lines) == 6
    assert sum("waits for npu 2" in line for line in lines) >= 1
    assert sum("waits for its turn: collective 0 of the group is not done" in line for line in lines) == 3
    for npu in (0, 1, 3):
        assert sum(line.startswith(f"npu {npu} row ") for line in lines) == 2


@pytest.mark.usefixtures("unchecked")
def test_a_receive_without_a_send_is_named():
    traces = Traces(3)
    first = traces.receive(1, 0, 100, tag=7)
    traces.compute(0, 5, deps=[first])
    traces.message(1, 2, 3000)
    head, lines = stalled(3, traces)
    assert "2 trace nodes are not done" in head
    assert lines == ["npu 0 row 0: receive 0 of tag 7 waits for npu 1"]


@pytest.mark.usefixtures("unchecked")
def test_a_long_list_of_waiters_is_cut():
    traces = Traces(20)
    for dst in range(1, 20):
        traces.receive(0, dst, 100)
    _, lines = stalled(20, traces)
    assert len(lines) == 13
    assert lines[-1] == "and 7 more"


def test_a_queue_below_one_packet_fails_the_queue_pair():
    chosen = Settings(queue_limit_bytes=500, max_retries=3)
    with pytest.raises(RunError, match="npu 0 to npu 1: packet 0 unacknowledged after 4 timeouts") as caught:
        simulate(build("switch:npus=2"), pairs_program([1, -1], 4096), chosen)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_nothing_is_left_in_the_network_after_the_last_row():
    sim = build_world(build("ring:npus=5"), collective_program("all-to-all", 5, 50_000), Settings())
    results = run(sim)
    assert (sim.lps[0].world.net.next_time == s.INF).all()
    assert sim.lps[0].world.net.ctl.soonest_ps == s.INF
    assert (sim.lps[0].world.net.inbox == -1).all()
    assert (sim.lps[0].world.net.wait_head == -1).all()
    assert (sim.lps[0].world.npus.npu.heap_size == 0).all()
    assert results.counters["bytes_sent"] == results.counters["bytes_received"]
    assert results.links["tx_bytes"].sum() > results.counters["bytes_sent"]


def test_programs_and_packets_that_do_not_fit_are_refused():
    graph, program = build("switch:npus=4"), collective_program("barrier", 5, 0)
    with pytest.raises(RunError, match="5 NPUs, the fabric 4"):
        build_world(graph, program, Settings())
    with pytest.raises(RunError, match="at most 65535"):
        build_world(build("switch:npus=5"), program, Settings(mtu_bytes=65_500))
