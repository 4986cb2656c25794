"""The engine's shared-buffer fabric against the reference: random runs, and one fixed run for each defect found."""

import json
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, strategies as st

from nadi.pdes import RunError, build_world, run
from nadi.pdes.network.balancing import ECMP, balancing
from nadi.pdes.network.disciplines import discipline, names
from nadi.pdes.nic.congestion import Control
from nadi.pdes.wire import TierSwitch
from tests.budgets import bounded
from tests.fabric import naive
from tests.fabric.cases import Bounded, Flows, Network, Scenario, scenarios, settings_of, star
from tests.fabric.compare import by_hand, check, differences, owners, same
from tests.plain_python import plain_python


def agree(scenario):
    found = check(*scenario.build(), lps=scenario.lps)
    return found and found.reference


RANDOM = {
    "lossless": {"pfc": True},
    "lossy": {"pfc": False},
    "trims": {"pfc": False, "trim": True},
    "lossless, control": {"pfc": True, "controlled": True},
    "lossy, control": {"pfc": False, "controlled": True},
    "trims, control": {"pfc": False, "trim": True, "controlled": True},
    "lossy, selective repeat": {"pfc": False, "selective": True, "controlled": True},
    "trims, selective repeat": {"pfc": False, "trim": True, "selective": True, "controlled": True},
    "lossless, adaptive": {"pfc": True, "adaptive": True},
    "trims, adaptive": {"pfc": False, "trim": True, "adaptive": True, "controlled": True},
}


@pytest.mark.parametrize("kind", RANDOM)
@bounded(20)
@given(st.data())
def test_random_runs_agree(kind, data):
    """With pauses, and with trimmed packets, nothing is lost; every byte that is sent comes or is dropped."""
    reference = agree(data.draw(scenarios(**RANDOM[kind])))
    if reference:
        assert reference.unfinished() == []
        assert reference.count["bytes_sent"] == reference.count["bytes_received"] + reference.count["bytes_dropped"]
        assert kind.startswith("lossy") or reference.count["dropped_packets"] == 0


# Fixed runs, each of which has all of something

ROW = Network(5, (0, 300_000, 0), ((0, 5, 100, 0), (1, 5, 100, 30_000), (5, 6, 100, 500_000), (2, 6, 25, 0),
                                   (6, 7, 100, 0), (3, 7, 100, 1000), (4, 7, 50, 0)))  # fmt: skip
