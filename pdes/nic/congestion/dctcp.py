"""DCTCP: a window by the share of marked packets (Alizadeh et al., SIGCOMM 2010, section 3.1; RFC 8257).

    once per window of data     alpha = (1 - g) alpha + g F, F = share of the acknowledged packets that were marked
    mark, once per window       cwnd = cwnd (1 - alpha / 2)
    otherwise as TCP            cwnd = cwnd + 1 / cwnd for each packet acknowledged: one packet per round trip
    loss, once per window       cwnd = cwnd / 2
    timeout                     cwnd = 1, then slow start to half of what it was

Choices that the paper leaves open:

- cwnd begins at the static window, which is also its cap, as in RDMA; there is no pacing.
- alpha begins at 1 (RFC 8257, section 3.3).
- A window of data ends with the acknowledgement of the first packet that was sent after the last one ended; first alpha
  is updated, then the mark of that acknowledgement cuts (HPCC's ns-3).
- After a cut, by mark or loss, there is no other until a packet first sent after it is acknowledged, and until then
  cwnd does not grow (TCP's CWR and recovery states) except by slow start, after a timeout.
- A marked acknowledgement of several packets marks them all; one that acknowledges no new packet does not count in F,
  but may cut.
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.core.state import CC_ACK, CC_LOSS, CC_START, LOSS_TIMEOUT, world_at
from nadi.pdes.nic.congestion import PACKETS, SHARE, WINDOW_PACKETS, parameter

TITLE = "DCTCP (Alizadeh et al., SIGCOMM 2010)"
SIGNALS = ("ecn",)


class DctcpParameters(ControlParameters, words=24):
    """Parameters of DCTCP."""

    g = parameter(1 / 16, SHARE, "weight of the newest share in alpha (paper)", {"EWMA_GAIN": 1.0})
    initial_alpha = parameter(1.0, SHARE, "alpha before the first window (RFC 8257)")
    increase_packets = parameter(1.0, PACKETS, "growth of cwnd in packets per round trip without cut (TCP)")
    min_window_packets = parameter(
        1.0, WINDOW_PACKETS, "minimum cwnd after a mark or loss (TCP has 2, for delayed acknowledgements)"
    )


PARAMETERS = DctcpParameters.declared


class DctcpState(CongestionState, words=32):
    """State of DCTCP for a queue pair."""

    cwnd_packets = word("float", "congestion window in packets")
    ssthresh_packets = word("float", "window in packets below which slow start applies")
    alpha = word("float", "smoothed share of marked packets")
    acked_packets = word("count", "packets acknowledged in this window of data")
    marked_packets = word("count", "marked packets among these")
    window_end = word("sequence", "first packet not sent when this window of data began")
    cut_end = word("sequence", "first packet not sent at the last cut, -1 none")


own = seen_as(DctcpState)
parameters = seen_as(DctcpParameters)


@inline
def set_window(net, state, cwnd_packets):
    """Use a congestion window, at least a packet and at most the cap; rounded down for sending.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
        cwnd_packets: The window in packets, a real number.
    """
    cwnd_packets = max(1.0, min(cwnd_packets, float(net.const.window_packets)))
    state.cwnd_packets = cwnd_packets
    # cwnd keeps its fraction, since growth of 1 / cwnd per packet would otherwise never add up to a packet
    state.window_packets = np.int64(cwnd_packets)


@inline
def start(net, params, state):
    """Start a queue pair with the static window.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    state.pace_ps_per_byte = 0.0
    state.ssthresh_packets = float(net.const.window_packets)
    state.alpha = params.initial_alpha
    state.cut_end = -1
    set_window(net, state, float(net.const.window_packets))


@inline
def in_cut(state, qp):
    """Return whether no packet sent after the last cut has been acknowledged.

    Args:
        state: State of the queue pair (row of `cc`).
        qp: The queue pair (row of `qps.qp`).
    """
    # -1 before any cut, and una is at least 0
    return state.cut_end >= qp.una


