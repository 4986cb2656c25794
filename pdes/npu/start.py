"""A trace row starts: it takes its lane, posts its message, begins its collective, or is done at once."""

import numpy as np

from pdes.core.jit import call_hook, outline
from pdes.core.packet import P2P, message_tag
from pdes.core.state import COMPUTE_LANE, ROW_ARRIVED, ROW_ASKED, ROW_POSTED, ROW_READY, ROW_STARTED
from pdes.core.world import world_at
from pdes.network.faults import slowed
from pdes.nic.port import set_event
from pdes.nic.rendezvous import answer, post_or_ask
from pdes.npu.collective import start_collective
from pdes.npu.contention import begin_work
from pdes.npu.trace import (
    KIND_COLLECTIVE,
    KIND_COMPUTE,
    KIND_MEMORY,
    KIND_RECV,
    KIND_SEND,
    NOTHING,
    next_for_lane,
    wait_for_lane,
)


@outline
def start_row(address, node, row, now):
    """Start a row. Returns the row if it is done at once, and the instance to advance, each NOTHING if none."""
    w = world_at(address)
    net, npus, rows, trace = w.net, w.npus, w.rows, w.trace
    npu = npus.npu[node]
    first = npu.row_base
    r = npu.trace_base + row
    kind = trace.kind[r]
    done = np.int64(NOTHING)
    inst = np.int64(NOTHING)
    if kind == KIND_COMPUTE or kind == KIND_MEMORY:
        lane = np.int64(trace.lane[r])
        if npu.lane[lane] >= 0:
            wait_for_lane(npu, rows, lane, row)
            return done, inst
        duration = trace.duration_ps[r]
        if kind == KIND_COMPUTE and npu.slow_1024ths != 0:
            duration = slowed(duration, npu.slow_1024ths)
        if lane == COMPUTE_LANE and net.const.compute_slow_1000ths != 0:
            duration = begin_work(net, npus, node, duration, now)
        if duration == 0:
            done = row
            next_for_lane(npu, rows, lane)
        else:
            npu.lane[lane] = row
            set_event(npus, node, now + duration, npu.ports + lane)
    elif kind == KIND_SEND:
        dst = npu.number + np.int64(trace.peer[r])
        tag = message_tag(np.int64(P2P), np.int64(trace.seq[r]), np.int64(trace.tag[r]))
        post_or_ask(net, node, dst, np.int64(P2P), tag, trace.bytes[r], row, now)
    elif kind == KIND_RECV:
        if rows.flag[first + row] & ROW_ARRIVED != 0:
            done = row
        elif rows.flag[first + row] & ROW_ASKED != 0:
            src = npu.number + np.int64(trace.peer[r])
            tag = message_tag(np.int64(P2P), np.int64(trace.seq[r]), np.int64(trace.tag[r]))
            answer(net, node, src, tag, now)
        rows.flag[first + row] |= ROW_POSTED
    elif kind == KIND_COLLECTIVE:
        slot = npu.slot_base + trace.group[r]
        if net.const.serial_collectives == 1 and rows.slot_next[slot] != trace.seq[r]:
            rows.flag[first + row] |= ROW_READY
            return done, inst
        if trace.schedule[r] < 0:
            done = row
        elif net.const.collectives_in_flight > 0 and (call_hook(net.hooks.may_start, address, node, row) == 0):
            return done, inst
        else:
            inst = start_collective(w, node, row, now)
    else:
        done = row
    rows.flag[first + row] |= ROW_STARTED
    if net.const.record_nodes == 1:
        rows.start[first + row] = now
    return done, inst
