"""The reference of the shared-buffer fabric against cases worked out by hand.

Packets are 1000 bytes on the wire and 100 Gb/s are 80 ps per byte, so a packet takes 80,000 ps and a pause 6,720 ps.
"""

from types import SimpleNamespace

import pytest

from nadi.pdes.nic.congestion import Control
from tests.fabric.cases import Flows, Network, run_naive, settings_of, star
from tests.fabric.naive import NAK, TIMEOUT, TRIMMED, Frame, Simulator, measures
from tests.pdes import naive as plain
from tests.pdes.cases import Traces

MTU = 918
PACKET = 80_000
FRAME = 6720
DELAY = 500_000
HEADROOM = 12_500 + 3000 + 84


class Recorder(Simulator):
    """Writes down what begins to leave: (ps, link, packet)."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sent = []

    def transmit(self, link, packet, start, since):
        self.sent.append((start, link.number, packet))
        super().transmit(link, packet, start, since)

    def frames(self):
        return [(start, link, packet.is_pause) for start, link, packet in self.sent if isinstance(packet, Frame)]


def heard(*signals):
    return Control("told", None, frozenset(signals), ())


def incast(switch, *, of_first=19, of_second=6, window=10**6, control=None, rto_ps=0, signals=(), **chosen):
    """NPU 0 sends to NPU 2 from the start, NPU 1 a microsecond later, so half a packet out of step.

    At 1,620,000 + 80,000 j a packet begins to leave for NPU 2, the (13 + j)th of NPU 0 comes in, and 40,000 ps before
    that the j-th of NPU 1. They leave by turns, those of NPU 1 at even j.
    """
    graph = star(3, delay=DELAY).graph()
    program = Flows(((0, 2, MTU * of_first, 0), (1, 2, MTU * of_second, 1))).program(3)
    chosen = settings_of(switch, mtu_bytes=MTU, congestion_control=heard(*signals), **chosen)
    return run_naive(graph, program, chosen, window=window, rto_ps=rto_ps, control=control, simulator=Recorder)


def leaves(j):
    return 1_620_000 + PACKET * j


@pytest.mark.parametrize(("offset", "resumed"), [(0, leaves(6)), (500, leaves(8))])
def test_an_incast_is_paused_and_resumed_to_the_picosecond(offset, resumed):
    # when the 6th packet of NPU 1 comes, 5000 of 7000 bytes are in use, 2000 of them its own: 3000 is above 2000
    sim = incast({"buffer_bytes": 7000 + 3 * HEADROOM, "pfc_resume_offset_bytes": offset})
    paused = leaves(5) - PACKET // 2
    assert sim.frames() == [(paused, 3, True), (resumed, 3, False)]
    found = measures(sim)
    assert found.links["pause_frames"] == [0, 0, 0, 1, 0, 0]
    assert found.links["paused_ps"] == [0, 0, resumed - paused, 0, 0, 0]
    assert found.links["dropped_packets"] == [0] * 6
    assert found.links["tx_packets"] == [19, 19, 6, 8, 25, 25]
    assert found.switches == {"max_shared_bytes": [5000], "max_headroom_bytes": [1000]}
    assert found.finish == leaves(11) + PACKET + DELAY


def test_a_paused_npu_stops_at_the_first_packet_that_begins_after_the_pause_came():
    # 7 microseconds of NPU 1 are on their way; its packets begin at 1,000,000 + 80,000 j
    sim = incast({"buffer_bytes": 7000 + 3 * HEADROOM}, of_first=60, of_second=60)
    effective = leaves(5) - PACKET // 2 + FRAME + DELAY
    begins = [start for start, link, _ in sim.sent if link == 2]
    before = [start for start in begins if start <= effective]
    resumes = [start + FRAME + DELAY for start, link, is_pause in sim.frames() if link == 3 and not is_pause]
    assert before == [1_000_000 + PACKET * j for j in range(19)]
    assert begins[19] == resumes[0]
    assert measures(sim).count["dropped_packets"] == 0
    assert measures(sim).count["pause_frames"] == measures(sim).count["resume_frames"] > 2
    assert measures(sim).count["payload_bytes"] == 120 * MTU


def test_a_row_of_switches_passes_the_pause_on():
    cables = ((0, 3, 100, 0), (3, 4, 100, 0), (1, 4, 100, 0), (4, 5, 100, 0), (2, 5, 25, 0))
    graph = Network(3, (0, 300_000, 0), cables).graph()
    program = Flows(((0, 2, 100_000, 0), (1, 2, 100_000, 0))).program(3)
    sim = run_naive(graph, program, settings_of({"buffer_bytes": 40_000}, mtu_bytes=MTU), window=10**6)
    found = measures(sim)
    assert found.count["dropped_packets"] == 0
    assert all(found.links["pause_frames"][back] > 0 for back in (1, 3, 5, 7))
    assert all(found.links["paused_ps"][link] > 0 for link in (0, 2, 4, 6))
    assert sim.count["payload_bytes"] == 200_000


# Headroom


class Mute(Recorder):
    """NPU 0 answers nothing, so only data is on its cable."""

    def on_data(self, npu, packet):
        if npu.number != 0:
            super().on_data(npu, packet)


ASKS = 2_000_000 + PACKET + 36_640


def headroom_case(seed, headroom):
    """Headroom of 4000 bytes: NPU 0 sends to NPU 2, whose cable is slow; what NPU 1 sends to NPU 0 is in the way.

    The packet that NPU 0 begins at 2 microseconds asks for a pause. A full packet for NPU 0 has just begun, if it acted
    first in their tie. Then the pause takes effect 80,000 + 6,720 + 36,640 ps later, at the moment when the third
    packet after it begins.
    """
    graph = Network(3, (0,), ((0, 3, 100, 36_640), (1, 3, 100, 36_640), (2, 3, 1, 36_640))).graph()
    program = Flows(((0, 2, MTU * 50, 0), (1, 0, MTU, 2))).program(3)
    rooms = 3 * headroom if headroom else 4000 * 2 + 10 + 3084
    switch = {"buffer_bytes": 48_000 + rooms, "pfc_headroom_bytes": headroom}
    chosen = settings_of(switch, mtu_bytes=MTU, seed=seed)
    return run_naive(graph, program, chosen, window=10**6, simulator=Mute)


def seed_where(first, second):
    """A seed with which, at a switch's first tie, what comes over link `first` acts before that of link `second`."""
    ties = {seed: plain.Ties(seed, 0).in_order(ASKS, [(first,), (second,)]) for seed in range(100)}
    return next(seed for seed, order in ties.items() if order == [(first,), (second,)])


