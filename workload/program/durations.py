"""Durations of computations and of accesses to memory, on one NPU or in a pool."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from nadi.et import NameTable, NodeType, TraceTable, mem_node, metadata, recv_node, send_node, table_of
from nadi.inputs.arrays import Int8, Int32, Int64, Mask, UInt64
from nadi.inputs.limits import LONGEST_PS
from nadi.inputs.units import PS_PER_S, PS_PER_US
from nadi.workload.compute.gpu import IN_STEPS, find_gpu
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.errors import Exchange, WorkloadError, agree
from nadi.workload.node_kinds import COMPUTE, CPU_LANE, MEMORY, REMOTE_LANE
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, ELSEWHERE, TraceSet, TraceView

# Remote memory: of each NPU, or a pool that NPUs share, whose accesses become messages to memory nodes.
#
# A memory node is an NPU of the fabric without its own trace. A load sends it a request of REQUEST_BYTES; the memory
# node reads, one access at a time in order of arrival, and sends the data. A store sends the data, and the memory node
# confirms the write with REQUEST_BYTES. So the fabric determines the latency and the bandwidth of the pool (ASTRA-sim
# 2.0's memory pool; Won et al., ISPASS 2023, section IV-C).

REQUEST_BYTES = 64  # Bytes of a load request or a store confirmation: a cache line, the unit of CXL.mem's messages
MAX_ACCESSES = 1 << 24  # Maximum number of accesses per NPU: each has its own message tag of 24 bits
_REMOTE_LOC = 1
_MEMORY_TYPES = (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE)


def with_memory_nodes(
    traces_of_run: TraceSet, memory_nodes: Sequence[int], host: Int32, exchange: Exchange
) -> TraceSet:
    """Return traces with messages instead of remote accesses, and with traces of the memory nodes that answer them.

    An NPU uses a memory node of its own host if there is one, else any; its number modulo the number of these selects
    one of several.

    Args:
        traces_of_run: The traces of all NPUs.
        memory_nodes: The NPUs that are memory nodes.
        host: The host of each NPU, int32[npus].
        exchange: A function that gives all ranks the values of all; all ranks call it in the same order.
    """
    agree(exchange, lambda: _check(traces_of_run, memory_nodes))
    trace_of_npu = np.array(traces_of_run.trace_of_npu, np.int32)
    traces, examples = list(traces_of_run.traces), list(traces_of_run.example_npu)
    accesses: dict[int, list[tuple[bool, int]]] = {}  # whether each access is a load, and its bytes
    converted: dict[tuple[int, int, int], int] = {}

    def convert() -> None:
        """Replace the trace of each own NPU that accesses remote memory, and note its accesses."""
        for npu in np.flatnonzero(trace_of_npu >= 0).tolist():
            number = int(trace_of_npu[npu])
            table = traces_of_run.traces[number]
            rows = np.flatnonzero(np.isin(table.type, _MEMORY_TYPES) & (table.tensor_loc != 0))
            if not len(rows):
                continue
            server = _server(npu, memory_nodes, host)
            example = int(traces_of_run.example_npu[number])
            shift = 0 if example == AS_WRITTEN else npu - example
            # NPUs share a converted trace only if they also have the same memory node and peers
            key = number, server, shift
            if key not in converted:
                converted[key] = len(traces)
                traces.append(_with_messages(table, rows, server, shift))
                examples.append(AS_WRITTEN)
            trace_of_npu[npu] = converted[key]
            is_load, size = table.type[rows] == NodeType.MEM_LOAD_NODE, np.maximum(table.tensor_size[rows], 1)
            accesses[npu] = list(zip(is_load.tolist(), size.tolist(), strict=True))

    agree(exchange, convert)
    accesses_of_npu = {npu: own for of_rank in exchange(accesses) for npu, own in of_rank.items()}
    for server in memory_nodes:
        if trace_of_npu[server] == ELSEWHERE:
            continue
        clients = [npu for npu in sorted(accesses_of_npu) if _server(npu, memory_nodes, host) == server]
        if clients:
            trace_of_npu[server] = len(traces)
            traces.append(_answers(server, {npu: accesses_of_npu[npu] for npu in clients}))
            examples.append(AS_WRITTEN)
    return dataclasses.replace(
        traces_of_run, traces=traces, trace_of_npu=trace_of_npu, example_npu=np.array(examples, np.int32)
    )


def _check(traces_of_run: TraceSet, memory_nodes: Sequence[int]) -> None:
    """Check that memory nodes are different NPUs of the fabric without traces."""
    if len(set(memory_nodes)) != len(memory_nodes):
        raise WorkloadError(f"memory nodes {sorted(memory_nodes)}: expected each once")
    for server in memory_nodes:
        if not 0 <= server < traces_of_run.npus:
            raise WorkloadError(f"memory node {server}: expected an NPU of the fabric, 0 to {traces_of_run.npus - 1}")
        if traces_of_run.trace_of_npu[server] >= 0:
            path = traces_of_run.traces[traces_of_run.trace_of_npu[server]].path
            raise WorkloadError(f"{path}: trace of NPU {server}, which is a memory node; expected none", server)


def _server(npu: int, servers: Sequence[int], host: Int32) -> int:
    own = [server for server in servers if host[server] == host[npu]]
    return (own or list(servers))[npu % len(own or servers)]


def _with_messages(table: TraceTable, accesses: Int64, memory_node: int, shift: int) -> TraceTable:
    """Return the trace with a send before each remote access, which takes over its parents; the row becomes a receive.

    `accesses` are their rows, and `shift` is added to the peers of other messages.
    """
    n, more = len(table), len(accesses)
    if more > MAX_ACCESSES:
        raise WorkloadError(f"{table.path}: {more} accesses to remote memory, expected at most {MAX_ACCESSES}")
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray) and field.name not in {"dep_ptr", "dep"}:
            columns[field.name] = np.concatenate([value, value[accesses]])
    is_load = table.type[accesses] == NodeType.MEM_LOAD_NODE
    size = np.maximum(table.tensor_size[accesses], 1)
    # A load sends a request and gets the tensor; a store sends the tensor and gets an answer
    there, back = np.where(is_load, REQUEST_BYTES, size), np.where(is_load, size, REQUEST_BYTES)
    for name in ("comm_src", "comm_dst"):
        columns[name][columns[name] >= 0] += shift
    new = np.arange(n, n + more)
    columns["type"][accesses], columns["type"][new] = NodeType.COMM_RECV_NODE, NodeType.COMM_SEND_NODE
    columns["comm_size"][accesses], columns["comm_size"][new] = back, there
    for at in (accesses, new):
        columns["comm_tag"][at] = np.arange(more)
        columns["tensor_loc"][at] = 0
        columns["duration_micros"][at] = 0
        columns["comm_src"][at] = columns["comm_dst"][at] = -1
    columns["comm_src"][accesses], columns["comm_dst"][new] = memory_node, memory_node
    columns["node_id"][new] = _free_ids(table, more)
    names = NameTable.of([name.encode() for name in (*table.names, *(f"{table.names[i]}/request" for i in accesses))])
    parents = [table.dep[table.dep_ptr[i] : table.dep_ptr[i + 1]] for i in range(n)]
    moved = [parents[i] for i in accesses]
    for send, row in zip(new.tolist(), accesses.tolist(), strict=True):
        # The row, now a receive, waits for the request only; the request takes over its parents
        parents[row] = np.array([send], np.int32)
    all_parents = [*parents, *moved]
    dep_ptr = np.zeros(n + more + 1, np.int64)
    np.cumsum([len(each) for each in all_parents], out=dep_ptr[1:])
    dep = np.concatenate([np.zeros(0, np.int32), *all_parents]).astype(np.int32)
    return dataclasses.replace(table, **columns, names=names, dep_ptr=dep_ptr, dep=dep)


def _free_ids(table: TraceTable, count: int) -> UInt64:
    """Return `count` node ids that the trace does not use."""
    used = set(table.node_id.tolist())
    free: list[int] = []
    candidate = len(used)
    while len(free) < count:
        candidate += 1
        if candidate not in used:
            free.append(candidate)
    return np.array(free, np.uint64)


def _answers(memory_node: int, accesses_of_npu: dict[int, list[tuple[bool, int]]]) -> TraceTable:
    """Return the trace of a memory node: for each access a receive, then the memory access, then a send."""
    # accesses_of_npu: by NPU, whether each access is a load, and its bytes.
    nodes: list[Message] = []
    for npu, accesses in accesses_of_npu.items():
        for tag, (is_load, size_bytes) in enumerate(accesses):
            at = len(nodes) + 1
            name = f"{'load' if is_load else 'store'} {tag} of npu {npu}"
            there, back = (REQUEST_BYTES, size_bytes) if is_load else (size_bytes, REQUEST_BYTES)
            kind = NodeType.MEM_LOAD_NODE if is_load else NodeType.MEM_STORE_NODE
            nodes += [
                recv_node(at, f"{name}/asked", npu, memory_node, there, tag),
                mem_node(at + 1, name, kind, size_bytes, tensor_loc=_REMOTE_LOC, deps=[at]),
                send_node(at + 2, f"{name}/answered", memory_node, npu, back, tag, deps=[at + 1]),
            ]
    return table_of(metadata(), nodes, f"<memory node {memory_node}>")


# Remote memory of an NPU (`tensor_loc` other than 0 in a trace): host memory, a CXL card, or a memory pool.
#
# The model is that of ASTRA-sim 2.0 (Won et al., ISPASS 2023, section IV-C; astra-memory-analytical): an access takes
# the memory's latency plus its bytes divided by the memory's bandwidth, and a memory serves one access at a time in
# order of arrival. If each NPU has its own remote memory (PER_NPU_MEMORY_EXPANSION), it is a lane of the NPU.


REMOTE_KEY = '[memory] remote_bandwidth, as "64GB/s"'


@dataclass(frozen=True)
class RemoteMemory:
    """The remote memory of each NPU."""

    latency_ps: int = 0  # Latency per access in picoseconds
    # Bandwidth in bytes per second, None = unknown
    bandwidth_Bps: float | None = None  # noqa: N815 - bytes, not bits
    is_there: bool = True  # Whether NPUs have one; else nodes that need it are refused (NO_MEMORY_EXPANSION)


def is_remote(view: TraceView) -> Mask:
    """Return bool[n]: nodes of kind MEMORY whose tensor is in remote memory.

    Args:
        view: The view of the trace: its rows by kind, in topological order.
    """
    remote: Mask = (view.kind == MEMORY) & (view.table.tensor_loc != 0)
    return remote


def lanes(view: TraceView, remote: RemoteMemory | None) -> Int8:
    """Return int8[n]: the lanes of a trace's nodes. Raises WorkloadError: a node needs remote memory that NPUs lack.

    Args:
        view: The view of the trace: its rows by kind, in topological order.
        remote: The remote memory of each NPU; None = remote tensors count as local ones.
    """
    if remote is None:
        return view.lane
    needed = is_remote(view)
    if np.any(needed) and not remote.is_there:
        row = int(np.argmax(needed))
        raise WorkloadError(
            f"{view.node(row)}: tensor_loc is {view.table.tensor_loc[row]}, expected 0 (local), "
            'or another [memory] remote than "none"'
        )
    return np.where(needed, np.int8(REMOTE_LANE), view.lane)


# Durations of compute and memory nodes: recorded, from operators on a GPU, or from a roofline; traces with them.


GPU_KEY = '[compute] gpu, as "h100"'
PEAK_FLOPS_KEY = f'{GPU_KEY}, or peak_flops, as "312TFLOPS"'
BANDWIDTH_KEY = f'{GPU_KEY}, or [memory] bandwidth, as "2TB/s"'
_LONGEST_MICROS = LONGEST_PS // PS_PER_US


@dataclass(frozen=True)
class ComputeModel:
    """Model of the durations of nodes.

    The roofline is max(num_ops / peak_flops, tensor_size / memory_bandwidth_Bps) for compute nodes (Williams, Waterman
    and Patterson, CACM 2009) and memory_latency_ps + tensor_size / memory_bandwidth_Bps for memory nodes (with the
    latency and bandwidth of remote memory for remote tensors). It models the accelerator: nodes on the CPU have the
    trace's duration, unless host_flops is set and they have num_ops. With a GPU, a node with operators takes the sum of
    their times instead of the roofline.
    """

    # Mode of the model. "trace" uses the trace's durations; a remote access without one takes the time of the remote
    # memory. "roofline" uses operators or the roofline, and refuses compute nodes without operators, num_ops and
    # tensor_size. "auto" uses the trace's duration if it is not 0, else operators or the roofline if the node has any
    # of them (memory nodes: tensor_size), else 0.
    model: Literal["auto", "trace", "roofline"] = "auto"
    peak_flops: float | None = None  # Operations per second, None = the rate of the GPU's matrix products
    # Memory bandwidth in bytes per second, None = that of the GPU
    memory_bandwidth_Bps: float | None = None  # noqa: N815 - bytes, not bits
    memory_latency_ps: int = 0  # Latency of each memory node in picoseconds
    times: ComputeTimes | None = None  # Times of operators on a GPU, None = no GPU
    host_flops: float | None = None  # Operations per second of nodes on the CPU, None = unknown
    remote: RemoteMemory | None = None  # Memory of remote tensors, None = such tensors count as local ones
    unit_ps: int = 1  # Unit in ps to which times of the roofline are rounded down

    @property
    def flops(self) -> float | None:
        """Operations per second of nodes without operators, None = unknown."""
        return self.times.product_flops if self.peak_flops is None and self.times else self.peak_flops

    @property
    def bandwidth_Bps(self) -> float | None:  # noqa: N802 - bytes, not bits
        """Bytes per second of memory nodes and of nodes without operators, None = unknown."""
        return self.times.memory_Bps if self.memory_bandwidth_Bps is None and self.times else self.memory_bandwidth_Bps


def durations_ps(view: TraceView, model: ComputeModel) -> Int64:
    """Return int64[n]: picoseconds of each node of kinds COMPUTE and MEMORY, 0 for others.

    Recorded times are exact; roofline times are rounded to the nearest picosecond, then down to whole units. Raises
    WorkloadError: a duration exceeds 11 days, the roofline needs an unknown rate, or (model "roofline") a compute node
    has no operators, num_ops and tensor_size.

    Args:
        view: The view of the trace: its rows by kind, in topological order.
        model: The model of durations: recorded ones, operators on a GPU, or a roofline.
    """
    table = view.table
    has_operators = (table.operators > 0) & (view.kind == COMPUTE)
    has_work = (table.num_ops >= 0) | (table.tensor_size >= 0) | has_operators
    on_cpu = (view.kind == COMPUTE) & (view.lane == CPU_LANE)
    timed = (view.kind == COMPUTE) | (view.kind == MEMORY)
    too_long = timed & (table.duration_micros > _LONGEST_MICROS)
    _refuse(view, too_long, f"duration_micros is beyond {_LONGEST_MICROS}, expected less")
    recorded = np.where(timed & ~too_long, table.duration_micros, 0) * PS_PER_US
    if model.host_flops is not None:
        host_ps = np.rint(np.maximum(table.num_ops, 0) / model.host_flops * PS_PER_S).astype(np.int64)
        recorded = np.where(on_cpu & (recorded == 0), host_ps, recorded)
    modelled = timed & ~on_cpu
    if model.model == "trace":
        is_away = is_remote(view) if model.remote is not None else np.zeros(len(timed), np.bool_)
        modelled = is_away & (recorded == 0)
    elif model.model == "auto":
        modelled &= (recorded == 0) & np.where(view.kind == MEMORY, table.tensor_size >= 0, has_work)
    else:
        without = 'no operators, num_ops or tensor_size, expected one, or [compute] model = "auto" in the run file'
        _refuse(view, modelled & (view.kind == COMPUTE) & ~has_work, without)
    if not np.any(modelled):
        return recorded
    by_operators = modelled & has_operators
    if model.times is None:
        bare = by_operators & (table.num_ops < 0) & (table.tensor_size < 0)
        _refuse(view, bare, f"operators are given but no GPU that does them, expected {GPU_KEY}")
        return np.where(modelled, _roofline_ps(view, modelled, model), recorded)
    others = np.where(modelled, _roofline_ps(view, modelled & ~by_operators, model), recorded)
    return np.where(by_operators, _operators_ps(view, by_operators, model.times), others)


def _operators_ps(view: TraceView, is_chosen: Mask, times: ComputeTimes) -> Int64:
    """Return int64[n]: sum of the times of each chosen node's operators in picoseconds."""
    rows = np.where(is_chosen, view.table.operators, 0)
    of_row = np.zeros(len(view.table.operator_lists), np.int64)
    for row in np.unique(rows[is_chosen]).tolist():
        try:
            of_row[row] = times.text_ps(view.table.operator_lists[row])
        except WorkloadError as error:
            _refuse(view, is_chosen & (rows == row), str(error))
    _refuse(view, of_row[rows] > LONGEST_PS, "takes longer than 11 days, expected less")
    return of_row[rows]


