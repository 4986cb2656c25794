"""NSCC: the window of Ultra Ethernet's network-signaled congestion control, from marks and delay.

Ultra Ethernet Specification 1.0, section 3.6.13, whose functions (3.6.13.5, 3.6.13.6) are found here by their names. An
acknowledgement is one of four cases:

    no mark, delay <  target    proportional_increase (fast_increase where there is next to no delay)
    no mark, delay >= target    fair_increase
    mark,    delay >= target    multiplicative_decrease, once per base round trip, by the average delay
    mark,    delay <  target    nothing (another path is a matter of load balancing)

and quick_adapt, which after a trimmed packet or a very long delay sets the window to what came through within one
target round trip. Increases are collected, and added once per round trip or eight packets (fulfill_adjustment).

What the specification leaves open is done as the consortium's simulator does it (htsim, uec.cpp): the average delay is
moving, delay_alpha for each acknowledgement, and a long delay without a mark pulls it towards a quarter of the base
round trip; "delay ~= 0" is less than 1 us. What queue pairs here make different:

- Bytes are bytes on the wire; newly acknowledged packets count as full ones. Windows are floats, not whole bytes.
- config_base_rtt is the fabric's longest idle round trip of a full packet, the bandwidth that of the sender's port. The
  largest window, 1.5 x bandwidth x base round trip, is never above the static window of the run.
- In flight is what lies between the first unacknowledged sequence number and the next one to send.
- LOSS_TRIMMED is OnNACK of a trimmed packet. LOSS_NAK and LOSS_TIMEOUT are OnInferredLoss: of one packet, and of all
  that is unacknowledged, since that is sent again.
- The receiver's window penalty and its credits (RCCC) are not modelled.
"""

from pdes.core.jit import hook, inline, seen_as
from pdes.core.rows.nic import CongestionState
from pdes.core.rows.row import Kind, word
from pdes.core.state import CC_ACK, CC_LOSS, CC_START, LOSS_TIMEOUT, LOSS_TRIMMED
from pdes.core.world import world_at
from pdes.nic.congestion import DELAY_PS, FACTOR, PACKETS, RATE_BPS, TIME_PS, Parameter

TITLE = "NSCC: network-signaled congestion control (Ultra Ethernet Specification 1.0)"
SIGNALS = ("ecn", "rtt")
RTTS = (1e-3, 1e6)
PARAMETERS = (
    Parameter(
        "target_qdelay_rtts",
        1.0,
        "target queueing delay in base round trips (3.6.13.3: 1; 0.75 where switches trim)",
        range=RTTS,
    ),
    Parameter("alpha_packets", 4.0, "proportional increase (3.6.13.3: 4 MTU, scaled by a and b)", range=PACKETS),
    Parameter("fi_packets", 5.0, "fair increase (3.6.13.3: 5 MTU, scaled by a)", range=PACKETS),
    Parameter(
        "eta_packets", 0.15, "increase per round trip in any case (3.6.13.3: 0.15 MTU, scaled by a)", range=PACKETS
    ),
    Parameter("fi_scale", 0.25, "fast increase per acknowledged byte (3.6.13.3: 0.25, scaled by a)", range=FACTOR),
    Parameter("fast_increase_delay_ps", 1e6, "fast increase where the delay is less (htsim: 1 us)", range=DELAY_PS),
    Parameter("gamma", 0.8, "multiplicative decrease (3.6.13.3)"),
    Parameter("max_md_jump", 0.5, "least factor of one multiplicative decrease (3.6.13.3)"),
    Parameter("delay_alpha", 0.0125, "weight of a new delay in the average (htsim)"),
    Parameter(
        "qa_threshold_targets", 4.0, "quick adapt acts on a longer delay, in target delays (3.6.13.3)", range=FACTOR
    ),
    Parameter("qa_gate", 0.125, "quick adapt acts if less of the largest window came through (3.6.13.3: 2^-3)"),
    Parameter("adjust_packets", 8.0, "increases are added after more acknowledged packets (3.6.13.3)", range=PACKETS),
    Parameter("max_window_bdps", 1.5, "largest window in bandwidth x base round trip (3.6.13.3)", range=RTTS),
    Parameter("reference_rate_bps", 100e9, "of the network that scaling_a is 1 for (3.6.13.3)", range=RATE_BPS),
    Parameter("reference_rtt_ps", 12e6, "base round trip of that network (3.6.13.3)", range=TIME_PS),
)
(
    P_TARGET,
    P_ALPHA,
    P_FI,
    P_ETA,
    P_FI_SCALE,
    P_FAST_DELAY,
    P_GAMMA,
    P_MAX_MD_JUMP,
    P_DELAY_ALPHA,
    P_QA_THRESHOLD,
    P_QA_GATE,
    P_ADJUST,
    P_MAX_WINDOW,
    P_REFERENCE_RATE,
    P_REFERENCE_RTT,
) = range(15)


