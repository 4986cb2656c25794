"""What the transport tells the congestion control of a queue pair, and asks it."""

from pdes.core.jit import call_hook, inline
from pdes.core.state import (
    CC_LAST_SENT,
    CC_LAST_SEQ,
    CC_LINE_PSB,
    CC_START,
    CC_WINDOW,
    CC_WORDS,
    CONST_ADDRESS,
    CONST_CC_HOOK,
    CONST_WINDOW,
)

ECHO_BITS = 38
"""Of the time that an acknowledgement echoes: it comes back within 0.27 s."""
ECHO_MASK = (1 << ECHO_BITS) - 1


@inline
def window_of(net, qps, q):
    """Packets that the queue pair may have unacknowledged."""
    if net.const[CONST_CC_HOOK] == 0:
        return net.const[CONST_WINDOW]
    return qps.cc[q * CC_WORDS + CC_WINDOW]


@inline
def tell(net, q, event, now, a, b, c):
    """Tell the congestion control, if there is one."""
    hook = net.const[CONST_CC_HOOK]
    if hook != 0:
        call_hook(hook, net.const[CONST_ADDRESS], q, event, now, a, b, c, 0)


@inline
def begin_control(net, qps, q, psb, shares, now):
    """A new queue pair that may send a byte in `psb` ps; shares: SHARE_UNITS / that of the line rate, 0 all of it."""
    if net.const[CONST_CC_HOOK] != 0:
        row = q * CC_WORDS
        for i in range(CC_WORDS):
            qps.cc[row + i] = 0
        qps.cc[row + CC_LAST_SEQ] = -1
        qps.ccf[row + CC_LINE_PSB] = psb
        tell(net, q, CC_START, now, shares, 0, 0)


@inline
def round_trip(qps, q, now, last, echoed):
    """Round-trip time that an acknowledgement shows, -1 unknown; last: the packet that it stands for, -2 none.

    It echoes one ps more than when its packet was sent, but for one that ends a message; of those the newest is known.
    """
    row = q * CC_WORDS
    if echoed > 0:
        return (now + 1 - echoed) & ECHO_MASK
    if qps.cc[row + CC_LAST_SEQ] == last:
        return now - qps.cc[row + CC_LAST_SENT]
    return -1