CROWD = Flows(
    ((0, 4, 30_000, 0), (1, 4, 30_000, 0), (2, 4, 30_000, 1), (3, 2, 20_000, 0), (0, 3, 9000, 2)), ((0, 9000, "ring"),)
)
CONTROL = (("cnp", "rtt", "telemetry"), 1.0)
MARKS = {"ecn": True, "ecn_kmin_bytes": 500, "ecn_kmax_bytes": 3000, "ecn_pmax": 0.5}
BASE = {"mtu_bytes": 918, "p2p_class": 1, "seed": 3, "max_retries": 60}
PAUSES = {"buffer_bytes": 170_000, "pfc_alpha": 0.25, "class_weights": (2, 1), "pfc_resume_offset_bytes": 1000} | MARKS
ROOMS = {"buffer_bytes": 45_000, "pfc_alpha": 0.5, "class_weights": (1, 3)} | MARKS
DROPS = {"buffer_bytes": 12_000, "pfc_alpha": 1.0, "pfc": False} | MARKS
LOSSY = BASE | {"rto_ps": 30_000_000, "window_bytes": 9000, "cnp_interval_ps": 500_000}
EACH = Flows(
    tuple((src, dst, 15_000, 0) for src in range(5) for dst in range(5) if src != dst), ((3, 30_000, "direct"),)
)
INCASTS = tuple((src, dst, 12 * 918, wait) for wait in (0, 1) for src in range(5) for dst in (0, 1) if src != dst)
EVEN = Flows((*INCASTS, *((src, 3, 30 * 918, 0) for src in (0, 1, 4))))
"""All packets of 1000 bytes, so sums meet the bounds exactly, and equal rates, so much happens at one time."""
CABLES = ROW._replace(cables=(*ROW.cables, (5, 6, 10, 500_000), (5, 6, 77, 500_000), (6, 7, 25, 0)))
"""A slow cable beside others, so that some lose their turns."""
LONG = Flows((*((src, dst, 80_000, 0) for src, dst in ((0, 4), (1, 3), (3, 0), (4, 1))), (2, 4, 20_000, 1)))
ADAPTIVE = BASE | {"load_balancing": balancing("adaptive"), "selective_repeat": True, "reorder_packets": 0}
AT_A_TIER = ADAPTIVE | {
    "load_balancing": ECMP, "tiers": (TierSwitch("s0", load_balancing=balancing("adaptive")),)
}  # fmt: skip
RUNS = {
    "even, pauses": Scenario(star(5, delay=100_000), EVEN, {"buffer_bytes": 89_000, "pfc_headroom_bytes": 8000}, BASE),
    **{
        f"discipline {name}": Scenario(CABLES, EACH, PAUSES | {"discipline": discipline(name)}, BASE)
        for name in names()
    },
    "even, little headroom": Scenario(
        star(5, delay=100_000), EVEN, {"buffer_bytes": 29_000, "pfc_headroom_bytes": 2000}, LOSSY
    ),
    "even, late resumes": Scenario(
        star(5, delay=100_000),
        EVEN,
        {"buffer_bytes": 89_000, "pfc_headroom_bytes": 8000, "pfc_resume_offset_bytes": 9000},
        BASE,
    ),
    "even, drops": Scenario(star(5, delay=100_000), EVEN, {"buffer_bytes": 9000, "pfc": False}, LOSSY),
    "all to all": Scenario(star(5, [100, 100, 100, 50, 25], 1000), EACH, ROOMS, BASE | {"window_bytes": 20_000}),
    "pauses": Scenario(ROW, CROWD, PAUSES, BASE | {"window_bytes": 30_000}),
    "pauses, control": Scenario(ROW, CROWD, PAUSES, BASE | {"window_bytes": 30_000}, CONTROL),
    "drops": Scenario(ROW, CROWD, DROPS, LOSSY),
    "drops, control": Scenario(ROW, CROWD, DROPS, LOSSY, CONTROL),
    "trims": Scenario(
        ROW, CROWD, DROPS | {"trimming": True, "ecn_kmin_bytes": 0, "ecn_kmax_bytes": 250}, LOSSY, (("ecn", "rtt"), 0.5)
    ),
    "selective": Scenario(ROW, CROWD, DROPS, LOSSY | {"selective_repeat": True}, CONTROL),
    "selective, trims": Scenario(ROW, CROWD, DROPS | {"trimming": True}, LOSSY | {"selective_repeat": True}, CONTROL),
    "headers crowd": Scenario(
        star(5, [400, 400, 400, 400, 25]),
        Flows(tuple((src, 4, 15_000, 0) for src in range(4))),
        {"pfc": False, "trimming": True, "buffer_bytes": 4000},
        {"mtu_bytes": 256, "seed": 3, "max_retries": 60, "rto_ps": 30_000_000, "window_bytes": 9000},
    ),
    "adaptive, pauses": Scenario(CABLES, LONG, PAUSES, ADAPTIVE | {"window_bytes": 60_000}),
    "adaptive, drops": Scenario(CABLES, LONG, DROPS, LOSSY | ADAPTIVE | {"window_bytes": 30_000}, CONTROL),
    "adaptive at a tier, pauses": Scenario(CABLES, LONG, PAUSES, AT_A_TIER | {"window_bytes": 60_000}),
    "adaptive at a tier, output-queued": Scenario(CABLES, LONG, None, AT_A_TIER | {"window_bytes": 60_000}),
    "ECMP at a tier, output-queued": Scenario(
        CABLES, LONG, None, ADAPTIVE | {"window_bytes": 60_000, "tiers": (TierSwitch("s0", load_balancing=ECMP),)}
    ),
    "adaptive, output-queued": Scenario(CABLES, LONG, None, ADAPTIVE | {"window_bytes": 60_000}),
}
MUST_HAPPEN = {
    "even, pauses": {"pause_frames"},
    "even, little headroom": {"pause_frames", "headroom_dropped", "retransmitted_packets"},
    "even, drops": {"dropped_packets"},
    "all to all": {"pause_frames", "marked_packets"},
    "pauses": {"pause_frames", "marked_packets"},
    "drops": {"dropped_packets", "retransmitted_packets", "timeouts", "marked_packets"},
    "trims": {"trimmed_packets", "retransmitted_packets", "marked_packets"},
    "selective": {"dropped_packets", "retransmitted_packets", "congestion_notifications"},
    "selective, trims": {"trimmed_packets", "retransmitted_packets", "congestion_notifications"},
    "headers crowd": {"trimmed_packets", "retransmitted_packets"},
    "adaptive, pauses": {"pause_frames", "marked_packets"},
    "adaptive, drops": {"dropped_packets", "retransmitted_packets"},
}


