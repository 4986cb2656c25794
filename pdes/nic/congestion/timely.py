"""TIMELY: rate control by the gradient of the round-trip time (Mittal et al., SIGCOMM 2015, section 4, algorithm 1).

    new_rtt_diff = new_rtt - prev_rtt;  rtt_diff = (1 - alpha) rtt_diff + alpha new_rtt_diff
    normalized_gradient = rtt_diff / minRTT
    new_rtt < T_low             rate = rate + delta
    new_rtt > T_high            rate = rate (1 - beta (1 - T_high / new_rtt))
    normalized_gradient <= 0    rate = rate + N delta;  N = 5 (hyper active increase, HAI) if the gradient has been
                                negative for five completion events, otherwise 1
    otherwise                   rate = rate (1 - beta normalized_gradient)

Where the paper leaves a choice:

- A completion event is the first acknowledgement, with a round-trip time, of a packet sent after the last completion
  event: one per round trip, as in HPCC's ns-3. The paper's segments of 16 to 64 KB took about that long at 10 Gb/s.
- The first round-trip time has no predecessor: its difference is 0 (the authors' code, timely-code-snippet.cc).
- Every completion event counts for HAI whichever branch it takes, the one in hand included; a gradient of 0 or more
  ends the count.
- minRTT is the idle round trip of the fabric unless given: the paper wants a fixed value that represents it.
- A queue pair begins at line rate, as RDMA does; the paper divides the line rate by the number of active flows.
- The round-trip time is that of one packet as measured, from which the paper would subtract its serialisation.
- Losses change nothing: TIMELY is for lossless networks.
"""

from pdes.core.jit import hook, inline, seen_as
from pdes.core.rows.nic import CongestionState
from pdes.core.rows.row import Kind, word
from pdes.core.state import CC_ACK, CC_START
from pdes.core.world import world_at
from pdes.nic.congestion import COUNT, DELAY_PS, FACTOR, RATE_BPS, STEP_BPS, TIME_PS, Parameter

TITLE = "TIMELY (Mittal et al., SIGCOMM 2015)"
SIGNALS = ("rtt",)
PARAMETERS = (
    Parameter(
        "delta_bps",
        25e6,
        "additive step at 25 Gb/s, scaled with the line rate (paper: 10 Mb/s at 10 Gb/s; so HPCC's ns-3)",
        range=STEP_BPS,
    ),
    Parameter("fixed_delta_bps", 0.0, "additive step at any line rate; 0: delta_bps", {"RATE_AI": 1e6}, range=STEP_BPS),
    Parameter(
        "fixed_hai_bps", 0.0, "step of HAI at any line rate; 0: hai_factor steps", {"RATE_HAI": 1e6}, range=STEP_BPS
    ),
    Parameter("hai_factor", 5.0, "N in HAI (paper)", range=FACTOR),
    Parameter("hai_events", 5.0, "completion events with a negative gradient before HAI (paper)", range=COUNT),
    Parameter(
        "min_rate_bps", 1e9, "least rate, whatever the line rate (HPCC's ns-3)", {"MIN_RATE": 1e6}, range=RATE_BPS
    ),
    Parameter("alpha", 0.875, "weight of the newest difference (HPCC's ns-3)"),
    Parameter("beta", 0.8, "multiplicative decrease (paper)"),
    Parameter("t_low_ps", 50e6, "T_low (paper)", range=DELAY_PS),
    Parameter("t_high_ps", 500e6, "T_high (paper)", range=TIME_PS),
    Parameter(
        "min_rtt_ps",
        0.0,
        "minRTT; 0: idle round trip of a full packet over the longest path (HPCC's ns-3: 20 us)",
        range=TIME_PS,
        special=0.0,
    ),
)
ASCENDING = (("t_low_ps", "t_high_ps"),)
(
    PAR_DELTA,
    PAR_FIXED_DELTA,
    PAR_FIXED_HAI,
    PAR_HAI_FACTOR,
    PAR_HAI_EVENTS,
    PAR_MIN_RATE,
    PAR_ALPHA,
    PAR_BETA,
    PAR_T_LOW,
    PAR_T_HIGH,
    PAR_MIN_RTT,
) = range(11)

