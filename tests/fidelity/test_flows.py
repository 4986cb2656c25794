"""Flows against packets: idle paths, bytes on links, collectives under contention, faults, and order of posts."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import pdes, workload
from nadi.configuration.sections import NetworkSection
from nadi.inputs.units import MIB
from nadi.launching.progress import NoProgress
from nadi.pdes.fidelity import fidelity
from nadi.simulation.network_settings import network_settings
from nadi.simulation.open_network import open_network
from nadi.simulation.run import run_program
from nadi.topologies import build, route
from tests.budgets import bounded
from tests.pdes.cases import Traces, crowded_program

LEAVES = "leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps,delay=500ns"
FULL_PACKET_PS = 334_240  # 4,178 bytes at 100 Gb/s


def ran(network, program, fidelity="flow", faults=None, **keys):
    graph = build(network) if isinstance(network, str) else network
    settings = network_settings(NetworkSection.model_validate({"fidelity": fidelity, **keys}))
    if faults is not None:
        settings = replace(settings, faults=faults)
    return run_program(graph, program, settings, NoProgress())


def one_message(npus, src, dst, size):
    to = np.full(npus, -1)
    to[src] = dst
    return workload.pairs_program(to, size)


def both(network, program, **keys):
    return [ran(network, program, fidelity, **keys) for fidelity in ("flow", "packet")]


NETWORKS = [
    "ring:npus=6,rate=100Gbps",
    LEAVES,
    "fat-tree:k=4,rate=40Gbps,delay=1us",
    "stack:dims=Ring(3)_Switch(2),rates=100Gbps_40Gbps,delays=300ns,switch_latency=50ns",
    "dgx-h100:npus=16",
]


@bounded(40)
@given(st.sampled_from(NETWORKS), st.data())
def test_a_message_alone_takes_as_long_as_its_packets(network, data):
    graph = build(network)
    src, dst = data.draw(st.permutations(range(graph.npus)))[:2]
    size = data.draw(st.sampled_from([1, 4096, 4097, 12_345, 100_000, MIB, MIB + 1]))
    keys = data.draw(
        st.sampled_from([{}, {"cut_through": True}, {"mtu": "1KiB"}, {"send_latency": "1us"}, {"p2p_share": 0.5}])
    )
    flow, packet = both(graph, one_message(graph.npus, src, dst, size), **keys)
    slowest_bps = graph.link_rate_bps[route(graph, src, dst)].min()
    packet_ps = 8e12 * (4096 + 4096 // 4) / slowest_bps  # with the overhead of flits
    assert flow.finish_time_ps == pytest.approx(packet.finish_time_ps, abs=packet_ps)
    if size % 4096 == 0 and not keys:
        assert flow.finish_time_ps == pytest.approx(packet.finish_time_ps, abs=20)  # packets round to ps


@pytest.mark.parametrize(
    ("network", "program"),
    [
        (LEAVES, lambda npus: workload.pairs_program(workload.permutation(npus, 3), 100_001)),
        (LEAVES, lambda npus: workload.collective_program("all-to-all", npus, MIB, "direct")),
        ("dgx-h100:npus=16", lambda npus: workload.collective_program("all-reduce", npus, MIB, "ring")),
    ],
)
def test_links_carry_the_bytes_that_packets_put_on_them(network, program):
    graph = build(network)
    flow, packet = both(graph, program(graph.npus))
    assert np.array_equal(flow.links["tx_bytes"], packet.links["tx_bytes"])
    assert flow.counters["payload_bytes"] == packet.counters["payload_bytes"] > 0
    assert flow.counters["flows"] == packet.counters["flows"]


def test_sprayed_flows_use_all_equal_links_alike():
    graph = build(f"{LEAVES},spines=4")
    results = ran(graph, one_message(16, 0, 15, 4 * MIB), load_balancing="spray")
    bytes_up = results.links["tx_bytes"][(graph.link_src >= 16) & (results.links["tx_bytes"] > MIB // 2)]
    assert len(bytes_up) == 9  # four up, four down, one to the receiver
    assert np.allclose(np.sort(bytes_up)[:8], bytes_up.max() / 4, rtol=1e-4)


INCAST = np.array([-1, *[0] * 8])


def mean_ps(results):
    return np.mean(results.flows["finish_ps"] - results.flows["start_ps"])


@pytest.mark.parametrize(
    ("network", "program", "error", "mean_error"),
    [
        # 4 spines: as much uplink as hosts have; 2: half of it; 1: a quarter
        *(
            (f"{LEAVES},spines={spines}", workload.collective_program(kind, 16, 4 * MIB, algorithm), error, None)
            for kind, algorithm in (
                ("all-reduce", "ring"),
                ("all-reduce", "halving-doubling"),
                ("all-to-all", "direct"),
            )
            for spines, error in ((4, 0.03), (2, 0.1), (1, 0.1))
        ),
        (LEAVES, workload.collective_program("all-to-all", 16, 4 * MIB, "direct"), 0.1, 0.05),
        ("switch:npus=9,rate=100Gbps", workload.pairs_program(INCAST, 4 * MIB), 1e-3, 1e-2),
    ],
)
def test_collectives_and_incasts_take_as_long_as_by_packets(network, program, error, mean_error):
    """As a whole, and in the mean of their messages."""
    flow, packet = both(network, program)
    assert flow.finish_time_ps == pytest.approx(packet.finish_time_ps, rel=error)
    if mean_error:
        assert mean_ps(flow) == pytest.approx(mean_ps(packet), rel=mean_error)


def test_messages_of_a_connection_go_one_after_another():
    traces = Traces(2)
    for tag in range(3):
        traces.message(0, 1, 1_000_000 + tag % 2, tag=tag)
    flow, packet = both("ring:npus=2,rate=100Gbps", traces.program({}))
    ends = np.sort(flow.flows["finish_ps"])
    assert np.diff(ends) == pytest.approx(8e12 * 1_020_090 / 100e9, rel=1e-3)
    assert flow.finish_time_ps == pytest.approx(packet.finish_time_ps, abs=FULL_PACKET_PS)


def test_results_do_not_depend_on_the_order_of_posts():
    """Four messages that an NPU posts at one time, in each order: the same times, tag by tag."""
    ends = set()
    for order in itertools.permutations([(1, 0, 300_000), (2, 1, 200_000), (3, 2, 100_000), (1, 3, 50)]):
        if [tag for dst, tag, _ in order if dst == 1] != [0, 3]:
            continue  # messages of one connection go in their order
        traces = Traces(4)
        for dst, tag, size in order:
            traces.message(0, dst, size, tag=tag)
        flows = ran("switch:npus=4,rate=100Gbps", traces.program({})).flows
        ends.add(
            tuple(sorted(zip(flows["dst"].tolist(), flows["bytes"].tolist(), flows["finish_ps"].tolist(), strict=True)))
        )
    assert len(ends) == 1


@pytest.mark.parametrize("size", [MIB, 4 * MIB, 16 * MIB])
def test_channels_of_a_ring_take_turns(size):
    """Two channels per port begin at one moment; soon one sends while the other waits for latencies."""
    graph = build("switch:npus=8,rate=100Gbps,delay=500ns")
    program = workload.collective_program("all-reduce", 8, size, "nccl:algo=ring", graph)
    packets, flows = (ran(graph, program, fidelity=name).finish_time_ps for name in ("packet", "flow"))
    assert flows == pytest.approx(packets, rel=0.05)  # without turns 9 to 38 % longer


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("more", [0, MIB // 64])
def test_messages_that_share_a_port_end_in_turn(count, step, more):
    """Messages that begin at one moment take turns as packets do; others within the order of packets on the wire."""
    ends = []
    for name in ("packet", "flow"):
        network = open_network(build("switch:npus=10,rate=100Gbps,delay=500ns"),
                               network_settings(NetworkSection(fidelity=name)))  # fmt: skip
        found = []
        for number in range(count):
            found += network.advance(number * step * 506_560)  # a cell of packets
            network.post(0, number + 1, 98_304 + number * more)
        while (next_ps := network.next_event_ps()) is not None:
            found += network.advance(next_ps + 1)
        ends.append({each.message: each.time_ps for each in found if each.has_arrived})
    most_ps = (0.65 * count if step else 0.01) * FULL_PACKET_PS
    assert max(abs(ends[0][number] - ends[1][number]) for number in range(count)) <= most_ps


def test_pools_grow():
    chosen = pdes.Settings(fidelity=fidelity("flow"), compute_slowdown=1.5)
    results = pdes.run(pdes.build_world(build("ring:npus=6"), crowded_program(200), chosen))
    assert results.counters["flows"] == 1200 + 90 * 60


def test_a_link_that_becomes_slow_slows_its_flows_down():
    graph = build("ring:npus=2,rate=100Gbps")
    size, at_ps = 10_000_000, 100_000_000
    program = one_message(2, 0, 1, size)
    links = tuple(range(graph.links))
    slow = pdes.Faults((pdes.LinkFault(links, at_ps, rate_bps=25_000_000_000),))
    healthy = ran(graph, program).finish_time_ps
    flow = ran(graph, program, faults=slow).finish_time_ps
    assert flow == pytest.approx(at_ps + 4 * (healthy - at_ps), rel=1e-2)
    assert flow == pytest.approx(ran(graph, program, "packet", slow).finish_time_ps, rel=1e-2)


def test_a_link_that_is_down_stops_its_flows_until_routes_change():
    """A cable of the path, and one that neither data nor acknowledgements take."""
    graph = build(f"{LEAVES},spines=4")
    program = one_message(16, 0, 15, 4_000_000)
    healthy = ran(graph, program)
    sent = healthy.links["tx_bytes"]
    cables = [link for link in range(0, graph.links, 2) if graph.link_src[link] >= 16 and graph.link_dst[link] >= 16]
    used = next(link for link in cables if max(sent[link], sent[link + 1]) > 4_000_000)
    idle = next(link for link in cables if sent[link] == sent[link + 1] == 0)
    for link, longer_ps in ((used, 200_000_000), (idle, 0)):
        assert graph.link_src[link] == graph.link_dst[link + 1]
        links = (link, link + 1)
        routings = {frozenset(links): graph.routing.without(graph, frozenset(links))}
        faults = pdes.Faults((pdes.LinkFault(links, 100_000_000, down=True),), (), 200_000_000, routings)
        found = ran(graph, program, faults=faults).finish_time_ps
        assert found == pytest.approx(healthy.finish_time_ps + longer_ps, rel=1e-3)


def test_a_failure_without_a_way_around_ends_when_the_link_is_back():
    graph = build("ring:npus=2,rate=100Gbps")
    program = one_message(2, 0, 1, 4_000_000)
    down = pdes.Faults(
        (pdes.LinkFault(tuple(range(graph.links)), 100_000_000, 300_000_000, down=True),),
        (),
        10**12,
        {frozenset(range(graph.links)): graph.routing},
    )
    healthy = ran(graph, program).finish_time_ps
    assert ran(graph, program, faults=down).finish_time_ps == pytest.approx(healthy + 200_000_000, rel=1e-3)


def test_a_slow_npu_computes_slowly():
    traces = Traces(2)
    traces.compute(0, 1_000)
    program = traces.program({})
    fast, slow = (
        ran("ring:npus=2", program, faults=faults).finish_time_ps
        for faults in (None, pdes.Faults((), (pdes.NpuFault(0, 0, slowdown=2.0),)))
    )
    assert slow == 2 * fast
