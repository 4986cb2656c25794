"""Swift: the window follows the difference between round-trip time and target.

G. Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020:
Algorithm 1 (sections 3.1 to 3.4), section 3.5 (scaling of the target delay), section 3.6 (loss, pacing below one
packet). Only the fabric window exists here: NPUs take packets without delay, so the end-point window never binds.

The paper gives few values; the others come from its authors' simulator (htsim, swift.cpp), as each parameter states.
Choices that the paper leaves open:

- Target delay. The paper adds hbar for each hop, counted by the TTL. Packets carry no TTL here; hops add to a round
  trip its idle length. So the target is base_target (the allowed queueing), hop_scale times the smallest round trip of
  the queue pair (at most the fabric's longest idle one, so that a queue pair that starts during congestion does not
  mistake it for distance), and the flow term max(0, min(alpha / sqrt(cwnd) + beta, range)).
- `rtt` is smoothed, 7/8 of the old and 1/8 of the new, as in htsim; decreases are one rtt apart, by its value before.
- The paper's last lines set t_last_decrease = now if cwnd <= cwnd_prev. Taken literally, acknowledgements that change
  nothing would postpone the next decrease for ever; it is set if cwnd < cwnd_prev, as in htsim.
- max_cwnd is the static window of the run, and cwnd begins there, as RDMA begins at line rate.
- A packet that is lost or trimmed is a fast recovery; the pacing delay rtt / cwnd is that of a full packet.
"""

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.core.state import CC_ACK, CC_LOSS, CC_REST, CC_START, LOSS_TIMEOUT, world_at
from nadi.pdes.network.link import full_packet_bytes
from nadi.pdes.nic.congestion import COUNT, FACTOR, PACKETS, SHARE, TIME_OR_0_PS, WINDOW_PACKETS, Allowed, parameter

TITLE = "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter (SIGCOMM 2020)"
SIGNALS = ("rtt",)
FORGETS = True
WINDOW_OR_0_PACKETS = Allowed(1e-6, 2.0**22, special=0.0)
FLOW_SCALING_PS = Allowed(0.0, 1e18, special=-1.0)


class SwiftParameters(ControlParameters, words=24):
    """Parameters of Swift."""

    ai_packets = parameter(1.0, PACKETS, "additive increase per round trip (htsim)")
    beta = parameter(0.8, SHARE, "multiplicative decrease constant (htsim)")
    max_mdf = parameter(0.5, SHARE, "maximum share of the window that one decrease removes (htsim)")
    base_target_ps = parameter(0.0, TIME_OR_0_PS, "queueing delay allowed; 0: the fabric's longest idle round trip")
    hop_scale = parameter(1.0, FACTOR, "target per idle round trip of the path, in place of hbar per hop (section 3.5)")
    fs_range_ps = parameter(
        -1.0, FLOW_SCALING_PS, "maximum that flow scaling adds; -1: 5 x base_target (htsim); 0: no flow scaling"
    )
    fs_min_cwnd_packets = parameter(0.1, WINDOW_PACKETS, "window below which flow scaling adds all of fs_range (htsim)")
    fs_max_cwnd_packets = parameter(100.0, WINDOW_PACKETS, "window above which flow scaling adds nothing (htsim)")
    min_cwnd_packets = parameter(0.001, WINDOW_PACKETS, "minimum window (section 3.6)")
    initial_cwnd_packets = parameter(0.0, WINDOW_OR_0_PACKETS, "initial window; 0: the static window")
    retx_reset_threshold = parameter(5.0, COUNT, "consecutive timeouts after which the window is min_cwnd (htsim)")


PARAMETERS = SwiftParameters.declared
ASCENDING = (("fs_min_cwnd_packets", "fs_max_cwnd_packets"),)  # flow scaling divides by the difference of this pair
NEVER = -(1 << 61)  # time in ps before any event of a run


class SwiftState(CongestionState, words=32):
    """State of Swift for a queue pair."""

    cwnd_packets = word("float", "congestion window in packets")
    rtt_ps = word("float", "smoothed round-trip time; 0 = not measured yet")
    last_decrease_ps = word("time", "time of the window's last decrease, NEVER at first")
    retransmit_cnt = word("count", "consecutive timeouts")
    path_rtt_ps = word("duration", "idle round trip, as far as known")
    fs_alpha_ps = word("float", "ps times the square root of packets: alpha of flow scaling")
    fs_beta_ps = word("float", "ps: beta of flow scaling")


own = seen_as(SwiftState)
parameters = seen_as(SwiftParameters)


@inline
def root(x):
    """Return the square root of x > 0 by Newton's method from above: identical in compiled code and plain Python."""
    y = max(x, 1.0)
    better = 0.5 * (y + x / y)
    # from above, each estimate is smaller than the one before until rounding stops it, so the loop ends
    while better < y:
        y = better
        better = 0.5 * (y + x / y)
    return y


@inline
def base_target(net, params):
    """Return the allowed queueing delay in ps.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
    """
    return params.base_target_ps if params.base_target_ps > 0.0 else float(net.const.base_rtt_ps)


@inline
def fs_range(net, params):
    """Return the maximum that flow scaling adds, in ps.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
    """
    return params.fs_range_ps if params.fs_range_ps >= 0.0 else 5.0 * base_target(net, params)