class NsccState(CongestionState, words=32, written_by="nic.congestion.nscc"):
    """What NSCC keeps of a queue pair."""

    cwnd_bytes = word(Kind.FLOAT, "bytes")
    avg_delay_ps = word(Kind.FLOAT, "ps")
    base_rtt_ps = word(Kind.DURATION, "shortest round trip that is known")
    inc_bytes = word(Kind.FLOAT, "bytes^2: increases that wait, times the window")
    received_bytes = word(Kind.BYTES, "acknowledged since increases were added")
    achieved_bytes = word(Kind.BYTES, "acknowledged since quick adapt looked")
    ignored_bytes = word(Kind.BYTES, "acknowledged since quick adapt acted")
    to_ignore_bytes = word(Kind.BYTES, "in flight when it did: marks on them are old")
    qa_end_ps = word(Kind.TIME, "quick adapt looks after; 0 = not begun")
    trigger_qa = word(Kind.FLAG, "a packet was lost since quick adapt acted")
    fi_count_bytes = word(Kind.BYTES, "acknowledged in a row with next to no delay")
    increase = word(Kind.FLAG, "the last acknowledgement was a fast increase")
    last_dec_ps = word(Kind.TIME, "of the last multiplicative decrease")
    last_adjust_ps = word(Kind.TIME, "when increases were last added after a round trip")


own = seen_as(NsccState)


@inline
def packet_bytes(world):
    """A full packet on the wire."""
    return world.net.const.mtu_bytes + world.net.const.header_bytes


@inline
def in_flight_bytes(world, qp):
    """What was sent and not acknowledged, in full packets."""
    return (qp.next_seq - qp.una) * packet_bytes(world)


@inline
def target_qdelay(world):
    """Target queueing delay in ps."""
    return world.qps.par[P_TARGET] * world.net.const.base_rtt_ps


@inline
def scaling_a(world, state):
    """The network's bandwidth-delay product over that of the reference network."""
    reference = world.qps.par[P_REFERENCE_RATE] * world.qps.par[P_REFERENCE_RTT] / 8e12
    return world.net.const.base_rtt_ps / state.line_ps_per_byte / reference


@inline
def max_window(world, state):
    """Largest window in bytes."""
    most = world.qps.par[P_MAX_WINDOW] * state.base_rtt_ps / state.line_ps_per_byte
    static = float(world.net.const.window_packets * packet_bytes(world))
    if most > static:
        most = static
    return most


@inline
def set_cwnd_bounds(world, state):
    """Keep the window within its limits."""
    if state.cwnd_bytes > max_window(world, state):
        state.cwnd_bytes = max_window(world, state)
    if state.cwnd_bytes < packet_bytes(world):
        state.cwnd_bytes = float(packet_bytes(world))


@inline
def sending(world, state):
    """What the sender sees: a packet may go if the window holds it whole."""
    packets = int(state.cwnd_bytes / packet_bytes(world))
    if packets > world.net.const.window_packets:
        packets = world.net.const.window_packets
    if packets < 1:
        packets = 1
    state.window_packets = packets
    state.pace_ps_per_byte = 0.0


@inline
def start(world, state, now):
    """Begin with the largest window (table 3-77)."""
    state.base_rtt_ps = world.net.const.base_rtt_ps
    state.last_dec_ps = now
    state.last_adjust_ps = now
    state.cwnd_bytes = max_window(world, state)
    set_cwnd_bounds(world, state)


@inline
def update_delay(world, state, delay, mark):
    """The average delay."""
    weight = world.qps.par[P_DELAY_ALPHA]
    sample = delay
    if mark == 0 and delay > target_qdelay(world):
        sample = 0.25 * state.base_rtt_ps
    state.avg_delay_ps = weight * sample + (1.0 - weight) * state.avg_delay_ps


@inline
def quick_adapt(world, state, now, is_loss, mark, delay, in_flight):
    """Set the window to what came through. Gives 1 if it did, or if a mark is older than that."""
    done = 0
    if mark == 1 and state.ignored_bytes < state.to_ignore_bytes:
        done = 1
    elif now >= state.qa_end_ps:
        if state.qa_end_ps != 0:
            bad = is_loss == 1 or state.trigger_qa == 1
            bad = bad or delay > world.qps.par[P_QA_THRESHOLD] * target_qdelay(world)
            if bad and state.achieved_bytes < world.qps.par[P_QA_GATE] * max_window(world, state):
                state.cwnd_bytes = float(state.achieved_bytes)
                if state.cwnd_bytes < packet_bytes(world):
                    state.cwnd_bytes = float(packet_bytes(world))
                state.to_ignore_bytes = in_flight
                state.ignored_bytes = 0
                state.trigger_qa = 0
                done = 1
        state.achieved_bytes = 0
        state.qa_end_ps = now + state.base_rtt_ps + int(target_qdelay(world))
    if done == 1:
        state.inc_bytes = 0.0
        state.received_bytes = 0
    return done


