"""An NPU works through its trace: rows whose parents are done start, take their lane or their turn, and finish.

An `npu` here is a row of NPUs, or of classes of NPUs that do the same (nadi/closed_forms/advancing/rows.py).

Lanes (CPU, compute, memory) do one row at a time, first ready first served. Rows that become ready at the same moment
start in the order of the trace.
"""

import numpy as np

from pdes.core.hashing import mix2, mix3
from pdes.core.jit import inline, outline
from pdes.core.state import ROW_DONE, ROW_READY
from pdes.core.world import world_at

NOTHING = -1
"""No row, instance, port or message."""

KIND_NOOP, KIND_COMPUTE, KIND_MEMORY, KIND_SEND, KIND_RECV, KIND_COLLECTIVE = range(6)


@inline
def make_ready(npu, rows, row):
    """All parents of the row are done: append it to those that are ready."""
    rows.state[npu.row_base + row] = -1
    if npu.ready_head < 0:
        npu.ready_head = row
    else:
        rows.state[npu.row_base + npu.ready_tail] = row
    npu.ready_tail = row


@inline
def next_ready(npu, rows):
    """Take the first ready row."""
    row = npu.ready_head
    npu.ready_head = rows.state[npu.row_base + row]
    return row


@inline
def wait_for_lane(npu, rows, lane, row):
    """Queue a row behind the one that its lane works on."""
    rows.state[npu.row_base + row] = -1
    if npu.wait_head[lane] < 0:
        npu.wait_head[lane] = row
    else:
        rows.state[npu.row_base + npu.wait_tail[lane]] = row
    npu.wait_tail[lane] = row


@inline
def next_for_lane(npu, rows, lane):
    """The lane is idle: make the next row that waits for it ready."""
    waiting = npu.wait_head[lane]
    if waiting >= 0:
        npu.wait_head[lane] = rows.state[npu.row_base + waiting]
        make_ready(npu, rows, waiting)


@inline
def leave_lane(npu, rows, lane):
    """The lane's row is done: return it; the lane is free for the next."""
    row = npu.lane[lane]
    npu.lane[lane] = -1
    next_for_lane(npu, rows, lane)
    return row


@outline
def finish_row(address, node, row, now):
    """A row is done: count it, and tell those that wait for it."""
    w = world_at(address)
    net, rows = w.net, w.rows
    npu = w.npus.npu[node]
    if net.const.record_nodes == 1:
        rows.finish[npu.row_base + row] = now
    h = mix3(npu.number, row, 0x4E41)
    net.count.trace_rows += 1
    net.count.digest_a += mix2(h, now)
    net.count.digest_b += mix2(now * 3 + 1, h)
    npu.rows_left -= 1
    net.ctl.rows_left -= 1
    if now > net.ctl.finish_ps:
        net.ctl.finish_ps = now
    tell_of(npu, rows, w.trace, row, net.const.serial_collectives)


@inline
def tell_of(npu, rows, trace, row, serial):
    """Tell the children of a row that is done, and if collectives are serial the next collective of its group."""
    first = npu.row_base
    r = npu.trace_base + row
    rows.flag[first + row] |= ROW_DONE
    if trace.kind[r] == KIND_COLLECTIVE and serial == 1:
        wake_group(npu, rows, trace, r)
    for i in range(trace.child_ptr[r], trace.child_ptr[r + 1]):
        child = np.int64(trace.child[i])
        left = rows.state[first + child] - 1
        rows.state[first + child] = left
        if left == 0:
            make_ready(npu, rows, child)


@inline
def wake_group(npu, rows, trace, r):
    """The next collective of a row's group may start if it is ready; r: the row in the tables."""
    group = np.int64(trace.group[r])
    slot = npu.slot_base + group
    rows.slot_next[slot] += 1
    i = trace.trace_slot_ptr[npu.trace_number] + group
    at = trace.coll_ptr[i] + rows.slot_next[slot]
    if at < trace.coll_ptr[i + 1]:
        following = np.int64(trace.coll_node[at])
        if rows.flag[npu.row_base + following] & ROW_READY != 0:
            make_ready(npu, rows, following)