BIT_PS = 8e12  # bit/s times ps per byte
SCALE_BPS = 25e9  # line rate at which delta is given


class TimelyState(CongestionState, words=32, written_by="nic.congestion.timely"):
    """What TIMELY keeps of a queue pair."""

    line_bps = word(Kind.FLOAT, "bit/s: line rate")
    rate_bps = word(Kind.FLOAT, "bit/s")
    rtt_diff_ps = word(Kind.FLOAT, "ps: smoothed difference")
    prev_rtt_ps = word(Kind.DURATION, "round trip before, 0 none")
    negative = word(Kind.COUNT, "completion events in a row with a negative gradient")
    sent = word(Kind.SEQUENCE, "first not sent at the last completion event")


own = seen_as(TimelyState)


@inline
def set_rate(qps, state, rate):
    """Pace at the rate within its bounds; at line rate the port alone does."""
    line = state.line_bps
    rate = max(rate, qps.par[PAR_MIN_RATE])
    if rate >= line:
        state.rate_bps = line
        state.pace_ps_per_byte = 0.0
    else:
        state.rate_bps = rate
        state.pace_ps_per_byte = BIT_PS / rate


@inline
def start(net, qps, state):
    """Line rate."""
    state.window_packets = net.const.window_packets
    state.line_bps = BIT_PS / state.line_ps_per_byte
    set_rate(qps, state, state.line_bps)


@inline
def gradient(net, qps, state, new_rtt):
    """The normalized gradient with the new round-trip time in it."""
    prev_rtt = state.prev_rtt_ps
    if prev_rtt == 0:
        prev_rtt = new_rtt
    alpha = qps.par[PAR_ALPHA]
    rtt_diff = (1.0 - alpha) * state.rtt_diff_ps + alpha * (new_rtt - prev_rtt)
    state.rtt_diff_ps = rtt_diff
    state.prev_rtt_ps = new_rtt
    min_rtt = qps.par[PAR_MIN_RTT]
    if min_rtt <= 0.0:
        min_rtt = float(max(1, net.const.base_rtt_ps))
    return rtt_diff / min_rtt


@inline
def on_completion(net, qps, state, new_rtt):
    """Algorithm 1."""
    normalized_gradient = gradient(net, qps, state, new_rtt)
    if normalized_gradient < 0.0:
        state.negative += 1
    else:
        state.negative = 0
    delta = qps.par[PAR_FIXED_DELTA]
    if delta <= 0.0:
        delta = qps.par[PAR_DELTA] * (state.line_bps / SCALE_BPS)
    rate = state.rate_bps
    beta = qps.par[PAR_BETA]
    if new_rtt < qps.par[PAR_T_LOW]:
        rate += delta
    elif new_rtt > qps.par[PAR_T_HIGH]:
        rate *= 1.0 - beta * (1.0 - qps.par[PAR_T_HIGH] / new_rtt)
    elif normalized_gradient <= 0.0:
        if state.negative >= qps.par[PAR_HAI_EVENTS]:
            step = qps.par[PAR_FIXED_HAI]
            if step <= 0.0:
                step = qps.par[PAR_HAI_FACTOR] * delta
            rate += step
        else:
            rate += delta
    else:
        rate *= 1.0 - beta * normalized_gradient
    set_rate(qps, state, rate)


@hook
def update(address, q, event, _now, _a, _b, c):
    """Row q of the world after an event (pdes/congestion)."""
    world = world_at(address)
    qps = world.qps
    state = own(qps.cc)[q]
    if event == CC_START:
        start(world.net, qps, state)
    elif event == CC_ACK and c > 0:
        qp = qps.qp[q]
        if qp.una > state.sent:
            state.sent = qp.sent_max
            on_completion(world.net, qps, state, c)
    return 0
