"""HPCC: the window follows the in-flight bytes that packets measure on their path.

Y. Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019: section 3.2 (eq. 2 to 4), section 3.3, and
Algorithm 1, whose functions have the same names here.

Where the paper leaves a choice, this file follows the authors' ns-3 code (rdma-hw.cc): the first acknowledgement only
fills L and sets lastUpdateSeq; U begins at 1, which is what a window of W_init means; W never exceeds W_init; `snd_nxt`
is the next sequence number to send, after a go-back the one gone back to. W counts bytes on the wire, as txBytes does,
and a packet may begin while less than W is in flight. Losses and marks change nothing by themselves. T is the same for
the whole fabric, W_init is the line rate times T.

Section 4.1 detects a change of path by the pathID of the packet and discards the state of the old path. Telemetry has
no pathID: the path counts as changed if the number of hops or the classes of links differ, and also if a port would
have gone back in time or would have sent more than its rate allows, as happens when packets of one queue pair alternate
between equal paths. Then L is replaced, and U, W and W^c stay as they are until the next acknowledgement.
"""

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import CongestionState
from nadi.pdes.core.rows.run import ControlParameters
from nadi.pdes.core.state import (
    CC_ACK,
    CC_REST,
    CC_START,
    MAX_TELEMETRY_HOPS,
    PS_PER_BYTE_AT_1_BPS,
    TELEMETRY_CLASS_SHIFT,
    TELEMETRY_QUEUE_SHIFT,
    world_at,
)
from nadi.pdes.network.link import full_packet_bytes
from nadi.pdes.nic.congestion import STEP_BPS, SWITCH, TIME_OR_0_PS, WHOLE_COUNT, Allowed, parameter

TITLE = "HPCC: High Precision Congestion Control (SIGCOMM 2019)"
SIGNALS = ("telemetry",)
FORGETS = True
UTILISATION = Allowed(0.01, 1.0)
FLOWS = Allowed(1.0, 1e9)
RATE_OR_0_BPS = Allowed(1e6, 1e15, special=0.0)


class HpccParameters(ControlParameters, words=24):
    """Parameters of HPCC."""

    eta = parameter(0.95, UTILISATION, "target utilisation (section 5.1)", {"U_TARGET": 1.0})
    max_stage = parameter(
        5.0, WHOLE_COUNT, "additive steps before a multiplicative one (section 5.1)", {"MI_THRESH": 1.0}
    )
    flows = parameter(16.0, FLOWS, "N of W_AI = W_init (1 - eta) / N, flows that share a link (section 3.3)")
    rate_ai_bps = parameter(0.0, STEP_BPS, "W_AI as a rate, W_AI / T, at any line rate; 0: from N", {"RATE_AI": 1e6})
    min_rate_bps = parameter(0.0, RATE_OR_0_BPS, "minimum W / T; 0: only W_AI, as in the paper", {"MIN_RATE": 1e6})
    base_rtt_ps = parameter(
        0.0, TIME_OR_0_PS, "T; 0: the idle round trip of a full packet over the fabric's longest path"
    )
    fast_react = parameter(1.0, SWITCH, "0: acknowledgements between updates change nothing", {"FAST_REACT": 1.0})


PARAMETERS = HpccParameters.declared

TIME_MASK = (1 << TELEMETRY_CLASS_SHIFT) - 1
BYTES_MASK = (1 << TELEMETRY_QUEUE_SHIFT) - 1
LATER = 1 << (TELEMETRY_CLASS_SHIFT - 1)  # ps: a larger difference of wrapped times is negative


