"""Routing that is not minimal: saturation of dragonflies in closed form, lengths of paths, equal divided runs."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import pdes
from nadi.errors import ConfigError
from nadi.pdes.network import detours
from nadi.pdes.wire import CreditSwitch
from nadi.simulation.network_settings import circular_waits
from nadi.topologies import build
from nadi.topologies.routing import route
from tests.budgets import bounded
from tests.fabric.cases import largest_headrooms
from tests.fabric.scenarios import HEADER, buffer_of, messages, program

SPEC = "dragonfly:p=2,a=4,h=2,rate=100Gbps,switch_latency=100ns"  # 9 groups of 8 NPUs and 8 global cables
GROUPS = 9
RULES = [name for name in detours.names() if detours.detours(name).reorders]
LOCAL_RULES = [name for name in RULES if not detours.detours(name).publish]
SIZE_BYTES = 16 << 20  # as long as 4,096 packets, so that the begin and the end count for little


def adversarial(graph, size_bytes=SIZE_BYTES, groups=GROUPS):
    """Each NPU sends to that at its place in the next group."""
    npu = np.arange(graph.npus)
    return messages(npu, (npu + graph.npus // groups) % graph.npus, size_bytes)


def results(graph, sent, rule, *, owner=None, threads=1, **settings):
    # small acknowledgements: they take the shortest paths, where all of them share one link
    own = {"window_bytes": 500 * 4096, "selective_repeat": True, "reorder_packets": 500, "ack_bytes": 20, "seed": 3}
    chosen = pdes.Settings(routing=detours.detours(rule), **(own | settings))
    return pdes.run(pdes.build_world(graph, program(graph.npus, sent), chosen, owner), threads=threads)


def mean_share(graph, found):
    """The mean rate of messages over the rate of an NPU's link, headers included."""
    wire_bytes = SIZE_BYTES // 4096 * (4096 + 82)
    spent_ps = found.flows["finish_ps"] - found.flows["start_ps"]
    return float(np.mean(8e12 * wire_bytes / graph.link_rate_bps[0] / spent_ps))


def between_groups(graph):
    here, there = graph.group[graph.link_src], graph.group[graph.link_dst]
    return np.flatnonzero((here >= 0) & (there >= 0) & (here != there))


@pytest.mark.parametrize(("rule", "saturation"), [("minimal", 1 / 8), ("valiant", 1 / 2)])
def test_adversarial_traffic_saturates_as_in_closed_form(rule, saturation):
    # All 8 NPUs of a group send to the next: over one link on shortest paths, and twice over one of 8 links on detours
    # (Kim et al., ISCA 2008, section 4.1). NPUs that send 3 % less are not held up, others are.
    graph = build(SPEC)
    below = results(graph, adversarial(graph), rule, p2p_share=0.97 * saturation)
    assert mean_share(graph, below) == pytest.approx(0.97 * saturation, rel=0.02)
    above = results(graph, adversarial(graph), rule, p2p_share=1.2 * saturation)
    assert mean_share(graph, above) == pytest.approx(saturation, rel=0.03)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rule", "saturation", "lanes"),
    [
        ("minimal", 1 / 32, 0),
        ("valiant", 1 / 2, 0),
        ("ugal-g", 1 / 2, 0),
        ("par", 1 / 2, 4),
        ("ugal-l-vch", 1 / 2, 4),
    ],
)
def test_the_same_with_33_groups_of_32(rule, saturation, lanes):
    """Saturation of p = 4, a = 8, h = 4; all acknowledgements of a group cross one link, so they have one byte here."""
    graph = build("dragonfly:p=4,a=8,h=4,rate=100Gbps,switch_latency=100ns")
    own = {"credits": CreditSwitch(virtual_lanes=lanes, lane_buffer_bytes=32_000)} if lanes else {}
    sent = adversarial(graph, groups=33)
    above = results(graph, sent, rule, p2p_share=1.2 * saturation, ack_bytes=1, **own)
    assert mean_share(graph, above) == pytest.approx(saturation, rel=0.03)


