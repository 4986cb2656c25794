"""NPUs that run one row of each kind at a time, at message level, as ASTRA-sim does (workload/HardwareResource.cc).

Kinds are computation on the CPU, computation on the GPU, and communication: collectives, sends and memory nodes.
Receives, collectives of one member and aggregators in switches take no turn. When all that follows from an event is
done, each idle kind begins its first row that is ready, in the order of the trace.
"""

import numpy as np

from pdes.core.jit import inline
from pdes.npu.trace import KIND_COLLECTIVE, KIND_COMPUTE, KIND_MEMORY, KIND_SEND, make_ready

KINDS = 3
COMMUNICATION = 2  # the other kinds have the numbers of their lanes


@inline
def kind_of(world, npu, row):
    """Return the kind of a trace row of an NPU, -1 if it takes no turn now."""
    trace = world.trace
    r = npu.trace_base + row
    kind = trace.kind[r]
    if kind == KIND_COMPUTE:
        return np.int64(trace.lane[r])
    if kind == KIND_COLLECTIVE:
        is_early = rows_before(world, npu, r)
        return np.int64(-1) if trace.schedule[r] < 0 or is_early else np.int64(COMMUNICATION)
    return np.int64(COMMUNICATION) if kind == KIND_SEND or kind == KIND_MEMORY else np.int64(-1)


@inline
def rows_before(world, npu, r):
    """Return whether another collective of the group must run before that of row r of the tables."""
    slot = npu.slot_base + world.trace.group[r]
    return world.net.const.serial_collectives == 1 and world.rows.slot_next[slot] != world.trace.seq[r]


@inline
def takes_turn(world, node, row):
    """Return whether ready row `row` of NPU `node` may start now; else let it wait for its turn."""
    npu, turns, state = world.npus.npu[node], world.npus.turns[node], world.rows.state
    kind = kind_of(world, npu, row)
    if kind < 0 or turns.is_free == 1 or turns.running[kind] == row:
        return True
    before = np.int64(-1)
    at = np.int64(turns.next_row[kind])
    while at >= 0 and at < row:
        before = at
        at = np.int64(state[npu.row_base + at])
    state[npu.row_base + row] = at
    if before < 0:
        turns.next_row[kind] = row
    else:
        state[npu.row_base + before] = row
    return False


@inline
def begin_turns(world, node):
    """Let each kind of NPU `node` that is idle begin its next row."""
    npu, turns, rows = world.npus.npu[node], world.npus.turns[node], world.rows
    for kind in range(KINDS):
        row = np.int64(turns.next_row[kind])
        if turns.running[kind] < 0 and row >= 0:
            turns.next_row[kind] = rows.state[npu.row_base + row]
            turns.running[kind] = row
            make_ready(npu, rows, row)


@inline
def end_turn(world, node, row):
    """Let the kind of trace row `row` of NPU `node`, which is done, be idle if it ran this row."""
    turns = world.npus.turns[node]
    for kind in range(KINDS):
        if turns.running[kind] == row:
            turns.running[kind] = -1
