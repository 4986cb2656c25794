"""Two flows through one bottleneck: at every update window and rate are those of the naive per-acknowledgement models.

The kernel runs as plain Python in a process of its own (tests/fabric/listening.py) and writes down what it tells the
control; the models of tests/congestion/naive are told the same. What it was told is checked too.
"""

import json
import math
from functools import cache
from itertools import pairwise

import pytest

from nadi.pdes.core import state as s
from nadi.pdes.nic import congestion
from tests.congestion.naive.dcqcn import Dcqcn
from tests.congestion.naive.dctcp import Dctcp
from tests.congestion.naive.hpcc import Hpcc, Link
from tests.congestion.naive.nscc import Nscc
from tests.congestion.naive.swift import Swift
from tests.congestion.naive.timely import Timely
from tests.fabric import listening
from tests.nonempty import nonempty
from tests.plain_python import plain_python

CONTROLS = congestion.names()[1:]
WIRE = listening.MTU + 82
PACKET = WIRE * 80
IDLE_TRIP = 2 * (PACKET + listening.DELAY) + 2 * (86 * 80 + listening.DELAY)
KMIN, KMAX = 4000, 32_000
CLOSE = {"rel": 1e-9, "abs": 0}


@cache
def all_heard():
    return json.loads(plain_python("-m", "tests.fabric.listening", *CONTROLS))


def heard(name):
    return all_heard()[name]


def calls(name):
    """The calls of each queue pair: (event, now, a, b, c, una, next, carried, window, ps per byte)."""
    of = {}
    for q, *call in heard(name)["calls"]:
        of.setdefault(q, []).append(call)
    assert sorted(of) == [0, 1]
    return of.values()


def defaults(name):
    return {own: parameter.default for own, parameter in congestion.parameters(name).items()} | listening.VALUES.get(
        name, {}
    )


class Told:
    """A model behind one interface: tell(event, now, a, b, c, una, following, carried); window(), psb()."""

    def __init__(self, name, now):
        window, base_rtt, self.line_psb = heard(name)["settled"]
        line = 8e12 / self.line_psb
        make = {
            "dcqcn": lambda: Dcqcn(line, window, **defaults(name)),
            "dctcp": lambda: Dctcp(window, **defaults(name)),
            "timely": lambda: Timely(line, window, base_rtt, **defaults(name)),
            "swift": lambda: Swift(base_rtt, window, base_target=listening.VALUES[name]["base_target_ps"]),
            "hpcc": lambda: Hpcc(1 / self.line_psb, base_rtt),
            "nscc": lambda: Nscc(now, 1 / self.line_psb, base_rtt, listening.MTU, WIRE, window),
        }
        self.name, self.most = name, window
        self.model = make[name]()

    def tell(self, event, now, a, b, c, una, following, carried):
        model = self.model
        if self.name in {"dcqcn", "dctcp", "timely"}:
            if event == s.CC_SENT:
                model.sent(now, a)
            elif event == s.CC_ACK:
                model.ack(now, a, b, c)
            elif event == s.CC_CNP:
                model.cnp(now)
        elif event == s.CC_ACK and self.name == "swift":
            model.on_ack(now, a, c if c >= 0 else None)
        elif event == s.CC_ACK and self.name == "nscc":
            model.on_ack(now, a * WIRE, b == 1, c if c >= 0 else None, (following - una) * WIRE)
        elif event == s.CC_ACK:
            model.new_ack(una, following, [Link(i, 1 / self.line_psb, *hop) for i, hop in enumerate(hops(carried))])

    def windows(self):
        """Windows in packets that are right, where a float may lie on either side of a whole number."""
        near = (-1e-9, 1e-9)
        if self.name == "hpcc":
            return {min(self.most, max(1, math.ceil(self.model.w / WIRE * (1 + e)))) for e in near}
        if self.name in {"nscc", "swift"}:
            packets = self.model.cwnd / (WIRE if self.name == "nscc" else 1)
            return {max(1, int(packets * (1 + e))) for e in near}
        return {self.model.window}

    def psb(self):
        if self.name == "hpcc":
            return 1 / self.model.rate
        if self.name == "swift":
            return self.model.pacing_delay / WIRE
        return 0.0 if self.name == "nscc" else self.model.psb