@pytest.mark.parametrize("rule", ["ugal-l", "ugal-l-vch", "par"])
def test_with_credits_full_buffers_tell_the_source_of_full_links(rule):
    # Where the switches of a group hold what the link to the next group does not take, the queues of its other switches
    # grow, too, and these send the rest on detours: as with global knowledge up to 1/2 (Kim et al., figure 8), and here
    # up to (8 + 1) / 16, as one of a group's 8 links carries packets on shortest paths, which cross one link, not two.
    graph = build(SPEC)
    lanes = {"credits": CreditSwitch(virtual_lanes=fewest_lanes(SPEC, rule))}
    below = results(graph, adversarial(graph), rule, p2p_share=0.97 / 2, **lanes)
    assert mean_share(graph, below) == pytest.approx(0.97 / 2, rel=0.02)
    above = results(graph, adversarial(graph), rule, p2p_share=0.6, **lanes)
    assert 0.5 < mean_share(graph, above) < 1.03 * 9 / 16


@pytest.mark.parametrize("lanes", [{}, {"credits": CreditSwitch(virtual_lanes=3)}])
def test_global_queues_need_no_full_buffers(lanes):
    # The same bounds, also where queues without a limit tell other switches nothing.
    graph = build(SPEC)
    below = results(graph, adversarial(graph), "ugal-g", p2p_share=0.97 / 2, **lanes)
    assert mean_share(graph, below) == pytest.approx(0.97 / 2, rel=0.005)
    above = results(graph, adversarial(graph), "ugal-g", p2p_share=0.6, **lanes)
    assert mean_share(graph, above) == pytest.approx(9 / 16, rel=0.03)


@pytest.mark.parametrize("rule", ["ugal-l-again", "par", "ugal-g"])
def test_adaptive_rules_take_detours_only_where_they_help(rule):
    graph = build(SPEC)
    one_global_hop = results(graph, messages(np.array([0]), np.array([8]), 1 << 20), rule)
    links = between_groups(graph)
    # an idle network: one sender never finds a queue that is longer than its detour's
    data, acks = (one_global_hop.counters[name] for name in ("data_packets", "ack_packets"))
    assert one_global_hop.links["tx_packets"][links].sum() == data + acks
    crowded = mean_share(graph, results(graph, adversarial(graph), rule))
    assert crowded > 2.5 * mean_share(graph, results(graph, adversarial(graph), "minimal"))


@pytest.mark.parametrize("rule", RULES)
def test_no_packet_crosses_more_than_two_links_between_groups(rule):
    graph = build(SPEC)
    found = results(graph, adversarial(graph, 1 << 18), rule)
    data, acks = (found.counters[name] for name in ("data_packets", "ack_packets"))
    crossed = found.links["tx_packets"][between_groups(graph)].sum() - acks
    assert data <= crossed <= 2 * data
    # a group in eight is that of the destination itself, where there is no detour
    if rule == "valiant":
        assert crossed / data == pytest.approx(2 - 1 / 8, rel=0.01)


@pytest.mark.parametrize("switch", ["output queues", "shared buffers", "credits"])
@pytest.mark.parametrize("spec", [SPEC, "leaf-spine:leaves=4,hosts_per_leaf=3,spines=2,rate=100Gbps"])
@pytest.mark.parametrize("rule", LOCAL_RULES)
def test_any_division_of_the_fabric_gives_the_same_answer(rule, spec, switch):
    graph = build(spec)
    npu = np.arange(graph.npus)
    sent = messages(npu, (npu * 5 + 7) % graph.npus, 60_000)
    sent = sent._replace(**{name: getattr(sent, name)[sent.src != sent.dst] for name in sent._fields})
    # without pauses, which would wait for each other in a circle here (tests/topologies/test_deadlock.py)
    lossy = {"switch": buffer_of(graph, 80_000, pfc=False, trimming=True), "rto_ps": 10**9, "max_retries": 1000}
    with_credits = {"credits": CreditSwitch(virtual_lanes=5, lane_buffer_bytes=9000)}
    early = {"routing_delay_ps": 400_000}
    settings = {"output queues": early, "shared buffers": lossy | early, "credits": with_credits}[switch]
    whole = results(graph, sent, rule, **settings)
    owner = np.arange(graph.nodes) * 7 % 3
    divided = results(graph, sent, rule, owner=owner, threads=2, **settings)
    assert divided.digest == whole.digest
    assert divided.links["tx_bytes"].tolist() == whole.links["tx_bytes"].tolist()


