"""Senders that choose the entropy of each packet, and NICs of several ports."""

from functools import cache

import numpy as np
import pytest

from nadi.pdes import LinkFault, Settings, build_world, run
from nadi.pdes.construction import schedule
from nadi.pdes.construction.schedule import _only_homes
from nadi.pdes.construction.settings import SharedBuffer
from nadi.pdes.core import ImpossibleRunError
from nadi.pdes.network.balancing import balancing
from nadi.pdes.nic import congestion
from nadi.pdes.nic.entropy import FIXED, entropy_rule, names
from nadi.topologies.graph import UNREACHABLE
from nadi.topologies.graph_builder import GraphBuilder
from tests.fabric import scenarios as sc
from tests.failures.common import cable, faults_of
from tests.parallel.fingerprint import fingerprint

PLANES, LEAVES, SPINES, PER_LEAF = 4, 2, 4, 4
NPUS = LEAVES * PER_LEAF
PORT_BPS, DELAY_PS = 100 * 10**9, 500_000
RULES = [name for name in names() if name != FIXED.name]


@cache
def planes(count=PLANES):
    """Leaf-spines side by side, each with a port of every NPU."""
    builder = GraphBuilder("planes", NPUS)
    leaf = builder.add_switches("leaf", count * LEAVES).reshape(count, LEAVES)
    spine = builder.add_switches("spine", count * SPINES).reshape(count, SPINES)
    for leaves, spines in zip(leaf, spine, strict=True):
        builder.add_cables(np.arange(NPUS), leaves[np.arange(NPUS) // PER_LEAF], PORT_BPS, DELAY_PS)
        builder.add_cables(np.repeat(leaves, SPINES), np.tile(spines, LEAVES), PORT_BPS, DELAY_PS)
    return builder.graph()


def chosen(rule, **more):
    return Settings(**{"entropy": entropy_rule(rule), "paths": 16, "nic_ports": "all"} | more)


def simulated(graph, sent, settings, owner=None, **how):
    return run(build_world(graph, sc.program(NPUS, sent), settings, owner), **how)


def port_bytes(graph, results, npu):
    return results.links["tx_bytes"][graph.link_src == npu]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_message_over_all_ports_takes_their_rates_together(count):
    """Packets leave one after another at the rate of all ports; the last one stores and forwards once, at a port's."""
    packets, wire = 64, 4096 + 82
    results = simulated(planes(count), sc.messages([0], [1], packets * 4096), chosen("oblivious"))
    port_ps, nic_ps = wire * 80, round(wire * 80 / count)
    expected = (packets - 1) * nic_ps + 2 * (port_ps + DELAY_PS)
    assert abs(results.finish_time_ps - expected) <= packets
    assert set(port_bytes(planes(count), results, 0)) == {packets * wire // count}


@pytest.mark.parametrize("rule", ["oblivious", "mrc"])
def test_queue_pairs_whose_turns_have_no_common_order_leave_all_ports_busy(rule):
    """Messages from an NPU to all others of its leaf take as long as one queue pair would at the rate of all ports."""
    packets, wire, peers = 256, 4096 + 82, 7
    graph = planes(8)
    receivers = np.array([npu for npu in range(NPUS) if npu != 0])
    sent = sc.messages(np.zeros(peers, np.int64), receivers, packets * 4096)
    results = simulated(graph, sent, chosen(rule, paths=256, load_balancing=balancing("entropy")))
    expected = packets * peers * wire * 10
    assert expected <= results.finish_time_ps <= 1.03 * expected + 4 * (wire * 80 + DELAY_PS)


def test_that_planes_have_one_home_of_each_npu_changes_no_result(monkeypatch):
    """Without it, packets compare all homes of an NPU, as where switches reach several."""
    graph = planes()
    only = _only_homes(graph.routing.home, graph.routing.hops, np.ones(len(graph.routing.hops), bool))
    home_of_switch = {int(column): place for row in graph.routing.home for place, column in enumerate(row)}
    for row, place in zip(graph.routing.hops, only, strict=True):
        assert {home_of_switch[int(column)] for column in np.flatnonzero(row < UNREACHABLE)} == {int(place)}
    dead = LinkFault(cable(graph, 0, NPUS), 30 * sc.US, 200 * sc.US, down=True)
    sent = sc.messages([0, 1, 5], [6, 4, 2], 300 * 4096)
    settings = chosen("mrc", rto_ps=100 * sc.US, faults=faults_of(graph, [dead], detection_ps=20 * sc.US))
    found = []
    for each in (_only_homes, lambda _home, _hops, is_switch: np.full(len(is_switch), -1, np.int32)):
        monkeypatch.setattr(schedule, "_only_homes", each)
        found.append(fingerprint(simulated(graph, sent, settings)))
    assert found[0] == found[1]


@pytest.mark.parametrize("rule", ["oblivious", "mrc"])
def test_acknowledgements_leave_all_ports_busy(rule):
    """Two messages against each other take the rate of all ports, of which acknowledgements take their bytes."""
    packets, wire, ack = 640, 4096 + 82, 86
    graph = planes()
    sent = sc.messages([0, 5], [5, 0], packets * 4096)
    results = simulated(graph, sent, chosen(rule, window_bytes=1_000_000))
    at_full_rate = packets * (wire + ack) * 80 / PLANES
    idle_ps = 4 * (wire * 80 + DELAY_PS)
    assert abs(results.finish_time_ps / (at_full_rate + idle_ps) - 1) < 0.02


def test_entropies_that_name_links_load_all_of_them_alike():
    """Of 256 packets to the other leaf each of 4 x 4 uplinks of a leaf carries 16, which a hash does not give."""
    graph = planes()
    sent = sc.messages([0], [5], 256 * 4096)
    uplink = (graph.link_src >= NPUS) & (graph.link_dst >= NPUS + PLANES * LEAVES)
    uplink &= (graph.link_src - NPUS) % LEAVES == 0
    bytes_by = {}
    for rule in ("entropy", "ecmp"):
        settings = chosen("oblivious", load_balancing=balancing(rule), paths=64)
        bytes_by[rule] = simulated(graph, sent, settings).links["tx_bytes"][uplink]
    assert len(bytes_by["entropy"]) == PLANES * SPINES
    assert set(bytes_by["entropy"]) == {16 * (4096 + 82)}
    assert bytes_by["ecmp"].max() > 3 * bytes_by["ecmp"].min()


def test_pauses_reach_a_nic_of_several_ports_in_time():
    """What its ports have stored when a pause arrives has headroom at the switch."""
    graph = planes()
    sent = sc.messages(np.arange(1, NPUS), [0] * (NPUS - 1), 500_000)
    pausing = SharedBuffer(pfc=True, buffer_bytes=1_200_000, pfc_alpha=0.1, ecn_kmin_bytes=10**7, ecn_kmax_bytes=10**8)
    results = simulated(graph, sent, chosen("oblivious", switch=pausing, window_bytes=2_000_000))
    assert results.counters["pause_frames"] > 0
    assert results.counters["dropped_packets"] == results.counters["retransmitted_packets"] == 0


@pytest.mark.parametrize("rule", RULES)
def test_any_division_gives_the_same(rule):
    """With trims, marks and losses, so that rules learn."""
    graph = planes()
    sent = sc.messages(np.arange(NPUS), (np.arange(NPUS) + 3) % 5, 300_000)
    lossy = LinkFault(cable(graph, 0, NPUS), 0, error_rate=0.02)
    settings = chosen(
        rule,
        switch=SharedBuffer(pfc=False, trimming=True, buffer_bytes=100_000, ecn_kmin_bytes=500, ecn_kmax_bytes=2000),
        congestion_control=congestion.control("nscc"),
        rto_ps=100 * sc.US,
        faults=faults_of(graph, [lossy]),
    )
    owner = np.arange(graph.nodes) % 2
    wanted = simulated(graph, sent, settings)
    count = wanted.counters
    assert min(count[f"{what}_packets"] for what in ("lost", "trimmed", "marked")) > 0
    sc.check_all_arrived(wanted, sc.program(NPUS, sent), settings)
    assert fingerprint(simulated(graph, sent, settings, owner)) == fingerprint(wanted)
    assert fingerprint(simulated(graph, sent, settings, owner, threads=2)) == fingerprint(wanted)


def test_after_a_pause_the_same_paths_are_taken_again():
    """Messages with a gap longer than a pause take equal times, which messages without one need not."""
    graph, gap_ps = planes(), 100 * sc.US
    sent = sc.messages([0] * 4, [5] * 4, 150_000, np.arange(4) * gap_ps)
    flows = simulated(graph, sent, chosen("reps")).flows
    assert len(set(flows["finish_ps"] - flows["start_ps"])) == 1


def test_a_broken_path_is_left_alone_and_found_again():
    """All losses are within 50 us of the failure of two cables, whose paths probes find to work later."""
    graph, leaf, first_spine = planes(), NPUS, NPUS + PLANES * LEAVES
    dead = (*cable(graph, leaf, first_spine), *cable(graph, leaf, first_spine + 1))
    sent = sc.messages([0], [5], 300_000_000)
    begin_ps = 100 * sc.US
    again, on_dead = {}, {}
    for name, until_ps in {"short": begin_ps + 50 * sc.US, "long": 1500 * sc.US, "for ever": 10**12}.items():
        fault = LinkFault(tuple(sorted(dead)), begin_ps, until_ps, down=True)
        settings = chosen("mrc", faults=faults_of(graph, [fault], detection_ps=10**12), rto_ps=500 * sc.US)
        results = simulated(graph, sent, settings)
        assert results.counters["timeouts"] == 0
        again[name] = results.counters["retransmitted_packets"]
        on_dead[name] = results.links["tx_bytes"][list(dead)].sum()
    assert 0 < again["short"] == again["long"] == again["for ever"]
    assert on_dead["long"] > 4 * on_dead["for ever"]


@pytest.mark.parametrize("control", ["none", "dcqcn", "nscc"])
@pytest.mark.parametrize("delivery", ["auto", "rud"])
def test_a_dead_port_retires_itself_under_any_control(control, delivery):
    """Without any routing protocol, each queue pair loses packets on a dead port for some 50 us and never again."""
    graph = planes()
    begin_ps = 50 * sc.US
    dead = LinkFault(cable(graph, 0, NPUS), begin_ps, 10**12, down=True)
    settings = chosen(
        "mrc",
        delivery=delivery,
        congestion_control=congestion.control(control),
        switch=SharedBuffer(pfc=False, trimming=True),
        faults=faults_of(graph, [dead], detection_ps=10**12),
        rto_ps=200 * sc.US,
    )
    results = simulated(graph, sc.messages([0, 5], [5, 0], 20_000_000), settings)
    sc.check_all_arrived(results, sc.program(NPUS, sc.messages([0, 5], [5, 0], 20_000_000)), settings)
    whole_ps = 20_000_000 * 8 / 400e9 * 1e12
    assert 0 < results.counters["retransmitted_packets"] < 2 * 50e6 / (4178 * 80)
    # three of four ports, and reactions by timeouts at most
    assert results.finish_time_ps < 1.15 * (begin_ps + (whole_ps - begin_ps) * 4 / 3) + 500 * sc.US


def test_a_queue_pair_on_one_port_moves_when_its_plane_is_found_dead():
    """RoCE on one port of several: routes without the dead port, once it is detected."""
    graph = planes()
    ports = [cable(graph, 0, NPUS + LEAVES * plane) for plane in range(PLANES)]
    settings = Settings(nic_ports="first", rto_ps=100 * sc.US)
    sent = sc.messages([0], [5], 5_000_000)
    whole = simulated(graph, sent, settings)
    assert [whole.links["tx_bytes"][link[0] & ~1 | (graph.link_src[link[0]] != 0)] > 0 for link in ports] == [True] + [
        False
    ] * 3
    dead = LinkFault(ports[0], 50 * sc.US, 10**12, down=True)
    settings = Settings(nic_ports="first", rto_ps=100 * sc.US, faults=faults_of(graph, [dead], detection_ps=20 * sc.US))
    results = simulated(graph, sent, settings)
    sc.check_all_arrived(results, sc.program(NPUS, sent), settings)
    assert results.finish_time_ps < whole.finish_time_ps + 300 * sc.US


@pytest.mark.parametrize("rule", ["one", "first", "hash"])
def test_a_rule_names_the_plane_of_a_queue_pair(rule):
    """With `first` messages to seven receivers take plane 0 alone, as DeepEP's did; so do acknowledgements."""
    graph = planes()
    sent = sc.messages([0] * 7, np.arange(1, 8), 100_000)
    results = simulated(graph, sent, Settings(nic_ports=rule))
    data = port_bytes(graph, results, 0)
    back = results.links["tx_bytes"][graph.link_dst == 0]
    assert (data[0] > 0 and not data[1:].any()) if rule == "first" else (data > 0).sum() > 1
    assert ((data > 0) == (back > 0)).all()


def test_nothing_is_sent_on_what_the_operator_denies():
    """Plane 1, and spine 2 of plane 0, carry no data; what is left carries all of it."""
    graph = planes()
    sent = sc.messages(np.arange(NPUS), (np.arange(NPUS) + 5) % NPUS, 500_000)
    denied = ("plane 1", "plane 0 spine 2")
    settings = chosen("mrc", load_balancing=balancing("entropy"), paths=128, denied_paths=denied)
    results = simulated(graph, sent, settings)
    sc.check_all_arrived(results, sc.program(NPUS, sent), settings)
    spine = NPUS + PLANES * LEAVES
    on_spine = np.bincount(graph.link_dst, results.links["tx_bytes"])[spine:]
    assert (np.flatnonzero(on_spine == 0) == [2, 4, 5, 6, 7]).all()


@pytest.mark.parametrize(
    ("denied", "words"),
    [
        (("plane 7",), "smaller numbers"),
        (("spine 4",), "smaller numbers"),
        (("path 16",), "smaller numbers"),
        (tuple(f"plane {plane}" for plane in range(PLANES)), "all paths are denied"),
    ],
)
def test_denials_that_fit_no_path_are_refused(denied, words):
    with pytest.raises(ImpossibleRunError, match=words):
        simulated(planes(), sc.messages([0], [5], 1000), chosen("mrc", denied_paths=denied))
