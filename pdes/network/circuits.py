"""Circuits of optical switches: when a cable carries a packet.

The windows of a circuit are in `Net.lit` from the place on that `Net.circuit` has for its link: whether it holds
packets, the number of windows, and the begin and the end of each in ps. They are those of one period
(`Constants.circuits_period_ps`), or happen once (0). A packet passes if its first and its last bit leave within one
window. That depends on nothing but the time, so circuits have no state.
"""

import numpy as np

from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.rows import INF

HEAD_WORDS = 2  # words of a circuit before its windows


@inline
def first_window(lit, begin, count, until_ps):
    """Return the number of the first window that ends at or after a time, by bisection.

    Args:
        lit: Windows of circuits (`Net.lit`).
        begin: Place of the first window of the circuit.
        count: Number of its windows.
        until_ps: Time in ps, of the same period.
    """
    low, high = np.int64(0), count
    while low < high:
        middle = (low + high) // 2
        if lit[begin + 2 * middle + 1] < until_ps:
            low = middle + 1
        else:
            high = middle
    return low


@outline
def next_lit_ps(net, link, start_ps, duration_ps):
    """Return the first time from start_ps on at which a circuit carries a packet; INF if it never does.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link that is a circuit (row of `tx`).
        start_ps: Time in ps.
        duration_ps: Time in ps from the packet's first to its last bit.
    """
    at = net.circuit[link]
    count, begin, period = net.lit[at + 1], at + HEAD_WORDS, net.const.circuits_period_ps
    # a window may reach into the period after its own, so the search begins one period before
    turn_ps = (start_ps // period - 1) * period if period > 0 else np.int64(0)
    # windows are longer than a packet takes, so one of this period or the next fits
    for _ in range(3 if period > 0 else 1):
        local_ps = start_ps - turn_ps
        for i in range(first_window(net.lit, begin, count, local_ps + duration_ps), count):
            leaves_ps = max(local_ps, net.lit[begin + 2 * i])
            if leaves_ps + duration_ps <= net.lit[begin + 2 * i + 1]:
                return leaves_ps + turn_ps
        turn_ps += period
    return np.int64(INF)


@inline
def held_until_ps(net, link, start_ps, duration_ps):
    """Return when a packet leaves on a circuit: at start_ps, or later if the circuit holds it and carries it then.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link that is a circuit (row of `tx`).
        start_ps: Time in ps at which the port could send it.
        duration_ps: Time in ps from the packet's first to its last bit.
    """
    if net.lit[net.circuit[link]] == 0:
        return start_ps
    leaves_ps = next_lit_ps(net, link, start_ps, duration_ps)
    return leaves_ps if leaves_ps < INF else start_ps