@pytest.mark.parametrize("switch", ["output queues", "shared buffers"])
@pytest.mark.parametrize("rule", [name for name in LOCAL_RULES if detours.detours(name).reads_queues])
def test_a_choice_does_not_see_what_came_within_the_routing_delay(rule, switch):
    # Both NPUs of a switch send at full rate to the next group. A packet sees the queue as it was ten packets earlier.
    graph = build(SPEC)
    sender, receiver = np.array([0, 1]), np.array([8, 9])
    own = {"switch": buffer_of(graph, 4_000_000, pfc=False)} if switch == "shared buffers" else {}
    ten_packets_ps = 10 * (4096 + HEADER) * 80

    def detoured_packets(packets, delay_ps):
        sent = messages(sender, receiver, packets * 4096)
        found = results(graph, sent, rule, routing_delay_ps=delay_ps, ack_bytes=1, **own)
        data, acks = (found.counters[name] for name in ("data_packets", "ack_packets"))
        return found.links["tx_packets"][between_groups(graph)].sum() - data - acks

    assert detoured_packets(10, 0) > 0
    assert detoured_packets(10, ten_packets_ps) == 0
    assert detoured_packets(20, ten_packets_ps) > 0


LOSSLESS = [
    "dragonfly:p=1,a=2,h=1",
    "dragonfly:p=2,a=3,h=1",
    "dragonfly-plus:p=2,leaves=2",
    "slim-fly:q=3,p=1",
    "hyperx:sizes=3x3,p=1",
    "hyperx:sizes=2x3,p=1,dimension_order=true",
    "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2",
]


@pytest.mark.full
@pytest.mark.parametrize("rule", ["minimal", *RULES])
@pytest.mark.parametrize("spec", LOSSLESS)
@bounded(1250)
@given(data=st.data())
def test_random_loads_never_stall(spec, rule, data):
    """10,000 loads of each kind of fabric in 8 variants, with the fewest lanes that the check of circles accepts."""
    graph = build(spec)
    lanes = fewest_lanes(spec, rule)
    npu = st.integers(0, graph.npus - 1)
    sizes = st.sampled_from([500, 4096, 20_000, 60_000])
    sent = data.draw(st.lists(st.tuples(npu, npu, sizes), min_size=graph.npus, max_size=4 * graph.npus))
    src, dst, size = np.array([each for each in sent if each[0] != each[1]] or [(0, 1, 500)]).T
    rules = CreditSwitch(virtual_lanes=lanes, lane_buffer_bytes=data.draw(st.sampled_from([4288, 9000])))
    lossless = data.draw(st.sampled_from([{"credits": rules}, {"switch": pausing(graph, lanes)}]))
    found = results(graph, messages(src, dst, size), rule, seed=data.draw(st.integers(0, 99)), **lossless)
    assert found.counters["dropped_packets"] == 0


@cache
def fewest_lanes(spec, rule):
    """The number of lanes that the refusal of fewer names."""
    graph = build(spec)
    chosen = pdes.Settings(routing=detours.detours(rule), credits=CreditSwitch(virtual_lanes=1))
    try:
        assert circular_waits(graph, chosen) == []
    except ConfigError as refusal:
        return int(re.search(r"expected (\d) or more", str(refusal))[1])
    return 1


def test_too_few_lanes_are_refused_and_would_stop_the_run():
    graph = build(SPEC)
    one, two, three = (CreditSwitch(virtual_lanes=lanes, lane_buffer_bytes=9000) for lanes in (1, 2, 3))
    valiant = detours.detours("valiant")
    refused = (
        r"virtual_lanes: with 1, packets may wait in a circle: router \d+ -> router .*; expected 2 or more$",
        r"virtual_lanes: with 2, packets may wait in a circle: router \d+ -> router .*; expected 3 or more$",
    )
    with pytest.raises(ConfigError, match=refused[0]):
        circular_waits(graph, pdes.Settings(credits=one))
    with pytest.raises(ConfigError, match=refused[1]):
        circular_waits(graph, pdes.Settings(credits=two, routing=valiant))
    with pytest.raises(ConfigError, match=r"with 1, .* or more, as many for collectives and for point-to-point"):
        circular_waits(graph, pdes.Settings(credits=three, routing=valiant, p2p_class=1))
    assert circular_waits(graph, pdes.Settings(credits=three, routing=valiant)) == []
    with pytest.raises(pdes.RunError, match="deadlock: every link"):
        results(graph, adversarial(graph, 1 << 18), "minimal", credits=one)
    assert results(graph, adversarial(graph, 1 << 18), "minimal", credits=two).counters["dropped_packets"] == 0


