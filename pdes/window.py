"""A window: every node takes what arrives before its end, in order of time, and acts.

What arrives at a node before the end of a window was sent before its beginning, since a window is no longer than the
shortest link. So there is no global order of events to keep: each node takes the window's packets from its inbox,
sorts that small batch and works through it. Idle time is jumped over.
"""

from pdes.jit import inline, kernel
from pdes.link import release
from pdes.npu import npus_window
from pdes.state import (
    CONST_LOOKAHEAD,
    CONST_NPUS_LOCAL,
    COUNT_HOPS,
    COUNT_WINDOWS,
    CTL_FAILED_QP,
    CTL_NOW,
    CTL_PENDING,
    CTL_SIDE,
    CTL_SOONEST,
    CTL_WINDOW_OPEN,
    INF,
    SIDES,
)
from pdes.switch import switches_window

DONE, FULL, PAUSED, FAILED = range(4)


@inline
def earliest(net):
    """Begin of the next window in which something happens, INF if nothing will."""
    ctl = net.ctl
    window = net.const[CONST_LOOKAHEAD]
    soonest = ctl[CTL_SOONEST]
    for node in range(net.const[CONST_NPUS_LOCAL]):
        soonest = min(soonest, net.next_time[node])
    for ahead in range(1, SIDES):
        if ctl[CTL_PENDING + ((ctl[CTL_SIDE] + ahead) & (SIDES - 1))] == 1:
            soonest = min(soonest, ctl[CTL_NOW] + ahead * window)
    if soonest >= INF:
        return INF
    return soonest // window * window


@inline
def open_window(net, begin):
    """Begin a window. Windows lie on a grid, so that a node's inboxes can be filled for several of them."""
    ctl = net.ctl
    ctl[CTL_NOW] = begin
    ctl[CTL_SIDE] = begin // net.const[CONST_LOOKAHEAD] & (SIDES - 1)
    ctl[CTL_WINDOW_OPEN] = 1


@inline
def close_window(net):
    """End a window: its inboxes are empty."""
    net.ctl[CTL_PENDING + net.ctl[CTL_SIDE]] = 0
    net.ctl[CTL_WINDOW_OPEN] = 0
    net.count[COUNT_WINDOWS] += 1


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
            open_window(net, begin)
        end = begin + net.const[CONST_LOOKAHEAD]
        if net.ctl[CTL_SOONEST] < end and release(net):
            return FULL
        if npus_window(net, w.inbox, w.npus, w.qps, w.rows, w.insts, w.routes, w.trace, w.plans, begin, end):
            return FULL
        if switches_window(net, w.inbox, w.routes, begin, end):
            return FULL
        close_window(net)
        if net.ctl[CTL_FAILED_QP] >= 0:
            return FAILED
        if net.count[COUNT_HOPS] >= goal or net.count[COUNT_WINDOWS] >= windows_goal:
            return PAUSED