def test_the_headroom_as_computed_just_holds_the_worst_case():
    sim = headroom_case(seed_where(2, 0), 0)
    assert sim.switches[3].into[0].headroom == 4000
    assert sim.frames()[0] == (ASKS + PACKET, 1, True)
    assert sim.switches[3].max_headroom == 4000
    assert sim.count["dropped_packets"] == 0


def test_a_byte_less_of_headroom_drops_in_the_worst_case():
    sim = headroom_case(seed_where(2, 0), 3999)
    assert measures(sim).links["headroom_dropped"] == [1, 0, 0, 0, 0, 0]
    assert measures(sim).links["dropped_packets"] == [0, 0, 0, 0, 0, 1]
    assert sim.count["payload_bytes"] == 50 * MTU


def test_a_byte_less_is_enough_when_nothing_is_in_the_way_of_the_pause():
    sim = headroom_case(seed_where(0, 2), 3999)
    assert sim.frames()[0] == (ASKS, 1, True)
    assert sim.switches[3].max_headroom == 3000
    assert sim.count["dropped_packets"] == 0


def test_headrooms_that_leave_nothing_to_share_are_refused():
    with pytest.raises(ValueError, match="no bytes are left to share"):
        incast({"buffer_bytes": 3 * HEADROOM})
    with pytest.raises(ValueError, match="no bytes are left to share"):
        incast({"buffer_bytes": 7000 + 3 * HEADROOM}, p2p_class=1)


