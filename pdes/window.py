"""A window of one logical process: it takes in what other LPs sent, then lets its nodes act on all that happens.

A window is no longer than the shortest link to another LP, so what arrives in it from there was sent before it began.
Within, the LP goes on in cells, which are no longer than the shortest link at all: what arrives at a node in a cell
was sent in an earlier one, so there is no global order of events to keep. Each node takes the cell's packets from its
inbox, sorts that small batch and works through it. Idle time is jumped over. Windows and cells lie on one grid.
"""

from pdes.core.fifo import CARRY_IN, SET_DOWN, carry
from pdes.core.jit import call_hook, inline, outline, peek, prefetch
from pdes.core.state import (
    CONST_ADDRESS,
    CONST_CELL,
    CONST_FAULT_HOOK,
    CONST_LOOKAHEAD,
    CONST_NEIGHBOURS,
    CONST_SWITCH_HOOK,
    COUNT_HOPS,
    COUNT_WINDOWS,
    CTL_BEGIN,
    CTL_CELL_OPEN,
    CTL_COST,
    CTL_FAILED_QP,
    CTL_FAR_SOONEST,
    CTL_FAULT_PS,
    CTL_IN_AT,
    CTL_IN_NEIGHBOUR,
    CTL_LEFT,
    CTL_NEXT,
    CTL_NOW,
    CTL_OUT_SOONEST,
    CTL_PARITY,
    CTL_PENDING,
    CTL_SIDE,
    CTL_SOONEST,
    CTL_WINDOW_OPEN,
    INF,
    SIDES,
    TX_META,
    TX_WORDS,
)
from pdes.core.status import DONE, FAILED, FULL, GOING_ON
from pdes.core.world import world_at
from pdes.network.batch import blocks_short
from pdes.network.boundary import WORD_BYTES, arrived, crossing, crossings, empty_outbox
from pdes.network.link import deliver, far_reach, prefetch_inbox, reach, release, wait
from pdes.network.switch import switches_window
from pdes.npu.npu_window import npus_window

AHEAD = 6
"""How many packets ahead the place of the next record is asked for."""


@inline
def earliest(net):
    """Time of the LP's next own event, INF if there is none; of packets in inboxes, the start of their cell."""
    ctl = net.ctl
    soonest = ctl[CTL_SOONEST]
    for node in range(net.next_time.shape[0]):
        soonest = min(soonest, net.next_time[node])
    for ahead in range(SIDES):
        if ctl[CTL_PENDING + ((ctl[CTL_SIDE] + ahead) & (SIDES - 1))] == 1:
            soonest = min(soonest, ctl[CTL_NOW] + ahead * net.const[CONST_CELL])
    return soonest


@inline
def open_cell(net, begin):
    """Begin a cell."""
    net.ctl[CTL_NOW] = begin
    net.ctl[CTL_SIDE] = begin // net.const[CONST_CELL] & (SIDES - 1)
    net.ctl[CTL_CELL_OPEN] = 1


@inline
def close_cell(net):
    """End a cell: its inboxes are empty."""
    net.ctl[CTL_PENDING + net.ctl[CTL_SIDE]] = 0
    net.ctl[CTL_CELL_OPEN] = 0


@inline
def open_window(net, begin, number):
    """Begin a window, which is the `number`-th of the run."""
    ctl = net.ctl
    ctl[CTL_BEGIN] = begin
    ctl[CTL_PARITY] = number & 1
    ctl[CTL_IN_NEIGHBOUR] = 0
    ctl[CTL_IN_AT] = 0
    ctl[CTL_WINDOW_OPEN] = 1
    ctl[CTL_COST] = -net.count[COUNT_HOPS]
    open_cell(net, begin)
    ctl[CTL_CELL_OPEN] = 0
    empty_outbox(net)


@inline
def close_window(net):
    """End a window. What waits for another LP must go out in the window before the one in which it arrives."""
    ctl = net.ctl
    ctl[CTL_WINDOW_OPEN] = 0
    ctl[CTL_COST] += net.count[COUNT_HOPS]
    ctl[CTL_NEXT] = min(earliest(net), ctl[CTL_OUT_SOONEST])
    if ctl[CTL_FAR_SOONEST] < INF:
        ctl[CTL_NEXT] = min(ctl[CTL_NEXT], ctl[CTL_FAR_SOONEST] - net.const[CONST_LOOKAHEAD])
    net.count[COUNT_WINDOWS] += 1


