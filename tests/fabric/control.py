"""A congestion control of no sense that uses every event and all it is told, and its plain twin.

Marks, notifications and losses halve the window and slow the pace; acknowledgements let both grow again; the round trip
and what packets met on their way shift the pace, so that a wrong digit in any of them shows in what comes after.
"""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.state import (
    CC_ACK,
    CC_CNP,
    CC_LINE_PSB,
    CC_LOSS,
    CC_OWN,
    CC_PSB,
    CC_SENT,
    CC_START,
    CC_WINDOW,
    CC_WORDS,
    CLASS_PSB,
    CLASS_WORDS,
    CONST_TELEMETRY,
    CONST_WINDOW,
    TELEMETRY_CLASS_SHIFT,
    TELEMETRY_FIRST,
    TELEMETRY_HOPS,
    TELEMETRY_QUEUE_SHIFT,
)
from pdes.core.world import world_at
from pdes.nic.congestion import Control

ACKED = CC_OWN
BASE = CC_OWN + 1
SLOWEST = 40.0


@inline
def slow(qps, row, factor):
    qps.cc[row + CC_WINDOW] = max(1, qps.cc[row + CC_WINDOW] >> 1)
    line = qps.ccf[row + CC_LINE_PSB]
    qps.ccf[row + CC_PSB] = min(SLOWEST * line, max(line, qps.ccf[row + CC_PSB]) * factor)


@inline
def met(net):
    """One number of all telemetry."""
    total = 0.0
    for hop in range(net.carried[TELEMETRY_HOPS]):
        first = net.carried[TELEMETRY_FIRST + 2 * hop]
        second = net.carried[TELEMETRY_FIRST + 2 * hop + 1]
        psb = net.link_classf[(first >> TELEMETRY_CLASS_SHIFT) * CLASS_WORDS + CLASS_PSB]
        time = first & ((1 << TELEMETRY_CLASS_SHIFT) - 1)
        sent = second & ((1 << TELEMETRY_QUEUE_SHIFT) - 1)
        queue = second >> TELEMETRY_QUEUE_SHIFT
        total = 0.5 * total + (time & 255) + (sent & 255) + 0.01 * queue + psb
    return total


@inline
def on_ack(net, qps, row, packets, mark, rtt):
    line = qps.ccf[row + CC_LINE_PSB]
    qps.cc[row + ACKED] += packets
    if qps.cc[row + ACKED] >= qps.cc[row + CC_WINDOW]:
        qps.cc[row + ACKED] = 0
        qps.cc[row + CC_WINDOW] = min(qps.cc[row + CC_WINDOW] + 1, net.const[CONST_WINDOW])
    psb = max(0.5 * line, qps.ccf[row + CC_PSB] * 0.75)
    if rtt >= 0:
        if qps.cc[row + BASE] == 0 or rtt < qps.cc[row + BASE]:
            qps.cc[row + BASE] = rtt
        if rtt > 2 * qps.cc[row + BASE]:
            psb = min(SLOWEST * line, 2.0 * psb)
        psb += 0.001 * (rtt & 1023)
    if net.const[CONST_TELEMETRY] != 0:
        psb += 0.001 * met(net)
    qps.ccf[row + CC_PSB] = psb
    if mark != 0:
        slow(qps, row, 2.0)


@hook
def update(address, q, event, now, a, b, c, _d):
    world = world_at(address)
    net = world.net
    qps = world.qps
    row = q * CC_WORDS
    if event == CC_START:
        qps.cc[row + CC_WINDOW] = net.const[CONST_WINDOW]
        qps.ccf[row + CC_PSB] = qps.par[0] * qps.ccf[row + CC_LINE_PSB]
    elif event == CC_SENT:
        qps.ccf[row + CC_PSB] = qps.ccf[row + CC_PSB] * (1.0 + 0.01 * (b & 3)) + 0.0001 * (a & 7) + 0.001 * (now & 7)
    elif event == CC_ACK:
        on_ack(net, qps, row, a, b, c)
    elif event == CC_CNP:
        slow(qps, row, 1.5)
    elif event == CC_LOSS:
        slow(qps, row, 1.25 + 0.25 * a)
    qps.ccf[row + CC_PSB] = min(qps.ccf[row + CC_PSB], np.float64(2.0 * SLOWEST * qps.ccf[row + CC_LINE_PSB]))
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