def hops(carried):
    """(time, bytes sent before, bytes left in the queue) at each switch."""
    found = []
    for first, second in zip(carried[::2], carried[1::2], strict=True):
        time = first & ((1 << s.TELEMETRY_CLASS_SHIFT) - 1)
        found.append((time, second & ((1 << s.TELEMETRY_QUEUE_SHIFT) - 1), second >> s.TELEMETRY_QUEUE_SHIFT))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_the_kernel_agrees_with_the_model_at_every_update(name):
    changes = 0
    for of_flow in nonempty(calls(name)):
        event, now, *_ = of_flow[0]
        assert event == s.CC_START
        told = Told(name, now)
        for *what, window, psb in of_flow:
            told.tell(*what)
            assert psb == pytest.approx(told.psb(), **CLOSE), what
            assert window in told.windows(), what
        assert len(of_flow) >= 1 + 2 * listening.PACKETS
        changes += sum(one[-2:] != other[-2:] for one, other in pairwise(of_flow))
    assert changes > 3


@pytest.mark.parametrize("name", CONTROLS)
def test_every_packet_is_told_of_once_sent_and_once_acknowledged(name):
    for of_flow in nonempty(calls(name)):
        sent = [call for call in of_flow if call[0] == s.CC_SENT]
        acked = [call for call in of_flow if call[0] == s.CC_ACK]
        assert [call[2] for call in sent] == [WIRE] * listening.PACKETS
        assert [call[3] for call in sent] == list(range(listening.PACKETS))
        assert sum(call[2] for call in acked) == listening.PACKETS
        assert [call[1] for call in of_flow] == sorted(call[1] for call in of_flow)
        assert not [call for call in of_flow if call[0] == s.CC_LOSS]
    assert heard(name)["counters"]["retransmitted_packets"] == 0


@pytest.mark.parametrize("name", ["timely", "swift", "nscc"])
def test_round_trips_are_those_from_the_packet_to_its_acknowledgement(name):
    """Each packet is answered on its own, so the n-th round trip is from the n-th sending on."""
    for of_flow in nonempty(calls(name)):
        sent = [now for event, now, *_ in of_flow if event == s.CC_SENT]
        acked = [(now, rtt) for event, now, _, _, rtt, *_ in of_flow if event == s.CC_ACK]
        assert [rtt for _, rtt in acked] == [now - begin for (now, _), begin in zip(acked, sent, strict=True)]
        assert min(rtt for _, rtt in acked) >= IDLE_TRIP
    first, _ = calls(name)
    alone = [rtt for event, now, _, _, rtt, *_ in first if event == s.CC_ACK and now < listening.LATER]
    assert len(alone) > 70
    assert set(alone) == {IDLE_TRIP}


def test_telemetry_is_what_went_on_at_the_port():
    """Only data goes to the receiver: packet i finds i packets sent before, and where one waits it goes right after."""
    rows = sorted(row for of_flow in calls("hpcc") for call in of_flow if call[0] == s.CC_ACK for row in hops(call[7]))
    assert len(rows) == 2 * listening.PACKETS
    assert [sent for _, sent, _ in rows] == [i * WIRE for i in range(2 * listening.PACKETS)]
    for (time, _, queue), (after, _, later) in pairwise(rows):
        assert after >= time + PACKET
        assert queue % WIRE == later % WIRE == 0
        if queue:
            assert after == time + PACKET
            assert later >= queue - WIRE
    assert max(queue for _, _, queue in rows) > 5 * WIRE
    assert {queue for time, _, queue in rows if time < listening.LATER} == {0}


@pytest.mark.parametrize("name", CONTROLS)
def test_marks_are_for_queues_above_kmin_and_reach_the_sender(name):
    marks = heard(name)["marks"]
    assert all(left > KMIN for left, marked in nonempty(marks) if marked)
    assert all(marked for left, marked in nonempty(marks) if left >= KMAX)
    between = [marked for left, marked in marks if KMIN < left < KMAX]
    assert any(between)
    assert not all(between)
    total = sum(marked for _, marked in marks)
    assert total == heard(name)["counters"]["marked_packets"]
    echoed = sum(call[3] for of_flow in calls(name) for call in of_flow if call[0] == s.CC_ACK)
    assert echoed == (0 if name == "dcqcn" else total)


def test_notifications_keep_their_distance():
    notified = heard("dcqcn")["notified"]
    assert len(notified) > 4
    for flow in (0, 1):
        times = [now for src, now in notified if src == flow]
        assert min(after - before for before, after in pairwise(times)) >= listening.CNP_INTERVAL
    told = sum(call[0] == s.CC_CNP for of_flow in calls("dcqcn") for call in of_flow)
    assert told == len(notified) == heard("dcqcn")["counters"]["congestion_notifications"]
    assert not any(heard(name)["notified"] for name in CONTROLS if name != "dcqcn")
