"""A limit of the collectives that an NPU does at a time: others that are ready wait in line.

A collective takes a place when it starts and gives it back when it is done; the next is chosen by `scheduling`. Members
that choose differently would wait for each other for ever, so who is called comes: a collective for which a message has
come starts without waiting, also beyond the limit, and a lane that waits for a message calls its sender by a message of
control_bytes. So nobody waits in line with what another member waits for.
"""

import numpy as np

from pdes.core.jit import hook, inline, outline
from pdes.core.state import ROW_CALLED, ROW_READY
from pdes.core.world import world_at
from pdes.npu.contention import count_running
from pdes.npu.tokens import LIFO, PRIORITY
from pdes.npu.trace import make_ready

NONE = -1
CALL_LANE = (1 << 22) - 1
"""In the tag of a call, in place of the lane of a message."""


@inline
def has_line(npus, node):
    """Whether a collective waits in line."""
    return npus.system[node].line > 0


@hook
def may_start(address, node, row):
    """1 if a collective that is ready may start, with a place; if not, it waits in line, and 0."""
    w = world_at(address)
    npus, rows = w.npus, w.rows
    first = npus.npu[node].row_base
    system = npus.system[node]
    if rows.flag[first + row] & ROW_CALLED != 0 or system.in_flight < w.net.const.collectives_in_flight:
        system.in_flight += 1
        return 1
    rows.flag[first + row] |= ROW_READY
    rows.state[first + row] = NONE
    last = system.line - 1
    if last < 0:
        system.line = row + 1
        return 0
    while rows.state[first + last] >= 0:
        last = np.int64(rows.state[first + last])
    rows.state[first + last] = row
    return 0


@inline
def leave_line(npus, rows, node, row):
    """Have a row that waits in line start in this moment, place or not."""
    first = npus.npu[node].row_base
    system = npus.system[node]
    following = np.int64(rows.state[first + row])
    before = system.line - 1
    if before == row:
        system.line = following + 1
    else:
        while rows.state[first + before] != row:
            before = np.int64(rows.state[first + before])
        rows.state[first + before] = following
    rows.flag[first + row] |= ROW_CALLED
    make_ready(npus.npu[node], rows, row)


@outline
def call(address, node, group, seq):
    """A message has come for the seq-th collective of a group: it starts if it waits in line, or else when it can."""
    w = world_at(address)
    npus, rows, trace = w.npus, w.rows, w.trace
    npu = npus.npu[node]
    slot = npu.slot_base
    at = trace.trace_slot_ptr[npu.trace_number]
    while w.plans.slot_group[slot] != group:
        slot += 1
        at += 1
    row = np.int64(trace.coll_node[trace.coll_ptr[at] + seq])
    waiting = npus.system[node].line - 1
    first = npu.row_base
    while waiting >= 0 and waiting != row:
        waiting = np.int64(rows.state[first + waiting])
    if waiting == row:
        leave_line(npus, rows, node, row)
    else:
        rows.flag[first + row] |= ROW_CALLED


@inline
def first_in_line(net, npus, rows, trace, node):
    """The row that goes next: the first that came, the last, or the first of the highest priority."""
    npu = npus.npu[node]
    first = npu.row_base
    base = npu.trace_base
    best = npus.system[node].line - 1
    row = best
    while row >= 0:
        if net.const.scheduling == LIFO or (
            net.const.scheduling == PRIORITY and trace.priority[base + row] > trace.priority[base + best]
        ):
            best = row
        row = np.int64(rows.state[first + row])
    return best


@outline
def give_place_back(address, node):
    """A collective is done; the next that waits in line starts if there is a place now."""
    w = world_at(address)
    system = w.npus.system[node]
    system.in_flight -= 1
    if system.in_flight < w.net.const.collectives_in_flight and has_line(w.npus, node):
        leave_line(w.npus, w.rows, node, first_in_line(w.net, w.npus, w.rows, w.trace, node))


@hook
def running(address, node, by, now):
    """A collective begins to run (by = 1) or is done (-1): others may have its place, and compute its processors."""
    const = world_at(address).net.const
    if const.compute_slow_1000ths != 0:
        count_running(address, node, by, now)
    if by < 0 and const.collectives_in_flight > 0:
        give_place_back(address, node)
    return 0
