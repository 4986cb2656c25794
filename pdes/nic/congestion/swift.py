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

from pdes.core.jit import hook, inline
from pdes.core.state import (
    CC_ACK,
    CC_LOSS,
    CC_OWN,
    CC_START,
    LOSS_TIMEOUT,
)
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

CWND = CC_OWN  # float64 packets
RTT = CC_OWN + 1  # float64 ps, smoothed; 0 = not measured yet
LAST_DECREASE = CC_OWN + 2  # ps
RETRANSMIT_CNT = CC_OWN + 3  # timeouts in a row
PATH_RTT = CC_OWN + 4  # ps: the idle round trip, as far as is known
FS_ALPHA = CC_OWN + 5  # float64
FS_BETA = CC_OWN + 6  # float64

NEVER = -(1 << 61)


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
def target_delay(world, r):
    """TargetDelay(): section 3.5, in ps."""
    flow = world.qps.cc[r + FS_ALPHA] / root(world.qps.cc[r + CWND]) + world.qps.cc[r + FS_BETA]
    if flow > fs_range(world):
        flow = fs_range(world)
    if flow < 0.0:
        flow = 0.0
    return base_target(world) + world.qps.par[P_HOP_SCALE] * world.qps.cc[r + PATH_RTT] + flow


@inline
def round_trip(world, r):
    """The smoothed rtt in ps; before the first measurement that of the idle fabric."""
    rtt = world.qps.cc[r + RTT]
    if rtt <= 0.0:
        rtt = float(world.net.const.base_rtt_ps)
    return rtt


@inline
def settle(world, r, now, cwnd):
    """The end of Algorithm 1: keep the window within its limits, and pace below one packet."""
    cc = world.qps.cc[r]
    most = float(world.net.const.window_packets)
    if cwnd < world.qps.par[P_MIN_CWND]:
        cwnd = world.qps.par[P_MIN_CWND]
    if cwnd > most:
        cwnd = most
    if cwnd < world.qps.cc[r + CWND]:
        world.qps.cc[r + LAST_DECREASE] = now
    world.qps.cc[r + CWND] = cwnd
    if cwnd < 1.0:
        packet = world.net.const.mtu_bytes + world.net.const.header_bytes
        cc.window_packets = 1
        world.qps.cc[r].pace_ps_per_byte = round_trip(world, r) / cwnd / packet
    else:
        cc.window_packets = int(cwnd)
        world.qps.cc[r].pace_ps_per_byte = 0.0


@inline
def start(world, r, now):
    """A new queue pair."""
    low = 1.0 / root(world.qps.par[P_FS_MIN_CWND])
    high = 1.0 / root(world.qps.par[P_FS_MAX_CWND])
    world.qps.cc[r + FS_ALPHA] = fs_range(world) / (low - high)
    world.qps.cc[r + FS_BETA] = -world.qps.cc[r + FS_ALPHA] * high
    world.qps.cc[r + LAST_DECREASE] = NEVER
    world.qps.cc[r + PATH_RTT] = world.net.const.base_rtt_ps
    cwnd = world.qps.par[P_INITIAL_CWND]
    if cwnd <= 0.0:
        cwnd = float(world.net.const.window_packets)
    settle(world, r, now, cwnd)


@inline
def can_decrease(world, r, now):
    """Whether the last decrease is an rtt ago."""
    return now - world.qps.cc[r + LAST_DECREASE] >= round_trip(world, r)


@inline
def on_ack(world, r, now, num_acked, rtt):
    """On receiving an ACK that says how long the round trip took."""
    may = can_decrease(world, r, now)
    if rtt < world.qps.cc[r + PATH_RTT]:
        world.qps.cc[r + PATH_RTT] = rtt
    delay = float(rtt)
    if world.qps.cc[r + RTT] <= 0.0:
        world.qps.cc[r + RTT] = delay
    else:
        world.qps.cc[r + RTT] = 0.875 * world.qps.cc[r + RTT] + 0.125 * delay
    target = target_delay(world, r)
    cwnd = world.qps.cc[r + CWND]
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
    settle(world, r, now, cwnd)


@inline
def on_timeout(world, r, now):
    """On retransmit timeout."""
    world.qps.cc[r + RETRANSMIT_CNT] += 1
    cwnd = world.qps.cc[r + CWND]
    if world.qps.cc[r + RETRANSMIT_CNT] >= world.qps.par[P_RETX_RESET]:
        cwnd = world.qps.par[P_MIN_CWND]
    elif can_decrease(world, r, now):
        cwnd *= 1.0 - world.qps.par[P_MAX_MDF]
    settle(world, r, now, cwnd)


@inline
def on_fast_recovery(world, r, now):
    """On fast recovery."""
    world.qps.cc[r + RETRANSMIT_CNT] = 0
    cwnd = world.qps.cc[r + CWND]
    if can_decrease(world, r, now):
        cwnd *= 1.0 - world.qps.par[P_MAX_MDF]
    settle(world, r, now, cwnd)


@hook
def update(address, q, event, now, a, _b, c, _d):
    """Tell the queue pair's row what happened (pdes/congestion)."""
    world = world_at(address)
    if event == CC_START:
        start(world, q, now)
    elif event == CC_ACK:
        world.qps.cc[q + RETRANSMIT_CNT] = 0
        if c >= 0:
            on_ack(world, q, now, a, c)
    elif event == CC_LOSS:
        if a == LOSS_TIMEOUT:
            on_timeout(world, q, now)
        else:
            on_fast_recovery(world, q, now)
    return 0
