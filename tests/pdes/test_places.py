"""Numbers of nodes, rates of ports, the origin of time and the largest numbers: what is alike has the same results."""

import dataclasses

import numpy as np
import pytest

from nadi import configuration, partition
from nadi.configuration.sections import NetworkSection
from nadi.inputs import limits as quantities
from nadi.pdes import LinkFault, NpuFault, Settings, SharedBuffer, build_world, fidelity, run
from nadi.pdes.network.balancing import balancing
from nadi.pdes.nic.congestion import control
from nadi.pdes.wire import CreditSwitch
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.isolated import IsolatedCollectives, with_flows
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from nadi.topologies.graph import NVSWITCH, SWITCH
from nadi.topologies.graph_builder import GraphBuilder
from nadi.workload import collective_program, pairs_program
from tests.failures.common import cable, faults_of
from tests.features.shifting import begun_at, differences
from tests.pdes.cases import BASE, Traces
from tests.pdes.compare import check, simulate

HOSTS, PER_HOST = 4, 3
NPUS = HOSTS * PER_HOST
NVLINK, LEAF, SPINE = NPUS, NPUS + HOSTS, NPUS + HOSTS + HOSTS
NODES = SPINE + 1
CABLES = [
    *((npu, NVLINK + npu // PER_HOST, 400) for npu in range(NPUS)),
    *((npu, LEAF + npu // PER_HOST, 100) for npu in range(NPUS)),
    *((LEAF + leaf, SPINE, 200) for leaf in range(HOSTS)),
]
"""Ends and Gb/s: hosts behind NVSwitches, whose NPUs have one leaf switch, below one spine."""
BUFFER = {"buffer_bytes": 400_000, "ecn_kmin_bytes": 4000, "ecn_kmax_bytes": 40_000, "ecn_pmax": 0.5}
SETTINGS = {
    "drops": {"queue_limit_bytes": 4000, "rto_ps": 20_000_000},
    "cut through": {"cut_through": True},
    "pauses and marks": {"switch": SharedBuffer(**BUFFER, pfc_alpha=0.01), "congestion_control": control("dcqcn")},
    "credits": {"credits": CreditSwitch(virtual_lanes=2, lane_buffer_bytes=9000), "p2p_class": 1},
    "trims": {
        "switch": SharedBuffer(**BUFFER | {"buffer_bytes": 20_000}, pfc=False, trimming=True),
        "congestion_control": control("nscc"),
        "selective_repeat": True,
    },
    "sprays": {
        "switch": SharedBuffer(**BUFFER),
        "congestion_control": control("hpcc"),
        "load_balancing": balancing("spray"),
    },
}


def renumbering(random):
    """Return the new number of each node: NPUs stay NPUs, and switches switches."""
    return np.concatenate([random.permutation(NPUS), NPUS + random.permutation(NODES - NPUS)])


def reordered(cables, random):
    """Return cables in another order, but those of each node in their order, so that its ports keep their numbers."""
    remaining, order = list(cables), []
    while remaining:
        seen, free = set(), []
        for each in remaining:
            free += [each] if seen.isdisjoint(each[:2]) else []
            seen.update(each[:2])
        order.append(free[random.integers(len(free))])
        remaining.remove(order[-1])
    return order


def fabric(number, cables):
    builder = GraphBuilder("renumbered", NPUS)
    old = np.argsort(number)[NPUS:]
    is_nvlink = (old >= NVLINK) & (old < LEAF)
    builder.add_named_switches(
        [f"s{n}" for n in old], latency_ps=np.where(is_nvlink, 0, 300_000), kind=np.where(is_nvlink, NVSWITCH, SWITCH)
    )
    for a, b, rate_gbps in cables:
        builder.add_cables(number[a], number[b], rate_gbps * 10**9, 500_000)
    host = np.empty(NPUS, np.int64)
    host[number[:NPUS]] = np.arange(NPUS) // PER_HOST
    return builder.graph(host=host)


def program(messages, number):
    traces = Traces(NPUS)
    for src, dst, size, tag in messages:
        traces.message(int(number[src]), int(number[dst]), size, tag)
    return traces.program()


def flows_of(results, number):
    before = np.argsort(number)
    columns = [before[results.flows["src"]], before[results.flows["dst"]]]
    columns += [results.flows[name] for name in ("lane", "seq", "bytes", "start_ps", "finish_ps")]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_renumbered_hosts_give_renumbered_results(name):
    random = np.random.default_rng(7)
    pairs = [(src, dst) for src in range(NPUS) for dst in (0, PER_HOST, *random.choice(NPUS, 2)) if src != dst]
    messages = [(src, dst, int(random.choice([400, 20_000, 60_000])), tag) for tag, (src, dst) in enumerate(pairs)]
    chosen = Settings(**(BASE | {"max_retries": 100} | SETTINGS[name]))
    same = np.arange(NODES)
    results = simulate(fabric(same, CABLES), program(messages, same), chosen)
    counted = ("dropped_packets", "pause_frames", "trimmed_packets", "marked_packets")
    if name != "cut through":
        assert any(results.counters[counter] > 0 for counter in counted)
    for _ in range(3):
        number = renumbering(random)
        graph = fabric(number, reordered(CABLES, random))
        renumbered = simulate(graph, program(messages, number), chosen)
        assert flows_of(renumbered, number) == flows_of(results, same)
        assert {key: renumbered.counters[key] for key in counted} == {key: results.counters[key] for key in counted}


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


def test_nearly_equal_rates_have_one_share_each():
    assert planes(2, 200 * GBPS, 190 * GBPS).port_shares.tolist()[::2] == [1, 1, 1, 1]


@pytest.mark.parametrize("how", [Settings(**BASE), with_flows(Settings(**BASE))])
def test_a_slow_plane_that_nobody_knows_of_lasts_as_long_as_its_rate_says(how):
    """Each plane gets half of the messages, so an all-to-all ends with the slow one."""
    graph, times_ps = planes(4, 200 * GBPS, 200 * GBPS, hosts=4), []
    second = graph.link_dst == graph.nodes - 1
    second |= graph.link_src == graph.nodes - 1
    for share in (1, 0.95, 0.85, 0.5):
        rate_bps = np.where(second, graph.link_rate_bps * share, graph.link_rate_bps).astype(np.int64)
        slow = graph.with_slow_links(rate_bps, graph.link_delay_ps)
        program = collective_program("all-to-all", 4, 64 << 20, "direct", graph)
        times_ps.append(run(build_world(slow, program, how)).finish_time_ps)
    ratios = np.array(times_ps) / times_ps[0]
    assert ratios == pytest.approx([1, 1 / 0.95, 1 / 0.85, 2], rel=0.01)


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


US = 1_000_000
ORIGIN_NPUS = 8
GRAPH = build("leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps")
SHARED = {"switch": SharedBuffer()}


def origin_program():
    """All to all, with compute before it and after."""
    traces = Traces(ORIGIN_NPUS)
    for npu in range(ORIGIN_NPUS):
        traces.compute(npu, 1)
    for kind in (2, 0):
        traces.collective(
            range(ORIGIN_NPUS), kind, 160_000, deps={npu: [len(traces.nodes[npu]) - 1] for npu in range(ORIGIN_NPUS)}
        )
        for npu in range(ORIGIN_NPUS):
            traces.compute(npu, 10, deps=[len(traces.nodes[npu]) - 1])
    return traces.program()


def later(fault, by_ps):
    return dataclasses.replace(fault, at_ps=fault.at_ps + by_ps, until_ps=fault.until_ps + by_ps)


LINKS = [
    LinkFault(cable(GRAPH, 8, 12), 5 * US, 60 * US, down=True),
    LinkFault(cable(GRAPH, 0, 8), 11 * US, 40 * US, rate_bps=30 * 10**9),
    LinkFault(cable(GRAPH, 9, 13), 7 * US, 50 * US, added_latency_ps=3 * US),
    LinkFault(cable(GRAPH, 2, 9), 1 * US, 90 * US, error_rate=0.01),
]
SLOW = NpuFault(5, 2 * US, 80 * US, slowdown=1.7)


@pytest.mark.parametrize("switch", [{}, SHARED], ids=["plain", "shared"])
@pytest.mark.parametrize("cells", [1, 17, 10**6, 10**10])
def test_faults_that_are_later_too_change_the_same(switch, cells):
    results, by_ps = [], 0
    for shift in (0, cells):
        faults = faults_of(GRAPH, [later(fault, by_ps) for fault in LINKS], [later(SLOW, by_ps)], detection_ps=10 * US)
        chosen = Settings(**(BASE | switch | {"faults": faults, "rto_ps": 30 * US, "max_retries": 100}))
        sim = build_world(GRAPH, begun_at(origin_program(), by_ps), chosen)
        results.append(run(sim))
        by_ps = cells * int(sim.lps[0].world.net.const.cell_ps) if shift == 0 else by_ps
    assert results[0].counters["dropped_packets"] > 0
    assert len(np.unique(results[0].node_finish_ps)) > ORIGIN_NPUS
    assert differences(*results, by_ps) == []


def test_the_largest_numbers_are_carried_whole():
    """The largest packets, the most bytes of one message and link, the widest window."""
    graph = build("switch:npus=2,rate=1000Tbps,delay=1us")

    def one_message(size_bytes):
        return pairs_program([1, -1], size_bytes)

    largest = Settings(mtu_bytes=configuration.MAX_WIRE_BYTES - 82, header_bytes=82)
    sent = run(build_world(graph, one_message(3 * largest.mtu_bytes), largest))
    assert sent.links["tx_bytes"].tolist() == [3 * 65_535, 3 * 86, 3 * 86, 3 * 65_535]
    whole = Settings(fidelity=fidelity.fidelity("congestion_aware"))
    sent = run(build_world(graph, one_message(quantities.MAX_BYTES), whole))
    assert sent.links["tx_bytes"].max() == sent.flows["bytes"].sum() == 2**46 - 1
    widest = Settings(mtu_bytes=1, window_bytes=configuration.MAX_WINDOW_PACKETS)
    sent = run(build_world(graph, one_message(1000), widest))
    assert sent.settled["window_packets"] == 2**22
    assert sent.counters["data_packets"] == 1000