# Without PFC


def test_without_pfc_the_threshold_of_the_queue_drops():
    # before the j-th of NPU 1 comes, j packets wait: with alpha 1 of 11,000 bytes, 6000 do not fit below 6000
    sim = incast({"pfc": False, "buffer_bytes": 11_000}, rto_ps=10**9)
    found = measures(sim)
    assert found.switches["max_shared_bytes"] == [6000]
    assert found.links["dropped_packets"] == [0] * 6
    sim = incast({"pfc": False, "buffer_bytes": 10_000}, rto_ps=10**9)
    found = measures(sim)
    assert found.links["dropped_packets"] == [0, 0, 0, 0, 0, 1]
    assert found.count["payload_bytes"] == 25 * MTU
    assert found.links["pause_frames"] == [0] * 6


@pytest.mark.parametrize(("alpha", "most"), [(0.5, 3000), (1.0, 4000), (4.0, 7000), (100.0, 8000)])
def test_the_threshold_is_alpha_times_what_is_free(alpha, most):
    # qb + 1000 <= alpha (8500 - S), where S = qb
    sim = incast({"pfc": False, "buffer_bytes": 8500, "pfc_alpha": alpha}, of_first=50, of_second=50, rto_ps=10**9)
    assert sim.switches[3].max_used == most


def test_trimmed_packets_come_before_the_others_and_ask_for_themselves():
    sim = incast({"pfc": False, "buffer_bytes": 10_000, "trimming": True}, rto_ps=10**12)
    found = measures(sim)
    trimmed = [(start, packet.seq) for start, link, packet in sim.sent if link == 5 and getattr(packet, "trimmed", 0)]
    assert trimmed[0] == (leaves(5), 5)
    assert found.links["trimmed_packets"][5] == len(trimmed) == found.count["trimmed_packets"]
    assert found.count["dropped_packets"] == found.count["timeouts"] == 0
    assert found.count["payload_bytes"] == 25 * MTU
    assert found.count["bytes_sent"] == found.count["bytes_received"] + found.count["bytes_dropped"]


# Congestion marks


def test_marks_are_certain_from_kmax_on():
    # kmax is 750 bytes at 25 Gb/s: 3000 here. After the j-th has left j packets wait, up to 5, then ever fewer
    switch = {"ecn": True, "ecn_kmin_bytes": 749, "ecn_kmax_bytes": 750, "ecn_pmax": 0.0}
    sim = incast(switch)
    marked = [start for start, link, packet in sim.sent if link == 5 and getattr(packet, "marked", False)]
    assert marked == [leaves(j) for j in range(3, 9)]
    assert measures(sim).links["marked_packets"] == [0, 0, 0, 0, 0, 6]


def test_marks_between_the_thresholds_are_as_likely_as_said():
    sim = incast({"ecn": True, "ecn_kmin_bytes": 1000, "ecn_kmax_bytes": 3000, "ecn_pmax": 0.2})
    switch, link = sim.switches[3], SimpleNamespace(number=5, rate_bps=50 * 10**9, draws=0, last_draw=0)

    def share(waiting):
        link.draws = 0
        return sum(switch.marks(link, 0, waiting) for _ in range(4000)) / 4000

    assert share(2000) == 0.0
    assert share(6000) == 1.0
    assert share(4000) == pytest.approx(0.1, abs=0.02)
    assert share(5999) == pytest.approx(0.2, abs=0.02)


# Two classes


