"""DCQCN: rate control by congestion notification packets (Zhu et al., SIGCOMM 2015, section 3.1 and figure 7).

A queue pair sends at line rate until its first CNP; then

    CNP                      RT = RC, RC = RC (1 - alpha / 2), alpha = (1 - g) alpha + g       (equation 1)
    no CNP for K             alpha = (1 - g) alpha                                             (equation 2)
    timer, or B bytes sent   max(T, BC) < F: fast recovery       RC = (RT + RC) / 2            (equation 3)
                             min(T, BC) > F: hyper increase      RT = RT + R_HAI, RC = (RT + RC) / 2
                             otherwise:      additive increase   RT = RT + R_AI,  RC = (RT + RC) / 2 (equation 4)

where T and BC count the expirations of timer and byte counter since the last cut. Timers are caught up with at the
next event, in order of time (at one instant: alpha, a cut that was held, increase); nobody reads the row in between,
so this is exact.

The defaults are one set, that of HPCC's ns-3 which AI simulators inherit (REFERENCE.md) and which goes with CNPs at
most every 4 us. The paper's set goes with CNPs every 50 us: alpha_update_interval_ps 55e6, rate_decrease_interval_ps 0,
rp_timer_ps 55e6, byte_counter_bytes 10e6, fast_recovery_times 5, clamp_target_rate 1, and R_AI 40 Mb/s at 40 Gb/s.

Where the paper leaves a choice:

- T and BC are compared before the expiration in hand is counted, so that fast recovery lasts F iterations, as its text
  says; ns-3 does so too. Where one of timer and byte counter is off, the other's count stands for both.
- R_HAI is the same in each hyper increase (ns-3), not i R_HAI as in QCN.
- A CNP sooner than rate_decrease_interval_ps after a cut raises alpha at once, and cuts when that time is over. ns-3
  cuts on a grid of that interval which the first CNP begins; there the first cut is one interval later.
- Without clamp_target_rate RT = RC only if a rate increase came since the last cut (ns-3, and the network cards).
- alpha is 1 at the first CNP, and timers begin there.
- Losses change nothing: DCQCN is for lossless networks.
"""

import numpy as np

from pdes.core.jit import hook, inline, seen_as
from pdes.core.rows.nic import CongestionState
from pdes.core.rows.row import Kind, word
from pdes.core.state import CC_CNP, CC_SENT, CC_START, INF
from pdes.core.world import world_at
from pdes.nic.congestion import COUNT, DELAY_PS, RATE_BPS, STEP_BPS, SWITCH, TIME_PS, Parameter