@inline
def fast_increase(world, state, newly_rcvd, delay):
    """After a window's worth without delay, grow with every acknowledgement."""
    if delay < world.qps.par[P_FAST_DELAY]:
        state.fi_count_bytes += newly_rcvd
        if state.fi_count_bytes > state.cwnd_bytes or state.increase == 1:
            state.cwnd_bytes += newly_rcvd * world.qps.par[P_FI_SCALE] * scaling_a(world, state)
            state.increase = 1
    else:
        state.fi_count_bytes = 0
        state.increase = 0


@inline
def proportional_increase(world, state, newly_rcvd, delay):
    """Grow with the distance from the target."""
    fast_increase(world, state, newly_rcvd, delay)
    if state.increase == 0:
        target = target_qdelay(world)
        mss = world.net.const.mtu_bytes
        scaling_b = target / world.qps.par[P_REFERENCE_RTT]
        alpha = world.qps.par[P_ALPHA] * mss * scaling_a(world, state) * scaling_b / target
        state.inc_bytes += alpha * newly_rcvd * (target - delay)


@inline
def fair_increase(world, state, newly_rcvd):
    """Grow by as much as everyone else."""
    fi = world.qps.par[P_FI] * world.net.const.mtu_bytes * scaling_a(world, state)
    state.inc_bytes += fi * newly_rcvd


@inline
def multiplicative_decrease(world, state, now):
    """Shrink by how far the average delay lies above the target."""
    state.increase = 0
    state.fi_count_bytes = 0
    average = state.avg_delay_ps
    target = target_qdelay(world)
    if average > target and now - state.last_dec_ps > state.base_rtt_ps:
        factor = 1.0 - world.qps.par[P_GAMMA] * (average - target) / average
        if factor < world.qps.par[P_MAX_MD_JUMP]:
            factor = world.qps.par[P_MAX_MD_JUMP]
        state.cwnd_bytes *= factor
        state.last_dec_ps = now


@inline
def fulfill_adjustment(world, state, now):
    """Add the increases that wait."""
    state.cwnd_bytes += state.inc_bytes / state.cwnd_bytes
    if now - state.last_adjust_ps >= world.net.const.base_rtt_ps:
        state.cwnd_bytes += world.qps.par[P_ETA] * world.net.const.mtu_bytes * scaling_a(world, state)
        state.last_adjust_ps = now
    set_cwnd_bounds(world, state)
    state.inc_bytes = 0.0
    state.received_bytes = 0


@inline
def on_ack(world, qp, state, now, newly_rcvd, mark, rtt):
    """NSCC.OnACK; newly_rcvd in bytes."""
    state.ignored_bytes += newly_rcvd
    state.received_bytes += newly_rcvd
    state.achieved_bytes += newly_rcvd
    if rtt >= 0:
        if rtt < state.base_rtt_ps:
            state.base_rtt_ps = rtt
        delay = float(rtt - state.base_rtt_ps)
        update_delay(world, state, delay, mark)
        if quick_adapt(world, state, now, 0, mark, delay, in_flight_bytes(world, qp)) == 0:
            target = target_qdelay(world)
            if mark == 0 and delay >= target:
                fair_increase(world, state, newly_rcvd)
            elif mark == 0:
                proportional_increase(world, state, newly_rcvd, delay)
            elif delay >= target:
                multiplicative_decrease(world, state, now)
            set_cwnd_bounds(world, state)
            late = now - state.last_adjust_ps >= world.net.const.base_rtt_ps
            if late or state.received_bytes > world.qps.par[P_ADJUST] * packet_bytes(world):
                fulfill_adjustment(world, state, now)


@inline
def on_nack(world, qp, state, now):
    """NSCC.OnNACK: a packet was trimmed. Its queue is held to have been as long as a base round trip."""
    in_flight = in_flight_bytes(world, qp) - packet_bytes(world)
    if in_flight < 0:
        in_flight = 0
    update_delay(world, state, float(world.net.const.base_rtt_ps), 1)
    state.ignored_bytes += packet_bytes(world)
    state.trigger_qa = 1
    if quick_adapt(world, state, now, 1, 1, 0.0, in_flight) == 0:
        state.cwnd_bytes -= packet_bytes(world)
        set_cwnd_bounds(world, state)


@inline
def on_inferred_loss(world, state, packets):
    """NSCC.OnInferredLoss, once for each packet."""
    state.cwnd_bytes -= packets * packet_bytes(world)
    state.ignored_bytes += packets * packet_bytes(world)
    set_cwnd_bounds(world, state)


@hook
def update(address, q, event, now, a, b, c):
    """Tell the queue pair's row what happened (pdes/congestion)."""
    world = world_at(address)
    qp = world.qps.qp[q]
    state = own(world.qps.cc)[q]
    if event == CC_START:
        start(world, state, now)
    elif event == CC_ACK:
        on_ack(world, qp, state, now, a * packet_bytes(world), b, c)
    elif event == CC_LOSS:
        if a == LOSS_TRIMMED:
            on_nack(world, qp, state, now)
        elif a == LOSS_TIMEOUT:
            on_inferred_loss(world, state, qp.sent_max - qp.una)
        else:
            on_inferred_loss(world, state, 1)
    sending(world, state)
    return 0