def pausing(graph, classes, free_bytes=40_000):
    """Switches that pause, with headroom for each class at each port."""
    size_bytes = classes * largest_headrooms(graph, 4288) + free_bytes
    return pdes.SharedBuffer(size_bytes, ecn=False, pfc_resume_offset_bytes=0, pfc_rising_classes=classes)


@pytest.mark.parametrize(("rule", "needed"), [("minimal", 2), ("valiant", 3), ("ugal-l", 3), ("par", 4)])
def test_classes_that_rise_break_circles_of_pauses(rule, needed):
    graph = build(SPEC)
    sent = adversarial(graph, 1 << 18)
    with pytest.raises(pdes.RunError, match="nothing is left to happen"):
        results(graph, sent, rule, switch=pausing(graph, 1))
    chosen = {"switch": pausing(graph, needed)}
    whole = results(graph, sent, rule, **chosen)
    assert whole.counters["dropped_packets"] == 0
    assert whole.counters["pause_frames"] > 1000
    divided = results(graph, sent, rule, owner=np.arange(graph.nodes) * 7 % 3, threads=2, **chosen)
    assert divided.digest == whole.digest


def test_too_few_rising_classes_are_refused():
    graph, valiant = build(SPEC), detours.detours("valiant")

    def waits(classes, **settings):
        return circular_waits(graph, pdes.Settings(switch=pausing(graph, classes), routing=valiant, **settings))

    with pytest.raises(ConfigError, match=r"pfc_rising_classes: with 2, .* in a circle: .*; expected 3 or more$"):
        waits(2)
    assert waits(3) == []
    (warning,) = waits(1)
    assert "pfc = true: the run may stop" in warning
    # classes of messages are as far apart as their packets rise
    assert waits(3, p2p_class=5) == []
    for named in (2, 6):
        with pytest.raises(ConfigError, match=rf"found 3, but messages have the data classes 0, {named} of 0 to 7"):
            waits(3, p2p_class=named)


def test_routes_around_faults_are_searched_for_circles():
    graph = build("hyperx:sizes=2x3,p=1,dimension_order=true")
    # around them packets turn from the second dimension to the first
    down = frozenset(route(graph, *ends)[1] for ends in ((0, 1), (1, 0), (2, 4), (4, 2)))
    faults = pdes.Faults(routings={down: graph.routing.without(graph, down)})
    lane = pdes.Settings(credits=CreditSwitch(virtual_lanes=1), faults=faults)
    assert circular_waits(graph, replace(lane, faults=pdes.Faults())) == []
    (warning,) = circular_waits(graph, lane)
    assert re.search(r"may stop while 2 cables are down, as packets may wait in a circle: router \d -> router", warning)
    tree = build("leaf-spine:leaves=4,hosts_per_leaf=2,spines=2")
    up = frozenset(route(tree, 0, 7)[1:2])
    faults = pdes.Faults(routings={up: tree.routing.without(tree, up)})
    assert circular_waits(tree, pdes.Settings(switch=pausing(tree, 1), faults=faults)) == []


def test_what_cannot_take_detours_is_refused():
    graph = build(SPEC)
    with pytest.raises(pdes.RunError, match="routing ugal-g reads all switches; expected one LP, not 2"):
        results(graph, messages(np.array([0]), np.array([1]), 100), "ugal-g", owner=np.arange(graph.nodes) % 2)
    with pytest.raises(pdes.RunError, match="routed by dimensions"):
        results(build("ring:npus=4"), messages(np.array([0]), np.array([1]), 100), "valiant")
    with pytest.raises(pdes.RunError, match="needs selective repeat"):
        results(build(SPEC), messages(np.array([0]), np.array([1]), 100), "valiant", selective_repeat=False)
