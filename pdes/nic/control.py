"""The interface of the transport to congestion control and receivers' credits, and what rate controls share."""

from nadi.pdes.core.jit import call_hook, inline
from nadi.pdes.core.state import CREDIT_REQUEST, PS_PER_BYTE_AT_1_BPS

ECHO_BITS = 38  # bits of the time that an acknowledgement echoes: it returns within 0.27 s
ECHO_MASK = (1 << ECHO_BITS) - 1


@inline
def echo_at(now_ps):
    """Return the word for a time that an acknowledgement echoes; it is never 0, which means that there is none.

    Args:
        now_ps: Current time in ps.
    """
    # modulo 2^38 - 1, plus 1: an echo of 0 would mean that the acknowledgement has none
    return now_ps % ECHO_MASK + 1


@inline
def update_control(net, qps, pair, event, now_ps, a, b, c):
    """Pass an event with its values to the congestion control of a queue pair, if any.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START, CC_SENT, CC_ACK, CC_CNP or CC_LOSS (pdes/nic/congestion).
        now_ps: Current time in ps.
        a: Value of the event, as pdes/nic/congestion defines.
        b: Value of the event, as pdes/nic/congestion defines.
        c: Value of the event, as pdes/nic/congestion defines.
    """
    hook = net.hooks.congestion_control
    if hook != 0 and qps.qp[pair].controlled == 1:
        call_hook(hook, net.const.address, pair, event, now_ps, a, b, c)


@inline
def round_trip(qps, pair, now_ps, last_seq, echo):
    """Return the round-trip time in ps that an acknowledgement shows, -1 = unknown.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
        last_seq: Sequence number of the packet that it acknowledges, -2 = no packet.
        echo: Send time that it echoes (`echo_at`), 0 = none.
    """
    # It echoes the send time of its packet (`echo_at`), unless the packet ends a message; of those the queue pair
    # stores the send time of the newest.
    cc = qps.cc[pair]
    if echo > 0:
        # the inverse of `echo_at`, right for round trips below 2^38 ps, which is 0.27 s
        return (now_ps + 1 - echo) % ECHO_MASK
    # Word 3 of a message's last packet is its tag, which leaves no room for a time. If several last packets are under
    # way, the queue pair remembers when the newest was sent; the others give no round trip.
    if cc.last_seq == last_seq:
        return now_ps - cc.last_sent_ps
    return -1


SCALE_BPS = 25e9  # line rate to which scaled steps refer


@inline
def line_rate_bps(state):
    """Return the line rate of a queue pair, for rate controls.

    Args:
        state: State of the queue pair (row of `cc`).
    """
    # of its port, or of its share: what an algorithm takes for the line rate is what the queue pair may use at most
    return PS_PER_BYTE_AT_1_BPS / state.line_ps_per_byte


@inline
def pace_at(state, rate_bps, line_bps):
    """Pace a queue pair at a rate; at line rate the port alone limits it.

    Args:
        state: State of the queue pair (row of `cc`).
        rate_bps: The rate in bit/s.
        line_bps: Line rate of the queue pair in bit/s.
    """
    state.pace_ps_per_byte = 0.0 if rate_bps >= line_bps else PS_PER_BYTE_AT_1_BPS / rate_bps


@inline
def step_bps(fixed_bps, scaled_bps, line_bps):
    """Return the increment of a rate: the fixed one, or if that is 0, one scaled with the line rate.

    Args:
        fixed_bps: Fixed increment in bit/s, 0 = none.
        scaled_bps: Increment in bit/s at a line rate of SCALE_BPS.
        line_bps: Line rate of the queue pair in bit/s.
    """
    # 5 Mb/s at 25 Gb/s are 80 Mb/s at 400 Gb/s: a queue pair recovers from a cut in as many steps at any line rate
    return fixed_bps if fixed_bps > 0.0 else scaled_bps * (line_bps / SCALE_BPS)


@inline
def request_credit(net, npus, node, pair, after_timeout):
    """Let a queue pair ask its receiver for credit, where receivers grant it, if it can send nothing.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        pair: Row of the queue pair in `qps.qp`.
        after_timeout: 1 if it asks again for what it has asked for already, else 0.
    """
    if net.hooks.credits != 0:
        now_ps = npus.npu[node].now_ps
        call_hook(net.hooks.credits, net.const.address, CREDIT_REQUEST, node, pair, now_ps, after_timeout, 0, 0)
