"""NSCC: the window of Ultra Ethernet's network-signaled congestion control, from marks and delay.

Ultra Ethernet Specification 1.0, section 3.6.13, whose functions (3.6.13.5, 3.6.13.6) have the same names here. There
are four cases of acknowledgement:

    no mark, delay <  target    proportional_increase (fast_increase if the delay is nearly 0)
    no mark, delay >= target    fair_increase
    mark,    delay >= target    multiplicative_decrease, once per base round trip, by the average delay
    mark,    delay <  target    nothing (another path is a matter of load balancing)

and quick_adapt, which after a trimmed packet or a very long delay sets the window to the bytes delivered within one
target round trip. Increases are collected, and added once per round trip or eight packets (fulfill_adjustment).

Where the specification leaves a choice, this file follows the consortium's simulator (htsim, uec.cpp): the average
delay is a moving one, with weight delay_alpha for each acknowledgement, and a long delay without a mark pulls it
towards a quarter of the base round trip; "delay ~= 0" means less than 1 us. Differences due to the queue pairs here:

- Bytes are bytes on the wire; newly acknowledged packets count as full ones. Windows are floats, not whole bytes.
- config_base_rtt is by default the fabric's longest idle round trip of a full packet, and the bandwidth that of the
  sender's port, or of all ports of a NIC over which packets spread. The largest window, 1.5 x bandwidth x base round
  trip, is never above the static window of the run.
- In-flight bytes are those between the first unacknowledged sequence number and the next one to send; with delivery
  "rud" those that have neither arrived nor been lost.
- LOSS_TRIMMED is OnNACK of a trimmed packet. LOSS_NAK and LOSS_TIMEOUT are OnInferredLoss: of one packet, and of all
  unacknowledged ones, since these are sent again.
- The receiver's window penalty is not modelled. Its credits are another part (pdes/nic/receiver_credits.py); where they
  run, a packet that the last switch trimmed leaves the window as it is.
"""

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.core.state import CC_ACK, CC_LOSS, CC_START, LOSS_TIMEOUT, LOSS_TRIMMED, PS_PER_BYTE_AT_1_BPS, world_at
from nadi.pdes.network.link import full_packet_bytes
from nadi.pdes.nic.congestion import DELAY_PS, FACTOR, PACKETS, RATE_BPS, SHARE, TIME_PS, Allowed, parameter
from nadi.pdes.nic.selective import in_flight

TITLE = "NSCC: network-signaled congestion control (Ultra Ethernet Specification 1.0)"
SIGNALS = ("ecn", "rtt")
RTTS = Allowed(1e-3, 1e6)


class NsccParameters(ControlParameters, words=24):
    """Parameters of NSCC."""

    target_qdelay_rtts = parameter(
        1.0, RTTS, "target queueing delay in base round trips (3.6.13.3: 1; 0.75 where switches trim)"
    )
    alpha_packets = parameter(4.0, PACKETS, "proportional increase (3.6.13.3: 4 MTU, scaled by a and b)")
    fi_packets = parameter(5.0, PACKETS, "fair increase (3.6.13.3: 5 MTU, scaled by a)")
    eta_packets = parameter(0.15, PACKETS, "increase per round trip in any case (3.6.13.3: 0.15 MTU, scaled by a)")
    fi_scale = parameter(0.25, FACTOR, "fast increase per acknowledged byte (3.6.13.3: 0.25, scaled by a)")
    fast_increase_delay_ps = parameter(1e6, DELAY_PS, "delay below which fast increase applies (htsim: 1 us)")
    gamma = parameter(0.8, SHARE, "multiplicative decrease (3.6.13.3)")
    max_md_jump = parameter(0.5, SHARE, "minimum factor of one multiplicative decrease (3.6.13.3)")
    delay_alpha = parameter(0.0125, SHARE, "weight of a new delay in the average (htsim)")
    qa_threshold_targets = parameter(4.0, FACTOR, "delay above which quick adapt acts, in target delays (3.6.13.3)")
    qa_gate = parameter(
        0.125, SHARE, "share of the largest window below whose delivery quick adapt acts (3.6.13.3: 2^-3); 0: never"
    )
    adjust_packets = parameter(8.0, PACKETS, "acknowledged packets after which increases are added (3.6.13.3)")
    adjust_period_rtts = parameter(1.0, RTTS, "time after which increases are added, in base round trips (3.6.13.3: 1)")
    max_window_bdps = parameter(1.5, RTTS, "largest window in bandwidth x base round trip (3.6.13.3)")
    base_rtt_ps = parameter(
        0.0, DELAY_PS, "base round trip (MRC's base_rtt); 0: the fabric's longest idle one of a full packet"
    )
    reference_rate_bps = parameter(100e9, RATE_BPS, "line rate of the network with scaling_a = 1 (3.6.13.3)")
    reference_rtt_ps = parameter(12e6, TIME_PS, "base round trip of that network (3.6.13.3)")