class Sink(Recorder):
    """Packets come from nowhere and are gone at their NPU."""

    def on_data(self, npu, packet):
        pass

    def inject(self, time, link, cls, count):
        for i in range(count):
            packet = plain.Packet(
                src=self.links[link].src, dst=2, size=1000, seq=i, entropy=0, cls=cls, control=False, is_ack=False,
                marked=False, trimmed=False, telemetry=[],
            )  # fmt: skip
            self.schedule(time + i * PACKET, 3, (1, 0, link), self.arrive, 3, self.links[link], packet)

    def served(self):
        return "".join(str(packet.cls) for _, link, packet in self.sent if link == 5)


def sink(weights):
    traces = Traces(3)
    chosen = settings_of({"class_weights": weights}, p2p_class=1, mtu_bytes=MTU)
    return Sink(star(3).graph(), traces.program(), chosen, 10, 0)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((), "1000000111111"), ((1, 1), "1010101010101"), ((2, 1), "1001001001111"), ((1, 3), "1011101110000")],
)
def test_classes_share_the_port_by_their_weights_or_strictly(weights, expected):
    # seven of class 1 from NPU 1, just before six of class 0 from NPU 0
    sim = sink(weights)
    sim.inject(0, 2, 1, 7)
    sim.inject(1, 0, 0, 6)
    sim.run()
    assert sim.served() == expected


def test_a_paused_class_loses_its_turn_and_the_other_goes_on():
    sim = sink((1, 1))
    sim.inject(0, 0, 0, 6)
    sim.inject(1, 2, 1, 6)
    for time, is_pause in ((100_000, True), (300_000, False)):
        frame = Frame(cls=0, is_pause=is_pause)
        sim.schedule(time, 3, (1, 0, 4), sim.arrive, 3, sim.links[4], frame)
    sim.run()
    assert sim.served() == "011101010100"
    assert sim.links[5].paused_ps == 200_000


# NICs


class Told:
    """A window and a pace, and everything that it is told."""

    window, pace = 100, 0.0

    def __init__(self):
        self.heard = []

    def start(self, now, line):
        return self.note("start", now, line)

    def sent(self, now, size, seq):
        return self.note("sent", now, size, seq)

    def ack(self, now, newly, echo, rtt, telemetry):
        return self.note("ack", now, newly, echo, rtt, telemetry)

    def cnp(self, now):
        return self.note("cnp", now)

    def loss(self, now, reason):
        return self.note("loss", now, reason)

    def note(self, *what):
        self.heard.append(what)
        return self.window, self.pace


def controls(**changed):
    made = []

    def make():
        made.append(type("Of", (Told,), changed)())
        return made[-1]

    return make, made


def one_flow(packets, switch=None, window=100, pace=0.0, signals=("rtt",), **chosen):
    make, made = controls(window=window, pace=pace)
    program = Flows(((0, 1, MTU * packets, 0),)).program(2)
    chosen = settings_of(switch or {}, mtu_bytes=MTU, congestion_control=heard(*signals), **chosen)
    sim = run_naive(star(2).graph(), program, chosen, control=make, simulator=Recorder)
    return sim, made[0].heard


def test_a_paced_queue_pair_sends_at_its_pace():
    sim, heard = one_flow(4, pace=200.3)
    assert [start for start, link, _ in sim.sent if link == 0] == [0, 200_300, 400_600, 600_900]
    assert [what for what in heard if what[0] == "sent"] == [("sent", 200_300 * i, 1000, i) for i in range(4)]


def test_two_paced_queue_pairs_and_one_that_is_not_share_a_port():
    # at 320,000 the first comes back behind the third, at 400,000 the second behind both
    traces = Traces(4)
    for dst in (1, 2, 3):
        traces.message(0, dst, MTU * 6)
    made = iter([controls(pace=pace)[0]() for pace in (320.0, 320.0, 0.0)])
    sim = run_naive(
        star(4).graph(), traces.program(), settings_of({}, mtu_bytes=MTU), control=made.__next__, simulator=Recorder
    )
    assert "".join(str(packet.dst) for _, link, packet in sim.sent if link == 0) == "123331323312121212"


