"""NPUs that run one row of each kind at a time, as ASTRA-sim does (workload/HardwareResource.cc).

Kinds are computation on the CPU, computation on the GPU, and communication: collectives, sends and memory nodes.
Receives, collectives of one member and aggregators in switches take no turn. When all that follows from an event is
done, each idle kind begins its first row that is ready, in the order of the trace.

The functions are shared with closed forms (nadi/simulation/closed_forms/advancing). `npu` is a row with the words of an
NPU's ready rows and places in the tables, `turns` its row of Turns, `rows` the states of trace rows.
"""

import numpy as np

from nadi.pdes.core.jit import inline
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_COMPUTE, KIND_MEMORY, KIND_SEND, KINDS_OF_TURNS, make_ready

COMMUNICATION = 2  # the other kinds have the numbers of their lanes


@inline
def kind_of(npu, rows, trace, row, is_serial):
    """Return the kind of a trace row of an NPU, -1 if it takes no turn now.

    Args:
        npu: The NPU (a row `Npu`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        row: Trace row of the NPU.
        is_serial: 1 if collectives of a group run one after another, else 0.
    """
    r = npu.trace_base + row
    kind = trace.kind[r]
    if kind == KIND_COMPUTE:
        # CPU and COMPUTE are 0 and 1, as lanes and as kinds
        return np.int64(trace.lane[r])
    if kind == KIND_COLLECTIVE:
        # the collective waits for others of its group, not for its kind
        is_early = is_serial == 1 and rows.slot_next[npu.slot_base + trace.group[r]] != trace.seq[r]
        return np.int64(-1) if trace.schedule[r] < 0 or is_early else np.int64(COMMUNICATION)
    return np.int64(COMMUNICATION) if kind == KIND_SEND or kind == KIND_MEMORY else np.int64(-1)


@inline
def takes_turn(npu, turns, rows, trace, row, is_serial):
    """Return whether a ready row of an NPU may start now; else let it wait for its turn.

    Args:
        npu: The NPU (a row `Npu`).
        turns: Rows of the NPU that run or wait, by kind (a row `Turns`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
        trace: The distinct traces (`Trace`).
        row: Trace row of the NPU.
        is_serial: 1 if collectives of a group run one after another, else 0.
    """
    state = rows.state
    kind = kind_of(npu, rows, trace, row, is_serial)
    if kind < 0 or turns.is_free == 1 or turns.running[kind] == row:
        return True
    before = np.int64(-1)
    at = np.int64(turns.next_row[kind])
    # the list is in the order of the trace
    # insertion by row number: rows ready earlier but later in the trace come behind
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
def begin_turns(npu, turns, rows):
    """Let each kind of an NPU that is idle begin its next row.

    Args:
        npu: The NPU (a row `Npu`).
        turns: Rows of the NPU that run or wait, by kind (a row `Turns`).
        rows: Progress of the trace rows of the LP's NPUs (`RowStates`).
    """
    for kind in range(KINDS_OF_TURNS):
        row = np.int64(turns.next_row[kind])
        if turns.running[kind] < 0 and row >= 0:
            turns.next_row[kind] = rows.state[npu.row_base + row]
            turns.running[kind] = row
            # it goes through the list of ready rows once more, and passes `takes_turn` as the row that runs
            make_ready(npu, rows, row)