PARAMETERS = NsccParameters.declared


class NsccState(CongestionState, words=32):
    """State of NSCC for a queue pair."""

    # `inc_bytes` is in bytes^2, as each acknowledgement adds (increase x newly acknowledged bytes); divided by the
    # window at the adjustment, this is the increase per window of data, without a division per acknowledgement
    cwnd_bytes = word("float", "congestion window in bytes")
    avg_delay_ps = word("float", "average delay in ps")
    base_rtt_ps = word("duration", "shortest known round trip")
    inc_bytes = word("float", "bytes^2: pending increases, times the window")
    received_bytes = word("bytes", "bytes acknowledged since increases were added")
    achieved_bytes = word("bytes", "bytes acknowledged since the last check of quick adapt")
    ignored_bytes = word("bytes", "bytes acknowledged since quick adapt acted, up to to_ignore_bytes")
    to_ignore_bytes = word("bytes", "bytes in flight when quick adapt acted, whose marks are outdated")
    qa_end_ps = word("time", "time of the next check of quick adapt; 0 = not begun", rest="future")
    trigger_qa = word("flag", "a packet was lost since quick adapt acted")
    fi_count_bytes = word("bytes", "bytes acknowledged consecutively with a delay near 0")
    increase = word("flag", "the last acknowledgement was a fast increase")
    last_dec_ps = word("time", "time of the last multiplicative decrease", rest="recent")
    last_adjust_ps = word("time", "time at which increases were last added after a round trip", rest="recent")


own = seen_as(NsccState)
parameters = seen_as(NsccParameters)


@inline
def in_flight_bytes(net, qps, pair):
    """Return the sent, unacknowledged bytes, counting full packets.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    qp = qps.qp[pair]
    packets = in_flight(qps, pair) if net.const.by_flight == 1 else qp.next_seq - qp.una
    return packets * full_packet_bytes(net)


@inline
def config_base_rtt(net, params):
    """Return the base round trip of `net` in ps, as given in params or that of the fabric."""
    return params.base_rtt_ps if params.base_rtt_ps > 0.0 else float(net.const.base_rtt_ps)


@inline
def target_qdelay(net, params):
    """Return the target queueing delay in ps.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
    """
    return params.target_qdelay_rtts * config_base_rtt(net, params)


@inline
def scaling_a(net, params, state):
    """Return the network's bandwidth-delay product relative to that of the reference network.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    # 100 Gb/s x 12 us = 150,000 bytes
    reference = params.reference_rate_bps * params.reference_rtt_ps / PS_PER_BYTE_AT_1_BPS
    return config_base_rtt(net, params) / state.line_ps_per_byte / reference


