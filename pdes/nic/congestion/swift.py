"""Swift: the window follows how far the round-trip time lies from a target.

G. Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020:
Algorithm 1 (sections 3.1 to 3.4), section 3.5 (scaling of the target delay), section 3.6 (loss, pacing below one
packet). Only the fabric window is kept: NPUs take packets without delay, so the end-point window never binds.

The paper gives few values; those that it leaves open are of its authors' simulator (htsim, swift.cpp), as each
parameter says. Where the paper leaves a choice:

- Target delay. The paper adds hbar for each hop, counted by the TTL. Packets carry no TTL here; what hops add to a
  round trip is its idle length. So the target is base_target (the queueing that is allowed), hop_scale times the
  smallest round trip of the queue pair (taken as no longer than the fabric's longest idle one, so that a queue pair
  born in congestion does not mistake it for distance), and the flow term max(0, min(alpha / sqrt(cwnd) + beta, range)).
- `rtt` is smoothed, 7/8 of the old and 1/8 of the new, as htsim does; decreases are an rtt apart by its value before.
- The paper's last lines say t_last_decrease = now if cwnd <= cwnd_prev. Taken by the letter, acknowledgements that
  change nothing would put off the next decrease for ever; it is set if cwnd < cwnd_prev, as htsim does.
- max_cwnd is the static window of the run, and cwnd begins there, as RDMA begins at line rate.
- A packet that is lost or trimmed is a fast recovery; the pacing delay rtt / cwnd is that of a full packet.
"""

from pdes.core.jit import hook, inline, seen_as
from pdes.core.rows.nic import CongestionState
from pdes.core.rows.row import Kind, word
from pdes.core.state import CC_ACK, CC_LOSS, CC_START, LOSS_TIMEOUT
from pdes.core.world import world_at
from pdes.nic.congestion import COUNT, DELAY_PS, FACTOR, PACKETS, TIME_PS, WINDOW_PACKETS, Parameter

TITLE = "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter (SIGCOMM 2020)"
SIGNALS = ("rtt",)
PARAMETERS = (
    Parameter("ai_packets", 1.0, "additive increase per round trip (htsim)", range=PACKETS),
    Parameter("beta", 0.8, "multiplicative decrease constant (htsim)"),
    Parameter("max_mdf", 0.5, "most that one decrease takes of the window (htsim)"),
    Parameter(
        "base_target_ps",
        0.0,
        "queueing delay allowed; 0: the fabric's longest idle round trip",
        range=TIME_PS,
        special=0.0,
    ),
    Parameter(
        "hop_scale", 1.0, "target per idle round trip of the path; stands for hbar per hop (section 3.5)", range=FACTOR
    ),
    Parameter(
        "fs_range_ps",
        -1.0,
        "most that flow scaling adds; -1: 5 x base_target (htsim); 0: no flow scaling",
        range=DELAY_PS,
        special=-1.0,
    ),
    Parameter("fs_min_cwnd_packets", 0.1, "flow scaling adds all of fs_range below (htsim)", range=WINDOW_PACKETS),
    Parameter("fs_max_cwnd_packets", 100.0, "flow scaling adds nothing above (htsim)", range=WINDOW_PACKETS),
    Parameter("min_cwnd_packets", 0.001, "least window (section 3.6)", range=WINDOW_PACKETS),
    Parameter("initial_cwnd_packets", 0.0, "0: the static window", range=WINDOW_PACKETS, special=0.0),
    Parameter("retx_reset_threshold", 5.0, "timeouts in a row after which the window is min_cwnd (htsim)", range=COUNT),
)
ASCENDING = (("fs_min_cwnd_packets", "fs_max_cwnd_packets"),)
"""Flow scaling divides by their difference."""
(
    P_AI,
    P_BETA,
    P_MAX_MDF,
    P_BASE_TARGET,
    P_HOP_SCALE,
    P_FS_RANGE,
    P_FS_MIN_CWND,
    P_FS_MAX_CWND,
    P_MIN_CWND,
    P_INITIAL_CWND,
    P_RETX_RESET,
) = range(11)

NEVER = -(1 << 61)


class SwiftState(CongestionState, words=32, written_by="nic.congestion.swift"):
    """What Swift keeps of a queue pair."""

    cwnd_packets = word(Kind.FLOAT, "packets")
    rtt_ps = word(Kind.FLOAT, "ps, smoothed; 0 = not measured yet")
    last_decrease_ps = word(Kind.TIME, "of the window, NEVER before")
    retransmit_cnt = word(Kind.COUNT, "timeouts in a row")
    path_rtt_ps = word(Kind.DURATION, "the idle round trip, as far as is known")
    fs_alpha_ps = word(Kind.FLOAT, "ps times the square root of packets: alpha of flow scaling")
    fs_beta_ps = word(Kind.FLOAT, "ps: beta of flow scaling")


own = seen_as(SwiftState)


@inline
def root(x):
    """Square root of x > 0 by Newton's method, from above: the same in compiled code and plain Python."""
    y = x
    if y < 1.0:
        y = 1.0
    better = 0.5 * (y + x / y)
    while better < y:
        y = better
        better = 0.5 * (y + x / y)
    return y