TITLE = "DCQCN (Zhu et al., SIGCOMM 2015)"
SIGNALS = ("ecn", "cnp")
COUNTER_BYTES = (1.0, 2.0**50)
PARAMETERS = (
    Parameter("rate_ai_bps", 5e6, "R_AI at 25 Gb/s, scaled with the line rate (HPCC's ns-3)", range=STEP_BPS),
    Parameter("rate_hai_bps", 50e6, "R_HAI at 25 Gb/s, scaled with the line rate (HPCC's ns-3)", range=STEP_BPS),
    Parameter("fixed_rate_ai_bps", 0.0, "R_AI at any line rate; 0: rate_ai_bps", {"RATE_AI": 1e6}, range=STEP_BPS),
    Parameter("fixed_rate_hai_bps", 0.0, "R_HAI at any line rate; 0: rate_hai_bps", {"RATE_HAI": 1e6}, range=STEP_BPS),
    Parameter(
        "min_rate_bps", 1e9, "least rate, whatever the line rate (HPCC's ns-3)", {"MIN_RATE": 1e6}, range=RATE_BPS
    ),
    Parameter("g", 1 / 256, "weight of the newest feedback in alpha (paper)", {"EWMA_GAIN": 1.0}),
    Parameter(
        "alpha_update_interval_ps",
        1e6,
        "K: alpha decays after each such time without a CNP (HPCC's ns-3; paper 55 us); 0: it never decays",
        {"ALPHA_RESUME_INTERVAL": 1e6},
        range=TIME_PS,
        special=0.0,
    ),
    Parameter(
        "rate_decrease_interval_ps",
        4e6,
        "least time between two cuts (HPCC's ns-3); 0: each CNP cuts, as in the paper",
        {"RATE_DECREASE_INTERVAL": 1e6},
        range=DELAY_PS,
    ),
    Parameter(
        "rp_timer_ps",
        300e6,
        "period of rate increases by time (HPCC's ns-3; paper 55 us); 0: none",
        {"RP_TIMER": 1e6},
        range=TIME_PS,
        special=0.0,
    ),
    Parameter(
        "byte_counter_bytes",
        0.0,
        "B: bytes sent between rate increases; 0: none (HPCC's ns-3; paper 10 MB)",
        range=COUNTER_BYTES,
        special=0.0,
    ),
    Parameter(
        "fast_recovery_times", 1.0, "F (HPCC's ns-3; paper 5)", {"FAST_RECOVERY_TIMES": 1.0}, range=COUNT, whole=True
    ),
    Parameter(
        "clamp_target_rate",
        0.0,
        "1: each cut sets RT = RC (paper); 0: only one that follows an increase (HPCC's ns-3)",
        {"CLAMP_TARGET_RATE": 1.0},
        range=SWITCH,
        whole=True,
    ),
)
(
    PAR_AI,
    PAR_HAI,
    PAR_FIXED_AI,
    PAR_FIXED_HAI,
    PAR_MIN_RATE,
    PAR_G,
    PAR_ALPHA_INTERVAL,
    PAR_CUT_INTERVAL,
    PAR_TIMER,
    PAR_BYTES,
    PAR_F,
    PAR_CLAMP,
) = range(12)

BIT_PS = 8e12  # bit/s times ps per byte
SCALE_BPS = 25e9  # line rate at which R_AI and R_HAI are given


class DcqcnState(CongestionState, words=32, written_by="nic.congestion.dcqcn"):
    """What DCQCN keeps of a queue pair."""

    line_bps = word(Kind.FLOAT, "bit/s: line rate")
    rc_bps = word(Kind.FLOAT, "bit/s: current rate, RC")
    rt_bps = word(Kind.FLOAT, "bit/s: target rate, RT")
    alpha = word(Kind.FLOAT, "share of rate that a cut takes, doubled")
    alpha_at_ps = word(Kind.TIME, "alpha decays then, INF never")
    increase_at_ps = word(Kind.TIME, "the timer expires then, INF never")
    cut_at_ps = word(Kind.TIME, "no cut before")
    held = word(Kind.FLAG, "a cut waits for cut_at_ps")
    time_stage = word(Kind.COUNT, "T; F + 1 stands for all beyond F")
    byte_stage = word(Kind.COUNT, "BC, likewise")
    counted_bytes = word(Kind.BYTES, "sent since the byte counter expired")


own = seen_as(DcqcnState)


@inline
def power(x, n):
    """The n-th power of x by squaring: the same bits everywhere."""
    result = 1.0
    while n > 0:
        if n & 1 == 1:
            result *= x
        x *= x
        n >>= 1
    return result


@inline
def set_rate(state, rate):
    """Pace at the rate; at line rate the port alone does."""
    state.rc_bps = rate
    state.pace_ps_per_byte = 0.0 if rate >= state.line_bps else BIT_PS / rate


@inline
def start(net, state):
    """No slow start: line rate."""
    state.window_packets = net.const.window_packets
    state.line_bps = BIT_PS / state.line_ps_per_byte
    state.rt_bps = state.line_bps
    state.alpha = 1.0
    state.alpha_at_ps = INF
    state.increase_at_ps = INF
    set_rate(state, state.line_bps)


@inline
def decay_alpha(qps, state, until):
    """Equation 2, as often as K has passed."""
    at = state.alpha_at_ps
    if at <= until:
        interval = np.int64(qps.par[PAR_ALPHA_INTERVAL])
        times = (until - at) // interval + 1
        state.alpha_at_ps = at + times * interval
        state.alpha *= power(1.0 - qps.par[PAR_G], times)


