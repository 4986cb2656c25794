"""What faults do, in closed form or by count."""

import numpy as np
import pytest

from nadi.pdes import LinkFault, NpuFault, RunError
from nadi.pdes.construction.settings import SharedBuffer
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program
from tests.failures.common import cable, faults_of, of_switch, simulate
from tests.jobs.common import job, program_of
from tests.pdes.cases import Traces

MTU, HEADER = 4096, 82
SIZE = MTU + HEADER
WIDE = {"window_bytes": 1 << 26}
SWITCHES = [None, SharedBuffer(buffer_bytes=64_000_000)]


def us(x):
    return int(x * 1e6)


def wire_ps(gbps, size=SIZE):
    return int(size * 8e12 / (gbps * 1e9) + 0.5)


def one_flow(npus, src, dst, size):
    traces = Traces(npus)
    traces.message(src, dst, size)
    return traces.program()


def star(**more):
    return build("switch:npus=2,rate=100Gbps,delay=1us" + "".join(f",{k}={v}" for k, v in more.items()))


def link(graph, a, b):
    (number,) = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
    return number


def begin_of(at, results):
    cell = results.settled["cell_ps"]
    return -(-at // cell) * cell


def train(graph, packets, fault, switch):
    """Results of a message from NPU 0 to NPU 1 that loses nothing, and when its fault begins and ends."""
    program, faults = one_flow(2, 0, 1, packets * MTU), faults_of(graph, [fault])
    results = simulate(graph, program, faults=faults, switch=switch, rto_ps=us(10**6), **WIDE)
    return results, begin_of(fault.at_ps, results), begin_of(fault.until_ps, results)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(("gbps", "until"), [(40, None), (40, 150), (10, 60.5), (250, 90)])
def test_a_train_over_a_link_whose_rate_changes(switch, gbps, until):
    graph = star()
    packets = 500
    fault = LinkFault(cable(graph, 0, 2), us(50.3), us(until) if until else 1 << 62, rate_bps=gbps * 10**9)
    results, first, last = train(graph, packets, fault, switch)
    now = free = 0
    for _ in range(packets):
        now += wire_ps(gbps if first <= now < last else 100)
        free = max(free, now + us(1)) + wire_ps(100)
    assert results.flows["finish_ps"].tolist() == [free + us(1)]
    assert results.counters["dropped_packets"] == 0


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_train_over_a_link_whose_latency_grows_and_falls(switch):
    graph = star()
    packets, added = 400, us(30)
    fault = LinkFault(cable(graph, 0, 2), us(20), us(70), added_latency_ps=added)
    results, first, last = train(graph, packets, fault, switch)
    now = free = 0
    rested = False
    for _ in range(packets):
        if now >= last and not rested:
            now, rested = now + added, True
        late = added if first <= now < last else 0
        now += wire_ps(100)
        free = max(free, now + us(1) + late) + wire_ps(100)
    assert results.flows["finish_ps"].tolist() == [free + us(1)]
    assert results.counters["retransmitted_packets"] == 0


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_link_that_goes_down_and_comes_back(switch):
    graph = star()
    rto = us(200)
    fault = LinkFault(cable(graph, 1, 2), us(50), us(300), down=True)
    results = simulate(
        graph,
        one_flow(2, 0, 1, 600 * MTU),
        faults=faults_of(graph, [fault], detection_ps=us(1)),
        switch=switch,
        rto_ps=rto,
        **WIDE,
    )
    down, healthy = (fault.until_ps - fault.at_ps), 601 * wire_ps(100) + us(2)
    assert healthy + down < results.finish_time_ps < healthy + down + 4 * rto
    assert results.counters["lost_packets"] > 100
    assert results.counters["timeouts"] >= 1
    assert results.links["dropped_packets"].sum() == results.counters["lost_packets"]
    assert set(np.flatnonzero(results.links["dropped_packets"])) <= set(fault.links)


def test_a_lost_tail_is_found():
    graph = star()
    packets, rto = 20, us(100)
    healthy = simulate(graph, one_flow(2, 0, 1, packets * MTU), **WIDE).finish_time_ps
    sent = (packets - 1) * wire_ps(100) + us(1)  # the last packet reaches the switch one packet later
    fault = LinkFault(cable(graph, 1, 2), sent - us(1), sent + us(20), down=True)
    results = simulate(graph, one_flow(2, 0, 1, packets * MTU), faults=faults_of(graph, [fault]), rto_ps=rto, **WIDE)
    assert 1 <= results.counters["timeouts"] <= 2
    assert healthy + us(50) < results.finish_time_ps < healthy + 2 * rto


def test_the_automatic_timeout_is_on_where_packets_can_be_lost():
    graph = star()
    links = cable(graph, 0, 2)
    program = one_flow(2, 0, 1, 9000)
    for fault, lossy in (
        (LinkFault(links, 0, down=True, until_ps=us(5)), True),
        (LinkFault(links, 0, error_rate=0.001), True),
        (LinkFault(links, 0, rate_bps=10**9), False),
        (LinkFault(links, 0, added_latency_ps=10), False),
    ):
        settled = simulate(graph, program, faults=faults_of(graph, [fault])).settled
        assert (settled["rto_ps"] > 0) == lossy


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_path_that_dies_is_left_after_the_detection_time(switch):
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=1,spines=2,rate=100Gbps,delay=1us")
    program = one_flow(2, 0, 1, 4_000_000)
    links = simulate(graph, program, switch=switch).links
    used = next(s for s in (4, 5) if links["tx_packets"][link(graph, s, 3)] > 900)
    other = 9 - used
    died, rto = us(100), us(150)
    fault = LinkFault(of_switch(graph, used), died, down=True)
    results = simulate(graph, program, switch=switch, rto_ps=rto, faults=faults_of(graph, [fault], detection_ps=us(50)))
    healthy = 978 * wire_ps(100)
    assert died + rto < results.finish_time_ps < healthy + 2 * rto + us(60)
    through = results.links["tx_packets"][link(graph, other, 3)]
    assert 600 < through < 978
    assert results.counters["timeouts"] == 1


def test_without_a_way_around_the_run_gives_up():
    graph = star()
    fault = LinkFault(cable(graph, 1, 2), us(10), down=True)
    with pytest.raises(RunError, match=r"(?i)npu 0.*npu 1|gave up"):
        simulate(graph, one_flow(2, 0, 1, 4_000_000), rto_ps=us(50), max_retries=3, faults=faults_of(graph, [fault]))


def test_a_fabric_cut_in_two_loses_packets_and_sends_none_in_circles():
    graph = build(
        "fat-tree:pods=2,leaves_per_pod=2,hosts_per_leaf=1,spines_per_pod=2,cores_per_plane=1,rate=100Gbps,delay=1us"
    )
    cores = [node for node in range(graph.npus, graph.nodes) if "core" in graph.node_name(node)]
    faults = [LinkFault(of_switch(graph, core), us(5), us(400), down=True) for core in cores]
    healthy = simulate(graph, collective_program("all-to-all", 4, 400_000))
    results = simulate(
        graph,
        collective_program("all-to-all", 4, 400_000),
        rto_ps=us(100),
        faults=faults_of(graph, faults, detection_ps=us(10)),
    )
    assert results.counters["lost_packets"] > 0
    assert us(400) < results.finish_time_ps
    sent = results.counters["data_packets"] + results.counters["ack_packets"]
    assert results.counters["packet_hops"] <= 6 * sent
    assert healthy.counters["lost_packets"] == 0


@pytest.mark.parametrize("p", [0.002, 0.05])
@pytest.mark.parametrize("switch", SWITCHES)
def test_losses_are_as_many_as_the_error_rate_says(p, switch):
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=500ns")
    links = tuple(link for leaf in (8, 9) for spine in (10, 11) for link in cable(graph, leaf, spine))
    program = pairs_program([4, 5, 6, 7, 0, 1, 2, 3], 3_000_000)
    fault = LinkFault(links, 0, error_rate=p)
    results = simulate(
        graph, program, switch=switch, rto_ps=us(100), max_retries=1000, faults=faults_of(graph, [fault])
    )
    trials = int(results.links["tx_packets"][list(links)].sum())
    if switch:
        trials -= results.counters["pause_frames"]
    lost = int(results.links["dropped_packets"][list(links)].sum())
    assert trials > 10_000
    assert abs(lost - p * trials) < 3 * (p * (1 - p) * trials) ** 0.5
    assert results.counters["lost_packets"] == lost


@pytest.mark.parametrize(("slowdown", "as_1024ths"), [(1.5, 1536), (1.0, 1024), (1.001, 1025), (7, 7168)])
def test_a_slow_npu_takes_exactly_so_much_longer(slowdown, as_1024ths):
    graph = star()
    traces = Traces(2)
    for npu in range(2):
        last = ()
        for _ in range(5):
            last = [traces.compute(npu, 100, deps=last)]
        traces.memory(npu, 10, deps=last)
    fault = NpuFault(1, us(150), us(250), slowdown)
    results = simulate(graph, traces.program(), faults=faults_of(graph, npus=[fault]))
    took = (results.node_finish_ps - results.node_start_ps).reshape(2, 6)
    slow = us(100) * as_1024ths // 1024
    assert took[0].tolist() == [us(100)] * 5 + [us(10)]
    assert took[1].tolist() == [us(100), us(100), slow, us(100), us(100), us(10)]


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_spine_that_is_down_leaves_the_throughput_of_the_others(switch):
    def fabric(spines):
        return build(
            f"leaf-spine:leaves=2,hosts_per_leaf=16,spines={spines},rate=100Gbps,delay=500ns,uplink_rate=100Gbps"
        )

    traces = Traces(32)
    for src in range(32):
        for turn in range(16):
            traces.message(src, (16 if src < 16 else 0) + (src + turn) % 16, 100_000)
    program = traces.program()
    whole, less = fabric(4), fabric(3)
    dead = LinkFault(of_switch(whole, whole.nodes - 1), 0, down=True)
    damaged = simulate(whole, program, switch=switch, faults=faults_of(whole, [dead], detection_ps=0))
    smaller, healthy = (simulate(graph, program, switch=switch) for graph in (less, whole))
    assert damaged.counters["lost_packets"] == 0
    assert damaged.finish_time_ps == pytest.approx(smaller.finish_time_ps, rel=0.04)
    up = [int(link) for link in whole.out_links(32) if whole.link_dst[link] > 33]
    assert damaged.links["tx_bytes"][up[-1]] == 0
    busiest = [max(r.links["tx_bytes"][up]) / sum(r.links["tx_bytes"][up]) for r in (damaged, healthy)]
    residual = healthy.finish_time_ps / busiest[1] / (damaged.finish_time_ps / busiest[0])
    assert residual == pytest.approx(1.0, abs=0.06)  # each is bound by its busiest spine, of three and of four


def two_homes(tmp_path):
    (tmp_path / "net.toml").write_text(
        'npus = 2\n[[switches]]\n[[switches]]\n[[links]]\nrate = "100Gbps"\ndelay = "1us"\n'
        "cables = [[0, 2], [1, 2], [0, 3], [1, 3]]\n"
    )
    return build(str(tmp_path / "net.toml"))


@pytest.mark.parametrize("near", [True, False])
def test_an_npu_of_two_ports_takes_the_other(tmp_path, near):
    graph = two_homes(tmp_path)
    program = one_flow(2, 0, 1, 4_000_000)
    links = simulate(graph, program).links
    used = next(s for s in (2, 3) if links["tx_packets"][link(graph, s, 1)] > 900)
    fault = LinkFault(cable(graph, 0 if near else 1, used), us(50), down=True)
    results = simulate(graph, program, rto_ps=us(100), faults=faults_of(graph, [fault], detection_ps=us(40)))
    assert us(150) < results.finish_time_ps < 978 * wire_ps(100) + us(250)
    assert 700 < results.links["tx_packets"][link(graph, 5 - used, 1)] < 978


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("nic_of", [0, 5])
def test_a_server_s_npu_without_nic_is_cut_off_and_its_packets_come_to_an_end(switch, nic_of):
    graph = build("rail-optimised:npus=8,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2,rate=100Gbps")
    leaf = next(int(graph.link_dst[n]) for n in graph.out_links(nic_of) if graph.node_kind[graph.link_dst[n]] == 1)
    program = one_flow(8, 0, 5, 4_000_000)
    nic = cable(graph, nic_of, leaf)
    chosen = {"switch": switch, "rto_ps": us(60)}
    back = LinkFault(nic, us(30), us(400), down=True)
    results = simulate(graph, program, faults=faults_of(graph, [back], detection_ps=us(20)), **chosen)
    assert us(400) < results.finish_time_ps
    assert results.counters["lost_packets"] > 0
    for_ever = faults_of(graph, [LinkFault(nic, us(30), down=True)], detection_ps=us(20))
    with pytest.raises(RunError, match=f"npu 0 has no path to npu 5 since link npu {nic_of} - leaf . went down"):
        simulate(graph, program, faults=for_ever, max_retries=5, **chosen)


@pytest.mark.parametrize("more", [{}, {"switch": SharedBuffer(), "queue_samples": 64}, {"sample_ps": us(20)}])
def test_what_is_counted_by_link_has_room_for_packets_without_a_path(more):
    """Two jobs across the NICs of a rail that is down for a while; guards around the arrays are checked at the end."""
    graph = build("rail-optimised:npus=16,gpus_per_host=2,hosts_per_rail_leaf=4,spines=2,rate=100Gbps")
    leaf = next(int(graph.link_dst[n]) for n in graph.out_links(0) if graph.node_kind[graph.link_dst[n]] == 1)
    program = program_of(graph, job("first", [0, 2, 4, 6]), job("second", [1, 3, 5, 7]))
    back = LinkFault(of_switch(graph, leaf), us(30), us(400), down=True)
    faults = faults_of(graph, [back], detection_ps=us(5))
    results = simulate(graph, program, faults=faults, rto_ps=us(60), window_bytes=1 << 20, **more)
    assert results.counters["dropped_packets"] > results.links["dropped_packets"].sum() > 0