class HpccState(CongestionState, words=32):
    """State of HPCC for a queue pair."""

    # Example: T = 10 us at 100 Gb/s: W_init = 125,000 bytes. A link with U = 1.9 at eta = 0.95 makes W = W^c / 2 +
    # W_AI, where W_AI = 125,000 x 0.05 / 16 = 391 bytes.
    wc_bytes = word("float", "bytes: the reference window W^c")
    u = word("float", "in-flight bytes of the busiest link over its rate times T, smoothed")
    inc_stage = word("count", "additive steps since the last multiplicative one")
    last_update_seq = word("sequence", "next packet to send when W^c was last set")
    hops = word("count", "hops of L, 0 = nothing is known")
    last = word("telemetry", "L, telemetry of the last acknowledgement: as Telemetry.met", many=2 * MAX_TELEMETRY_HOPS)


own = seen_as(HpccState)
parameters = seen_as(HpccParameters)


@inline
def round_trip(net, params):
    """Return T of the paper, the round trip of an idle network, in ps.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
    """
    return params.base_rtt_ps if params.base_rtt_ps > 0.0 else float(net.const.base_rtt_ps)


@inline
def sending(net, params, state, window_bytes):
    """Set the window W of a queue pair in packets, and the pacing R = W / T.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        window_bytes: The window W in bytes.
    """
    packet = full_packet_bytes(net)
    # rounded up: a packet may begin while less than W is in flight, so that W = 1.5 packets lets two go
    packets = int(window_bytes / packet)
    if packets * packet < window_bytes:
        packets += 1
    state.window_packets = max(1, min(packets, net.const.window_packets))
    # R = W / T in ps per byte; never faster than the line, as W <= W_init
    state.pace_ps_per_byte = max(round_trip(net, params) / window_bytes, state.line_ps_per_byte)


@inline
def start(net, params, state):
    """Start a queue pair at line rate: W_init = B T.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    state.wc_bytes = round_trip(net, params) / state.line_ps_per_byte
    state.u = 1.0
    sending(net, params, state, state.wc_bytes)


@inline
def class_psb(net, first):
    """Return 1 / B in ps per byte of the link of a telemetry entry.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        first: First word of the entry, which holds the class of the link (Telemetry.met).
    """
    return net.link_class[first >> TELEMETRY_CLASS_SHIFT].ps_per_byte


@inline
def same_path(net, state):
    """Return whether the telemetry of the acknowledgement is of the same links as the last one's, L.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
    """
    if net.carried.hops != state.hops:
        return False
    for i in range(net.carried.hops):
        first = net.carried.met[2 * i]
        last_first = state.last[2 * i]
        # both words wrap (46 bits of ps are 70 s, 34 bits of bytes 17 GB), so differences are taken modulo their widths
        elapsed = (first - last_first) & TIME_MASK
        sent = (net.carried.met[2 * i + 1] - state.last[2 * i + 1]) & BYTES_MASK
        # elapsed 0: two packets cannot leave one port at one time; LATER or more: the port's clock would have gone back
        if first >> TELEMETRY_CLASS_SHIFT != last_first >> TELEMETRY_CLASS_SHIFT or elapsed == 0 or elapsed >= LATER:
            return False
        # more bytes than the link can send in that time: it is another link of the class
        if (sent - full_packet_bytes(net)) * class_psb(net, first) > elapsed:
            return False
    return True


@inline
def measure_inflight(net, params, state):
    """Update the utilisation U from the acknowledgement's telemetry: MeasureInflight, lines 1 to 9 of algorithm 1.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    t = round_trip(net, params)
    u = 0.0
    tau = 0.0
    for i in range(net.carried.hops):
        first = net.carried.met[2 * i]
        second = net.carried.met[2 * i + 1]
        last_second = state.last[2 * i + 1]
        psb = class_psb(net, first)
        elapsed = float((first - state.last[2 * i]) & TIME_MASK)
        # bytes per ps; times psb, the ps per byte of the link, it is the link's utilisation, without a unit
        tx_rate = float((second - last_second) & BYTES_MASK) / elapsed
        # the shorter queue of two packets, so that a burst at one of them does not count
        queue = min(second >> TELEMETRY_QUEUE_SHIFT, last_second >> TELEMETRY_QUEUE_SHIFT)
        # equation 2: u = qlen / (B T) + txRate / B, and U is that of the busiest hop
        busy = float(queue) * psb / t + tx_rate * psb
        if busy > u:
            u = busy
            tau = elapsed
    tau = min(tau, t)
    # an average over T, weighted by the time since the last acknowledgement: with tau = T only the newest counts
    state.u = (1.0 - tau / t) * state.u + tau / t * u


