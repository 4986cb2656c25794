"""An NPU works through its trace: rows whose parents are done start, take their lane or their turn, and finish.

Lanes (CPU, compute, memory) do one row at a time, first ready first served. Rows that become ready at the same moment
start in the order of the trace.
"""

import numpy as np

from pdes.core.hashing import mix2, mix3
from pdes.core.jit import inline, outline
from pdes.core.state import (
    ROW_DONE,
    ROW_READY,
)
from pdes.core.world import world_at

NOTHING = -1
"""No row, instance, port or message."""

KIND_NOOP, KIND_COMPUTE, KIND_MEMORY, KIND_SEND, KIND_RECV, KIND_COLLECTIVE = range(6)


@inline
def make_ready(npus, rows, node, row):
    """All parents of the row are done: append it to those that are ready."""
    npu = npus.npu[node]
    rows.state[npu.row_base + row] = -1
    if npu.ready_head < 0:
        npu.ready_head = row
    else:
        rows.state[npu.row_base + npu.ready_tail] = row
    npu.ready_tail = row


@inline
def next_ready(npus, rows, node):
    """Take the first ready row."""
    npu = npus.npu[node]
    row = npu.ready_head
    npu.ready_head = rows.state[npu.row_base + row]
    return row


@inline
def wait_for_lane(npus, rows, node, lane, row):
    """Queue a row behind the one that its lane works on."""
    npu = npus.npu[node]
    rows.state[npu.row_base + row] = -1
    if npu.wait_head[lane] < 0:
        npu.wait_head[lane] = row
    else:
        rows.state[npu.row_base + npu.wait_tail[lane]] = row
    npu.wait_tail[lane] = row


@inline
def next_for_lane(npus, rows, node, lane):
    """The lane is idle: make the next row that waits for it ready."""
    npu = npus.npu[node]
    waiting = npu.wait_head[lane]
    if waiting >= 0:
        npu.wait_head[lane] = rows.state[npu.row_base + waiting]
        make_ready(npus, rows, node, waiting)


@inline
def leave_lane(npus, rows, node, lane):
    """The lane's row is done: return it; the lane is free for the next."""
    npu = npus.npu[node]
    row = npu.lane[lane]
    npu.lane[lane] = -1
    next_for_lane(npus, rows, node, lane)
    return row


@outline
def finish_row(address, node, row, now):
    """A row is done: tell its children, and the next collective of its group."""
    w = world_at(address)
    net, npus, rows, trace = w.net, w.npus, w.rows, w.trace
    npu = npus.npu[node]
    first = npu.row_base
    base = npu.trace_base
    rows.flag[first + row] |= ROW_DONE
    if net.const.record_nodes == 1:
        rows.finish[first + row] = now
    h = mix3(npu.number, row, 0x4E41)
    net.count.trace_rows += 1
    net.count.digest_a += mix2(h, now)
    net.count.digest_b += mix2(now * 3 + 1, h)
    npu.rows_left -= 1
    net.ctl.rows_left -= 1
    if now > net.ctl.finish_ps:
        net.ctl.finish_ps = now
    if trace.kind[base + row] == KIND_COLLECTIVE and net.const.serial_collectives == 1:
        wake_group(npus, rows, trace, node, row)
    for i in range(trace.child_ptr[base + row], trace.child_ptr[base + row + 1]):
        child = np.int64(trace.child[i])
        left = rows.state[first + child] - 1
        rows.state[first + child] = left
        if left == 0:
            make_ready(npus, rows, node, child)


@inline
def wake_group(npus, rows, trace, node, row):
    """The group's next collective may start if it is ready."""
    npu = npus.npu[node]
    group = np.int64(trace.group[npu.trace_base + row])
    slot = npu.slot_base + group
    rows.slot_next[slot] += 1
    i = trace.trace_slot_ptr[npu.trace_number] + group
    at = trace.coll_ptr[i] + rows.slot_next[slot]
    if at < trace.coll_ptr[i + 1]:
        following = np.int64(trace.coll_node[at])
        if rows.flag[npu.row_base + following] & ROW_READY != 0:
            make_ready(npus, rows, node, following)
