"""TIMELY: rate control by the gradient of the round-trip time (Mittal et al., SIGCOMM 2015, section 4, algorithm 1).

    new_rtt_diff = new_rtt - prev_rtt;  rtt_diff = (1 - alpha) rtt_diff + alpha new_rtt_diff
    normalized_gradient = rtt_diff / minRTT
    new_rtt < T_low             rate = rate + delta
    new_rtt > T_high            rate = rate (1 - beta (1 - T_high / new_rtt))
    normalized_gradient <= 0    rate = rate + N delta;  N = 5 (hyper active increase, HAI) if the gradient has been
                                negative for five completion events, otherwise 1
    otherwise                   rate = rate (1 - beta normalized_gradient)

Choices that the paper leaves open:

- A completion event is the first acknowledgement with a round-trip time of a packet sent after the last completion
  event: one per round trip, as in HPCC's ns-3. The paper's segments of 16 to 64 KB took about that long at 10 Gb/s.
- The first round-trip time has no predecessor: its difference is 0 (the authors' code, timely-code-snippet.cc).
- Every completion event counts for HAI whichever branch it takes, the current one included; a gradient of 0 or more
  ends the count.
- minRTT is the idle round trip of the fabric unless given: the paper requires a fixed value that represents it.
- A queue pair begins at line rate, as RDMA does; the paper divides the line rate by the number of active flows.
- The round-trip time is that of one packet as measured, from which the paper would subtract its serialisation.
- Losses change nothing: TIMELY is for lossless networks.
"""

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.core.state import CC_ACK, CC_START, world_at
from nadi.pdes.nic.congestion import (
    COUNT,
    DELAY_PS,
    FACTOR,
    RATE_BPS,
    SHARE,
    STEP_BPS,
    TIME_OR_0_PS,
    TIME_PS,
    parameter,
)
from nadi.pdes.nic.control import line_rate_bps, pace_at, step_bps

TITLE = "TIMELY (Mittal et al., SIGCOMM 2015)"
SIGNALS = ("rtt",)


class TimelyParameters(ControlParameters, words=24):
    """Parameters of TIMELY."""

    delta_bps = parameter(
        25e6,
        STEP_BPS,
        "additive step at 25 Gb/s, scaled with the line rate (paper and HPCC's ns-3: 10 Mb/s at 10 Gb/s)",
    )
    fixed_delta_bps = parameter(0.0, STEP_BPS, "additive step at any line rate; 0: delta_bps", {"RATE_AI": 1e6})
    fixed_hai_bps = parameter(0.0, STEP_BPS, "step of HAI at any line rate; 0: hai_factor steps", {"RATE_HAI": 1e6})
    hai_factor = parameter(5.0, FACTOR, "N in HAI (paper)")
    hai_events = parameter(5.0, COUNT, "completion events with a negative gradient before HAI (paper)")
    min_rate_bps = parameter(1e9, RATE_BPS, "minimum rate, whatever the line rate (HPCC's ns-3)", {"MIN_RATE": 1e6})
    alpha = parameter(0.875, SHARE, "weight of the newest difference (HPCC's ns-3)")
    beta = parameter(0.8, SHARE, "multiplicative decrease (paper)")
    t_low_ps = parameter(50e6, DELAY_PS, "T_low (paper)")
    t_high_ps = parameter(500e6, TIME_PS, "T_high (paper)")
    min_rtt_ps = parameter(
        0.0, TIME_OR_0_PS, "minRTT; 0: idle round trip of a full packet over the longest path (HPCC's ns-3: 20 us)"
    )


PARAMETERS = TimelyParameters.declared
ASCENDING = (("t_low_ps", "t_high_ps"),)


