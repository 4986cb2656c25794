import numpy as np
import pytest

from nadi.pdes import RunError, Settings, build_world, run
from nadi.pdes.core import state as s
from nadi.pdes.outcomes.outcome import check, outcome_of
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program, permutation
from tests.pdes import naive
from tests.pdes.cases import BASE, Traces
from tests.pdes.compare import by_hand, simulate


def test_the_same_run_twice_gives_the_same_digest():
    graph, program = build("fat-tree:k=4"), collective_program("all-to-all", 16, 160_000)
    chosen = Settings(queue_limit_bytes=20_000)
    first, second = (simulate(graph, program, chosen) for _ in range(2))
    assert first.digest == second.digest
    assert first.counters == second.counters
    assert first.counters["dropped_packets"] > 0
    assert simulate(graph, collective_program("all-to-all", 16, 160_016), chosen).digest != first.digest


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
    """How many messages of each sender are complete when half of all are."""
    order = sorted(flows, key=lambda flow: flow[1])
    early = [src for src, _ in order[: len(order) // 2]]
    return [early.count(src) for src in range(senders)]


class TiesByLink(naive.Simulator):
    def in_order(self, _node, arrivals):
        return sorted(arrivals, key=lambda arrival: arrival[0])


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
    """A Simulation that has run to its end."""
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
    check(outcome_of(finished))
    values = getattr(finished.lps[0].world.net, row)
    values[word] += 1
    try:
        with pytest.raises(RunError, match=f"engine defect: .*{said}"):
            check(outcome_of(finished))
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