@inline
def max_window(net, params, state):
    """Return the largest window of a queue pair in bytes.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    bdp_limit = params.max_window_bdps * state.base_rtt_ps / state.line_ps_per_byte
    return min(bdp_limit, float(net.const.window_packets * full_packet_bytes(net)))


@inline
def set_cwnd_bounds(net, params, state):
    """Keep the window within its limits.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    state.cwnd_bytes = max(min(state.cwnd_bytes, max_window(net, params, state)), float(full_packet_bytes(net)))


@inline
def sending(net, state):
    """Set the sender's window in whole packets: a packet may go if the window holds it entirely.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
    """
    packets = int(state.cwnd_bytes / full_packet_bytes(net))
    state.window_packets = max(1, min(packets, net.const.window_packets))
    state.pace_ps_per_byte = 0.0


@inline
def start(net, params, state, now_ps):
    """Start a queue pair with the largest window (table 3-77).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    state.base_rtt_ps = int(config_base_rtt(net, params))
    state.last_dec_ps = now_ps
    state.last_adjust_ps = now_ps
    state.cwnd_bytes = max_window(net, params, state)
    set_cwnd_bounds(net, params, state)


@inline
def update_delay(net, params, state, delay_ps, is_marked):
    """Update the average queueing delay with that of an acknowledgement.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        delay_ps: Queueing delay of the acknowledged packet in ps.
        is_marked: 1 if the acknowledgement echoes a congestion mark, else 0.
    """
    # not the delay itself: without a mark, no switch has seen a long queue
    sample = 0.25 * state.base_rtt_ps if is_marked == 0 and delay_ps > target_qdelay(net, params) else delay_ps
    state.avg_delay_ps = params.delay_alpha * sample + (1.0 - params.delay_alpha) * state.avg_delay_ps


@inline
def quick_adapt(net, params, state, now_ps, is_loss, is_marked, delay_ps, in_flight_bytes):
    """Set the window to the delivered bytes in a bad case. Return 1 if it did, or if a mark is older than that.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        is_loss: 1 if a packet was lost or trimmed, else 0.
        is_marked: 1 if the acknowledgement echoes a congestion mark, else 0.
        delay_ps: Queueing delay of the acknowledged packet in ps.
        in_flight_bytes: Sent, unacknowledged bytes.
    """
    done = 0
    if is_marked == 1 and state.ignored_bytes < state.to_ignore_bytes:
        # marks of packets that were sent before the last adaptation: acting on them would cut twice for one congestion
        done = 1
    elif now_ps >= state.qa_end_ps:
        bad = (
            is_loss == 1 or state.trigger_qa == 1 or delay_ps > params.qa_threshold_targets * target_qdelay(net, params)
        )
        # bytes that arrived within the last check interval, base round trip plus target delay
        through = state.achieved_bytes
        # far less has arrived in a round trip than fits into it: keep only that much in flight
        if state.qa_end_ps != 0 and bad and through < params.qa_gate * max_window(net, params, state):
            state.cwnd_bytes = float(max(through, full_packet_bytes(net)))
            state.to_ignore_bytes = in_flight_bytes
            state.ignored_bytes = state.trigger_qa = 0
            done = 1
        state.achieved_bytes = 0
        state.qa_end_ps = now_ps + state.base_rtt_ps + int(target_qdelay(net, params))
    # what was collected belongs to the window of before
    if done == 1:
        state.inc_bytes = 0.0
        state.received_bytes = 0
    return done


@inline
def ignore(state, new_bytes):
    """Count bytes whose marks are outdated since quick adapt acted.

    Args:
        state: State of the queue pair (row of `cc`).
        new_bytes: Newly acknowledged bytes.
    """
    state.ignored_bytes = min(state.ignored_bytes + new_bytes, state.to_ignore_bytes)


@inline
def fast_increase(net, params, state, new_bytes, delay_ps):
    """After a window's worth of bytes without delay, grow with every acknowledgement.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        new_bytes: Newly acknowledged bytes, counted in full packets.
        delay_ps: Queueing delay of the acknowledged packet in ps.
    """
    if delay_ps < params.fast_increase_delay_ps:
        # what a fast increase has begun with no longer counts: a count that only grows would make every state new
        state.fi_count_bytes += new_bytes * (1 - state.increase)
        # a whole window without queueing: the path is free, so growth need not wait for the next adjustment
        if state.fi_count_bytes > state.cwnd_bytes or state.increase == 1:
            state.cwnd_bytes += new_bytes * params.fi_scale * scaling_a(net, params, state)
            state.increase = 1
    else:
        state.fi_count_bytes = state.increase = 0


@inline
def proportional_increase(net, params, state, new_bytes, delay_ps):
    """Grow by an acknowledgement in proportion to the distance of its delay from the target.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        new_bytes: Newly acknowledged bytes, counted in full packets.
        delay_ps: Queueing delay of the acknowledged packet in ps.
    """
    fast_increase(net, params, state, new_bytes, delay_ps)
    if state.increase == 0:
        target = target_qdelay(net, params)
        scaling_b = target / params.reference_rtt_ps
        # delay 0 adds alpha_packets per window of data (scaled), delay at the target adds 0: a window in balance stays
        alpha = params.alpha_packets * net.const.mtu_bytes * scaling_a(net, params, state) * scaling_b / target
        state.inc_bytes += alpha * new_bytes * (target - delay_ps)


@inline
def fair_increase(net, params, state, new_bytes):
    """Grow by an acknowledgement by the same amount as every other flow.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        new_bytes: Newly acknowledged bytes, counted in full packets.
    """
    # the same number of bytes per round trip for all flows, so that small windows catch up with large ones
    fi = params.fi_packets * net.const.mtu_bytes * scaling_a(net, params, state)
    state.inc_bytes += fi * new_bytes


@inline
def multiplicative_decrease(net, params, state, now_ps):
    """Shrink the window by the excess of the average delay over the target.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
    """
    state.increase = state.fi_count_bytes = 0
    average = state.avg_delay_ps
    target = target_qdelay(net, params)
    if average > target and now_ps - state.last_dec_ps > state.base_rtt_ps:
        # of the average delay, as one packet's may be an outlier: average 2 x target with gamma 0.8 gives a factor of
        # 0.6
        state.cwnd_bytes *= max(1.0 - params.gamma * (average - target) / average, params.max_md_jump)
        state.last_dec_ps = now_ps


@inline
def fulfill_adjustment(net, params, state, now_ps, is_late):
    """Add the pending increases.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        is_late: Whether a base round trip has passed since the last late adjustment.
    """
    # bytes^2 / bytes: see NsccState
    state.cwnd_bytes += state.inc_bytes / state.cwnd_bytes
    if is_late:
        state.cwnd_bytes += params.eta_packets * net.const.mtu_bytes * scaling_a(net, params, state)
        state.last_adjust_ps = now_ps
    set_cwnd_bounds(net, params, state)
    state.inc_bytes = 0.0
    state.received_bytes = 0


@inline
def on_ack(net, params, flight_bytes, state, now_ps, new_bytes, is_marked, rtt_ps):
    """Apply NSCC.OnACK to an acknowledgement.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        flight_bytes: Sent, unacknowledged bytes.
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        new_bytes: Newly acknowledged bytes, counted in full packets.
        is_marked: 1 if the acknowledgement echoes a congestion mark, else 0.
        rtt_ps: Round-trip time in ps; -1 = unknown.
    """
    ignore(state, new_bytes)
    state.received_bytes += new_bytes
    state.achieved_bytes += new_bytes
    # without a round trip there is no delay to act on
    if rtt_ps < 0:
        return
    state.base_rtt_ps = min(state.base_rtt_ps, rtt_ps)
    delay_ps = float(rtt_ps - state.base_rtt_ps)
    update_delay(net, params, state, delay_ps, is_marked)
    if quick_adapt(net, params, state, now_ps, 0, is_marked, delay_ps, flight_bytes) == 0:
        is_long = delay_ps >= target_qdelay(net, params)
        if is_marked == 0 and is_long:
            fair_increase(net, params, state, new_bytes)
        elif is_marked == 0:
            proportional_increase(net, params, state, new_bytes, delay_ps)
        elif is_long:
            multiplicative_decrease(net, params, state, now_ps)
        set_cwnd_bounds(net, params, state)
        # not after each acknowledgement: windows of few packets adjust by time, large ones by bytes
        is_late = now_ps - state.last_adjust_ps >= int(params.adjust_period_rtts * config_base_rtt(net, params))
        if is_late or state.received_bytes > params.adjust_packets * full_packet_bytes(net):
            fulfill_adjustment(net, params, state, now_ps, is_late)


@inline
def on_nack(net, params, flight_bytes, state, now_ps, spares_window, rtt_ps):
    """Apply NSCC.OnNACK: a packet was trimmed, which counts as a delay of a base round trip.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        flight_bytes: Sent, unacknowledged bytes.
        state: State of the queue pair (row of `cc`).
        now_ps: Current time in ps.
        spares_window: Whether the last switch trimmed it while receivers give credits, which slow the sender down.
        rtt_ps: Round-trip time of the trimmed packet in ps; -1 = unknown.
    """
    # a trimmed packet overtakes queues, so its round trip is nearly that of an idle path (htsim: processNack); without
    # it, a flow whose packets have always waited takes their delay for the path's, and keeps more than its share
    if rtt_ps >= 0:
        state.base_rtt_ps = min(state.base_rtt_ps, rtt_ps)
    packet = full_packet_bytes(net)
    update_delay(net, params, state, config_base_rtt(net, params), 1)
    ignore(state, packet)
    state.trigger_qa = 1
    # a trimmed packet has left the network, so it is no longer in flight; the window shrinks by what could not be
    # carried
    if quick_adapt(net, params, state, now_ps, 1, 1, 0.0, max(flight_bytes - packet, 0)) == 0:
        if not spares_window:
            state.cwnd_bytes -= packet
        set_cwnd_bounds(net, params, state)


@inline
def on_inferred_loss(net, params, state, packets):
    """Apply NSCC.OnInferredLoss to packets that count as lost.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        packets: Number of these packets.
    """
    state.cwnd_bytes -= packets * full_packet_bytes(net)
    ignore(state, packets * full_packet_bytes(net))
    set_cwnd_bounds(net, params, state)


@hook
def update(world_address, pair, event, now_ps, packets_or_kind, is_marked, rtt_ps):
    """Update a queue pair after an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP or CC_LOSS (pdes/nic/congestion).
        now_ps: Current time in ps.
        packets_or_kind: Number of newly acknowledged packets with CC_ACK; kind of loss with CC_LOSS.
        is_marked: 1 if the acknowledgement echoes a congestion mark, with CC_ACK; 1 if the last switch trimmed a
            packet, with CC_LOSS.
        rtt_ps: Round-trip time in ps with CC_ACK, and of a trimmed packet with CC_LOSS; -1 = unknown.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    params, qp, state = parameters(qps.par)[0], qps.qp[pair], own(qps.cc)[pair]
    if event == CC_START:
        start(net, params, state, now_ps)
    elif event == CC_ACK:
        new_bytes = packets_or_kind * full_packet_bytes(net)
        on_ack(net, params, in_flight_bytes(net, qps, pair), state, now_ps, new_bytes, is_marked, rtt_ps)
    elif event == CC_LOSS:
        if packets_or_kind == LOSS_TRIMMED:
            spares_window = is_marked == 1 and net.hooks.credits != 0
            on_nack(net, params, in_flight_bytes(net, qps, pair), state, now_ps, spares_window, rtt_ps)
        else:
            # after a timeout, all packets in flight count as lost
            on_inferred_loss(net, params, state, qp.sent_max - qp.una if packets_or_kind == LOSS_TIMEOUT else 1)
    sending(net, state)
    return 0
