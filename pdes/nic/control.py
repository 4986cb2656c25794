"""What the transport tells the congestion control of a queue pair, and asks it."""

from pdes.core.jit import call_hook, clear_row, inline
from pdes.core.packet import SHARE_UNITS
from pdes.core.state import CC_START

ECHO_BITS = 38
"""Of the time that an acknowledgement echoes: it comes back within 0.27 s."""
ECHO_MASK = (1 << ECHO_BITS) - 1


@inline
def window_of(net, qps, q):
    """Packets that the queue pair may have unacknowledged."""
    if net.const.window_fixed == 1:
        return net.const.window_packets
    return qps.cc[q].window_packets


@inline
def waits_for_pace(net, qps, q, now):
    """Whether its pace lets a queue pair send only later. Of those that are not driven at a share many have none."""
    if net.hooks.congestion_control == 0 or (net.const.window_fixed == 1 and qps.qp[q].shares <= SHARE_UNITS):
        return False
    return qps.cc[q].next_send_ps > now


@inline
def tell(net, q, event, now, a, b, c):
    """Tell the congestion control, if there is one."""
    hook = net.hooks.congestion_control
    if hook != 0:
        call_hook(hook, net.const.address, q, event, now, a, b, c)


@inline
def begin_control(net, qps, q, psb, shares, now):
    """A new queue pair that may send a byte in `psb` ps; shares: SHARE_UNITS / that of the line rate, 0 all of it."""
    if net.hooks.congestion_control != 0:
        clear_row(qps.cc, q)
        qps.cc[q].last_seq = -1
        qps.cc[q].line_ps_per_byte = psb
        tell(net, q, CC_START, now, shares, 0, 0)


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