@inline
def link_of(net, neighbour, half, i):
    """The `tx` row of the link over which the i-th packet of a half comes."""
    return net.ghost[neighbour] + peek(crossing(net, half, i) + 4 * WORD_BYTES)


@outline
def take_in(net):
    """Take in what the neighbours sent in the window before. True if interrupted because blocks are short."""
    ctl = net.ctl
    while ctl[CTL_IN_NEIGHBOUR] < net.const[CONST_NEIGHBOURS]:
        neighbour = ctl[CTL_IN_NEIGHBOUR]
        half = arrived(net, neighbour)
        count = crossings(half)
        while ctl[CTL_IN_AT] < count:
            if blocks_short(net):
                return True
            i = ctl[CTL_IN_AT]
            if i + 2 * AHEAD < count:
                prefetch(net.tx, link_of(net, neighbour, half, i + 2 * AHEAD) * TX_WORDS)
                prefetch_inbox(net, link_of(net, neighbour, half, i + AHEAD))
            p = crossing(net, half, i)
            carry(net, CARRY_IN, p)
            ready = peek(p)
            link = link_of(net, neighbour, half, i)
            if ready < reach(net):
                meta = net.tx[link * TX_WORDS + TX_META]
                at = deliver(net, meta, ready, peek(p + 8), peek(p + 16), peek(p + 24))
            else:
                ctl[CTL_SOONEST] = min(ctl[CTL_SOONEST], ready)
                at = wait(net, link, ready, peek(p + 8), peek(p + 16), peek(p + 24))
            carry(net, SET_DOWN, at)
            ctl[CTL_IN_AT] = i + 1
        ctl[CTL_IN_AT] = 0
        ctl[CTL_IN_NEIGHBOUR] += 1
    return False


@inline
def switches_act(net, inbox, routes, begin, end):
    """Let every switch act on what happens in a cell. True if interrupted because a pool is short."""
    hook = net.const[CONST_SWITCH_HOOK]
    if hook != 0:
        return call_hook(hook, net.const[CONST_ADDRESS], begin, end, 0, 0, 0, 0, 0) != 0
    return switches_window(net, inbox, routes, begin, end)


@outline
def window(address, begin, number):
    """Do an LP's part of the `number`-th window, or go on with it where it was interrupted.

    Returns DONE, FULL (a pool is short: make room and call again) or FAILED (a queue pair gave up); packet-hops and
    trace rows done in this call; and once DONE, the packet-hops of the whole window and the LP's earliest event.
    """
    w = world_at(address)
    net = w.net
    ctl = net.ctl
    hops = net.count[COUNT_HOPS]
    left = ctl[CTL_LEFT]
    cell = net.const[CONST_CELL]
    end = begin + net.const[CONST_LOOKAHEAD]
    if ctl[CTL_WINDOW_OPEN] == 0:
        open_window(net, begin, number)
    status = GOING_ON
    if take_in(net) or (ctl[CTL_FAR_SOONEST] < far_reach(net) and release(net)):
        status = FULL
    while status == GOING_ON:
        if ctl[CTL_CELL_OPEN] == 0:
            soonest = earliest(net)
            if soonest >= end:
                status = DONE
                break
            open_cell(net, soonest // cell * cell)
            if ctl[CTL_FAULT_PS] <= ctl[CTL_NOW]:
                call_hook(net.const[CONST_FAULT_HOOK], address, 0, 0, 0, 0, 0, 0, 0)
        now = ctl[CTL_NOW]
        if (
            (ctl[CTL_SOONEST] < now + cell and release(net))
            or npus_window(address, now, now + cell)
            or switches_act(net, w.inbox, w.routes, now, now + cell)
        ):
            status = FULL
        else:
            close_cell(net)
            if ctl[CTL_FAILED_QP] >= 0:
                status = FAILED
    if status == DONE:
        close_window(net)
    return status, net.count[COUNT_HOPS] - hops, left - ctl[CTL_LEFT], ctl[CTL_COST], ctl[CTL_NEXT]
