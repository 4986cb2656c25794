"""The initial state of NPUs: the trace rows that are ready, and idle ports."""

import numpy as np

from pdes.build.layout import Part, offsets
from pdes.build.settings import Settings
from pdes.core import state as s
from pdes.core.inputs import Int32, Int64, Program, Record, Rows
from pdes.core.memory import aligned, full, rows_of, zeros
from pdes.core.rows.nic import Port
from pdes.core.rows.npu import Npu, System, Tokens


def npu_rows(program: Program, part: Part, settings: Settings) -> tuple[Rows, Int32, Int64]:
    """Return the `npu` table, the per-NPU rows of `RowStates.state`, and their offsets."""
    npu = rows_of(Npu, part.npus)
    own = npu[: part.npus]
    own.ports = np.diff(part.out_ptr[: part.npus + 1])
    own.heap = offsets(_slots(own.ports, settings))[:-1]
    own.number = part.nodes[: part.npus]
    trace = np.full(part.npus, -1, np.int64)
    busy = np.flatnonzero(own.number < program.npus)
    trace[busy] = program.trace_of_npu[own.number[busy]]
    has_trace = np.flatnonzero(trace >= 0)
    own.slot_base[has_trace] = program.slot_ptr[own.number[has_trace]]
    state, row_ptr = begin_traces(npu, trace, program)
    own.rows_left = np.diff(row_ptr)
    return npu, state, row_ptr


def begin_traces(npu: Rows, trace: Int64, program: Program) -> tuple[Int32, Int64]:
    """Assign traces to idle NPUs, or to classes of NPUs (rows of `npu`); all rows without parents are ready.

    trace: int64[n], number of the distinct trace of each, -1 without one. Returns `RowStates.state` of their trace
    rows, and offsets of these, int64[n + 1].
    """
    trace_ptr = program.trace_ptr
    left = program.node_deps.astype(np.int32)
    ends = np.full((2, len(trace_ptr) - 1), -1)
    for number, (begin, end) in enumerate(zip(trace_ptr[:-1].tolist(), trace_ptr[1:].tolist(), strict=True)):
        roots = np.flatnonzero(left[begin:end] == 0)
        if len(roots):
            left[begin + roots] = np.append(roots[1:], -1)  # linked: each ready row names the next
            ends[:, number] = roots[0], roots[-1]
    has_trace = np.flatnonzero(trace >= 0)
    own_trace = trace[has_trace]
    length = np.zeros(len(trace), np.int64)
    length[has_trace] = np.diff(trace_ptr)[own_trace]
    row_ptr = offsets(length)
    npu.row_base[: len(trace)] = row_ptr[:-1]
    npu.trace_number[has_trace] = own_trace
    npu.trace_base[has_trace] = trace_ptr[own_trace]
    npu.ready_head[has_trace], npu.ready_tail[has_trace] = ends[:, own_trace]
    state = [left[trace_ptr[number] : trace_ptr[number + 1]] for number in own_trace.tolist()]
    return aligned(np.concatenate([*state, left[:0]]), np.int32), row_ptr


def row_states(state: Int32, slots: int, *, recorded: bool) -> s.RowStates:
    """Return the states of the trace rows of every NPU, none begun; recorded: whether their times are kept."""
    kept = len(state) if recorded else 1
    return s.RowStates(
        state=state,
        flag=zeros(len(state), np.int8),
        start=full(kept, -1),
        finish=full(kept, -1),
        slot_next=zeros(slots, np.int32),
    )


def _slots(ports: Int64, settings: Settings) -> Int64:
    """Return the entries of an NPU's heap: ports (twice with pacing), lanes, timer, agenda and message list."""
    return ports * (2 if settings.congestion_control.update else 1) + s.LANES + 3


def idle_npus(part: Part, npu: Rows, const: Record, settings: Settings) -> s.Npus:
    """Return NPUs with idle ports and empty heaps."""
    slots = int(npu.heap[-1] + _slots(npu.ports[-1:], settings)[0])
    return s.Npus(
        npu=npu,
        port=rows_of(Port, part.out_ptr[part.npus]),
        heap=zeros(2 * slots),
        token=rows_of(Tokens, part.npus * int(const.gated_dimensions)),
        system=rows_of(System, part.npus),
        busy=zeros(part.npus, np.int32),
    )
