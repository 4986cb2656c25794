"""Durations of compute and memory nodes: recorded, from operators on a GPU, or from a roofline; traces with them."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nadi.et import TraceTable
from nadi.inputs.arrays import Int64, Mask
from nadi.inputs.limits import LONGEST_PS
from nadi.inputs.units import PS_PER_S, PS_PER_US
from nadi.workload.compute.efficiency import IN_STEPS
from nadi.workload.compute.gpu import find_gpu
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.errors import WorkloadError
from nadi.workload.node_kinds import COMPUTE, CPU_LANE, MEMORY
from nadi.workload.program.memory_pool import REMOTE_KEY, RemoteMemory, is_remote
from nadi.workload.trace_sets.trace_set import TraceView

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
