"""NPUs before anything has happened: which rows of their traces are ready, and their idle ports."""

import numpy as np

from pdes.build.part import Part, offsets
from pdes.build.settings import Settings
from pdes.core import state as s
from pdes.core.inputs import Int32, Int64, Program, Record, Rows
from pdes.core.memory import full, zeros
from pdes.core.rows.nic import Port
from pdes.core.rows.npu import Npu, System, Tokens


def _ready_templates(program: Program) -> list[tuple[Int32, int, int]]:
    """Per distinct trace: parents left per row with the ready rows chained, and the chain's ends."""
    templates = []
    for t in range(len(program.trace_ptr) - 1):
        left = program.node_deps[program.trace_ptr[t] : program.trace_ptr[t + 1]].astype(np.int32)
        roots = np.flatnonzero(left == 0)
        left[roots] = np.append(roots[1:], -1)[: len(roots)]
        templates.append((left, roots[0] if len(roots) else -1, roots[-1] if len(roots) else -1))
    return templates


def npu_rows(program: Program, part: Part, settings: Settings) -> tuple[Rows, Int32, Int64]:
    """The `npu` table, the per-NPU rows of `RowStates.state`, and their offsets."""
    npu = zeros(part.npus, Npu)
    ports = np.diff(part.out_ptr[: part.npus + 1])
    npu.kick_head = npu.first_queue_pair = npu.last_receiver = npu.done_head = npu.agenda_head = -1
    npu.last_connection = npu.last_instance = -1
    npu.rto_at_ps = s.INF
    own = npu[: part.npus]
    own.ports = ports
    own.heap = offsets(_slots(ports, settings))[:-1]
    own.number = part.nodes[: part.npus]
    busy = np.flatnonzero(part.nodes[: part.npus] < program.npus)
    trace = np.full(part.npus, -1, np.int64)
    trace[busy] = np.asarray(program.trace_of_npu)[part.nodes[busy]]
    has_trace = np.flatnonzero(trace >= 0)
    own.slot_base[has_trace] = np.asarray(program.slot_ptr)[part.nodes[has_trace]]
    state, row_ptr = begin_traces(npu, trace, program)
    own.rows_left = np.diff(row_ptr)
    return npu, state, row_ptr


def begin_traces(npu: Rows, trace: Int64, program: Program) -> tuple[Int32, Int64]:
    """Give NPUs, or classes of them, their traces with all rows without parents ready, and every lane idle.

    Args:
        npu: a row for each; rows beyond have nothing ready.
        trace: int64[n], which distinct trace each has, -1 none.
        program: with the traces.

    Returns:
        `RowStates.state` of their trace rows, and offsets of these, int64[n + 1].
    """
    for name in ("ready_head", "ready_tail", "lane", "wait_head", "wait_tail"):
        npu[name] = -1
    has_trace = np.flatnonzero(trace >= 0)
    of = trace[has_trace]
    trace_ptr = np.asarray(program.trace_ptr, np.int64)
    length = np.zeros(len(trace), np.int64)
    length[has_trace] = np.diff(trace_ptr)[of]
    row_ptr = offsets(length)
    npu.row_base[: len(trace)] = row_ptr[:-1]
    npu.trace_number[has_trace] = of
    npu.trace_base[has_trace] = trace_ptr[of]
    templates = _ready_templates(program)
    for name, ends in (("ready_head", 1), ("ready_tail", 2)):
        npu[name][has_trace] = np.array([template[ends] for template in templates], np.int64)[of]
    state = np.zeros(max(1, int(row_ptr[-1])), np.int32)
    for i in has_trace.tolist():
        state[row_ptr[i] : row_ptr[i + 1]] = templates[trace[i]][0]
    return state, row_ptr


def row_states(state: Int32, slots: int, *, recorded: bool) -> s.RowStates:
    """Trace rows of every NPU, none begun; recorded: whether their times are kept."""
    kept = len(state) if recorded else 1
    return s.RowStates(
        state=state,
        flag=zeros(len(state), np.int8),
        start=full(kept, -1),
        finish=full(kept, -1),
        slot_next=zeros(slots, np.int32),
    )


def _slots(ports: Int64, settings: Settings) -> Int64:
    """Entries of an NPU's heap: ports (twice where there is pacing), lanes, timer, agenda and list of messages."""
    return ports * (2 if settings.congestion_control.update else 1) + s.LANES + 2 + settings.fidelity.has_endpoints


def idle_npus(part: Part, npu: Rows, const: Record, settings: Settings) -> s.Npus:
    """NPUs, their idle ports and empty heaps."""
    port = zeros(int(part.out_ptr[part.npus]), Port)
    port.ring = port.sent_ref = -1
    port.kick_next = -2
    port.paced = -1
    port.pace_at_ps = s.INF
    slots = int(npu.heap[-1] + _slots(npu.ports[-1:], settings)[0])
    token = zeros(part.npus * int(const.gated_dimensions), Tokens)
    token.waiting = -1
    return s.Npus(
        npu=npu,
        port=port,
        heap=zeros(2 * slots),
        token=token,
        system=zeros(part.npus, System),
        busy=zeros(part.npus, np.int32),
    )
