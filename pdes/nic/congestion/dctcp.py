"""DCTCP: a window by the share of marked packets (Alizadeh et al., SIGCOMM 2010, section 3.1; RFC 8257).

    once per window of data     alpha = (1 - g) alpha + g F, F = share of the packets acknowledged that were marked
    mark, once per window       cwnd = cwnd (1 - alpha / 2)
    otherwise as TCP            cwnd = cwnd + 1 / cwnd for each packet acknowledged: one packet per round trip
    loss, once per window       cwnd = cwnd / 2
    timeout                     cwnd = 1, then slow start to half of what it was

Where the paper leaves a choice:

- cwnd begins at the static window, which is also its cap, as RDMA does; there is no pacing.
- alpha begins at 1 (RFC 8257, section 3.3).
- A window of data ends with the acknowledgement of the first packet that was sent after the last one ended; alpha is
  brought up to date first, then the mark of that acknowledgement cuts (HPCC's ns-3).
- A cut, by mark or loss, is the only one until a packet that had not been sent before it is acknowledged, and until
  then cwnd does not grow (TCP's CWR and recovery states) but by slow start, after a timeout.
- A marked acknowledgement of several packets marks them all; one of nothing new counts in no F, but may cut.
"""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.state import (
    CC_ACK,
    CC_LOSS,
    CC_OWN,
    CC_START,
    LOSS_TIMEOUT,
)
from pdes.core.world import world_at
from pdes.nic.congestion import PACKETS, WINDOW_PACKETS, Parameter

TITLE = "DCTCP (Alizadeh et al., SIGCOMM 2010)"
SIGNALS = ("ecn",)
PARAMETERS = (
    Parameter("g", 1 / 16, "weight of the newest share in alpha (paper)", {"EWMA_GAIN": 1.0}),
    Parameter("initial_alpha", 1.0, "alpha before the first window (RFC 8257)"),
    Parameter("increase_packets", 1.0, "packets that cwnd grows by in a round trip without cut (TCP)", range=PACKETS),
    Parameter(
        "min_window_packets",
        1.0,
        "least cwnd after a mark or loss (TCP has 2, for delayed acknowledgements)",
        range=WINDOW_PACKETS,
    ),
)
PAR_G, PAR_INITIAL_ALPHA, PAR_INCREASE, PAR_MIN_WINDOW = range(4)

CWND = CC_OWN  # float64 packets
SSTHRESH = CC_OWN + 1  # float64 packets: slow start below
ALPHA = CC_OWN + 2  # float64
ACKED = CC_OWN + 3  # packets acknowledged in this window of data
MARKED = CC_OWN + 4  # of these, marked
WINDOW_END = CC_OWN + 5  # first sequence number not sent when this window of data began
CUT_END = CC_OWN + 6  # first sequence number not sent at the last cut, -1 none


@inline
def set_window(net, qps, row, cwnd):
    """Use cwnd, at least a packet and at most the cap; its fraction waits."""
    cwnd = max(1.0, min(cwnd, float(net.const.window_packets)))
    qps.cc[row + CWND] = cwnd
    qps.cc[row].window_packets = np.int64(cwnd)


@inline
def start(net, qps, row):
    """The static window."""
    qps.cc[row].pace_ps_per_byte = 0.0
    qps.cc[row + SSTHRESH] = float(net.const.window_packets)
    qps.cc[row + ALPHA] = qps.par[PAR_INITIAL_ALPHA]
    qps.cc[row + CUT_END] = -1
    set_window(net, qps, row, float(net.const.window_packets))


@inline
def in_cut(qps, row, qp):
    """Whether no packet sent after the last cut has been acknowledged."""
    return qps.cc[row + CUT_END] >= qps.qp[qp].una


@inline
def update_alpha(qps, row, qp):
    """Equation 1 at the end of a window of data."""
    qp_qp = qps.qp[qp]
    if qp_qp.una > qps.cc[row + WINDOW_END]:
        if qps.cc[row + ACKED] > 0:
            share = qps.cc[row + MARKED] / qps.cc[row + ACKED]
            qps.cc[row + ALPHA] = (1.0 - qps.par[PAR_G]) * qps.cc[row + ALPHA] + qps.par[PAR_G] * share
        qps.cc[row + WINDOW_END] = qp_qp.sent_max
        qps.cc[row + ACKED] = 0
        qps.cc[row + MARKED] = 0


@inline
def cut(net, qps, row, qp, factor):
    """Equation 2 with the factor 1 - alpha / 2, or TCP's 1 / 2."""
    cwnd = qps.cc[row + CWND]
    set_window(net, qps, row, max(cwnd * factor, min(cwnd, qps.par[PAR_MIN_WINDOW])))
    qps.cc[row + SSTHRESH] = qps.cc[row + CWND]
    qps.cc[row + CUT_END] = qps.qp[qp].sent_max


@inline
def grow(net, qps, row, packets):
    """Slow start or congestion avoidance of TCP."""
    cwnd = qps.cc[row + CWND]
    if cwnd < qps.cc[row + SSTHRESH]:
        cwnd = min(cwnd + packets, qps.cc[row + SSTHRESH])
    else:
        cwnd += qps.par[PAR_INCREASE] * packets / cwnd
    set_window(net, qps, row, cwnd)


@inline
def on_ack(net, qps, row, qp, packets, mark):
    """Count, and then cut or grow."""
    qps.cc[row + ACKED] += packets
    if mark != 0:
        qps.cc[row + MARKED] += packets
    update_alpha(qps, row, qp)
    free = not in_cut(qps, row, qp)
    if mark != 0:
        if free:
            cut(net, qps, row, qp, 1.0 - qps.cc[row + ALPHA] / 2.0)
    elif free or qps.cc[row + CWND] < qps.cc[row + SSTHRESH]:
        grow(net, qps, row, packets)


@inline
def on_loss(net, qps, row, qp, kind):
    """TCP's answers. Timeouts in a row make for one slow start threshold."""
    if not in_cut(qps, row, qp):
        cut(net, qps, row, qp, 0.5)
    if kind == LOSS_TIMEOUT:
        set_window(net, qps, row, 1.0)


@hook
def update(address, q, event, _now, a, b, _c, _d):
    """Row q of the world after an event (pdes/congestion)."""
    world = world_at(address)
    net = world.net
    qps = world.qps
    if event == CC_ACK:
        on_ack(net, qps, q, q, a, b)
    elif event == CC_LOSS:
        on_loss(net, qps, q, q, a)
    elif event == CC_START:
        start(net, qps, q)
    return 0