@cache
def agreed(name):
    """What a fixed run is made of, and the results on which engine and reference agree."""
    parts = RUNS[name].build()
    return parts, check(*parts)


@pytest.mark.parametrize("name", RUNS)
def test_fixed_runs_agree(name):
    _, found = agreed(name)
    for what in MUST_HAPPEN.get(name, ()):
        assert found.reference.count[what] > 0


@pytest.mark.parametrize("lps", [2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_fixed_runs_agree_on_any_partition(name, lps):
    (graph, program, chosen), found = agreed(name)
    owner = owners(graph, lps, chosen.seed)
    assert same(found.results, run(build_world(graph, program, chosen, owner))) == []


PLAIN = """
import json, sys
from tests.fabric.test_against_naive import RUNS, agree
for name in sys.argv[1:]:
    print(json.dumps(agree(RUNS[name]).count))
"""


@pytest.mark.full
def test_plain_python_agrees():
    names = ["pauses, control", "drops, control", "selective, trims"]
    said = plain_python("-c", PLAIN, *names)
    seen = sum((Counter(json.loads(line)) for line in said.splitlines()), Counter())
    assert min(seen[what] for what in ("pause_frames", "dropped_packets", "trimmed_packets", "marked_packets")) > 0


def test_headers_cannot_fill_a_port_for_ever(monkeypatch):
    # four senders of 400 Gb/s into 25: their headers alone are 100 Gb/s and more, so strict priority starves all data
    (graph, program, chosen), found = agreed("headers crowd")
    results = found.results
    assert results.counters["packet_hops"] < Bounded.MOST_HOPS / 4
    monkeypatch.setattr(naive, "TRIMMED_A_TURN", 10**9)
    with pytest.raises(TimeoutError):
        by_hand(graph, program, chosen, results.settled, Bounded)


# One run for each difference that was found

MTU = 918
ALONE = {"mtu_bytes": MTU, "seed": 1, "max_retries": 60, "window_bytes": 50 * MTU}


@pytest.mark.parametrize("pfc", [False, True])
def test_a_full_buffer_is_full_for_an_idle_port_too(pfc):
    # alpha is above 1, so what is free is not the least of the bounds
    flows = Flows(((0, 2, 20_000, 0), (1, 2, 20_000, 0), (3, 4, MTU, 1)))
    rooms = 5 * 5000 if pfc else 0
    switch = {"pfc": pfc, "pfc_alpha": 8.0, "buffer_bytes": 3500 + rooms, "pfc_headroom_bytes": 5000 * pfc}
    found = check(*Scenario(star(5, delay=1000), flows, switch, ALONE | {"rto_ps": 30_000_000}).build())
    if pfc:
        assert found.results.links["pause_frames"][7] == 1
    else:
        assert found.results.links["dropped_packets"][9] == 1


def test_the_first_turn_is_that_of_class_0():
    # while the first packet leaves over the slow cable, several of both classes come
    flows = Flows(((0, 2, 9000, 0), (1, 2, 9000, 0)), ((0, 27_000, "direct"),))
    check(*Scenario(star(3, [100, 100, 10]), flows, {"class_weights": (1, 1)}, ALONE | {"p2p_class": 1}).build())


def test_the_round_trip_of_a_packet_that_begins_at_time_0_is_known():
    switch, control = {}, (("rtt",), 4.0)
    check(*Scenario(star(2), Flows(((0, 1, 20_000, 0),)), switch, ALONE, control).build())


@pytest.mark.parametrize("selective", [False, True])
def test_an_acknowledgement_that_asks_shows_no_round_trip_of_a_last_packet(selective):
    # messages of one packet each, and room for two
    flows = Flows(tuple((src, 4, MTU, wait) for wait in (0, 3, 3, 3) for src in range(4)))
    switch = {"pfc": False, "trimming": True, "buffer_bytes": 4000}
    chosen = ALONE | {"rto_ps": 30_000_000, "selective_repeat": selective}
    found = check(*Scenario(star(5), flows, switch, chosen, (("rtt",), 20.0)).build())
    assert found.results.counters["trimmed_packets"] > 0


def test_a_duplicate_shows_no_round_trip_of_a_last_packet():
    flows = Flows(((0, 1, MTU, 0), (0, 1, 9000, 2), (0, 1, MTU, 3)))
    found = check(*Scenario(star(2), flows, {}, ALONE | {"rto_ps": 900_000}, (("rtt",), 4.0)).build())
    assert found.results.counters["timeouts"] > 0


@pytest.mark.parametrize(("interval", "sent"), [(160_000, 6), (160_001, 4)])
def test_notifications_are_as_far_apart_as_said(interval, sent):
    # marked packets of a queue pair come 160,000 ps apart, and nobody heeds them (tests/fabric/test_naive.py)
    switch = {"ecn": True, "ecn_kmin_bytes": 749, "ecn_kmax_bytes": 750, "ecn_pmax": 0.0}
    told = Control("told", None, frozenset({"cnp"}), ())
    chosen = settings_of(switch, mtu_bytes=MTU, window_bytes=10**6, cnp_interval_ps=interval, congestion_control=told)
    program = Flows(((0, 2, MTU * 19, 0), (1, 2, MTU * 6, 1))).program(3)
    found = check(star(3, delay=500_000).graph(), program, chosen)
    assert found.results.counters["congestion_notifications"] == sent


def test_what_a_packet_met_is_its_own_when_others_depart_as_it_comes():
    flows = Flows(((0, 3, 30_000, 0), (1, 3, 30_000, 0), (2, 0, 30_000, 0)))
    switch = {"pfc": False, "buffer_bytes": 15_000}
    check(*Scenario(star(4), flows, switch, LOSSY | ALONE, (("telemetry",), 1.0)).build())


def test_an_acknowledgement_that_goes_at_once_passes_no_turns_on():
    network = star(4, delay=0)
    flows = Flows(((1, 0, 500, 0), (2, 0, 500, 0), (3, 0, 500, 0)), ((0, 1000, "direct"),))
    switch = {"pfc_alpha": 0.125, "buffer_bytes": 9460, "ecn": True, "ecn_pmax": 0.1}
    chosen = {"mtu_bytes": 256, "seed": 47193, "p2p_class": 1}
    check(*Scenario(network, flows, switch, chosen, (("ecn", "rtt"), 0.0)).build())


def test_a_pair_that_is_due_when_its_port_falls_idle_comes_before_what_is_posted_then():
    # the pace of two and a half packets: it is due again at 200,000 ps, when the port falls idle after others' packets
    flows = Flows(((0, 1, 9000, 0), (0, 2, 9000, 0), (0, 3, 9000, 0), (0, 1, 9000, 2)), ((0, 9000, "ring"),))
    for pace in (2.0, 2.5, 3.0):
        check(*Scenario(star(4, delay=0), flows, {}, ALONE, ((), pace)).build())


@pytest.mark.parametrize(
    ("switch", "least"),
    [({"buffer_bytes": 7999, "pfc_alpha": 0.125}, 8000), ({"buffer_bytes": 999, "pfc_alpha": 8.0}, 1000)],
)
def test_a_buffer_that_no_packet_could_ever_enter_is_refused(switch, least):
    graph, program, chosen = Scenario(star(2), Flows(((0, 1, 9000, 0),)), switch | {"pfc": False}, ALONE).build()
    with pytest.raises(RunError, match=r"^a switch with a buffer of .* expected at least a packet of 1000$") as refused:
        build_world(graph, program, chosen)
    assert refused.value.exit_code == 2
    enough = settings_of(switch | {"pfc": False, "buffer_bytes": least}, **(ALONE | {"rto_ps": 30_000_000}))
    assert check(graph, program, enough).results.finish_time_ps > 0


# The comparison itself


class FramesLast(naive.Simulator):
    """Pause frames wait behind the other control packets."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for switch in self.switches.values():
            for egress in switch.out.values():
                egress.frames = egress.control


class TiesByLink(naive.Simulator):
    def in_order(self, _node, arrivals):
        return sorted(arrivals, key=lambda arrival: arrival[0])


class LooksAtNoQueue(naive.Simulator):
    def work_left(self, _node, _link):
        return 0


class NoEchoOfTrimmed(naive.Simulator):
    def on_data(self, npu, packet):
        packet.marked = packet.marked and not packet.trimmed
        super().on_data(npu, packet)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (FramesLast, "all to all"),
        (TiesByLink, "all to all"),
        (NoEchoOfTrimmed, "trims"),
        (LooksAtNoQueue, "adaptive, pauses"),
        (LooksAtNoQueue, "adaptive, output-queued"),
    ],
)
def test_the_comparison_notices_a_broken_rule(broken, name):
    (graph, program, chosen), found = agreed(name)
    assert differences(found.results, by_hand(graph, program, chosen, found.results.settled, broken)) != []