@inline
def base_target(world):
    """Queueing delay that is allowed, in ps."""
    base = world.qps.par[P_BASE_TARGET]
    if base <= 0.0:
        base = float(world.net.const.base_rtt_ps)
    return base


@inline
def fs_range(world):
    """The most that flow scaling adds, in ps."""
    most = world.qps.par[P_FS_RANGE]
    if most < 0.0:
        most = 5.0 * base_target(world)
    return most


@inline
def target_delay(world, state):
    """TargetDelay(): section 3.5, in ps."""
    flow = state.fs_alpha_ps / root(state.cwnd_packets) + state.fs_beta_ps
    if flow > fs_range(world):
        flow = fs_range(world)
    if flow < 0.0:
        flow = 0.0
    return base_target(world) + world.qps.par[P_HOP_SCALE] * state.path_rtt_ps + flow


@inline
def round_trip(world, state):
    """The smoothed rtt in ps; before the first measurement that of the idle fabric."""
    rtt = state.rtt_ps
    if rtt <= 0.0:
        rtt = float(world.net.const.base_rtt_ps)
    return rtt


@inline
def settle(world, state, now, cwnd):
    """The end of Algorithm 1: keep the window within its limits, and pace below one packet."""
    most = float(world.net.const.window_packets)
    if cwnd < world.qps.par[P_MIN_CWND]:
        cwnd = world.qps.par[P_MIN_CWND]
    if cwnd > most:
        cwnd = most
    if cwnd < state.cwnd_packets:
        state.last_decrease_ps = now
    state.cwnd_packets = cwnd
    if cwnd < 1.0:
        packet = world.net.const.mtu_bytes + world.net.const.header_bytes
        state.window_packets = 1
        state.pace_ps_per_byte = round_trip(world, state) / cwnd / packet
    else:
        state.window_packets = int(cwnd)
        state.pace_ps_per_byte = 0.0


@inline
def start(world, state, now):
    """A new queue pair."""
    low = 1.0 / root(world.qps.par[P_FS_MIN_CWND])
    high = 1.0 / root(world.qps.par[P_FS_MAX_CWND])
    state.fs_alpha_ps = fs_range(world) / (low - high)
    state.fs_beta_ps = -state.fs_alpha_ps * high
    state.last_decrease_ps = NEVER
    state.path_rtt_ps = world.net.const.base_rtt_ps
    cwnd = world.qps.par[P_INITIAL_CWND]
    if cwnd <= 0.0:
        cwnd = float(world.net.const.window_packets)
    settle(world, state, now, cwnd)


@inline
def can_decrease(world, state, now):
    """Whether the last decrease is an rtt ago."""
    return now - state.last_decrease_ps >= round_trip(world, state)


@inline
def on_ack(world, state, now, num_acked, rtt):
    """On receiving an ACK that says how long the round trip took."""
    may = can_decrease(world, state, now)
    if rtt < state.path_rtt_ps:
        state.path_rtt_ps = rtt
    delay = float(rtt)
    if state.rtt_ps <= 0.0:
        state.rtt_ps = delay
    else:
        state.rtt_ps = 0.875 * state.rtt_ps + 0.125 * delay
    target = target_delay(world, state)
    cwnd = state.cwnd_packets
    if delay < target:
        if cwnd >= 1.0:
            cwnd += world.qps.par[P_AI] / cwnd * num_acked
        else:
            cwnd += world.qps.par[P_AI] * num_acked
    elif may:
        factor = 1.0 - world.qps.par[P_BETA] * (delay - target) / delay
        if factor < 1.0 - world.qps.par[P_MAX_MDF]:
            factor = 1.0 - world.qps.par[P_MAX_MDF]
        cwnd *= factor
    settle(world, state, now, cwnd)


@inline
def on_timeout(world, state, now):
    """On retransmit timeout."""
    state.retransmit_cnt += 1
    cwnd = state.cwnd_packets
    if state.retransmit_cnt >= world.qps.par[P_RETX_RESET]:
        cwnd = world.qps.par[P_MIN_CWND]
    elif can_decrease(world, state, now):
        cwnd *= 1.0 - world.qps.par[P_MAX_MDF]
    settle(world, state, now, cwnd)


@inline
def on_fast_recovery(world, state, now):
    """On fast recovery."""
    state.retransmit_cnt = 0
    cwnd = state.cwnd_packets
    if can_decrease(world, state, now):
        cwnd *= 1.0 - world.qps.par[P_MAX_MDF]
    settle(world, state, now, cwnd)


@hook
def update(address, q, event, now, a, _b, c):
    """Tell the queue pair's row what happened (pdes/congestion)."""
    world = world_at(address)
    state = own(world.qps.cc)[q]
    if event == CC_START:
        start(world, state, now)
    elif event == CC_ACK:
        state.retransmit_cnt = 0
        if c >= 0:
            on_ack(world, state, now, a, c)
    elif event == CC_LOSS:
        if a == LOSS_TIMEOUT:
            on_timeout(world, state, now)
        else:
            on_fast_recovery(world, state, now)
    return 0