@inline
def compute_wind(net, params, state, update_wc):
    """Apply ComputeWind(U, updateWc), lines 10 to 21 of algorithm 1, and return the window W in bytes.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
        update_wc: Whether to keep the window as the reference window W_c, once per round trip.
    """
    t = round_trip(net, params)
    w_init = t / state.line_ps_per_byte
    # additive increase: N flows together fill what eta leaves free (section 3.3)
    w_ai = (
        params.rate_ai_bps * t / PS_PER_BYTE_AT_1_BPS
        if params.rate_ai_bps > 0.0
        else w_init * (1.0 - params.eta) / params.flows
    )
    # multiplicative adjustment by equation 4; after max_stage additive steps even below eta, to reach free bandwidth
    # quickly
    if state.u >= params.eta or state.inc_stage >= params.max_stage:
        w = state.wc_bytes / (state.u / params.eta) + w_ai
        stage = 0
    else:
        w = state.wc_bytes + w_ai
        stage = state.inc_stage + 1
    w = min(max(w, params.min_rate_bps * t / PS_PER_BYTE_AT_1_BPS), w_init)
    # within a round trip W follows each acknowledgement, but from the same W^c: reacting to each of them from W would
    # count the same queue many times (section 3.2, "fast reaction without overreaction")
    if update_wc:
        state.inc_stage = stage
        state.wc_bytes = w
    return w


@inline
def keep(net, state):
    """Store the acknowledgement's telemetry as the last one, L.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        state: State of the queue pair (row of `cc`).
    """
    state.hops = net.carried.hops
    for i in range(2 * net.carried.hops):
        state.last[i] = net.carried.met[i]


@inline
def new_ack(net, params, qp, state):
    """Handle an acknowledgement: NewAck(ack), lines 22 to 29 of algorithm 1.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        qp: The queue pair (row of `qps.qp`).
        state: State of the queue pair (row of `cc`).
    """
    # the first acknowledgement: there is nothing to compare with
    if state.hops == 0:
        state.last_update_seq = qp.next_seq
        keep(net, state)
        return
    # acknowledged beyond what was under way when W^c was last set: these packets were sent with the new window
    update_wc = qp.una > state.last_update_seq
    if update_wc or params.fast_react != 0.0:
        if same_path(net, state):
            measure_inflight(net, params, state)
            sending(net, params, state, compute_wind(net, params, state, update_wc))
            if update_wc:
                state.last_update_seq = qp.next_seq
        # also where the path has changed: the next acknowledgement is compared with this one
        keep(net, state)


@inline
def rest(net, params, state):
    """Forget the number of additive steps of a queue pair whose reference window W^c is W_init.

    Below eta both kinds of steps then lead to W_init again, and from eta on the count begins anew.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        params: Parameters of the algorithm (the row `par`).
        state: State of the queue pair (row of `cc`).
    """
    if state.wc_bytes == round_trip(net, params) / state.line_ps_per_byte:
        state.inc_stage = 0


@hook
def update(world_address, pair, event, _now, _a, _b, _c):
    """Update a queue pair after an event.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP, CC_LOSS or CC_REST (pdes/nic/congestion).
        _now: Not used here.
        _a: Not used here.
        _b: Not used here.
        _c: Not used here.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    params, state = parameters(qps.par)[0], own(qps.cc)[pair]
    if event == CC_START:
        start(net, params, state)
    # without telemetry, an acknowledgement says nothing of its path
    elif event == CC_ACK and net.carried.hops > 0:
        new_ack(net, params, qps.qp[pair], state)
    elif event == CC_REST:
        rest(net, params, state)
    return 0
