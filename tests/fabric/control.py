"""A congestion control of no sense that uses every event and all it is told, and its plain twin.

Marks, notifications and losses halve the window and slow the pace; acknowledgements let both grow again; the round trip
and what packets met on their way shift the pace, so that a wrong digit in any of them shows in what comes after.
"""

import numpy as np

from nadi.pdes.core import state as s
from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.nic.congestion import FACTOR, Control, parameter

SLOWEST = 40.0


class SenselessParameters(ControlParameters, words=24):
    pace = parameter(1.0, FACTOR, "ps per byte at the start, in those of the port")


class SenselessState(CongestionState, words=32):
    acked_packets = word("count", "since the window grew")
    base_rtt_ps = word("duration", "shortest round trip so far, 0 none")


own = seen_as(SenselessState)
parameters = seen_as(SenselessParameters)


@inline
def slow(state, factor):
    state.window_packets = max(1, state.window_packets >> 1)
    line = state.line_ps_per_byte
    state.pace_ps_per_byte = min(SLOWEST * line, max(line, state.pace_ps_per_byte) * factor)


@inline
def met(net):
    """One number of all telemetry."""
    total = 0.0
    for hop in range(net.carried.hops):
        first = net.carried.met[2 * hop]
        second = net.carried.met[2 * hop + 1]
        psb = net.link_class[first >> s.TELEMETRY_CLASS_SHIFT].ps_per_byte
        time = first & ((1 << s.TELEMETRY_CLASS_SHIFT) - 1)
        sent = second & ((1 << s.TELEMETRY_QUEUE_SHIFT) - 1)
        queue = second >> s.TELEMETRY_QUEUE_SHIFT
        total = 0.5 * total + (time & 255) + (sent & 255) + 0.01 * queue + psb
    return total


@inline
def on_ack(net, state, packets, mark, rtt):
    line = state.line_ps_per_byte
    state.acked_packets += packets
    if state.acked_packets >= state.window_packets:
        state.acked_packets = 0
        state.window_packets = min(state.window_packets + 1, net.const.window_packets)
    psb = max(0.5 * line, state.pace_ps_per_byte * 0.75)
    if rtt >= 0:
        if state.base_rtt_ps == 0 or rtt < state.base_rtt_ps:
            state.base_rtt_ps = rtt
        if rtt > 2 * state.base_rtt_ps:
            psb = min(SLOWEST * line, 2.0 * psb)
        psb += 0.001 * (rtt & 1023)
    if net.hooks.telemetry != 0:
        psb += 0.001 * met(net)
    state.pace_ps_per_byte = psb
    if mark != 0:
        slow(state, 2.0)


@hook
def update(address, q, event, now, a, b, c):
    world = s.world_at(address)
    net = world.net
    qps = world.qps
    state = own(qps.cc)[q]
    if event == s.CC_START:
        state.window_packets = net.const.window_packets
        state.pace_ps_per_byte = parameters(qps.par)[0].pace * state.line_ps_per_byte
    elif event == s.CC_SENT:
        state.pace_ps_per_byte = state.pace_ps_per_byte * (1.0 + 0.01 * (b & 3)) + 0.0001 * (a & 7) + 0.001 * (now & 7)
    elif event == s.CC_ACK:
        on_ack(net, state, a, b, c)
    elif event == s.CC_CNP:
        slow(state, 1.5)
    elif event == s.CC_LOSS:
        slow(state, 1.25 + 0.25 * a)
    state.pace_ps_per_byte = min(state.pace_ps_per_byte, np.float64(2.0 * SLOWEST * state.line_ps_per_byte))
    return 0


def control_of(signals, pace):
    """The control; pace: ps per byte at the start, in those of the port."""
    return Control("test", update, frozenset(signals), (float(pace),))


class Twin:
    """For the reference; most: the static window."""

    def __init__(self, most, pace, *, telemetry):
        self.most, self.pace, self.telemetry = most, pace, telemetry
        self.acked = self.base = 0

    def ruled(self):
        self.psb = min(self.psb, 2.0 * SLOWEST * self.line)
        return self.window, self.psb

    def slow(self, factor):
        self.window = max(1, self.window // 2)
        self.psb = min(SLOWEST * self.line, max(self.line, self.psb) * factor)

    def start(self, _now, line):
        self.line, self.window, self.psb = line, self.most, self.pace * line
        return self.ruled()

    def sent(self, now, size, seq):
        self.psb = self.psb * (1.0 + 0.01 * (seq % 4)) + 0.0001 * (size % 8) + 0.001 * (now % 8)
        return self.ruled()

    def ack(self, _now, newly, echo, rtt, telemetry):
        self.acked += newly
        if self.acked >= self.window:
            self.acked, self.window = 0, min(self.window + 1, self.most)
        self.psb = max(0.5 * self.line, self.psb * 0.75)
        if rtt >= 0:
            self.base = rtt if self.base == 0 else min(self.base, rtt)
            if rtt > 2 * self.base:
                self.psb = min(SLOWEST * self.line, 2.0 * self.psb)
            self.psb += 0.001 * (rtt % 1024)
        if self.telemetry:
            total = 0.0
            for time, sent, queue, psb in telemetry:
                total = 0.5 * total + time % 256 + sent % 256 + 0.01 * queue + psb
            self.psb += 0.001 * total
        if echo:
            self.slow(2.0)
        return self.ruled()

    def cnp(self, _now):
        self.slow(1.5)
        return self.ruled()

    def loss(self, _now, reason):
        self.slow(1.25 + 0.25 * reason)
        return self.ruled()