def _roofline_ps(view: TraceView, is_modelled: Mask, model: ComputeModel) -> Int64:
    """Return int64[n]: picoseconds of each modelled node by the roofline, 0 for others."""
    is_memory = view.kind == MEMORY
    num_ops = np.where(is_modelled & ~is_memory, np.maximum(view.table.num_ops, 0), 0)
    size = np.where(is_modelled, np.maximum(view.table.tensor_size, 0), 0)
    elsewhere = is_remote(view) & is_modelled if model.remote is not None else np.zeros(len(size), np.bool_)
    local = np.where(elsewhere, 0, size)
    compute_ps = _seconds(view, num_ops, model.flops, "num_ops", PEAK_FLOPS_KEY) * PS_PER_S
    memory_ps = _seconds(view, local, model.bandwidth_Bps, "tensor_size", BANDWIDTH_KEY) * PS_PER_S
    memory_ps += np.where(is_memory, model.memory_latency_ps, 0)
    if model.remote is not None:
        away = _seconds(view, size - local, model.remote.bandwidth_Bps, "tensor_size", REMOTE_KEY) * PS_PER_S
        memory_ps = np.where(elsewhere, model.remote.latency_ps + away, memory_ps)
    longest_ps = np.maximum(compute_ps, memory_ps)
    _refuse(view, longest_ps > LONGEST_PS, "takes longer than 11 days, expected less")
    time_ps = np.rint(longest_ps).astype(np.int64)
    return time_ps - time_ps % model.unit_ps


