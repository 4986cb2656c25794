"""What the transport tells the congestion control of a queue pair, and what controls of rates share."""

from pdes.core.jit import call_hook, inline
from pdes.core.units import PS_PER_BYTE_AT_1_BPS

ECHO_BITS = 38
"""Of the time that an acknowledgement echoes: it comes back within 0.27 s."""
ECHO_MASK = (1 << ECHO_BITS) - 1


@inline
def tell(net, q, event, now, a, b, c):
    """Tell the congestion control, if there is one."""
    hook = net.hooks.congestion_control
    if hook != 0:
        call_hook(hook, net.const.address, q, event, now, a, b, c)


@inline
def round_trip(qps, q, now, last, echoed):
    """Round-trip time that an acknowledgement shows, -1 unknown; last: the packet that it stands for, -2 none.

    It echoes one ps more than when its packet was sent, but for one that ends a message; of those the newest is known.
    """
    cc = qps.cc[q]
    if echoed > 0:
        return (now + 1 - echoed) & ECHO_MASK
    if cc.last_seq == last:
        return now - cc.last_sent_ps
    return -1


SCALE_BPS = 25e9
"""The line rate at which steps that scale with it are given."""


@inline
def line_rate_bps(state):
    """Line rate of a queue pair, for what controls its rate."""
    return PS_PER_BYTE_AT_1_BPS / state.line_ps_per_byte


@inline
def pace_at(state, rate_bps, line_bps):
    """Pace a queue pair at a rate; at line rate the port alone does."""
    state.pace_ps_per_byte = 0.0 if rate_bps >= line_bps else PS_PER_BYTE_AT_1_BPS / rate_bps


@inline
def step_bps(fixed_bps, scaled_bps, line_bps):
    """What a rate grows by: at any line rate, or, where that is 0, scaled with it."""
    return fixed_bps if fixed_bps > 0.0 else scaled_bps * (line_bps / SCALE_BPS)
