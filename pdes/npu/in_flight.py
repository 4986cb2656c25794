"""A limit of the collectives that an NPU does at a time: others that are ready wait in line.

A collective takes a place when it starts and gives it back when it is done; the next is chosen by `scheduling`. Members
that choose differently would wait for each other for ever, so who is called comes: a collective for which a message has
come starts without waiting, also beyond the limit, and a lane that waits for a message calls its sender by a message of
CONST_CONTROL_BYTES. So nobody waits in line with what another member waits for.
"""

import numpy as np

from pdes.core.jit import hook, inline, outline
from pdes.core.state import (
    CONST_IN_FLIGHT,
    CONST_SCHEDULING,
    NPU_ROW_BASE,
    NPU_SLOT_BASE,
    NPU_TRACE,
    NPU_TRACE_BASE,
    NPU_WORDS,
    ROW_CALLED,
    ROW_READY,
    SYSTEM_IN_FLIGHT,
    SYSTEM_LINE,
    SYSTEM_WORDS,
)
from pdes.core.world import world_at
from pdes.npu.tokens import LIFO, PRIORITY
from pdes.npu.trace import make_ready

NONE = -1
CALL_LANE = (1 << 22) - 1
"""In the tag of a call, in place of the lane of a message."""


@inline
def has_line(npus, node):
    """Whether a collective waits in line."""
    return npus.system[node * SYSTEM_WORDS + SYSTEM_LINE] > 0


@hook
def may_start(address, node, row, _c, _d, _e, _f, _g):
    """1 if a collective that is ready may start, with a place; if not, it waits in line, and 0."""
    w = world_at(address)
    npus, rows = w.npus, w.rows
    first = npus.npu[node * NPU_WORDS + NPU_ROW_BASE]
    y = node * SYSTEM_WORDS
    if rows.flag[first + row] & ROW_CALLED != 0 or npus.system[y + SYSTEM_IN_FLIGHT] < w.net.const[CONST_IN_FLIGHT]:
        npus.system[y + SYSTEM_IN_FLIGHT] += 1
        return 1
    rows.flag[first + row] |= ROW_READY
    rows.state[first + row] = NONE
    last = npus.system[y + SYSTEM_LINE] - 1
    if last < 0:
        npus.system[y + SYSTEM_LINE] = row + 1
        return 0
    while rows.state[first + last] >= 0:
        last = np.int64(rows.state[first + last])
    rows.state[first + last] = row
    return 0


@inline
def leave_line(npus, rows, node, row):
    """Have a row that waits in line start in this moment, place or not."""
    first = npus.npu[node * NPU_WORDS + NPU_ROW_BASE]
    line = node * SYSTEM_WORDS + SYSTEM_LINE
    following = np.int64(rows.state[first + row])
    before = npus.system[line] - 1
    if before == row:
        npus.system[line] = following + 1
    else:
        while rows.state[first + before] != row:
            before = np.int64(rows.state[first + before])
        rows.state[first + before] = following
    rows.flag[first + row] |= ROW_CALLED
    make_ready(npus, rows, node, row)


@outline
def call(address, node, group, seq):
    """A message has come for the seq-th collective of a group: it starts if it waits in line, or else when it can."""
    w = world_at(address)
    npus, rows, trace = w.npus, w.rows, w.trace
    n = node * NPU_WORDS
    slot = npus.npu[n + NPU_SLOT_BASE]
    at = trace.trace_slot_ptr[npus.npu[n + NPU_TRACE]]
    while w.plans.slot_group[slot] != group:
        slot += 1
        at += 1
    row = np.int64(trace.coll_node[trace.coll_ptr[at] + seq])
    waiting = npus.system[node * SYSTEM_WORDS + SYSTEM_LINE] - 1
    first = npus.npu[n + NPU_ROW_BASE]
    while waiting >= 0 and waiting != row:
        waiting = np.int64(rows.state[first + waiting])
    if waiting == row:
        leave_line(npus, rows, node, row)
    else:
        rows.flag[first + row] |= ROW_CALLED


@inline
def first_in_line(net, npus, rows, trace, node):
    """The row that goes next: the first that came, the last, or the first of the highest priority."""
    n = node * NPU_WORDS
    first = npus.npu[n + NPU_ROW_BASE]
    base = npus.npu[n + NPU_TRACE_BASE]
    best = npus.system[node * SYSTEM_WORDS + SYSTEM_LINE] - 1
    row = best
    while row >= 0:
        if net.const[CONST_SCHEDULING] == LIFO or (
            net.const[CONST_SCHEDULING] == PRIORITY and trace.priority[base + row] > trace.priority[base + best]
        ):
            best = row
        row = np.int64(rows.state[first + row])
    return best


@outline
def give_place_back(address, node):
    """A collective is done; the next that waits in line starts if there is a place now."""
    w = world_at(address)
    y = node * SYSTEM_WORDS
    w.npus.system[y + SYSTEM_IN_FLIGHT] -= 1
    if w.npus.system[y + SYSTEM_IN_FLIGHT] < w.net.const[CONST_IN_FLIGHT] and has_line(w.npus, node):
        leave_line(w.npus, w.rows, node, first_in_line(w.net, w.npus, w.rows, w.trace, node))
