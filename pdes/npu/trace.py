"""An NPU works through its trace: rows whose parents are done start, take their lane or their turn, and finish.

Lanes (CPU, compute, memory) do one row at a time, first ready first served. Rows that become ready at the same moment
start in the order of the trace.
"""

import numpy as np

from pdes.core.hashing import mix2, mix3
from pdes.core.jit import inline, outline
from pdes.core.state import (
    CONST_RECORD_NODES,
    CONST_SERIAL_COLLECTIVES,
    COUNT_DIGEST_A,
    COUNT_DIGEST_B,
    COUNT_NODES,
    CTL_FINISH,
    CTL_LEFT,
    NPU_GLOBAL,
    NPU_LANE,
    NPU_LEFT,
    NPU_READY_HEAD,
    NPU_READY_TAIL,
    NPU_ROW_BASE,
    NPU_SLOT_BASE,
    NPU_TRACE,
    NPU_TRACE_BASE,
    NPU_WAIT_HEAD,
    NPU_WAIT_TAIL,
    NPU_WORDS,
    ROW_DONE,
    ROW_READY,
)
from pdes.core.world import world_at

KIND_NOOP, KIND_COMPUTE, KIND_MEMORY, KIND_SEND, KIND_RECV, KIND_COLLECTIVE = range(6)


@inline
def list_append(npus, rows, n, head, tail, row):
    """Append a row to the NPU's list whose ends are words `head` and `tail`."""
    base = npus.npu[n + NPU_ROW_BASE]
    rows.state[base + row] = -1
    if npus.npu[n + head] < 0:
        npus.npu[n + head] = row
    else:
        rows.state[base + npus.npu[n + tail]] = row
    npus.npu[n + tail] = row


@inline
def make_ready(npus, rows, node, row):
    """All parents of the row are done."""
    n = node * NPU_WORDS
    list_append(npus, rows, n, NPU_READY_HEAD, NPU_READY_TAIL, row)


@inline
def next_ready(npus, rows, node):
    """Take the first ready row."""
    n = node * NPU_WORDS
    row = npus.npu[n + NPU_READY_HEAD]
    npus.npu[n + NPU_READY_HEAD] = rows.state[npus.npu[n + NPU_ROW_BASE] + row]
    return row


@inline
def wait_for_lane(npus, rows, node, lane, row):
    """Queue a row behind the one that its lane works on."""
    n = node * NPU_WORDS
    list_append(npus, rows, n, NPU_WAIT_HEAD + lane, NPU_WAIT_TAIL + lane, row)


@inline
def next_for_lane(npus, rows, node, lane):
    """The lane is idle: make the next row that waits for it ready."""
    n = node * NPU_WORDS
    waiting = npus.npu[n + NPU_WAIT_HEAD + lane]
    if waiting >= 0:
        npus.npu[n + NPU_WAIT_HEAD + lane] = rows.state[npus.npu[n + NPU_ROW_BASE] + waiting]
        make_ready(npus, rows, node, waiting)


@inline
def leave_lane(npus, rows, node, lane):
    """The lane's row is done: return it; the lane is free for the next."""
    n = node * NPU_WORDS
    row = npus.npu[n + NPU_LANE + lane]
    npus.npu[n + NPU_LANE + lane] = -1
    next_for_lane(npus, rows, node, lane)
    return row


@outline
def finish_row(address, node, row, now):
    """A row is done: tell its children, and the next collective of its group."""
    w = world_at(address)
    net, npus, rows, trace = w.net, w.npus, w.rows, w.trace
    n = node * NPU_WORDS
    first = npus.npu[n + NPU_ROW_BASE]
    base = npus.npu[n + NPU_TRACE_BASE]
    rows.flag[first + row] |= ROW_DONE
    if net.const[CONST_RECORD_NODES] == 1:
        rows.finish[first + row] = now
    h = mix3(npus.npu[n + NPU_GLOBAL], row, 0x4E41)
    net.count[COUNT_NODES] += 1
    net.count[COUNT_DIGEST_A] += mix2(h, now)
    net.count[COUNT_DIGEST_B] += mix2(now * 3 + 1, h)
    npus.npu[n + NPU_LEFT] -= 1
    net.ctl[CTL_LEFT] -= 1
    if now > net.ctl[CTL_FINISH]:
        net.ctl[CTL_FINISH] = now
    if trace.kind[base + row] == KIND_COLLECTIVE and net.const[CONST_SERIAL_COLLECTIVES] == 1:
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
    n = node * NPU_WORDS
    group = np.int64(trace.group[npus.npu[n + NPU_TRACE_BASE] + row])
    slot = npus.npu[n + NPU_SLOT_BASE] + group
    rows.slot_next[slot] += 1
    i = trace.trace_slot_ptr[npus.npu[n + NPU_TRACE]] + group
    at = trace.coll_ptr[i] + rows.slot_next[slot]
    if at < trace.coll_ptr[i + 1]:
        following = np.int64(trace.coll_node[at])
        if rows.flag[npus.npu[n + NPU_ROW_BASE] + following] & ROW_READY != 0:
            make_ready(npus, rows, node, following)