def _seconds(view: TraceView, work: Int64, rate: float | None, column: str, key: str) -> NDArray[np.float64]:
    """Return float64[n], the seconds that work takes at a rate per second; column: name of the work in traces."""
    # key: the run file's key that sets the rate, for an error without it.
    if rate is None:
        _refuse(view, work > 0, f"{column} is given but no rate to divide it by, expected {key}")
        return np.zeros(len(work))
    return work / rate


def _refuse(view: TraceView, wrong: Mask, text: str) -> None:
    if np.any(wrong):
        raise WorkloadError(f"{view.node(int(np.argmax(wrong)))}: {text}")


def with_times_on(gpu: str | None) -> Callable[[TraceTable], TraceTable]:
    """Return a function that replaces the operators of a trace by times on a GPU at the pace of training steps.

    Args:
        gpu: The name or file of a GPU; None = the function returns traces as they are.
    """
    if gpu is None:
        return lambda table: table
    times = ComputeTimes(find_gpu(gpu), pace=IN_STEPS)
    return lambda table: with_recorded_times(table, times)


def with_recorded_times(table: TraceTable, times: ComputeTimes) -> TraceTable:
    """Return a trace whose accelerator's compute nodes have durations instead of operators or work.

    Args:
        table: The trace as a table of columns.
        times: The times of operators on a GPU.
    """
    # Nodes with a duration keep it. Traces have integer microseconds, so the rounding error of a node carries over to
    # the next one. The sum over a trace is exact to a microsecond, except that each node takes at least one
    # microsecond.
    view = TraceView(table)
    exact_ps = durations_ps(view, ComputeModel(times=times))
    replaced = (view.kind == COMPUTE) & (table.duration_micros == 0) & (exact_ps > 0)
    micros = table.duration_micros.copy()
    micros[replaced] = _rounded_micros(exact_ps[replaced])
    return dataclasses.replace(
        table,
        duration_micros=micros,
        num_ops=np.where(replaced, -1, table.num_ops),
        tensor_size=np.where(replaced, -1, table.tensor_size),
        operators=np.zeros(len(table), np.int32),
        operator_lists=("",),
    )


def _rounded_micros(times_ps: np.ndarray) -> list[int]:
    """Return times in integer microseconds of at least 1, carrying the rounding error from each to the next."""
    rounded, carry = [], 0
    for time_ps in times_ps.tolist():
        micros = max(1, (time_ps + carry + PS_PER_US // 2) // PS_PER_US)
        # What rounding took or added goes to the next node, so that errors do not add up
        carry += time_ps - micros * PS_PER_US
        rounded.append(micros)
    return rounded