@inline
def target_delay(net, params, state):
    """Return the target delay of a queue pair in ps, TargetDelay() of section 3.5.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    # section 3.5, flow scaling: with many flows each has a small cwnd and needs a longer queue to stay stable; alpha
    # and beta make the term fs_range at fs_min_cwnd and 0 at fs_max_cwnd
    flow = state.fs_alpha_ps / root(state.cwnd_packets) + state.fs_beta_ps
    flow = max(min(flow, fs_range(net, params)), 0.0)
    return base_target(net, params) + params.hop_scale * state.path_rtt_ps + flow


@inline
def round_trip(net, state):
    """Return the smoothed rtt in ps; before the first measurement, that of the idle fabric.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
    """
    return state.rtt_ps if state.rtt_ps > 0.0 else float(net.const.base_rtt_ps)


@inline
def settle(net, params, state, now_ps, cwnd_packets):
    """Apply the end of Algorithm 1: keep a window within its limits, use it, and pace below one packet.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        cwnd_packets: The window in packets, a real number.
    """
    cwnd_packets = min(max(cwnd_packets, params.min_cwnd_packets), float(net.const.window_packets))
    # before the new value is stored: this is the only place that knows whether the window shrank
    if cwnd_packets < state.cwnd_packets:
        state.last_decrease_ps = now_ps
    state.cwnd_packets = cwnd_packets
    if cwnd_packets < 1.0:
        state.window_packets = 1
        # section 3.6: cwnd = 0.5 means one packet every two round trips; a window of 0 packets would never send again
        state.pace_ps_per_byte = round_trip(net, state) / cwnd_packets / full_packet_bytes(net)
    else:
        state.window_packets = int(cwnd_packets)
        state.pace_ps_per_byte = 0.0


@inline
def start(net, params, state, now_ps):
    """Initialise a new queue pair.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    # alpha / sqrt(w) + beta is a line in 1 / sqrt(w): fs_range at low, 0 at high
    low = 1.0 / root(params.fs_min_cwnd_packets)
    high = 1.0 / root(params.fs_max_cwnd_packets)
    state.fs_alpha_ps = fs_range(net, params) / (low - high)
    state.fs_beta_ps = -state.fs_alpha_ps * high
    state.last_decrease_ps = NEVER
    state.path_rtt_ps = net.const.base_rtt_ps
    initial = params.initial_cwnd_packets
    settle(net, params, state, now_ps, initial if initial > 0.0 else float(net.const.window_packets))


@inline
def can_decrease(net, state, now_ps):
    """Return whether the last decrease was at least an rtt ago.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    # section 3.1: at most one decrease per round trip, since its effect is seen only after one
    return now_ps - state.last_decrease_ps >= round_trip(net, state)


@inline
def on_ack(net, params, state, now_ps, acked_packets, rtt_ps):
    """Handle an acknowledgement.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        acked_packets: Number of newly acknowledged packets.
        rtt_ps: Round-trip time in ps.
    """
    # by the round trip known before this measurement
    may = can_decrease(net, state, now_ps)
    state.path_rtt_ps = min(state.path_rtt_ps, rtt_ps)
    delay = float(rtt_ps)
    # smoothed as TCP's round trip (RFC 6298)
    state.rtt_ps = delay if state.rtt_ps <= 0.0 else 0.875 * state.rtt_ps + 0.125 * delay
    target = target_delay(net, params, state)
    cwnd = state.cwnd_packets
    if delay >= target:
        if may:
            # the further beyond the target, the larger the cut, at most max_mdf: delay 2 x target with beta 0.8 gives 1
            # - 0.4
            cwnd *= max(1.0 - params.beta * (delay - target) / delay, 1.0 - params.max_mdf)
    elif cwnd >= 1.0:
        # ai_packets per round trip in all, as cwnd packets are acknowledged in one
        cwnd += params.ai_packets / cwnd * acked_packets
    else:
        # below one packet, acknowledgements are a round trip or more apart, so each adds ai_packets (algorithm 1)
        cwnd += params.ai_packets * acked_packets
    settle(net, params, state, now_ps, cwnd)


@inline
def on_loss(net, params, state, now_ps, kind):
    """Handle a loss: use the minimum window after several timeouts, else decrease it.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        kind: LOSS_NAK, LOSS_TIMEOUT or LOSS_TRIMMED.
    """
    state.retransmit_cnt = state.retransmit_cnt + 1 if kind == LOSS_TIMEOUT else 0
    cwnd = state.cwnd_packets
    if kind == LOSS_TIMEOUT and state.retransmit_cnt >= params.retx_reset_threshold:
        cwnd = params.min_cwnd_packets
    # the same limit of one decrease per round trip as for delay: losses of one burst count once
    elif can_decrease(net, state, now_ps):
        cwnd *= 1.0 - params.max_mdf
    settle(net, params, state, now_ps, cwnd)


@hook
def update(world_address, pair, event, now_ps, packets_or_kind, _b, rtt_ps):
    """Update a queue pair after an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP, CC_LOSS or CC_REST (pdes/nic/congestion).
        now_ps: Current time in ps.
        packets_or_kind: Number of newly acknowledged packets with CC_ACK; kind of loss with CC_LOSS.
        _b: Not used here.
        rtt_ps: Round-trip time in ps with CC_ACK; -1 = unknown.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    params, state = parameters(qps.par)[0], own(qps.cc)[pair]
    if event == CC_START:
        start(net, params, state, now_ps)
    elif event == CC_ACK:
        # any acknowledgement ends a series of timeouts, with a round trip or without
        state.retransmit_cnt = 0
        if rtt_ps >= 0:
            on_ack(net, params, state, now_ps, packets_or_kind, rtt_ps)
    elif event == CC_LOSS:
        on_loss(net, params, state, now_ps, packets_or_kind)
    # the smoothed round trip is at most this one or the time since a later packet left: the next decrease is allowed
    elif event == CC_REST and can_decrease(net, state, now_ps):
        state.last_decrease_ps = NEVER
    return 0