def test_a_paused_class_of_an_npu_waits_and_the_other_goes_on():
    traces = Traces(3)
    traces.message(0, 2, 30_000)
    traces.collective(range(3), 0, 9000)
    chosen = settings_of({}, p2p_class=1, mtu_bytes=MTU)
    sim = Recorder(star(3).graph(), traces.program(), chosen, 100, 0)
    for time, is_pause in ((0, True), (10**7, False)):
        sim.schedule(time, 0, (1, 0, 1), sim.arrive, 0, sim.links[1], Frame(cls=1, is_pause=is_pause))
    sim.links[0].paused[1] = True  # from the start
    sim.heap = [event for event in sim.heap if event[0] > 0]
    sim.run()
    data = [(at, packet.cls) for at, link, packet in sim.sent if link == 0 and getattr(packet, "payload", 0)]
    begins = {cls: [at for at, own in data if own == cls] for cls in (0, 1)}
    assert max(begins[0]) < 10**7 <= min(begins[1])
    assert sim.links[0].paused_ps == 10**7


def test_round_trips_are_those_of_the_packet_that_is_answered():
    sim, heard = one_flow(3, window=1)
    trip = 2 * (PACKET + DELAY) + 2 * (86 * 80 + DELAY)
    acks = [what for what in heard if what[0] == "ack"]
    assert acks == [("ack", trip * (i + 1), 1, 0, trip, []) for i in range(3)]
    assert sim.finish == 2 * trip + 2 * (PACKET + DELAY)


def test_telemetry_tells_of_each_switch():
    _, heard = one_flow(2, signals=("telemetry",))
    met = [what[5] for what in heard if what[0] == "ack"]
    assert met == [[(580_000, 0, 0, 80.0)], [(660_000, 1000, 0, 80.0)]]
    assert [what[4] for what in heard if what[0] == "ack"] == [-1, -1]


MARKED = {"ecn": True, "ecn_kmin_bytes": 749, "ecn_kmax_bytes": 750, "ecn_pmax": 0.0}


@pytest.mark.parametrize(("interval", "sent"), [(0, 6), (160_000, 6), (160_001, 4), (10**9, 2)])
def test_marked_packets_bring_notifications_no_more_often_than_said(interval, sent):
    # each queue pair has three marked packets, 160,000 ps apart
    make, made = controls()
    sim = incast(MARKED, control=make, signals=("cnp",), cnp_interval_ps=interval)
    assert sim.count["congestion_notifications"] == sent
    heard = [what for control in made for what in control.heard]
    assert [what[0] for what in heard].count("cnp") == sent
    assert not any(what[3] for what in heard if what[0] == "ack")
    kinds = [(packet.is_cnp, packet.dst) for _, link, packet in sim.sent if link == 4]
    at = kinds.index((True, 0))
    assert kinds[at + 1] == (False, 0)  # the acknowledgement comes after it


def test_without_notifications_the_acknowledgements_echo():
    make, made = controls()
    sim = incast(MARKED, control=make, signals=("ecn",))
    assert sim.count["congestion_notifications"] == 0
    assert [sum(what[3] for what in control.heard if what[0] == "ack") for control in made] == [3, 3]


@pytest.mark.parametrize(
    ("of_each", "switch", "reason"),
    [
        ((40, 40), {"trimming": False}, NAK),
        ((19, 6), {"trimming": False}, TIMEOUT),
        ((19, 6), {"trimming": True}, TRIMMED),
    ],
)
def test_a_loss_is_told_with_its_reason(of_each, switch, reason):
    make, made = controls()
    switch = {"pfc": False, "buffer_bytes": 10_000} | switch
    sim = incast(switch, of_first=of_each[0], of_second=of_each[1], control=make, rto_ps=10**8)
    assert reason in {what[2] for control in made for what in control.heard if what[0] == "loss"}
    assert sim.count["payload_bytes"] == sum(of_each) * MTU