@inline
def increase(qps, state):
    """Fast recovery, additive or hyper increase."""
    times = np.int64(qps.par[PAR_F])
    by_time = state.time_stage
    by_bytes = state.byte_stage
    if qps.par[PAR_BYTES] <= 0.0:
        by_bytes = by_time
    if qps.par[PAR_TIMER] <= 0.0:
        by_time = by_bytes
    scale = state.line_bps / SCALE_BPS
    if max(by_time, by_bytes) >= times:
        if min(by_time, by_bytes) > times:
            step = qps.par[PAR_FIXED_HAI]
            if step <= 0.0:
                step = qps.par[PAR_HAI] * scale
        else:
            step = qps.par[PAR_FIXED_AI]
            if step <= 0.0:
                step = qps.par[PAR_AI] * scale
        state.rt_bps = min(state.rt_bps + step, state.line_bps)
    set_rate(state, (state.rt_bps + state.rc_bps) / 2.0)


@inline
def next_stage(qps, stage):
    """One expiration more."""
    return min(stage + 1, np.int64(qps.par[PAR_F]) + 1)


@inline
def expire_timer(qps, state, until):
    """Rate increases by time. One that changes nothing shows that those after it would not either."""
    timer = np.int64(qps.par[PAR_TIMER])
    while state.increase_at_ps <= until:
        current = state.rc_bps
        target = state.rt_bps
        stage = state.time_stage
        increase(qps, state)
        state.time_stage = next_stage(qps, state.time_stage)
        state.increase_at_ps += timer
        at = state.increase_at_ps
        same = current == state.rc_bps and target == state.rt_bps and stage == state.time_stage
        if same and at <= until:
            state.increase_at_ps = at + ((until - at) // timer + 1) * timer


@inline
def cut(qps, state, at):
    """Equation 1 for the rates; timer and byte counter begin anew."""
    if qps.par[PAR_CLAMP] > 0.0 or state.time_stage > 0 or state.byte_stage > 0:
        state.rt_bps = state.rc_bps
    least = min(qps.par[PAR_MIN_RATE], state.line_bps)
    set_rate(state, max(state.rc_bps * (1.0 - state.alpha / 2.0), least))
    state.held = 0
    state.cut_at_ps = at + np.int64(qps.par[PAR_CUT_INTERVAL])
    state.time_stage = 0
    state.byte_stage = 0
    state.counted_bytes = 0
    if qps.par[PAR_TIMER] > 0.0:
        state.increase_at_ps = at + np.int64(qps.par[PAR_TIMER])


@inline
def catch_up(qps, state, now):
    """What timers did until now."""
    if state.held == 1 and state.cut_at_ps <= now:
        at = state.cut_at_ps
        decay_alpha(qps, state, at)
        expire_timer(qps, state, at - 1)
        cut(qps, state, at)
    decay_alpha(qps, state, now)
    expire_timer(qps, state, now)


@inline
def on_cnp(qps, state, now):
    """Equation 1."""
    if state.cut_at_ps <= now:
        cut(qps, state, now)
    else:
        state.held = 1
    state.alpha = (1.0 - qps.par[PAR_G]) * state.alpha + qps.par[PAR_G]
    if qps.par[PAR_ALPHA_INTERVAL] > 0.0:
        state.alpha_at_ps = now + np.int64(qps.par[PAR_ALPHA_INTERVAL])


@inline
def on_sent(qps, state, size):
    """Rate increases by bytes. Before the first cut they find the rate at its highest."""
    limit = np.int64(qps.par[PAR_BYTES])
    if limit > 0:
        state.counted_bytes += size
        while state.counted_bytes >= limit:
            state.counted_bytes -= limit
            increase(qps, state)
            state.byte_stage = next_stage(qps, state.byte_stage)


@hook
def update(address, q, event, now, a, _b, _c):
    """Row q of the world after an event (pdes/congestion)."""
    world = world_at(address)
    qps = world.qps
    state = own(qps.cc)[q]
    if event == CC_START:
        start(world.net, state)
        return 0
    catch_up(qps, state, now)
    if event == CC_SENT:
        on_sent(qps, state, a)
    elif event == CC_CNP:
        on_cnp(qps, state, now)
    return 0