@inline
def update_alpha(params, state, qp):
    """Apply equation 1 of the paper, the estimate of the marked share, at the end of a window of data.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        qp: The queue pair (row of `qps.qp`).
    """
    if qp.una > state.window_end:
        if state.acked_packets > 0:
            share = state.marked_packets / state.acked_packets
            state.alpha = (1.0 - params.g) * state.alpha + params.g * share
        # Section 3.1: one update per window of data, roughly a round trip: it ends when the first packet sent after
        # this moment is acknowledged. With g = 1/16, alpha has followed 64 % of a change of the share F after 16
        # windows.
        state.window_end = qp.sent_max
        state.acked_packets = state.marked_packets = 0


@inline
def cut(net, params, state, qp, factor):
    """Apply equation 2 of the paper: multiply the window by a factor, 1 - alpha / 2, or TCP's 1 / 2.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        qp: The queue pair (row of `qps.qp`).
        factor: Factor by which the window shrinks.
    """
    cwnd = state.cwnd_packets
    # min: a window that is below the minimum already is not raised by a cut
    set_window(net, state, max(cwnd * factor, min(cwnd, params.min_window_packets)))
    state.ssthresh_packets = state.cwnd_packets
    # marks of packets that were sent before the cut say nothing about the rate after it
    state.cut_end = qp.sent_max


@inline
def grow(net, params, state, packets):
    """Apply TCP's slow start or congestion avoidance for newly acknowledged packets.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        packets: Number of newly acknowledged packets.
    """
    cwnd = state.cwnd_packets
    if cwnd < state.ssthresh_packets:
        # slow start doubles cwnd per round trip, and stops at the threshold exactly
        cwnd = min(cwnd + packets, state.ssthresh_packets)
    else:
        # w packets of a round trip add increase_packets in all: w x (1 / w)
        cwnd += params.increase_packets * packets / cwnd
    set_window(net, state, cwnd)


@inline
def on_ack(net, params, state, qp, packets, is_marked):
    """Count newly acknowledged packets, then cut or grow the window.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        qp: The queue pair (row of `qps.qp`).
        packets: Number of newly acknowledged packets.
        is_marked: 1 if a congestion mark is echoed, else 0.
    """
    state.acked_packets += packets
    if is_marked != 0:
        # RFC 8257, section 3.3, counts bytes; all packets but the last of a message are full, so packets give the same
        # share
        state.marked_packets += packets
    update_alpha(params, state, qp)
    # at most one cut per window of data
    free = not in_cut(state, qp)
    if is_marked != 0:
        if free:
            cut(net, params, state, qp, 1.0 - state.alpha / 2.0)
    elif free or state.cwnd_packets < state.ssthresh_packets:
        grow(net, params, state, packets)


@inline
def on_loss(net, params, state, qp, kind):
    """React to a loss as TCP. Consecutive timeouts share one slow start threshold.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        qp: The queue pair (row of `qps.qp`).
        kind: LOSS_NAK, LOSS_TIMEOUT or LOSS_TRIMMED.
    """
    if not in_cut(state, qp):
        cut(net, params, state, qp, 0.5)
    if kind == LOSS_TIMEOUT:
        # RFC 5681, equation 4 and the loss window of one segment; ssthresh is half of the window of before
        set_window(net, state, 1.0)


@hook
def update(world_address, pair, event, _now, packets_or_kind, is_marked, _c):
    """Update a queue pair after an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP or CC_LOSS (pdes/nic/congestion).
        _now: Not used here.
        packets_or_kind: Number of newly acknowledged packets with CC_ACK; kind of loss with CC_LOSS.
        is_marked: 1 if the acknowledgement echoes a congestion mark, with CC_ACK.
        _c: Not used here.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    params, qp, state = parameters(qps.par)[0], qps.qp[pair], own(qps.cc)[pair]
    if event == CC_ACK:
        on_ack(net, params, state, qp, packets_or_kind, is_marked)
    elif event == CC_LOSS:
        on_loss(net, params, state, qp, packets_or_kind)
    elif event == CC_START:
        start(net, params, state)
    return 0
