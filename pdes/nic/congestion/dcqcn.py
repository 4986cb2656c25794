"""DCQCN: rate control by congestion notification packets (Zhu et al., SIGCOMM 2015, section 3.1 and figure 7).

A queue pair sends at line rate until its first CNP; then

    CNP                      RT = RC, RC = RC (1 - alpha / 2), alpha = (1 - g) alpha + g       (equation 1)
    no CNP for K             alpha = (1 - g) alpha                                             (equation 2)
    timer, or B bytes sent   max(T, BC) < F: fast recovery       RC = (RT + RC) / 2            (equation 3)
                             min(T, BC) > F: hyper increase      RT = RT + R_HAI, RC = (RT + RC) / 2
                             otherwise:      additive increase   RT = RT + R_AI,  RC = (RT + RC) / 2 (equation 4)

where T and BC count the expirations of timer and byte counter since the last cut. The next event makes up for elapsed
timers, in time order (at one time: alpha, a delayed cut, increase); nothing reads the row in between, so this is exact.

The defaults are those of HPCC's ns-3, which AI simulators inherit (REFERENCE.md); they assume CNPs at most every 4 us.
The paper's values assume CNPs every 50 us: alpha_update_interval_ps 55e6, rate_decrease_interval_ps 0, rp_timer_ps
55e6, byte_counter_bytes 10e6, fast_recovery_times 5, clamp_target_rate 1, and R_AI 40 Mb/s at 40 Gb/s.

Choices that the paper leaves open:

- T and BC are compared before the current expiration is counted, so that fast recovery lasts F iterations, as in the
  paper's text and in ns-3. If timer or byte counter is off, the other's count replaces it.
- R_HAI is the same in each hyper increase (ns-3), not i R_HAI as in QCN.
- A CNP within rate_decrease_interval_ps of a cut raises alpha at once, and cuts at the end of that time. ns-3 cuts on a
  grid of that interval which the first CNP begins; there the first cut is one interval later.
- Without clamp_target_rate RT = RC only if a rate increase came since the last cut (ns-3, and the network cards).
- alpha is 1 at the first CNP, and timers begin there.
- Losses change nothing: DCQCN is for lossless networks.
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.core.state import CC_CNP, CC_REST, CC_SENT, CC_START, INF, world_at
from nadi.pdes.nic.congestion import (
    DELAY_PS,
    RATE_BPS,
    SHARE,
    STEP_BPS,
    SWITCH,
    TIME_OR_0_PS,
    WHOLE_COUNT,
    Allowed,
    parameter,
)
from nadi.pdes.nic.control import line_rate_bps, pace_at, step_bps

TITLE = "DCQCN (Zhu et al., SIGCOMM 2015)"
SIGNALS = ("ecn", "cnp")
FORGETS = True
BYTES_OR_0 = Allowed(1.0, 2.0**50, special=0.0)


class DcqcnParameters(ControlParameters, words=24):
    """Parameters of DCQCN."""

    rate_ai_bps = parameter(5e6, STEP_BPS, "R_AI at 25 Gb/s, scaled with the line rate (HPCC's ns-3)")
    rate_hai_bps = parameter(50e6, STEP_BPS, "R_HAI at 25 Gb/s, scaled with the line rate (HPCC's ns-3)")
    fixed_rate_ai_bps = parameter(0.0, STEP_BPS, "R_AI at any line rate; 0: rate_ai_bps", {"RATE_AI": 1e6})
    fixed_rate_hai_bps = parameter(0.0, STEP_BPS, "R_HAI at any line rate; 0: rate_hai_bps", {"RATE_HAI": 1e6})
    min_rate_bps = parameter(1e9, RATE_BPS, "minimum rate, whatever the line rate (HPCC's ns-3)", {"MIN_RATE": 1e6})
    g = parameter(1 / 256, SHARE, "weight of the newest feedback in alpha (paper)", {"EWMA_GAIN": 1.0})
    alpha_update_interval_ps = parameter(
        1e6,
        TIME_OR_0_PS,
        "K: alpha decays after each such time without a CNP (HPCC's ns-3; paper 55 us); 0: it never decays",
        {"ALPHA_RESUME_INTERVAL": 1e6},
    )
    rate_decrease_interval_ps = parameter(
        4e6,
        DELAY_PS,
        "minimum time between two cuts (HPCC's ns-3); 0: each CNP cuts, as in the paper",
        {"RATE_DECREASE_INTERVAL": 1e6},
    )
    rp_timer_ps = parameter(
        300e6, TIME_OR_0_PS, "period of rate increases by time (HPCC's ns-3; paper 55 us); 0: none", {"RP_TIMER": 1e6}
    )
    byte_counter_bytes = parameter(
        0.0, BYTES_OR_0, "B: bytes sent between rate increases; 0: none (HPCC's ns-3; paper 10 MB)"
    )
    fast_recovery_times = parameter(1.0, WHOLE_COUNT, "F (HPCC's ns-3; paper 5)", {"FAST_RECOVERY_TIMES": 1.0})
    clamp_target_rate = parameter(
        0.0,
        SWITCH,
        "1: each cut sets RT = RC (paper); 0: only one that follows an increase (HPCC's ns-3)",
        {"CLAMP_TARGET_RATE": 1.0},
    )


PARAMETERS = DcqcnParameters.declared


class DcqcnState(CongestionState, words=32):
    """State of DCQCN for a queue pair."""

    # Example: at 400 Gb/s with alpha = 1, a CNP sets RT = 400 and RC = 200 Gb/s. The next increase is fast recovery: RC
    # = (400 + 200) / 2 = 300 Gb/s; RT grows only from the second increase on (fast_recovery_times = 1).
    line_bps = word("float", "bit/s: line rate")
    rc_bps = word("float", "bit/s: current rate, RC")
    rt_bps = word("float", "bit/s: target rate, RT")
    alpha = word("float", "twice the share of the rate that a cut removes")
    alpha_at_ps = word("time", "time of the next decay of alpha, INF never")
    increase_at_ps = word("time", "time at which the timer expires, INF never")
    cut_at_ps = word("time", "time of the earliest next cut", rest="future")
    held = word("flag", "a cut waits until cut_at_ps")
    time_stage = word("count", "T; F + 1 represents all values above F")
    byte_stage = word("count", "BC, likewise")
    counted_bytes = word("bytes", "bytes sent since the byte counter expired")


own = seen_as(DcqcnState)
parameters = seen_as(DcqcnParameters)


@inline
def power(base, exponent):
    """Return base to the power of a whole exponent by squaring, with identical bits on every machine."""
    result = 1.0
    # math.pow may differ in its last bit from one library to the next, and then the digest of a run would, too
    while exponent > 0:
        if exponent & 1 == 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@inline
def set_rate(state, rate_bps):
    """Set the current rate RC of a queue pair, and pace by it.

    Args:
        state: State of the queue pair (row of `cc`).
        rate_bps: The rate in bit/s of bytes on the wire.
    """
    state.rc_bps = rate_bps
    pace_at(state, rate_bps, state.line_bps)


@inline
def start(net, state):
    """Start a queue pair at line rate: there is no slow start.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
    """
    state.window_packets = net.const.window_packets
    state.line_bps = line_rate_bps(state)
    state.rt_bps = state.line_bps
    # so that the first notification halves the rate
    state.alpha = 1.0
    # no timer runs before the first notification
    state.alpha_at_ps = INF
    state.increase_at_ps = INF
    set_rate(state, state.line_bps)


@inline
def decay_alpha(params, state, until_ps):
    """Apply equation 2 of the paper to alpha for each period K that has elapsed until until_ps.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        until_ps: Time in ps.
    """
    time_ps = state.alpha_at_ps
    if time_ps <= until_ps:
        interval = np.int64(params.alpha_update_interval_ps)
        # k periods at once: alpha (1 - g)^k. The next event of an idle queue pair may be a second later: a million
        # periods.
        times = (until_ps - time_ps) // interval + 1
        state.alpha_at_ps = time_ps + times * interval
        state.alpha *= power(1.0 - params.g, times)


@inline
def increase(params, state):
    """Raise the rates of a queue pair by the paper's fast recovery, additive or hyper increase.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    times = np.int64(params.fast_recovery_times)
    # a counter that is off counts like the other one
    by_time = state.time_stage if params.rp_timer_ps > 0.0 else state.byte_stage
    # figure 7 of the paper; the maximum decides when fast recovery ends, the minimum when hyper increase begins
    by_bytes = state.byte_stage if params.byte_counter_bytes > 0.0 else state.time_stage
    if max(by_time, by_bytes) >= times:
        step = step_bps(params.fixed_rate_ai_bps, params.rate_ai_bps, state.line_bps)
        if min(by_time, by_bytes) > times:
            step = step_bps(params.fixed_rate_hai_bps, params.rate_hai_bps, state.line_bps)
        # the target stays at most the line rate, so RC, always between its old value and RT, does, too
        state.rt_bps = min(state.rt_bps + step, state.line_bps)
    set_rate(state, (state.rt_bps + state.rc_bps) / 2.0)


