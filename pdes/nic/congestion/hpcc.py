"""HPCC: the window follows the bytes in flight that packets meet on their way.

Y. Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019: section 3.2 (eq. 2 to 4), section 3.3, and
Algorithm 1, whose functions are found here by their names.

Where the paper leaves a choice, this file does as the authors' ns-3 code (rdma-hw.cc): the first acknowledgement only
fills L and sets lastUpdateSeq; U begins at 1, which is what a window of W_init means; W never exceeds W_init; `snd_nxt`
is the next sequence number to send, after a go-back the one gone back to. W counts bytes on the wire, as txBytes does,
and a packet may begin while less than W is in flight. Losses and marks change nothing by themselves. T is one for the
whole fabric, W_init is the line rate times T.

Section 4.1 finds a change of path by the pathID of the packet and throws away what is known of the old path. Telemetry
has no pathID: the path is another one if it has another number of hops or classes of links, and also if a port would
have gone back in time or would have sent more than its rate allows, as happens when packets of one queue pair alternate
between equal paths. Then L is replaced, and U, W and W^c stay as they are until the next acknowledgement.
"""

from pdes.core.jit import hook, inline, seen_as
from pdes.core.rows.nic import CongestionState
from pdes.core.rows.row import Kind, word
from pdes.core.state import CC_ACK, CC_START, MAX_TELEMETRY_HOPS, TELEMETRY_CLASS_SHIFT, TELEMETRY_QUEUE_SHIFT
from pdes.core.world import world_at
from pdes.nic.congestion import COUNT, RATE_BPS, STEP_BPS, SWITCH, TIME_PS, Parameter

TITLE = "HPCC: High Precision Congestion Control (SIGCOMM 2019)"
SIGNALS = ("telemetry",)
UTILISATION = (0.01, 1.0)
FLOWS = (1.0, 1e9)
PARAMETERS = (
    Parameter("eta", 0.95, "target utilisation (section 5.1)", {"U_TARGET": 1.0}, range=UTILISATION),
    Parameter(
        "max_stage",
        5.0,
        "additive steps before a multiplicative one (section 5.1)",
        {"MI_THRESH": 1.0},
        range=COUNT,
        whole=True,
    ),
    Parameter(
        "flows", 16.0, "N of W_AI = W_init (1 - eta) / N, flows that a link is shared by (section 3.3)", range=FLOWS
    ),
    Parameter(
        "rate_ai_bps", 0.0, "W_AI as a rate, W_AI / T, of any line rate; 0: as N says", {"RATE_AI": 1e6}, range=STEP_BPS
    ),
    Parameter(
        "min_rate_bps",
        0.0,
        "least W / T; 0: none but W_AI, as in the paper",
        {"MIN_RATE": 1e6},
        range=RATE_BPS,
        special=0.0,
    ),
    Parameter(
        "base_rtt_ps",
        0.0,
        "T; 0: the idle round trip of a full packet over the fabric's longest path",
        range=TIME_PS,
        special=0.0,
    ),
    Parameter(
        "fast_react",
        1.0,
        "0: acknowledgements between updates change nothing",
        {"FAST_REACT": 1.0},
        range=SWITCH,
        whole=True,
    ),
)
P_ETA, P_MAX_STAGE, P_FLOWS, P_RATE_AI, P_MIN_RATE, P_BASE_RTT, P_FAST_REACT = range(7)

TIME_MASK = (1 << TELEMETRY_CLASS_SHIFT) - 1
BYTES_MASK = (1 << TELEMETRY_QUEUE_SHIFT) - 1
LATER = 1 << (TELEMETRY_CLASS_SHIFT - 1)  # ps: a time that lies further ahead lies behind


class HpccState(CongestionState, words=32, written_by="nic.congestion.hpcc"):
    """What HPCC keeps of a queue pair."""

    wc_bytes = word(Kind.FLOAT, "bytes: the reference window W^c")
    u = word(Kind.FLOAT, "inflight bytes of the busiest link over its rate times T, smoothed")
    inc_stage = word(Kind.COUNT, "additive steps since the last multiplicative one")
    last_update_seq = word(Kind.SEQUENCE, "next to send when W^c was set last")
    hops = word(Kind.COUNT, "of L, 0 = nothing is known")
    last = word(Kind.PACKED, "L, what the last acknowledgement carried: as Telemetry.met", many=2 * MAX_TELEMETRY_HOPS)


own = seen_as(HpccState)


@inline
def round_trip(world):
    """T in ps."""
    t = world.qps.par[P_BASE_RTT]
    if t <= 0.0:
        t = float(world.net.const.base_rtt_ps)
    return t


