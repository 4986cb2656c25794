"""A window of one logical process: it takes in what other LPs sent, then lets its nodes act on all that happens.

A window is no longer than the shortest link to another LP, so what arrives in it from there was sent before it began.
Within, the LP goes on in cells, which are no longer than the shortest link at all: what arrives at a node in a cell
was sent in an earlier one, so there is no global order of events to keep. Each node takes the cell's packets from its
inbox, sorts that small batch and works through it. Idle time is jumped over. Windows and cells lie on one grid.
"""

from pdes.core.fifo import CARRY_IN, SET_DOWN, carry
from pdes.core.jit import call_hook, inline, outline, peek, prefetch
from pdes.core.state import INF, SIDES
from pdes.core.status import DONE, FAILED, FULL, GOING_ON, SENT
from pdes.core.world import world_at
from pdes.network.batch import blocks_short
from pdes.network.boundary import WORD_BYTES, arrived, crossing, crossings, empty_outbox
from pdes.network.link import deliver, far_release_due, inbox_of, prefetch_inbox, reach, release, release_due, wait
from pdes.network.switch import switches_window
from pdes.npu.npu_window import npus_window

AHEAD = 6
"""How many packets ahead the place of the next record is asked for."""


@inline
def earliest(net):
    """Time of the LP's next own event, INF if there is none; of packets in inboxes, the start of their cell."""
    ctl = net.ctl
    soonest = ctl.soonest_ps
    for node in range(net.next_time.shape[0]):
        soonest = min(soonest, net.next_time[node])
    for ahead in range(SIDES):
        if ctl.pending[ctl.side + ahead & SIDES - 1] == 1:
            soonest = min(soonest, ctl.now_ps + ahead * net.const.cell_ps)
    return soonest


@inline
def open_cell(net, begin):
    """Begin a cell."""
    ctl = net.ctl
    ctl.now_ps = begin
    ctl.side = begin // net.const.cell_ps & (SIDES - 1)
    ctl.cell_open = 1
    ctl.outer_done = 0


@inline
def open_window(net, begin, number):
    """Begin a window, which is the `number`-th of the run."""
    ctl = net.ctl
    ctl.begin_ps = begin
    ctl.parity = number & 1
    ctl.in_neighbour = 0
    ctl.in_at = 0
    ctl.window_open = 1
    ctl.cost = -net.count.hops
    open_cell(net, begin)
    ctl.cell_open = 0
    empty_outbox(net)


@inline
def link_of(net, neighbour, half, i):
    """The `tx` row of the link over which the i-th packet of a half comes."""
    return net.ghost[neighbour] + peek(crossing(net, half, i) + 4 * WORD_BYTES)


@outline
def take_in(net):
    """Take in what the neighbours sent in the window before. True if interrupted because blocks are short."""
    ctl = net.ctl
    while ctl.in_neighbour < net.const.neighbours:
        neighbour = ctl.in_neighbour
        half = arrived(net, neighbour)
        count = crossings(half)
        while ctl.in_at < count:
            if blocks_short(net):
                return True
            i = ctl.in_at
            if i + 2 * AHEAD < count:
                prefetch(net.tx, link_of(net, neighbour, half, i + 2 * AHEAD))
                prefetch_inbox(net, link_of(net, neighbour, half, i + AHEAD))
            p = crossing(net, half, i)
            carry(net, CARRY_IN, p)
            ready = peek(p)
            link = link_of(net, neighbour, half, i)
            if ready < reach(net):
                meta = net.tx[link].meta
                at = deliver(net, meta, ready, peek(p + 8), peek(p + 16), peek(p + 24))
            else:
                ctl.soonest_ps = min(ctl.soonest_ps, ready)
                at = wait(net, link, ready, peek(p + 8), peek(p + 16), peek(p + 24))
            carry(net, SET_DOWN, at)
            ctl.in_at = i + 1
        ctl.in_at = 0
        ctl.in_neighbour += 1
    return False


@inline
def act(w, address):
    """Let the outer switches act in the cell, and then, when that is done, all other nodes. True if a pool is short.

    Nodes do not hear of each other within a cell, so their order is free.
    """
    net = w.net
    begin = net.ctl.now_ps
    end = begin + net.const.cell_ps
    if net.ctl.outer_done == 0:
        first, last = net.const.outer, net.const.nodes
        short = release_due(net) and release(net)
    else:
        first, last = net.const.npus, net.const.outer
        short = npus_window(address, begin, end)
    if short:
        return True
    if net.hooks.shared_switches != 0:
        return call_hook(net.hooks.shared_switches, net.const.address, begin, end, first, last) != 0
    return switches_window(net, w.inbox, w.routes, begin, end, first, last)


@inline
def stops(net, end):
    """Whether an LP stops when its outer switches have acted in the last cell of a window: others have something to do.

    Then nothing more goes to other teams in this window.
    """
    now = net.ctl.now_ps
    if net.const.splits == 0 or now + net.const.cell_ps < end:
        return False
    for node in range(net.const.outer):
        if net.inbox[inbox_of(node, net.ctl.side)] >= 0 or net.next_time[node] < end:
            return True
    return False


@outline
def window(address, begin, number):
    """Do an LP's part of the `number`-th window, or go on with it where it was interrupted.

    Returns DONE, SENT (all is out that goes to other teams: call again for the rest), FULL (a pool is short: make room
    and call again) or FAILED (a queue pair gave up); packet-hops, events and trace rows done in this call; and once
    DONE, the packet-hops of the whole window and the LP's earliest event, once SENT what is known of it.
    """
    w = world_at(address)
    net = w.net
    ctl = net.ctl
    hops, events = net.count.hops, net.count.events
    left = ctl.rows_left
    cell = net.const.cell_ps
    end = begin + net.const.lookahead_ps
    if ctl.window_open == 0:
        open_window(net, begin, number)
    soonest = INF
    status = GOING_ON
    if ctl.outer_done == 0 and (take_in(net) or (far_release_due(net) and release(net))):
        status = FULL
    while status == GOING_ON:
        if ctl.cell_open == 0:
            soonest = earliest(net)
            if soonest >= end:
                status = DONE
                break
            open_cell(net, soonest // cell * cell)
            if ctl.fault_ps <= ctl.now_ps:
                call_hook(net.hooks.make_changes, address)
        if act(w, address):
            status = FULL
        elif ctl.outer_done == 0:
            ctl.outer_done = 1
            if stops(net, end):
                status = SENT
        else:
            ctl.pending[ctl.side] = 0  # its inboxes are empty
            ctl.cell_open = 0
            if ctl.failed_queue_pair >= 0:
                status = FAILED
    if status == DONE:
        # what waits for another LP must go out in the window before the one in which it arrives
        ctl.next_ps = min(soonest, ctl.out_soonest_ps)
        if ctl.far_soonest_ps < INF:
            ctl.next_ps = min(ctl.next_ps, ctl.far_soonest_ps - net.const.lookahead_ps)
        ctl.cost += net.count.hops
        ctl.window_open = 0
        net.count.windows += 1
    elif status == SENT:
        # as far as it can say: `end`, or INF if it does not know
        is_next = ctl.out_soonest_ps < end + cell or ctl.pending[ctl.side + 1 & SIDES - 1] == 1
        ctl.next_ps = end if is_next else INF
    return status, net.count.hops - hops, net.count.events - events, left - ctl.rows_left, ctl.cost, ctl.next_ps