@inline
def next_stage(params, stage):
    """Return the stage after one more expiration.

    Args:
        params: Parameters of the algorithm (the row `par`).
        stage: Number of expirations so far, of the timer or of the byte counter.
    """
    return min(stage + 1, np.int64(params.fast_recovery_times) + 1)


@inline
def expire_timer(params, state, until_ps):
    """Apply rate increases by time until until_ps. After one that changes nothing, later ones change nothing either.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        until_ps: Time in ps.
    """
    timer = np.int64(params.rp_timer_ps)
    while state.increase_at_ps <= until_ps:
        # The loop ends early: once RC = RT = line rate to the last bit (about 50 halvings of the difference), an
        # increase changes nothing, and the remaining expirations only move the time.
        current, target, stage = state.rc_bps, state.rt_bps, state.time_stage
        increase(params, state)
        state.time_stage = next_stage(params, stage)
        state.increase_at_ps += timer
        time_ps = state.increase_at_ps
        same = current == state.rc_bps and target == state.rt_bps and stage == state.time_stage
        if same and time_ps <= until_ps:
            state.increase_at_ps = time_ps + ((until_ps - time_ps) // timer + 1) * timer


@inline
def cut(params, state, time_ps):
    """Apply equation 1 of the paper to the rates at a time; restart timer and byte counter.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        time_ps: Time in ps of the cut.
    """
    # without clamping, the target stays if no increase has come since the last cut
    if params.clamp_target_rate > 0.0 or state.time_stage > 0 or state.byte_stage > 0:
        state.rt_bps = state.rc_bps
    set_rate(state, max(state.rc_bps * (1.0 - state.alpha / 2.0), min(params.min_rate_bps, state.line_bps)))
    state.held = 0
    # notifications before that time are held together: one cut then, however many they were
    state.cut_at_ps = time_ps + np.int64(params.rate_decrease_interval_ps)
    # both counters restart (figure 7), so fast recovery follows each cut
    state.time_stage = state.byte_stage = state.counted_bytes = 0
    if params.rp_timer_ps > 0.0:
        state.increase_at_ps = time_ps + np.int64(params.rp_timer_ps)


@inline
def cut_if_due(params, state, now_ps):
    """Apply the delayed cut of a queue pair, and its timers until then, if there is one and its time has come.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    if state.held == 1 and state.cut_at_ps <= now_ps:
        time_ps = state.cut_at_ps
        decay_alpha(params, state, time_ps)
        # the cut restarts a timer that would expire at the same time
        expire_timer(params, state, time_ps - 1)
        cut(params, state, time_ps)


@inline
def catch_up(params, state, now_ps):
    """Apply the effects of the timers of a queue pair until now.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    cut_if_due(params, state, now_ps)
    # what is due after the delayed cut, if there was one
    decay_alpha(params, state, now_ps)
    expire_timer(params, state, now_ps)


@inline
def on_cnp(params, state, now_ps):
    """Handle a congestion notification: apply equation 1 of the paper, at once or when the minimum interval is over.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    if state.cut_at_ps <= now_ps:
        cut(params, state, now_ps)
    else:
        state.held = 1
    # after the cut, which uses the alpha of before this notification (equation 1)
    state.alpha = (1.0 - params.g) * state.alpha + params.g
    if params.alpha_update_interval_ps > 0.0:
        state.alpha_at_ps = now_ps + np.int64(params.alpha_update_interval_ps)


@inline
def on_sent(params, state, size_bytes):
    """Apply rate increases for a packet that leaves. Before the first cut, the rate is at its maximum.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        size_bytes: Size of the packet on the wire in bytes.
    """
    limit = np.int64(params.byte_counter_bytes)
    if limit > 0:
        state.counted_bytes += size_bytes
        while state.counted_bytes >= limit:
            # a remainder counts for the next B bytes: a packet of 4178 bytes rarely ends on a multiple of B
            state.counted_bytes -= limit
            increase(params, state)
            state.byte_stage = next_stage(params, state.byte_stage)


@inline
def rest(params, state, now_ps):
    """Stop the timers of a queue pair that have nothing left to change.

    Args:
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    cut_if_due(params, state, now_ps)
    # a cut that is still to come needs the alpha of its time
    if state.held == 1:
        return
    # increases follow one another, so it does not matter at which event the queue pair makes up for them
    expire_timer(params, state, now_ps)
    # At the line rate there is nothing to increase until the next cut, which begins all of this anew.
    if state.rc_bps == state.line_bps:
        state.increase_at_ps = INF
        state.time_stage = state.byte_stage = state.counted_bytes = 0
    # The next event multiplies alpha by one power for all periods, and two powers have other bits. So alpha stays
    # unless nothing of it is left: the next cut would not change the rate, nor alpha the sum in the next notification.
    alpha = state.alpha
    if state.alpha_at_ps <= now_ps:
        interval = np.int64(params.alpha_update_interval_ps)
        alpha *= power(1.0 - params.g, (now_ps - state.alpha_at_ps) // interval + 1)
    if 1.0 - alpha / 2.0 == 1.0 and (1.0 - params.g) * alpha + params.g == params.g:
        state.alpha = 0.0
        state.alpha_at_ps = INF


@hook
def update(world_address, pair, event, now_ps, sent_bytes, _b, _c):
    """Update a queue pair after an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP, CC_LOSS or CC_REST (pdes/nic/congestion).
        now_ps: Current time in ps.
        sent_bytes: Size of the packet on the wire in bytes, with CC_SENT.
        _b: Not used here.
        _c: Not used here.
    """
    world = world_at(world_address)
    params = parameters(world.qps.par)[0]
    state = own(world.qps.cc)[pair]
    # one question for both, as each packet asks it
    if event <= CC_REST:
        if event == CC_START:
            start(world.net, state)
        else:
            rest(params, state, now_ps)
        return 0
    # first the timers up to now, then the event itself: at one time an expiration precedes the notification
    catch_up(params, state, now_ps)
    if event == CC_SENT:
        on_sent(params, state, sent_bytes)
    elif event == CC_CNP:
        on_cnp(params, state, now_ps)
    return 0
