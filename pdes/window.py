"""A window: every node takes what arrives before its end, in order of time, and acts.

What arrives at a node before the end of a window was sent before its beginning, since a window is no longer than the
shortest link. So there is no global order of events to keep: each node gathers the window's packets from its incoming
links, sorts that small batch and works through it. Idle time is jumped over.
"""

from pdes.jit import inline, kernel
from pdes.npu import npus_window
from pdes.state import (
    CONST_LOOKAHEAD,
    CONST_NODES_LOCAL,
    COUNT_HOPS,
    COUNT_WINDOWS,
    CTL_FAILED_QP,
    CTL_NOW,
    CTL_WINDOW_OPEN,
    INF,
)
from pdes.switch import switches_window

DONE, FULL, PAUSED, FAILED = range(4)


@inline
def earliest(net):
    """Time of the world's next event."""
    soonest = INF
    for node in range(net.const[CONST_NODES_LOCAL]):
        soonest = min(soonest, net.next_time[node])
    return soonest


@kernel
def run_serial(w, hops):
    """Run windows until nothing is left (DONE) or something is up.

    FULL: a pool is short. FAILED: a queue pair gave up. PAUSED: about `hops` packet-hops are done.
    """
    net = w.net
    goal = net.count[COUNT_HOPS] + hops
    windows_goal = net.count[COUNT_WINDOWS] + 1 + hops // 64
    while True:
        begin = net.ctl[CTL_NOW]
        if net.ctl[CTL_WINDOW_OPEN] == 0:
            begin = earliest(net)
            if begin >= INF:
                return DONE
            net.ctl[CTL_NOW] = begin
            net.ctl[CTL_WINDOW_OPEN] = 1
        end = begin + net.const[CONST_LOOKAHEAD]
        if npus_window(net, w.inbox, w.npus, w.qps, w.rows, w.insts, w.routes, w.trace, w.plans, begin, end):
            return FULL
        if switches_window(net, w.inbox, w.routes, begin, end):
            return FULL
        net.ctl[CTL_WINDOW_OPEN] = 0
        net.count[COUNT_WINDOWS] += 1
        if net.ctl[CTL_FAILED_QP] >= 0:
            return FAILED
        if net.count[COUNT_HOPS] >= goal or net.count[COUNT_WINDOWS] >= windows_goal:
            return PAUSED