@inline
def sending(world, state, w):
    """The window of W bytes in packets, and the pacing R = W / T."""
    packet = world.net.const.mtu_bytes + world.net.const.header_bytes
    packets = int(w / packet)
    if packets * packet < w:
        packets += 1
    if packets > world.net.const.window_packets:
        packets = world.net.const.window_packets
    if packets < 1:
        packets = 1
    psb = round_trip(world) / w
    if psb < state.line_ps_per_byte:
        psb = state.line_ps_per_byte
    state.window_packets = packets
    state.pace_ps_per_byte = psb


@inline
def start(world, state):
    """Begin at line rate: W_init = B T."""
    w_init = round_trip(world) / state.line_ps_per_byte
    state.wc_bytes = w_init
    state.u = 1.0
    sending(world, state, w_init)


@inline
def class_psb(world, first):
    """1 / B of the link that a telemetry entry is of, in ps per byte."""
    return world.net.link_class[first >> TELEMETRY_CLASS_SHIFT].ps_per_byte


@inline
def same_path(world, state):
    """Whether what the acknowledgement carries continues L."""
    hops = world.net.carried.hops
    same = hops == state.hops
    if same:
        for i in range(hops):
            first = world.net.carried.met[2 * i]
            last_first = state.last[2 * i]
            elapsed = (first - last_first) & TIME_MASK
            if first >> TELEMETRY_CLASS_SHIFT != last_first >> TELEMETRY_CLASS_SHIFT:
                same = False
            elif elapsed == 0 or elapsed >= LATER:
                same = False
            else:
                sent = (world.net.carried.met[2 * i + 1] - state.last[2 * i + 1]) & BYTES_MASK
                packet = world.net.const.mtu_bytes + world.net.const.header_bytes
                if (sent - packet) * class_psb(world, first) > elapsed:
                    same = False
    return same


@inline
def measure_inflight(world, state):
    """MeasureInflight(ack): lines 1 to 9."""
    t = round_trip(world)
    u = 0.0
    tau = 0.0
    for i in range(world.net.carried.hops):
        first = world.net.carried.met[2 * i]
        second = world.net.carried.met[2 * i + 1]
        last_second = state.last[2 * i + 1]
        psb = class_psb(world, first)
        elapsed = float((first - state.last[2 * i]) & TIME_MASK)
        tx_rate = float((second - last_second) & BYTES_MASK) / elapsed
        queue = second >> TELEMETRY_QUEUE_SHIFT
        if last_second >> TELEMETRY_QUEUE_SHIFT < queue:
            queue = last_second >> TELEMETRY_QUEUE_SHIFT
        busy = float(queue) * psb / t + tx_rate * psb
        if busy > u:
            u = busy
            tau = elapsed
    if tau > t:
        tau = t
    state.u = (1.0 - tau / t) * state.u + tau / t * u


@inline
def compute_wind(world, state, update_wc):
    """ComputeWind(U, updateWc): lines 10 to 21. Gives W in bytes."""
    t = round_trip(world)
    eta = world.qps.par[P_ETA]
    w_init = t / state.line_ps_per_byte
    w_ai = world.qps.par[P_RATE_AI] * t / 8e12
    if w_ai <= 0.0:
        w_ai = w_init * (1.0 - eta) / world.qps.par[P_FLOWS]
    u = state.u
    stage = state.inc_stage
    if u >= eta or stage >= world.qps.par[P_MAX_STAGE]:
        w = state.wc_bytes / (u / eta) + w_ai
        stage = 0
    else:
        w = state.wc_bytes + w_ai
        stage += 1
    if w < world.qps.par[P_MIN_RATE] * t / 8e12:
        w = world.qps.par[P_MIN_RATE] * t / 8e12
    if w > w_init:
        w = w_init
    if update_wc:
        state.inc_stage = stage
        state.wc_bytes = w
    return w


@inline
def keep(world, state):
    """L = ack.L."""
    hops = world.net.carried.hops
    state.hops = hops
    for i in range(2 * hops):
        state.last[i] = world.net.carried.met[i]


@inline
def new_ack(world, qp, state):
    """NewAck(ack): lines 22 to 29."""
    following = qp.next_seq
    if state.hops == 0:
        state.last_update_seq = following
        keep(world, state)
    else:
        update_wc = qp.una > state.last_update_seq
        if update_wc or world.qps.par[P_FAST_REACT] != 0.0:
            if same_path(world, state):
                measure_inflight(world, state)
                sending(world, state, compute_wind(world, state, update_wc))
                if update_wc:
                    state.last_update_seq = following
            keep(world, state)


@hook
def update(address, q, event, _now, _a, _b, _c):
    """Tell the queue pair's row what happened (pdes/congestion)."""
    world = world_at(address)
    state = own(world.qps.cc)[q]
    if event == CC_START:
        start(world, state)
    elif event == CC_ACK and world.net.carried.hops > 0:
        new_ack(world, world.qps.qp[q], state)
    return 0