class TimelyState(CongestionState, words=32):
    """State of TIMELY for a queue pair."""

    # Example: minRTT 20 us; round trips of 100 and then 110 us, between T_low and T_high: with alpha = 0.875 and
    # rtt_diff 0 before, the gradient is 0.875 x 10 / 20 = 0.44, and the rate falls by 0.8 x 0.44 = 35 %.
    line_bps = word("float", "bit/s: line rate")
    rate_bps = word("float", "current rate in bit/s")
    rtt_diff_ps = word("float", "ps: smoothed difference")
    prev_rtt_ps = word("duration", "previous round trip, 0 none")
    negative = word("count", "consecutive completion events with a negative gradient")
    sent = word("sequence", "first packet not sent at the last completion event")


own = seen_as(TimelyState)
parameters = seen_as(TimelyParameters)


@inline
def set_rate(params, state, rate_bps):
    """Pace a queue pair at a rate, within its bounds.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        rate_bps: The rate in bit/s of bytes on the wire.
    """
    # the line rate is applied last, so that a minimum above it means the line rate
    state.rate_bps = min(max(rate_bps, params.min_rate_bps), state.line_bps)
    pace_at(state, state.rate_bps, state.line_bps)


@inline
def start(net, params, state):
    """Start a queue pair at line rate.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    state.window_packets = net.const.window_packets
    state.line_bps = line_rate_bps(state)
    set_rate(params, state, state.line_bps)


@inline
def gradient(net, params, state, rtt_ps):
    """Return the normalised gradient of round-trip times, which includes the new one.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        rtt_ps: Round-trip time in ps.
    """
    # no predecessor: a difference of 0, not of the whole round trip, which would look like a steep rise
    prev_rtt = state.prev_rtt_ps if state.prev_rtt_ps != 0 else rtt_ps
    rtt_diff = (1.0 - params.alpha) * state.rtt_diff_ps + params.alpha * (rtt_ps - prev_rtt)
    state.rtt_diff_ps = rtt_diff
    state.prev_rtt_ps = rtt_ps
    # a fixed time, so that a gradient of 1 means that the delay grows by one idle round trip per round trip
    min_rtt = params.min_rtt_ps if params.min_rtt_ps > 0.0 else float(max(1, net.const.base_rtt_ps))
    return rtt_diff / min_rtt


@inline
def on_completion(net, params, state, rtt_ps):
    """Apply TIMELY's algorithm 1 at a completion event.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        rtt_ps: Round-trip time in ps.
    """
    normalized_gradient = gradient(net, params, state, rtt_ps)
    # counted before the branches: the gradient of an event below T_low counts for HAI, too
    state.negative = state.negative + 1 if normalized_gradient < 0.0 else 0
    delta = step_bps(params.fixed_delta_bps, params.delta_bps, state.line_bps)
    rate = state.rate_bps
    if rtt_ps < params.t_low_ps:
        rate += delta
    elif rtt_ps > params.t_high_ps:
        # above T_high the gradient does not matter: a standing queue has gradient 0 and would never drain
        rate *= 1.0 - params.beta * (1.0 - params.t_high_ps / rtt_ps)
    elif normalized_gradient > 0.0:
        rate *= 1.0 - params.beta * normalized_gradient
    # fewer than hai_events negative gradients in a row: one additive step; HAI after that
    elif state.negative < params.hai_events:
        rate += delta
    else:
        rate += params.fixed_hai_bps if params.fixed_hai_bps > 0.0 else params.hai_factor * delta
    set_rate(params, state, rate)


@hook
def update(world_address, pair, event, _now, _a, _b, rtt_ps):
    """Update a queue pair after an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP or CC_LOSS (pdes/nic/congestion).
        _now: Not used here.
        _a: Not used here.
        _b: Not used here.
        rtt_ps: Round-trip time in ps with CC_ACK; -1 = unknown.
    """
    world = world_at(world_address)
    qps = world.qps
    params, qp, state = parameters(qps.par)[0], qps.qp[pair], own(qps.cc)[pair]
    if event == CC_START:
        start(world.net, params, state)
    # a completion event comes once all that was sent at the last one is acknowledged
    elif event == CC_ACK and rtt_ps > 0 and qp.una > state.sent:
        state.sent = qp.sent_max
        on_completion(world.net, params, state, rtt_ps)
    return 0
