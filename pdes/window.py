"""A window of one logical process: it takes in packets from other LPs, then lets its nodes process all events.

A window is no longer than the shortest link to another LP, so packets that arrive in it from there were sent before it
began. Within it, the LP advances in cells, which are no longer than the shortest link of the fabric: a packet that
arrives at a node in a cell was sent in an earlier one, so no global order of events is needed. Each node takes the
cell's packets from its inbox, sorts that small batch and processes it. Idle time is skipped. Windows and cells lie on
one grid.
"""

import numpy as np

from nadi.pdes.core import algorithms, state
from nadi.pdes.core.jit import call_hook, inline, load_unaligned, outline, prefetch
from nadi.pdes.core.packet import WORD_BYTES, arrived, crossing
from nadi.pdes.network.batch import blocks_short
from nadi.pdes.network.link import deliver, far_release_due, inbox_of, prefetch_inbox, reach, release, release_due, wait
from nadi.pdes.network.switch import switches_window
from nadi.pdes.npu.npu_window import npus_window

AHEAD = 6  # packets by which prefetching of the next record's place precedes use


@inline
def earliest(net):
    """Return the time of the LP's next event, INF without one; for packets in inboxes, the start of their cell.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    ctl = net.ctl
    soonest = ctl.soonest_ps
    for node in range(net.next_time.shape[0]):
        soonest = min(soonest, net.next_time[node])
    for ahead in range(state.SIDES):
        # packets of an inbox are not sorted, so their cell counts
        if ctl.pending[ctl.side + ahead & state.SIDES - 1] == 1:
            soonest = min(soonest, ctl.now_ps + ahead * net.ctl.cell_ps)
    return soonest


@inline
def open_cell(net, begin_ps):
    """Begin a cell.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        begin_ps: Begin of the cell in ps.
    """
    ctl = net.ctl
    ctl.now_ps = begin_ps
    ctl.side = begin_ps // net.ctl.cell_ps & (state.SIDES - 1)
    ctl.cell_open = 1
    ctl.outer_done = 0


@inline
def open_window(net, begin_ps, number):
    """Begin a window of the run.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        begin_ps: Begin of the window in ps.
        number: Number of the window.
    """
    ctl = net.ctl
    ctl.begin_ps = begin_ps
    ctl.parity = number & 1
    ctl.in_list = ctl.in_at = 0
    ctl.window_open = 1
    ctl.cost = -net.count.hops
    open_cell(net, begin_ps)
    ctl.cell_open = 0
    for each in range(net.const.lists):  # empty the halves of the outbox that this window writes
        net.outbox[net.out_at[2 * each + ctl.parity]] = 0
    ctl.out_soonest_ps = state.INF


@inline
def link_of(net, number, half, i):
    """Return the `tx` row of the link of a packet of a half of a list.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        number: Number of the list of incoming packets (`net.in_at`).
        half: Address of the half.
        i: Index of the packet.
    """
    return net.ghost[number] + load_unaligned(crossing(net, half, i) + 4 * WORD_BYTES)


@outline
def take_in(net):
    """Take in the packets that neighbours sent in the previous window. Return True if a pool was too small.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    ctl = net.ctl
    while ctl.in_list < net.const.lists:
        number = ctl.in_list
        half = arrived(net, number)
        count = load_unaligned(half)  # its number of records
        while ctl.in_at < count:
            if blocks_short(net):
                return True
            i = ctl.in_at
            if i + 2 * AHEAD < count:
                prefetch(net.tx, link_of(net, number, half, i + 2 * AHEAD), 0)
                prefetch_inbox(net, link_of(net, number, half, i + AHEAD))
            p = crossing(net, half, i)
            algorithms.carry(net, algorithms.CARRY_IN, p)
            ready = load_unaligned(p)
            link = link_of(net, number, half, i)
            if ready < reach(net):
                meta = net.tx[link].meta
                at = deliver(net, meta, ready, load_unaligned(p + 8), load_unaligned(p + 16), load_unaligned(p + 24))
            else:
                ctl.soonest_ps = min(ctl.soonest_ps, ready)
                at = wait(net, link, ready, load_unaligned(p + 8), load_unaligned(p + 16), load_unaligned(p + 24))
            algorithms.carry(net, algorithms.SET_DOWN, at)
            ctl.in_at = i + 1
        ctl.in_at = 0
        ctl.in_list += 1
    return False


