"""Periods that repeat themselves: a logical process does what each adds, and is later by all of them, unsimulated.

At a quiescent moment (pdes/reuse_kernels/quiescent.py), where the rows of all traces repeat themselves
(pdes/reuse/recurrence.py).
"""

import numpy as np

from nadi.pdes.core.jit import inline, kernel
from nadi.pdes.core.packet import job_of
from nadi.pdes.core.state import INF, LANES, ROW_DONE, ROW_STARTED, later_messages, world_at
from nadi.pdes.nic.counting import count_message
from nadi.pdes.npu.trace import count_row


@kernel
def repeat_rows(world_address, periods, period_ps, low, high, flag_ptr, flags, high_now, steps):
    """Let the trace rows that a period started and finished start and finish in each of the periods that follow it.

    world_address: address of the directory of the LP's `World`; periods: number of these periods; period_ps: length of
    a period in ps; low, high: int64[NPUs], the rows of `find_windows` at the begin of the period; flag_ptr: int64[NPUs
    + 1], where the flags of each NPU begin in `flags`; flags: int64[], flags of these rows at the begin of the period;
    high_now: `high` at its end; steps: int64[NPUs], trace rows per period.
    """
    world = world_at(world_address)
    net, rows = world.net, world.rows
    for node in range(low.shape[0]):
        npu = world.npus.npu[node]
        base, step = npu.row_base, steps[node]
        if step == 0:
            continue
        total = net.jobs.total[job_of(net.jobs.who[npu.number])]
        for row in range(low[node], high_now[node]):
            # rows beyond the range at the period's begin had no flags then
            before = np.int64(0)
            if row < high[node]:
                before = np.int64(flags[flag_ptr[node] + row - low[node]])
            # flags that the period has set
            new = np.int64(rows.flag[base + row]) & ~before
            for turn in range(1, periods + 1):
                again = row + turn * step
                if new & ROW_STARTED != 0:
                    rows.start[base + again] = rows.start[base + row] + turn * period_ps
                if new & ROW_DONE != 0:
                    now_ps = rows.finish[base + row] + turn * period_ps
                    rows.finish[base + again] = now_ps
                    count_row(net, npu, total, again, now_ps)


@inline
def move_rows(world, node, low, high, by):
    """Let an NPU be some trace rows further, where the rows repeat themselves.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        low: First row that is not done.
        high: End of the rows to which something has happened.
        by: Number of trace rows.
    """
    npu, rows = world.npus.npu[node], world.rows
    base = npu.row_base
    # from the last row on, since both ranges may overlap
    for row in range(high - 1, low - 1, -1):
        rows.state[base + row + by] = rows.state[base + row]
        rows.flag[base + row + by] = rows.flag[base + row]
    for row in range(low, low + by):
        rows.state[base + row] = 0
        rows.flag[base + row] = ROW_STARTED | ROW_DONE
    # rows that wait for a lane name the next, and heads of these lists are already those of later rows
    for lane in range(LANES):
        row = npu.wait_head[lane]
        while row >= 0 and row != npu.wait_tail[lane]:
            rows.state[base + row] += by
            row = np.int64(rows.state[base + row])


@inline
def move_events(npus, msg, node, by, shift_ps):
    """Let all future actions of an NPU be later, and those of trace rows name later rows.

    Args:
        npus: NPUs of the LP with their own events (`Npus`).
        msg: Rows of `LaterMessage` (`qps.msg`).
        node: Number of the NPU in the LP.
        by: Number of trace rows.
        shift_ps: Time in ps by which everything is later.
    """
    npu = npus.npu[node]
    for i in range(npu.heap_size):
        npus.heap[2 * (npu.heap + i)] += shift_ps
    row = npus.system[node].later_head - 1
    while row >= 0:
        msg[row].due += shift_ps << 1
        # at a quiescent moment, all later actions name trace rows
        msg[row].ref += by
        row = msg[row].later


@kernel
def go_forward(world_address, shift_ps, low, high, slots, rows_by, collectives_by):
    """Let an LP be later, at a quiescent moment, where every trace repeats itself, after `quiescence.go_forward`.

    Args:
        world_address: Address of the directory of the LP's `World`.
        shift_ps: Time in ps by which everything is later.
        low: int64[NPUs], first trace rows of `find_windows`.
        high: int64[NPUs], ends of the trace rows of `find_windows`.
        slots: int64[NPUs], number of group slots of each NPU.
        rows_by: int64[NPUs], added trace rows of each NPU.
        collectives_by: int64[slots], added collectives of each slot.
    """
    world = world_at(world_address)
    npus, ctl = world.npus, world.net.ctl
    for node in range(world.net.const.npus):
        by = rows_by[node]
        npu = npus.npu[node]
        move_rows(world, node, low[node], high[node], by)
        move_events(npus, later_messages(world.qps.msg), node, by, shift_ps)
        for slot in range(npu.slot_base, npu.slot_base + slots[node]):
            world.rows.slot_next[slot] += collectives_by[slot]
        npu.rows_left -= by
        ctl.rows_left -= by
    ctl.now_ps += shift_ps
    ctl.begin_ps += shift_ps
    if ctl.retry_ps < INF:
        ctl.retry_ps += shift_ps


@kernel
def count_messages_again(world_address, pairs, tags, now_ps):
    """Count messages that are complete.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pairs: int64[m], pairs of NPUs (`pair_word`).
        tags: int64[m], tags of the messages.
        now_ps: int64[m], times in ps at which they are complete.
    """
    net = world_at(world_address).net
    for i in range(pairs.shape[0]):
        count_message(net, pairs[i], tags[i], now_ps[i])