@inline
def act(world, world_address):
    """Let the outer switches process the cell, or, after them, all other nodes. Return True if a pool is too small.

    Args:
        world: State of the LP (`World`).
        world_address: Address of the directory of the LP's `World`.
    """
    # nodes do not affect each other within a cell, so their order is arbitrary
    net = world.net
    begin = net.ctl.now_ps
    end = begin + net.ctl.cell_ps
    if net.ctl.outer_done == 0:
        first, last = net.const.outer, net.const.nodes
        short = release_due(net) and release(net)
    else:
        first, last = net.const.npus, net.const.outer
        if net.hooks.npus_with_flows != 0:
            short = call_hook(net.hooks.npus_with_flows, world_address, begin, end) != 0
        else:
            short = npus_window(world_address, begin, end)
    if short:
        return True
    if net.hooks.shared_switches != 0:
        return call_hook(net.hooks.shared_switches, net.const.address, begin, end, first, last) != 0
    return switches_window(net, world.inbox, world.routes, begin, end, first, last)


@inline
def stops(net, end_ps):
    """Return whether an LP stops after its outer switches in the last cell of the window, as others have events.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        end_ps: End of the window in ps.
    """
    # Outer switches alone send to other teams, so the rest of the window sends nothing more there.
    now_ps = net.ctl.now_ps
    if net.const.splits == 0 or now_ps + net.ctl.cell_ps < end_ps or now_ps < net.ctl.catch_up_ps:
        return False
    for node in range(net.const.outer):
        if net.inbox[inbox_of(node, net.ctl.side)] >= 0 or net.next_time[node] < end_ps:
            return True
    return False


@inline
def may_lengthen(net):
    """Return whether cells may be long again from the end of the current one on (pdes/reuse_kernels/domains.py).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    ends_ps = net.ctl.now_ps + net.ctl.cell_ps
    return net.ctl.retry_ps <= ends_ps and ends_ps % net.const.long_cell_ps == 0 and net.ctl.packet_rows == 0


@outline
def window(world_address, begin_ps, number):
    """Process an LP's part of window `number` of the run, from begin_ps, or continue it after an interruption."""
    # Returns DONE, SENT (everything for other teams is sent: call again for the rest), FULL (a pool is too small: make
    # room and call again) or FAILED (a queue pair gave up); packet-hops, events and trace rows of this call; and after
    # DONE, the packet-hops of the whole window and the LP's earliest event; after SENT, a bound of it.
    world = state.world_at(world_address)
    net = world.net
    ctl = net.ctl
    hops, events = net.count.hops, net.count.events
    left = ctl.rows_left
    end = begin_ps + net.const.lookahead_ps
    if ctl.window_open == 0:
        open_window(net, begin_ps, number)
    soonest = state.INF
    status = state.GOING_ON
    if ctl.is_disturbed == 1:  # the run begins again (pdes.driver)
        ctl.window_open = 0
        return state.DONE, np.int64(0), np.int64(0), np.int64(0), np.int64(0), state.INF
    if ctl.outer_done == 0 and (take_in(net) or (far_release_due(net) and release(net))):
        status = state.FULL
    while status == state.GOING_ON:
        if ctl.cell_open == 0:
            soonest = earliest(net)
            if soonest >= end:
                status = state.DONE
                break
            open_cell(net, soonest // ctl.cell_ps * ctl.cell_ps)
            if ctl.fault_ps <= ctl.now_ps:
                call_hook(net.hooks.make_changes, world_address)
            if net.hooks.publish != 0:
                call_hook(net.hooks.publish, world_address)
        if act(world, world_address):
            status = state.FULL
        elif ctl.outer_done == 0:
            ctl.outer_done = 1
            if stops(net, end):
                status = state.SENT
        else:
            ctl.pending[ctl.side] = 0  # its inboxes are empty
            ctl.cell_open = 0
            if ctl.failed_queue_pair >= 0:
                status = state.FAILED
            elif ctl.due_replays > 0 or ctl.changes_cell == 1 or may_lengthen(net):
                ctl.need = state.NEED_REPLAY
                status = state.FULL
    if status == state.DONE:
        # packets that wait for another LP must go out in the window before the one in which they arrive
        ctl.next_ps = min(soonest, ctl.out_soonest_ps)
        if ctl.far_soonest_ps < state.INF:
            ctl.next_ps = min(ctl.next_ps, ctl.far_soonest_ps - net.const.lookahead_ps)
        ctl.cost += net.count.hops
        ctl.window_open = 0
        net.count.windows += 1
    elif status == state.SENT:
        # a bound: `end`, or INF if nothing is known
        is_next = ctl.out_soonest_ps < end + ctl.cell_ps or ctl.pending[ctl.side + 1 & state.SIDES - 1] == 1
        ctl.next_ps = end if is_next else state.INF
    return status, net.count.hops - hops, net.count.events - events, left - ctl.rows_left, ctl.cost, ctl.next_ps
